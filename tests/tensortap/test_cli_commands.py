"""The commands against a real server: what they print, write and exit with."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner, Result
from numpy.typing import NDArray
from safetensors.numpy import load_file

from decoders import GGMLType
from tensortap import Client
from tensortap.cli import _get, _head, _select
from tensortap.cli._exits import CODES
from tensortap.cli._main import tensortap
from tests import builder
from tests.demo import demo_model
from tests.server import Server

ODD = b"\x1b[31m[bold]\xff\n"
EXPERTS = "blk.0.ffn_gate_exps.weight"


def other_model() -> bytes:
    """A model with something of everything that a comparison with the demo model finds."""
    ramp = np.arange(64 * 32, dtype=np.float32) / 8
    ramp[5] += 0.5
    tensors: list[Any] = [
        ("token_embd.weight", [32, 64], GGMLType.F32, ramp.tobytes()),
        ("output_norm.weight", [32], GGMLType.F16, np.ones(32, "<f2").tobytes()),
        ("blk.0.attn_q.weight", [32, 8], GGMLType.F32, bytes(4 * 256)),
        (ODD, [8], GGMLType.F32, builder.F8),
        ("formats.f16", [8], 99, builder.F8),
    ]
    metadata: list[Any] = [
        ("general.architecture", builder.STRING, "llama"),
        ("nan", builder.F32, float("nan")),
        ("odd", builder.STRING, ODD),
        ("long", builder.STRING, "word " * 20_000),
        ("many", builder.ARRAY, (builder.F32, [0.5] * 99 + [float("inf")])),
        ("many.strings", builder.ARRAY, (builder.STRING, [b"x"] * 50 + [ODD])),
        ("template", builder.STRING, "line 1\nline 2"),
    ]
    return builder.build(tensors, metadata)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("volume")
    (folder / "demo.gguf").write_bytes(demo_model())
    (folder / "folder").mkdir()
    (folder / "folder" / "other.gguf").write_bytes(other_model())
    (folder / "broken.gguf").write_bytes(b"GGUF")
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("sesame\nguest demo\n")
    with Server(folder, api_keys_file=keys) as running:
        yield running


@pytest.fixture(autouse=True)
def _environment(served: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORTAP_URL", served.url)
    monkeypatch.setenv("TENSORTAP_KEY", "sesame")


@pytest.fixture
def tap(served: Server) -> Iterator[Client]:
    with Client(served.url, api_key="sesame") as client:
        yield client


def run(*words: str | Path, code: int = 0, env: dict[str, str | None] | None = None) -> Result:
    result = CliRunner().invoke(tensortap, [str(word) for word in words], catch_exceptions=False, env=env)
    assert result.exit_code == code, result.output
    if code not in (0, 1):
        assert result.stdout == ""
        assert result.stderr.startswith("tensortap: ")
        assert result.stderr.count("\n") == 1
    return result


def document(*words: str | Path, code: int = 0) -> Any:
    """What a command prints as JSON: one line of ASCII, which has no NaN."""
    printed = run(*words, "--json", code=code).stdout
    assert printed.isascii()
    assert printed.count("\n") == 1

    def no_constant(name: str) -> None:
        raise AssertionError(name)

    return json.loads(printed, parse_constant=no_constant)


def test_models_are_listed() -> None:
    lines = run("ls").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["model", "broken", "demo", "folder/other"]
    assert "unreadable: unreadable-model" in lines[1]
    assert lines[2].split()[1:] == ["llama", "43,040", "39", "61.5", "KiB"]
    broken, demo, other = document("ls")["models"]
    assert (broken["id"], broken["readable"]) == ("broken", False)
    assert (demo["id"], demo["readable"], demo["parameters"], demo["tensors"]) == ("demo", True, 43040, 39)
    assert other["unreadable_tensors"] == 1
    assert not any("href" in line for line in (broken, demo, other))


def test_tensors_are_listed_and_picked() -> None:
    lines = run("ls", "demo", "blk.*").stdout.splitlines()
    assert [line.split() for line in lines] == [
        ["name", "type", "shape", "stored"],
        ["blk.0.attn_q.weight", "Q4_1", "[64,", "64]", "2.5", "KiB"],
        [EXPERTS, "F16", "[4,", "8,", "32]", "2.0", "KiB"],
    ]
    assert [one["name"] for one in document("ls", "demo", "--type", "q4_1")["tensors"]] == [
        "blk.0.attn_q.weight",
        "formats.q4_1",
    ]
    assert document("ls", "demo", "--type", "1") == document("ls", "demo", "--type", "F16")
    assert document("ls", "demo", "nothing*") == {"model": "demo", "tensors": []}
    assert "Q99" in run("ls", "demo", "--type", "Q99", code=2).stderr


def test_names_command_no_terminal_and_stay_whole_in_json() -> None:
    printed = run("ls", "folder/other").stdout
    assert r"\x1b[31m[bold]\udcff\n" in printed
    assert "\x1b" not in printed
    odd = document("ls", "folder/other")["tensors"][3]
    assert odd["name_base64"] == "G1szMW1bYm9sZF3/Cg=="
    unreadable = document("ls", "folder/other")["tensors"][4]
    assert (unreadable["readable"], unreadable["fault"]["type"]) == (False, "/problems/unsupported-type")
    assert "unsupported-type" in run("ls", "folder/other", "formats.*").stdout


def test_a_model_and_a_tensor_are_described(tap: Client) -> None:
    printed = run("info", "demo").stdout
    assert "architecture  llama\n" in printed
    assert "parameters    43,040\n" in printed
    found = document("info", "demo")
    assert (found["parameters"], found["version"]) == (43040, tap["demo"].version)
    assert found["types"]["Q4_1"]["tensors"] == 2
    printed = run("info", "demo", "formats.q4_k").stdout
    assert "stored   576 B, 4.5 bits per weight\n" in printed
    assert document("info", "demo", "formats.q4_k")["ne"] == [256, 4]
    assert "unsupported-type: " in run("info", "folder/other", "formats.f16").stdout
    assert "1 of them unreadable" in run("info", "folder/other").stdout


def test_metadata_is_shortened_unless_all_is_asked_for() -> None:
    lines = {line.split()[0]: line for line in run("meta", "folder/other").stdout.splitlines()}
    assert lines["many"].split(maxsplit=2)[1:] == ["f32[100]", "[" + "0.5, " * 8 + "…]"]
    assert lines["long"].endswith("word…") or lines["long"].endswith("word …")
    assert len(lines["long"]) < 200
    assert r"\x1b[31m" in lines["odd"]
    found = {line["key"]: line for line in document("meta", "folder/other")["metadata"]}
    assert found["nan"] == {"key": "nan", "type": "f32", "value": "NaN"}
    assert (len(found["many"]["items"]), found["many"]["whole"]) == (8, False)
    assert found["odd"]["value_base64"] == "G1szMW1bYm9sZF3/Cg=="
    whole = {line["key"]: line for line in document("meta", "folder/other", "--all")["metadata"]}
    assert whole["many"]["items"] == [0.5] * 99 + ["Infinity"]
    assert whole["long"]["value"] == "word " * 20_000
    assert all(line.get("whole", True) for line in whole.values())


def test_one_key_is_printed_as_it_is() -> None:
    assert run("meta", "folder/other", "template").stdout == "line 1\nline 2\n"
    assert run("meta", "folder/other", "long").stdout == "word " * 20_000 + "\n"
    shortened = run("meta", "folder/other", "many.strings")
    assert shortened.stdout == "x\n" * 32
    assert shortened.stderr == "tensortap: 19 more elements; --all prints them\n"
    assert run("meta", "folder/other", "many.strings", "--all").stdout.splitlines()[49:] == [
        "x",
        r'"\u001b[31m[bold]\ufffd\n"'.replace(r"\ufffd", "\ufffd"),
    ]
    assert document("meta", "folder/other", "nan") == {
        "model": "folder/other",
        "key": "nan",
        "type": "f32",
        "value": "NaN",
    }
    assert "no-such-key" in run("meta", "demo", "general", code=3).stderr


def got(tmp_path: Path, *words: str) -> NDArray[Any]:
    run("get", *words, "-o", tmp_path / "x.npy", "--force")
    found: NDArray[Any] = np.load(tmp_path / "x.npy", allow_pickle=False)
    assert found.dtype == np.float32
    assert [path.name for path in tmp_path.iterdir()] == ["x.npy"]
    return found


@pytest.mark.parametrize(
    ("text", "index"),
    [
        ("...", ...),
        ("0,:,::2", np.s_[0, :, ::2]),
        ("1:3,-1,4", np.s_[1:3, -1, 4]),
        ("::-1,5::-2,::-7", np.s_[::-1, 5::-2, ::-7]),
        ("...,:3", np.s_[..., :3]),
        ("-1", np.s_[-1]),
        ("3,7,31", np.s_[3, 7, 31]),
        ("2:2", np.s_[2:2]),
        (":,:0", np.s_[:, :0]),
        ("-99:99, ..., 1 ", np.s_[-99:99, ..., 1]),
    ],
)
def test_slices_are_numpys(tap: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, index: Any) -> None:
    monkeypatch.setattr(_select, "_BATCH_WEIGHTS", 100)
    expected = tap["demo"][EXPERTS].read()[index]
    found = got(tmp_path, "demo", EXPERTS, f"--slice={text}")
    assert found.shape == np.shape(expected)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("0:16", list(range(16))),
        ("-1", [31]),
        ("3,7,10:14,7,-32", [3, 7, 10, 11, 12, 13, 7, 0]),
        ("9::-4", [9, 5, 1]),
        ("30:99", [30, 31]),
        ("5:5", []),
    ],
)
def test_rows_are_those_of_the_matrix(
    tap: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, rows: list[int]
) -> None:
    monkeypatch.setattr(_select, "_BATCH_WEIGHTS", 100)
    matrix = tap["demo"][EXPERTS].read().reshape(-1, 32)
    np.testing.assert_array_equal(got(tmp_path, "demo", EXPERTS, f"--rows={text}"), matrix[rows])


def test_a_tensor_is_written_whole_in_its_shape(tap: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_select, "_BATCH_WEIGHTS", 100)
    np.testing.assert_array_equal(got(tmp_path, "demo", EXPERTS), tap["demo"][EXPERTS][...])


def test_other_formats_and_standard_output(tap: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_get, "_BATCH_BYTES", 200)
    tensor = tap["demo"]["formats.q4_k"]
    raw = run("get", "demo", "formats.q4_k", "--format=raw", "-o", "-").stdout_bytes
    assert raw == tensor.read().astype("<f4").tobytes()
    run("get", "demo", "formats.q4_k", "--format=native", "-o", tmp_path / "blocks")
    assert (tmp_path / "blocks").read_bytes() == tensor.native().tobytes()
    picked = run("get", "demo", "formats.q4_k", "--format=native", "--rows=-1,0:2", "-o", "-").stdout_bytes
    assert picked == tensor.native(3, 4).tobytes() + tensor.native(0, 2).tobytes()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--rows=64"], "64 is outside"),
        (["--rows=1;2"], "neither an integer nor a slice"),
        (["--rows="], "neither"),
        (["--rows=::0"], "step"),
        (["--rows=" + "9" * 20], "neither"),
        (["--rows=\u0663"], "neither"),
        (["--slice=1,2,3"], "2 axes"),
        (["--slice=...,..."], "2 axes"),
        (["--slice=-65"], "-65 is outside"),
        (["--slice=None"], "neither"),
        (["--rows=1", "--slice=1"], "do not go together"),
        (["--format=native", "--slice=1"], "--rows"),
        (["--format=native", "--rows=::2"], "step"),
        (["--format=csv"], "csv"),
    ],
)
def test_what_cannot_be_selected_is_refused(tmp_path: Path, options: list[str], why: str) -> None:
    result = run("get", "demo", "token_embd.weight", *options, "-o", tmp_path / "x", code=2)
    assert why in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_overwritten_only_by_force(tmp_path: Path) -> None:
    target = tmp_path / "x"
    target.write_text("mine")
    for words in (["get", "demo", "output_norm.weight"], ["pull", "demo"]):
        assert "--force" in run(*words, "-o", target, code=2).stderr
        assert target.read_text() == "mine"
        run(*words, "-o", target, "--force")
        assert target.read_bytes() != b"mine"
        target.write_text("mine")


def test_a_file_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    missing = tmp_path / "no such folder" / "x"
    for words in (["get", "demo", "output_norm.weight"], ["pull", "demo"]):
        assert "No such file" in run(*words, "-o", missing, code=9).stderr


def test_a_folder_is_no_file_to_write(tmp_path: Path) -> None:
    for words in (["get", "demo", "output_norm.weight"], ["pull", "demo"]):
        for options in ([], ["--force"]):
            told = run(*words, "-o", tmp_path, *options, code=9).stderr
            assert "Is a directory" in told
            assert "--force" not in told
        for name in ("", ".", f"{tmp_path}/", f"{tmp_path}/new/", f"{tmp_path}/new/.", ".."):
            assert "names no file" in run(*words, f"--output={name}", code=2).stderr
    assert list(tmp_path.iterdir()) == []


def test_a_pipe_is_written_to_and_never_replaced(tap: Client, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    words = ["get", "demo", "output_norm.weight", "--format=raw", "-o", str(pipe)]
    run(*words, code=2)
    with os.fdopen(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK), "rb") as reader:
        run(*words, "--force")
        assert reader.read() == tap["demo"]["output_norm.weight"].read().tobytes()
    for options in ([], ["--force"]):
        told = run("pull", "demo", "-o", pipe, *options, code=9).stderr
        assert "no regular file" in told
        assert "--force" not in told
    assert [(path.name, path.is_fifo()) for path in tmp_path.iterdir()] == [("pipe", True)]


def test_a_part_of_somebody_elses_goes_only_by_force(tmp_path: Path) -> None:
    part = tmp_path / "x.part"
    part.write_text("mine")
    assert "no pull has made it" in run("pull", "demo", "-o", tmp_path / "x", code=9).stderr
    assert part.read_text() == "mine"
    run("pull", "demo", "-o", tmp_path / "x", "--force")
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_a_defect_has_a_code_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ValueError("odd \x1b[31m")

    monkeypatch.setattr(Client, "__getitem__", broken)
    result = CliRunner().invoke(tensortap, ["diff", "demo", "demo"])
    assert (result.exit_code, result.stdout) == (70, "")
    assert result.stderr.startswith("Traceback")
    assert result.stderr.endswith("tensortap: a defect of this command: ValueError: odd \\x1b[31m\n")
    assert "\x1b" not in result.stderr


def test_a_host_in_the_place_of_a_model_is_asked_about() -> None:
    for word in ("localhost:8000", "127.0.0.1:80", "[::1]:8000"):
        assert f"Did you mean http://{word}?" in run("info", word, code=3).stderr
    assert "Did you mean" not in run("info", "nothing", code=3).stderr
    assert "Did you mean" not in run("info", "demo", "localhost:8000", code=3).stderr


def test_a_model_is_pulled(tap: Client, tmp_path: Path) -> None:
    target = tmp_path / "out.safetensors"
    result = document("pull", "demo", "-o", target, "--name=formats.*", "--exclude=*q4*", "--dtype=float16")
    found = load_file(target)
    assert result == {
        "path": str(target),
        "bytes": target.stat().st_size,
        "tensors": len(found),
        "moved": target.stat().st_size,
    }
    np.testing.assert_array_equal(found["formats.q8_0"], tap["demo"]["formats.q8_0"].read().astype(np.float16))
    printed = run("pull", "demo", "-o", target, "--force").stdout
    assert printed == f"{target}: 39 tensors, {target.stat().st_size / 1024:.1f} KiB; verified\n"


def test_head_shows_rows_figures_and_a_histogram() -> None:
    lines = run("head", "demo", "token_embd.weight", "-n", "2", "--columns", "3").stdout.splitlines()
    assert [line.split() for line in lines[:3]] == [
        ["row", "0", "1", "2"],
        ["0", "0", "0.125", "0.25"],
        ["1", "4", "4.125", "4.25"],
    ]
    assert "of 2 rows out of 64, of 32 weights each" in lines
    assert "max      7.875" in lines
    assert sum(line.count("\u2588") > 0 for line in lines) == 16
    found = document("head", "demo", "token_embd.weight", "--all")
    assert found["rows"] == 64
    assert np.shape(found["values"]) == (8, 8)
    assert found["statistics"]["weights"] == 2048
    assert found["statistics"]["max"] == 2047 / 8
    assert found["statistics"]["std"] == pytest.approx(np.std(np.arange(2048) / 8))
    assert sum(bar["count"] for bar in found["histogram"]) == 2048


def test_head_of_a_tensor_that_cannot_be_read_says_why() -> None:
    assert "unsupported-type" in run("head", "folder/other", "formats.f16", code=7).stderr


def test_bars_are_drawn_with_what_the_output_can_print(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_head, "_can_print", lambda _: False)
    assert run("head", "demo", "token_embd.weight").stdout.isascii()


def test_equal_models_do_not_differ() -> None:
    assert "0 of 39 tensors that were compared differ" in run("diff", "demo", "demo").stdout
    found = document("diff", "demo", "demo", "--limit", "0")
    assert (found["equal"], found["compared"], found["tensors"]) == (True, 39, [])


def test_a_difference_is_measured_worst_first(served: Server) -> None:
    found = document("diff", "demo", "folder/other", code=1)
    assert not found["equal"]
    worst, other = found["tensors"]
    assert worst["name"] == "token_embd.weight"
    assert (worst["max_error"], worst["rmse"]) == (0.5, pytest.approx(0.5 / np.sqrt(2048)))
    assert worst["relative_rmse"] == pytest.approx(0.5 / np.linalg.norm(np.arange(2048) / 8))
    assert 0.999999 < worst["cosine"] < 1
    assert (other["name"], other["type_a"], other["type_b"], other["max_error"]) == (
        "output_norm.weight",
        "F32",
        "F16",
        0,
    )
    assert [one["name_base64"] for one in found["only_b"]] == ["G1szMW1bYm9sZF3/Cg=="]
    assert len(found["only_a"]) == 35
    assert found["shapes"] == [{"name": "blk.0.attn_q.weight", "a": [64, 64], "b": [8, 32]}]
    assert [one["name"] for one in found["unreadable"]] == ["formats.f16"]
    lines = run("diff", "demo", "folder/other", "--limit=1", code=1).stdout.splitlines()
    assert lines[1].split()[:3] == ["token_embd.weight", "F32", "0.5"]
    assert lines[2].startswith("only the first has ")
    assert "cannot be read: formats.f16" in lines
    assert lines[-1] == "1 of 2 tensors that were compared differ"


def test_types_that_differ_with_equal_values_are_no_difference() -> None:
    assert "F32 / F16" in run("diff", "demo", "folder/other", "--name=output_norm.*").stdout


def test_the_other_service_gets_no_key_but_its_own(served: Server) -> None:
    words = ["diff", "demo", "demo", "--url-b", served.url, "--name=output*"]
    assert "unauthorized" in run(*words, code=4).stderr
    assert "1 tensors" in run(*words, "--api-key-b=guest").stdout


def test_the_url_may_be_given_or_be_in_the_environment(served: Server) -> None:
    assert run("ls", served.url, "demo").stdout == run("ls", "demo").stdout
    nowhere: dict[str, str | None] = {"TENSORTAP_URL": None}
    assert run("ls", served.url, env=nowhere).stdout == run("ls").stdout
    assert "TENSORTAP_URL" in run("ls", env=nowhere, code=2).stderr


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["ls", "nothing"], 3),
        (["ls", "broken"], 7),
        (["info", "demo", "nothing"], 3),
        (["get", "demo", "nothing", "-o", "-"], 3),
        (["diff", "demo", "folder/other", "--name", "typo*"], 3),
        (["ls", "--api-key", "wrong"], 4),
        (["ls", "folder/other", "--api-key", "guest"], 3),
        (["ls", "http://127.0.0.1:1", "--retries=0"], 5),
        (["ls", "ftp://host"], 2),
        (["ls", "http://"], 2),
        (["ls", "http://host:99999999"], 2),
        (["ls", "--api-key", "line\nbreak"], 2),
        (["ls", "--type", "F16"], 2),
        (["ls", "demo", "*", "more"], 2),
        (["info"], 2),
        (["get", "demo", "-o", "-"], 2),
        (["get", "demo", "token_embd.weight"], 2),
        (["ls", "--timeout=0"], 2),
        (["nothing"], 2),
        (["--nothing"], 2),
    ],
)
def test_errors_are_one_line_and_a_code(words: list[str], code: int) -> None:
    run(*words, code=code)


def test_help_tells_of_every_command_and_code() -> None:
    printed = run("--help").stdout
    assert all(f"  {code}  {meaning}" in printed for code, meaning in CODES.items())
    for name, command in tensortap.commands.items():
        assert isinstance(command, click.Command)
        assert f"\n  {name} " in printed
        assert (
            f"Usage: tensortap {name} [OPTIONS] [URL]"
            in CliRunner().invoke(tensortap, [name, "--help"], prog_name="tensortap").stdout
        )
    assert run("--version").stdout.startswith("tensortap, version ")
