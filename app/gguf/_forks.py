"""Type ids that other projects use in a meaning of their own.

A GGUF file does not say which program wrote it, so an id alone can mean two things. The size tells them apart in
most cases: a tensor's bytes, rounded up to the alignment, end where the next tensor begins.

Sources: bitnet.cpp's ggml.h (36, 38, 39; an I2_S tensor is a quarter byte a weight and 32 bytes with the scale);
Ollama's fs/ggml/ggml.go and its issue 11796 (4); PrismML's llama.cpp, issue 167 (42: 34 bytes for 128 weights, before
ggml settled on 18 for 64); ik_llama.cpp's ggml.h (36, 133 and up; several of its formats have a header in each row).
"""

from typing import Final, NamedTuple

__all__ = ["FORKS", "Fork"]


class Fork(NamedTuple):
    """Another project's meaning of a type id.

    ``project`` and ``type_name`` name it (``type_name`` is None where only the range of ids is known);
    ``bytes_per`` gives (weights, bytes, extra bytes of a tensor) where the size is known.
    """

    project: str
    type_name: str | None
    bytes_per: tuple[int, int, int] | None = None
    note: str = ""

    def n_bytes(self, n_weights: int) -> int | None:
        """The bytes of a tensor of `n_weights` weights in this meaning, or None when that is not known."""
        if self.bytes_per is None:
            return None
        weights, size, extra = self.bytes_per
        return n_weights // weights * size + extra if n_weights % weights == 0 else None


_IK_LLAMA: Final = "ik_llama.cpp"
# 142, 143 and 156 and up are known by number only: other projects use the former, and the latter still move.
_IK_NAMES: Final = {
    133: "Q6_0",
    134: "IQ1_BN",
    135: "IQ2_BN",
    136: "Q8_K64",
    137: "IQ2_K",
    138: "IQ3_K",
    139: "IQ4_K",
    140: "IQ5_K",
    141: "IQ6_K",
    144: "IQ4_KS",
    145: "IQ2_KS",
    146: "IQ4_KSS",
    147: "Q8_K16",
    148: "Q8_K32",
    149: "Q8_KR8",
    150: "Q8_K128",
    151: "Q8_KV",
    152: "IQ5_KS",
    153: "IQ2_KT",
    154: "IQ3_KT",
    155: "IQ4_KT",
}
# Its row-interleaved formats end below 400; an id far above is damage rather than a fork's.
FORKS: Final = {type_id: Fork(_IK_LLAMA, _IK_NAMES.get(type_id)) for type_id in range(133, 400)} | {
    4: Fork(
        "Ollama", "MXFP4 (Ollama)", (32, 17, 0), "Its blocks hold the weights in another order than ggml's type 39."
    ),
    36: Fork("bitnet.cpp", "I2_S", (4, 1, 32)),
    38: Fork("bitnet.cpp", "TL1"),
    39: Fork("bitnet.cpp", "TL2"),
    42: Fork("PrismML's llama.cpp", "Q2_0 (PrismML)", (128, 34, 0), "Its blocks are 128 weights in 34 bytes."),
}
"""The other meaning of a type id, by id."""
