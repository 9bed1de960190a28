"""Names in URLs: every name comes back from the path that its href gives."""

import asyncio
from urllib.parse import parse_qsl, quote

import pytest
from fastapi import FastAPI
from hypothesis import example, given
from hypothesis import strategies as st
from starlette.types import Message, Scope

from app.names import NameSegments, decode_segment, href, model_href, name_filter, query_pairs, text

PREFIX = "/v1/models/"
parts = st.binary(min_size=1, max_size=12).filter(lambda part: b"/" not in part and part not in (b".", b".."))
model_ids = st.lists(
    st.one_of(parts, st.sampled_from([b"-", b"--", b"=", b"%2D", b"%2F", b"a b"])), min_size=1, max_size=4
)
names = st.one_of(
    st.binary(max_size=24),
    st.lists(
        st.sampled_from([b"-", b"/", b"//", b"/-/", b".", b"..", b"%", b"%2F", b"=", b"a", b"?", b"#", b"\xff"])
    ).map(b"".join),
)

seen: list[tuple[str, ...]] = []
inner = FastAPI(openapi_url=None)


@inner.get(PREFIX + "{model}")
async def one_model(model: str) -> None:
    seen.append(("model", model))


@inner.get(PREFIX + "{model}/-/tensors")
async def listing(model: str) -> None:
    seen.append(("tensors", model))


@inner.get(PREFIX + "{model}/-/data/{tensor}")
async def data(model: str, tensor: str) -> None:
    seen.append(("data", model, tensor))


application = NameSegments(inner)


def asked(path: str, *, raw: bool = True) -> tuple[int, list[bytes]]:
    """The status of a request, and the names that its route was given; the route's own name comes first."""
    scope: Scope = {
        "type": "http",
        "method": "GET",
        "path": "/gone wrong",
        "query_string": b"",
        "headers": [],
        "root_path": "",
        "scheme": "http",
        "server": ("test", 80),
    }
    if raw:
        scope["raw_path"] = path.encode("ascii")
    else:
        scope["path"] = path
    status: list[int] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            status.append(message["status"])

    seen.clear()
    asyncio.run(application(scope, receive, send))
    if not seen:
        return status[0], []
    route, *segments = seen[-1]
    return status[0], [route.encode(), *map(decode_segment, segments)]


@given(model_ids.map(b"/".join), names)
@example(b"m", b"")
@example(b"m", b"/")
@example(b"m", b"//x")
@example(b"m", b".")
@example(b"m", b"..")
@example(b"m", b"../../etc/passwd")
@example(b"m", b"./a//b/..")
@example(b"a/-/b", b"x/rows")
@example(b"-/-", b"-/-/data/x")
@example(b"m", b"a%2Fb")
@example(b"m", b"dense/kernel:0")
@example(b"m", b"w\xff\x00\r\n")
@example(b"m", "\N{RIGHT-TO-LEFT OVERRIDE}w".encode())
def test_an_href_leads_to_its_name(model_id: bytes, name: bytes) -> None:
    assert asked(href(model_id, "data", name)) == (200, [b"data", model_id, name])
    assert asked(href(model_id, "tensors")) == (200, [b"tensors", model_id])
    assert asked(model_href(model_id)) == (200, [b"model", model_id])


@given(st.binary(max_size=40) | st.text("ab=&%+2;#é", max_size=20).map(str.encode))
@example(b"rows=7")
@example(b"a=1&&=2&b&c=d=e&a=")
@example(b"\xff=\xfe")
def test_a_query_is_what_the_standard_library_makes_of_it(query: bytes) -> None:
    escaped = query.decode("utf-8", "surrogateescape")
    assert query_pairs(query) == parse_qsl(escaped, keep_blank_values=True, errors="surrogateescape")


@given(model_ids.map(b"/".join), names)
def test_an_href_is_a_plain_path_that_clients_leave_alone(model_id: bytes, name: bytes) -> None:
    path = href(model_id, "data", name)
    assert path.isascii()
    assert path.isprintable()
    assert not set(path) & set(' ?#"<>\\^`{|}')
    segments = path.split("/")[1:]
    assert not {".", ".."} & set(segments)
    assert "" not in segments[:-1]


@pytest.mark.case(4)
@pytest.mark.parametrize("path", ["dense%2Fkernel:0", "dense/kernel:0", "dense%2fkernel%3A0", "d%65nse/kernel:0"])
def test_a_slash_in_a_name_may_be_encoded_or_not(path: str) -> None:
    assert asked(f"{PREFIX}m/-/data/{path}") == (200, [b"data", b"m", b"dense/kernel:0"])
    assert asked(f"{PREFIX}folder%2Fm/-/data/{path}") == (200, [b"data", b"folder/m", b"dense/kernel:0"])
    assert asked(f"{PREFIX}folder/m/-/data/{path}") == (200, [b"data", b"folder/m", b"dense/kernel:0"])


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("a%252Fb", b"a%2Fb"),
        ("x/rows", b"x/rows"),
        ("", b""),
        ("/", b"/"),
        ("/a", b"/a"),
        ("a/", b"a/"),
        ("a//b", b"a//b"),
        ("%2E%2E", b".."),
        ("..", b".."),
        ("%00", b"\0"),
        ("%ff%FE", b"\xff\xfe"),
        ("%zz%", b"%zz%"),
        ("a+b", b"a+b"),
        ("=", b"="),
        ("%3D", b"="),
        ("a/-/data/b", b"a/-/data/b"),
        ("name?rows=1", b"name"),
    ],
)
def test_a_name_is_the_rest_of_the_path(path: str, name: bytes) -> None:
    assert asked(f"{PREFIX}m/-/data/{path}") == (200, [b"data", b"m", name])


@pytest.mark.parametrize(
    ("path", "model_id"),
    [("", b""), ("-", b"-"), ("a//b", b"a//b"), ("../x", b"../x"), ("%2e%2e/x", b"../x"), ("/m", b"/m")],
)
def test_a_model_id_is_what_comes_before_the_verb(path: str, model_id: bytes) -> None:
    assert asked(PREFIX + path) == (200, [b"model", model_id])
    assert asked(f"{PREFIX}{path}/-/tensors") == (200, [b"tensors", model_id])


def test_the_first_verb_ends_a_model_id() -> None:
    assert asked(PREFIX + "a/-") == (200, [b"model", b"a/-"])
    assert asked(PREFIX + "a/-/tensors") == (200, [b"tensors", b"a"])
    assert asked(PREFIX + "a/%2D/-/tensors") == (200, [b"tensors", b"a/-"])
    assert asked(PREFIX + "a/-/data/b/-/tensors") == (200, [b"data", b"a", b"b/-/tensors"])


@pytest.mark.parametrize("path", ["m/-/nothing", "m/-/", "m/-/data", "m/-/tensors%2Fx", "m/-/d%61ta/x", "m/-//data/x"])
def test_what_is_no_verb_is_not_found(path: str) -> None:
    assert asked(PREFIX + path) == (404, [])


def test_a_server_without_raw_paths_is_served_as_well() -> None:
    assert asked("/v1/models/m/-/data/a é", raw=False) == (200, [b"data", b"m", "a é".encode()])


def test_other_paths_pass_untouched() -> None:
    scope: Scope = {"type": "http", "path": "/healthz", "raw_path": b"/healthz"}
    passed: list[Scope] = []

    async def app(scope: Scope, receive: object, send: object) -> None:
        passed.append(scope)

    async def receive() -> Message:
        raise AssertionError

    async def send(_: Message) -> None:
        raise AssertionError

    middleware = NameSegments(app)
    for kind in ({**scope}, {"type": "lifespan"}, {"type": "websocket", "path": PREFIX + "a/b"}):
        asyncio.run(middleware(kind, receive, send))
        assert passed.pop() == kind


@given(st.lists(st.tuples(st.binary(max_size=8), st.binary(max_size=8)).filter(lambda pair: pair[0] != b"")))
def test_query_values_keep_their_bytes(pairs: list[tuple[bytes, bytes]]) -> None:
    encoded = "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in pairs)
    found = query_pairs(encoded.encode())
    assert [tuple(part.encode("utf-8", "surrogateescape") for part in pair) for pair in found] == pairs


def test_a_query_may_have_bytes_that_are_not_encoded() -> None:
    assert query_pairs("tensor=é&a=1+2&empty=&alone".encode()) == [
        ("tensor", "é"),
        ("a", "1 2"),
        ("empty", ""),
        ("alone", ""),
    ]
    ((_, value),) = query_pairs(b"tensor=w\xff%fe")
    assert value.encode("utf-8", "surrogateescape") == b"w\xff\xfe"


def test_text_shows_any_name() -> None:
    assert text("gewicht.ß".encode()) == "gewicht.ß"
    assert text(b"w\xff") == "w\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize("glob", ["*a" * 3000 + "b", "*" * 5000 + "b", "[a-z]*" * 2000 + "b", "?*" * 3000 + "b"])
def test_a_glob_of_many_stars_ends(glob: str) -> None:
    """Matching takes no longer than the glob times the name; trying again and again would take for ever."""
    is_wanted = name_filter(glob)
    assert not is_wanted(b"a" * 50_000)
    assert is_wanted(b"a" * 50_000 + b"b")
