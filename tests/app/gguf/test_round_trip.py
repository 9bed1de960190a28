"""Whole files out of the builder and back, for any content."""

from hypothesis import given, settings
from hypothesis import strategies as st

from decoders import GGMLType, info
from tests.app.gguf.reading import plain, read, weights
from tests.builder import ARRAY, BOOL, F64, I8, I16, I32, I64, STRING, U8, U16, U32, U64, ByteOrder, build

INTEGERS = {U8: (0, 8), I8: (1, 8), U16: (0, 16), I16: (1, 16), U32: (0, 32), I32: (1, 32), U64: (0, 64), I64: (1, 64)}
ORDERS: tuple[ByteOrder, ...] = ("little", "big")


def values_of(value_type: int) -> st.SearchStrategy[object]:
    if value_type in INTEGERS:
        signed, bits = INTEGERS[value_type]
        return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else st.integers(0, 2**bits - 1)
    if value_type == F64:
        return st.floats(allow_nan=False)
    return st.booleans() if value_type == BOOL else st.binary(max_size=20)


plain_types = st.sampled_from([*INTEGERS, F64, BOOL, STRING])
plain_values = plain_types.flatmap(lambda t: st.tuples(st.just(t), values_of(t)))
arrays = st.recursive(
    plain_types.flatmap(lambda t: st.tuples(st.just(t), st.lists(values_of(t), max_size=5))),
    lambda inner: st.tuples(st.just(ARRAY), st.lists(inner, max_size=3)),
    max_leaves=6,
)
entries = st.one_of(plain_values, st.tuples(st.just(ARRAY), arrays))
types = st.sampled_from([GGMLType.F32, GGMLType.F16, GGMLType.I8, GGMLType.Q8_0, GGMLType.Q4_K, GGMLType.Q6_K])
shapes = st.lists(st.integers(0, 3), max_size=4)


def listed(value: object) -> object:
    """The builder's (type, values) pairs as lists."""
    return [listed(item) for item in value[1]] if isinstance(value, tuple) else value


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.binary(max_size=12), entries), max_size=6),
    st.lists(st.tuples(st.binary(max_size=12), types, shapes), max_size=5, unique_by=lambda t: t[0]),
    st.sampled_from([1, 2, 3]),
    st.sampled_from(ORDERS),
    st.sampled_from([1, 4, 32, 256]),
)
def test_what_is_built_is_read(
    keys: list[tuple[bytes, tuple[int, object]]],
    stated: list[tuple[bytes, GGMLType, list[int]]],
    version: int,
    byte_order: ByteOrder,
    alignment: int,
) -> None:
    metadata = [(b"k." + key, kind, value) for key, (kind, value) in keys]
    tensors = []
    for place, (name, kind, shape) in enumerate(stated):
        block = info(kind)
        ne = [shape[0] * block.block_weights, *shape[1:]] if shape else []
        if not shape and block.block_weights > 1:
            # A scalar is one weight: no whole block of such a format.
            ne = [block.block_weights]
        n_weights = 1
        for n in ne:
            n_weights *= n
        content = bytes([place + 1]) * (n_weights // block.block_weights * block.block_bytes)
        tensors.append((name, ne, int(kind), content))
    data = build(tensors, metadata, version=version, byte_order=byte_order, alignment=alignment)
    read_back = read(data)
    assert (read_back.version, read_back.byte_order, read_back.alignment) == (version, byte_order, alignment)
    assert [(e.key, e.type, plain(e.value)) for e in read_back.metadata[: len(metadata)]] == [
        (key, kind, listed(value)) for key, kind, value in metadata
    ]
    assert [(t.name, list(t.ne), t.type_id) for t in read_back.tensors] == [t[:3] for t in tensors]
    for name, _, _, content in tensors:
        assert weights(data, read_back, name) == content
