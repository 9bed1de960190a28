"""Blocks to decode: random ones with scales as models have them, since a scale that is no number is no work to show."""

import numpy as np
from numpy.typing import NDArray

from decoders import GGMLType, info
from tests.demo import HALF_SCALES

__all__ = ["random_blocks"]

# Where a block has scales of half precision. Random bytes there would make infinities and NaNs, and subnormal
# products, at which some processors are many times slower.
_HALF_SCALES = {**HALF_SCALES, GGMLType.TQ1_0: (52,), GGMLType.TQ2_0: (64,)}


def random_blocks(type_: GGMLType, n_weights: int, seed: int = 0) -> NDArray[np.uint8]:
    """Whole blocks of ``n_weights`` weights as bytes: random quants, and finite scales of a few hundredths."""
    rng = np.random.default_rng(seed)
    block = info(type_)
    n_blocks = n_weights // block.block_weights
    if type_ in (GGMLType.F32, GGMLType.F16, GGMLType.BF16, GGMLType.F64):
        weights = rng.standard_normal(n_weights, np.float32)
        if type_ is GGMLType.BF16:
            return (weights.view(np.uint32) >> 16).astype("<u2").view(np.uint8)
        return weights.astype({4: "<f4", 2: "<f2", 8: "<f8"}[block.block_bytes]).view(np.uint8)
    blocks = rng.integers(0, 256, (n_blocks, block.block_bytes), np.uint8)
    for at in _HALF_SCALES.get(type_, ()):
        scales = rng.uniform(0.01, 0.05, n_blocks).astype("<f2")
        blocks[:, at : at + 2] = scales.view(np.uint8).reshape(n_blocks, 2)
    if type_ is GGMLType.Q8_K:
        blocks[:, :4] = rng.uniform(0.01, 0.05, n_blocks).astype("<f4").view(np.uint8).reshape(n_blocks, 4)
    elif type_ is GGMLType.MXFP4:
        blocks[:, 0] = rng.integers(118, 126, n_blocks)  # an exponent with bias 127
    elif type_ is GGMLType.NVFP4:
        blocks[:, :4] = rng.integers(24, 56, (n_blocks, 4))  # four-bit exponents and three-bit mantissas
    elif type_ is GGMLType.IQ1_M:
        # The bits of the half scale are the top nibbles of the four last words: 0x2400 is 1/64.
        for word, nibble in enumerate((0x0, 0x0, 0x4, 0x2)):
            blocks[:, 49 + 2 * word] = blocks[:, 49 + 2 * word] & 0x0F | nibble << 4
    return blocks.reshape(-1)
