"""The command as a process: pipes, signals, terminals, completion."""

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from tensortap.cli._main import tensortap
from tests.demo import demo_model
from tests.server import Server
from tests.tensortap.proxy import Fault, Proxy

TENSORTAP = [sys.executable, "-m", "tensortap"]
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("volume")
    (folder / "demo.gguf").write_bytes(demo_model())
    with Server(folder) as running:
        yield running


def environment(url: str, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TENSORTAP_")}
    return {**kept, "PYTHONPATH": str(ROOT), "TENSORTAP_URL": url, **more}


def run(url: str, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*TENSORTAP, *words], env=environment(url, **more), capture_output=True, text=True, check=False, timeout=60
    )


def on_a_terminal(url: str, *words: str, columns: int = 60) -> str:
    """What a command writes to a terminal of that width."""
    main, side = pty.openpty()
    settings = environment(url, COLUMNS=str(columns), TERM="xterm-256color")
    settings.pop("NO_COLOR", None)
    with subprocess.Popen([*TENSORTAP, *words], env=settings, stdin=side, stdout=side, stderr=side) as process:
        os.close(side)
        written = b""
        try:
            while piece := os.read(main, 1 << 16):
                written += piece
        except OSError:  # the other side is closed
            pass
        os.close(main)
        assert process.wait(60) in (0, 2)
    return written.decode()


def test_it_runs_as_a_module_with_its_exit_code(served: Server) -> None:
    result = run(served.url, "ls", "demo", "output*")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines()[1].split() == ["output_norm.weight", "F32", "[32]", "128", "B"]
    result = run(served.url, "info", "nothing")
    assert (result.returncode, result.stdout) == (3, "")
    assert result.stderr.startswith("tensortap: no-such-model: ")


def test_a_reader_that_has_enough_ends_it_quietly(served: Server) -> None:
    # More than a pipe holds.
    words = [*TENSORTAP, "get", "demo", "token_embd.weight", "--rows=" + ",".join([":"] * 40), "-o", "-"]
    with subprocess.Popen(
        words, env=environment(served.url), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(6) == b"\x93NUMPY"
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == -signal.SIGPIPE


def test_an_interrupt_ends_it_at_once_and_leaves_no_file(served: Server, tmp_path: Path) -> None:
    stall = Fault(after=100, how="stall")
    with Proxy(served.port, lambda _: stall) as proxy:
        words = [*TENSORTAP, "get", "demo", "token_embd.weight", "-o", str(tmp_path / "x.npy")]
        with subprocess.Popen(
            words, env=environment(proxy.url), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert proxy.stalled.wait(30)
            process.send_signal(signal.SIGINT)
            output, told = process.communicate(timeout=30)
    assert (process.returncode, output, told) == (-signal.SIGINT, b"", b"")
    assert list(tmp_path.iterdir()) == []


def test_a_terminal_gets_colours_and_folded_lines_and_a_pipe_whole_ones(served: Server) -> None:
    printed = on_a_terminal(served.url, "ls", "demo", columns=40)
    assert "\x1b[1m" in printed
    assert max(map(len, printed.replace("\x1b[1m", "").replace("\x1b[0m", "").splitlines())) <= 40
    assert "blk.0.ffn_gate_exps.weight" not in printed
    piped = run(served.url, "ls", "demo", COLUMNS="40", TERM="xterm-256color").stdout
    assert "\x1b" not in piped
    assert "blk.0.ffn_gate_exps.weight" in piped


def test_no_bar_is_drawn_where_nobody_watches(served: Server, tmp_path: Path) -> None:
    result = run(served.url, "pull", "demo", "-o", str(tmp_path / "piped"))
    assert result.stderr == ""
    printed = on_a_terminal(served.url, "pull", "demo", "-o", str(tmp_path / "watched"), columns=200)
    assert "100%" in printed or "\u2501" in printed


def test_weights_are_not_written_to_a_terminal(served: Server) -> None:
    printed = on_a_terminal(served.url, "get", "demo", "token_embd.weight", "-o", "-", columns=200)
    assert printed.startswith("tensortap: weights are no text")


def test_names_that_an_encoding_has_not_are_escaped(served: Server) -> None:
    result = run(served.url, "head", "demo", "token_embd.weight", PYTHONIOENCODING="ascii")
    assert result.returncode == 0
    assert "####" in result.stdout


def completed(url: str, *words: str) -> list[str]:
    """The words that bash is offered for the last of ``words``."""
    asked = {"_TENSORTAP_COMPLETE": "bash_complete", "COMP_CWORD": str(len(words)), "TENSORTAP_URL": url}
    offered = CliRunner().invoke(
        tensortap, [], prog_name="tensortap", env={**asked, "COMP_WORDS": "\n".join(["tensortap", *words])}
    )
    assert (offered.exit_code, offered.stderr) == (0, "")
    return [line.partition(",")[2] for line in offered.stdout.split()]


def test_completion_knows_models_tensors_and_keys(served: Server) -> None:
    assert completed(served.url, "p") == ["pull"]
    assert completed(served.url, "info", "") == ["demo"]
    assert completed(served.url, "get", "demo", "blk.0.a") == ["blk.0.attn_q.weight"]
    assert completed(served.url, "meta", "demo", "general.n") == ["general.name"]
    assert completed(served.url, "diff", "demo", "d") == ["demo"]
    assert completed(served.url, "diff", "demo", "demo", "d") == []
    assert "--rows" in completed(served.url, "get", "demo", "--ro")


def test_completion_knows_a_url_that_bash_has_broken(served: Server) -> None:
    words = served.url.replace(":", " : ").split()
    assert completed("", "info", *words, "d") == ["demo"]
    assert completed("", "info", served.url, "demo", "output") == ["output_norm.weight"]


def test_completion_is_silent_where_there_is_nothing_to_ask() -> None:
    assert completed("http://127.0.0.1:1", "info", "d") == []
    assert completed("", "info", "d") == []
    assert completed("nonsense", "get", "demo", "d") == []


def test_bash_takes_the_completion(served: Server, tmp_path: Path) -> None:
    (tmp_path / "tensortap").write_text(f'#!/bin/sh\nexec {sys.executable} -m tensortap "$@"\n')
    (tmp_path / "tensortap").chmod(0o755)
    script = (
        'eval "$(_TENSORTAP_COMPLETE=bash_source tensortap)"; COMP_WORDS=(tensortap ls demo out); COMP_CWORD=3; '
        '_tensortap_completion tensortap; echo "${COMPREPLY[@]}"'
    )
    settings = environment(served.url, PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    result = subprocess.run(
        ["bash", "--norc", "-c", script], env=settings, capture_output=True, text=True, check=True, timeout=60
    )
    assert result.stdout == "output_norm.weight\n"


def test_without_click_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['click'] = None; from tensortap.cli import main; main()"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert result.returncode == 2
    assert result.stderr == "tensortap: the command line needs click: pip install 'tensortap[cli]'\n"
