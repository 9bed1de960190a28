"""``tensortap pull``: a whole model as a safetensors file."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import click

from .._client import Client
from .._partial import remove_foreign_part
from ._get import is_special, output_option, refuse_to_overwrite
from ._output import bar, print_json, shown, size
from ._service import asks, json_option

__all__ = ["pull"]

_JSON = """\b
--json: {"path", "bytes", "tensors", "moved"}, where moved are the bytes of this run.
"""


@click.command(epilog=_JSON)
@asks("MODEL", retries=8)
@output_option("The safetensors file to write.")
@click.option("--name", metavar="GLOB", help="Only tensors of such names (* ? [abc]).")
@click.option("--exclude", metavar="GLOB", help="Leave out tensors of such names, as those that cannot be read.")
@click.option(
    "--dtype",
    type=click.Choice(["float32", "float16", "bfloat16", "stored"]),
    default="float32",
    show_default=True,
    help="Of every weight; stored is the file's own, of a model that is not quantized.",
)
@click.option("--force", is_flag=True, help="Overwrite FILE, and a FILE.part that no pull has made.")
@json_option
def pull(
    tap: Client,
    model_id: str,
    output: str,
    name: str | None,
    exclude: str | None,
    dtype: Any,
    force: bool,
    as_json: bool,
) -> None:
    """Write a whole model, decoded, to a safetensors file: in parallel, resumable, verified.

    What comes is kept in FILE.part, and what of it is there in FILE.part.json. Whatever ends a pull, Ctrl-C, kill -9 or
    the network, the same command goes on where it ended; if the model or the options have changed, it begins anew.

    Verified means: all of it is of one version of the model, every range had its length, what an earlier run left is
    still what came (CRC-32), and the header, read back, gives every tensor a place inside of the file that fits its
    dtype and shape. The file has its name only then.
    """
    if is_special(output) and not Path(output).is_dir():
        raise OSError(errno.EINVAL, "is no regular file: a pull replaces the file that it writes", output)
    refuse_to_overwrite(output, force)
    model = tap[model_id]
    if force:
        remove_foreign_part(Path(output))
    with bar(output) as tell:
        result = model.pull(output, name=name, exclude=exclude, dtype=dtype, progress=tell)
    if as_json:
        print_json({"path": output, "bytes": result.n_bytes, "tensors": result.n_tensors, "moved": result.moved})
        return
    resumed = f", {size(result.n_bytes - result.moved)} of it from before" if result.moved < result.n_bytes else ""
    click.echo(f"{shown(output)}: {result.n_tensors} tensors, {size(result.n_bytes)}{resumed}; verified")
