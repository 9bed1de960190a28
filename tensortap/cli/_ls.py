"""``tensortap ls``: the models of a service, or the tensors of a model."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

import click

from decoders import GGMLType

from .._client import Client
from .._model import RemoteModel
from .._table import TensorLine, name_of
from ._output import name_fields, print_json, print_table, size
from ._service import ask, asks, json_option

__all__ = ["fault_slug", "ls", "matching", "tensor_json", "type_text"]

_JSON = """\b
--json: {"models": [{"id", "readable", "files", "bytes", and, of a readable one, "architecture", "name",
         "parameters", "tensors", "unreadable_tensors", "types", "warnings"; of another, "problem"}]}
or      {"model", "tensors": [{"name", "type", "type_id", "shape", "bytes", "readable", maybe "fault"}]}
Names that are no UTF-8 come with their bytes, as "id_base64", "model_base64", "name_base64".
"""


@click.command(epilog=_JSON)
@asks("[MODEL]", "[GLOB]")
@click.option("--type", "type_name", metavar="TYPE", help="Only tensors of this ggml type, like Q4_K or 12.")
@json_option
def ls(tap: Client, model_id: str | None, glob: str | None, type_name: str | None, as_json: bool) -> None:
    """List models, or the tensors of one, of which GLOB may pick some (* ? [abc])."""
    if model_id is None:
        if type_name is not None:
            raise click.UsageError("--type is for the tensors of a model")
        _list_models(tap, as_json)
        return
    model = tap[model_id]
    lines = [line for line in matching(model, glob) if _is_of(line, type_name)]
    if (
        not lines
        and type_name is not None
        and type_name.upper() not in GGMLType.__members__
        and not type_name.isdecimal()
    ):
        raise click.UsageError(f"{type_name!r} is no type that ggml has, like Q4_K or 12")
    if as_json:
        print_json({**name_fields("model", model.id), "tensors": [tensor_json(line) for line in lines]})
        return
    rows = ((line.name, type_text(line), str(list(line.shape)), _stored(line)) for line in lines)
    print_table(("name", "type", "shape", "stored"), rows, right=(3,))


def matching(model: RemoteModel, glob: str | None) -> list[TensorLine]:
    """The lines of the tensors whose names match a glob, in the file's order; all without one."""
    return [line for line in model._opened.lines.values() if glob is None or fnmatchcase(line.name, glob)]


def tensor_json(line: TensorLine) -> dict[str, Any]:
    """A tensor as ``--json`` has it."""
    described = {
        **name_fields("name", line.name),
        "type": line.type_name,
        "type_id": line.type_id,
        "shape": line.shape,
        "bytes": line.n_bytes,
        "readable": line.fault is None,
    }
    return described if line.fault is None else {**described, "fault": dict(line.fault)}


def type_text(line: TensorLine) -> str:
    """A tensor's type, or its id where it has no name."""
    return line.type_name or f"type {line.type_id}"


def fault_slug(problem: Any) -> str:
    """The name of a problem."""
    return str(problem.get("type", "")).rpartition("/")[2] if isinstance(problem, dict) else "unknown"


def _stored(line: TensorLine) -> str:
    return size(line.n_bytes) if line.fault is None else f"{fault_slug(line.fault)}  {size(line.n_bytes)}"


def _is_of(line: TensorLine, type_name: str | None) -> bool:
    return type_name is None or type_name.upper() in ((line.type_name or "").upper(), str(line.type_id))


def _list_models(tap: Client, as_json: bool) -> None:
    models = ask(tap, "/v1/models")["models"]
    if as_json:
        print_json({"models": [{key: value for key, value in line.items() if key != "href"} for line in models]})
        return
    print_table(("model", "architecture", "parameters", "tensors", "stored"), map(_model_row, models), right=(2, 3, 4))


def _model_row(line: dict[str, Any]) -> tuple[str, ...]:
    name, stored = name_of(line, "id"), size(line["bytes"])
    if not line["readable"]:
        return name, f"unreadable: {fault_slug(line.get('problem'))}", "", "", stored
    return name, line["architecture"] or "", f"{line['parameters']:,}", str(line["tensors"]), stored
