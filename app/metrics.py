"""Metrics for Prometheus: what the service has answered, decoded and kept.

One worker keeps its figures in a registry of its own, so several applications in one process do not meet. Several
workers share a folder of files, named by ``PROMETHEUS_MULTIPROC_DIR`` before they start, and any of them answers for
all, but for what the system knows of a process (``process_*``), which only a lone worker tells. Counts of a worker that
died stay in the sums, which may only grow; what it held (streams, its cache) does not.
"""

import os
import threading
from collections.abc import Iterable
from pathlib import Path

from fastapi import APIRouter, Request
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.exposition import choose_encoder
from prometheus_client.multiprocess import MultiProcessCollector
from starlette.responses import Response

from app.cache import CacheFigures, WindowCache
from app.machine import allowed_memory
from app.observe import RequestRecord
from app.openapi import answers, reply, request_headers
from app.schemas import Schema
from app.threads import Threads

__all__ = ["Metrics", "metrics_router"]

# From a cached row to a large tensor over a slow line, in seconds.
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Metrics:
    """The metrics of one process; every method may be called from any thread.

    Parameters
    ----------
    cache
        Whose figures are told.
    """

    def __init__(self, cache: WindowCache) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # times at which counters were made say nothing here
        self._cache = cache
        folder = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
        self._folder = Path(folder) if folder else None
        if self._folder is not None:
            _forget_held(self._folder, [os.getpid()])  # a dead worker may have had the same process id
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            "tensortap_requests",
            "Requests answered, by route, status and outcome (complete, client left, aborted).",
            ["route", "status", "outcome"],
            registry=registry,
        )
        self._seconds = Histogram(
            "tensortap_request_seconds",
            "Seconds from the headers of a request to the end of its answer.",
            ["route", "status"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._bytes = Counter(
            "tensortap_response_bytes", "Bytes of bodies sent.", ["route", "status"], registry=registry
        )
        self._streams = Gauge(
            "tensortap_streams_open",
            "Answers of more than one piece that are being sent now.",
            multiprocess_mode="livesum",
            registry=registry,
        )
        self._windows = Counter(
            "tensortap_windows_decoded", "Windows read and decoded, by tensor type.", ["type"], registry=registry
        )
        self._decode_seconds = Counter(
            "tensortap_decode_seconds",
            "Seconds that threads spent reading and decoding windows, by tensor type.",
            ["type"],
            registry=registry,
        )
        self._decoded_bytes = Counter(
            "tensortap_decoded_bytes", "Bytes of windows after decoding, by tensor type.", ["type"], registry=registry
        )
        self._hits = Counter("tensortap_cache_hits", "Windows found in the cache.", registry=registry)
        self._misses = Counter("tensortap_cache_misses", "Windows not found in the cache.", registry=registry)
        self._evictions = Counter(
            "tensortap_cache_evictions", "Windows that left the cache for others.", registry=registry
        )
        self._held_windows, self._held_bytes, self._budget = (
            Gauge(f"tensortap_cache_{name}", meaning, multiprocess_mode="livesum", registry=registry)
            for name, meaning in (
                ("windows", "Windows in the cache now."),
                ("bytes", "Bytes of the windows in the cache now."),
                ("budget_bytes", "Bytes of windows that the cache may hold."),
            )
        )
        self._models = Gauge(
            "tensortap_models",
            "Models on the volume when it was last listed, by state (readable, unreadable).",
            ["state"],
            multiprocess_mode="livemostrecent",
            registry=registry,
        )
        self._open_models = Gauge(
            "tensortap_models_open",
            "Models kept open between requests.",
            multiprocess_mode="livesum",
            registry=registry,
        )
        Gauge(
            "tensortap_memory_limit_bytes",
            "Bytes of memory that all workers may use together: of the machine, or of the container.",
            multiprocess_mode="max",
            registry=registry,
        ).set(allowed_memory())
        if self._folder is None:  # those of one worker would not be those of all
            ProcessCollector(registry=registry)
        self._counts: dict[tuple[str, int | None, str | None], tuple[Counter, Histogram, Counter]] = {}
        self._told = CacheFigures(hits=0, misses=0, evictions=0, windows=0, bytes=0, budget=cache.budget)
        self._telling = threading.Lock()
        self._budget.set(cache.budget)

    def request(self, record: RequestRecord) -> None:
        """Count a finished request. One whose answer was never begun has the status ``none``."""
        key = record.route, record.status, record.outcome
        counts = self._counts.get(key)
        if counts is None:  # looked up by their labels once: that costs more than to count
            by = record.route, "none" if record.status is None else str(record.status)
            counts = self._counts[key] = (
                self._requests.labels(*by, record.outcome),
                self._seconds.labels(*by),
                self._bytes.labels(*by),
            )
        requests, seconds, sent = counts
        requests.inc()
        seconds.observe(record.seconds)
        sent.inc(record.bytes_sent)
        self._tell_others()

    def stream(self, change: int) -> None:
        """Count streams that begin (1) and end (-1)."""
        self._streams.inc(change)

    def decoded(self, type_name: str, n_bytes: int, seconds: float) -> None:
        """Count a window that was read and decoded: its tensor's type, its bytes after, and how long it took."""
        self._windows.labels(type_name).inc()
        self._decoded_bytes.labels(type_name).inc(n_bytes)
        self._decode_seconds.labels(type_name).inc(seconds)
        self._tell_others()  # a stream may go on for hours before its request is counted

    def models(self, readable: int, unreadable: int) -> None:
        """Tell how many models a listing found."""
        self._models.labels("readable").set(readable)
        self._models.labels("unreadable").set(unreadable)

    def open_models(self, count: int) -> None:
        """Tell how many models are kept open now."""
        self._open_models.set(count)

    def exposition(self, accept: str = "") -> tuple[bytes, str]:
        """The metrics of all workers in the format that an ``Accept`` header asks for, and its media type."""
        self._tell_cache()
        registry = self._registry
        if self._folder is not None:
            _forget_dead(self._folder)
            registry = CollectorRegistry()
            MultiProcessCollector(registry, str(self._folder))  # type: ignore[no-untyped-call]
        try:
            encode, media_type = choose_encoder(accept)
        except (TypeError, ValueError):  # what it takes for a version is none
            encode, media_type = choose_encoder("")
        return encode(registry), media_type

    def _tell_others(self) -> None:
        """Tell what the cache has done where another worker may be asked for it; a lone one looks when it is asked."""
        if self._folder is not None:
            self._tell_cache()

    def _tell_cache(self) -> None:
        with self._telling:
            now, told = self._cache.figures(), self._told
            if now == told:
                return
            self._told = now
            self._hits.inc(now.hits - told.hits)
            self._misses.inc(now.misses - told.misses)
            self._evictions.inc(now.evictions - told.evictions)
            self._held_windows.set(now.windows)
            self._held_bytes.set(now.bytes)


def metrics_router(metrics: Metrics, threads: Threads) -> APIRouter:
    """The route ``/metrics``, for GET and HEAD; its text is made in one of ``threads``."""
    router = APIRouter(default_response_class=Response)

    async def endpoint(request: Request) -> Response:
        """Metrics for Prometheus, of all workers: its text format, or OpenMetrics if Accept asks for that."""
        accept = ",".join(request.headers.getlist("accept"))
        body, media_type = await threads.run(metrics.exposition, accept)
        return Response(body, headers={"Content-Type": media_type, "Vary": "Accept", "Cache-Control": "no-store"})

    text: Schema = {"schema": {"type": "string"}}
    content = {"text/plain": text, "application/openmetrics-text": text}
    router.add_api_route(
        "/metrics",
        endpoint,
        methods=["GET"],
        name="metrics",
        responses=answers(s200=reply("The metrics.", content, "Cache-Control", "Vary")),
        tags=["service"],
        openapi_extra=request_headers(["Accept"]),
    )
    router.add_api_route("/metrics", endpoint, methods=["HEAD"], include_in_schema=False)
    return router


def _forget_dead(folder: Path) -> None:
    pids = {int(path.stem.rpartition("_")[2]) for path in folder.glob("gauge_live*.db")}
    _forget_held(folder, [pid for pid in pids if not _runs(pid)])


def _forget_held(folder: Path, pids: Iterable[int]) -> None:
    for pid in pids:
        for path in folder.glob(f"gauge_live*_{pid}.db"):
            path.unlink(missing_ok=True)  # another worker may be about the same


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError):  # a worker runs as the same user: another's process is none
        return False
    return True
