"""Imports point one way: app → app.gguf → decoders ← tensortap; and serving loads nothing that it does not need."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# What each package may import of this project; the more specific name decides.
ALLOWED = {
    "decoders": {"decoders"},
    "app.gguf": {"app.gguf", "decoders"},
    "app": {"app", "app.gguf", "decoders"},
    "bench": {"bench", "app", "app.gguf", "decoders", "tensortap", "tests"},
    "fuzz": {"fuzz", "app", "app.gguf", "decoders", "tests"},
    "tensortap": {"tensortap", "decoders"},
}


def modules() -> Iterator[tuple[str, Path]]:
    for package in ("app", "bench", "decoders", "fuzz", "tensortap"):
        for path in sorted((ROOT / package).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            yield name.removesuffix(".__init__"), path


def package_of(name: str) -> str | None:
    packages = ("app.gguf", "app", "bench", "decoders", "fuzz", "tensortap", "tests")
    return next((package for package in packages if f"{name}.".startswith(f"{package}.")), None)


def imported(name: str, path: Path) -> Iterator[str]:
    is_package = path.name == "__init__.py"
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = name.split(".")
            base = ".".join(parents[: len(parents) - node.level + is_package]) if node.level else ""
            yield f"{base}.{node.module or ''}".strip(".")


@pytest.mark.parametrize(("name", "path"), list(modules()), ids=lambda value: value if isinstance(value, str) else "")
def test_imports_point_one_way(name: str, path: Path) -> None:
    own = package_of(name)
    assert own is not None
    for other in imported(name, path):
        package = package_of(other)
        assert package is None or package in ALLOWED[own], f"{name} imports {other}"


def test_decoders_need_numpy_alone() -> None:
    code = "import sys, decoders; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"app", "fastapi", "uvicorn", "pydantic", "gguf"} & set(loaded)


def test_the_service_loads_no_test_dependency() -> None:
    code = "import sys, app.server; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"gguf", "libggml", "hypothesis", "pytest", "requests"} & set(loaded)
