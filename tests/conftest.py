"""What holds for all tests: generated inputs are the same in every run, and they take little time."""

import gc
import os
import signal

import pytest
from hypothesis import settings

# A run that fails by chance would say something about chance, not about the change. New inputs are the fuzzer's work.
settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
settings.load_profile("repeatable")


# What a script starts in its background ignores interrupts, and so does what that starts: tests interrupt programs.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Leave what is there before the first test, a million objects, out of every later collection."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_auto_num_workers() -> int:
    """One process more than there are cores: many tests wait, for a client to be cut or a server to start."""
    return (os.cpu_count() or 1) + 1
