"""A pytest plugin: at the end of a run, the cases of docs/cases.md with how the tests of each went.

``python -m pytest -m case -p tests.case_table``; ``make cases`` does that.
"""

import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

__all__ = ["Case", "CaseTable", "pytest_configure", "read_cases"]

DOCUMENT = Path(__file__).parents[1] / "docs" / "cases.md"
_LONGEST_INPUT = 70


class Case(NamedTuple):
    """A line of docs/cases.md: its number, what comes in, and what happens."""

    number: int
    comes_in: str
    happens: str


def read_cases() -> list[Case]:
    """The lines of the table of docs/cases.md, in order."""
    lines = re.findall(r"^\| (\d+) \| (.+?) \| (.+?) \|$", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE)
    return [Case(int(number), comes_in, happens) for number, comes_in, happens in lines]


class CaseTable:
    """Counts the outcomes of tests by their cases, and prints the table."""

    def __init__(self) -> None:
        self._cases: dict[str, set[int]] = {}
        self._outcomes: dict[str, str] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Note the cases of the tests that will run."""
        for item in session.items:
            self._cases[item.nodeid] = {number for mark in item.iter_markers("case") for number in mark.args}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the outcome of a test, of which that of a part counts that is not passed."""
        if report.when == "call" or not report.passed:
            outcome = "failed" if report.failed else report.outcome
            if self._outcomes.get(report.nodeid) != "failed":
                self._outcomes[report.nodeid] = outcome

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the table."""
        terminalreporter.section("cases")
        terminalreporter.write_line("      case  tests  passed  failed  skipped  what comes in")
        marks: Counter[str] = Counter()
        for case in read_cases():
            nodes = [node for node, numbers in self._cases.items() if case.number in numbers]
            outcomes = Counter(self._outcomes.get(node, "not run") for node in nodes)
            passed, failed, skipped = (outcomes[name] for name in ("passed", "failed", "skipped"))
            mark = "FAIL" if failed else "pass" if passed and passed + skipped == len(nodes) else "none"
            marks[mark] += 1
            counts = f"{case.number:>4}  {len(nodes):>5}  {passed:>6}  {failed:>6}  {skipped:>7}"
            terminalreporter.write_line(f"{mark}  {counts}  {_short(case.comes_in)}")
        told = ", ".join(f"{marks[mark]} {mark}" for mark in ("pass", "FAIL", "none"))
        terminalreporter.write_line(f"{marks.total()} cases: {told} (none: no test of it has come to a result)")


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_INPUT else text[: _LONGEST_INPUT - 1] + "…"


def pytest_configure(config: pytest.Config) -> None:
    """Put the table into the run."""
    config.pluginmanager.register(CaseTable())
