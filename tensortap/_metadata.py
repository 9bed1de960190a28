"""A model's metadata: what its header says, by key."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ._errors import NotFound, TooLarge
from ._flow import Ask, Flow
from ._table import name_of

__all__ = ["AsyncMetadata", "Metadata"]

_SPECIAL = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_PAGE = 100_000  # elements of an array that is too long for one answer


class _Metadata:
    """What both kinds have: the listing, brought when it is first asked for, and the values that are known."""

    def __init__(self, href: str, headers: Mapping[str, str]) -> None:
        self._href = href
        self._headers = headers
        self._lines: dict[str, Mapping[str, Any]] | None = None
        self._values: dict[str, Any] = {}

    def _listing(self) -> Flow[dict[str, Mapping[str, Any]]]:
        if self._lines is None:
            answer = yield Ask(self._href, self._headers)
            lines: list[tuple[str, Mapping[str, Any]]] = answer.read(
                lambda document: [(name_of(line, "key"), dict(line)) for line in document["metadata"]]
            )
            self._lines = dict(reversed(lines))  # of a key that is given twice, the first
            self._lines = {key: self._lines[key] for key, _ in lines}
        return self._lines

    def _value(self, key: str) -> Flow[Any]:
        lines = yield from self._listing()
        if key not in lines:
            raise NotFound(f"the model has no key {key!r}", slug="no-such-key")
        if key not in self._values:
            self._values[key] = yield from self._whole(lines[key])
        value = self._values[key]
        return list(value) if isinstance(value, list) else value  # the caller's own, to change as they like

    def _whole(self, line: Mapping[str, Any]) -> Flow[Any]:
        if line.get("whole", True):
            return _plain(line)
        try:
            answer = yield Ask(line["href"], self._headers)
        except TooLarge:
            if line["type"] != "array":
                raise
        else:
            return answer.read(_plain)
        items: list[Any] = []
        for start in range(0, line["length"], _PAGE):
            answer = yield Ask(f"{line['href']}?slice={start}:{start + _PAGE}", self._headers)
            items += answer.read(_plain)
        return items


class Metadata(_Metadata, Mapping[str, Any]):
    """Metadata by key: numbers, bools, texts (bytes where they are no UTF-8), and lists of them.

    The listing is brought when it is first asked for, a long array when it is.
    """

    def __init__(self, href: str, headers: Mapping[str, str], run: Callable[[Flow[Any]], Any]) -> None:
        super().__init__(href, headers)
        self._run = run

    def __getitem__(self, key: str) -> Any:
        return self._run(self._value(key))

    def __iter__(self) -> Iterator[str]:
        return iter(self._run(self._listing()))

    def __len__(self) -> int:
        return len(self._run(self._listing()))

    def __contains__(self, key: object) -> bool:
        return key in self._run(self._listing())

    def __repr__(self) -> str:
        known = "not yet brought" if self._lines is None else f"{len(self._lines)} keys"
        return f"<Metadata of {self._href!r}, {known}>"


class AsyncMetadata(_Metadata):
    """The same for asyncio: ``await metadata.keys()``, ``await metadata["general.name"]``."""

    def __init__(self, href: str, headers: Mapping[str, str], run: Callable[[Flow[Any]], Any]) -> None:
        super().__init__(href, headers)
        self._run = run

    async def __getitem__(self, key: str) -> Any:
        """The value of a key; raises NotFound."""
        return await self._run(self._value(key))

    async def keys(self) -> list[str]:
        """Every key, in the file's order."""
        return list(await self._run(self._listing()))


def _plain(line: Mapping[str, Any]) -> Any:
    """A value of the service's JSON as Python has it."""
    if line["type"] == "array":
        return _list(line["items"], line["element_type"])
    if line["type"] == "string":
        encoded = line.get("value_base64")
        return line["value"] if encoded is None else base64.b64decode(encoded)
    return _element(line["value"], line["type"])


def _list(items: list[Any], kind: str) -> list[Any]:
    return [_element(item, kind) for item in items]


def _element(value: Any, kind: str) -> Any:
    if isinstance(value, dict):
        return base64.b64decode(value["base64"])
    if isinstance(value, list):
        return [_element(item, "" if isinstance(item, str) else kind) for item in value]
    if kind in ("f32", "f64"):
        return _SPECIAL[value] if isinstance(value, str) else float(value)
    return value
