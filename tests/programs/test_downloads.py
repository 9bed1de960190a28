"""curl, wget and aria2 fetch, resume and split a tensor, and get the right bytes."""

import hashlib
import subprocess
from pathlib import Path

import pytest

from tests.programs.conftest import DATA, program
from tests.server import Server
from tests.waiting import eventually

pytestmark = pytest.mark.programs
SIZE = 64 << 20


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)


def cut_off(*command: str | Path, cwd: Path, target: Path) -> None:
    """Run a program that is told to be slow, and kill it in the middle of its download."""
    process = subprocess.Popen(command, cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    eventually(lambda: target.stat().st_size > 1 << 20)
    process.kill()
    process.wait()
    assert 0 < target.stat().st_size < SIZE


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_curl_resumes(server: Server, digest: str, tmp_path: Path) -> None:
    target = tmp_path / "out.bin"
    url = server.url + DATA
    cut_off(program("curl"), "-s", "--limit-rate", "8M", "-o", target, url, cwd=tmp_path, target=target)
    again = run(program("curl"), "-sS", "-C", "-", "-o", target, "-w", "%{http_code}", url, cwd=tmp_path)
    assert (again.returncode, again.stdout) == (0, "206"), again.stderr
    assert sha256(target) == digest


def test_curl_names_the_file(server: Server, digest: str, tmp_path: Path) -> None:
    assert run(program("curl"), "-sSOJ", server.url + DATA, cwd=tmp_path).returncode == 0
    assert [path.name for path in tmp_path.iterdir()] == ["m.dense_kernel_0.bin"]
    assert sha256(tmp_path / "m.dense_kernel_0.bin") == digest


def test_curl_revalidates(server: Server, tmp_path: Path) -> None:
    url = f"{server.url}{DATA}?rows=0"
    first = run(program("curl"), "-sS", "--etag-save", "etag", "-o", "out", "-w", "%{http_code}", url, cwd=tmp_path)
    again = run(program("curl"), "-sS", "--etag-compare", "etag", "-o", "new", "-w", "%{http_code}", url, cwd=tmp_path)
    assert (first.stdout, again.stdout) == ("200", "304")
    by_time = run(program("curl"), "-sS", "-z", "out", "-R", "-o", "new", "-w", "%{http_code}", url, cwd=tmp_path)
    assert by_time.stdout == "304"


def test_curl_gets_several_ranges(server: Server, tmp_path: Path) -> None:
    parts = run(program("curl"), "-sS", "-r", "0-3,8-11", "-D", "-", "-o", "out", server.url + DATA, cwd=tmp_path)
    assert "206" in parts.stdout
    assert "multipart/byteranges" in parts.stdout


def test_curl_posts_a_selection(server: Server, tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text('{"rows": [3, "10:12"], "cols": "0:2", "format": "json"}')
    command = [program("curl"), "-sS", "--json", "@rows.json", server.url + DATA]
    assert '"shape":[3,2]' in run(*command, cwd=tmp_path).stdout


def test_wget_resumes(server: Server, digest: str, tmp_path: Path) -> None:
    target = tmp_path / "out.bin"
    url = server.url + DATA
    cut_off(program("wget"), "-q", "--limit-rate=8m", "-O", target, url, cwd=tmp_path, target=target)
    again = run(program("wget"), "-S", "-c", "-O", target, url, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert "206 Partial Content" in again.stderr
    assert sha256(target) == digest


def test_aria2_splits(server: Server, digest: str, tmp_path: Path) -> None:
    command = [program("aria2c"), "-x8", "-s8", "-k1M", "-o", "out.bin", server.url + DATA]
    assert run(*command, cwd=tmp_path).returncode == 0
    assert sha256(tmp_path / "out.bin") == digest
