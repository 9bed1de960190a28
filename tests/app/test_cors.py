"""CORS: off by default; on, pages of the listed origins may ask, and read answers of every kind."""

import httpx
import pytest

from tests.app.conftest import Answer, Face, Serve, slug
from tests.builder import base

ORIGIN = "https://app.example.org"
EXPOSED = {
    "accept-ranges",
    "content-disposition",
    "content-length",
    "content-range",
    "etag",
    "retry-after",
    "x-model-etag",
    "x-request-id",
    "x-tensor-dtype",
    "x-tensor-shape",
    "x-tensor-type",
}
SENT = "Authorization, X-API-Key, Range, If-Range, If-None-Match, If-Match, X-Request-ID, Content-Type"


def preflight(face: Face, origin: str = ORIGIN, method: str = "GET", headers: str = SENT) -> Answer:
    asked = {
        "Origin": origin,
        "Access-Control-Request-Method": method,
        "Access-Control-Request-Headers": headers,
    }
    return face.get("/v1/models/m/-/data/w", "OPTIONS", asked)


def allowed(answer: Answer) -> str | None:
    return answer.headers.get("access-control-allow-origin")


def test_it_is_off_by_default(serve: Serve) -> None:
    face = serve(base())
    answer = face.get("/v1/models", headers={"Origin": ORIGIN})
    assert not [name for name in answer.headers if name.startswith("access-control")]
    assert "vary" not in answer.headers
    assert preflight(face).status == 405


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
def test_a_preflight_needs_no_key(serve: Serve, method: str) -> None:
    face = serve(base(), cors_origins=f"https://other.example, {ORIGIN}", api_keys="key", allowed_hosts="elsewhere")
    answer = preflight(face, method=method)
    assert answer.status == 200
    assert allowed(answer) == ORIGIN
    assert method in answer.headers["access-control-allow-methods"].split(", ")
    taken = {name.lower() for name in answer.headers["access-control-allow-headers"].split(", ")}
    assert {name.lower() for name in SENT.split(", ")} <= taken
    assert "access-control-allow-credentials" not in answer.headers


@pytest.mark.parametrize(
    "asked",
    [{"origin": "https://evil.example"}, {"method": "DELETE"}, {"headers": "X-Anything"}, {"origin": "null"}],
    ids=str,
)
def test_a_preflight_that_is_refused_is_a_problem(serve: Serve, asked: dict[str, str]) -> None:
    answer = preflight(serve(base(), cors_origins=ORIGIN), **asked)
    assert answer.status == 400
    assert answer.json["type"] == "/problems/cross-origin-refused"
    assert (allowed(answer) is None) == ("origin" in asked)


def test_answers_of_every_kind_can_be_read_by_listed_origins_only(serve: Serve) -> None:
    face = serve(base(), cors_origins=ORIGIN, api_keys="key", body_limit=1024)
    key = {"X-API-Key": "key"}
    kinds = [
        (200, "/v1/models", key),
        (200, "/v1/models/m/-/data/w", key),
        (400, "/v1/models/m/-/data/w?rows=x", key),
        (401, "/v1/models", {}),
        (404, "/v1/models/no", key),
        (404, "/no", key),
        (413, "/v1/models", {**key, "Content-Length": "1025"}),
        (414, f"/v1/models/{'m' * (64 << 10)}", key),
    ]
    for status, target, headers in kinds:
        for origin in (ORIGIN, "https://evil.example", None):
            answer = face.get(target, headers={**headers, **({"Origin": origin} if origin else {})})
            assert answer.status == status
            assert allowed(answer) == (origin if origin == ORIGIN else None)
            assert "Origin" in answer.headers["vary"].split(", ")
            if origin:
                assert set(answer.headers["access-control-expose-headers"].lower().split(", ")) == EXPOSED


def test_any_origin_may_be_allowed(serve: Serve) -> None:
    face = serve(base(), cors_origins="*")
    assert allowed(face.get("/v1/models", headers={"Origin": "https://any.example"})) == "*"
    assert allowed(preflight(face, "https://any.example")) == "*"


def test_the_keys_and_the_origin_both_vary_an_answer(serve: Serve) -> None:
    face = serve(base(), cors_origins=ORIGIN, api_keys="key")
    answer = face.get("/v1/models/m/-/data/w", headers={"Origin": ORIGIN, "X-API-Key": "key"})
    assert {"Authorization", "X-API-Key", "Origin"} <= set(answer.headers["vary"].split(", "))


def test_a_host_that_is_refused_can_be_read_as_such(serve: Serve) -> None:
    answer = serve(base(), cors_origins=ORIGIN, allowed_hosts="elsewhere").get("/v1/models", headers={"Origin": ORIGIN})
    assert slug(answer) == (400, "bad-host")
    assert allowed(answer) == ORIGIN


def test_a_fault_of_the_service_can_be_read_as_well(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    face = serve(base(), cors_origins=ORIGIN)

    def fail() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(face.app.state.service, "_listed", fail)

    async def ask() -> None:
        transport = httpx.ASGITransport(face.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            answer = await client.get("/v1/models", headers={"Origin": ORIGIN})
        assert (answer.status_code, answer.json()["type"]) == (500, "/problems/internal-error")
        assert answer.headers["access-control-allow-origin"] == ORIGIN

    face.run(ask())
