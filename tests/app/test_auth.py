"""API keys: who is let in, what a key may see, and that neither answers nor logs tell more than that."""

import errno
import fnmatch
import logging
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app import auth
from app.auth import Grant, Keys, KeysError
from app.settings import Settings
from tests.app.conftest import Answer, Face, Serve, slug
from tests.builder import base
from tests.server import Server
from tests.waiting import eventually

ALL, SOME, NONE = "full-Key_1", "some.Key~2", "none+Key/3"
LINES = f"# the team\n{ALL}\n\n  {SOME}  public/*\tdemo  \n{NONE} nothing\n"

# Every route that names a model, and the one that lists them.
ROUTES = [
    "/v1/models/{}",
    "/v1/models/{}/-/metadata",
    "/v1/models/{}/-/metadata/general.architecture",
    "/v1/models/{}/-/tensors",
    "/v1/models/{}/-/tensors/w",
    "/v1/models/{}/-/data/w",
    "/v1/models/{}/-/data/w?format=json&rows=0",
    "/v1/data?model={}&tensor=w",
]
# In each pair, what is there and hidden, and what is not there.
HIDDEN = [
    ("secret", "nothere"),
    ("secret.gguf", "nothere.gguf"),
    ("other%2Fdeep", "other%2Fnone"),
    ("broken", "nothere"),
    ("broken.gguf", "nothere.gguf"),
    ("set", "sets"),
    ("set-00001-of-00002.gguf", "set-00001-of-00003.gguf"),
]


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.fixture
def volume() -> dict[str | bytes, bytes]:
    part = base()
    return {
        "demo.gguf": base(),
        "secret.gguf": base(),
        "public/a/b.gguf": base(),
        "other/deep.gguf": base(),
        "broken.gguf": b"GGUF",
        "set-00001-of-00002.gguf": part,
    }


@pytest.fixture
def face(serve: Serve, volume: dict[str | bytes, bytes]) -> Face:
    return serve(volume, api_keys=LINES)


def test_without_a_key_everything_but_the_probes_is_401(face: Face) -> None:
    targets = ["/v1/models", "/metrics", "/docs", "/openapi.json", "/nothing", *(one.format("demo") for one in ROUTES)]
    for target in targets:
        for method in ("GET", "HEAD", "POST", "OPTIONS"):
            answer = face.get(target, method)
            assert answer.status == 401
            assert answer.headers["www-authenticate"] == "Bearer"
        assert face.problem(target) == (401, "unauthorized")
    for probe in ("/healthz", "/readyz"):
        assert face.get(probe).status == face.get(probe, "HEAD").status == 200


@pytest.mark.parametrize(
    "headers",
    [
        bearer("wrong"),
        bearer(ALL + "x"),
        bearer(ALL[:-1]),
        bearer(ALL.lower()),
        bearer(""),
        bearer("#"),
        bearer("public/*"),
        {"Authorization": ALL},
        {"Authorization": f"Basic {ALL}"},
        {"Authorization": f"Bearer {ALL} {ALL}"},
        {"X-API-Key": ""},
        {"X-API-Key": f"Bearer {ALL}"},
        {"X-API-Key": "caf\xe9"},
    ],
    ids=str,
)
def test_what_is_no_key_is_401_and_not_repeated(face: Face, headers: dict[str, str]) -> None:
    answer = face.get("/v1/models", headers=headers)
    assert slug(answer) == (401, "unauthorized")
    assert ALL.encode() not in answer.body


@pytest.mark.parametrize(
    "headers",
    [
        bearer(ALL),
        {"Authorization": f"bEARER   {ALL}  "},
        {"X-API-Key": ALL},
        {"X-API-Key": f" {ALL} "},
        {"Authorization": "Basic cHJveHk6cHJveHk=", "X-API-Key": ALL},
    ],
    ids=str,
)
def test_a_key_is_taken_from_either_header(face: Face, headers: dict[str, str]) -> None:
    assert face.get("/v1/models", headers=headers).json["count"] == 6


@pytest.mark.parametrize("route", ROUTES)
def test_a_hidden_model_is_answered_exactly_as_a_missing_one(face: Face, route: str) -> None:
    for hidden, missing in HIDDEN:
        for method in ("GET", "HEAD"):
            for key in (SOME, NONE):
                seen = face.get(route.format(hidden), method, bearer(key))
                assert seen == face.get(route.format(missing), method, bearer(key))
                assert seen.status == 404
        assert slug(face.get(route.format(hidden), headers=bearer(SOME))) == (404, "no-such-model")


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("model", ["demo", "demo.gguf", "public%2Fa%2Fb", "public%2Fa%2Fb.gguf"])
def test_a_model_that_a_key_may_see_is_answered_as_to_everybody(face: Face, route: str, model: str) -> None:
    answer = face.get(route.format(model), headers=bearer(SOME))
    assert answer.status == 200
    assert answer == face.get(route.format(model), headers=bearer(ALL))


def test_faults_of_a_model_are_told_to_those_who_may_see_it(face: Face) -> None:
    assert slug(face.get("/v1/models/broken", headers=bearer(ALL))) == (422, "unreadable-model")
    assert slug(face.get("/v1/models/broken.gguf", headers=bearer(ALL))) == (422, "unreadable-model")
    assert slug(face.get("/v1/models/set", headers=bearer(ALL))) == (422, "incomplete-split")


def test_a_file_name_that_a_glob_matches_does_not_open_a_model_whose_id_it_does_not(serve: Serve) -> None:
    files: dict[str | bytes, bytes] = {"x.gguf": base(), "y.gguf": b"GGUF", "z.gguf.gguf": base()}
    face = serve(files, api_keys="key *.gguf; exact z")
    hidden = [face.get(f"/v1/models/{name}", headers=bearer("key")) for name in ("x.gguf", "y.gguf", "nothing.gguf")]
    assert hidden[0] == hidden[1] == hidden[2]
    assert slug(hidden[0]) == (404, "no-such-model")
    assert face.get("/v1/models/z.gguf", headers=bearer("key")).json["id"] == "z.gguf"
    # An id that is exact wins over a file name, so this name does not mean the model of id z.
    assert face.get("/v1/models/z.gguf", headers=bearer("exact")).status == 404


def test_a_hidden_model_is_not_even_looked_for(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    """How long an answer takes tells nothing then."""
    looked_for: list[bytes] = []
    monkeypatch.setattr(face.app.state.service.catalogue.volume, "find", looked_for.append)
    for hidden, _ in HIDDEN:
        assert slug(face.get(f"/v1/models/{hidden}", headers=bearer(SOME))) == (404, "no-such-model")
    assert looked_for == []


def test_the_listing_has_what_the_key_may_see(face: Face) -> None:
    def listed(key: str) -> list[str]:
        answer = face.get("/v1/models", headers=bearer(key)).json
        assert answer["count"] == len(answer["models"])
        return [one["id"] for one in answer["models"]]

    assert sorted(listed(SOME)) == ["demo", "public/a/b"]
    assert listed(NONE) == []
    assert {"secret", "broken", "set", "other/deep"} < set(listed(ALL))


def test_answers_are_private_and_vary_by_key_only_where_keys_are_asked_for(
    serve: Serve, volume: dict[str | bytes, bytes]
) -> None:
    def rules(answer: Answer) -> tuple[str | None, str | None]:
        return answer.headers.get("cache-control"), answer.headers.get("vary")

    data = "/v1/models/demo/-/data/w"
    vary = "Authorization, X-API-Key"
    face = serve(volume, api_keys=ALL)
    assert rules(face.get(data, headers=bearer(ALL))) == ("private, max-age=0, must-revalidate", f"Accept, {vary}")
    assert rules(face.get(f"{data}?format=npy", headers=bearer(ALL)))[1] == vary
    assert rules(face.get("/v1/models", headers=bearer(ALL))) == ("private", vary)
    assert rules(face.get("/v1/models/no", headers=bearer(ALL))) == ("no-store", vary)
    assert rules(face.get("/healthz"))[1] is None
    face = serve(volume, api_keys=ALL, cache_control="Public, max-age=60")
    assert rules(face.get(data, headers=bearer(ALL)))[0] == "private, max-age=60"
    face = serve(volume)
    assert rules(face.get(data)) == ("public, max-age=0, must-revalidate", "Accept")


def test_globs_match_as_fnmatch_does_and_across_slashes() -> None:
    grant = Grant.of([b"public/*", b"a?[xy]"])
    for allowed in (b"public/", b"public/a", b"public/a/b", b"a-x", b"a/y", b"public/\n\xff"):
        assert grant.allows(allowed)
    for other in (b"public", b"xpublic/a", b"Public/a", b"a-z", b"a-xx", b"a-x\n", b""):
        assert not grant.allows(other)


@given(st.binary(max_size=6), st.binary(max_size=6))
def test_any_glob_of_bytes_matches_as_fnmatch_does(glob: bytes, model_id: bytes) -> None:
    assert Grant.of([glob]).allows(model_id) == fnmatch.fnmatchcase(model_id, glob)


@given(
    st.dictionaries(
        st.text("!$+~aZ0", min_size=1, max_size=5).map(str.encode),
        st.lists(st.sampled_from([b"a", b"b*", b"[cd]"]), max_size=3),
        min_size=1,
        max_size=6,
    )
)
def test_every_key_of_a_text_is_matched_and_no_other(grants: dict[bytes, list[bytes]]) -> None:
    text = b";".join(b" ".join([key, *globs]) for key, globs in grants.items())
    keys = Keys(text)
    for key, globs in grants.items():
        grant = keys.match(key)
        assert grant is not None
        for model_id in (b"a", b"bbb", b"c", b"e"):
            wanted = not globs or any(fnmatch.fnmatchcase(model_id, glob) for glob in globs)
            assert grant.allows(model_id) == wanted
        if key + b"x" not in grants:
            assert keys.match(key + b"x") is None
    assert keys.match(b"") is None


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        (b"", None, "no key"),
        (b" ; # only a comment", None, "no key"),
        (b"good\nsch\xc3\xb6n", 2, "visible ASCII"),
        (b"good; ba\0d a", 2, "visible ASCII"),
        (b"\xef\xbb\xbfgood", 1, "visible ASCII"),
        (b"same a\nother\nsame b", 3, "twice"),
    ],
)
def test_a_bad_line_is_named_and_its_key_is_not(text: bytes, line: int | None, why: str) -> None:
    with pytest.raises(KeysError, match=why) as refused:
        Keys(text)
    assert (refused.value.place, refused.value.line) == ("TENSORTAP_API_KEYS", line)
    assert not any(key in str(refused.value) for key in ("good", "sch", "same"))


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    for path, why in ((tmp_path / "none", "No such file"), (tmp_path, "directory")):
        with pytest.raises(KeysError, match=why) as refused:
            Keys(None, path)
        assert str(path) in str(refused.value)
    large = tmp_path / "large"
    large.write_bytes(b"#" * (1 << 20) + b"\nkey")
    with pytest.raises(KeysError, match="limit"):
        Keys(None, large)


def test_keys_of_the_variable_and_the_file_hold_together(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_bytes(b"second a;b\r\n")
    keys = Keys(b"first", file)
    assert keys.match(b"first") == Grant(None)
    second = keys.match(b"second")
    assert second is not None
    assert second.allows(b"a;b")  # in the file, a semicolon is a character of a glob
    file.write_bytes(b"first a")
    with pytest.raises(KeysError, match="twice"):
        Keys(b"first", file)


@pytest.fixture
def always_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "_CHECK_SECONDS", 0)


def replace(path: Path, content: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(content)
    os.replace(new, path)


def test_a_changed_file_holds_from_then_on(
    serve: Serve, tmp_path: Path, always_due: None, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "keys"
    replace(file, "first\n")
    face = serve({"demo.gguf": base(), "other.gguf": base()}, api_keys_file=file)

    def counts() -> list[int | None]:
        answers = [face.get("/v1/models", headers=bearer(key)) for key in ("first", "second")]
        return [answer.json.get("count") for answer in answers]

    assert counts() == [2, None]
    replace(file, "second demo\n")
    assert counts() == [None, 1]
    caplog.clear()
    with caplog.at_level(logging.WARNING, "tensortap"):
        for content in ("third a\nthird b\n", None, ""):
            if content is None:
                file.unlink()
            else:
                replace(file, content)
            for _ in range(3):
                assert counts() == [None, 1]
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 3  # one for each state of the file
    assert all(str(file) in warning and "third" not in warning for warning in warnings)
    replace(file, "first\nsecond\n")
    assert counts() == [2, 2]


def test_a_file_that_is_as_it_was_is_not_read_again(
    tmp_path: Path, always_due: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "keys"
    file.write_text("key\n")
    keys = Keys(None, file)
    times = 0
    read = os.fstat

    def counts(descriptor: int) -> os.stat_result:
        nonlocal times
        times += 1
        return read(descriptor)

    monkeypatch.setattr("app.auth.os.fstat", counts)
    for _ in range(3):
        assert keys.due()
        keys.reload()
    assert times == 0
    monkeypatch.undo()
    file.write_text("other\n")
    keys.reload()
    assert keys.match(b"key") is None


def test_a_file_that_cannot_be_read_for_a_while_is_read_as_soon_as_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also when it was changed before: an error of the system says nothing of what is in it."""
    file = tmp_path / "keys"
    replace(file, "first\n")
    keys = Keys(None, file)
    replace(file, "second\n")

    def fail(*_: object, **__: object) -> object:
        raise OSError(errno.EMFILE, "Too many open files")

    with caplog.at_level(logging.WARNING, "tensortap"):
        with monkeypatch.context() as patch:
            patch.setattr(Path, "open", fail)
            for _ in range(3):
                keys.reload()
        assert keys.match(b"first")
        keys.reload()
    assert keys.match(b"second")
    assert not keys.match(b"first")
    assert len(caplog.records) == 1


def test_a_key_file_on_a_volume_that_hangs_holds_nobody_up(
    serve: Serve, tmp_path: Path, always_due: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "keys"
    replace(file, "first\n")
    monkeypatch.setattr(auth, "_PATIENCE_SECONDS", 0.01)
    face = serve(base(), api_keys_file=file)
    go = threading.Event()
    looks: list[int] = []
    reload = Keys.reload

    def hang(keys: Keys) -> None:
        looks.append(1)
        assert go.wait(30)
        reload(keys)

    monkeypatch.setattr(Keys, "reload", hang)
    replace(file, "second\n")
    for _ in range(5):
        assert face.get("/v1/models", headers=bearer("first")).status == 200
    eventually(lambda: looks)
    assert len(looks) == 1
    go.set()
    eventually(lambda: face.get("/v1/models", headers=bearer("second")).status == 200)


def test_a_file_is_looked_at_no_more_than_once_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("app.auth.time.monotonic", lambda: now)
    file = tmp_path / "keys"
    file.write_text("key\n")
    keys = Keys(None, file)
    assert not keys.due()
    now = 101.0
    assert keys.due()
    assert not keys.due()
    assert not Keys(b"key").due()


def test_metrics_are_open_by_setting_only(serve: Serve) -> None:
    assert serve(base(), api_keys="key demo").problem("/metrics") == (401, "unauthorized")
    opened = serve(base(), api_keys="key demo", metrics_open=True)
    assert opened.get("/metrics").status != 401
    assert opened.get("/v1/models").status == 401


def test_secrets_show_neither_in_the_settings_nor_in_their_text() -> None:
    settings = Settings(api_keys="hidden-key")  # type: ignore[arg-type]
    assert "hidden-key" not in repr(settings) + str(settings) + settings.model_dump_json()
    assert settings.environment()["TENSORTAP_API_KEYS"] == "hidden-key"
    shown = subprocess.run(
        [sys.executable, "-m", "app", "settings"],
        env={**os.environ, "TENSORTAP_API_KEYS": "hidden-key"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "hidden-key" not in shown.stdout + shown.stderr
    assert "TENSORTAP_API_KEYS" in shown.stdout


@pytest.mark.parametrize(
    ("variables", "why"),
    [
        ({"TENSORTAP_API_KEYS": "bad\x01key"}, "TENSORTAP_API_KEYS, line 1"),
        ({"TENSORTAP_API_KEYS": ""}, "no key"),
        ({"TENSORTAP_API_KEYS_FILE": "/nothing/at/all"}, "/nothing/at/all"),
    ],
)
def test_serve_refuses_to_start_with_keys_that_cannot_be_used(variables: dict[str, str], why: str) -> None:
    refused = subprocess.run(
        [sys.executable, "-m", "app", "serve", "--port=0", "--workers=2"],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert refused.returncode == 2
    assert why in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    assert "bad" not in refused.stderr


def test_worker_processes_have_the_keys_and_no_log_does(tmp_path: Path, demo_root: Path) -> None:
    file = tmp_path / "keys"
    file.touch(stat.S_IRUSR | stat.S_IWUSR)
    file.write_text("file-secret demo\n")
    with Server(demo_root, workers=2, api_keys="flag-secret", api_keys_file=file) as server:
        eventually(lambda: sum("startup complete" in line for line in server.log) == 2)
        for key in ("flag-secret", "file-secret"):
            for headers in (bearer(key), {"X-API-Key": key}):
                for _ in range(4):
                    assert server.client.get("/v1/models", headers=headers).json()["count"] == 1
        assert server.client.get("/v1/models", headers=bearer("guess-secret")).status_code == 401
    assert "-secret" not in "".join(server.log)
