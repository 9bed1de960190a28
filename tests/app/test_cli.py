"""The command line: exit codes, what is printed where, and a server that starts and stops as asked."""

import os
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner, Result

from app.cli import main
from app.settings import ENV_PREFIX, Settings
from tests.builder import F8, base
from tests.server import Server
from tests.waiting import eventually


@pytest.fixture(autouse=True)
def _no_settings_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(ENV_PREFIX):
            monkeypatch.delenv(name)


def run(*arguments: str, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(main, list(arguments), env=env, catch_exceptions=False)


def test_settings_lists_every_setting_with_its_names_default_meaning_and_value() -> None:
    result = run("settings", env={"TENSORTAP_JSON_LIMIT": "1MiB", "TENSORTAP_ROOT": "/srv/models"})
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert len(lines) == 3 * len(Settings.model_fields)
    for place, (name, field) in enumerate(Settings.model_fields.items()):
        names, meaning, values = lines[3 * place : 3 * place + 3]
        assert names.split() == [f"TENSORTAP_{name.upper()}", f"--{name.replace('_', '-')}"]
        assert field.description
        assert meaning.strip() == field.description
        assert values.strip().startswith("default ")
        assert ", now " in values
    assert "    default models, now /srv/models" in lines
    assert f"    default {64 << 20}, now {1 << 20}" in lines


@pytest.mark.parametrize(
    ("flag", "named", "why"),
    [
        ("--port=abc", "--port", "integer"),
        ("--port=65536", "--port", "65535"),
        ("--workers=0", "--workers", "greater than or equal to 1"),
        ("--cache-bytes=much", "--cache-bytes", "byte string"),
        ("--json-limit=1XB", "--json-limit", "XB"),
        ("--url-limit=10", "--url-limit", "1024"),
        ("--recheck-seconds=nan", "--recheck-seconds", "3600"),
        ("--recheck-seconds=-1", "--recheck-seconds", "0"),
        ("--outside-symlinks=maybe", "--outside-symlinks", "boolean"),
        ("--bogus=1", "--bogus", "unrecognized"),
        ("--root", "--root", "expected one argument"),
        ("extra", "extra", "unrecognized"),
    ],
)
def test_serve_refuses_bad_flags_with_2_and_says_which(flag: str, named: str, why: str) -> None:
    result = run("serve", flag)
    assert result.exit_code == 2
    assert result.stdout == ""
    last = result.stderr.splitlines()[-1]
    assert named in last
    assert why in last


@pytest.mark.parametrize("command", ["serve", "settings"])
def test_a_bad_variable_is_refused_like_a_bad_flag(command: str) -> None:
    result = run(command, env={"TENSORTAP_PORT": "x", "TENSORTAP_WORKERS": "99"})
    assert result.exit_code == 2
    assert [line.partition(" ")[0] for line in result.stderr.splitlines()] == ["TENSORTAP_PORT", "TENSORTAP_WORKERS"]


def test_serve_explains_every_flag() -> None:
    result = run("serve", "--help")
    assert result.exit_code == 0
    for name in Settings.model_fields:
        assert f"--{name.replace('_', '-')}" in result.stdout


def test_without_a_command_or_with_an_unknown_one_the_commands_are_named() -> None:
    assert run("--help").exit_code == 0
    for name in ("serve", "check", "settings"):
        assert name in run("--help").stdout
    assert run().exit_code == run("nothing").exit_code == run("check").exit_code == 2


def test_the_module_is_the_command(tmp_path: Path) -> None:
    """``python -m app check``, as people type it."""
    (tmp_path / "m.gguf").write_bytes(base())
    (tmp_path / "bad.gguf").write_bytes(b"GGU")
    good, bad = (
        subprocess.run([sys.executable, "-m", "app", "check", tmp_path / name], capture_output=True, timeout=60)
        for name in ("m.gguf", "bad.gguf")
    )
    assert (good.returncode, bad.returncode) == (0, 1)
    assert b"1 tensors, 0 faulty" in good.stdout
    assert b"Traceback" not in good.stderr + bad.stderr
    assert b"not a GGUF file" in bad.stderr


def answers(server: Server, target: str) -> httpx.Response:
    """Ask until the server takes connections: with several workers it names its port before they have started."""
    for _ in range(400):
        try:
            return server.client.get(target)
        except httpx.ConnectError:
            time.sleep(0.05)
    return server.client.get(target)


@pytest.mark.case(26)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_server_stops_when_it_is_told_to_with_0(tmp_path: Path, workers: int) -> None:
    (tmp_path / "m.gguf").write_bytes(base())
    with Server(tmp_path, workers=workers) as server:
        assert answers(server, "/v1/models/m/-/data/w").content == F8
        assert answers(server, "/v1/models").json()["count"] == 1
        eventually(lambda: sum("startup complete" in line for line in server.log) == workers)
        assert server.stop() == 0
        with pytest.raises(httpx.ConnectError):
            httpx.get(server.url, timeout=5)
    log = "".join(server.log)
    assert "Traceback" not in log
    assert log.count("Application shutdown complete") == workers


@pytest.mark.case(26)
def test_a_server_that_keeps_an_idle_connection_stops_at_once(tmp_path: Path) -> None:
    """What an idle client keeps open is not waited for."""
    (tmp_path / "m.gguf").write_bytes(base())
    with Server(tmp_path, grace_seconds=60, keep_alive_seconds=3600) as server:
        assert server.client.get("/healthz").status_code == 200
        assert server.stop(timeout=30) == 0


def test_variables_and_flags_reach_the_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flags win over variables, and both hold in worker processes."""
    (tmp_path / "m.gguf").write_bytes(base())
    monkeypatch.setenv("TENSORTAP_JSON_LIMIT", "16")
    monkeypatch.setenv("TENSORTAP_CACHE_CONTROL", "no-cache")
    process = subprocess.Popen(
        [sys.executable, "-m", "app", "serve", f"--root={tmp_path}", "--port=0", "--json-limit=8", "--workers=2"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        url = next(line for line in process.stderr if "running on " in line).split("running on ")[1].split()[0]
        started = sum("startup complete" in line for line in _until(process, "startup complete", 2))
        assert started == 2
        with httpx.Client(base_url=f"{url}/v1/models/m/-/data") as client:
            answer = client.get("/w?format=json&rows=0")
            assert (answer.status_code, answer.json()["limit"]) == (413, 8)
            assert client.get("/w").headers["cache-control"] == "no-cache"
    finally:
        process.terminate()
        process.communicate(timeout=30)
    assert process.returncode == 0


def _until(process: "subprocess.Popen[str]", text: str, count: int) -> list[str]:
    """The lines of a log up to the one that has a text for the ``count``-th time."""
    assert process.stderr is not None
    lines: list[str] = []
    for line in process.stderr:
        lines.append(line)
        if sum(text in one for one in lines) == count:
            break
    return lines


def test_a_port_that_is_taken_is_told(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        second = subprocess.run(
            [sys.executable, "-m", "app", "serve", f"--root={tmp_path}", f"--port={server.port}"],
            capture_output=True,
            timeout=60,
        )
    assert second.returncode != 0
    assert b"address already in use" in second.stderr
    assert b"Traceback" not in second.stderr
