"""Files as the application serves them: whatever is answered is what lies in the tensor, and nothing from beside it.

An input is a file, or the parts of a split set, as for `fuzz.header`. What is expected is read from its fields, its
bytes are decoded by `decoders`, and what is selected is selected by numpy.
"""

import hashlib
import io
import json
import os
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import cache
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

import decoders
from app.check import check_files
from decoders import GGMLType
from fuzz import _mutation
from fuzz._reading import Refused, take_apart
from fuzz._service import Answer, Service
from fuzz._tensors import FORKED, PLAIN, Expected, blocks_of, expected_tensors, weights_of

__all__ = ["mutated", "run", "seeds", "spliced"]

_MOST_TENSORS = 3
_REFUSED = {404, 409, 413, 422}
_NAMES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1"}

mutated, spliced, seeds = _mutation.mutated, _mutation.spliced, _mutation.seeds
_numbers = count(1)


@cache
def _service() -> Service:
    return Service({}, recheck_seconds=0)


def run(data: bytes) -> None:
    """Put the files of an input on the volume, and ask for all that the service says of them."""
    parts = _mutation.parts_of(data)
    with _on_volume(parts) as (model, paths):
        listed = _service().ask("GET", b"/v1/models").json["models"]
        assert len(listed) == 1
        assert (listed[0]["id"], listed[0]["files"]) == (model, len(parts))
        with redirect_stdout(io.StringIO()) as table, redirect_stderr(io.StringIO()) as errors:
            check_files(paths)
        printed = table.getvalue() + errors.getvalue()
        assert printed.replace("\n", "").isprintable(), printed
        base = f"/v1/models/{model}".encode()
        answers = [_service().ask("GET", base + path) for path in (b"", b"/-/metadata", b"/-/tensors")]
        try:
            expected = [one for part in parts for one in expected_tensors(take_apart(part, whole=True), part)]
        except Refused:
            assert {answer.status for answer in answers} == {422}
            assert not listed[0]["readable"]
            return
        statuses = {answer.status for answer in answers}
        assert statuses == {200} or (len(parts) > 1 and statuses == {422})
        if statuses == {200}:
            assert listed[0]["readable"]
            _check_keys(answers[1])
            _check_tensors(base, answers[2].json["tensors"], expected, random.Random(hashlib.blake2b(data).digest()))


@contextmanager
def _on_volume(parts: Sequence[bytes]) -> Iterator[tuple[str, list[str]]]:
    """The id of a model of these files, under a name and a time of its own, and their paths."""
    number = next(_numbers)
    model = f"m{number}"
    ends = [f"-{at:05}-of-{len(parts):05}" for at in range(1, len(parts) + 1)] if len(parts) > 1 else [""]
    paths = [os.path.join(_service().root, f"{model}{end}.gguf") for end in ends]
    try:
        for path, part in zip(paths, parts, strict=True):
            with open(path, "wb") as file:
                file.write(part)
            # The clock of a file system is too coarse to tell two files of one inode apart, one after the other.
            os.utime(path, ns=(number * 10**9, number * 10**9))
        yield model, paths
    finally:
        for path in paths:
            os.unlink(path)


def _check_keys(listing: Answer) -> None:
    for line in listing.json["metadata"][:4]:
        answer = _service().ask("GET", line["href"].encode())
        assert answer.status == 200, line
        if "values" in answer.json:  # the file has the key more than once
            continue
        assert answer.json["type"] == line["type"]
        if line["type"] == "array":
            assert answer.json["length"] == line["length"] == len(answer.json["items"])
            assert answer.json["items"][: len(line["items"])] == line["items"]
            backwards = _service().ask("GET", line["href"].encode() + b"?slice=::-1").json
            assert backwards["items"] == answer.json["items"][::-1]


def _check_tensors(base: bytes, lines: Sequence[dict[str, Any]], expected: Sequence[Expected], chance: Any) -> None:
    assert len(lines) == min(len(expected), 1000)
    names = [one.info.name.content for one in expected]
    readable = []
    for line, one in zip(lines, expected, strict=False):
        assert (line["ne"], line["type_id"], line["start"]) == (one.info.ne, one.info.type, one.start)
        assert line["readable"] == ("fault" not in line)
        if line["readable"]:
            assert one.fault is None
        elif one.info.type not in FORKED:
            assert line["fault"]["type"] == f"/problems/{one.fault}"
        if line["readable"] and names.count(one.info.name.content) == 1:
            readable.append((line, one))
        elif chance.random() < 0.2:
            answer = _service().ask("GET", line["data"].encode())
            assert answer.status in ({409} if names.count(one.info.name.content) > 1 else {422})
    for line, one in chance.sample(readable, min(len(readable), _MOST_TENSORS)):
        _check_data(line["data"].encode(), one, chance)
    _check_safetensors(_service().ask("GET", base + b"/-/safetensors"), expected)


def _check_data(href: bytes, tensor: Expected, chance: random.Random) -> None:
    """All of a readable tensor in each form, and some selections of it."""
    weights, blocks, ggml_type = weights_of(tensor), blocks_of(tensor), GGMLType(tensor.info.type)
    raw = _body(href)
    assert raw == weights.tobytes() or _same_floats(np.frombuffer(raw, "<f4"), weights)
    native = _service().ask("GET", href + b"?format=native")
    assert native.status == (422 if tensor.big_endian else 200)
    assert tensor.big_endian or native.body == blocks
    stored = _service().ask("GET", href + b"?dtype=stored")
    assert stored.status == (200 if ggml_type in PLAIN else 400)
    assert ggml_type not in PLAIN or stored.body == blocks
    array = np.load(io.BytesIO(_body(href + b"?format=npy")), allow_pickle=False)
    assert array.shape == weights.shape
    assert _same_floats(array, weights)
    row_length = tensor.info.ne[0] if tensor.info.ne else 1
    n_rows = int(np.prod(tensor.info.ne[1:], dtype=object))
    rows = weights.reshape(n_rows, row_length)
    for _ in range(2):
        a, b = sorted(chance.randrange(-n_rows - 2, n_rows + 3) for _ in range(2))
        step = chance.choice((1, 1, 2, -1))
        c = chance.randrange(-row_length - 1, row_length + 1)
        query = f"?rows={a}:{b}:{step}&cols={c}:".encode()
        assert _same_floats(np.frombuffer(_body(href + query), "<f4"), rows[a:b:step, c:])
        if not tensor.big_endian:
            block = decoders.info(ggml_type)
            size = row_length // block.block_weights * block.block_bytes
            each = np.frombuffer(blocks, np.uint8).reshape(n_rows, size)
            assert _body(href + f"?format=native&rows={a}:{b}:{step}".encode()) == each[a:b:step].tobytes()


def _check_safetensors(answer: Answer, expected: Sequence[Expected]) -> None:
    if answer.status != 200:
        assert answer.status in _REFUSED | {400}
        return
    size = int.from_bytes(answer.body[:8], "little")
    header = json.loads(answer.body[8 : 8 + size])
    header.pop("__metadata__")
    assert len(header) == len(expected)
    data = answer.body[8 + size :]
    for one, place in zip(expected, header.values(), strict=True):
        first, stop = place["data_offsets"]
        weights = np.frombuffer(data[first:stop], _NAMES[place["dtype"]]).reshape(place["shape"])
        assert _same_floats(weights, weights_of(one))


def _body(target: bytes) -> bytes:
    answer = _service().ask("GET", target)
    assert answer.status == 200, answer
    return answer.body


def _same_floats(found: NDArray[Any], wanted: NDArray[np.float32]) -> bool:
    """Whether all bits are the same, but for those of NaNs."""
    found, wanted = found.reshape(-1).astype("<f4"), wanted.reshape(-1)
    both = np.isnan(found) & np.isnan(wanted)
    return found.shape == wanted.shape and bool(((found.view("<u4") == wanted.view("<u4")) | both).all())
