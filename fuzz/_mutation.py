"""Mutations that know the format: fields of a file are changed, repeated, swapped and taken out, files are spliced.

An input is one file, or the parts of a split set, each behind a length (`parts_of`, `input_of`). Everything here
follows from its arguments, the seed among them.
"""

import random
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from math import prod

import decoders
from decoders import GGMLType
from fuzz._reading import Entry, File, Info, Items, Numbers, Refused, Text, Value, take_apart
from tests.builder import ARRAY, BOOL, F32, I32, SCALARS, STRING, U8, U16, U32, U64, Layout

__all__ = ["input_of", "mutated", "parts_of", "random_file", "seeds", "spliced"]

_SET = b"SET:"
_LENGTH_BYTES = 4
_MOST_PARTS = 4
_LARGE_TENSOR = 4096

_EDGES = (
    0,
    1,
    2,
    3,
    4,
    7,
    8,
    31,
    32,
    33,
    63,
    64,
    255,
    256,
    65535,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**32,
    2**62,
    2**63,
    -1,
)
_KEYS = (
    b"",
    b"general.architecture",
    b"general.alignment",
    b"general.name",
    b"split.no",
    b"split.count",
    b"split.tensors.count",
    b"comfy.gguf.orig_shape.w",
    b"tokenizer.ggml.tokens",
    b"a\r\nb",
    b"\xff\xfe",
    "\u202egnp".encode(),
)
_NAMES = (b"w", b"q", b"blk.0.attn_q.weight", b"a/b:0", b"", b".", b"..", b"\xff", b"__metadata__", b"x" * 70, b"\n")
_TYPES = [int(one) for one in GGMLType if decoders.info(one).decodable]
_ODD_TYPES = (4, 5, 31, 36, 37, 38, 39, 42, 43, 99, 133, 144, 156, 2**31, 2**32 - 1)


def parts_of(data: bytes) -> list[bytes]:
    """The files that an input is: the parts of a split set, or one file."""
    if not data.startswith(_SET):
        return [data]
    parts: list[bytes] = []
    at = len(_SET)
    while at < len(data) and len(parts) < _MOST_PARTS:
        size = int.from_bytes(data[at : at + _LENGTH_BYTES], "little")
        at += _LENGTH_BYTES
        parts.append(data[at : at + size])
        at += size
    return parts or [b""]


def input_of(parts: Sequence[bytes]) -> bytes:
    """The input that parts are."""
    if len(parts) == 1:
        return parts[0]
    return _SET + b"".join(len(part).to_bytes(_LENGTH_BYTES, "little") + part for part in parts)


def mutated(data: bytes, most_bytes: int, seed: int, otherwise: Callable[[bytes, int], bytes]) -> bytes:
    """An input made from another one; ``otherwise`` changes bytes without a thought, given them and a largest size."""
    chance = random.Random(seed)
    kind = chance.random()
    if kind < 0.04:
        return input_of(_random_parts(chance))[:most_bytes]
    if kind < 0.12:
        return otherwise(data, most_bytes)
    parts = parts_of(data)
    if kind < 0.2:
        _change_set(parts, chance)
    at = chance.randrange(len(parts))
    try:
        file = take_apart(parts[at], whole=False)
    except Refused:
        return otherwise(data, most_bytes)
    for _ in range(chance.choice((1, 1, 1, 2, 3, 5))):
        _change(file, chance)
    if chance.random() < 0.25:
        _lay_out(file, chance)
    parts[at] = file.write()
    if chance.random() < 0.05:
        parts[at] = parts[at][: chance.randrange(len(parts[at]) + 1)]
    return input_of(parts)[:most_bytes]


def spliced(first: bytes, second: bytes, most_bytes: int, seed: int) -> bytes:
    """An input with entries and tensors of two; where one of them is no file, the beginning and the end of each."""
    chance = random.Random(seed)
    firsts, seconds = parts_of(first), parts_of(second)
    if chance.random() < 0.1:
        return input_of([*firsts, *seconds][:_MOST_PARTS])[:most_bytes]
    try:
        file, other = take_apart(firsts[0], whole=False), take_apart(chance.choice(seconds), whole=False)
    except Refused:
        cut = chance.randrange(len(first) + 1)
        return (first[:cut] + second[cut:])[:most_bytes]
    file.entries = [one for one in (*file.entries, *other.entries) if chance.random() < 0.7]
    file.infos = [one for one in (*file.infos, *other.infos) if chance.random() < 0.7]
    file.data += other.data
    file.n_entries = file.n_infos = file.tail = None
    if chance.random() < 0.5:
        _lay_out(file, chance)
    return input_of([file.write(), *firsts[1:]])[:most_bytes]


def random_file(chance: random.Random) -> File:
    """A file by the rules: a few entries, and a few tensors of any type with data where they say."""
    order, version = chance.choice(("little", "little", "big")), chance.choice((1, 2, 3, 3, 3))
    file = File(Layout("big" if order == "big" else "little", version), version)
    file.entries = [_entry(chance, file.layout) for _ in range(chance.randrange(5))]
    file.entries = [entry for entry in file.entries if entry.key.content != b"general.alignment"]
    if chance.random() < 0.3:
        alignment = chance.choice((1, 2, 8, 16, 64, 128))
        file.entries.append(Entry(Text(b"general.alignment"), U32, file.layout.pack("I", alignment)))
        file.alignment = alignment
    for number in range(chance.randrange(5)):
        _add_tensor(file, chance, b"t%d" % number)
    return file


def seeds() -> list[bytes]:
    """Inputs to begin with: files by the rules, of every type, version and byte order, split sets, and odd types."""
    chance = random.Random(1)
    made: list[bytes] = []
    for type_id in _TYPES:
        file = File()
        _add_tensor(file, chance, b"w", type_id)
        made.append(file.write())
    made += [random_file(chance).write() for _ in range(40)]
    made += [input_of(_random_parts(chance)) for _ in range(4)]
    for type_id in _ODD_TYPES:
        file = random_file(chance)
        file.infos.append(Info(Text(b"odd"), [chance.choice((32, 128, 256)), 2], type_id, len(file.data)))
        file.data += bytes(512)
        made.append(file.write())
    return made


def _random_parts(chance: random.Random) -> list[bytes]:
    count = chance.choice((1, 1, 2, 3))
    files = [random_file(chance) for _ in range(count)]
    if count > 1:
        total = sum(len(file.infos) for file in files)
        for number, file in enumerate(files):
            file.layout, file.version = Layout(), 3
            pack = file.layout.pack
            file.entries = [
                Entry(Text(b"split.no"), U16, pack("H", number)),
                Entry(Text(b"split.count"), U16, pack("H", count)),
                Entry(Text(b"split.tensors.count"), I32, pack("i", total)),
            ]
            file.alignment = 32
            _lay_out(file, chance)
    return [file.write() for file in files]


def _change_set(parts: list[bytes], chance: random.Random) -> None:
    kind = chance.randrange(4)
    if kind == 0 and len(parts) < _MOST_PARTS:
        parts.append(chance.choice(parts))
    elif kind == 1:
        chance.shuffle(parts)
    elif kind == 2 and len(parts) > 1:
        del parts[chance.randrange(len(parts))]
    else:
        parts[:] = _random_parts(chance)


def _change(file: File, chance: random.Random) -> None:
    """Change one thing."""
    chance.choice((_change_entries, _change_entries, _change_infos, _change_infos, _change_frame, _change_data))(
        file, chance
    )


def _change_frame(file: File, chance: random.Random) -> None:
    kind = chance.randrange(6)
    if kind == 0:
        file.layout = Layout("big" if file.layout.byte_order == "little" else "little", file.layout.version)
    elif kind == 1:
        file.version = chance.choice((0, 1, 2, 3, 4, 2**24))
        file.layout = Layout(file.layout.byte_order, file.version if file.version in (1, 2, 3) else 3)
    elif kind == 2:
        file.n_entries = _count(chance, len(file.entries))
    elif kind == 3:
        file.n_infos = _count(chance, len(file.infos))
    elif kind == 4:
        file.n_entries = file.n_infos = file.tail = None
    else:
        alignment = chance.choice((0, 1, 2, 4, 8, 16, 24, 32, 64, 4096, 2**31))
        file.alignment = max(1, alignment)
        value = file.layout.pack("I", alignment)
        file.entries.insert(chance.randrange(len(file.entries) + 1), Entry(Text(b"general.alignment"), U32, value))


def _change_data(file: File, chance: random.Random) -> None:
    kind, at = chance.randrange(4), chance.randrange(len(file.data) + 1)
    if kind == 0:
        file.data = file.data[:at]
    elif kind == 1:
        file.data += chance.randbytes(chance.randrange(64))
    elif kind == 2:
        file.data = file.data[:at] + chance.randbytes(4) + file.data[at + 4 :]
    else:
        _add_tensor(file, chance, chance.choice(_NAMES))


def _change_entries(file: File, chance: random.Random) -> None:
    entries = file.entries
    kind = chance.randrange(8)
    if kind == 0 or not entries:
        entries.insert(chance.randrange(len(entries) + 1), _entry(chance, file.layout))
        return
    at, other = chance.randrange(len(entries)), chance.randrange(len(entries))
    entry = entries[at]
    if kind == 1:
        del entries[at]
    elif kind == 2:
        entries.insert(other, deepcopy(entry))
    elif kind == 3:
        entries[at], entries[other] = entries[other], entries[at]
    elif kind == 4:
        entry.type = chance.choice((*range(14), 2**31))
    elif kind == 5:
        entry.key = _text(chance, chance.choice((entry.key.content, *_KEYS)))
    else:
        entry.value = _changed_value(entry.value, chance, file.layout)


def _changed_value(value: Value, chance: random.Random, layout: Layout) -> Value:
    if isinstance(value, bytes):
        return chance.choice((bytes(len(value)), b"\xff" * len(value), chance.randbytes(len(value)), value[:-1]))
    if isinstance(value, Text):
        return _text(chance, value.content)
    if chance.random() < 0.3:
        return replace(value, count=_count(chance, value.count or 0))
    if chance.random() < 0.2:
        return replace(value, element=chance.choice((*range(14), 2**31)))
    if isinstance(value, Numbers):
        content = value.content + value.content[: chance.randrange(len(value.content) + 1)]
        return replace(value, content=content[:_LARGE_TENSOR])
    values = list(value.values)
    kind = chance.randrange(3)
    if kind == 0 or not values:
        values += [_value(chance, value.element, layout, 2) for _ in range(chance.choice((1, 2, 64, 65)))]
    elif kind == 1:
        del values[chance.randrange(len(values))]
    else:
        at = chance.randrange(len(values))
        values[at] = _changed_value(values[at], chance, layout)
    return replace(value, values=values)


def _change_infos(file: File, chance: random.Random) -> None:
    infos = file.infos
    kind = chance.randrange(10)
    if kind == 0 or not infos:
        _add_tensor(file, chance, chance.choice(_NAMES))
        return
    at, other = chance.randrange(len(infos)), chance.randrange(len(infos))
    info = infos[at]
    if kind == 1:
        del infos[at]
    elif kind == 2:
        infos.insert(other, deepcopy(info))
    elif kind == 3:
        infos[at], infos[other] = infos[other], infos[at]
    elif kind == 4:
        info.type = chance.choice((*_TYPES, *_ODD_TYPES))
    elif kind == 5:
        info.name = _text(chance, chance.choice((info.name.content, *_NAMES)))
    elif kind == 6:
        info.offset = chance.choice((*_EDGES, info.offset + 1, info.offset - 1, infos[other].offset, len(file.data)))
    elif kind == 7:
        info.n_dims = chance.choice((None, 0, 1, 4, 5, 2**32 - 1))
    elif kind == 8 and info.ne:
        info.ne[chance.randrange(len(info.ne))] = chance.choice((*_EDGES, 2**31 + 1, 4194305))
    else:
        info.ne = [chance.choice((0, 1, 2, 3, 32, 256)) for _ in range(chance.randrange(6))]


def _add_tensor(file: File, chance: random.Random, name: bytes, type_id: int | None = None) -> None:
    """Add a tensor that lies behind the others."""
    type_id = chance.choice(_TYPES) if type_id is None else type_id
    block = decoders.info(type_id)
    ne = [1] * chance.choice((1, 1, 2, 3, 4))
    ne[0], ne[-1] = chance.choice((1, 2)), chance.choice((1, 2, 3))
    ne[0] *= block.block_weights
    if chance.random() < 0.1:
        ne[chance.randrange(len(ne))] = 0
    if block.block_weights == 1 and chance.random() < 0.1:
        ne = []
    alignment = min(file.alignment, 4096)
    file.data += bytes(-len(file.data) % alignment)
    file.infos.append(Info(Text(name), ne, type_id, len(file.data)))
    file.data += chance.randbytes(prod(ne) // block.block_weights * block.block_bytes)


def _lay_out(file: File, chance: random.Random) -> None:
    """Give each tensor data of its own, one after the other, and state what is there."""
    file.n_entries = file.n_infos = file.tail = None
    data = b""
    for info in file.infos:
        size = 0
        known = info.type in _TYPES
        if known and prod(info.ne) <= _LARGE_TENSOR:
            block = decoders.info(info.type)
            size = prod(info.ne) // block.block_weights * block.block_bytes
        data += bytes(-len(data) % min(file.alignment, 4096))
        info.offset, info.n_dims, info.name.length = len(data), None, None
        data += (file.data[:size] if chance.random() < 0.5 else b"").ljust(size, chance.choice((b"\0", b"\x3c")))
    file.data = data


def _entry(chance: random.Random, layout: Layout) -> Entry:
    key = chance.choice((*_KEYS, b"k%d" % chance.randrange(100)))
    value_type = chance.choice((STRING, STRING, ARRAY, ARRAY, U8, U16, U32, I32, F32, BOOL, U64, *range(13)))
    return Entry(Text(key), value_type, _value(chance, value_type, layout, 1))


def _value(chance: random.Random, value_type: int, layout: Layout, level: int) -> Value:
    if value_type == STRING:
        return Text(chance.choice((b"", b"llama", "é".encode(), b"\xff\xfe", b"\xe2\x96", b"x" * 100, b"\0")))
    if value_type == ARRAY:
        element = chance.choice((STRING, U8, BOOL, F32, U32, ARRAY if level < 9 else U8))
        count = chance.choice((0, 1, 2, 3, 8, 63, 64, 65, 200) if level == 1 else (0, 1, 2))
        if element in SCALARS:
            content = b"".join(layout.pack(SCALARS[element], chance.randrange(3)) for _ in range(count))
            return Numbers(element, content, count)
        return Items(element, [_value(chance, element, layout, level + 1) for _ in range(count)])
    if value_type not in SCALARS:
        return b""
    code = SCALARS[value_type]
    return layout.pack(code, chance.choice((0, 1, 2, 3, 100)))


def _text(chance: random.Random, content: bytes) -> Text:
    kind = chance.randrange(4)
    if kind == 0:
        return Text(content, _count(chance, len(content)))
    if kind == 1:
        at = chance.randrange(len(content) + 1)
        return Text(
            content[:at] + chance.choice((b"\xff", b"\r\n", b"%2F", b"/", b"\0", b"\xe2\x80\xae")) + content[at:]
        )
    return Text(content)


def _count(chance: random.Random, count: int) -> int:
    return max(0, chance.choice((*_EDGES[:-1], count + 1, count - 1, 2**64 - 1)))
