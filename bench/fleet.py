"""Several replicas behind nginx: what each way of an answer costs, and whether that predicts what a fleet serves.

The replicas get a share of a core each, so that three of them, nginx and the clients fit on a small machine, and they
are what limits. Predictions are made of two things that are measured beforehand, apart from each other: on which
replica each tensor lies, and what one replica serves. That is told by what a GB or a request costs, as in
docs/scaling.md; and by as many single replicas as the fleet has, each behind its own nginx, at the same time. On two
cores, which may be one with two threads, a request costs the more the busier they are: single ones are as busy as can
be, and a fleet is less so, of which the fullest replica is the limit.
"""

import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from bench._files import DATA, ROW_WEIGHTS, write_holes
from bench._quota import Quota
from bench._servers import cpu_seconds
from bench._table import Plot, Series, Table, Target
from bench._wrk import Load, load_each
from tests.deploy.fleet import Fleet

__all__ = ["run"]

_MIB = 1 << 20
_TENSORS, _ROWS = 48, 512  # of 8 MiB decoded each
_NAMES = [f"w{number}" for number in range(_TENSORS)]
_COLD, _WARM = "16MiB", "1GiB"  # a cache of what is under way, and one of all
_CORES = 0.15
_CONNECTIONS = 16
_OFF = 0.15
_ROUTE = {"route": "/v1/models/{model}/-/data/{tensor}"}

# Paths as expressions of Lua. Tensors come in turn: each is asked for as often as any other. Of whole tensors but for
# some first rows, hardly two are the same: the shared cache keeps an answer that comes a second time. If-Match and the
# like would be other ways past it, but wrk sends no headers.
_TURN = f"(function() turn = ((turn or 0) + 29) % {_TENSORS} return turn end)()"
_PATH = f'"{DATA.format(model="m", tensor="w")}" .. {_TURN}'
_ONCE = f'{_PATH} .. "?rows=" .. math.random(0, {_ROWS // 2}) .. ":"'
_WHOLE = _PATH
_ROW_ONCE = f'{_PATH} .. "?rows=" .. math.random(0, {_ROWS - 1}) .. "&cols=" .. math.random(0, 999) .. ":"'
_ROW = f'{_PATH} .. "?rows=" .. math.random(0, 9)'


@dataclass(frozen=True, slots=True)
class _Cost:
    """What a way costs: processor time of the replicas and of nginx, per GB and per request."""

    load: Load
    replicas: float
    nginx: float

    @property
    def per_gb(self) -> tuple[float, float]:
        gigabytes = self.load.n_bytes / 1e9
        return self.replicas / gigabytes, self.nginx / gigabytes

    @property
    def per_request(self) -> tuple[float, float]:
        return self.replicas / self.load.requests, self.nginx / self.load.requests


def run(quick: bool) -> Iterator[Table]:
    """Processor time per GB and per request by way; then GB/s and requests/s of 2 and 3 replicas, as predicted."""
    seconds = 2 if quick else 10
    costs = _costs(seconds)
    yield _table_of_costs(costs)
    yield _predicted(costs, seconds if quick else 3 * seconds)


@contextmanager
def _fleet(n_replicas: int, cache_bytes: str, cores: float | None = None, name: str = "fleet") -> Iterator[Fleet]:
    with ExitStack() as stack:
        volume = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        write_holes(volume / "m.gguf", _ROWS * ROW_WEIGHTS, _NAMES)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        shares = [] if cores is None else [cores] * n_replicas
        quotas = [stack.enter_context(Quota(f"tensortap-bench-{name}-{at}", share)) for at, share in enumerate(shares)]
        fleet = stack.enter_context(Fleet(folder, [volume] * n_replicas, settings={"cache_bytes": cache_bytes}))
        for quota, replica in zip(quotas, fleet.replicas, strict=False):
            assert replica.process is not None
            quota.take(replica.process.pid)
        yield fleet


def _costs(seconds: int) -> dict[str, _Cost]:
    costs: dict[str, _Cost] = {}

    def measure(name: str, fleet: Fleet, path: str, *, direct: bool = False, warm: int = 1) -> None:
        port = int(fleet.replicas[0].authority.partition(":")[2]) if direct else fleet.port
        for seed in range(warm):
            load_each(port, path, _CONNECTIONS, 2, seed=seed)
        before = _times(fleet)
        load = load_each(port, path, _CONNECTIONS, seconds, seed=99)
        spent = [after - earlier for after, earlier in zip(_times(fleet), before, strict=True)]
        costs[name] = _Cost(load, *spent)

    with _fleet(1, _COLD) as fleet:
        measure("cold, direct", fleet, _ONCE, direct=True)
        measure("cold, through nginx", fleet, _ONCE)
    with _fleet(1, _WARM) as fleet:
        _read_all(fleet)
        measure("warm, direct", fleet, _ONCE, direct=True)
        measure("warm, through nginx", fleet, _ONCE)
        measure("from the shared cache", fleet, _WHOLE, warm=3)
        measure("a row, direct", fleet, _ROW_ONCE, direct=True)
        measure("a row, through nginx", fleet, _ROW_ONCE)
        measure("a row from the shared cache", fleet, _ROW, warm=3)
    return costs


def _times(fleet: Fleet) -> tuple[float, float]:
    """Processor time of the replicas, and of nginx."""
    replicas = [replica.process.pid for replica in fleet.replicas if replica.process is not None]
    return sum(map(cpu_seconds, replicas)), sum(map(cpu_seconds, fleet.proxies()))


def _read_all(fleet: Fleet) -> None:
    """Have every window decoded and kept."""
    with httpx.Client(base_url=f"http://{fleet.replicas[0].authority}", timeout=60) as client:
        for name in _NAMES:
            client.get(DATA.format(model="m", tensor=name)).raise_for_status()


def _table_of_costs(costs: dict[str, _Cost]) -> Table:
    rows = [
        [
            name,
            *(cost.per_gb if "row" not in name else (None, None)),
            *(spent * 1e6 for spent in cost.per_request),
            cost.load.n_bytes / cost.load.requests / 1e3,
            cost.load.n_bytes / cost.load.seconds / 1e9,
            cost.load.rate,
        ]
        for name, cost in costs.items()
    ]
    large = {name: cost for name, cost in costs.items() if "row" not in name}
    small = {name: cost for name, cost in costs.items() if "row" in name}
    plots = [
        _two_parts([cost.per_gb for cost in large.values()], list(large), "core seconds per GB"),
        _two_parts([cost.per_request for cost in small.values()], list(small), "core seconds per request"),
    ]
    spared = sum(large["from the shared cache"].per_gb) / sum(large["cold, through nginx"].per_gb)
    return Table(
        "fleet-costs",
        f"processor time of one replica and nginx, {_CONNECTIONS} clients, Q8_0",
        [
            "way",
            "replica s/GB",
            "nginx s/GB",
            "replica µs/request",
            "nginx µs/request",
            "KB/answer",
            "GB/s",
            "requests/s",
        ],
        rows,
        plots,
        [Target("a GB from the shared cache beside a cold one through nginx", spared, 1, "at most")],
        ["GB/s and requests/s: of all cores together, the client's part of them included"],
    )


def _two_parts(costs: Sequence[tuple[float, float]], ways: Sequence[str], unit: str) -> Plot:
    replicas, nginx = zip(*costs, strict=True)
    return Plot([Series("replica", replicas), Series("nginx", nginx)], ways, unit)


def _predicted(costs: dict[str, _Cost], seconds: int) -> Table:
    rows: list[list[str | int | float | None]] = []
    plots: list[Plot] = []
    off_cost = off_single = 0.0
    for unit, path, cache, cost in (
        ("GB/s", _ONCE, _COLD, costs["cold, through nginx"].per_gb[0]),
        ("requests/s", _ROW_ONCE, _WARM, costs["a row, through nginx"].per_request[0]),
    ):
        measured: list[float] = []
        by_cost: list[float] = []
        by_single: list[float] = []
        for n_replicas in (2, 3):
            single = _singles(n_replicas, cache, path, unit, seconds)
            with _fleet(n_replicas, cache, _CORES) as fleet:
                share = _largest_share(fleet)
                measured.append(_served(fleet, path, _CONNECTIONS * n_replicas, unit, seconds))
            by_cost.append(_CORES / cost / share)
            by_single.append(single / share)
            ratios = measured[-1] / by_cost[-1], measured[-1] / by_single[-1]
            off_cost, off_single = max(off_cost, abs(ratios[0] - 1)), max(off_single, abs(ratios[1] - 1))
            name = f"{n_replicas} replicas, {unit}"
            rows.append([name, share, measured[-1], by_cost[-1], ratios[0], by_single[-1], ratios[1]])
        lines = [
            Series("measured", measured),
            Series("by cost", by_cost, ceiling=True),
            Series("by single ones", by_single, ceiling=True),
        ]
        plots.append(Plot(lines, [2, 3], unit, "replicas", kind="lines"))
    return Table(
        "fleet",
        f"replicas of {_CORES} cores each behind nginx: predicted by one of them and by where the tensors lie",
        ["fleet", "largest share", "measured", "by cost", "measured / that", "by single ones", "measured / that"],
        rows,
        plots,
        [
            Target("farthest from what the costs predict, relative", off_cost, _OFF, "at most"),
            Target("farthest from what single ones predict, relative", off_single, _OFF, "at most"),
        ],
        [
            f"largest share: of the {_TENSORS} tensors, those on the replica that has most",
            f"by cost: {_CORES} cores / what a GB or a request costs a replica in fleet-costs / largest share",
            "by single ones: what each of as many serves, behind an nginx of its own, at the same time / largest share",
        ],
    )


def _served(fleet: Fleet, path: str, connections: int, unit: str, seconds: int) -> float:
    load_each(fleet.port, path, connections, 2, seed=1)
    load = load_each(fleet.port, path, connections, seconds, seed=2)
    return load.n_bytes / load.seconds / 1e9 if unit == "GB/s" else load.rate


def _singles(count: int, cache_bytes: str, path: str, unit: str, seconds: int) -> float:
    """What each of so many fleets of one replica serves while all of them are at work."""
    with ExitStack() as stack, ThreadPoolExecutor(count) as pool:
        fleets = [stack.enter_context(_fleet(1, cache_bytes, _CORES, f"single-{at}")) for at in range(count)]
        served = [pool.submit(_served, fleet, path, _CONNECTIONS, unit, seconds) for fleet in fleets]
        return sum(one.result() for one in served) / count


def _largest_share(fleet: Fleet) -> float:
    """Of all tensors, which part lies on the replica that has most: one request for each tells."""
    before = fleet.count("tensortap_requests_total", {**_ROUTE, "status": "200"})
    with httpx.Client(base_url=fleet.url, timeout=60) as client:
        for name in _NAMES:
            client.get(DATA.format(model="m", tensor=name)).raise_for_status()
    after = fleet.count("tensortap_requests_total", {**_ROUTE, "status": "206"})
    shares = [now - then for now, then in zip(after, before, strict=True)]
    return max(shares) / sum(shares)
