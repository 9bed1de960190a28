"""docs/cases.md and the tests agree: each case has a test that is marked with it, and each marker is a case."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.case_table import read_cases

ROOT = Path(__file__).parent


def marked(path: Path) -> Iterator[tuple[str, int]]:
    """The tests of a file that are marked with cases, and each of the numbers."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.FunctionDef):
            for decorator in node.decorator_list:
                if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.case":
                    assert decorator.args, f"{path.name}: {node.name}: a marker without a number"
                    for number in decorator.args:
                        assert isinstance(number, ast.Constant), f"{path.name}: {node.name}"
                        assert isinstance(number.value, int), f"{path.name}: {node.name}"
                        yield node.name, number.value


def test_each_case_has_a_test_and_each_marker_is_a_case() -> None:
    found: dict[int, set[str]] = {}
    for path in ROOT.rglob("test_*.py"):
        for name, number in marked(path):
            assert name.startswith("test_"), name
            found.setdefault(number, set()).add(name)
    assert sorted(found) == [case.number for case in read_cases()]


def test_a_test_is_marked_with_a_case_once() -> None:
    for path in ROOT.rglob("test_*.py"):
        pairs = list(marked(path))
        assert len(set(pairs)) == len(pairs), path.name
