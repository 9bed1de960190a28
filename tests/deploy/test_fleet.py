"""Several replicas behind nginx: nothing a replica does or suffers is a failure for those who ask.

`tests.deploy.chaos` has the scenes, and runs them for longer.
"""

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import httpx
import numpy as np
import pytest

from decoders import GGMLType
from tensortap import Client, ModelChanged
from tests.app.test_streaming import take_zeros, write_sparse
from tests.deploy import chaos
from tests.deploy.fleet import MODEL, N_TENSORS, ROW, ROWS, Fleet, data, model, settled, weights
from tests.deploy.network import Network
from tests.programs.conftest import LARGE, LARGE_BYTES, LARGE_END
from tests.server import free_port
from tests.waiting import eventually

pytestmark = pytest.mark.programs
MIB = 1 << 20
WINDOWS = ROW * ROWS // (1 << 18)
DATA_ROUTE, MODEL_ROUTE = {"route": "/v1/models/{model}/-/data/{tensor}"}, {"route": "/v1/models/{model}"}
SLOW_BYTES, BYTES_PER_SECOND = 80_000_000, 20_000_000

Place = tuple[Fleet, Network | None]


@pytest.fixture(scope="module")
def together() -> Iterator[Place]:
    """Three replicas and nginx on this host."""
    with chaos.fleet() as place:
        yield place


@pytest.fixture(scope="module")
def apart() -> Iterator[Place]:
    """Each on a host of its own."""
    with chaos.fleet(apart=True) as place:
        yield place


@pytest.mark.parametrize(
    ("where", "scene", "rounds"),
    [
        ("together", chaos.kill, 2),
        ("together", chaos.roll, 3),
        ("together", chaos.hang, 1),
        ("apart", chaos.kill, 1),
        ("apart", chaos.unplug, 1),
        ("apart", chaos.slow, 1),
    ],
)
def test_no_request_fails(
    request: pytest.FixtureRequest, where: str, scene: Callable[[Fleet, Network | None, int], None], rounds: int
) -> None:
    fleet, network = request.getfixturevalue(where)
    with chaos.load(fleet.url) as counts:
        scene(fleet, network, rounds)
        time.sleep(1)
    assert counts.failures == []
    # What has begun to arrive when a host falls silent nobody can ask for again but the client.
    assert counts.cut == 0 or (scene in (chaos.hang, chaos.unplug, chaos.slow) and counts.cut < 5), counts
    assert len(counts.requests) >= 6, counts
    assert counts.requests.total() > 200, counts
    # What waited at a replica that hung is few: it is left out after that.
    assert counts.slow < counts.requests.total() / 10, counts


def test_a_download_goes_on_where_the_replica_was_killed(together: Place) -> None:
    fleet, _ = together
    path = f"/v1/models/{MODEL}/-/safetensors"
    wanted = httpx.get(f"http://{fleet.replicas[0].authority}{path}", timeout=60).content
    assert len(wanted) > 90 * MIB  # far more than all the buffers on the way
    download = chaos._Download(fleet.url, 1, "--header", "If-Match: *")  # one stream of a replica, and no slices
    with closing(download), ThreadPoolExecutor(1) as pool:
        asked = pool.submit(download.fetch, path, wanted)
        (killed,) = eventually(lambda: [one for one in fleet.replicas if one.count("tensortap_streams_open") == 1])
        killed.signal(signal.SIGKILL)
        killed.wait()
        try:
            assert asked.result() == ("tensors by curl", "")
        finally:
            killed.start()
    assert download.resumed >= 1


def test_no_port_is_given_twice() -> None:
    assert len({free_port() for _ in range(500)}) == 500


def test_one_replica_decodes_the_windows_of_a_tensor(tmp_path: Path) -> None:
    shares: list[tuple[float, float]] = []
    with chaos.fleet() as (fleet, _), httpx.Client(base_url=fleet.url) as client:
        for n in range(N_TENSORS):
            before = fleet.count("tensortap_windows_decoded_total")
            for row in np.random.default_rng(n).permutation(ROWS)[:40].tolist():
                assert client.get(data(n), params={"rows": row}).status_code == 200
                first = row * ROW * 4
                part = client.get(data(n), headers={"Range": f"bytes={first}-{first + 99}"})
                assert part.status_code == 206
            assert client.get(data(n)).status_code == 200
            decoded = np.subtract(fleet.count("tensortap_windows_decoded_total"), before)
            assert decoded.sum() >= WINDOWS
            shares.append((decoded.max(), decoded.sum()))
        # On a busy machine a replica may seem to be away for a moment, and what it had decoded is decoded by another.
        of_one, of_all = np.sum(shares, axis=0)
        assert of_one >= 0.8 * of_all
        assert of_all < 1.25 * N_TENSORS * WINDOWS
        # Which replica is whose depends on their ports; over many tensors, here of no model, each has its share.
        for n in range(300):
            assert client.get(data(n).replace(MODEL, "team/none")).status_code == 404
        refused = {**DATA_ROUTE, "status": "404"}
        eventually(lambda: sum(fleet.count("tensortap_requests_total", refused)) == 300)
        assert min(fleet.count("tensortap_requests_total", refused)) > 50


def test_hot_ranges_are_answered_without_a_replica(together: Place) -> None:
    fleet, _ = together
    wanted = weights()[3].tobytes()
    with httpx.Client(base_url=fleet.url) as client:
        for _ in range(3):  # the first two are not kept yet
            assert client.get(data(3)).content == wanted
        before = settled(lambda: sum(fleet.count("tensortap_requests_total", DATA_ROUTE)))
        asked = settled(lambda: sum(fleet.count("tensortap_requests_total", MODEL_ROUTE)))
        began = time.monotonic()
        for first in range(0, len(wanted) - 100_000, 200_000):
            part = client.get(data(3), headers={"Range": f"bytes={first}-{first + 99_999}"})
            assert part.status_code == 206
            assert part.content == wanted[first : first + 100_000]
            assert part.headers["x-cache-status"] == "HIT"
        etag = part.headers["etag"]
        assert client.get(data(3), headers={"If-None-Match": etag}).status_code == 304
        version = part.headers["x-model-etag"]
        assert client.get(data(3), headers={"If-Match": version}).headers["x-cache-status"] == "HIT"
        assert client.get(data(3)).content == wanted
        most = time.monotonic() - began + 2
        assert settled(lambda: sum(fleet.count("tensortap_requests_total", DATA_ROUTE))) == before
        # What they are asked is which version there is, once a second.
        assert sum(fleet.count("tensortap_requests_total", MODEL_ROUTE)) <= asked + most


def test_answers_are_those_of_a_replica(together: Place) -> None:
    fleet, _ = together
    path = data(5)
    replica = f"http://{fleet.replicas[0].authority}"
    with httpx.Client(base_url=replica) as direct, httpx.Client(base_url=fleet.url) as via:
        head = direct.head(path).headers
        etag, version, modified = head["etag"], head["x-model-etag"], head["last-modified"]
        headers: list[dict[str, str]] = [
            {},
            *(
                {"Range": f"bytes={which}"}
                for which in ("0-9", "1048570-1048590", "-5", "3-", "0-1,5-6", "9999999-", "x")
            ),
            *({"If-Match": which} for which in (version, etag, '"x"', "*", f'"x", {version}')),
            *({"If-None-Match": which} for which in (etag, version, "*", '"x"')),
            {"If-Modified-Since": modified},
            {"If-Unmodified-Since": "Mon, 01 Jan 2001 00:00:00 GMT"},
            *({"Range": "bytes=1-2", "If-Range": which} for which in (etag, '"x"', modified)),
            {"Range": "bytes=1-2", "If-Match": version},
            *({"Accept": which} for which in ("application/json", "application/x-npy", "text/html")),
            {"Accept-Encoding": "gzip"},
        ]
        urls = [f"{path}?rows=0:80", f"{path}?rows=7:7"]
        asked = [(method, url, one) for one in headers for method in ("GET", "HEAD") for url in urls]
        others = ("?rows=x", "?format=npy&rows=1", "?format=json&rows=0&cols=0:3", "?dtype=float16&rows=0", "?no=1")
        asked += [(method, path + query, {}) for query in others for method in ("GET", "HEAD", "OPTIONS", "DELETE")]
        asked += [
            ("GET", url, {})
            for url in (
                "/v1/models/nope/-/data/t00",
                f"/v1/models/{MODEL}/-/data/nope",
                f"/v1/models/{MODEL}/-/data/",
                f"/v1/data?model={MODEL}&tensor=t05&rows=0",
                "/v1/data?model=team%2Ffleet&tensor=t05&rows=0",
                f"/v1/data?model={MODEL}",
                f"/v1/models/{MODEL}/-/safetensors?name=t00",
                f"/v1/models/{MODEL}/-/tensors/t05",
                f"/v1/models/{MODEL}/-/metadata",
                "/v1/models/team%2Ffleet/-/data/t05?rows=0",
                f"/v1/models/{MODEL}.gguf/-/data/t05?rows=0",
                f"{path}?rows={'1,' * 4000}1",
            )
        ]  # fmt: skip
        for method, url, one in asked:
            wanted = direct.request(method, url, headers=one)
            for _ in range(3):  # from a replica, to be kept, and kept
                got = via.request(method, url, headers=one)
                assert got.status_code == wanted.status_code, (method, url, one)
                assert _told(got) == _told(wanted), (method, url, one)


def _told(answer: httpx.Response) -> tuple[object, ...]:
    """What an answer says, but for what is of this request only: times, ids, boundaries."""
    headers, kind = answer.headers, answer.headers.get("content-type", "").partition(";")[0]
    body: object = answer.content
    if kind == "multipart/byteranges":
        body = len(answer.content)
    elif kind == "application/problem+json" and answer.content:
        body = {name: value for name, value in answer.json().items() if name != "instance"}
    names = ("etag", "x-model-etag", "last-modified", "cache-control", "content-range", "content-disposition")
    told = {name: headers.get(name) for name in names if answer.status_code != 304 or name != "content-disposition"}
    return kind, body, told


def test_a_replaced_file_is_seen_and_versions_never_mix(tmp_path: Path) -> None:
    """The versions take turns while whole tensors and ranges of them are read: each answer is of one version."""
    path = tmp_path / "volume" / f"{MODEL}.gguf"
    path.parent.mkdir(parents=True)
    files, values = [model(0), model(1)], [weights(0), weights(1)]
    path.write_bytes(files[0])
    wrong: list[str] = []
    seen: set[tuple[int, str]] = set()
    ended = threading.Event()
    known: dict[str, int] = {}

    def ask(url: str, seed: int) -> None:
        random = np.random.default_rng(seed)
        with httpx.Client(base_url=url, timeout=60) as client:
            while not ended.is_set():
                n, row = int(random.integers(N_TENSORS)), int(random.integers(4)) * 100
                whole = bool(random.integers(2))
                headers = {} if whole else {"Range": f"bytes={row * ROW * 4}-{(row + 100) * ROW * 4 - 1}"}
                try:
                    got = client.get(data(n), headers=headers)
                except httpx.TransportError:
                    seen.add((-1, "cut"))  # fewer bytes than promised, which is no wrong byte
                    continue
                if got.status_code not in (200, 206) or got.headers["x-model-etag"] not in known:
                    wrong.append(f"{got.status_code} {got.headers}")
                    return
                version = known[got.headers["x-model-etag"]]
                rows = values[version][n] if whole else values[version][n][row : row + 100]
                if got.content != rows.tobytes():
                    wrong.append(f"t{n:02} of version {version}, whole: {whole}")
                    return
                seen.add((version, got.headers.get("x-cache-status", "none")))

    folder = tmp_path / "fleet"
    folder.mkdir()
    with Fleet(folder, [path.parents[1]] * 3) as fleet, httpx.Client(base_url=fleet.url) as client:
        for version in (1, 0):
            _replace(path, files[version], version)
            until = time.monotonic() + 10
            while client.head(data(0)).headers["x-model-etag"] in known and time.monotonic() < until:
                time.sleep(0.1)
            known[client.head(data(0)).headers["x-model-etag"]] = version
        assert len(known) == 2
        threads = [threading.Thread(target=ask, args=(fleet.url, seed)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for version in (1, 0, 1):
            time.sleep(2.5)
            _replace(path, files[version], version)
        time.sleep(2.5)
        ended.set()
        for thread in threads:
            thread.join()
        assert wrong == []
        assert {version for version, _ in seen} >= {0, 1}
        assert {(version, "HIT") for version in (0, 1)} <= seen
        time.sleep(2.2)  # a version holds a second at nginx, and a look at the volume one at a replica
        assert client.get(data(0)).content == values[1][0].tobytes()


def _replace(path: Path, content: bytes, version: int) -> None:
    """Put a file in its place by renaming; the same version is the same file: it has the same time."""
    new = path.with_suffix(".new")
    new.write_bytes(content)
    os.utime(new, (1_700_000_000 + version,) * 2)
    new.rename(path)


def test_a_client_that_holds_on_to_a_version_never_gets_another(tmp_path: Path) -> None:
    """One replica has another version of the file: what is asked of it with If-Match is refused."""
    roots, names = [], [f"{MODEL}-{number}" for number in range(6)]
    for number, version in enumerate((0, 0, 1)):
        path = tmp_path / f"volume{number}" / f"{MODEL}.gguf"
        path.parent.mkdir(parents=True)
        path.write_bytes(model(version))
        os.utime(path, (1_700_000_000 + version,) * 2)
        for name in names:  # which of them a replica is asked for depends on its port
            (path.parents[1] / f"{name}.gguf").hardlink_to(path)
        roots.append(path.parents[1])
    values = [weights(0), weights(1)]
    outcomes: Counter[str] = Counter()
    folder = tmp_path / "fleet"
    folder.mkdir()
    with Fleet(folder, roots) as fleet, httpx.Client(base_url=fleet.url) as plain:
        heads = [httpx.head(f"http://{replica.authority}{data(0)}").headers for replica in fleet.replicas]
        known = {heads[0]["x-model-etag"]: 0, heads[2]["x-model-etag"]: 1}
        assert len(known) == 2
        assert heads[1]["x-model-etag"] == heads[0]["x-model-etag"]
        for name in names:
            with Client(fleet.url, cache_bytes=0, retries=2) as client:
                opened = client[name]
                for n in range(N_TENSORS):
                    try:
                        got = opened[f"t{n:02}"][:]
                    except ModelChanged:
                        outcomes["refused"] += 1
                    else:
                        assert np.array_equal(got, values[known[opened.version]][n])
                        outcomes["read"] += 1
        for _ in range(3):  # as a replica has them, to be kept, and kept
            for n in range(N_TENSORS):
                for tag, version in known.items():
                    answer = plain.get(data(n), headers={"If-Match": tag})
                    if answer.status_code != 412:
                        assert answer.content == values[version][n].tobytes()
                        assert answer.headers["x-model-etag"] == tag
                    outcomes[f"{answer.status_code}"] += 1
                # Without If-Match, an answer is of one version, and says of which.
                answer = plain.get(data(n))
                assert answer.content == values[known[answer.headers["x-model-etag"]]][n].tobytes()
    assert set(outcomes) == {"read", "refused", "200", "412"}, outcomes


def test_more_than_3_gb_pass_to_a_slow_client(tmp_path: Path) -> None:
    """The first 80 MB at 20 MB/s, then as fast as it goes; no replica holds a stream for it."""
    volume, folder = tmp_path / "volume", tmp_path / "fleet"
    volume.mkdir()
    folder.mkdir()
    write_sparse(volume / "large.gguf", GGMLType.F32, LARGE_BYTES // 4 // ROW, LARGE_BYTES, LARGE_END)
    with Fleet(folder, [volume] * 3) as fleet:
        began, looked, most = time.monotonic(), 0, 0.0

        def watch(taken: int) -> None:
            nonlocal looked, most
            if taken < SLOW_BYTES:
                time.sleep(max(0, began + taken / BYTES_PER_SECOND - time.monotonic()))
                if taken - looked > 16 * MIB:
                    looked = taken
                    most = max(most, sum(fleet.count("tensortap_streams_open")))

        with fleet.connect() as connection:
            connection.sendall(f"GET {LARGE} HTTP/1.1\r\nHost: test\r\n\r\n".encode())
            take_zeros(connection, LARGE_BYTES, LARGE_END, watch)
        assert looked
        assert most <= 1
        assert fleet.errors() == []


def test_what_is_kept_is_for_those_who_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "volume" / f"{MODEL}.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(model())
    keys, folder = tmp_path / "keys", tmp_path / "fleet"
    folder.mkdir()
    keys.write_text("key-of-the-team-1 team/*\nkey-of-others-22 other/*\n")
    wanted = weights()[0].tobytes()
    fleet = Fleet(folder, [path.parents[1]] * 3, settings={"api_keys_file": keys})
    with fleet, httpx.Client(base_url=fleet.url) as client:
        team, others = ({"Authorization": f"Bearer {key}"} for key in ("key-of-the-team-1", "key-of-others-22"))
        answers = [client.get(data(0), headers=team) for _ in range(3)]
        assert [answer.content == wanted for answer in answers] == [True] * 3
        assert answers[-1].headers["x-cache-status"] == "HIT"
        assert answers[-1].headers["cache-control"].startswith("private")
        for _ in range(3):
            assert client.get(data(0)).status_code == 401
            assert client.get(data(0), headers=others).status_code in (403, 404)
            assert client.get(data(0), headers={"X-API-Key": "key-of-the-team-1"}).content == wanted
