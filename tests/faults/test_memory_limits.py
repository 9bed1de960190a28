"""Limits of memory are honest: what many large answers take together, and that a small container is enough."""

import json
import os
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

import decoders
from decoders import GGMLType
from tests import builder
from tests.server import Server

MIB = 1 << 20
ROW = 4096
N_ROWS = 8192  # 128 MiB of float32
TYPES = [
    GGMLType.F32,
    GGMLType.F16,
    GGMLType.BF16,
    GGMLType.Q8_0,
    GGMLType.Q4_K,
    GGMLType.Q6_K,
    GGMLType.IQ2_XXS,
    GGMLType.Q4_0,
]
SLOW = 3  # of eight clients


def write_model(path: Path, n_rows: int = N_ROWS) -> None:
    """A tensor of each type, of zeros that take no room on the disk."""
    infos, at = [], 0
    for type_ in TYPES:
        block = decoders.info(type_)
        infos.append(builder.tensor_info(type_.name, [ROW, n_rows], type_, at))
        at += ROW * n_rows // block.block_weights * block.block_bytes
    with path.open("wb") as file:
        file.write(builder.base(infos=infos, data=b""))
        file.truncate(file.tell() + at)


@pytest.fixture(scope="module")
def volume(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("volume")
    write_model(folder / "m.gguf")
    return folder


@pytest.fixture(scope="module")
def server(volume: Path) -> Iterator[Server]:
    with Server(volume, cache_bytes="64M") as running:
        running.client.get("/v1/models/m").raise_for_status()
        yield running


def request(target: str, *headers: str, body: bytes | None = None) -> bytes:
    lines = [f"{'GET' if body is None else 'POST'} {target} HTTP/1.1", "Host: test", *headers]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + (body or b"")


class Client(threading.Thread):
    """Sends a request and reads its answer, all of it; a slow one takes a little at a time until ``hurry`` is set."""

    def __init__(self, server: Server, content: bytes, hurry: threading.Event | None = None) -> None:
        super().__init__(daemon=True)
        self._port = server.port
        self._content = content
        self._hurry = hurry
        self.begun = threading.Event()
        self.status = 0
        self.length = self.taken = 0

    def run(self) -> None:
        with socket.socket() as connection:
            connection.settimeout(120)
            if self._hurry is not None:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
            connection.connect(("127.0.0.1", self._port))
            connection.sendall(self._content)
            with connection.makefile("rb") as file:
                self.status = int(file.readline().split()[1])
                while (line := file.readline().lower()) != b"\r\n":
                    if line.startswith(b"content-length:"):
                        self.length = int(line.split()[1])
                self.begun.set()
                while self.taken < self.length:
                    slow = self._hurry is not None and not self._hurry.is_set()
                    chunk = file.read1(32 << 10 if slow else MIB)
                    if not chunk:
                        return
                    self.taken += len(chunk)
                    if slow and self._hurry is not None:
                        self._hurry.wait(0.05)


def take(server: Server, requests: list[bytes]) -> None:
    """Send all requests at the same time, and read the answers to their ends, some of them slowly."""
    hurry = threading.Event()
    clients = [Client(server, one, hurry if place < SLOW else None) for place, one in enumerate(requests)]
    for client in clients:
        client.start()
    for client in clients[SLOW:]:
        client.join()
    hurry.set()
    for client in clients:
        client.join()
        assert client.status in (200, 206), client.status
        assert client.taken == client.length > 0


def data(type_: GGMLType, query: str = "") -> str:
    return f"/v1/models/m/-/data/{type_.name}{query}"


def ranges(type_: GGMLType) -> bytes:
    n_bytes = N_ROWS * ROW * 4
    part = n_bytes // 16
    stated = ",".join(f"{start}-{start + part - 5}" for start in range(0, n_bytes, part))
    return request(data(type_), f"Range: bytes={stated}")


def gather(type_: GGMLType) -> bytes:
    rows = [number ^ 0x145 for number in range(N_ROWS)]  # not in order, but with a window's rows together
    return request(data(type_), body=json.dumps({"rows": rows}).encode())


@pytest.mark.parametrize(
    "ask",
    [
        pytest.param(lambda type_: request(data(type_)), id="whole tensors"),
        pytest.param(lambda type_: request(data(type_, "?format=npy&dtype=float16")), id="halves"),
        pytest.param(ranges, id="multiparts"),
        pytest.param(lambda type_: request(data(type_, "?format=json&rows=:1024")), id="JSON"),
        pytest.param(gather, id="gathers"),
        pytest.param(lambda type_: request(f"/v1/models/m/-/safetensors?name={type_.name[:-1]}*"), id="safetensors"),
    ],
)
def test_eight_large_answers_stay_within_the_cache_and_200_mib(
    server: Server, ask: Callable[[GGMLType], bytes]
) -> None:
    take(server, [ask(type_) for type_ in TYPES])
    assert server.memory("VmHWM") < 64 * MIB + 200 * MIB


SMALL = 512 * MIB
LARGEST_BODY = 16 * MIB


class Group:
    """A control group of limited memory, of the version that the system has."""

    def __init__(self, limit: int) -> None:
        groups = dict(line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines())
        first = next((controllers for controllers in groups if "memory" in controllers.split(",")), "")
        self._root = Path("/sys/fs/cgroup/memory" if first else "/sys/fs/cgroup")
        self._own = self._root / groups.get(first, "/").lstrip("/")
        self._events, limit_name = (
            ("memory.oom_control", "memory.limit_in_bytes") if first else ("memory.events", "memory.max")
        )
        # A group of version 2 that has processes can have none below it, but for the root.
        self.folder = (self._own if first else self._root) / f"small-{os.getpid()}"
        self.folder.mkdir()
        (self.folder / limit_name).write_text(str(limit))

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Put this process into the group: what it starts meanwhile stays there."""
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))
        try:
            yield
        finally:
            (self._own / "cgroup.procs").write_text(str(os.getpid()))

    @property
    def kills(self) -> int:
        """How many processes the system has killed because the memory was used up."""
        return int((self.folder / self._events).read_text().partition("oom_kill ")[2].split()[0])


@pytest.fixture
def group() -> Iterator[Group]:
    try:
        made = Group(SMALL)
    except OSError as error:
        pytest.skip(f"no control group of limited memory can be made here: {error}")
    yield made
    with suppress(FileNotFoundError):
        made.folder.rmdir()


@pytest.fixture
def small(group: Group, volume: Path) -> Iterator[Server]:
    """A server with its default settings in the group."""
    if not (volume / "v.gguf").exists():
        tokens = [f"token {number}" for number in range(262_144)]
        entries = [
            builder.kv("tokenizer.ggml.tokens", builder.ARRAY, (builder.STRING, tokens)),
            builder.kv("tokenizer.ggml.scores", builder.ARRAY, (builder.F32, [1.5] * len(tokens))),
        ]
        (volume / "v.gguf").write_bytes(builder.base(entries=entries))
    with ExitStack() as stack:
        with group.entered():
            server = stack.enter_context(Server(volume))
        yield server


def largest_body() -> bytes:
    """A posted selection of as many rows as there may be, and of as many bytes."""
    body = json.dumps({"rows": [300 + number % 7000 for number in range(1_000_000)], "cols": 0}).encode()
    return body + b" " * (LARGEST_BODY - len(body))


def post_all(server: Server, bodies: list[bytes]) -> list[Client]:
    posts = [Client(server, request(data(GGMLType.Q8_0), body=body)) for body in bodies]
    for post in posts:
        post.start()
    return posts


def assert_healthy(server: Server, group: Group) -> None:
    assert server.client.get("/healthz").status_code == 200
    assert server.process.poll() is None
    assert group.kills == 0


def test_the_memory_of_a_small_container_is_known(small: Server) -> None:
    lines = small.client.get("/metrics").text.splitlines()
    (budget,) = (line.split()[1] for line in lines if line.startswith("tensortap_cache_budget_bytes "))
    assert float(budget) == SMALL / 4


def test_in_a_small_container_bodies_that_find_no_room_are_refused(small: Server, group: Group) -> None:
    posts = post_all(small, [largest_body()] * 20)
    while any(post.is_alive() for post in posts):
        assert_healthy(small, group)
        posts[0].join(0.05)
    statuses = Counter(post.status for post in posts)
    assert set(statuses) == {200, 503}
    assert all(post.taken == post.length > 0 for post in posts)
    assert_healthy(small, group)


@pytest.mark.parametrize("value", [b"[]", b"257", b'"ab"'])
def test_in_a_small_container_bodies_of_too_many_values_are_refused(small: Server, group: Group, value: bytes) -> None:
    body = b'{"rows":[' + (value + b",") * (LARGEST_BODY // (len(value) + 1) - 10) + value + b"]}"
    for post in post_all(small, [body] * 20):
        post.join()
        assert post.status in (400, 503)
    assert_healthy(small, group)


def test_in_a_small_container_the_defaults_stand_everything_at_once(small: Server, group: Group) -> None:
    hurry = threading.Event()
    streams = [Client(small, request(data(type_)), hurry) for type_ in TYPES * 2]
    for stream in streams:
        stream.start()
    for stream in streams:
        assert stream.begun.wait(60)
    with ExitStack() as stack:
        for number in range(64):
            stalled = stack.enter_context(socket.socket())
            stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
            stalled.connect(("127.0.0.1", small.port))
            stalled.sendall(request(data(TYPES[number % len(TYPES)])))
        posts = post_all(small, [largest_body()] * 20)
        for key in ("", "/tokenizer.ggml.tokens", "/tokenizer.ggml.scores"):
            answer = small.client.get(f"/v1/models/v/-/metadata{key}")
            assert answer.status_code == 200
            assert_healthy(small, group)
        for post in posts:
            post.join()
            assert_healthy(small, group)
        assert {post.status for post in posts} <= {200, 503}
        hurry.set()
        for stream in streams:
            stream.join()
        assert [(stream.status, stream.taken) for stream in streams] == [(200, N_ROWS * ROW * 4)] * len(streams)
    assert_healthy(small, group)
