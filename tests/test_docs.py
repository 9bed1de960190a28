"""The documentation is true: commands give the outputs shown, tables name what there is, examples run."""

import doctest
import importlib
import inspect
import os
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import app
import decoders
import tensortap
from app.cli import main
from app.server import create_app
from app.settings import ENV_PREFIX, Settings
from tests.demo import demo_model
from tests.server import Server

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
CLIENT = (ROOT / "docs" / "client.md").read_text(encoding="utf-8")


def commands(document: str) -> Iterator[tuple[str, str]]:
    """Each command of a console block and the output shown under it."""
    for block in re.findall(r"```console\n(.*?)```", document, re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            yield command, output


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("models")
    (folder / "demo.gguf").write_bytes(demo_model())
    with Server(folder) as running:
        yield running


@pytest.mark.parametrize(("document", "n_commands"), [(README, 10), (CLIENT, 3)], ids=["README.md", "client.md"])
def test_the_commands_give_the_outputs_shown(server: Server, tmp_path: Path, document: str, n_commands: int) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    shown = list(commands(document))
    assert len(shown) >= n_commands
    for command, expected in shown:
        # Of a checkout, the command may not be installed.
        command = re.sub(r"^tensortap ", f"{sys.executable} -m tensortap ", command)
        result = subprocess.run(
            ["bash", "-c", command.replace("localhost:8000", f"127.0.0.1:{server.port}")],
            cwd=tmp_path,
            env={**os.environ, "PATH": path, "TENSORTAP_URL": server.url, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, (command, result.stderr)
        pattern = ".*?".join(re.escape(part) for part in re.split(r"\.\.\.|…", expected))
        output = result.stdout.replace("\r\n", "\n")
        assert re.fullmatch(pattern, output, re.DOTALL), (command, output)


def test_the_committed_demo_model_is_what_its_script_makes() -> None:
    committed = (ROOT / "models" / "demo.gguf").read_bytes()
    assert committed == demo_model()
    assert len(committed) < 1 << 20


def test_every_setting_is_documented() -> None:
    table = README.partition("## Settings")[2].partition("\n## ")[0]
    documented = re.findall(r"^\| `(TENSORTAP_\w+)` \|", table, re.MULTILINE)
    assert documented == [ENV_PREFIX + name.upper() for name in Settings.model_fields]


def test_every_route_is_documented() -> None:
    documented = set(re.findall(r"`(/[^`?]*)[^`]*`", README.partition("## URLs")[2].partition("\n## ")[0]))
    served = set(create_app(Settings(root=ROOT / "models")).openapi()["paths"])
    assert served <= documented


def test_every_error_is_documented() -> None:
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "app").rglob("*.py")]
    kinds = "Problem|BadRequest|NotFound|TooLarge|Unavailable|Unreadable|Fault|NotAcceptable|__init__"
    raised = {slug for text in sources for slug in re.findall(rf'(?:{kinds})\(\s*"([a-z]+(?:-[a-z]+)+)"', text)}
    rows = re.findall(r"^\| \d+ \| (.*?) \|", (ROOT / "docs" / "errors.md").read_text(encoding="utf-8"), re.MULTILINE)
    documented = {slug for row in rows for slug in re.findall(r"`([a-z-]+)`", row)}
    assert len(raised) > 15
    assert raised <= documented


def test_every_command_is_documented() -> None:
    assert all(f"python -m app {name}" in README for name in main.commands)


@pytest.mark.parametrize("document", [*sorted(ROOT.glob("docs/*.md")), ROOT / "README.md"], ids=lambda path: path.name)
def test_links_lead_to_files(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", document.read_text(encoding="utf-8")):
        assert target.startswith("https://") or (document.parent / target).exists(), target


def test_the_python_examples_of_the_readme_run(server: Server) -> None:
    runner = doctest.DocTestRunner()
    for block in re.findall(r"```python\n(.*?)```", README.replace("localhost:8000", server.url[7:]), re.DOTALL):
        runner.run(doctest.DocTestParser().get_doctest(block, {}, "README.md", "README.md", 0))
    assert runner.summarize() == doctest.TestResults(failed=0, attempted=6)


def test_the_examples_of_the_client_run(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    examples = "".join(re.findall(r"```python\n(.*?)```", CLIENT, re.DOTALL))
    examples = examples.replace("localhost:8000", f"127.0.0.1:{server.port}")
    runner = doctest.DocTestRunner()
    runner.run(doctest.DocTestParser().get_doctest(examples, {}, "client.md", "docs/client.md", 0))
    assert runner.summarize(verbose=False).failed == 0
    assert runner.tries > 25


def test_every_setting_and_error_of_the_client_is_documented() -> None:
    names = [name for name in inspect.signature(tensortap.Client).parameters if name != "url"]
    assert [name for name in names if not re.search(rf"`(?:Client\()?{name}[`=]", CLIENT)] == []
    public = [getattr(tensortap, name) for name in tensortap.__all__]
    errors = [one.__name__ for one in public if inspect.isclass(one) and issubclass(one, Exception)]
    assert len(errors) > 10
    assert [name for name in errors if f"`{name}`" not in CLIENT] == []


def test_the_makefile_has_the_targets_that_the_readme_names() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"(?:`|^    )make (\w+)", README, re.MULTILINE))
    assert {"serve", "test", "real"} <= targets
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_the_examples_in_docstrings_run() -> None:
    attempted = 0
    for package in (app, decoders):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                results = doctest.testmod(importlib.import_module(module.name))
                assert results.failed == 0, module.name
                attempted += results.attempted
    assert attempted > 0
