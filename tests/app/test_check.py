"""``check``: the table of every tensor, and whether all is well."""

import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from app.check import check_tensor
from app.cli import main
from app.snapshot import Snapshot
from tests.app.conftest import write_files
from tests.app.test_cases_volume import FIRST, PART_1, PART_2, SECOND
from tests.builder import F8, F32, U32, base, build, floats, kv, tensor_info

NAN, INF = float("nan"), float("inf")


def check(*paths: Path | str) -> Result:
    return CliRunner().invoke(main, ["check", *map(str, paths)], catch_exceptions=False)


def table(result: Result) -> list[list[str]]:
    """The rows of the tables, in columns: name, type, shape, bytes, min, max, NaN, inf, fault."""
    rows = [re.split(r"  +", line.strip(), maxsplit=8) for line in result.stdout.splitlines()]
    return [row for row in rows if len(row) >= 8 and row[0] != "tensor"]


def test_a_good_file_is_0_and_its_tensors_are_told(tmp_path: Path) -> None:
    tensors = [
        ("w", [4, 2], 0, F8),
        ("odd", [6], 0, floats(NAN, INF, -INF, -0.5, 2.25, NAN)),
        ("nothing", [2], 0, floats(NAN, INF)),
        ("empty", [0, 4], 0, b""),
        ("s", [], 0, floats(1.5)),
        ("q", [32, 2], 8, (np.float16(2).tobytes() + bytes(range(32))) * 2),
    ]
    write_files(tmp_path, {"m.gguf": build(tensors)})
    result = check(tmp_path / "m.gguf")
    assert result.exit_code == 0
    assert f"{tmp_path / 'm.gguf'}: 6 tensors, 0 faulty" in result.stdout
    assert table(result) == [
        ["w", "F32", "2x4", "32", "0", "7", "0", "0"],
        ["odd", "F32", "6", "24", "-0.5", "2.25", "2", "2"],
        ["nothing", "F32", "2", "8", "-", "-", "1", "1"],
        ["empty", "F32", "4x0", "0", "-", "-", "0", "0"],
        ["s", "F32", "scalar", "4", "1.5", "1.5", "0", "0"],
        ["q", "Q8_0", "2x32", "68", "0", "62", "0", "0"],
    ]


def test_faults_are_told_of_each_tensor_and_are_1(tmp_path: Path) -> None:
    infos = [tensor_info("w", [4, 2], 0, 0), tensor_info("q", [256], 156, 32), tensor_info("cut", [4, 3], 0, 64)]
    write_files(tmp_path, {"m.gguf": base(infos=infos, data=F8 * 3), "good.gguf": base()})
    result = check(tmp_path / "m.gguf", tmp_path / "good.gguf")
    assert result.exit_code == 1
    assert "3 tensors, 2 faulty" in result.stdout
    assert "1 tensors, 0 faulty" in result.stdout
    rows = {row[0]: row for row in table(result)}
    assert rows["q"][1:8] == ["156", "256", "?", "-", "-", "0", "0"]
    assert rows["q"][8].startswith("unsupported-type: Type 156")
    assert rows["cut"][8].startswith("tensor-past-end-of-file: ")
    assert rows["w"][4:6] == ["0", "7"]


def test_what_is_no_gguf_or_not_there_is_named_and_hides_nothing(tmp_path: Path) -> None:
    write_files(tmp_path, {"page.gguf": b"<!DOCTYPE html>", "m.gguf": base(), "empty.gguf": b""})
    result = check(
        tmp_path / "page.gguf", tmp_path / "none.gguf", tmp_path, tmp_path / "empty.gguf", tmp_path / "m.gguf"
    )
    assert result.exit_code == 1
    assert "page.gguf: Byte offset 0: This is not a GGUF file but an HTML page" in result.stderr
    assert "none.gguf: No such file or directory" in result.stderr
    assert f"{tmp_path}: " in result.stderr
    assert "an empty file" in result.stderr
    assert [row[0] for row in table(result)] == ["w"]


def test_a_part_stands_for_its_set_when_that_is_whole(tmp_path: Path) -> None:
    write_files(tmp_path, {f"{PART_1}.gguf": FIRST, f"{PART_2}.gguf": SECOND})
    for paths in ([PART_1], [PART_2], [PART_1, PART_2]):
        result = check(*(tmp_path / f"{name}.gguf" for name in paths))
        assert result.exit_code == 0
        assert [row[0] for row in table(result)] == ["a", "b"]


def test_a_part_without_the_others_is_checked_alone(tmp_path: Path) -> None:
    write_files(tmp_path, {f"{PART_2}.gguf": SECOND})
    result = check(tmp_path / f"{PART_2}.gguf")
    assert result.exit_code == 0
    assert "warning: " in result.stdout
    assert "opened alone" in result.stdout


def test_a_damaged_part_is_named(tmp_path: Path) -> None:
    write_files(tmp_path, {f"{PART_1}.gguf": FIRST, f"{PART_2}.gguf": SECOND[:60]})
    result = check(tmp_path / f"{PART_1}.gguf")
    assert result.exit_code == 1
    assert "in part 2 of 2" in result.stderr


def test_warnings_are_printed_and_are_no_faults(tmp_path: Path) -> None:
    write_files(tmp_path, {"m.gguf": base(entries=[kv("k", U32, 1), kv("k", F32, 2.0)])})
    result = check(tmp_path / "m.gguf")
    assert result.exit_code == 0
    assert 'warning: Key "k" occurs 2 times' in result.stdout


def test_names_cannot_write_to_the_terminal(tmp_path: Path) -> None:
    name = "\x1b[31m\r\nevil\u202e"
    write_files(tmp_path, {"\x1b[2Jm\n.gguf": base(infos=[tensor_info(name, [4, 2], 0, 0)])})
    result = check(tmp_path / "\x1b[2Jm\n.gguf")
    assert result.exit_code == 0
    assert len(table(result)) == 1
    for stream in (result.stdout, result.stderr):
        assert all(char.isprintable() or char == "\n" for char in stream)


def test_every_window_of_a_large_tensor_is_looked_at(tmp_path: Path) -> None:
    values = np.zeros(600_000, np.float32)
    values[[5, 300_000, 599_999]] = -3, NAN, 9
    write_files(tmp_path, {"m.gguf": build([("w", [600_000], 0, values.tobytes())])})
    decoded: list[int] = []
    with Snapshot.open(b"m", [bytes(tmp_path / "m.gguf")]) as snapshot:
        report = check_tensor(snapshot, snapshot.model.tensors[0], decoded.append)
    assert (report.least, report.largest, report.nans, report.infinities, report.fault) == (-3, 9, 1, 0, None)
    assert sum(decoded) == 600_000
    assert len(decoded) == 3


def test_a_file_that_fails_while_it_is_read_is_a_fault(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_files(tmp_path, {"m.gguf": base()})
    with Snapshot.open(b"m", [bytes(path)]) as snapshot:
        with path.open("r+b") as file:
            file.truncate(140)
        report = check_tensor(snapshot, snapshot.model.tensors[0], lambda _: None)
    assert report.fault is not None
    assert report.fault.startswith("volume-error: ")


@pytest.mark.parametrize("order", ["good first", "bad first"])
def test_one_fault_among_many_files_is_1(tmp_path: Path, order: str) -> None:
    write_files(tmp_path, {"a.gguf": base(), "b.gguf": base()[:-1]})
    names = ["a", "b"] if order == "good first" else ["b", "a"]
    assert check(*(tmp_path / f"{name}.gguf" for name in names)).exit_code == 1
