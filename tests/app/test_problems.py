"""Errors on the wire: one shape for all of them, the framework's own included.

That every answer of 400 and above is a problem document with its members in order and a detail of one sentence or
more is checked for every request of every test, in `Face`.
"""

import asyncio
from collections.abc import Iterator

import pytest
from starlette.exceptions import HTTPException

from app import errors
from app.errors import Problem
from tests.app.conftest import Face, Serve, path_of, slug, write_files
from tests.app.test_routes import ROUTES
from tests.builder import F8, base, build, tensor_info

W = path_of("m", "data", "w")


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Face]:
    """A volume with something of every fault."""
    root = tmp_path_factory.mktemp("faulty")
    infos = [
        tensor_info("w", [4, 2], 0, 0),
        tensor_info("twice", [4], 0, 32),
        tensor_info("twice", [4], 0, 64),
        tensor_info("unknown", [256], 156, 96),
        tensor_info("partial", [31], 2, 128),
        tensor_info("overlap", [64], 0, 160),
        tensor_info("behind", [4], 0, 192),
        tensor_info("past", [4000], 0, 512),
        tensor_info("q", [32], 2, 448),
    ]
    write_files(
        root,
        {
            "m.gguf": base(infos=infos, data=F8 * 20),
            "unreadable.gguf": b"<!DOCTYPE html>",
            "split-00001-of-00002.gguf": base(),
        },
    )
    face = Face(root, json_limit=64)
    yield face
    face.close()


@pytest.mark.parametrize(
    ("target", "status", "slug_", "named"),
    [
        (f"{W}?rows=a", 400, "bad-selection", ["rows", "'a'", "integer"]),
        (f"{W}?rows=7", 400, "selection-out-of-range", ["rows", "7", "-2 to 1"]),
        (f"{W}?slice=0,9", 400, "selection-out-of-range", ["axis 1", "9", "-4 to 3"]),
        (f"{W}?cols=9", 400, "selection-out-of-range", ["cols", "9", "-4 to 3"]),
        (f"{W}?start=0", 400, "bad-parameter", ["'start'"]),
        (f"{W}?rows=0&rows=1", 400, "bad-parameter", ["'rows'", "more than once"]),
        (f"{W}?format=xml", 400, "bad-parameter", ["format='xml'", "'raw'", "'native'"]),
        ("/v1/data?model=m", 400, "bad-parameter", ["'tensor'", "missing"]),
        ("/v1/models/none", 404, "no-such-model", ["/v1/models"]),
        (path_of("m", "data", "none"), 404, "no-such-tensor", ["none", "table"]),
        (path_of("m", "tensors", "none"), 404, "no-such-tensor", ["none", "table"]),
        (path_of("m", "metadata", "none"), 404, "no-such-key", ["none", "listing"]),
        ("/nothing", 404, "no-such-resource", ["/v1/models", "/docs"]),
        (path_of("m", "data", "twice"), 409, "ambiguous-tensor", ["twice", "2 times"]),
        (f"{W}?format=json&rows=0,1,0,1,0", 413, "response-too-large", ["80", "64", "raw", "fewer rows"]),
        (f"{W}?rows={'0,' * 40_000}0", 414, "url-too-long", ["limit", "post the selection"]),
        ("/v1/models/unreadable", 422, "unreadable-model", ["HTML page", "Download"]),
        ("/v1/models/split", 422, "incomplete-split", ["split-00002-of-00002.gguf", "Add"]),
        (path_of("m", "data", "unknown"), 422, "unsupported-type", ["156"]),
        (path_of("m", "data", "partial"), 422, "partial-block-row", ["31", "Q4_0", "32", "convert"]),
        (path_of("m", "data", "overlap"), 422, "tensor-overlap", ["behind", "convert"]),
        (path_of("m", "data", "past"), 422, "tensor-past-end-of-file", ["bytes", "download"]),
        (f"{path_of('m', 'data', 'q')}?dtype=stored", 400, "bad-parameter", ["stored", "Q4_0", "format=native"]),
        (f"{W}?format=npy&dtype=bfloat16", 400, "bad-parameter", ["npy", "bfloat16", "format=raw"]),
    ],
)
def test_a_problem_names_the_thing_the_limit_and_the_remedy(
    faulty: Face, target: str, status: int, slug_: str, named: list[str]
) -> None:
    answer = faulty.get(target)
    assert slug(answer) == (status, slug_)
    assert answer.json["title"] == slug_.replace("-", " ").capitalize()
    for part in named:
        assert part in answer.json["detail"]
    head = faulty.get(target, "HEAD")
    assert (head.status, head.headers) == (answer.status, answer.headers)


def test_a_tensors_problem_is_told_in_the_table_too(faulty: Face) -> None:
    lines = faulty.get(path_of("m", "tensors")).json["tensors"]
    faults = {line["name"]: line["fault"]["type"] for line in lines if not line["readable"]}
    assert faults == {
        "unknown": "/problems/unsupported-type",
        "partial": "/problems/partial-block-row",
        "overlap": "/problems/tensor-overlap",
        "past": "/problems/tensor-past-end-of-file",
    }
    assert faulty.get("/v1/models/m").json["unreadable_tensors"] == 4
    assert faulty.get(W).body == F8


@pytest.mark.parametrize("route", [*ROUTES, "/openapi.json", "/docs"])
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"])
def test_other_methods_are_refused_and_the_right_ones_named(demo: Face, route: str, method: str) -> None:
    answer = demo.get(ROUTES.get(route, route), method)
    if method == "POST" and route.endswith("/-/data/{tensor}"):
        assert slug(answer) == (400, "bad-parameter")  # it takes POST, but not of nothing
        return
    assert slug(answer) == (405, "method-not-allowed")
    assert {"GET", "HEAD"} <= set(answer.headers["allow"].split(", "))
    assert method in answer.json["detail"]


@pytest.mark.parametrize("route", [route for route in ROUTES if route.startswith("/v1")])
def test_every_route_refuses_unknown_and_repeated_parameters(demo: Face, route: str) -> None:
    target = ROUTES[route] + ("&" if "?" in ROUTES[route] else "?")
    for query, named in (("strat=3", "'strat'"), ("x=1&x=2", "'x'"), ("=", "''"), ("%FF=1", ""), ("a%0Ab=1", "a")):
        answer = demo.get(target + query)
        assert slug(answer) == (400, "bad-parameter")
        assert named in answer.json["detail"]


@pytest.mark.parametrize("route", ROUTES)
def test_a_path_below_or_beside_a_route_is_a_problem(demo: Face, route: str) -> None:
    path = ROUTES[route].partition("?")[0]
    answers = [demo.get(path + tail) for tail in ("/", "/x", "%2F", "x", "/-/", "/-/x", "/-/x/y")]
    assert {answer.status for answer in answers} <= {404, 422}
    assert {slug(answer)[1] for answer in answers} <= {
        "no-such-resource",
        "no-such-model",
        "no-such-tensor",
        "no-such-key",
    }


@pytest.mark.parametrize("target", ["/", "", "/v1", "/v1/", "/v1/models/demo/-", "/v1/models/demo/-/data", "/v2", "//"])
def test_paths_that_lead_nowhere_are_not_redirected(demo: Face, target: str) -> None:
    answer = demo.get(target)
    assert answer.status == 404
    assert "location" not in answer.headers


@pytest.mark.case(34)
def test_error_texts_are_bounded(demo: Face) -> None:
    long = "x" * 12_000
    for target in (
        path_of("demo", "data", long),
        path_of("demo", "tensors", long),
        path_of("demo", "metadata", long),
        f"/v1/models/{long}",
        f"{path_of('demo', 'data', 'output_norm.weight')}?rows={long}",
        f"{path_of('demo', 'data', 'output_norm.weight')}?format={long}",
        f"{path_of('demo', 'data', 'output_norm.weight')}?{long}={long}",
        f"{path_of('demo', 'data', 'output_norm.weight')}?{long}=1&{long}=2",
        f"{path_of('demo', 'tensors')}?limit={long}",
        f"/v1/{long}",
        f"/v1/data?model={long}&tensor={long}",
        f"{path_of('demo', 'tensors')}?" + "&".join(f"{place}{'y' * 100}=1" for place in range(200)),
    ):
        answer = demo.get(target)
        assert answer.status in (400, 404)
        assert len(answer.body) < 1500
    assert len(demo.get("/v1/models", "M" * 5000).body) < 1500


def test_names_in_error_texts_have_no_control_characters(demo: Face) -> None:
    for name in ("%0D%0AX: y", "%00", "%E2%80%AE", "%1B[31m", "%FF"):
        for verb in ("data", "tensors", "metadata"):
            assert demo.get(path_of("demo", verb, name)).json["detail"].isprintable()


def test_an_error_that_nobody_thought_of_is_a_problem_without_its_text(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    face = serve(base())

    def fail(*_: object) -> bytes:
        raise RuntimeError("secret")

    monkeypatch.setattr("app.routes.model_view", fail)
    sent: list[dict[str, object]] = []

    async def send(message: dict[str, object]) -> None:
        sent.append(message)

    async def ask() -> None:
        scope = {"type": "http", "method": "GET", "path": "/", "raw_path": b"/v1/models/m", "query_string": b""}
        with pytest.raises(RuntimeError, match="secret"):  # for the server's log
            await face.app({**scope, "headers": [], "state": {}}, asyncio.Event().wait, send)  # type: ignore[arg-type]

    face.run(ask())
    assert sent[0]["status"] == 500
    body = b"".join(bytes(message["body"]) for message in sent[1:])  # type: ignore[call-overload]
    assert b'"/problems/internal-error"' in body
    assert b"secret" not in body


def test_an_http_error_of_another_status_has_the_same_shape(serve: Serve) -> None:
    face = serve(base(), read_ahead=1)

    @face.app.get("/broken")
    async def broken() -> None:
        raise HTTPException(400, "There was an error parsing the body.", headers={"X-Pot": "tea"})

    answer = face.get("/broken")
    assert slug(answer) == (400, "bad-request")
    assert answer.json["detail"] == "There was an error parsing the body."
    assert answer.headers["x-pot"] == "tea"


def test_every_error_of_the_tree_is_a_problem_and_the_built_in_a_person_expects() -> None:
    made = {errors.ModelChanged: ('"etag"',), errors.RangeNotSatisfiable: (3,), errors.AmbiguousTensor: ("a detail.",)}
    kinds = {
        errors.BadRequest: (400, ValueError),
        errors.NotFound: (404, LookupError),
        errors.NotAcceptable: (406, Exception),
        errors.AmbiguousTensor: (409, LookupError),
        errors.ModelChanged: (412, Exception),
        errors.RangeNotSatisfiable: (416, Exception),
        errors.TooLarge: (413, Exception),
        errors.Unreadable: (422, ValueError),
        errors.Unavailable: (503, OSError),
    }
    assert {getattr(errors, name) for name in errors.__all__} == {Problem, errors.exhausted, *kinds}
    for kind, (status, built_in) in kinds.items():
        error = kind(*made.get(kind, ("some-slug", "a detail.")))
        assert isinstance(error, Problem)
        assert isinstance(error, built_in)
        assert (error.status, str(error)) == (status, error.detail)
        assert list(error.body())[:4] == ["type", "title", "status", "detail"]
    assert errors.TooLarge("url-too-long", "x", status=414, limit=1).body() == {
        "type": "/problems/url-too-long",
        "title": "Url too long",
        "status": 414,
        "detail": "x",
        "limit": 1,
    }


def test_a_model_that_is_unreadable_is_so_on_every_route(faulty: Face) -> None:
    for verb, name in (("metadata", None), ("metadata", "k"), ("tensors", None), ("tensors", "w"), ("data", "w")):
        assert faulty.problem(path_of("unreadable", verb, name)) == (422, "unreadable-model")
        assert faulty.problem(path_of("split", verb, name)) == (422, "incomplete-split")
        assert faulty.problem(path_of("none", verb, name)) == (404, "no-such-model")


def test_a_good_request_is_no_problem(serve: Serve) -> None:
    """The other side of it all: a body of JSON is no problem document."""
    answer = serve(build([("w", [4, 2], 0, F8)])).get("/v1/models/m")
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
