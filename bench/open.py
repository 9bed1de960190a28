"""Opening a model file, as the service does it, beside gguf-py's GGUFReader.

The files are in the page cache. Ours parses the header and finds where every array's elements are; the reader makes an
object of every element.
"""

import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import gguf

from app.gguf import open_model
from bench._table import Plot, Series, Table, Target
from bench._timing import best
from decoders import GGMLType
from tests import builder

__all__ = ["run"]

_SMOLLM2 = Path("models/SmolLM2-135M-Instruct.Q4_1.gguf")
_N_TOKENS = 262_144
_SYLLABLES = ("an", "be", "co", "der", "ent", "für", "ing", "ka", "lo", "mi", "ñe", "ous", "pra", "st", "тра", "語")


def run(quick: bool) -> Iterator[Table]:
    """Milliseconds to open SmolLM2 and a file of 262,144 tokens, and how many times as long the reader takes."""
    if not _SMOLLM2.exists():  # the Makefile knows where it is from
        subprocess.run(["make", f"PYTHON={sys.executable}", str(_SMOLLM2)], check=True)
    rounds = 1 if quick else 3
    with tempfile.TemporaryDirectory() as folder:
        vocabulary = Path(folder) / "vocabulary.gguf"
        vocabulary.write_bytes(_many_tokens())
        files = {"SmolLM2-135M": _SMOLLM2, f"{_N_TOKENS:,} tokens": vocabulary}
        times = {name: _compared(path, rounds) for name, path in files.items()}
    yield Table(
        "open",
        "opening a model file, milliseconds",
        ["file", "tensortap", "GGUFReader", "ratio"],
        [[name, ours * 1e3, reader * 1e3, reader / ours] for name, (ours, reader) in times.items()],
        [
            Plot(
                [
                    Series("tensortap", [ours * 1e3 for ours, _ in times.values()]),
                    Series("GGUFReader", [reader * 1e3 for _, reader in times.values()]),
                ],
                list(times),
                "milliseconds",
                log_y=True,
            )
        ],
        [Target(f"{name}: times as fast as GGUFReader", reader / ours, 40) for name, (ours, reader) in times.items()],
    )


def _compared(path: Path, rounds: int) -> tuple[float, float]:
    took = best({"ours": lambda: _open(path), "reader": lambda: gguf.GGUFReader(path)}, rounds)
    return took["ours"], took["reader"]


def _open(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        open_model([fd])
    finally:
        os.close(fd)


def _many_tokens() -> bytes:
    """A model with a vocabulary like those of large models: words of syllables, bytes first, scores and types."""
    chance = random.Random(0)
    tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    while len(tokens) < _N_TOKENS:
        word = "".join(chance.choices(_SYLLABLES, k=chance.randint(1, 4)))
        tokens.append(f"▁{word}" if chance.random() < 0.6 else word)
    scores = [-float(rank) for rank in range(_N_TOKENS)]
    types = [6 if rank < 256 else 1 for rank in range(_N_TOKENS)]  # of llama.cpp: a byte, a normal token
    return builder.build(
        [("token_embd.weight", [32, 1], GGMLType.Q8_0, bytes(34))],
        [
            ("general.architecture", builder.STRING, "llama"),
            ("tokenizer.ggml.model", builder.STRING, "llama"),
            ("tokenizer.ggml.tokens", builder.ARRAY, (builder.STRING, tokens)),
            ("tokenizer.ggml.scores", builder.ARRAY, (builder.F32, scores)),
            ("tokenizer.ggml.token_type", builder.ARRAY, (builder.I32, types)),
        ],
    )
