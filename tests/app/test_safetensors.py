"""A model as a safetensors file: read by the safetensors library whole, and by ranges one tensor at a time."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from numpy.typing import NDArray

import decoders
from app.representation import Representation
from app.safetensors import represent_safetensors
from decoders import GGMLType
from tests import builder
from tests.app.conftest import Face, Serve, slug
from tests.demo import demo_model

PATH = "/v1/models/m/-/safetensors"


@pytest.fixture(scope="module")
def face(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Face]:
    folder = tmp_path_factory.mktemp("volume")
    (folder / "m.gguf").write_bytes(demo_model())
    made = Face(folder, recheck_seconds=60)
    yield made
    made.close()


def expected(face: Face) -> dict[str, NDArray[np.float32]]:
    tensors = face.get("/v1/models/m/-/tensors").json["tensors"]
    return {tensor["name"]: face.get(tensor["data"]).floats.reshape(tensor["shape"]) for tensor in tensors}


def test_the_library_reads_a_whole_model(face: Face) -> None:
    answer = face.get(PATH)
    assert answer.headers["content-disposition"] == 'attachment; filename="m.safetensors"'
    loaded = safetensors.numpy.load(answer.body)
    wanted = expected(face)
    assert loaded.keys() == wanted.keys()
    for name, weights in wanted.items():
        np.testing.assert_array_equal(loaded[name], weights, strict=True)


def test_a_lazy_reader_fetches_the_header_and_then_one_tensor(face: Face) -> None:
    size = int.from_bytes(face.get(PATH, headers={"Range": "bytes=0-7"}).body, "little")
    assert size % 8 == 0
    header = json.loads(face.get(PATH, headers={"Range": f"bytes=8-{8 + size - 1}"}).body)
    for name, weights in expected(face).items():
        entry = header[name]
        first, stop = entry["data_offsets"]
        part = face.get(PATH, headers={"Range": f"bytes={8 + size + first}-{8 + size + stop - 1}"})
        assert part.status == 206
        assert entry["dtype"] == "F32"
        np.testing.assert_array_equal(part.floats.reshape(entry["shape"]), weights, strict=True)


@pytest.mark.parametrize(("dtype", "type_"), [("float16", "F16"), ("bfloat16", "BF16")])
def test_other_dtypes(face: Face, dtype: str, type_: str) -> None:
    answer = face.get(f"{PATH}?dtype={dtype}&name=blk.*")
    size = int.from_bytes(answer.body[:8], "little")
    header = json.loads(answer.body[8 : 8 + size])
    assert set(header) == {"__metadata__", "blk.0.attn_q.weight", "blk.0.ffn_gate_exps.weight"}
    for name, entry in header.items():
        if name != "__metadata__":
            assert entry["dtype"] == type_
            first, stop = entry["data_offsets"]
            raw = face.get(f"/v1/models/m/-/data/{name}?dtype={dtype}").body
            assert answer.body[8 + size + first : 8 + size + stop] == raw


def test_stored_gives_unquantized_tensors_as_they_are(serve: Serve) -> None:
    plain = [type_ for type_ in GGMLType if type_.name in ("F32", "F16", "BF16", "F64", "I8", "I16", "I32", "I64")]
    tensors = [(type_.name, [4, 2], type_, bytes(range(8 * decoders.info(type_).block_bytes))) for type_ in plain]
    face = serve({"m.gguf": builder.build([*tensors, ("q", [32], GGMLType.Q8_0, bytes(34))])})
    body = face.get(f"{PATH}?dtype=stored&name=[FBI]*").body
    size = int.from_bytes(body[:8], "little")
    header = json.loads(body[8 : 8 + size])
    for name, _, _, content in tensors:
        first, stop = header[name]["data_offsets"]
        assert header[name]["dtype"] == name
        assert body[8 + size + first : 8 + size + stop] == content
    assert slug(face.get(f"{PATH}?dtype=stored")) == (400, "bad-parameter")


def test_scalars_and_empty_tensors(serve: Serve) -> None:
    one = np.float32(1.5).tobytes()
    face = serve({"m.gguf": builder.build([("s", [], 0, one), ("e", [0, 3], 0, b""), ("t", [1], 0, one)])})
    loaded = safetensors.numpy.load(face.get(PATH).body)
    assert loaded["s"].shape == ()
    assert loaded["e"].shape == (3, 0)
    assert loaded["s"] == loaded["t"][0] == 1.5


def test_a_model_without_tensors_is_an_empty_file(serve: Serve) -> None:
    face = serve({"m.gguf": builder.build([])})
    assert safetensors.numpy.load(face.get(PATH).body) == {}
    assert slug(face.get(f"{PATH}?name=none")) == (404, "no-such-tensor")  # more likely a mistake than a wish


def test_what_cannot_be_in_the_file_is_refused(serve: Serve) -> None:
    good = ("w", [4], 0, bytes(16))
    face = serve(
        {
            "m.gguf": builder.build([good, ("q", [256], 156, bytes(64))]),
            "twice.gguf": builder.build([good, good]),
            "one.gguf": builder.build([(b"\xff", [4], 0, bytes(16)), (b"\xfe", [4], 0, bytes(16))]),
            "reserved.gguf": builder.build([("__metadata__", [4], 0, bytes(16))]),
        }
    )
    assert slug(face.get(PATH)) == (422, "unsupported-type")
    assert "exclude=" in face.get(PATH).json["detail"]
    assert face.get(f"{PATH}?name=w").status == 200
    assert set(safetensors.numpy.load(face.get(f"{PATH}?exclude=q").body)) == {"w"}
    assert slug(face.get("/v1/models/twice/-/safetensors")) == (409, "ambiguous-tensor")
    assert slug(face.get("/v1/models/one/-/safetensors")) == (409, "ambiguous-tensor")
    assert slug(face.get("/v1/models/reserved/-/safetensors")) == (400, "bad-parameter")


def test_its_etag_names_its_content(face: Face, tmp_path: Path) -> None:
    etags = {face.get(PATH + query, "HEAD").headers["etag"] for query in ("", "?name=blk.*", "?dtype=float16")}
    assert len(etags) == 3
    etag = face.get(PATH, "HEAD").headers["etag"]
    assert face.get(PATH, headers={"If-None-Match": etag}).status == 304


def test_the_header_is_not_made_on_the_event_loop(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a model of 65,536 tensors it takes seconds, in which nobody else would be answered."""

    def watched(*arguments: Any) -> Representation:
        with pytest.raises(RuntimeError, match="no running event loop"):
            asyncio.get_running_loop()
        return represent_safetensors(*arguments)

    monkeypatch.setattr("app.routes_weights.represent_safetensors", watched)
    assert face.get(PATH, "HEAD").status == 200
