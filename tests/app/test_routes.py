"""Every route, form and link, over the demo model: a tensor of each format that is decoded."""

import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import decoders
from app.windows import STORED_DTYPES
from decoders import GGMLType
from tests.app.conftest import Answer, Face, Serve, path_of, slug
from tests.app.test_cases_names import hostile_model
from tests.builder import ARRAY, F8, STRING, U16, U32, base, build, kv, tensor_info

DATA = path_of("demo", "data", "blk.0.attn_q.weight")
ROUTES = {
    "/v1/models": "/v1/models",
    "/v1/models/{model}": "/v1/models/demo",
    "/v1/models/{model}/-/metadata": path_of("demo", "metadata"),
    "/v1/models/{model}/-/metadata/{key}": path_of("demo", "metadata", "general.name"),
    "/v1/models/{model}/-/tensors": path_of("demo", "tensors"),
    "/v1/models/{model}/-/tensors/{tensor}": path_of("demo", "tensors", "output_norm.weight"),
    "/v1/models/{model}/-/data/{tensor}": DATA,
    "/v1/models/{model}/-/safetensors": path_of("demo", "safetensors"),
    "/v1/data": "/v1/data?model=demo&tensor=blk.0.attn_q.weight",
    "/healthz": "/healthz",
    "/readyz": "/readyz",
}
FORMATS = ("raw", "npy", "json", "native")
DTYPES = (None, "float32", "float16", "bfloat16", "stored")


@pytest.fixture(scope="module")
def lines(demo: Face) -> list[dict[str, Any]]:
    """The tensor table of the demo model."""
    table: list[dict[str, Any]] = demo.get(path_of("demo", "tensors")).json["tensors"]
    return table


@pytest.fixture(scope="module")
def content(demo_root: Path) -> bytes:
    return (demo_root / "demo.gguf").read_bytes()


def stored_bytes(content: bytes, line: dict[str, Any]) -> bytes:
    return content[line["start"] : line["start"] + line["bytes"]]


def bfloat16(values: NDArray[np.float32]) -> bytes:
    """The bits of the nearest bfloat16, of ties the even one; found by distance, for finite values in range."""
    low = (values.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    high = low + np.uint16(1)
    exact = values.astype(np.float64)
    distances = [
        np.abs((bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64) - exact) for bits in (low, high)
    ]
    even = np.where(low % 2 == 0, low, high)
    nearest = np.where(distances[0] < distances[1], low, high)
    return np.where(distances[0] == distances[1], even, nearest).astype("<u2").tobytes()


def expected(content: bytes, line: dict[str, Any], form: str, dtype: str | None) -> Any:
    """The bytes of a body (of an npy: of its data), or the array of a JSON; None where the two do not go together."""
    ggml_type = GGMLType(line["type_id"])
    stored = stored_bytes(content, line)
    if form == "native":
        return stored if dtype is None else None
    if dtype == "stored" and ggml_type not in STORED_DTYPES:
        return None
    if form != "raw" and (dtype == "bfloat16" or (dtype == "stored" and ggml_type is GGMLType.BF16)):
        return None
    if dtype == "stored":
        return stored
    values = decoders.dequantize(stored, ggml_type)
    if dtype == "bfloat16":
        return bfloat16(values)
    with np.errstate(over="ignore"):
        return values.astype("<f2" if dtype == "float16" else "<f4").tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", FORMATS)
def test_every_form_of_every_type(
    demo: Face, lines: list[dict[str, Any]], content: bytes, form: str, dtype: str | None
) -> None:
    assert {line["type_id"] for line in lines} == {int(t) for t in GGMLType if decoders.info(t).decodable}
    for line in lines:
        answer = demo.get(f"{line['data']}?format={form}" + ("" if dtype is None else f"&dtype={dtype}"))
        wanted = expected(content, line, form, dtype)
        if wanted is None:
            assert slug(answer) == (400, "bad-parameter"), line["name"]
            continue
        assert answer.status == 200, (line["name"], answer.body)
        check_weights(answer, line, form, dtype, wanted)


def check_weights(answer: Answer, line: dict[str, Any], form: str, dtype: str | None, wanted: bytes) -> None:
    headers, shape = answer.headers, tuple(line["shape"])
    name = STORED_DTYPES[GGMLType(line["type_id"])][0] if dtype == "stored" else dtype or "float32"
    assert headers["x-tensor-type"] == line["type"]
    assert headers["x-tensor-dtype"] == ("native" if form == "native" else name)
    assert headers["x-tensor-shape"] == str(line["shape"]).replace(" ", "")
    assert headers["x-accel-buffering"] == "no"
    assert headers["cache-control"] == "public, max-age=0, must-revalidate"
    assert re.fullmatch(r'"[A-Za-z0-9_-]{16,}"', headers["etag"])
    suffix = {"raw": "bin", "npy": "npy", "json": "json", "native": "native.bin"}[form]
    assert headers["content-disposition"] == f'attachment; filename="demo.{line["name"]}.{suffix}"'
    assert headers["content-type"] == {"npy": "application/x-npy", "json": "application/json"}.get(
        form, "application/octet-stream"
    )
    if form in ("raw", "native"):
        assert answer.body == wanted
    elif form == "npy":
        loaded = np.load(io.BytesIO(answer.body), allow_pickle=False)
        assert loaded.shape == shape
        assert loaded.dtype == np.dtype(name)
        assert loaded.flags.c_contiguous
        assert loaded.tobytes() == wanted
    else:
        assert list(answer.json) == ["shape", "dtype", "data"]
        assert (answer.json["shape"], answer.json["dtype"]) == (line["shape"], name)
        parsed = np.array(answer.json["data"]).astype(name)
        assert parsed.shape == shape
        assert parsed.tobytes() == wanted


def significant(number: str) -> str:
    """The digits of a number's text without sign, point, exponent, and zeros on both ends."""
    return re.sub(r"e.*|[-.]", "", number).strip("0")


def test_json_has_the_shortest_digits(demo: Face, lines: list[dict[str, Any]]) -> None:
    for line in lines:
        text = demo.get(f"{line['data']}?format=json&rows=0").body.decode().partition('"data":')[2]
        numbers = re.findall(r"[-0-9.e+]+", text)
        assert len(numbers) == line["row_weights"]
        for number in numbers:
            shortest = np.format_float_scientific(np.float32(number), unique=True)
            assert len(significant(number)) == len(significant(shortest)), (line["name"], number)


@pytest.mark.parametrize(
    "query", ["rows=1:3&cols=5", "rows=-1,0&cols=::-7", "slice=1,3:200:5", "slice=...,-1", "slice=0"]
)
def test_selections_of_every_type_equal_numpy(
    demo: Face, lines: list[dict[str, Any]], content: bytes, query: str
) -> None:
    indices: dict[str, Any] = {
        "rows=1:3&cols=5": (slice(1, 3), slice(5, 6)),
        "rows=-1,0&cols=::-7": ([-1, 0], slice(None, None, -7)),
        "slice=1,3:200:5": (1, slice(3, 200, 5)),
        "slice=...,-1": (..., -1),
        "slice=0": 0,
    }
    for line in lines:
        if len(line["shape"]) != 2:
            continue
        whole = decoders.dequantize(stored_bytes(content, line), GGMLType(line["type_id"])).reshape(line["shape"])
        loaded = np.load(io.BytesIO(demo.get(f"{line['data']}?format=npy&{query}").body), allow_pickle=False)
        assert np.array_equal(loaded, whole[indices[query]]), line["name"]


def test_native_rows_are_the_blocks_of_the_file(demo: Face, lines: list[dict[str, Any]], content: bytes) -> None:
    for line in lines:
        stored = stored_bytes(content, line)
        row = line["bytes"] // line["rows"]
        answer = demo.get(f"{line['data']}?format=native&rows=-1,0")
        if line["rows"] > 1:
            assert answer.body == stored[-row:] + stored[:row], line["name"]
        assert answer.headers["x-tensor-shape"] == f"[2,{line['row_weights']}]"


def test_the_routes_by_path_and_by_parameters_are_the_same(demo: Face, lines: list[dict[str, Any]]) -> None:
    for line in lines:
        by_query = demo.get(f"/v1/data?model=demo&tensor={line['name']}&rows=0")
        assert by_query == demo.get(f"{line['data']}?rows=0")
    assert demo.get("/v1/data?model=demo.gguf&tensor=output_norm.weight").status == 200


def test_the_tables_say_what_the_file_has(demo: Face, lines: list[dict[str, Any]], content: bytes) -> None:
    (listed,) = demo.get("/v1/models").json["models"]
    summary = demo.get(listed["href"]).json
    assert listed["id"] == summary["id"] == "demo"
    assert listed["bytes"] == summary["bytes"] == len(content)
    assert listed["tensors"] == summary["tensors"] == len(lines)
    assert listed["parameters"] == summary["parameters"] == sum(line["weights"] for line in lines)
    assert (summary["architecture"], summary["name"], summary["warnings"]) == ("llama", "tensortap demo", [])
    assert sum(figures["tensors"] for figures in summary["types"].values()) == len(lines)
    for name, figures in summary["types"].items():
        same = [line for line in lines if line["type"] == name]
        assert figures == {
            "tensors": len(same),
            "weights": sum(line["weights"] for line in same),
            "bytes": sum(line["bytes"] for line in same),
        }
    for line in lines:
        block = decoders.info(GGMLType(line["type_id"]))
        assert line["ne"] == line["shape"][::-1]
        assert line["weights"] == np.prod(line["shape"], dtype=int) == line["rows"] * line["row_weights"]
        assert line["bytes"] == line["weights"] // block.block_weights * block.block_bytes
        assert line["start"] == summary["files"][0]["data_start"] + line["offset"]
        assert demo.get(line["href"]).json == {"model": "demo", **line}
    assert summary["metadata_keys"] == demo.get(path_of("demo", "metadata")).json["count"] == 9


def test_the_tensor_table_can_be_searched(demo: Face, lines: list[dict[str, Any]]) -> None:
    table = path_of("demo", "tensors")

    def names(query: str) -> list[str]:
        return [line["name"] for line in demo.get(f"{table}?{query}").json["tensors"]]

    assert names("name=blk.0.*") == ["blk.0.attn_q.weight", "blk.0.ffn_gate_exps.weight"]
    assert names("name=*.weight&type=F32") == ["token_embd.weight", "output_norm.weight"]
    assert names("type=q4_1") == names("type=3") == ["blk.0.attn_q.weight", "formats.q4_1"]
    assert names("type=I32&name=blk.*") == names("name=") == names("name=blk") == names("cursor=9999") == []
    for unknown in ("none", "Q4_K_M", "", "-1"):
        assert demo.problem(f"{table}?type={unknown}") == (400, "bad-parameter")
    assert names("type=99") == []  # an id that a newer ggml may have
    assert names("name=formats.[qi]?_k") == [
        "formats.q2_k",
        "formats.q3_k",
        "formats.q4_k",
        "formats.q5_k",
        "formats.q6_k",
        "formats.q8_k",
    ]
    assert names("limit=2") + names("limit=3&cursor=2") == [line["name"] for line in lines[:5]]
    assert "next" not in demo.get(f"{table}?limit={len(lines)}").json
    for query in ("limit=0", "limit=10001", "cursor=-1", "limit=x", "cursor=2147483648", "limit=1&limit=2", "names=x"):
        assert demo.problem(f"{table}?{query}") == (400, "bad-parameter"), query


def hrefs(value: Any) -> Iterator[str]:
    """Every path of the service in a JSON answer."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in ("href", "data", "next") and isinstance(inner, str):
                yield inner
            elif key == "links":
                yield from inner.values()
            else:
                yield from hrefs(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from hrefs(inner)


def crawl(face: Face) -> dict[str, Answer]:
    """Everything that is reached from the list of models by links."""
    seen: dict[str, Answer] = {}
    ahead = ["/v1/models"]
    while ahead:
        target = ahead.pop()
        if target in seen:
            continue
        assert target.startswith("/v1/models")
        assert target.isascii()
        assert target.isprintable()
        answer = seen[target] = face.get(target)
        if answer.status == 200 and answer.headers["content-type"] == "application/json":
            ahead += hrefs(answer.json)
    return seen


def test_every_link_leads_to_an_answer(demo: Face, lines: list[dict[str, Any]]) -> None:
    seen = crawl(demo)
    assert {answer.status for answer in seen.values()} == {200}
    assert len(seen) == 5 + 9 + 2 * len(lines)


def test_every_link_of_a_hostile_volume_leads_to_an_answer_or_its_problem(serve: Serve) -> None:
    second = [kv("split.no", U16, 1), kv("split.count", U16, 2)]
    face = serve(
        {
            "demo.gguf": hostile_model(),
            "sub/-/é?#%2F.gguf": base(),
            b"\xff\n.gguf": build([(b"\xfe/%2E%2E", [4, 2], 0, F8)]),
            "one-00002-of-00002.gguf": base(entries=second),
            "set-00001-of-00001.gguf": base(entries=[kv("split.count", U16, 1)]),
            "none.gguf": b"",
            "faulty.gguf": base(infos=[tensor_info("cut", [4, 3], 0, 0), tensor_info("q", [256], 156, 64)]),
            "twice.gguf": base(entries=[kv("k", U32, 1), kv("k", ARRAY, (STRING, ["x"]))]),
        }
    )
    seen = crawl(face)
    refused = {target: answer.status for target, answer in seen.items() if answer.status != 200}
    assert refused == {
        "/v1/models/none": 422,
        "/v1/models/one": 422,
        path_of("faulty", "safetensors"): 422,
        path_of("faulty", "data", "cut"): 422,
        path_of("faulty", "data", "q"): 422,
    }
    assert len(seen) > 140


@pytest.mark.case(3)
@pytest.mark.parametrize("route", ROUTES)
def test_head_has_the_headers_of_get_on_every_route(demo: Face, route: str) -> None:
    got, head = demo.get(ROUTES[route]), demo.get(ROUTES[route], "HEAD")
    assert (got.status, head.status) == (200, 200)
    assert head.headers == got.headers


@pytest.mark.parametrize("header", ["If-None-Match", "If-Match", "If-Modified-Since", "If-Unmodified-Since"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_condition_does_not_hide_that_there_is_nothing(demo: Face, method: str, header: str) -> None:
    """RFC 9110, 13.2.1: conditions are about what would be a 200 without them."""
    value = {"If-None-Match": "*", "If-Match": '"x"'}.get(header, "Fri, 31 Dec 2100 23:59:59 GMT")
    if header == "If-Unmodified-Since":
        value = "Sun, 06 Nov 1994 08:49:37 GMT"
    names = {"metadata/none": 404, "metadata/general.name?slice=0": 400, "tensors/none": 404, "data/none": 404}
    for name, status in names.items():
        assert demo.get(path_of("demo", name), method, {header: value}).status == status


def test_if_match_takes_the_etag_of_the_model_on_every_route_about_it(serve: Serve) -> None:
    face = serve({"m.gguf": base(), "n.gguf": base(data=bytes(32))})
    version = face.get("/v1/models/m").headers["x-model-etag"]
    other = face.get("/v1/models/n").headers["x-model-etag"]
    assert version != other
    about = [target for target in crawl(face) if target.startswith("/v1/models/m")]
    assert len(about) == 7
    for method in ("GET", "HEAD"):
        for target in about:
            assert face.get(target, method, {"If-Match": version}).headers["x-model-etag"] == version
            assert face.get(target, method, {"If-Match": f'"x", {version}'}).status == 200
            assert slug(face.get(target, "GET", {"If-Match": other})) == (412, "model-changed")
    part = {"If-Match": version, "Range": "bytes=4-7"}
    assert face.get(path_of("m", "data", "w"), headers=part).body == F8[4:8]
    assert face.get(path_of("m", "data", "w"), headers={**part, "If-Range": version}).status == 200
    (face.root / "m.gguf").write_bytes(base(data=bytes(32)))
    assert {face.get(target, headers={"If-Match": version}).status for target in about} == {412}


def test_the_pages_of_documentation_are_there(demo: Face) -> None:
    assert b"/openapi.json" in demo.get("/docs").body


def test_file_names_are_offered_safely(serve: Serve) -> None:
    """RFC 6266: an ASCII fallback, and the name in UTF-8 where that differs."""
    names = {
        "plain": 'attachment; filename="m.plain.bin"',
        "dense/kernel:0": 'attachment; filename="m.dense_kernel_0.bin"',
        'a"; filename=b': 'attachment; filename="m.a_; filename=b.bin"',
        "é": "attachment; filename=\"m._.bin\"; filename*=UTF-8''m.%C3%A9.bin",
        "\r\nX: y": 'attachment; filename="m.__X_ y.bin"',
        "x" * 300: f'attachment; filename="m.{"x" * 198}.bin"',
    }
    infos = [tensor_info(name, [4, 2], 0, 32 * place) for place, name in enumerate(names)]
    face = serve(base(infos=infos, data=F8 * len(names)))
    table = face.get(path_of("m", "tensors")).json["tensors"]
    assert [face.get(line["data"]).headers["content-disposition"] for line in table] == list(names.values())


def test_the_cache_header_is_a_setting(serve: Serve) -> None:
    face = serve(base(), cache_control="private, no-cache")
    assert face.get(path_of("m", "data", "w")).headers["cache-control"] == "private, no-cache"


def test_nothing_stays_open_after_answers_and_refusals(serve: Serve) -> None:
    """Every way through the routes lets its snapshot go: with one model kept open, the others are closed."""
    files: dict[str | bytes, bytes] = {f"m{place}.gguf": base() for place in range(3)}
    face = serve(files, open_models=1)

    def open_files() -> int:
        return sum(1 for fd in Path("/proc/self/fd").iterdir() if str(face.root) in str(fd.resolve()))

    queries = [
        "",
        "?rows=9",
        "?format=json",
        "?format=npy",
        "?dtype=x",
        "?rows=x",
        "?format=native&cols=0",
        "?rows=0:0",
    ]
    for place in range(3):
        for method in ("GET", "HEAD", "POST"):
            for query in queries:
                face.get(path_of(f"m{place}", "data", f"w{query}"), method)
            for verb, name in (
                ("data", "none"),
                ("tensors", "w"),
                ("tensors", "none"),
                ("metadata", None),
                ("tensors", None),
            ):
                face.get(path_of(f"m{place}", verb, name), method)
    assert open_files() == 1
    assert face.app.state.service.catalogue.figures()["open_models"] == 1
