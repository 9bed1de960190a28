"""The description of the API says what the service does: every answer here is held against it."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from app.errors import BadRequest
from app.parameters import WeightsQuery
from app.schemas import SCHEMAS
from app.selection import parse_slice, select_nd, select_rows
from app.windows import WINDOW_WEIGHTS
from decoders import GGMLType
from tests.app.conftest import Answer, Face, Serve, path_of, write_files
from tests.app.test_cases_names import HOSTILE, hostile_model
from tests.app.test_routes import ROUTES
from tests.builder import ARRAY, BOOL, F8, F32, F64, STRING, U8, base, build, floats, kv, tensor_info

W = path_of("m", "data", "w")
KEY = {"X-API-Key": "k1"}


def closed(schema: Any) -> Any:
    """The schema, with no more members than it names: what the service answers is all described."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    whole = {name: closed(one) for name, one in schema.items()}
    return {"additionalProperties": False, **whole} if "properties" in schema and "type" in schema else whole


class Description:
    """The description that a service gives of itself, and the check of answers against it."""

    def __init__(self, face: Face, headers: dict[str, str] | None = None) -> None:
        self.document: dict[str, Any] = face.get("/openapi.json", headers=headers).json
        self._components = {"schemas": closed(self.document["components"]["schemas"])}

    def operations(self) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """Each path, method and operation."""
        for path, item in self.document["paths"].items():
            for method, operation in item.items():
                yield path, method, operation

    def resolved(self, part: dict[str, Any]) -> dict[str, Any]:
        """What a reference is to, or the part itself."""
        if "$ref" not in part:
            return part
        found: Any = self.document
        for name in part["$ref"].removeprefix("#/").split("/"):
            found = found[name]
        assert isinstance(found, dict)
        return found

    def check(self, path: str, method: str, answer: Answer) -> None:
        """Hold an answer against what is written about its status, its headers and its body."""
        described = self.document["paths"][path][method.lower()]["responses"][str(answer.status)]
        for name, part in described["headers"].items():
            header = self.resolved(part)
            if name.lower() in answer.headers:
                assert re.search(header["schema"].get("pattern", ""), answer.headers[name.lower()]), name
            else:
                assert not header["required"], (path, answer.status, name)
        if method == "HEAD":
            assert "content" not in described
            return
        media_type = answer.headers.get("content-type", "").partition(";")[0]
        assert media_type in described.get("content", [""]), (path, answer.status, media_type)
        if media_type.endswith("json"):
            schema = described["content"][media_type]["schema"]
            Draft202012Validator({**schema, "components": self._components}).validate(answer.json)
        elif media_type:
            assert described["content"][media_type]["schema"]["type"] == "string"


@pytest.fixture(scope="module")
def face(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Face]:
    """A service on models of every kind: sound, odd, faulty, unreadable, with hostile names."""
    infos = [
        tensor_info("w", [4, 2], GGMLType.F32, 0),
        tensor_info("twice", [4], GGMLType.F32, 32),
        tensor_info("twice", [4], GGMLType.F32, 64),
        tensor_info("unknown", [4], 156, 96),
        tensor_info("partial", [31], GGMLType.Q4_0, 128),
        tensor_info("past", [400], GGMLType.F32, 160),
        tensor_info("scalar", [], GGMLType.F32, 96),
    ]
    keys = [
        kv("name", STRING, "m"),
        kv("bytes", STRING, b"\xff"),
        kv("long", STRING, "x" * 100_000),
        kv("strings", ARRAY, (STRING, ["a", b"\xff"])),
        kv("inner", ARRAY, (ARRAY, [(U8, [1, 2]), (U8, [])])),
        kv("bools", ARRAY, (BOOL, [True, False])),
        kv("odd", F32, float("nan")),
        kv("odd", F64, 0.1),
        kv("flag", BOOL, True),
    ]
    files: dict[str | bytes, bytes] = {
        "m.gguf": base(infos=infos, entries=keys, data=F8 + bytes(200)),
        "hostile.gguf": hostile_model(),
        b"\xff.gguf": build([("w", [1], GGMLType.F32, floats(1))], []),
        "broken.gguf": b"GGUF",
        "split-00001-of-00002.gguf": base(),
    }
    root = tmp_path_factory.mktemp("described")
    write_files(root, files)
    face = Face(root, json_limit=64, url_limit=1024, body_limit=256)
    yield face
    face.close()


@pytest.fixture(scope="module")
def description(face: Face) -> Description:
    return Description(face)


def test_it_has_every_route_with_its_methods_and_parameters(description: Description) -> None:
    document = description.document
    assert set(document["paths"]) == {*ROUTES, "/metrics"}
    queries = {
        "/v1/models/{model}/-/metadata": ["prefix", "items"],
        "/v1/models/{model}/-/metadata/{key}": ["slice"],
        "/v1/models/{model}/-/tensors": ["name", "type", "limit", "cursor"],
        "/v1/models/{model}/-/data/{tensor}": ["rows", "cols", "slice", "format", "dtype"],
        "/v1/models/{model}/-/safetensors": ["name", "exclude", "dtype"],
        "/v1/data": ["rows", "cols", "slice", "format", "dtype", "model", "tensor"],
    }
    for path, item in document["paths"].items():
        posted = ["post"] if path.endswith("/-/data/{tensor}") else []
        assert sorted(item) == sorted(["get", "head", *posted])
        for method in ("get", "head"):
            given_ = [description.resolved(parameter) for parameter in item[method]["parameters"]]
            named = {kind: [one["name"] for one in given_ if one["in"] == kind] for kind in ("path", "query")}
            assert named == {"path": re.findall(r"{(\w+)}", path), "query": queries.get(path, [])}


def test_it_is_complete(description: Description) -> None:
    document = description.document
    assert document["info"]["title"] == "tensortap"
    assert "license" not in document["info"]
    assert "HTTPValidationError" not in str(document)
    tags = {tag["name"] for tag in document["tags"]}
    names = [operation["operationId"] for _, _, operation in description.operations()]
    assert len(set(names)) == len(names)
    for path, method, operation in description.operations():
        assert operation["summary"]
        assert operation["description"]
        assert {*operation["tags"]} <= tags
        for part in operation["parameters"]:
            parameter = description.resolved(part)
            assert parameter["description"]
            assert parameter.get("example") or parameter["schema"]["examples"], (path, parameter["name"])
            assert "null" not in str(parameter["schema"])
            Draft202012Validator.check_schema(parameter["schema"])
        for status, answer in operation["responses"].items():
            assert answer["description"]
            assert "X-Request-ID" in answer["headers"]
            if int(status) >= 400:
                content = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
                assert answer.get("content", {}) == ({} if method == "head" else content)


def test_its_references_lead_to_parts_and_every_part_is_used(serve: Serve) -> None:
    document = Description(serve(base(), api_keys="k1"), KEY).document
    del document["components"]["securitySchemes"]
    used = {tuple(found.split("/")) for found in re.findall(r"'\$ref': '#/components/([^']+)'", str(document))}
    parts = {(kind, name) for kind, group in document["components"].items() for name in group}
    assert used == parts
    for schema in SCHEMAS.values():
        Draft202012Validator.check_schema(schema)


def test_limits_and_defaults_of_numbers_are_written(description: Description) -> None:
    parameters = description.document["paths"]["/v1/models/{model}/-/tensors"]["get"]["parameters"]
    limit = next(one["schema"] for one in parameters if one.get("name") == "limit")
    assert (limit["minimum"], limit["maximum"], limit["default"]) == (1, 10_000, 1_000)


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("route", [*ROUTES, "/metrics"])
def test_the_answers_of_every_route_are_as_described(demo: Face, route: str, method: str) -> None:
    answer = demo.get(ROUTES.get(route, route), method)
    assert answer.status == 200
    Description(demo).check(route, method, answer)


def test_the_examples_of_every_route_are_answered(demo: Face) -> None:
    described = Description(demo)
    for path, _, operation in described.operations():
        examples = {
            one["name"]: one["schema"]["examples"]
            for part in operation["parameters"]
            if (one := described.resolved(part))["in"] != "header"
        }
        names = {name: values[0] for name, values in examples.items() if f"{{{name}}}" in path or path == "/v1/data"}
        target = path.format(**names)
        needed = f"model={names['model']}&tensor={names['tensor']}&" if path == "/v1/data" else ""
        for name, values in examples.items():
            for value in values if name not in ("model", "tensor", "key") else ():
                answer = demo.get(f"{target}?{needed}{name}={value}")
                assert answer.status == 200, (target, name, value)
                described.check(path, "GET", answer)


@pytest.mark.parametrize("accept", ["application/openmetrics-text; version=1.0.0", "text/plain"])
def test_both_forms_of_metrics_are_described(face: Face, description: Description, accept: str) -> None:
    answer = face.get("/metrics", headers={"Accept": accept})
    assert answer.headers["content-type"].startswith(accept.partition(";")[0])
    description.check("/metrics", "GET", answer)


def test_models_of_every_kind_are_as_described(face: Face, description: Description) -> None:
    listing = face.get("/v1/models")
    description.check("/v1/models", "GET", listing)
    assert {line["readable"] for line in listing.json["models"]} == {True, False}
    assert any("id_base64" in line for line in listing.json["models"])
    for line in listing.json["models"]:
        answer = face.get(line["href"])
        assert answer.status == (200 if line["readable"] else 422)
        description.check("/v1/models/{model}", "GET", answer)


@pytest.mark.parametrize("model", ["m", "hostile", "%FF"])
def test_keys_and_tensors_of_every_kind_are_as_described(face: Face, description: Description, model: str) -> None:
    keys = face.get(path_of(model, "metadata?items=1"))
    description.check("/v1/models/{model}/-/metadata", "GET", keys)
    for line in keys.json["metadata"]:
        description.check("/v1/models/{model}/-/metadata/{key}", "GET", face.get(line["href"]))
    tensors = face.get(path_of(model, "tensors"))
    description.check("/v1/models/{model}/-/tensors", "GET", tensors)
    description.check("/v1/models/{model}/-/tensors", "GET", face.get(path_of(model, "tensors?limit=1")))
    for line in tensors.json["tensors"]:
        description.check("/v1/models/{model}/-/tensors/{tensor}", "GET", face.get(line["href"]))
        description.check("/v1/models/{model}/-/data/{tensor}", "GET", face.get(line["data"]))
    if model == "hostile":
        assert len(tensors.json["tensors"]) == len(HOSTILE)


@pytest.mark.parametrize("form", ["raw", "npy", "json", "native"])
def test_every_form_of_weights_is_as_described(face: Face, description: Description, form: str) -> None:
    for tensor in ("w", "scalar"):
        for query in ("", "&dtype=stored", "&dtype=float16", "&rows=0"):
            for method in ("GET", "HEAD"):
                answer = face.get(f"{path_of('m', 'data', tensor)}?format={form}{query}", method)
                description.check("/v1/models/{model}/-/data/{tensor}", method, answer)
    for values in ({"rows": [1], "format": form}, {"rows": [9], "format": form}):
        description.check("/v1/models/{model}/-/data/{tensor}", "POST", face.post(W, values))


STATUSES: list[tuple[int, str, str, dict[str, str]]] = [
    (200, "/v1/models/{model}/-/safetensors", path_of("m", "safetensors?name=w"), {}),
    (206, "/v1/models/{model}/-/safetensors", path_of("m", "safetensors?name=w"), {"Range": "bytes=0-7"}),
    (206, "/v1/models/{model}/-/safetensors", path_of("m", "safetensors?name=w"), {"Range": "bytes=0-7,9-10"}),
    (206, "/v1/models/{model}/-/data/{tensor}", W, {"Range": "bytes=0-7"}),
    (206, "/v1/models/{model}/-/data/{tensor}", W, {"Range": "bytes=0-7,9-10"}),
    (206, "/v1/data", "/v1/data?model=m&tensor=w&format=npy", {"Range": "bytes=0-7"}),
    (304, "/v1/models/{model}/-/data/{tensor}", W, {"If-None-Match": "*"}),
    (304, "/v1/models/{model}", "/v1/models/m", {"If-None-Match": "*"}),
    (400, "/healthz", "/healthz?a=1&a=2", {}),
    (400, "/v1/models/{model}/-/data/{tensor}", f"{W}?rows=x", {}),
    (404, "/v1/models/{model}", "/v1/models/none", {}),
    (404, "/v1/models/{model}/-/metadata/{key}", path_of("m", "metadata", "none"), {}),
    (404, "/v1/models/{model}/-/tensors/{tensor}", path_of("m", "tensors", "none"), {}),
    (406, "/v1/models/{model}/-/data/{tensor}", W, {"Accept": "text/html"}),
    (409, "/v1/models/{model}/-/data/{tensor}", path_of("m", "data", "twice"), {}),
    (409, "/v1/models/{model}/-/safetensors", path_of("m", "safetensors?name=twice"), {}),
    (412, "/v1/models/{model}/-/data/{tensor}", W, {"If-Match": '"another"'}),
    (412, "/v1/models/{model}/-/tensors", path_of("m", "tensors"), {"If-Match": '"another"'}),
    (413, "/v1/models/{model}/-/data/{tensor}", f"{W}?format=json&rows=0,0,0,0,0", {}),
    (413, "/v1/models", "/v1/models", {"Content-Length": "257"}),
    (414, "/readyz", "/readyz?" + "x" * 1024, {}),
    (416, "/v1/models/{model}/-/data/{tensor}", W, {"Range": "bytes=999-"}),
    (422, "/v1/models/{model}/-/metadata", path_of("broken", "metadata"), {}),
    (422, "/v1/models/{model}/-/tensors", path_of("split", "tensors"), {}),
    (422, "/v1/models/{model}/-/data/{tensor}", path_of("m", "data", "unknown"), {}),
    (422, "/v1/models/{model}/-/data/{tensor}", path_of("m", "data", "partial"), {}),
    (422, "/v1/models/{model}/-/safetensors", path_of("m", "safetensors?name=past"), {}),
]


@pytest.mark.parametrize(("status", "path", "target", "headers"), STATUSES)
def test_every_status_is_described(
    face: Face, description: Description, status: int, path: str, target: str, headers: dict[str, str]
) -> None:
    answer = face.get(target, headers=headers)
    assert answer.status == status
    description.check(path, "GET", answer)
    head = face.get(target, "HEAD", headers)
    assert head.status == (200 if status in (206, 416) else status)
    description.check(path, "HEAD", head)


def test_a_volume_that_is_gone_is_described(tmp_path: Path) -> None:
    gone = Face(tmp_path / "none")
    try:
        for target in ("/readyz", "/v1/models"):
            answer = gone.get(target)
            assert answer.status == 503
            Description(gone).check(target, "GET", answer)
    finally:
        gone.close()


@pytest.mark.parametrize("metrics_open", [False, True])
def test_with_keys_on_it_says_how_to_give_one(serve: Serve, metrics_open: bool) -> None:
    face = serve(base(), api_keys="k1", metrics_open=metrics_open)
    described = Description(face, KEY)
    schemes = described.document["components"].pop("securitySchemes")
    assert [scheme.get("scheme", scheme.get("name")) for scheme in schemes.values()] == ["bearer", "X-API-Key"]
    assert described.document["security"] == [{name: []} for name in schemes]
    probes = {"/healthz", "/readyz"} | ({"/metrics"} if metrics_open else set())
    for path, method, operation in described.operations():
        assert (operation.get("security") == []) == (path in probes)
        assert ("401" in operation["responses"]) == (path not in probes)
        refused = face.get(ROUTES.get(path, path).replace("demo", "m"), method.upper())
        assert refused.status == (200 if path in probes else 401)
        described.check(path, method.upper(), refused)


def test_without_keys_it_asks_for_none(description: Description) -> None:
    assert "securitySchemes" not in description.document["components"]
    assert "security" not in description.document
    assert not any("401" in operation["responses"] for _, _, operation in description.operations())


def test_what_it_says_is_made_once(face: Face) -> None:
    assert face.app.openapi() is face.app.openapi()


def test_a_refused_method_is_told_those_that_are_described(demo: Face) -> None:
    for path, item in Description(demo).document["paths"].items():
        allow = demo.get(ROUTES.get(path, path), "DELETE").headers["allow"]
        assert allow.lower().split(", ") == sorted(item), path


PATTERNS = {
    name: re.compile(WeightsQuery.model_json_schema()["properties"][name]["anyOf"][0]["pattern"].strip("^$"))
    for name in ("rows", "cols", "slice")
}


@given(st.sampled_from(["rows", "cols", "slice"]), st.text("0127-:,. x", max_size=8))
def test_the_patterns_of_selections_are_what_is_parsed(name: str, text: str) -> None:
    try:
        if name == "rows":
            select_rows(WINDOW_WEIGHTS, 4, text, None)
        elif name == "cols":
            parse_slice(name, text)
        else:
            select_nd((WINDOW_WEIGHTS,) * 20, text)
        refused = False
    except BadRequest as error:
        # That a number is outside, that a step is 0, or that there are two "...", is no matter of a pattern.
        beyond = "step cannot be 0" in error.detail or "at most one '...'" in error.detail
        refused = error.slug == "bad-selection" and not beyond
        if beyond:
            return
    assert (PATTERNS[name].fullmatch(text) is None) == refused
