"""Checks a real model through a real server: every tensor, fetched over HTTP, against gguf-py, bit for bit.

``python -m tests.real FILE`` prints a line for each type and exits 1 if a tensor differs.
"""

import sys
from collections import Counter
from pathlib import Path

import gguf
import numpy as np

from tests.server import Server

__all__ = ["check_model"]


def check_model(path: Path) -> bool:
    """Whether every tensor of the model equals gguf-py's values; prints what was compared."""
    equal: Counter[str] = Counter()
    total: Counter[str] = Counter()
    with Server(path.parent) as server:
        for tensor in gguf.GGUFReader(path).tensors:
            expected = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
            answer = server.client.get("/v1/data", params={"model": path.stem, "tensor": tensor.name})
            answer.raise_for_status()
            weights = np.frombuffer(answer.content, "<f4")
            name = tensor.tensor_type.name
            total[name] += 1
            if np.array_equal(weights.view(np.uint32), expected.reshape(-1).view(np.uint32)):
                equal[name] += 1
            else:
                print(f"{tensor.name} ({name}) differs")
    for name, count in total.items():
        print(f"{name}: {equal[name]} of {count} tensors equal")
    print(f"{path.name}: {equal.total()} of {total.total()} tensors equal gguf-py bit for bit")
    return equal == total


if __name__ == "__main__":
    sys.exit(0 if check_model(Path(sys.argv[1])) else 1)
