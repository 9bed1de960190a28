"""What the package shows, and what it draws in."""

import ast
import subprocess
import sys
from pathlib import Path

import app.gguf

EXPECTED = """
AmbiguousTensor Array BadHeader ByteOrder Entry Fault GGUFError HEADER_LIMIT Header INNER_ARRAY_LIMIT KEY_LIMIT Metadata
Model NESTING_LIMIT NoSuchTensor NotGGUF STRING_LIMIT SplitError SplitName TENSOR_LIMIT Tensor UnsupportedVersion Value
ValueType open_model part_name quoted read_header split_name
"""
ALLOWED = {"app.gguf", "decoders", "numpy"} | sys.stdlib_module_names


def test_the_public_names_are_the_ones_meant() -> None:
    assert sorted(app.gguf.__all__) == sorted(EXPECTED.split())
    assert all(hasattr(app.gguf, name) for name in app.gguf.__all__)


def test_only_decoders_numpy_and_the_standard_library_are_imported() -> None:
    files = sorted(Path(app.gguf.__file__).parent.glob("*.py"))
    assert len(files) > 5
    for file in files:
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0
                names = [node.module or ""]
            for name in names:
                parts = name.split(".")
                top = ".".join(parts[:2]) if parts[0] == "app" else parts[0]
                assert top in ALLOWED, f"{file.name} imports {name}"


def test_importing_is_light() -> None:
    code = "import sys, app.gguf; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert "numpy" in loaded
    assert not {"fastapi", "starlette", "uvicorn", "pydantic", "httpx", "orjson", "click", "gguf"} & set(loaded)
