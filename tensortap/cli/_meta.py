"""``tensortap meta``: what a model's header says."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import click

from .._client import Client
from .._errors import NotFound
from .._model import RemoteModel
from .._table import name_of
from ._output import name_fields, plain, print_json, print_table, shown
from ._service import ask, asks, json_option

__all__ = ["meta"]

_ITEMS, _ITEMS_OF_ONE = 8, 32
_LONGEST_SHOWN = 100

_JSON = """\b
--json: {"model", "metadata": [{"key", "type", "value"}; of an array, {"key", "type": "array", "element_type",
         "length", "items", "whole"}; of a text, {"key", "type", "length", "value", "whole"}]}
with KEY, one of these objects, and "model". NaN and infinities are texts; a text that is no UTF-8 comes with
"value_base64".
"""


@click.command(epilog=_JSON)
@asks("MODEL", "[KEY]")
@click.option("--all", "is_whole", is_flag=True, help="Long arrays and texts whole, too.")
@json_option
def meta(tap: Client, model_id: str, key: str | None, is_whole: bool, as_json: bool) -> None:
    """Print a model's metadata, or the value of one key: a text as it is, an array one element a line."""
    model = tap[model_id]
    if key is not None:
        line = _only(model, key)
        line = _completed(model, line) if is_whole or line["type"] == "string" else line
        if as_json:
            print_json({**name_fields("model", model.id), **_kept(line)})
        else:
            _print_value(line)
        return
    lines = ask(model, f"{model.summary['links']['metadata']}?items={_ITEMS}")["metadata"]
    if is_whole:
        lines = [_completed(model, line) for line in lines]
    if as_json:
        print_json({**name_fields("model", model.id), "metadata": [_kept(line) for line in lines]})
        return
    rows = ((name_of(line, "key"), _type_text(line), _value_text(line, is_whole)) for line in lines)
    print_table(("key", "type", "value"), rows)


def _only(model: RemoteModel, key: str) -> dict[str, Any]:
    """The line of a key, with the beginning of its value."""
    prefix = quote(key.encode("utf-8", "surrogateescape"), safe="")
    found = ask(model, f"{model.summary['links']['metadata']}?items={_ITEMS_OF_ONE}&prefix={prefix}")["metadata"]
    for line in found:
        if name_of(line, "key") == key:
            return dict(line)
    raise NotFound(f"the model {model.id!r} has no key {key!r}", slug="no-such-key")


def _completed(model: RemoteModel, line: dict[str, Any]) -> dict[str, Any]:
    """The line with its whole value."""
    if line.get("whole", True):
        return line
    value = model.metadata[name_of(line, "key")]
    if line["type"] == "array":
        return {**line, "items": plain(value), "whole": True}
    if isinstance(value, bytes):
        return {**line, **name_fields("value", value.decode("utf-8", "surrogateescape")), "whole": True}
    return {**line, "value": value, "whole": True}


def _kept(line: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in line.items() if name != "href"}


def _type_text(line: Mapping[str, Any]) -> str:
    return f"{line['element_type']}[{line['length']}]" if line["type"] == "array" else str(line["type"])


def _value_text(line: Mapping[str, Any], is_whole: bool) -> str:
    """A value in a line of the table."""
    if line["type"] == "array":
        items = ", ".join(map(_element_text, line["items"]))
        return f"[{items}]" if line["whole"] else f"[{items}, …]"
    text = str(line["value"])
    return text if is_whole or len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"


def _element_text(item: Any) -> str:
    if isinstance(item, dict):
        item = item["text"]
    return json.dumps(item, ensure_ascii=False)


def _print_value(line: Mapping[str, Any]) -> None:
    if line["type"] != "array":
        text = str(line["value"])
        if sys.stdout.isatty():  # a text of several lines is one; what else commands a terminal is escaped
            text = "\n".join(map(shown, text.split("\n")))
        click.echo(text)
        return
    for item in line["items"]:
        click.echo(shown(item) if isinstance(item, str) else shown(_element_text(item)))
    if not line["whole"]:
        click.echo(f"tensortap: {line['length'] - len(line['items'])} more elements; --all prints them", err=True)
