"""``tensortap diff``: how far the weights of two models are apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import click

from .._client import Client
from .._errors import NotFound
from .._model import RemoteModel
from .._table import TensorLine
from ._exits import DIFFERS
from ._ls import matching, tensor_json, type_text
from ._output import bar, name_fields, number, print_json, print_table, shown
from ._select import select_all
from ._service import KEY_B, SETTINGS, asks, client_of, json_option
from ._stats import Difference

__all__ = ["diff"]


@dataclass(frozen=True, slots=True)
class _Pair:
    """A tensor that both models have."""

    a: TensorLine
    b: TensorLine

    @property
    def types(self) -> str:
        one, other = type_text(self.a), type_text(self.b)
        return one if one == other else f"{one} / {other}"


_JSON = """\b
--json: {"a", "b", "equal", "compared", "tensors": [{"name", "type_a", "type_b", "shape", "weights", "max_error",
         "rmse", "relative_rmse", "cosine"}], "only_a": [{"name"}], "only_b": [{"name"}],
         "shapes": [{"name", "a", "b"}], "unreadable": [{"name", "a": {…}, "b": {…}}]}
"""


@click.command(epilog=_JSON)
@asks("MODEL_A", "MODEL_B", retries=8)
@click.option("--url-b", metavar="URL", help="Where MODEL_B is, if elsewhere.")
@click.option("--api-key-b", envvar=KEY_B, show_envvar=True, help="For --url-b, which never gets the other key.")
@click.option("--name", "glob", metavar="GLOB", help="Only tensors of such names (* ? [abc]).")
@click.option("--limit", type=click.IntRange(0), metavar="N", help="Show the N that differ most; all are compared.")
@json_option
@click.pass_context
def diff(
    ctx: click.Context,
    tap: Client,
    id_a: str,
    id_b: str,
    url_b: str | None,
    api_key_b: str | None,
    glob: str | None,
    limit: int | None,
    as_json: bool,
) -> None:
    """Compare the weights of two models, tensor by tensor; exit with 1 if they differ.

    Of each tensor that both have in one shape: the largest absolute difference, the RMSE, the RMSE relative to the
    root mean square of MODEL_A's weights, and the cosine. The largest relative RMSE comes first. Types that differ
    where the values are equal are no difference.
    """
    model_a = tap[id_a]
    if url_b is None:
        found = _compared(model_a, tap[id_b], glob)
    else:
        with client_of(url_b, api_key_b, **ctx.meta[SETTINGS]) as other:
            found = _compared(model_a, other[id_b], glob)
    if as_json:
        print_json({**name_fields("a", id_a), **name_fields("b", id_b), **found.document(limit)})
    else:
        found.print(limit)
    ctx.exit(0 if found.equal else DIFFERS)


class _Found:
    """What a comparison has found."""

    def __init__(self) -> None:
        self.compared: list[tuple[_Pair, Difference]] = []
        self.only_a: list[str] = []
        self.only_b: list[str] = []
        self.shapes: list[_Pair] = []
        self.unreadable: list[_Pair] = []

    @property
    def equal(self) -> bool:
        """Whether both have the same tensors of the same values."""
        others = self.only_a or self.only_b or self.shapes or self.unreadable
        return not others and all(difference.max_error == 0 for _, difference in self.compared)

    def document(self, limit: int | None) -> dict[str, Any]:
        """As ``--json`` has it."""
        return {
            "equal": self.equal,
            "compared": len(self.compared),
            "tensors": [
                {
                    **name_fields("name", pair.a.name),
                    "type_a": pair.a.type_name,
                    "type_b": pair.b.type_name,
                    "shape": pair.a.shape,
                    "weights": difference.n_weights,
                    "max_error": difference.max_error,
                    "rmse": difference.rmse,
                    "relative_rmse": difference.relative,
                    "cosine": difference.cosine,
                }
                for pair, difference in self.worst(limit)
            ],
            "only_a": [name_fields("name", name) for name in self.only_a],
            "only_b": [name_fields("name", name) for name in self.only_b],
            "shapes": [
                {**name_fields("name", pair.a.name), "a": pair.a.shape, "b": pair.b.shape} for pair in self.shapes
            ],
            "unreadable": [
                {**name_fields("name", pair.a.name), "a": tensor_json(pair.a), "b": tensor_json(pair.b)}
                for pair in self.unreadable
            ],
        }

    def print(self, limit: int | None) -> None:
        """As a table, and a line for each tensor that cannot be in it."""
        rows = (
            (
                pair.a.name,
                pair.types,
                number(difference.max_error),
                number(difference.rmse),
                number(difference.relative),
                f"{difference.cosine:.9f}",
            )
            for pair, difference in self.worst(limit)
        )
        print_table(("tensor", "type", "max error", "RMSE", "relative", "cosine"), rows, right=(2, 3, 4, 5))
        for name in self.only_a:
            click.echo(f"only the first has {shown(name)}")
        for name in self.only_b:
            click.echo(f"only the second has {shown(name)}")
        for pair in self.shapes:
            click.echo(f"shapes differ: {shown(pair.a.name)} {list(pair.a.shape)} / {list(pair.b.shape)}")
        for pair in self.unreadable:
            click.echo(f"cannot be read: {shown(pair.a.name)}")
        differing = sum(difference.max_error > 0 for _, difference in self.compared)
        click.echo(f"{differing} of {len(self.compared)} tensors that were compared differ")

    def worst(self, limit: int | None) -> list[tuple[_Pair, Difference]]:
        """The compared, those that differ most first."""
        ordered = sorted(self.compared, key=lambda one: (-one[1].relative, -one[1].max_error))
        return ordered[:limit]


def _compared(a: RemoteModel, b: RemoteModel, glob: str | None) -> _Found:
    found = _Found()
    lines_a, lines_b = ({line.name: line for line in matching(model, glob)} for model in (a, b))
    if glob is not None and not lines_a and not lines_b:
        raise NotFound(f"no tensor of either model has a name like {glob!r}.")
    found.only_a = [name for name in lines_a if name not in lines_b]
    found.only_b = [name for name in lines_b if name not in lines_a]
    pairs: list[_Pair] = []
    for name, line in lines_a.items():
        if name not in lines_b:
            continue
        pair = _Pair(line, lines_b[name])
        if pair.a.fault is not None or pair.b.fault is not None:
            found.unreadable.append(pair)
        elif pair.a.shape != pair.b.shape:
            found.shapes.append(pair)
        else:
            pairs.append(pair)
    with bar("diff") as tell:
        total = sum(2 * a[pair.a.name].nbytes for pair in pairs)
        done = 0
        for pair in pairs:
            difference = Difference()
            name = pair.a.name
            for one, other in zip(select_all(a[name]).batches(), select_all(b[name]).batches(), strict=True):
                difference.add(one, other)
                done += one.nbytes + other.nbytes
                tell(done, total)
            found.compared.append((pair, difference))
    return found
