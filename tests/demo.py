"""Makes the demo model, ``models/demo.gguf``: a small file with a tensor of every format that tensortap decodes.

``python -m tests.demo models/demo.gguf`` writes it. Its bytes depend on nothing but this module.
"""

import hashlib
import sys
from pathlib import Path

import numpy as np

import decoders
from decoders import GGMLType
from tests import builder

__all__ = ["HALF_SCALES", "demo_model"]

# Where a block has its scales: random bytes there would be infinities and NaNs.
HALF_SCALES = {
    GGMLType.Q4_0: (0,),
    GGMLType.Q4_1: (0, 2),
    GGMLType.Q5_0: (0,),
    GGMLType.Q5_1: (0, 2),
    GGMLType.Q8_0: (0,),
    GGMLType.Q8_1: (0, 2),
    GGMLType.Q2_K: (80, 82),
    GGMLType.Q3_K: (108,),
    GGMLType.Q4_K: (0, 2),
    GGMLType.Q5_K: (0, 2),
    GGMLType.Q6_K: (208,),
    GGMLType.IQ1_S: (0,),
    GGMLType.IQ2_XXS: (0,),
    GGMLType.IQ2_XS: (0,),
    GGMLType.IQ2_S: (0,),
    GGMLType.IQ3_XXS: (0,),
    GGMLType.IQ3_S: (0,),
    GGMLType.IQ4_NL: (0,),
    GGMLType.IQ4_XS: (0,),
    GGMLType.Q1_0: (0,),
    GGMLType.Q2_0: (0,),
}
_ROWS, _ROW_WEIGHTS = 4, 256


def demo_model() -> bytes:
    """The bytes of the demo model."""
    ramp = np.arange(64 * 32, dtype=np.float32) / 8
    experts = np.arange(4 * 8 * 32, dtype=np.float32).astype(np.float16)
    tensors: list[tuple[builder.Text, builder.Shape, int, bytes]] = [
        ("token_embd.weight", [32, 64], GGMLType.F32, ramp.astype("<f4").tobytes()),
        ("blk.0.attn_q.weight", [64, 64], GGMLType.Q4_1, _blocks(GGMLType.Q4_1, 64 * 64)),
        ("blk.0.ffn_gate_exps.weight", [32, 8, 4], GGMLType.F16, experts.astype("<f2").tobytes()),
        ("output_norm.weight", [32], GGMLType.F32, np.ones(32, "<f4").tobytes()),
    ]
    for ggml_type in GGMLType:
        if decoders.info(ggml_type).decodable:
            name = f"formats.{ggml_type.name.lower()}"
            tensors.append((name, [_ROW_WEIGHTS, _ROWS], ggml_type, _blocks(ggml_type, _ROWS * _ROW_WEIGHTS)))
    metadata: list[tuple[builder.Text, int, object]] = [
        ("general.architecture", builder.STRING, "llama"),
        ("general.name", builder.STRING, "tensortap demo"),
        ("general.license", builder.STRING, "cc0-1.0"),
        ("llama.block_count", builder.U32, 1),
        ("llama.embedding_length", builder.U32, 32),
        ("llama.rope.freq_base", builder.F32, 10000.0),
        ("tokenizer.ggml.model", builder.STRING, "llama"),
        ("tokenizer.ggml.tokens", builder.ARRAY, (builder.STRING, [f"token {number}" for number in range(64)])),
        ("tokenizer.ggml.scores", builder.ARRAY, (builder.F32, [-number / 10 for number in range(64)])),
    ]
    return builder.build(tensors, metadata)


def _blocks(ggml_type: GGMLType, n_weights: int) -> bytes:
    """Blocks of a type: made from a hash of its name, with scales of a few hundredths."""
    block = decoders.info(ggml_type)
    values = np.arange(n_weights, dtype=np.float32) / np.float32(512) - 1
    if ggml_type in (GGMLType.TQ1_0, GGMLType.TQ2_0):
        quantize = decoders.quantize_tq1_0 if ggml_type is GGMLType.TQ1_0 else decoders.quantize_tq2_0
        return bytes(quantize(np.sign(np.sin(values * 40)).astype(np.float32)))
    if ggml_type in (GGMLType.F32, GGMLType.F16, GGMLType.F64):
        return values.astype({4: "<f4", 2: "<f2", 8: "<f8"}[block.block_bytes]).tobytes()
    if ggml_type is GGMLType.BF16:
        return (values.view(np.uint32) >> 16).astype("<u2").tobytes()
    shape = n_weights // block.block_weights, block.block_bytes
    size = shape[0] * shape[1]
    blocks = np.frombuffer(hashlib.shake_256(ggml_type.name.encode()).digest(size), np.uint8).reshape(shape).copy()
    for at in HALF_SCALES.get(ggml_type, ()):
        scales = (1 + np.arange(shape[0]) % 7).astype(np.float16) / np.float16(128)
        blocks[:, at : at + 2] = scales.astype("<f2").view(np.uint8).reshape(-1, 2)
    if ggml_type is GGMLType.MXFP4:
        blocks[:, 0] = 120 + np.arange(shape[0]) % 8
    elif ggml_type is GGMLType.NVFP4:
        blocks[:, :4] = 40 + blocks[:, :4] % 16
    elif ggml_type is GGMLType.Q8_K:
        blocks[:, :4] = np.full(shape[0], 1 / 128, "<f4").view(np.uint8).reshape(-1, 4)
    elif ggml_type is GGMLType.IQ1_M:
        # The half scale is spread over the top nibbles of the four last words: 0x2400 is 1/64.
        for word, nibble in enumerate((0x0, 0x0, 0x4, 0x2)):
            blocks[:, 49 + 2 * word] = blocks[:, 49 + 2 * word] & 0x0F | nibble << 4
    return blocks.tobytes()


if __name__ == "__main__":
    Path(sys.argv[1]).write_bytes(demo_model())
