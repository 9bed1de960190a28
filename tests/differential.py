"""The service beside gguf-py: random valid files of its writer, read over HTTP and by its reader, must be the same.

`write_example` writes a model whose content follows from a seed alone, `compare_example` asks a real server for all
of it. Compared are metadata, the tensor table, and every value: bit for bit, where a NaN may be any NaN unless its
type is one whose bits are only moved (F32, BF16). gguf-py's own decoders are held against, and ggml's C, which decides
where the two should ever differ, and which alone decodes Q8_K and Q1_0.

Left out, because gguf-py goes wrong there: Q8_1 (its blocks have 36 bytes, gguf-py says 40), a BF16 scalar (its
reader fails), and split sets with an alignment (its writer states it in the first part only, and aligns all by it).

``python -m tests.differential N [FIRST]`` compares N examples, with the seeds FIRST (0) and up; it exits 1 if any
differs.
"""

import io
import logging
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
from gguf.scripts.gguf_convert_endian import byteswap_tensors
from numpy.typing import NDArray

from decoders import GGMLType
from tests.decoders.helpers import ggml_decodes, ggml_dequantize, make_blocks
from tests.server import Server

__all__ = ["PEER_CANNOT", "Example", "compare_example", "write_example"]

Type = gguf.GGMLQuantizationType
Kind = gguf.GGUFValueType

_PLAIN: dict[Any, Any] = {
    Type.F32: np.float32,
    Type.F16: np.float16,
    Type.F64: np.float64,
    Type.I8: np.int8,
    Type.I16: np.int16,
    Type.I32: np.int32,
    Type.I64: np.int64,
    Type.BF16: np.uint16,  # the writer is told what it is
}
PEER_CANNOT = frozenset({Type.Q8_1})
"""Types whose size gguf-py has wrong."""

_BLOCKS = [one for one in Type if one not in _PLAIN and one not in PEER_CANNOT]
_MOVED = (Type.F32, Type.BF16)
_LABELS = {
    Kind.UINT8: "u8",
    Kind.INT8: "i8",
    Kind.UINT16: "u16",
    Kind.INT16: "i16",
    Kind.UINT32: "u32",
    Kind.INT32: "i32",
    Kind.FLOAT32: "f32",
    Kind.BOOL: "bool",
    Kind.STRING: "string",
    Kind.ARRAY: "array",
    Kind.UINT64: "u64",
    Kind.INT64: "i64",
    Kind.FLOAT64: "f64",
}
_ALIGNMENTS = (1, 8, 16, 64, 4096)
_STORED = {"float32": "<f4", "float16": "<f2", "bfloat16": "<u2", "float64": "<f8"}
_STORED |= {f"int{bits}": f"<i{bits // 8}" for bits in (8, 16, 32, 64)}

# Of these every name, key and string is made: what needs escaping in URLs, JSON, headers or globs, and all of UTF-8.
_PIECES = [
    *("a", "Z", "0", "weight", "blk.0.", ".", "..", "/", "//", "/-/", "\\", " ", "  ", "%", "%2F", "%00", "+", "&"),
    *("=", "?", "#", ";", ":", "@", '"', "'", "<b>", "[0]", "*", "{}", "~", "-", "_", "\t", "\n", "\r\n", "\0"),
    *("\x1b[31m", "\x7f", "\x85", "é", "e\u0301", "ß", "\u00a0", "\u200b", "\u202e", "\u2028", "\ufeff", "\ufffd"),
    *("\uffff", "漢字", "\ud7ff", "\ue000", "\U00010000", "\U0001f999", "\U0010ffff", "null", "data", "__metadata__"),
]
_IN_FILE_NAMES = [piece for piece in _PIECES if not {"/", "\0"} & set(piece)]


@dataclass
class Example:
    """A model on disk: its id, its files in the order of the parts, its metadata, and what is special about it."""

    model_id: str
    paths: list[Path]
    metadata: dict[str, tuple[Any, Any]]
    features: set[str] = field(default_factory=set)


def write_example(folder: Path, seed: int) -> Example:
    """Write the model of a seed into a folder, with gguf-py's writer."""
    rng = np.random.default_rng(seed)
    big = rng.random() < 0.35
    split: dict[str, Any] = {}
    if rng.random() < 0.3:
        ways = ({"split_max_tensors": _below(rng, 3) + 1}, {"split_max_size": 2000}, {"small_first_shard": True})
        split = ways[_below(rng, len(ways))]
    model_id = "m" + _text(rng, 4, _IN_FILE_NAMES)
    endian = gguf.GGUFEndian.BIG if big else gguf.GGUFEndian.LITTLE
    writer = gguf.GGUFWriter(folder / f"{model_id}.gguf", "llama", endianess=endian, **split)
    example = Example(model_id, [], {}, {"big" if big else "little", *split})
    if not split and rng.random() < 0.6:
        alignment = _ALIGNMENTS[_below(rng, len(_ALIGNMENTS))]
        writer.add_custom_alignment(alignment)
        example.features.add(f"alignment {alignment}")
    for _ in range(_below(rng, 13)):
        _add_entry(rng, writer, example)
    names = list(dict.fromkeys(_text(rng, 5, _PIECES) for _ in range(_below(rng, 8))))
    for name in names:
        _add_tensor(rng, writer, name, big, example)
    writer.write_header_to_file()
    example.paths = [Path(file.name) for file in writer.fout or ()]
    example.metadata = {key: (value.type, value.value) for key, value in writer.kv_data[0].items()}
    example.features.add("split" if len(example.paths) > 1 else "one file")
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return example


def _below(rng: np.random.Generator, stop: int) -> int:
    return int(rng.integers(stop))


def _text(rng: np.random.Generator, most: int, pieces: Sequence[str]) -> str:
    return "".join(pieces[_below(rng, len(pieces))] for _ in range(_below(rng, most + 1)))


def _scalar(rng: np.random.Generator, kind: Any) -> Any:
    """A value of a type that is no array: any bits, and often the least or the largest."""
    if kind == Kind.STRING:
        return _text(rng, 6, _PIECES) * (1 if rng.random() < 0.9 else 3000)
    if kind == Kind.BOOL:
        return bool(rng.random() < 0.5)
    dtype = np.dtype(gguf.GGUFReader.gguf_scalar_to_np[kind])
    extreme = (b"\0", b"\xff", b"\x80", b"\x7f")[_below(rng, 4)]
    content = extreme * dtype.itemsize if rng.random() < 0.3 else rng.bytes(dtype.itemsize)
    return np.frombuffer(content, dtype)[0].item()


def _add_entry(rng: np.random.Generator, writer: Any, example: Example) -> None:
    key = _text(rng, 4, _PIECES)
    if key in writer.kv_data[0]:
        return
    kinds = list(Kind)
    kind = Kind.ARRAY if rng.random() < 0.5 else kinds[_below(rng, len(kinds))]
    if kind != Kind.ARRAY:
        writer.add_key_value(key, _scalar(rng, kind), kind)
        example.features.add(f"value {kind.name}")
        return
    if rng.random() < 0.3:
        # Of the types of elements that the writer infers.
        inner = (Kind.INT32, Kind.FLOAT32, Kind.BOOL, Kind.STRING)[_below(rng, 4)]
        levels = 2 + _below(rng, 4)
        writer.add_array(key, _nested(rng, inner, levels))
        example.features |= {"array of ARRAY", f"nested {inner.name}"}
        return
    element = kinds[_below(rng, len(kinds))]
    if element == Kind.ARRAY:
        element = Kind.STRING
    values = [_scalar(rng, element) for _ in range(1 + _below(rng, 5))] * (1, 1, 40)[_below(rng, 3)]
    writer.add_key_value(key, values, Kind.ARRAY, sub_type=element)
    example.features.add(f"array of {element.name}")


def _nested(rng: np.random.Generator, kind: Any, levels: int) -> list[Any]:
    make: Callable[[], Any] = (lambda: _scalar(rng, kind)) if levels == 1 else lambda: _nested(rng, kind, levels - 1)
    return [make() for _ in range(1 + _below(rng, 3))]


def _add_tensor(rng: np.random.Generator, writer: Any, name: str, big: bool, example: Example) -> None:
    kinds = [*_PLAIN, *(byteswap_tensors if big else _BLOCKS)]
    kind = kinds[_below(rng, len(kinds))]
    per_block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    n_dims = 1 + _below(rng, 4) if kind not in _PLAIN or kind == Type.BF16 else _below(rng, 5)
    shape = [1 + _below(rng, 3) for _ in range(n_dims)]
    if shape:
        shape[-1] = per_block * (1 + _below(rng, 3)) if kind not in _PLAIN else 1 + _below(rng, 40)
        if rng.random() < 0.03 and block_bytes / per_block < 2:
            shape = [70, 4096]  # more than a window
        if rng.random() < 0.1:
            shape[_below(rng, len(shape))] = 0
    example.features |= {
        f"{'big' if big else 'little'} {kind.name}",
        f"{len(shape)} dims",
        *(["empty"] if 0 in shape else ["window"] if 4096 in shape else []),
    }
    n_weights = int(np.prod(shape))
    if kind in _PLAIN:
        dtype = np.dtype(_PLAIN[kind])
        weights = np.frombuffer(rng.bytes(n_weights * dtype.itemsize), dtype).reshape(shape)
        writer.add_tensor(name, weights, raw_dtype=kind if kind == Type.BF16 else None)
        return
    blocks = _blocks(rng, kind, n_weights // per_block)
    if big:
        _swap_blocks(kind, blocks)
    rows = blocks.reshape([*shape[:-1], shape[-1] // per_block * block_bytes])
    writer.add_tensor(name, rows, raw_dtype=kind)


def _swap_blocks(kind: Any, blocks: NDArray[np.uint8]) -> None:
    """Change the byte order of blocks, as gguf-py's converter of whole files does it."""
    swap: Any = byteswap_tensors[kind]
    for place in range(0, len(blocks), gguf.GGML_QUANT_SIZES[kind][1]):
        swap(SimpleNamespace(data=blocks), place)


def _blocks(rng: np.random.Generator, kind: Any, n_blocks: int) -> NDArray[np.uint8]:
    if n_blocks and rng.random() < 0.5:
        weights = rng.standard_normal((n_blocks, gguf.GGML_QUANT_SIZES[kind][0]), np.float32)
        try:
            return np.array(gguf.quants.quantize(weights, kind), np.uint8).reshape(-1)
        except NotImplementedError:  # there is a decoder only
            pass
    fill = ("random", "edge", "repeated")[_below(rng, 3)]
    return make_blocks(int(kind), n_blocks, fill, _below(rng, 1 << 30))


def compare_example(server: Server, example: Example) -> None:
    """Ask a server for everything of a model that lies on its volume, and hold it against gguf-py's reader."""
    readers = [gguf.GGUFReader(path) for path in example.paths]
    listed = _json(server, "/v1/models")["models"]
    assert [(one["id"], one["readable"], one["files"]) for one in listed] == [
        (example.model_id, True, len(example.paths))
    ]
    path = listed[0]["href"]
    _compare_metadata(server, f"{path}/-/metadata", readers[0], example.metadata)
    table = _json(server, f"{path}/-/tensors?limit=10000")["tensors"]
    expected = [(file, tensor) for file, reader in enumerate(readers) for tensor in reader.tensors]
    assert len(table) == len(expected)
    for ours, (file, theirs) in zip(table, expected, strict=True):
        ne = [int(n) for n in theirs.shape]
        stated = {
            "name": theirs.name,
            "ne": ne,
            "shape": ne[::-1],
            "type": theirs.tensor_type.name,
            "type_id": int(theirs.tensor_type),
            "file": file,
            "offset": int(theirs.field.parts[5][0]),
            "start": theirs.data_offset,
            "bytes": theirs.n_bytes,
            "weights": theirs.n_elements,
            "readable": True,
        }
        assert {name: ours[name] for name in stated} == stated
        assert {name: _json(server, ours["href"])[name] for name in stated} == stated
        _compare_values(server, ours["data"], theirs, readers[file].endianess is gguf.GGUFEndian.BIG)


def _json(server: Server, path: str) -> Any:
    answer = server.client.get(path)
    assert answer.status_code == 200, (path, answer.text)
    return answer.json()


def _compare_metadata(server: Server, path: str, reader: Any, written: dict[str, tuple[Any, Any]]) -> None:
    fields = {key: one for key, one in reader.fields.items() if not key.startswith("GGUF.")}
    assert list(fields) == list(written)
    listed = _json(server, f"{path}?items=10000")
    assert [one["key"] for one in listed["metadata"]] == list(fields)
    for one in listed["metadata"]:
        key = one["key"]
        theirs = fields[key]
        kind, value = written[key]
        assert kind == theirs.types[0]
        whole = _json(server, one["href"])
        assert (one["type"], whole["type"]) == (_LABELS[kind],) * 2
        if kind == Kind.ARRAY:
            assert one["whole"]
            assert {one["element_type"], whole["element_type"]} == {_LABELS[theirs.types[1]]}
            assert {one["length"], whole["length"]} == {len(value)}
            assert one["items"] == whole["items"]
            leaf = theirs.types[-1]
            _same_values(whole["items"], value, leaf)
            _same_values(_flat(whole["items"]), theirs.contents(), leaf)  # the reader runs inner arrays together
        else:
            size = 1 << 16 if kind == Kind.STRING else None  # of a longer one the list has the beginning
            assert one["value"] == (whole["value"] if not size or one["whole"] else whole["value"][: len(one["value"])])
            assert len(whole["value"].encode()) == whole["length"] if size else True
            _same_values([whole["value"]], [value], kind)
            _same_values([whole["value"]], [theirs.contents()], kind)


def _flat(value: Any) -> list[Any]:
    return [leaf for item in value for leaf in _flat(item)] if isinstance(value, list) else [value]


def _same_values(ours: Any, theirs: Any, kind: Any) -> None:
    if isinstance(theirs, list):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            _same_values(one, other, kind)
    elif kind in (Kind.FLOAT32, Kind.FLOAT64):
        dtype = np.float32 if kind == Kind.FLOAT32 else np.float64
        names = {"NaN": np.nan, "Infinity": np.inf, "-Infinity": -np.inf}
        pair = [np.array(names.get(value, value), dtype) for value in (ours, theirs)]
        assert pair[0].tobytes() == pair[1].tobytes() or np.isnan(pair).all()
    else:
        assert type(ours) is type(theirs)
        assert ours == theirs


def _compare_values(server: Server, path: str, tensor: Any, big: bool) -> None:
    kind = tensor.tensor_type
    stored = tensor.data.byteswap() if big and tensor.data.dtype.itemsize > 1 else np.array(tensor.data)
    stored = np.ascontiguousarray(stored).reshape(-1).view(stored.dtype.newbyteorder("<"))
    if big and kind == Type.BF16:
        stored = stored.view(np.uint16).byteswap().view(np.uint8)
    elif big and kind in byteswap_tensors:
        _swap_blocks(kind, stored)

    answer = server.client.get(path)
    assert answer.status_code == 200, answer.text
    shape = tuple(int(n) for n in tensor.shape[::-1])
    assert answer.headers["x-tensor-shape"] == str(list(shape)).replace(" ", "")
    assert answer.headers["x-tensor-type"] == kind.name
    weights = np.frombuffer(answer.content, "<f4")
    for expected in _decoded(stored, kind):
        _same_floats(weights, expected.reshape(-1), any_nan=kind not in _MOVED)

    if kind in _PLAIN:
        answer = server.client.get(f"{path}?dtype=stored")
        assert np.dtype(_STORED[answer.headers["x-tensor-dtype"]]).itemsize * tensor.n_elements == tensor.n_bytes
        assert answer.content == stored.tobytes()
    if not big:
        assert server.client.get(f"{path}?format=native").content == stored.tobytes()
    if shape:
        rng = np.random.default_rng(tensor.data_offset)
        picked = [slice(_below(rng, size + 2) - 1, _below(rng, size + 2), 1 + _below(rng, 2)) for size in shape]
        text = ",".join(f"{one.start}:{one.stop}:{one.step}" for one in picked)
        array = np.load(io.BytesIO(server.client.get(f"{path}?slice={text}&format=npy").content), allow_pickle=False)
        chosen = weights.reshape(shape)[tuple(picked)]
        assert array.shape == chosen.shape
        assert array.tobytes() == np.ascontiguousarray(chosen).tobytes()


def _decoded(stored: NDArray[Any], kind: Any) -> list[NDArray[np.float32]]:
    """What gguf-py makes of little-endian data, and what ggml makes of it: at least one of the two."""
    made: list[NDArray[Any]] = []
    with np.errstate(all="ignore"):
        if kind in _PLAIN and kind != Type.BF16:
            made.append(stored.astype(np.float32))
        else:
            block = gguf.GGML_QUANT_SIZES[kind][1]
            try:
                made.append(gguf.quants.dequantize(stored.reshape(-1, block), kind) if stored.size else np.empty(0))
            except NotImplementedError:
                assert kind in (Type.Q8_K, Type.Q1_0)
    if ggml_decodes(int(kind)):
        made.append(ggml_dequantize(stored.view(np.uint8), GGMLType(int(kind))))
    assert made
    return [values.astype(np.float32, copy=False) for values in made]


def _same_floats(ours: NDArray[np.float32], theirs: NDArray[np.float32], *, any_nan: bool) -> None:
    assert ours.shape == theirs.shape
    same = ours.view(np.uint32) == theirs.view(np.uint32)
    if any_nan:
        same |= np.isnan(ours) & np.isnan(theirs)
    at = np.flatnonzero(~same)
    assert at.size == 0, f"{at.size} of {same.size} values differ, first at {at[0]}: {ours[at[0]]!r}, {theirs[at[0]]!r}"


def main(count: int, first: int = 0) -> bool:
    """Compare some examples, print what they had and what differs; whether nothing does."""
    logging.getLogger("gguf.gguf_writer").setLevel(logging.ERROR)
    features: Counter[str] = Counter()
    different = 0
    with tempfile.TemporaryDirectory() as folder, Server(Path(folder), recheck_seconds=0) as server:
        for seed in range(first, first + count):
            example = write_example(Path(folder), seed)
            features.update(example.features)
            try:
                compare_example(server, example)
            except Exception as error:
                different += 1
                print(f"seed {seed}, {example.model_id!r}: {error!r}")
            for path in example.paths:
                path.unlink()
    print(", ".join(f"{name}: {features[name]}" for name in sorted(features)))
    print(f"{count - different} of {count} examples are the same")
    return different == 0


if __name__ == "__main__":
    sys.exit(0 if main(*(int(argument) for argument in sys.argv[1:3])) else 1)
