"""The systemd unit: systemd takes it, finds it well shut, and what it shuts is not what the service needs."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from app.settings import Settings
from tests.programs.conftest import program

UNIT = Path(__file__).parents[2] / "deploy/systemd/tensortap.service"
MOST_EXPOSED = 1.5  # of 10: it has 1.1, and what it lacks it needs (the network) or would gain little by


def _values(name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", UNIT.read_text(), re.MULTILINE)


def test_it_names_settings_that_there_are_and_waits_for_running_answers() -> None:
    named = set(re.findall(r"TENSORTAP_(\w+)", UNIT.read_text())) - {""}
    assert named
    assert named <= {name.upper() for name in Settings.model_fields}
    assert int(_values("TimeoutStopSec")[0]) > Settings.model_fields["grace_seconds"].default


def test_it_is_started_again_for_as_long_as_it_takes() -> None:
    assert _values("Restart") == ["always"]
    before, _, _ = UNIT.read_text().partition("\n[Service]\n")
    assert "\nStartLimitIntervalSec=0\n" in before


def test_what_is_in_the_working_directory_is_not_taken_for_the_program(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app/__main__.py").write_text("raise SystemExit('the wrong program')")
    environment = dict(one.split("=") for line in _values("Environment") for one in line.split())
    _, *arguments, _ = _values("ExecStart")[0].split()
    command = [sys.executable, *arguments, "settings"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.programs
def test_systemd_takes_it(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name  # systemd wants the program to be there
    unit.write_text(re.sub(r"^ExecStart=\S+", f"ExecStart={sys.executable}", UNIT.read_text(), flags=re.MULTILINE))
    done = subprocess.run(
        [program("systemd-analyze"), "verify", "--man=no", str(unit)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.programs
def test_little_of_the_system_is_exposed() -> None:
    limit = f"--threshold={round(MOST_EXPOSED * 10)}"
    command = [program("systemd-analyze"), "security", "--offline=true", "--no-pager", "--json=short", limit, str(UNIT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout
    assert json.loads(done.stdout)
