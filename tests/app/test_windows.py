"""Windows: all of them together are the tensor, each from its own bytes."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import decoders
from app.buffers import Buffers
from app.errors import Unavailable
from app.snapshot import Snapshot
from app.windows import STORED_DTYPES, WINDOW_WEIGHTS, Source, source
from decoders import GGMLType
from tests.builder import base, build, tensor_info

TYPES = [GGMLType.F32, GGMLType.F16, GGMLType.BF16, GGMLType.I64, GGMLType.Q4_0, GGMLType.Q4_K, GGMLType.NVFP4]
BUFFERS = Buffers(WINDOW_WEIGHTS, keep=2)


def random_blocks(type_: GGMLType, n_weights: int) -> bytes:
    block = decoders.info(type_)
    return np.random.default_rng(type_).bytes(n_weights // block.block_weights * block.block_bytes)


def opened(path: Path, data: bytes) -> Snapshot:
    path.write_bytes(data)
    return Snapshot.open(b"m", [os.fsencode(path)])


def every_window(windows: Source) -> list[NDArray[np.float32]]:
    return [windows.read(number, BUFFERS) for number in range(-(-windows.tensor.n_weights // WINDOW_WEIGHTS))]


def test_every_block_size_divides_the_window() -> None:
    for type_ in GGMLType:
        if decoders.info(type_).decodable:
            assert WINDOW_WEIGHTS % decoders.info(type_).block_weights == 0


@pytest.mark.parametrize("type_", TYPES, ids=lambda type_: type_.name)
@pytest.mark.parametrize("n_weights", [256, WINDOW_WEIGHTS, 2 * WINDOW_WEIGHTS + 768, WINDOW_WEIGHTS - 256])
def test_the_windows_are_the_tensor(tmp_path: Path, type_: GGMLType, n_weights: int) -> None:
    """The last one is as long as what is left; what lies before and after is not read."""
    raw = random_blocks(type_, n_weights)
    tensors = [
        ("before", [3], 0, b"\xff" * 12),
        ("w", [256, n_weights // 256], type_, raw),
        ("after", [3], 0, b"\xff" * 12),
    ]
    with opened(tmp_path / "m.gguf", build(tensors)) as snapshot:
        windows = source(snapshot, snapshot.model.find(b"w"), "decoded")
        found = every_window(windows)
    assert [window.size for window in found[:-1]] == [windows.window_items] * (len(found) - 1)
    assert all(window.dtype == np.float32 and window.ndim == 1 for window in found)
    np.testing.assert_array_equal(np.concatenate(found), decoders.dequantize(raw, type_))


@pytest.mark.parametrize("row", [1, 7, 1 << 18, (1 << 18) + 3])
def test_windows_know_nothing_of_rows(tmp_path: Path, row: int) -> None:
    n_rows = 2 * WINDOW_WEIGHTS // row + 1
    weights = np.arange(n_rows * row, dtype="<f4")
    with opened(tmp_path / "m.gguf", build([("w", [row, n_rows], 0, weights.tobytes())])) as snapshot:
        windows = source(snapshot, snapshot.model.find(b"w"), "decoded")
        np.testing.assert_array_equal(windows.read(1, BUFFERS), weights[WINDOW_WEIGHTS : 2 * WINDOW_WEIGHTS])


def swapped_f16(raw: bytes) -> bytes:
    return np.frombuffer(raw, "<u2").byteswap().tobytes()


def swapped_f32(raw: bytes) -> bytes:
    return np.frombuffer(raw, "<u4").byteswap().tobytes()


def swapped_halves(block_bytes: int, *starts: int) -> Callable[[bytes], bytes]:
    def swap(raw: bytes) -> bytes:
        blocks = np.frombuffer(raw, np.uint8).reshape(-1, block_bytes).copy()
        for start in starts:
            blocks[:, [start, start + 1]] = blocks[:, [start + 1, start]]
        return blocks.tobytes()

    return swap


@pytest.mark.case(61)
@pytest.mark.parametrize(
    ("type_", "swap"),
    [
        (GGMLType.F32, swapped_f32),
        (GGMLType.F16, swapped_f16),
        (GGMLType.Q4_0, swapped_halves(18, 0)),
        (GGMLType.Q4_K, swapped_halves(144, 0, 2)),
    ],
)
def test_windows_of_big_endian_files(tmp_path: Path, type_: GGMLType, swap: Callable[[bytes], bytes]) -> None:
    n_weights = WINDOW_WEIGHTS + 512
    raw = random_blocks(type_, n_weights)
    content = build([("w", [256, n_weights // 256], type_, swap(raw))], byte_order="big")
    with opened(tmp_path / "m.gguf", content) as snapshot:
        tensor = snapshot.model.find(b"w")
        found = np.concatenate(every_window(source(snapshot, tensor, "decoded")))
        np.testing.assert_array_equal(found, decoders.dequantize(raw, type_))
        if type_ in STORED_DTYPES:
            stored = np.concatenate(every_window(source(snapshot, tensor, "stored")))
            assert stored.tobytes() == raw


@pytest.mark.parametrize("type_", STORED_DTYPES, ids=lambda type_: type_.name)
def test_stored_weights_are_the_bytes_of_the_file(tmp_path: Path, type_: GGMLType) -> None:
    raw = random_blocks(type_, 1024)
    with opened(tmp_path / "m.gguf", build([("w", [1024], type_, raw)])) as snapshot:
        windows = source(snapshot, snapshot.model.find(b"w"), "stored")
        window = windows.read(0, BUFFERS)
    assert window.dtype == windows.dtype == STORED_DTYPES[type_][1]
    assert window.size == 1024
    assert window.tobytes() == raw


@pytest.mark.parametrize("type_", [GGMLType.F16, GGMLType.Q4_0, GGMLType.Q4_K], ids=lambda type_: type_.name)
def test_native_windows_are_whole_blocks(tmp_path: Path, type_: GGMLType) -> None:
    block = decoders.info(type_)
    raw = random_blocks(type_, WINDOW_WEIGHTS + 256)
    content = build([("w", [256, WINDOW_WEIGHTS // 256 + 1], type_, raw)])
    with opened(tmp_path / "m.gguf", content) as snapshot:
        windows = source(snapshot, snapshot.model.find(b"w"), "native")
        first, last = windows.read(0, BUFFERS), windows.read(1, BUFFERS)
    assert windows.dtype.itemsize == block.block_bytes
    assert first.size == windows.window_items == WINDOW_WEIGHTS // block.block_weights
    assert last.size == 256 // block.block_weights
    assert first.tobytes() + last.tobytes() == raw


def test_a_window_reads_its_own_bytes_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = random_blocks(GGMLType.Q4_K, 3 * WINDOW_WEIGHTS)
    reads: list[tuple[int, int]] = []
    real = os.preadv

    def preadv(fd: int, buffers: list[memoryview], at: int) -> int:
        reads.append((at, sum(len(buffer) for buffer in buffers)))
        return real(fd, buffers, at)

    content = build([("w", [256, 3 * WINDOW_WEIGHTS // 256], GGMLType.Q4_K, raw)])
    with opened(tmp_path / "m.gguf", content) as snapshot:
        tensor = snapshot.model.find(b"w")
        monkeypatch.setattr(os, "preadv", preadv)
        source(snapshot, tensor, "decoded").read(1, BUFFERS)
    window_bytes = WINDOW_WEIGHTS // 256 * 144
    assert reads == [(tensor.start + window_bytes, window_bytes)]


@pytest.mark.parametrize("type_", [GGMLType.F32, GGMLType.Q4_0], ids=lambda type_: type_.name)
def test_what_is_held_of_a_window_is_not_written_again(tmp_path: Path, type_: GGMLType) -> None:
    raw = random_blocks(type_, 4 * WINDOW_WEIGHTS)
    expected = decoders.dequantize(raw, type_).reshape(4, WINDOW_WEIGHTS)
    content = build([("w", [256, 4 * WINDOW_WEIGHTS // 256], type_, raw)])
    with opened(tmp_path / "m.gguf", content) as snapshot:
        windows = source(snapshot, snapshot.model.find(b"w"), "decoded")
        buffers = Buffers(WINDOW_WEIGHTS, keep=1)
        slice_held, bytes_held = windows.read(0, buffers)[10:20][::2], windows.read(1, buffers)[10:20].data
        for _ in range(3):
            windows.read(2, buffers)
            np.testing.assert_array_equal(windows.read(3, buffers), expected[3])
        np.testing.assert_array_equal(slice_held, expected[0, 10:20:2])
        assert bytes(bytes_held) == expected[1, 10:20].tobytes()


def test_the_memory_of_a_window_is_used_again_when_nobody_holds_it() -> None:
    buffers = Buffers(WINDOW_WEIGHTS, keep=1)
    window = buffers.take(WINDOW_WEIGHTS)
    view, place = window[5:], window.ctypes.data
    del window
    other = buffers.take(WINDOW_WEIGHTS)
    assert other.ctypes.data != place
    del view
    assert buffers.take(WINDOW_WEIGHTS).ctypes.data == place
    assert buffers.take(7).shape == (7,)


@pytest.mark.case(40)
def test_a_scalar_is_one_window_of_one_weight(tmp_path: Path) -> None:
    with opened(tmp_path / "m.gguf", build([("s", [], 0, np.float32(1.5).tobytes())])) as snapshot:
        assert source(snapshot, snapshot.model.find(b"s"), "decoded").read(0, BUFFERS).tolist() == [1.5]


def test_a_file_cut_after_it_was_opened_is_an_answer(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    with opened(path, base()) as snapshot:
        windows = source(snapshot, snapshot.model.find(b"w"), "decoded")
        os.truncate(path, 140)
        with pytest.raises(Unavailable):
            windows.read(0, BUFFERS)


def test_keys_tell_windows_apart_and_share_what_is_the_same(tmp_path: Path) -> None:
    tensors = [("f", [256, 2048], 0, bytes(2 << 20)), ("h", [256], 1, bytes(512)), ("q", [256], 2, bytes(144))]
    with opened(tmp_path / "m.gguf", build(tensors)) as snapshot:
        f, h, q = snapshot.model.tensors
        keys = [
            source(snapshot, f, "decoded").key(0),
            source(snapshot, f, "decoded").key(1),
            source(snapshot, f, "native").key(0),
            source(snapshot, h, "decoded").key(0),
            source(snapshot, h, "stored").key(0),
            source(snapshot, q, "decoded").key(0),
        ]
        assert len(set(keys)) == len(keys)
        assert {key[0] for key in keys} == {snapshot.key}
        assert source(snapshot, f, "stored").key(0) == keys[0]  # float32 as stored is float32 as decoded


def test_an_unknown_type_has_no_windows(tmp_path: Path) -> None:
    infos = [tensor_info("w", [4, 2], 156, 0)]
    with opened(tmp_path / "m.gguf", base(infos=infos)) as snapshot, pytest.raises(ValueError, match="156"):
        source(snapshot, snapshot.model.find(b"w"), "decoded")
