"""Random requests, and the check of each answer against a version of the model: what numpy makes of its weights.

Nothing here is shared with the service: selections, encodings and ranges are written down a second time.
"""

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any
from urllib.parse import urlencode

import numpy as np
from numpy.typing import NDArray

from bench._files import DATA
from bench._selections import Selected, select
from bench._versions import PLAIN, SERIES, Held, Version, series_of
from decoders import GGMLType

__all__ = ["Answer", "Ask", "draw"]

# Most weights of an answer, and how often: small ones, up to a window, streams.
_MOST = (4096, 131_072, 2**31)
_MOST_CHANCES = (65, 28, 7)
_MOST_JSON = 4096
_TELLING = 64  # so many random weights are of one version only
_UNIT = {"float32": "<f4", "float16": "<f2", "bfloat16": "<u2"}


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer. Names of headers are in lower case; an answer to HEAD has no body."""

    status: int
    headers: dict[str, str]
    body: bytes | bytearray


@dataclass(slots=True)
class Ask:
    """A request, and whether an answer is that of a version.

    ``expected`` gives the bytes of the whole body, where it can be told to the byte: byte ranges can be asked of it.
    ``is_telling``: no two versions have the same answer.
    """

    model: str
    target: str
    check: Callable[[Answer, Version], bool]
    method: str = "GET"
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    statuses: tuple[int, ...] = (200,)
    expected: Callable[[Version], bytes] | None = None
    n_bytes: int = 0
    is_telling: bool = True


def draw(rng: Random, versions: dict[str, list[Version]]) -> Ask:
    """A random request for something of one of the models."""
    model = rng.choice([*versions, next(iter(versions))])  # the first more often
    chance = rng.random()
    if chance < 0.12:
        return _view(rng, model, versions[model][0])
    if chance < 0.15:
        return _safetensors(rng, model, versions[model][0])
    ask = _weights(rng, model, versions[model][0])
    if ask.method == "GET" and ask.expected is not None and ask.n_bytes and rng.random() < 0.35:
        return _ranged(rng, ask)
    if ask.method == "GET" and rng.random() < 0.08:
        return _head(ask)
    return ask


def _weights(rng: Random, model: str, version: Version) -> Ask:
    at = rng.randrange(len(version.tensors))
    held = version.tensors[at]
    form = rng.choices(("raw", "npy", "json", "native"), (55, 15, 15, 15))[0]
    dtypes = ["float32", "float32", "float32"]
    if form in ("raw", "npy"):
        dtypes += ["float16", *(["bfloat16"] if form == "raw" else []), *(["stored"] if held.type in PLAIN else [])]
    dtype = rng.choice(dtypes)
    most = _MOST_JSON if form == "json" else rng.choices(_MOST, _MOST_CHANCES)[0]
    selected = select(rng, held.weights.shape, most, rows_only=form == "native")

    def array(one: Version) -> NDArray[Any]:
        return np.asarray(_form(one.tensors[at], form, dtype, selected), order="C")

    def expected(one: Version) -> bytes:
        return array(one).tobytes()

    def check(answer: Answer, one: Version) -> bool:
        if form == "npy":
            return _same(np.load(io.BytesIO(answer.body), allow_pickle=False), array(one))
        if form == "json":
            document = json.loads(answer.body)
            weights = array(one)
            values = np.array(document["data"], np.float32).reshape(document["shape"])
            return document["dtype"] == "float32" and _same(values, weights)
        shape = selected.shape
        return answer.body == expected(one) and (
            form == "native" or json.loads(answer.headers["x-tensor-shape"]) == list(shape)
        )

    query = {"format": form, **({"dtype": dtype} if dtype != "float32" else {})}
    if form == "raw" and rng.random() < 0.5:
        del query["format"]
    itemsize = held.stored.shape[1] if form == "native" else _itemsize(held.type, dtype)
    n_items = selected.n_items // held.weights.shape[-1] if form == "native" else selected.n_items
    ask = Ask(model, "", check, n_bytes=n_items * itemsize, is_telling=selected.n_items >= _TELLING)
    if form in ("raw", "native"):
        ask.expected = expected
    path = DATA.format(model=model, tensor=held.name)
    if selected.is_long or rng.random() < 0.1:
        ask.method, ask.target = "POST", path
        ask.headers = {"Content-Type": "application/json"}
        ask.body = json.dumps({**selected.posted, **query}).encode()
    elif rng.random() < 0.2:
        ask.target = f"/v1/data?{urlencode({'model': model, 'tensor': held.name, **selected.query, **query})}"
    else:
        ask.target = f"{path}?{urlencode({**selected.query, **query}, safe=',:')}".rstrip("?")
    return ask


def _itemsize(type_: GGMLType, dtype: str) -> int:
    return np.dtype(PLAIN[type_] if dtype == "stored" else _UNIT[dtype]).itemsize


def _form(held: Held, form: str, dtype: str, selected: Selected) -> NDArray[Any]:
    """What is selected of a tensor, in the form that is asked for."""
    if form == "native":
        return selected.of_rows(held.stored)
    if dtype == "stored":
        return selected.of(held.stored.reshape(-1).view(PLAIN[held.type]).reshape(held.weights.shape))
    return _converted(selected.of(held.weights), dtype)


def _converted(weights: NDArray[np.float32], dtype: str) -> NDArray[Any]:
    if dtype == "float16":
        with np.errstate(over="ignore"):  # integers may be too large, and are infinite then
            return weights.astype("<f2")
    if dtype == "bfloat16":
        # Round to nearest, ties to even; the weights are finite.
        bits = np.ascontiguousarray(weights).reshape(-1).view(np.uint32).astype(np.uint64)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2").reshape(weights.shape)
    return weights


def _same(values: NDArray[Any], expected: NDArray[Any]) -> bool:
    return values.shape == expected.shape and values.dtype == expected.dtype and values.tobytes() == expected.tobytes()


def _head(ask: Ask) -> Ask:
    def check(answer: Answer, _: Version) -> bool:
        length = answer.headers.get("content-length")
        return not answer.body and (ask.expected is None or length == str(ask.n_bytes))

    return Ask(ask.model, ask.target, check, "HEAD", is_telling=False)


def _ranged(rng: Random, ask: Ask) -> Ask:
    """Byte ranges of what a request is for: one, the last bytes, or up to five."""
    size, expected = ask.n_bytes, ask.expected
    assert expected is not None
    most = min(size, rng.choice((100, 10_000, 2_000_000)))
    chance = rng.random()
    if chance < 0.15:
        count = rng.randint(1, most)
        ranges, header = [(size - count, size)], f"bytes=-{count}"
    elif chance < 0.6 or size < 10:
        first = rng.randint(0, size - 1)
        ranges = [(first, min(size, first + rng.randint(1, most)))]
        header = f"bytes={first}-{ranges[0][1] - 1}"
    else:
        edges = sorted(rng.sample(range(size + 1), min(2 * rng.randint(2, 5), size + 1) // 2 * 2))
        ranges = list(zip(edges[::2], edges[1::2], strict=True))
        header = "bytes=" + ",".join(f"{first}-{stop - 1}" for first, stop in ranges)

    def check(answer: Answer, one: Version) -> bool:
        whole = expected(one)
        if answer.status != 206:
            return False
        return _parts(answer) == [(f"bytes {first}-{stop - 1}/{size}", whole[first:stop]) for first, stop in ranges]

    is_telling = ask.is_telling and sum(stop - first for first, stop in ranges) >= _TELLING
    headers = {**ask.headers, "Range": header}
    return Ask(ask.model, ask.target, check, headers=headers, statuses=(206,), is_telling=is_telling)


def _parts(answer: Answer) -> list[tuple[str, bytes]]:
    """Where each part of a 206 is from, as its Content-Range says, and its bytes."""
    body = bytes(answer.body)
    kind, _, boundary = answer.headers["content-type"].partition("; boundary=")
    if kind != "multipart/byteranges":
        return [(answer.headers["content-range"], body)]
    parts: list[tuple[str, bytes]] = []
    at = 0
    delimiter = f"--{boundary}".encode()
    while True:
        if not body.startswith(delimiter, at):
            raise ValueError(f"no boundary at byte {at} of a multipart answer")
        at += len(delimiter)
        if body[at:] == b"--\r\n":
            return parts
        end = body.index(b"\r\n\r\n", at)
        fields = dict(line.split(": ", 1) for line in body[at:end].decode().lower().split("\r\n") if line)
        where = fields["content-range"]
        first, _, last = where.removeprefix("bytes ").partition("/")[0].partition("-")
        stop = end + 4 + int(last) - int(first) + 1
        parts.append((where, body[end + 4 : stop]))
        at = stop + 2


def _safetensors(rng: Random, model: str, version: Version) -> Ask:
    """A few tensors as one file."""
    pattern = rng.choice(("t.q?_0", "t.iq2*", "t.f*", "t.q4*", "t.mx*") if model == "types" else ("w.q8*", "w.f*"))
    names = [held.name for held in version.tensors]
    wanted = [at for at, name in enumerate(names) if _matches(name, pattern)]
    dtype = rng.choice(("float32", "float16", "bfloat16"))
    unit = _UNIT[dtype]
    label = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}[dtype]

    def check(answer: Answer, one: Version) -> bool:
        length = int.from_bytes(answer.body[:8], "little")
        header = json.loads(answer.body[8 : 8 + length])
        header.pop("__metadata__", None)
        data = memoryview(answer.body)[8 + length :]
        if list(header) != [names[at] for at in wanted]:
            return False
        end = 0
        for at in wanted:
            held, entry = one.tensors[at], header[names[at]]
            start, stop = entry["data_offsets"]
            values = np.frombuffer(data[start:stop], unit).reshape(held.weights.shape)
            is_right = start == end and entry["dtype"] == label and entry["shape"] == list(held.weights.shape)
            if not is_right or not _same(values, _converted(held.weights, dtype)):
                return False
            end = stop
        return end == len(data)

    query = urlencode({"name": pattern, **({"dtype": dtype} if dtype != "float32" else {})})
    ask = Ask(model, f"/v1/models/{model}/-/safetensors?{query}", check)
    if rng.random() < 0.5:
        return ask
    n_bytes = version.tensors[wanted[-1]].weights.size * np.dtype(unit).itemsize
    count = rng.randint(1, n_bytes)

    def check_last(answer: Answer, one: Version) -> bool:
        last = _converted(one.tensors[wanted[-1]].weights, dtype)
        return answer.status == 206 and answer.body == last.tobytes()[n_bytes - count :]

    headers = {"Range": f"bytes=-{count}"}
    return Ask(model, ask.target, check_last, headers=headers, statuses=(206,), is_telling=count >= _TELLING)


def _matches(name: str, pattern: str) -> bool:
    beginning, _, _ = pattern.partition("*")
    if pattern.endswith("*"):
        return name.startswith(beginning)
    return len(name) == len(pattern) and all(b in ("?", a) for a, b in zip(name, pattern, strict=True))


def _view(rng: Random, model: str, version: Version) -> Ask:
    """What the service says of a model in JSON: metadata, a page of the tensor table, one tensor."""
    url = f"/v1/models/{model}"
    kind = rng.choice(("metadata", "series", "tensors", "tensor"))
    if kind == "metadata":
        items = rng.randint(0, 300)
        return Ask(model, f"{url}/-/metadata?items={items}", _json_check(lambda told, one: _metadata(told, one, items)))
    if kind == "series":
        start = rng.randint(1, SERIES - 1)
        stop = rng.randint(start + 1, SERIES)
        return Ask(
            model,
            f"{url}/-/metadata/load.series?slice={start}:{stop}",
            _json_check(lambda told, one: told["items"] == series_of(one.number)[start:stop]),
        )
    if kind == "tensors":
        cursor, limit = rng.randint(0, len(version.tensors) - 1), rng.randint(1, 50)
        return Ask(
            model,
            f"{url}/-/tensors?cursor={cursor}&limit={limit}",
            _json_check(lambda told, one: _page(told["tensors"], one.tensors[cursor : cursor + limit])),
            is_telling=False,
        )
    at = rng.randrange(len(version.tensors))
    return Ask(
        model,
        f"{url}/-/tensors/{version.tensors[at].name}",
        _json_check(lambda told, one: _page([told], [one.tensors[at]])),
        is_telling=False,
    )


def _json_check(is_right: Callable[[Any, Version], bool]) -> Callable[[Answer, Version], bool]:
    return lambda answer, version: is_right(json.loads(answer.body), version)


def _metadata(told: Any, version: Version, items: int) -> bool:
    by_key = {entry["key"]: entry for entry in told["metadata"]}
    number, series = by_key["load.version"]["value"], by_key["load.series"]
    return bool(
        number == version.number
        and series["length"] == SERIES
        and series["items"] == series_of(version.number)[:items]
        and by_key["general.architecture"]["value"] == "llama"
    )


def _page(lines: Sequence[Any], tensors: Sequence[Held]) -> bool:
    return [(line["name"], line["type"], line["shape"], line["bytes"], line["readable"]) for line in lines] == [
        (held.name, held.type.name, list(held.weights.shape), held.stored.size, True) for held in tensors
    ]
