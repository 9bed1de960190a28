"""What holds for all tests: generated inputs are the same in every run, and collecting garbage costs little."""

import gc

from hypothesis import settings

# A run that fails by chance would say something about chance, not about the change. New inputs are the fuzzer's work.
settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
settings.load_profile("repeatable")


def pytest_collection_finish() -> None:
    """Leave what is there before the first test, a million objects, out of every later collection."""
    gc.collect()
    gc.freeze()
