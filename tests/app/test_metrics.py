"""Metrics: a scrape says what was asked, answered, decoded and kept, whichever worker answers it."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from click.testing import CliRunner
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_families
from prometheus_client.parser import text_string_to_metric_families as families

from app.cache import WindowCache
from app.cli import main
from app.machine import allowed_memory
from app.metrics import Metrics
from app.observe import RequestRecord
from decoders import GGMLType
from tests import builder
from tests.app.conftest import Face, Serve
from tests.app.test_streaming import MIB, ask, write_f32
from tests.server import Server
from tests.waiting import eventually

SHARED_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
DATA = "/v1/models/{model}/-/data/{tensor}"


class Scrape:
    """Samples of a scrape by name and labels."""

    def __init__(self, text: str) -> None:
        self._samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in families(text)
            for sample in family.samples
        }

    def __call__(self, name: str, **labels: str) -> float | None:
        return self._samples.get((f"tensortap_{name}", frozenset(labels.items())))

    def total(self, name: str, **labels: str) -> float:
        wanted = set(labels.items())
        return sum(v for (n, ls), v in self._samples.items() if n == f"tensortap_{name}" and wanted <= ls)


def scrape(face: Face) -> Scrape:
    answer = face.get("/metrics")
    assert answer.status == 200
    return Scrape(answer.body.decode())


def q8_0(n_rows: int) -> bytes:
    blocks = np.zeros((n_rows * 64 // 32, 34), np.uint8)
    return builder.build([("q", [64, n_rows], GGMLType.Q8_0, blocks.tobytes())])


def test_requests_are_counted_by_route_status_and_outcome(serve: Serve) -> None:
    face = serve(builder.base(), metrics=True)
    for _ in range(3):
        assert face.get("/v1/models/m/-/data/w?rows=0").status == 200
    face.get("/v1/models/m/-/data/w?rows=9")
    face.get("/nothing/at/all")
    face.get("/nothing/else")
    face.get("/healthz", "HEAD")
    seen = scrape(face)
    assert seen("requests_total", route=DATA, status="200", outcome="complete") == 3
    assert seen("requests_total", route=DATA, status="400", outcome="complete") == 1
    assert seen("requests_total", route="unmatched", status="404", outcome="complete") == 2
    assert seen("response_bytes_total", route=DATA, status="200") == 3 * 16
    assert seen("response_bytes_total", route="/healthz", status="200") == 0
    assert seen("request_seconds_count", route=DATA, status="200") == 3
    assert seen("request_seconds_bucket", route=DATA, status="200", le="+Inf") == 3
    assert 0 < (seen("request_seconds_sum", route=DATA, status="200") or 0) < 30
    assert seen("requests_total", route="/metrics", status="200", outcome="complete") is None
    assert scrape(face)("requests_total", route="/metrics", status="200", outcome="complete") == 1


def test_a_lone_worker_tells_of_its_memory_and_descriptors(serve: Serve) -> None:
    text = serve(builder.base(), metrics=True).get("/metrics").body.decode()
    seen = {sample.name: sample.value for family in families(text) for sample in family.samples}
    assert seen["tensortap_memory_limit_bytes"] == allowed_memory()
    assert 1 << 20 < seen["process_resident_memory_bytes"] < allowed_memory()
    assert seen["process_open_fds"] >= 1
    assert seen["process_cpu_seconds_total"] > 0


def test_windows_and_the_cache_are_counted(serve: Serve) -> None:
    rows = 3 * 4096  # three windows of 2**18 weights
    face = serve(q8_0(rows), cache_bytes=2 * MIB)
    face.get("/v1/models/m/-/data/q?rows=0")
    face.get("/v1/models/m/-/data/q?rows=1")
    first = scrape(face)
    assert first("windows_decoded_total", type="Q8_0") == 1
    assert first("decoded_bytes_total", type="Q8_0") == MIB
    assert 0 < (first("decode_seconds_total", type="Q8_0") or 0) < 30
    assert (first("cache_hits_total"), first("cache_misses_total"), first("cache_evictions_total")) == (1, 1, 0)
    assert (first("cache_windows"), first("cache_bytes"), first("cache_budget_bytes")) == (1, MIB, 2 * MIB)
    face.get(f"/v1/models/m/-/data/q?rows={rows // 2}")
    face.get("/v1/models/m/-/data/q?rows=-1")
    second = scrape(face)
    assert second("windows_decoded_total", type="Q8_0") == 3
    assert (second("cache_misses_total"), second("cache_evictions_total")) == (3, 1)
    assert second("cache_bytes") == 2 * MIB
    figures = face.app.state.service.cache.figures()
    assert second("cache_hits_total") == figures.hits


def test_native_blocks_are_not_decoded(serve: Serve) -> None:
    face = serve(q8_0(4), metrics=True)
    assert len(face.get("/v1/models/m/-/data/q?format=native").body) == 4 * 68
    assert scrape(face).total("windows_decoded_total") == 0


def test_models_are_told_by_state(serve: Serve) -> None:
    face = serve({"a.gguf": builder.base(), "b.gguf": builder.base(), "bad.gguf": b"GGU"}, metrics=True)
    face.get("/v1/models")
    face.get("/v1/models/a")
    face.get("/v1/models/bad")
    seen = scrape(face)
    assert (seen("models", state="readable"), seen("models", state="unreadable")) == (2, 1)
    assert seen("models_open") == 1
    (face.root / "bad.gguf").unlink()
    face.get("/v1/models")
    assert scrape(face)("models", state="unreadable") == 0


def test_applications_of_one_process_do_not_share_figures(serve: Serve, demo: Face) -> None:
    face = serve(builder.base(), metrics=True)
    demo.get("/v1/models/demo")
    assert scrape(face)("requests_total", route="/v1/models/{model}", status="200", outcome="complete") is None


@pytest.mark.parametrize(
    ("accept", "media_type"),
    [
        (None, "text/plain; version=0.0.4; charset=utf-8"),
        ("text/html, */*", "text/plain; version=0.0.4; charset=utf-8"),
        ("application/openmetrics-text;version=1.0.0,text/plain;q=0.5", "application/openmetrics-text; version=1.0.0"),
    ],
)
def test_the_format_is_the_one_that_is_accepted(demo: Face, accept: str | None, media_type: str) -> None:
    answer = demo.get("/metrics", headers={} if accept is None else {"Accept": accept})
    assert answer.status == 200
    assert answer.headers["content-type"].startswith(media_type)
    assert answer.headers["vary"] == "Accept"
    parse = open_families if "openmetrics" in media_type else families
    assert "tensortap_requests" in {family.name for family in parse(answer.body.decode())}


@pytest.mark.parametrize(
    "accept", ["application/openmetrics-text;version=none", "text/plain;version=\u00b2", "text/plain;version", ";=,;"]
)
def test_an_accept_that_makes_no_sense_is_answered_in_a_known_format(demo: Face, accept: str) -> None:
    answer = demo.get("/metrics", headers={"Accept": accept})
    assert answer.status == 200
    parse = {"application/openmetrics-text": open_families, "text/plain": families}
    media_type = answer.headers["content-type"].partition(";")[0]
    assert "tensortap_requests" in {family.name for family in parse[media_type](answer.body.decode())}


def test_head_has_the_headers_of_get(demo: Face) -> None:
    got, head = demo.get("/metrics"), demo.get("/metrics", "HEAD")
    assert head.status == 200
    assert set(head.headers) == set(got.headers)
    assert head.headers["content-type"] == got.headers["content-type"]


def test_the_setting_takes_the_route_away(serve: Serve) -> None:
    face = serve(builder.base(), metrics=False)
    assert face.problem("/metrics") == (404, "no-such-resource")
    assert face.get("/v1/models/m/-/data/w").status == 200


def test_an_answer_that_was_never_begun_has_no_status() -> None:
    metrics = Metrics(WindowCache(0))
    metrics.request(RequestRecord("r", "GET", "/x", outcome="client left"))
    seen = Scrape(metrics.exposition()[0].decode())
    assert seen("requests_total", route="unmatched", status="none", outcome="client left") == 1


def test_decodes_of_many_threads_are_all_counted() -> None:
    metrics = Metrics(WindowCache(0))

    def decode() -> None:
        for _ in range(500):
            metrics.decoded("Q4_K", 2, 0.5)

    threads = [threading.Thread(target=decode) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seen = Scrape(metrics.exposition()[0].decode())
    assert seen("windows_decoded_total", type="Q4_K") == 2000
    assert (seen("decoded_bytes_total", type="Q4_K"), seen("decode_seconds_total", type="Q4_K")) == (4000, 1000)


def test_open_streams_are_counted_while_they_are_open(tmp_path: Path) -> None:
    write_f32(tmp_path / "m.gguf", 64, 1.0)
    path = "/v1/models/m/-/data/w"
    with Server(tmp_path, cache_bytes=0) as server:

        def streams() -> float | None:
            return Scrape(server.client.get("/metrics").text)("streams_open")

        assert streams() == 0
        with ask(server, path) as one, ask(server, path) as other:
            one.recv(1000)
            other.recv(1000)
            assert streams() == 2
        eventually(lambda: streams() == 0)
        seen = Scrape(server.client.get("/metrics").text)
        assert seen("requests_total", route=DATA, status="200", outcome="client left") == 2
        assert 0 < (seen("response_bytes_total", route=DATA, status="200") or 0) < 2 * 64 * MIB


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root, temporary = tmp_path_factory.mktemp("volume"), tmp_path_factory.mktemp("temporary")
    (root / "m.gguf").write_bytes(q8_0(4))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(temporary))
        with Server(root, workers=2, cache_bytes=4 * MIB) as server:
            eventually(lambda: sum("startup complete" in line for line in server.log) == 2)
            yield server
        assert list(temporary.iterdir()) == [], "the folder of the figures is left behind"


def scrape_pair(server: Server) -> Scrape:
    """A scrape on a connection of its own, which either worker may take."""
    return Scrape(httpx.get(f"{server.url}/metrics", timeout=30).text)


def workers(server: Server) -> set[int]:
    """The processes of the workers."""
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
    return {int(pid) for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()}


def test_two_workers_give_the_sums_of_both_and_keep_them_when_one_dies(pair: Server) -> None:
    path = "/v1/models/m/-/data/q?rows=0"
    for _ in range(40):
        assert len(httpx.get(pair.url + path, timeout=30).content) == 256

    def requests(seen: Scrape) -> float | None:
        return seen("requests_total", route=DATA, status="200", outcome="complete")

    def sums(seen: Scrape) -> list[float | None]:
        return [
            requests(seen),
            seen("request_seconds_count", route=DATA, status="200"),
            seen("response_bytes_total", route=DATA, status="200"),
            (seen("cache_hits_total") or 0) + (seen("cache_misses_total") or 0),
        ]

    # One after the other is told: a scrape may come between them.
    seen = eventually(lambda: now if sums(now := scrape_pair(pair)) == [40, 40, 40 * 256, 40] else None)
    assert seen("cache_budget_bytes") == 8 * MIB
    decoded = seen("windows_decoded_total", type="Q8_0")
    assert decoded in (1, 2)  # once for each worker that was asked
    assert seen("cache_bytes") == decoded * 4 * 64 * 4
    assert (seen("models", state="readable"), seen("models", state="unreadable")) == (1, 0)

    before = workers(pair)
    assert len(before) == 2
    os.kill(min(before), signal.SIGKILL)
    eventually(lambda: len(workers(pair) - before) == 1)
    eventually(lambda: sum("startup complete" in line for line in pair.log) == 3)
    with contextlib.suppress(httpx.TransportError):  # one that the dead worker had accepted
        httpx.get(f"{pair.url}/healthz", timeout=30)
    after = scrape_pair(pair)
    assert requests(after) == 40
    assert after("cache_budget_bytes") == 8 * MIB
    assert after("cache_bytes") in (0, 4 * 64 * 4)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """The folder of figures in the environment, at each time that a server would have been started."""
    folders: list[str | None] = []
    monkeypatch.setattr(os, "environ", {k: v for k, v in os.environ.items() if not k.startswith("TENSORTAP_")})
    monkeypatch.setattr("uvicorn.run", lambda *_, **__: folders.append(os.environ.get(SHARED_FOLDER)))
    monkeypatch.setattr("signal.signal", lambda *_: None)
    return folders


def test_only_several_workers_share_a_folder_and_only_with_metrics(served: list[str | None]) -> None:
    os.environ[SHARED_FOLDER] = "/of/another/program"
    for flags in (["--workers=2"], ["--workers=1"], ["--workers=2", "--metrics=false"]):
        assert CliRunner().invoke(main, ["serve", *flags], catch_exceptions=False).exit_code == 0
    shared, *others = served
    assert shared not in (None, "/of/another/program")
    assert not Path(str(shared)).exists(), "it is there only while the server runs"
    assert others == [None, None]


def test_without_a_folder_several_workers_do_not_start(
    served: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_folder(*_: object, **__: object) -> None:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr("tempfile.TemporaryDirectory", no_folder)
    result = CliRunner().invoke(main, ["serve", "--workers=2"], catch_exceptions=False)
    assert (result.exit_code, served) == (2, [])
    assert "No usable temporary directory found" in result.stderr
    assert "--metrics=false" in result.stderr
