"""Whole tensors over HTTP, decoded as they are read, beside nginx that sends the same float32 bytes as a file.

The clients only count bytes. *Cold*: the tensor is larger than the window cache, so every read decodes it. *Warm*: the
cache has all of it. The files of both servers are in the page cache.
"""

import hashlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx

from bench import _timing
from bench._files import DATA, decode_file, write_model
from bench._receivers import Receivers
from bench._servers import Running, nginx, tensortap
from bench._table import Plot, Series, Table, Target
from decoders import GGMLType

__all__ = ["run"]

_COLD_TARGETS = {"F32": 0.7, "F16": 0.7, "Q8_0": 0.7, "Q4_K": 0.5, "Q6_K": 0.5, "IQ2_XXS": 0.5}
_TYPES = [GGMLType[name] for name in ("F32", "F16", "Q8_0", "Q4_0", "Q4_K", "Q6_K", "IQ2_XXS")]
_CLIENTS = (1, 4, 16)
_TENSOR = DATA.format(model="m", tensor="w")


@dataclass(frozen=True, slots=True)
class _Row:
    """GB/s by side."""

    name: str
    clients: int
    nginx: float
    cold: float
    warm: float


def run(quick: bool) -> Iterator[Table]:
    """GB/s of whole tensors for 1, 4 and 16 clients, cold and warm, and the ratio to nginx; how busy the cores are."""
    n_weights = 1 << 22 if quick else 1 << 26
    with Receivers(max(_CLIENTS)) as receivers:
        rows = [row for type_ in _TYPES for row in _measured(type_, n_weights, receivers, quick)]
        yield _one_client(rows, n_weights)
        yield _several_clients(rows)
        yield _cores(n_weights, receivers, quick)


def _measured(type_: GGMLType, n_weights: int, receivers: Receivers, quick: bool) -> list[_Row]:
    n_bytes = n_weights * 4
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_model(root / "m.gguf", type_, n_weights)
        decode_file(root / "m.gguf", type_, n_weights, root / "w.f32")
        with (
            nginx(root) as plain,
            tensortap(root, cache_bytes=n_bytes // 4) as cold,
            tensortap(root, cache_bytes=n_bytes * 2) as warm,
        ):
            _check_equal(plain, warm)
            return [_row(type_.name, clients, receivers, plain, cold, warm, quick) for clients in _CLIENTS]


def _row(
    name: str, clients: int, receivers: Receivers, plain: Running, cold: Running, warm: Running, quick: bool
) -> _Row:
    sides = {
        "nginx": lambda: receivers.read(plain.port, ["/w.f32"] * clients),
        "cold": lambda: receivers.read(cold.port, [_TENSOR] * clients),
        "warm": lambda: receivers.read(warm.port, [_TENSOR] * clients),
    }
    rounds = 2 if quick else {1: 7, 4: 4}.get(clients, 3)
    reads = _timing.alternate(sides, rounds)
    return _Row(name, clients, **{side: max(read.speed for read in of_side) for side, of_side in reads.items()})


def _check_equal(plain: Running, warm: Running) -> None:
    digests = set()
    for url in (f"{plain.url}/w.f32", warm.url + _TENSOR):
        digest = hashlib.sha256()
        with httpx.stream("GET", url, timeout=60) as answer:
            for chunk in answer.iter_raw():
                digest.update(chunk)
        digests.add(digest.digest())
    if len(digests) > 1:
        raise AssertionError(f"the bytes of {plain.url} and {warm.url} differ")


def _one_client(rows: list[_Row], n_weights: int) -> Table:
    alone = [row for row in rows if row.clients == 1]
    return Table(
        "serve",
        f"a whole tensor of {n_weights * 4 >> 20} MiB float32 over HTTP, one client, GB/s",
        ["format", "nginx", "cold", "cold / nginx", "warm", "warm / nginx"],
        [[row.name, row.nginx, row.cold, row.cold / row.nginx, row.warm, row.warm / row.nginx] for row in alone],
        [
            Plot(
                [
                    Series("warm", [row.warm for row in alone]),
                    Series("cold", [row.cold for row in alone]),
                    Series("nginx, the float32 file", [row.nginx for row in alone]),
                ],
                [row.name for row in alone],
                "GB/s",
            )
        ],
        [
            Target("least warm / nginx", min(row.warm / row.nginx for row in alone), 1),
            *(
                Target(f"{row.name} cold / nginx", row.cold / row.nginx, _COLD_TARGETS[row.name])
                for row in alone
                if row.name in _COLD_TARGETS
            ),
        ],
    )


def _several_clients(rows: list[_Row]) -> Table:
    names = list(dict.fromkeys(row.name for row in rows))

    def ratios(side: str, clients: int) -> list[float | None]:
        return [getattr(row, side) / row.nginx for row in rows if row.clients == clients]

    return Table(
        "serve-clients",
        "whole tensors over HTTP, several clients of one tensor at once, GB/s together",
        ["format", "clients", "nginx", "cold", "cold / nginx", "warm", "warm / nginx"],
        [
            [row.name, row.clients, row.nginx, row.cold, row.cold / row.nginx, row.warm, row.warm / row.nginx]
            for row in rows
        ],
        [
            Plot(
                [
                    *(Series(f"{clients} client{'s' * (clients > 1)}", ratios(side, clients)) for clients in _CLIENTS),
                    Series("nginx", [1.0] * len(names), ceiling=True),
                ],
                names,
                "ratio to nginx with as many clients",
                title=side,
            )
            for side in ("cold", "warm")
        ],
        notes=["from the first request to the last byte of the last client; a ratio is to nginx with as many clients"],
    )


def _cores(n_weights: int, receivers: Receivers, quick: bool) -> Table:
    pairs = [("Q8_0", "Q8_0"), ("Q4_K", "Q6_K")]
    rows: list[list[str | int | float | None]] = []
    for pair in pairs:
        with tempfile.TemporaryDirectory() as folder:
            for name, type_ in zip(("a", "b"), pair, strict=True):
                write_model(Path(folder) / f"{name}.gguf", GGMLType[type_], n_weights)
            paths = [DATA.format(model=name, tensor="w") for name in ("a", "b")]
            with tensortap(Path(folder), cache_bytes=n_weights) as server:
                receivers.read(server.port, paths)
                server_before, clients_before = server.cpu_seconds(), receivers.cpu_seconds()
                both = partial(receivers.read, server.port, paths)
                reads = _timing.alternate({"both": both}, 2 if quick else 6)
                took = sum(read.seconds for read in reads["both"])
                in_server = (server.cpu_seconds() - server_before) / took
                in_clients = (receivers.cpu_seconds() - clients_before) / took
        speed = max(read.speed for read in reads["both"])
        rows.append([" and ".join(pair), speed, in_server, in_clients, in_server + in_clients])
    return Table(
        "serve-cores",
        "two clients on different tensors, cold: cores that are busy",
        ["formats", "GB/s", "server", "clients", "together"],
        rows,
        [
            Plot(
                [
                    Series("server", [float(row[2] or 0) for row in rows]),
                    Series("clients", [float(row[3] or 0) for row in rows]),
                    Series("together", [float(row[4] or 0) for row in rows]),
                ],
                [str(row[0]) for row in rows],
                "processor seconds per second",
            )
        ],
        [Target("least cores that are busy", min(float(row[4] or 0) for row in rows), 1.8)],
        ["1.8 of 2, since the clients begin and end not quite together"],
    )
