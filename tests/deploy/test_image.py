"""What the image is made of: locks with all that pyproject.toml asks for; a Dockerfile and a compose file in accord."""

import importlib.metadata
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tests.demo import demo_model
from tests.server import Server

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", "")
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
LOCKS = [ROOT / "deploy" / "requirements.lock", ROOT / "deploy" / "build.lock"]
PLATFORMS = [
    {
        "sys_platform": "linux",
        "platform_machine": machine,
        "python_version": python,
        "python_full_version": f"{python}.0",
    }
    for machine in ("x86_64", "aarch64")
    for python in ("3.11", "3.12", "3.13", "3.14")
]


def locked(lock: Path) -> Iterator[tuple[Requirement, int]]:
    """What a lock pins, each with the number of its hashes."""
    text = "\n".join(
        line for line in lock.read_text(encoding="utf-8").splitlines() if not line.lstrip().startswith("#")
    )
    for line in text.replace("\\\n", "").splitlines():
        requirement, *hashes = line.split(" --hash=")
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}\s*", one) for one in hashes), line
        yield Requirement(requirement.strip()), len(hashes)


def versions(lock: Path, platform: dict[str, str]) -> dict[str, str]:
    """The version of each package that the lock has for a platform."""
    found: dict[str, str] = {}
    for requirement, _ in locked(lock):
        if requirement.marker is None or requirement.marker.evaluate(platform):
            name = canonicalize_name(requirement.name)
            assert name not in found, f"{name} has two versions for {platform}"
            found[name] = str(requirement.specifier).removeprefix("==")
    return found


def faults(asked: list[str], lock: dict[str, str], platform: dict[str, str]) -> list[str]:
    """What of the requirements, and of what those need where that is known here, a lock does not have."""
    wrong: list[str] = []
    waiting = [("the project", Requirement(one), "") for one in asked]
    seen: set[tuple[str, str]] = set()
    while waiting:
        by, requirement, extra = waiting.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({**platform, "extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        if name not in lock or not requirement.specifier.contains(lock[name], prereleases=True):
            wrong.append(f"{by} needs {requirement}, the lock has {lock.get(name)}")
            continue
        for wanted in ("", *requirement.extras):
            if (name, wanted) in seen:
                continue
            seen.add((name, wanted))
            try:
                is_known = importlib.metadata.version(name) == lock[name]
            except importlib.metadata.PackageNotFoundError:
                is_known = False
            if is_known:
                waiting += [(name, Requirement(one), wanted) for one in importlib.metadata.requires(name) or ()]
    return wrong


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_a_lock_has_versions_and_hashes_and_no_index(lock: Path) -> None:
    pins = list(locked(lock))
    assert len(pins) > 4
    assert all(re.fullmatch(r"==[^*,]+", str(requirement.specifier)) and hashes for requirement, hashes in pins)
    assert not re.search(r"://|index|find-links| @ ", lock.read_text(encoding="utf-8"))


@pytest.mark.parametrize("platform", PLATFORMS, ids=lambda platform: "-".join(list(platform.values())[1:3]))
def test_the_locks_have_all_that_the_project_asks_for(platform: dict[str, str]) -> None:
    project = PROJECT["project"]
    service = [*project["dependencies"], *project["optional-dependencies"]["server"]]
    assert faults(service, versions(LOCKS[0], platform), platform) == []
    assert faults(PROJECT["build-system"]["requires"], versions(LOCKS[1], platform), platform) == []


def test_what_a_lock_does_not_have_is_seen() -> None:
    platform = PLATFORMS[0]
    whole = versions(LOCKS[0], platform)
    assert faults(["uvicorn>=9999"], whole, platform) == [
        f"the project needs uvicorn>=9999, the lock has {whole['uvicorn']}"
    ]
    here = {name: importlib.metadata.version(name) for name in ("uvicorn", "click", "h11")}
    assert faults(["uvicorn"], here, platform) == []
    del here["h11"]
    assert [fault.partition(",")[0].partition(">")[0] for fault in faults(["uvicorn"], here, platform)] == [
        "uvicorn needs h11"
    ]


def test_each_python_that_the_image_may_have_is_one_of_the_projects() -> None:
    (python,) = re.findall(r"^ARG PYTHON_IMAGE=python:([\d.]+)-slim$", DOCKERFILE, re.MULTILINE)
    assert python in SpecifierSet(PROJECT["project"]["requires-python"])
    assert python in {platform["python_version"] for platform in PLATFORMS}


def test_the_image_has_the_projects_version() -> None:
    version = PROJECT["project"]["version"]
    assert f"\nARG VERSION={version}\n" in DOCKERFILE
    assert COMPOSE["services"]["tensortap"]["image"] == f"${{APP_IMAGE:-tensortap:{version}}}"
    labels = re.findall(r'org\.opencontainers\.image\.([a-z.]+)="', DOCKERFILE)
    assert labels == ["title", "description", "version", "revision", "base.name"]


def test_what_is_copied_is_sent_to_the_builder_and_nothing_else() -> None:
    copied = {
        source
        for line in re.findall(r"^COPY (?!--from)(.*)$", DOCKERFILE, re.MULTILINE)
        for source in shlex.split(line)[:-1]
    }
    assert copied >= {"app", "decoders", "tensortap", "deploy/requirements.lock", "deploy/build.lock"}
    every, *others = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert every == "*"
    sent = [rule.removeprefix("!") for rule in others if rule.startswith("!")]
    assert all((ROOT / source).exists() and any(fnmatch(source, rule) for rule in sent) for source in copied)
    assert all(any(fnmatch(source, rule) for source in copied) for rule in sent)


def test_compose_takes_every_right_away_and_keeps_the_images_own_health_check() -> None:
    service = COMPOSE["services"]["tensortap"]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert f"\nUSER {service['user']}\n" in DOCKERFILE
    assert service["volumes"] == ["./models:/models:ro"]
    assert service["mem_limit"] == service["memswap_limit"]
    assert {"privileged", "healthcheck", "network_mode", "cap_add"}.isdisjoint(service)


def test_the_health_check_tells_a_live_service_from_none_whatever_proxies_there_are(tmp_path: Path) -> None:
    (command,) = re.findall(r"^HEALTHCHECK .*? CMD (\[.*\])$", DOCKERFILE, re.MULTILINE)
    python, *arguments = yaml.safe_load(command)
    assert python == "python"

    def check(port: int) -> int:
        # Nothing listens on the port of this proxy.
        environment = {**os.environ, "TENSORTAP_PORT": str(port), "http_proxy": "http://127.0.0.1:9", "no_proxy": ""}
        return subprocess.run(
            [sys.executable, *arguments], env=environment, capture_output=True, check=False
        ).returncode

    (tmp_path / "demo.gguf").write_bytes(demo_model())
    with Server(tmp_path) as server:
        assert check(server.port) == 0
    assert check(server.port) != 0
