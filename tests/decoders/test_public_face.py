"""The public face of the package: what it exports, what it needs, and that its examples are true."""

from __future__ import annotations

import doctest
import inspect
import subprocess
import sys
from importlib import import_module, resources
from pathlib import Path

import pytest

import decoders

_ROOT = Path(decoders.__file__).parents[1]
_MODULES = sorted(
    f"decoders.{path.name.removesuffix('.py')}"
    for path in resources.files("decoders").iterdir()
    if path.name.startswith("_") and path.name.endswith(".py") and path.name != "__init__.py"
)


def test_exactly_the_intended_names_are_exported() -> None:
    assert set(decoders.__all__) == {
        "BIG_ENDIAN_TYPES",
        "BadBlockLength",
        "BadBuffer",
        "BlockFormat",
        "DecoderError",
        "GGMLType",
        "UnsupportedType",
        "byteswap",
        "dequantize",
        "info",
        "pack_ternary_2bit",
        "quantize_tq1_0",
        "quantize_tq2_0",
        "unpack_ternary_2bit",
    }
    public = {name for name, value in vars(decoders).items() if name[0] != "_" and not inspect.ismodule(value)}
    assert public == set(decoders.__all__)


@pytest.mark.parametrize("name", decoders.__all__)
def test_every_exported_name_is_documented(name: str) -> None:
    value = getattr(decoders, name)
    assert name == "BIG_ENDIAN_TYPES" or inspect.getdoc(value)


def test_importing_loads_numpy_and_the_standard_library_only() -> None:
    code = (
        "import sys, numpy; before = set(sys.modules); import decoders; "
        "print(*{name.split('.')[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60, cwd=_ROOT
    )
    assert set(loaded.stdout.split()) <= {"decoders", "numpy"}


@pytest.mark.parametrize("module", _MODULES)
def test_examples_in_docstrings_are_true(module: str) -> None:
    assert doctest.testmod(import_module(module)).failed == 0


def test_some_examples_are_there_to_be_checked() -> None:
    attempted = [doctest.testmod(import_module(module)).attempted for module in _MODULES]
    assert sum(attempted) >= 2
