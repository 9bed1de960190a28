"""A server under hostile load: whether every byte stays right, the service stays quick, and nothing is left behind.

Each scene has a server of its own with default settings. Clients that check every byte run in all of them, while
somebody asks for /healthz every 100 ms. What the server holds is compared with what it held after a first, short round.
"""

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from app.settings import Settings
from bench._scene import Act, Attack, Scene, Seen, play, prepare
from bench._servers import tensortap
from bench._table import Plot, Series, Table, Target

__all__ = ["run", "scenes"]

_MIB = 1 << 20
_HEALTH_MS = 100.0
_GROWN_MIB = 16.0
_STALLED, _HALF_OPEN, _DROPPED = 200, 500, 1000
_EXPLAINED = (
    "errors: what clients that check every byte got instead; 503 is for more streams at a time than there may be",
    "before: after a first short round and a rest; after: after a rest; of the cache: by what its windows grew",
    "clients stand back (nice 5), as if they had machines of their own; who asks for /healthz does not (nice -5)",
)


def run(quick: bool) -> Iterator[Table]:
    """Wrong answers, errors, milliseconds of /healthz, and what the server holds before, during and after a scene."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder)
        seen = {}
        for scene in scenes(quick):
            with tensortap(folder / "volume", **scene.settings) as server:
                seen[scene.name] = play(server, scene, folder)
    yield _table(seen)


def scenes(quick: bool) -> list[Scene]:
    """The scenes; quick ones have a server that loses patience sooner."""
    fields = Settings.model_fields
    patience: dict[str, object] = {"stall_seconds": 2.0, "request_seconds": 2.0} if quick else {}
    stall, late = (
        float(str(patience.get(name, fields[name].default))) for name in ("stall_seconds", "request_seconds")
    )
    # A reader that stalls is seen to at a quarter of the time after it, a sender at once.
    stalled, half_open = stall * 1.5 + 2, late + 3
    gentle = (1, 2, 0.01)
    short, long, replace = (3.0, 20.0, 3.0) if quick else (15.0, 600.0, 30.0)
    together = 15.0 if quick else 120.0
    everything = [
        Attack("stalled", _STALLED, stalled, 0),
        Attack("half-open", _HALF_OPEN, half_open, 0),
        Attack("dropped", _DROPPED, rounds=0),
    ]
    all_at_once = Act(everything, (4, 4, 0.0), together, replace)
    first_of_all = Act(
        [Attack("stalled", _STALLED, 2), Attack("half-open", _HALF_OPEN, 2), Attack("dropped", _DROPPED // 5)],
        (4, 4, 0.0),
        short,
        short / 4,
    )
    return [
        Scene(
            f"{_STALLED} stalled readers",
            patience,
            Act([Attack("stalled", _STALLED, 2)], gentle, replace_seconds=0.5),
            Act([Attack("stalled", _STALLED, stalled)], gentle, replace_seconds=replace),
        ),
        Scene(
            f"{_HALF_OPEN} half-open senders",
            patience,
            Act([Attack("half-open", _HALF_OPEN, 2)], gentle, replace_seconds=0.5),
            Act([Attack("half-open", _HALF_OPEN, half_open)], gentle, replace_seconds=replace),
        ),
        Scene(
            f"{_DROPPED} dropped",
            patience,
            Act([Attack("dropped", _DROPPED // 5)], gentle, 2.0, 0.5),
            Act([Attack("dropped", _DROPPED, rounds=1 if quick else 5)], gentle, replace_seconds=replace),
        ),
        Scene(
            "16 random clients",
            patience,
            Act(clients=(4, 4, 0.0), seconds=short, replace_seconds=short / 8),
            Act(clients=(4, 4, 0.0), seconds=long, replace_seconds=replace),
        ),
        Scene("all at once", patience, first_of_all, all_at_once),
        Scene("all at once, 2 workers", {**patience, "workers": 2}, first_of_all, all_at_once),
    ]


def _table(seen: Mapping[str, Seen]) -> Table:
    columns = [
        *("scene", "seconds", "requests", "wrong", "errors", "health p50 ms", "p99 ms", "max ms"),
        *("MiB before", "peak", "after", "of the cache"),
        *("descriptors before", "peak of descriptors", "descriptors after"),
        *("threads before", "peak of threads", "threads after"),
    ]
    names = list(seen)
    health = {
        "p50": [float(np.percentile(one.health, 50)) for one in seen.values()],
        "p99": [float(np.percentile(one.health, 99)) for one in seen.values()],
        "max": [max(one.health) for one in seen.values()],
    }
    grown = [one.grown / _MIB for one in seen.values()]
    notes = list(_EXPLAINED)
    for name, one in seen.items():
        ends = "; ".join(
            f"{kind}: {', '.join(f'{count} {how}' for how, count in sorted(counts.items()))}"
            for kind, counts in one.attackers.items()
        )
        notes.append(
            f"{name}: {one.counts['bytes'] / 1e9:.2f} GB checked, {one.replaced} models replaced, /healthz asked "
            f"{len(one.health)} times by a client that was up to {one.asker_latest:.0f} ms late itself"
            + (f"; attackers: {ends}" if ends else "")
        )
        notes += [f"{name}: wrong: {what}" for what in one.wrong]
    return Table(
        "load",
        "a server under hostile load",
        columns,
        [
            [
                name,
                one.seconds,
                one.counts["requests"],
                one.counts["wrong"],
                _kinds(one.errors),
                *(figures[at] for figures in health.values()),
                *(bytes_ / _MIB for bytes_ in (one.before.memory, one.peak.memory, one.after.memory, one.cached)),
                *(held.descriptors for held in (one.before, one.peak, one.after)),
                *(held.threads for held in (one.before, one.peak, one.after)),
            ]
            for at, (name, one) in enumerate(seen.items())
        ],
        [
            Plot(
                [
                    *(Series(label, values) for label, values in health.items()),
                    Series("100 ms", [_HEALTH_MS] * len(names), ceiling=True),
                ],
                names,
                "milliseconds of /healthz",
                log_y=True,
            ),
            Plot(
                [
                    Series(when, [getattr(one, when).memory / _MIB for one in seen.values()])
                    for when in ("before", "peak", "after")
                ],
                names,
                "MiB of resident memory",
            ),
        ],
        [
            Target("wrong answers", sum(one.counts["wrong"] for one in seen.values()), 0, "at most"),
            Target(
                "errors but 503",
                sum(count for one in seen.values() for kind, count in one.errors.items() if kind != "503"),
                0,
                "at most",
            ),
            Target("/healthz failed", sum(one.health_failed for one in seen.values()), 0, "at most"),
            *(
                Target(f"/healthz at most, {name}, ms", largest, _HEALTH_MS, "at most")
                for name, largest in zip(names, health["max"], strict=True)
            ),
            Target("stalled readers and half-open senders that were not cut", _held(seen), 0, "at most"),
            Target("memory grown beside the cache, MiB", max(grown), _GROWN_MIB, "at most"),
            Target("descriptors grown", _most_grown(seen, "descriptors"), 0, "at most"),
            Target("threads grown", _most_grown(seen, "threads"), 0, "at most"),
            Target("streams open after all", sum(one.streams_open for one in seen.values()), 0, "at most"),
        ],
        notes,
    )


def _kinds(errors: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in errors.items()) or "none"


def _held(seen: Mapping[str, Seen]) -> int:
    """Hostile clients that were still there when the server's patience with them was over."""
    return sum(counts["held"] for one in seen.values() for counts in one.attackers.values())


def _most_grown(seen: Mapping[str, Seen], what: str) -> int:
    grown: list[int] = [getattr(one.after, what) - getattr(one.before, what) for one in seen.values()]
    return max(grown)
