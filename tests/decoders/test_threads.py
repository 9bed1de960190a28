"""Many threads decode at once, from the very first call on."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import decoders
from decoders import dequantize

from .helpers import DECODABLE, assert_same_bits, make_blocks

_ROOT = Path(decoders.__file__).parents[1]

_FIRST_CALLS = """
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import decoders

sys.setswitchinterval(1e-6)
barrier = Barrier(8)
types = [t for t in decoders.GGMLType if decoders.info(t).decodable]

def decode(_):
    barrier.wait()
    return [decoders.dequantize(bytes(range(64)) * decoders.info(t).block_bytes, t).tobytes() for t in types]

with ThreadPoolExecutor(8) as pool:
    results = list(pool.map(decode, range(8)))
assert all(result == results[0] for result in results)
"""


def test_threads_that_make_the_first_calls_agree() -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", _FIRST_CALLS], check=True, timeout=60, cwd=_ROOT)


def test_threads_do_not_disturb_each_other() -> None:
    work = [(type_, make_blocks(type_, 1500, "random", seed)) for type_ in DECODABLE for seed in range(3)]
    expected = [dequantize(raw, type_) for type_, raw in work]
    with ThreadPoolExecutor(8) as pool:
        decoded = pool.map(lambda job: dequantize(job[1], job[0]), work)
        for actual, alone in zip(decoded, expected, strict=True):
            assert_same_bits(actual, alone)
