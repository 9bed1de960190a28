"""Every format that ggml decodes, against blocks and results stored from ggml 0.20."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from decoders import GGMLType, dequantize, info

from .helpers import assert_same_bits

_FOLDER = Path(__file__).with_name("golden")
_INDEX: dict[str, dict[str, Any]] = json.loads((_FOLDER / "index.json").read_text())


def test_golden_data_covers_all_formats_that_ggml_decodes() -> None:
    assert len(_INDEX) == 27
    assert {path.stem for path in _FOLDER.glob("*.npz")} == set(_INDEX)


@pytest.mark.parametrize("name", _INDEX)
def test_decoded_blocks_equal_the_stored_result(name: str) -> None:
    entry = _INDEX[name]
    block = info(entry["id"])
    assert (block.name, block.block_weights, block.block_bytes) == (
        entry["name"],
        entry["block_weights"],
        entry["block_bytes"],
    )
    with np.load(_FOLDER / f"{name}.npz") as data:
        raw, expected = data["raw"], data["expected"].reshape(-1)
    assert expected.size == entry["blocks"] * entry["block_weights"]
    assert_same_bits(dequantize(raw, GGMLType[entry["name"]]), expected)
