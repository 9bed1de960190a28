"""Split sets: models whose tensors are spread over several files, as llama.cpp's gguf-split writes them.

The file names count from 1 (``NAME-00001-of-00003.gguf``), the key ``split.no`` from 0. Every part is a GGUF of its
own; the first has the model's metadata. ``split.tensors.count`` is the number of tensors of all parts.
"""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from app.gguf._errors import SplitError
from app.gguf._header import Header

__all__ = ["SplitName", "check_parts", "part_name", "split_name"]

_NAME: Final = re.compile(rb"(.+)-([0-9]{5})-of-([0-9]{5})\.gguf", re.DOTALL)
_PARTS_LIMIT: Final = 99_999


class SplitName(NamedTuple):
    """What the file name of a part says: the ``stem``, the ``number`` of the part (from 1), the ``count`` of parts."""

    stem: bytes
    number: int
    count: int  # type: ignore[assignment]  # as a tuple it has a method of that name, which nothing here calls


def split_name(file_name: bytes) -> SplitName | None:
    """Take the name of a part apart; None for any other name.

    >>> split_name(b"m-00001-of-00002.gguf")
    SplitName(stem=b'm', number=1, count=2)
    >>> split_name(b"m-00003-of-00002.gguf") is None
    True
    """
    match = _NAME.fullmatch(file_name)
    if match is None:
        return None
    stem, number, count = match[1], int(match[2]), int(match[3])
    return SplitName(stem, number, count) if 1 <= number <= count else None


def part_name(stem: bytes, number: int, count: int) -> bytes:
    """Give the file name of part `number` (from 1) of `count`; raises `ValueError` for numbers that have none.

    >>> part_name(b"m", 1, 2)
    b'm-00001-of-00002.gguf'
    """
    if not 1 <= number <= count <= _PARTS_LIMIT:
        raise ValueError(f"there is no part {number} of {count}: parts count from 1, to {_PARTS_LIMIT} at most")
    return b"%s-%05d-of-%05d.gguf" % (stem, number, count)


def check_parts(headers: Sequence[Header]) -> tuple[str, ...]:
    """Check that `headers`, in order, are the parts of one set; give warnings on what they leave unsaid.

    A single file passes, whatever part it says it is. Raises `SplitError` for a wrong count or number, for parts of
    different byte orders, and for a total of tensors that is not the stated one.
    """
    if len(headers) == 1:
        count, number = headers[0].metadata.integer(b"split.count"), headers[0].metadata.integer(b"split.no")
        if count is not None and count > 1:
            which = "a part" if number is None else f"part {number + 1}"
            return (f"The file is {which} of a split set of {count}, opened alone: tensors of the others are missing.",)
        return ()
    silent = []
    for number, header in enumerate(headers, 1):
        if not _check_part(header, number, len(headers)):
            silent.append(number)
        if header.byte_order != headers[0].byte_order:
            raise SplitError(
                f"Part {number} is {header.byte_order}-endian and part 1 is {headers[0].byte_order}-endian.",
                number,
                None,
                None,
            )
    total = sum(len(header.tensors) for header in headers)
    for number, header in enumerate(headers, 1):
        stated = header.metadata.integer(b"split.tensors.count")
        if stated is not None and stated != total:
            raise SplitError(
                f"Part {number} says that the set has {stated} tensors (split.tensors.count); its parts have {total}. "
                "Parts of different models or versions are mixed: download all of them again.",
                number,
                stated,
                total,
            )
    if silent:
        parts = ", ".join(str(number) for number in silent[:5]) + (", …" if len(silent) > 5 else "")
        return (f"Parts that do not say which part they are (split.no): {parts}.",)
    return ()


def _check_part(header: Header, number: int, count: int) -> bool:
    """Check what one part says of itself; tell whether it names its number."""
    stated = header.metadata.integer(b"split.count")
    # Later parts may leave the count out; without it in the first, nothing says that this is a set at all.
    if stated != count and (stated is not None or number == 1):
        says = (
            "does not say of how many parts its set is" if stated is None else f"says that its set has {stated} parts"
        )
        raise SplitError(
            f"Part {number} {says} (split.count); {count} are expected. The files do not belong together.",
            number,
            count,
            stated,
        )
    index = header.metadata.integer(b"split.no")
    if index is not None and index != number - 1:
        raise SplitError(
            f"The file in the place of part {number} says that it is part {index + 1} (split.no {index}). "
            "Files of the set were renamed or mixed up.",
            number,
            number - 1,
            index,
        )
    return index is not None
