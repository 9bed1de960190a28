"""Answers that are ready: the same bytes as those that are streamed, and only where everything is cached."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from app.content import content_length
from app.errors import Unavailable
from app.negotiation import negotiated_format
from app.parameters import FormatName, WeightsQuery
from app.ready import ready_body
from app.representation import represent
from app.service import Service
from app.snapshot import Snapshot
from decoders import GGMLType
from tests import builder
from tests.app.conftest import Face

ROW, N_ROWS = 512, 1200  # three windows
DATA = "/v1/models/m/-/data/w"
JSON_LIMIT = 1 << 20


@pytest.fixture(scope="module")
def face(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Face]:
    root: Path = tmp_path_factory.mktemp("ready")
    blocks = np.random.default_rng(3).integers(0, 256, (ROW * N_ROWS // 32, 34), np.uint8)
    blocks[:, 1] &= 0x3F
    (root / "m.gguf").write_bytes(builder.build([("w", [ROW, N_ROWS], GGMLType.Q8_0, blocks.tobytes())]))
    serving = Face(root, recheck_seconds=60)
    yield serving
    serving.close()


def whole(face: Face) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """Every weight; asked for, so that all windows are cached."""
    return face.get(DATA).floats.reshape(N_ROWS, ROW)


def ready(face: Face, format_name: FormatName = "raw", **query: str) -> bytes | None:
    service: Service = face.app.state.service
    found = service.catalogue.snapshot(b"m")
    with found as snapshot:
        content = represent(
            snapshot, snapshot.model.find(b"w"), WeightsQuery.model_validate(query), format_name, json_limit=JSON_LIMIT
        ).content
        body = ready_body(content, service.reader)
        if body is None:
            return None
        assert content_length(content) in (None, len(body))
        return bytes(body)


@pytest.mark.parametrize(
    "rows", ["0", "-1", "7:9", "3,900,17", "9::-1", "511,512", "510:514", ",".join(map(str, range(30)))]
)
def test_cached_rows_are_ready_wherever_they_lie(face: Face, rows: str) -> None:
    weights = whole(face)
    places = [place for part in rows.split(",") for place in _places(part)]
    assert ready(face, rows=rows) == weights[places].tobytes()
    assert ready(face, rows=rows, cols="::-3") == weights[places][:, ::-3].tobytes()


def _places(part: str) -> list[int]:
    fields = [int(field) if field else None for field in part.split(":")]
    return [*range(N_ROWS)[slice(*fields)]] if len(fields) > 1 else [int(part)]


@pytest.mark.parametrize("format_name", ["raw", "npy", "json"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_every_format_is_ready_as_it_is_streamed(face: Face, format_name: FormatName, dtype: str) -> None:
    whole(face)
    streamed = face.get(f"{DATA}?rows=5,1100&dtype={dtype}&format={format_name}", headers={"Range": "bytes=0-"})
    assert ready(face, format_name, rows="5,1100", dtype=dtype) == streamed.body


def test_what_is_large_or_not_cached_is_not_ready(face: Face, tmp_path: Path) -> None:
    whole(face)
    assert ready(face) is None
    assert ready(face, rows="0:33") is None
    assert ready(face, rows="0:40", dtype="float16") is None  # much to convert
    assert ready(face, "native", rows="0") is None
    single = ",".join(f"{row}:{row + 1}" for row in range(0, 400, 2))
    assert ready(face, rows=single, cols="0") is None  # many steps
    (tmp_path / "m.gguf").write_bytes((face.root / "m.gguf").read_bytes())
    cold = Face(tmp_path)
    try:
        assert ready(cold, rows="0") is None
        cold.get(f"{DATA}?rows=0")
        assert ready(cold, rows="0") is not None
        assert ready(cold, rows="0,600") is None
    finally:
        cold.close()


def test_an_empty_answer_and_a_range_are_given_as_ever(face: Face) -> None:
    weights = whole(face)
    assert face.get(f"{DATA}?rows=5:5").body == b""
    part = face.get(f"{DATA}?rows=600", headers={"Range": "bytes=6-13"})
    assert (part.status, part.body) == (206, weights[600].tobytes()[6:14])
    parts = face.get(f"{DATA}?rows=600", headers={"Range": "bytes=0-3, 8-11"})
    assert parts.status == 206
    assert parts.headers["content-type"].startswith("multipart/byteranges")


def test_a_ready_answer_lets_its_snapshot_go_and_has_the_headers_of_head(face: Face) -> None:
    whole(face)
    service: Service = face.app.state.service
    snapshot = service.catalogue.snapshot(b"m")
    holders = _holders(snapshot)
    answer, head = face.get(f"{DATA}?rows=3"), face.get(f"{DATA}?rows=3", "HEAD")
    assert _holders(snapshot) == holders
    assert answer.headers == head.headers
    snapshot.release()


def _holders(snapshot: Snapshot) -> int:
    return snapshot._holders


def test_negotiation_needs_no_header() -> None:
    assert negotiated_format(None) == "raw"


@pytest.mark.parametrize("rows", ["511:513", "0,600,1100"])
def test_an_answer_of_no_more_than_a_window_is_whole_before_it_begins(
    face: Face, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: str
) -> None:
    """Of several windows, too: where one fails, there is a problem document and no answer that breaks off."""
    (tmp_path / "m.gguf").write_bytes((face.root / "m.gguf").read_bytes())
    cold = Face(tmp_path)
    read = Snapshot.read
    try:
        first = cold.get(f"{DATA}?rows=0")
        assert first.status == 200

        def fails(self: Snapshot, *_: object) -> None:
            raise Unavailable("volume-error", "This window cannot be read.")

        monkeypatch.setattr(Snapshot, "read", fails)
        assert cold.problem(f"{DATA}?rows={rows}") == (503, "volume-error")
        monkeypatch.setattr(Snapshot, "read", read)
        assert cold.get(f"{DATA}?rows={rows}").body == face.get(f"{DATA}?rows={rows}").body
    finally:
        cold.close()
