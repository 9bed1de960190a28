"""``tensortap info``: all that is known of a model, or of one of its tensors, without its weights."""

from __future__ import annotations

from typing import Any

import click

from .._client import Client
from .._model import RemoteModel
from ._ls import fault_slug
from ._output import number, print_json, print_pairs, print_table, shown, size
from ._service import ask, asks, json_option

__all__ = ["info"]

_JSON = """\b
--json: {"id", "version", "architecture", "name", "parameters", "bytes", "files", "metadata_keys", "tensors",
         "unreadable_tensors", "types": {TYPE: {…}}, "warnings"}
or      {"model", "name", "shape", "ne", "type", "type_id", "rows", "row_weights", "weights", "bytes", "file",
         "offset", "start", "readable", maybe "fault"}, as in the service's own answers
"""


@click.command(epilog=_JSON)
@asks("MODEL", "[TENSOR]")
@json_option
def info(tap: Client, model_id: str, name: str | None, as_json: bool) -> None:
    """Describe a model, or a tensor."""
    model = tap[model_id]
    if name is not None:
        _describe_tensor(model, name, as_json)
        return
    summary = model.summary
    if as_json:
        kept = {key: value for key, value in summary.items() if key not in ("href", "links")}
        print_json({**kept, "version": model.version})
        return
    files = summary["files"]
    print_pairs(
        [
            ("model", model.id),
            ("name", summary["name"] or ""),
            ("architecture", summary["architecture"] or ""),
            ("parameters", f"{model.parameters:,}"),
            ("stored", f"{size(model.nbytes)} in {len(files)} file{'s' if len(files) != 1 else ''}"),
            ("format", ", ".join(sorted({f"GGUF v{file['version']} {file['byte_order']}-endian" for file in files}))),
            ("metadata", f"{summary['metadata_keys']} keys"),
            ("tensors", _tensors_text(summary)),
            ("version", model.version),
        ]
    )
    click.echo()
    rows = (
        (kind, str(figures["tensors"]), f"{figures['weights']:,}", size(figures["bytes"]))
        for kind, figures in summary["types"].items()
    )
    print_table(("type", "tensors", "weights", "stored"), rows, right=(1, 2, 3))
    for warning in summary["warnings"]:
        click.echo(shown(f"warning: {warning}"))


def _tensors_text(summary: Any) -> str:
    unreadable = summary["unreadable_tensors"]
    return str(summary["tensors"]) + (f", {unreadable} of them unreadable" if unreadable else "")


def _describe_tensor(model: RemoteModel, name: str, as_json: bool) -> None:
    line = model._line(name)
    # The first `/-/` of a path ends the model's id.
    described = ask(model, line.data.replace("/-/data/", "/-/tensors/", 1))
    if as_json:
        print_json({key: value for key, value in described.items() if key not in ("href", "data")})
        return
    pairs: list[tuple[str, object]] = [
        ("tensor", name),
        ("type", described["type"] or f"type {described['type_id']}"),
        ("shape", described["shape"]),
        ("rows", f"{described['rows']:,} of {described['row_weights']:,} weights"),
        ("weights", f"{described['weights']:,}"),
        ("stored", _stored(described)),
        ("place", f"byte {described['start']:,} of file {described['file']}"),
    ]
    if not described["readable"]:
        pairs.append(("unreadable", f"{fault_slug(described['fault'])}: {described['fault'].get('detail')}"))
    print_pairs(pairs)


def _stored(described: Any) -> str:
    if described["bytes"] is None or not described["weights"]:
        return size(described["bytes"])
    return f"{size(described['bytes'])}, {number(described['bytes'] * 8 / described['weights'])} bits per weight"
