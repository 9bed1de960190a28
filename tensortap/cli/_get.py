"""``tensortap get``: weights of a tensor as a file."""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TypeVar

import click
import numpy as np
from numpy.typing import NDArray

from .._client import Client
from .._errors import BadRequest
from .._partial import refuse_folder
from .._tensor import RemoteTensor
from ._exits import WouldOverwrite
from ._output import Tell, bar
from ._select import Selection, parsed_rows, select_all, select_nd, select_rows
from ._service import asks

__all__ = ["get", "is_special", "output_option", "refuse_to_overwrite"]

_BATCH_BYTES = 16 << 20

T = TypeVar("T")


def output_option(what: str) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """The option that names the file to write."""
    return click.option("-o", "--output", required=True, metavar="FILE", callback=_file_name, help=what)


def _file_name(ctx: click.Context, parameter: click.Parameter, path: str) -> str:
    if os.path.basename(path) in ("", ".", ".."):
        raise click.BadParameter(f"{path!r} names no file", ctx, parameter)
    return path


@click.command()
@asks("MODEL", "TENSOR", retries=8)
@output_option("Where to; - is standard output.")
@click.option("--rows", metavar="ROWS", help="Rows, as 0:16, -1 or 3,7,10:20: a matrix of them.")
@click.option("--slice", "slice_text", metavar="SLICE", help="N-D as in numpy, as 0,:,::2 or ...,:64.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["npy", "raw", "native"]),
    default="npy",
    show_default=True,
    help="An npy file, little-endian float32 alone, or the stored blocks of whole rows.",
)
@click.option("--force", is_flag=True, help="Overwrite FILE; a device or a pipe is written to.")
def get(
    tap: Client,
    model_id: str,
    name: str,
    output: str,
    rows: str | None,
    slice_text: str | None,
    form: str,
    force: bool,
) -> None:
    """Write weights of a tensor to a file, all of them or a selection.

    The file gets its name when it is whole; what is in the way of that leaves nothing behind.
    """
    if rows is not None and slice_text is not None:
        raise click.UsageError("--rows and --slice do not go together")
    tensor = tap[model_id][name]
    write = _native(tensor, rows, slice_text) if form == "native" else _floats(tensor, rows, slice_text, form == "npy")
    with _opened(output, force) as file, bar(name) as tell:
        write(file, tell)


def refuse_to_overwrite(path: str, force: bool) -> None:
    """Raise WouldOverwrite where a file is that nobody said may be overwritten, IsADirectoryError for a folder."""
    refuse_folder(Path(path))
    if not force and os.path.lexists(path):
        raise WouldOverwrite(errno.EEXIST, "is there already; --force overwrites it", path)


def is_special(path: str) -> bool:
    """Whether there is something else than a regular file: a device, a pipe, a socket or a folder."""
    return os.path.exists(path) and not stat.S_ISREG(os.stat(path).st_mode)


Write = Callable[[BinaryIO, Tell], None]


def _floats(tensor: RemoteTensor, rows: str | None, slice_text: str | None, is_npy: bool) -> Write:
    tensor._box(...)  # what cannot be read is refused before a file is made
    if rows is not None:
        selection = select_rows(tensor, rows)
    elif slice_text is not None:
        selection = select_nd(tensor, slice_text)
    else:
        selection = select_all(tensor)
    return lambda file, tell: _write_floats(selection, is_npy, file, tell)


def _write_floats(selection: Selection, is_npy: bool, file: BinaryIO, tell: Tell) -> None:
    if is_npy:
        header = {"descr": "<f4", "fortran_order": False, "shape": selection.shape}
        np.lib.format.write_array_header_1_0(file, header)
    done, total = 0, selection.n_weights * 4
    for batch in selection.batches():
        done += _write(file, batch.astype("<f4", copy=False).view(np.uint8))
        tell(done, total)


def _native(tensor: RemoteTensor, rows: str | None, slice_text: str | None) -> Write:
    if slice_text is not None:
        raise BadRequest("--format native gives whole rows: pick them by --rows")
    tensor.native(0, 0)  # refused before a file is made
    parts = [range(tensor.n_rows)] if rows is None else parsed_rows(rows, tensor.n_rows)
    if any(part.step != 1 for part in parts):
        raise BadRequest("--format native takes rows as they follow each other: a slice has no step")
    return lambda file, tell: _write_native(tensor, parts, file, tell)


def _write_native(tensor: RemoteTensor, parts: list[range], file: BinaryIO, tell: Tell) -> None:
    row_bytes = tensor._line.row_bytes
    done, total = 0, sum(map(len, parts)) * row_bytes
    for part in parts:
        step = max(1, _BATCH_BYTES // max(1, row_bytes))
        for first in range(part.start, part.stop, step):
            done += _write(file, tensor.native(first, min(first + step, part.stop)))
            tell(done, total)


def _write(file: BinaryIO, data: NDArray[np.uint8]) -> int:
    file.write(data.data)
    return data.nbytes


@contextmanager
def _opened(output: str, force: bool) -> Iterator[BinaryIO]:
    """Standard output, a device or pipe, or a file that takes its name at the end."""
    if output == "-":
        if sys.stdout.isatty():
            raise click.UsageError("weights are no text for a terminal: -o FILE, or a pipe")
        yield sys.stdout.buffer
        return
    refuse_to_overwrite(output, force)
    if is_special(output):
        with open(output, "wb") as file:
            yield file
        return
    target = Path(output)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            yield file
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)
