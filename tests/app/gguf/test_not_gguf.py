"""Files that are something else, or a version that nobody reads."""

import pytest

from app.gguf import BadHeader, GGUFError, NotGGUF, UnsupportedVersion
from tests.app.gguf.reading import faults, read, weights
from tests.builder import F8, Layout, base, floats, header


@pytest.mark.case(6, 61, 62)
@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", "an empty file"),
        (b"GGU", "the beginning of a GGUF file of 3 bytes"),
        (b"x", "a file of 1 byte"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n", "a Git LFS pointer"),
        (b"<!DOCTYPE html><html><body>404</body></html>", "an HTML page"),
        (b"\n  <html lang=en>", "an HTML page"),
        (b"<?xml version='1.0'?><Error/>", "an XML document"),
        (b'{"error":"Access to model x is restricted"}', "a JSON document"),
        (b"Entry not found", "a text file"),
        (bytes(200), "zeros"),
        (bytes(range(200, 256)) * 20, "data without the GGUF magic, perhaps a later part of a split download"),
        (b"PK\x03\x04" + bytes(60), "a ZIP archive (or a PyTorch checkpoint)"),
        (b"\x1f\x8b\x08" + bytes(60), "a gzip file"),
        (b"\x10\0\0\0\0\0\0\0" + b'{"w":{"dtype":1}}', "a safetensors file"),
        (b"tjgg\x03\0\0\0" + bytes(60), "an older GGML format (tjgg, ggjt)"),
        (b"fmgg\x01\0\0\0" + bytes(60), "an older GGML format (fmgg, ggmf)"),
        (b"lmgg" + bytes(60), "an older GGML format (lmgg, ggml)"),
        (b"algg" + bytes(60), "an older GGML format (algg, ggla)"),
        (base(magic=b"FUGG"), "a file with the GGUF magic reversed (FUGG)"),
    ],
)
def test_names_what_the_file_is_instead(data: bytes, found: str) -> None:
    with pytest.raises(NotGGUF) as caught:
        read(data)
    assert caught.value.found == found
    assert found in str(caught.value)


def test_a_large_hole_is_zeros() -> None:
    with pytest.raises(NotGGUF) as caught:
        read(b"", 1 << 40)
    assert caught.value.found == "zeros"


@pytest.mark.case(62)
@pytest.mark.parametrize("version", [0, 4, 5, 2**31])
@pytest.mark.parametrize("byte_order", ["little", "big"])
def test_other_versions_are_refused_by_number(version: int, byte_order: str) -> None:
    data = b"GGUF" + version.to_bytes(4, "little" if byte_order == "little" else "big") + bytes(100)
    with pytest.raises(UnsupportedVersion, match="version") as caught:
        read(data)
    assert caught.value.version == min(version, int.from_bytes(version.to_bytes(4, "big"), "little"))


@pytest.mark.case(62)
def test_version_2_reads_as_3() -> None:
    data = base(version=2)
    read_back = read(data)
    assert read_back.version == 2
    assert weights(data, read_back, b"w") == F8


@pytest.mark.case(62)
def test_version_1_has_narrow_counts_so_a_wide_file_that_says_1_does_not_parse() -> None:
    with pytest.raises(BadHeader):
        read(base(version=1))


@pytest.mark.case(61, 62)
@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("byte_order", ["little", "big"])
def test_every_version_in_both_byte_orders(version: int, byte_order: str) -> None:
    layout = Layout("little" if byte_order == "little" else "big", version)
    data = base(layout=layout)
    read_back = read(data)
    assert (read_back.version, read_back.byte_order) == (version, byte_order)
    assert read_back.metadata.get(b"general.architecture") == b"llama"
    (tensor,) = read_back.tensors
    assert (tensor.ne, tensor.shape, tensor.n_rows, tensor.row_weights) == ((4, 2), (2, 4), 2, 4)
    assert tensor.big_endian == (byte_order == "big")
    assert faults(read_back) == [None]
    assert weights(data, read_back, b"w") == floats(*range(8), layout=layout)


@pytest.mark.parametrize("length", range(4, 24))
def test_a_cut_in_the_first_24_bytes_is_a_bad_header(length: int) -> None:
    with pytest.raises(GGUFError, match="truncated or damaged"):
        read(header(1, 1)[:length])
