"""How fast random rows come beside consecutive ones: ``python bench/gather.py``.

A real server, an embedding table of 49,152 rows of 576 weights in Q8_0, and 10,000 rows at a time: consecutive ones by
GET, random ones by POST, in turn, several rounds, both with a warm cache; the best of each counts. Before: one cold.
"""

import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from decoders import GGMLType
from tests import builder
from tests.server import Server

ROUNDS, ROWS, ROW, N_ROWS = 9, 10_000, 576, 49_152
PATH = "/v1/models/m/-/data/token_embd.weight"


def seconds(server: Server, body: dict[str, object] | None) -> float:
    """How long one answer takes, read to its end."""
    method, path = ("GET", f"{PATH}?rows=1000:{1000 + ROWS}") if body is None else ("POST", PATH)
    start = time.perf_counter()
    with server.client.stream(method, path, json=body) as answer:
        size = sum(len(chunk) for chunk in answer.iter_raw(1 << 20))
    assert size == ROWS * ROW * 4, size
    return time.perf_counter() - start


if __name__ == "__main__":
    blocks = np.random.default_rng(0).integers(0, 256, (ROW * N_ROWS // 32, 34), np.uint8)
    blocks[:, 1] &= 0x3F
    rows = np.random.default_rng(1).integers(0, N_ROWS, ROWS).tolist()
    with tempfile.TemporaryDirectory() as folder:
        tensors = [("token_embd.weight", [ROW, N_ROWS], GGMLType.Q8_0, blocks.tobytes())]
        (Path(folder) / "m.gguf").write_bytes(builder.build(tensors))
        with Server(Path(folder), cache_bytes=256 << 20) as running:
            cold = seconds(running, {"rows": rows})
            turns = [(seconds(running, None), seconds(running, {"rows": rows})) for _ in range(ROUNDS)]
    consecutive, gathered = (min(column) for column in zip(*turns, strict=True))
    size = ROWS * ROW * 4 / 1e6
    print(
        f"consecutive {size / consecutive:.0f} MB/s, random {size / gathered:.0f} MB/s ({consecutive / gathered:.2f})"
    )
    print(f"random, cold cache: {size / cold:.0f} MB/s")
