"""How long a cached one-row GET takes while large streams run: ``python bench/small_requests.py [STREAMS]``.

A real server; 8 clients (curl, which throws the bytes away) that each read a tensor of 1 GiB decoded over and over, and
one client that asks for one row a thousand times on one connection. Prints the median, p99 and the largest, without
streams and with them.
"""

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from decoders import GGMLType
from tests import builder
from tests.server import Server

REQUESTS, ROW, N_ROWS = 1000, 4096, 65_536
DATA = "/v1/models/{}/-/data/w"


def write(path: Path, n_rows: int) -> None:
    """A model of one Q8_0 tensor; beyond its first row it is a hole, so that it takes no room."""
    first = np.tile(np.frombuffer(np.float16(0.5).tobytes() + bytes(range(32)), np.uint8), ROW // 32)
    with path.open("wb") as file:
        file.write(builder.base(infos=[builder.tensor_info("w", [ROW, n_rows], GGMLType.Q8_0, 0)], data=b""))
        start = file.tell()
        file.write(first.tobytes())
        file.truncate(start + n_rows * ROW // 32 * 34)


def figures(server: Server) -> str:
    """The times of one-row GETs, in milliseconds."""
    times = []
    for _ in range(REQUESTS):
        start = time.perf_counter()
        assert len(server.client.get(f"{DATA.format('small')}?rows=0").content) == ROW * 4
        times.append((time.perf_counter() - start) * 1e3)
    return f"median {np.median(times):.1f} ms, p99 {np.percentile(times, 99):.1f} ms, largest {max(times):.1f} ms"


if __name__ == "__main__":
    n_streams = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / "small.gguf", 64)
        write(Path(folder) / "large.gguf", N_ROWS)
        with Server(Path(folder), cache_bytes=64 << 20) as running:
            print(f"alone: {figures(running)}")
            url = running.url + DATA.format("large")
            command = [shutil.which("curl") or "curl", "-s", "-o", "/dev/null", *[url] * 50]
            streams = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(n_streams)]
            time.sleep(1)
            print(f"beside {n_streams} streams: {figures(running)}")
            for stream in streams:
                stream.kill()
                stream.wait()
