"""The volume itself: unmounted, without permission, with what is no model in it; and back again."""

import os
import shutil
import socket
import subprocess
import threading
from pathlib import Path

import pytest

from tests.builder import base
from tests.faults.server import FaultyServer, model, steady, values
from tests.waiting import eventually

W = "/v1/models/m/-/data/w"


def mount(*arguments: str) -> None:
    done = subprocess.run(arguments, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"nothing can be mounted: {done.stderr.strip()}")


def test_a_volume_that_is_unmounted_and_mounted_again(tmp_path: Path) -> None:
    root = tmp_path / "volume"
    root.mkdir()
    mount("mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(root))
    try:
        (root / "m.gguf").write_bytes(model())
        with FaultyServer(root, tmp_path / "rules", recheck_seconds=0) as server, steady(server):
            for version in (1, 2):
                assert server.get(W).status == 200
                mount("umount", "--lazy", str(root))
                # The empty folder below is a volume without models.
                assert server.get(W).slug == (404, "no-such-model")
                assert b'"count":0' in server.get("/v1/models").body
                root.rmdir()
                for path in (W, "/v1/models", "/readyz"):
                    assert server.get(path).slug == (503, "volume-error"), path
                root.mkdir()
                mount("mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(root))
                (root / "m.gguf").write_bytes(model(version))
                assert server.get(W).body == values(version)
    finally:
        subprocess.run(["umount", "--lazy", str(root)], capture_output=True)


@pytest.mark.parametrize("error", ["EIO", "EACCES", "ESTALE"])
def test_a_folder_that_cannot_be_read(server: FaultyServer, error: str) -> None:
    folder = server.root / "folder"
    folder.mkdir(exist_ok=True)
    (folder / "x.gguf").write_bytes(base())
    assert server.get("/v1/models/folder/x/-/data/w").status == 200
    with steady(server):
        server.rules({"call": ["scandir", "listdir", "lstat", "stat"], "path": "volume/folder", "error": error})
        server.log.clear()
        for _ in range(3):
            assert server.get("/v1/models/folder/x/-/data/w").slug == (503, "volume-error")
            assert server.get("/v1/models/folder/none").slug == (503, "volume-error")
            listed = server.get("/v1/models").body
            assert b'"m"' in listed
            assert b"folder" not in listed
            assert server.get(W).body == values(0)
        assert len([line for line in server.log if "is left out of the list" in line]) == 1
        server.rules()
        assert server.get("/v1/models/folder/x/-/data/w").status == 200
        assert b"folder" in server.get("/v1/models").body
        server.rules({"call": ["scandir", "listdir", "lstat", "stat"], "path": "volume", "error": error})
        for path in (W, "/v1/models", "/readyz"):
            assert server.get(path).slug == (503, "volume-error"), path
        server.rules()


def test_a_permission_that_is_lost_and_given_again(server: FaultyServer) -> None:
    """Without a change of the file that would show: nothing is kept of it."""
    server.rules({"call": "open", "path": "m.gguf", "error": "EACCES"})
    os.utime(server.root / "m.gguf")
    for _ in range(2):
        assert server.get(W).slug == (422, "unreadable-model")
        assert b"no permission" in server.get("/v1/models").body
    server.rules()
    assert server.get(W).body == values(0)
    assert b"no permission" not in server.get("/v1/models").body


def test_a_user_who_loses_the_permission(tmp_path: Path) -> None:
    """For real, as one whose permissions count: root without the capability to do without them."""
    root = tmp_path / "volume"
    root.mkdir()
    (root / "m.gguf").write_bytes(model())
    through = []
    if os.getuid() == 0:
        setpriv = shutil.which("setpriv")
        if setpriv is None:
            pytest.skip("there is no setpriv (util-linux)")
        through = [setpriv, "--bounding-set=-dac_override,-dac_read_search"]
    with FaultyServer(root, tmp_path / "rules", through=through, recheck_seconds=0) as server, steady(server):
        (root / "m.gguf").chmod(0)
        assert server.get(W).slug == (422, "unreadable-model")
        (root / "m.gguf").chmod(0o644)
        assert server.get(W).body == values(0)
        root.chmod(0)
        for path in (W, "/v1/models", "/readyz"):
            assert server.get(path).slug == (503, "volume-error"), path
        root.chmod(0o755)
        assert server.get(W).body == values(0)


def test_what_is_no_file_is_no_model_and_holds_nobody_up(server: FaultyServer) -> None:
    root = server.root
    os.mkfifo(root / "fifo.gguf")
    (root / "folder.gguf").mkdir()
    (root / "loop.gguf").symlink_to("loop.gguf")
    (root / "round").symlink_to(".")
    (root / "dangling.gguf").symlink_to("nowhere.gguf")
    os.symlink("/dev/zero", root / "device.gguf")
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind(os.path.relpath(root / "socket.gguf"))
        with steady(server):
            for name in ("fifo", "folder", "loop", "dangling", "device", "socket", "round/loop"):
                for suffix in ("", ".gguf"):
                    assert server.get(f"/v1/models/{name}{suffix}").slug == (404, "no-such-model"), name
            listed = server.get("/v1/models").body
            assert b'"m"' in listed
            assert not [
                name for name in (b"fifo", b"loop", b"device", b"socket", b"dangling", b"round") if name in listed
            ]


def test_a_folder_of_very_many_files(server: FaultyServer) -> None:
    many = server.root / "many"
    many.mkdir()
    for number in range(20_000):
        os.close(os.open(many / f"{number}.txt", os.O_CREAT | os.O_WRONLY))
    (many / "x.gguf").write_bytes(base())
    with steady(server):
        for _ in range(2):
            assert b'"many/x"' in server.get("/v1/models").body
            assert server.get("/v1/models/many/x").status == 200
            assert server.get("/v1/models/many/none").slug == (404, "no-such-model")
    shutil.rmtree(many)


def test_folders_that_are_renamed_under_load(server: FaultyServer) -> None:
    here, there = server.root / "here", server.root / "there"
    here.mkdir()
    (here / "x.gguf").write_bytes(model(5))
    stop = threading.Event()
    wrong: list[object] = []

    def ask() -> None:
        while not stop.is_set():
            for name in ("here", "there"):
                reply = server.get(f"/v1/models/{name}/x/-/data/w")
                if not (reply.whole and (reply.body == values(5) or reply.status == 404)):
                    wrong.append(reply)
            if server.get("/v1/models").status != 200:
                wrong.append("list")

    with steady(server):
        clients = [threading.Thread(target=ask) for _ in range(3)]
        for client in clients:
            client.start()
        for _ in range(20):
            os.rename(here, there)
            eventually(lambda: server.get("/v1/models/there/x").status == 200)
            os.rename(there, here)
            eventually(lambda: server.get("/v1/models/here/x").status == 200)
        stop.set()
        for client in clients:
            client.join()
    assert not wrong, wrong[:2]
