"""Split sets, and their file names."""

import pytest

from app.gguf import SplitError, SplitName, part_name, split_name
from tests.app.gguf.reading import model, read
from tests.builder import ARRAY, F8, I32, STRING, U16, build

W = ("w", [4, 2], 0, F8)
V = ("v", [4, 2], 0, F8)


def part(
    number: int | None, count: int | None, *tensors: tuple[str, list[int], int, bytes], total: int | None = None
) -> bytes:
    stated = {"split.no": (U16, number), "split.count": (U16, count), "split.tensors.count": (I32, total)}
    return build(tensors, [(key, kind, value) for key, (kind, value) in stated.items() if value is not None])


@pytest.mark.case(21)
def test_a_set_is_one_model_with_the_tensors_of_all_parts() -> None:
    first = build(
        [],
        [
            ("split.no", U16, 0),
            ("split.count", U16, 2),
            ("split.tensors.count", I32, 2),
            ("general.architecture", STRING, "llama"),
        ],
    )
    whole = model(first, part(1, None, W, V))
    assert [(t.name, t.file) for t in whole.tensors] == [(b"w", 1), (b"v", 1)]
    assert whole.find(b"v").file == 1
    assert whole.metadata.get(b"general.architecture") == b"llama"
    assert len(whole.headers) == 2
    assert [t.file for t in whole.headers[1].tensors] == [1, 1]
    assert whole.warnings == ()


@pytest.mark.case(21)
def test_offsets_count_from_the_data_of_each_part() -> None:
    first, second = part(0, 2, W, total=2), part(1, 2, V, total=2)
    whole = model(first, second)
    for data, tensor in zip((first, second), whole.tensors, strict=True):
        assert data[tensor.start : tensor.start + 32] == F8


@pytest.mark.case(21)
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_part_opens_alone_with_a_warning(number: int) -> None:
    alone = model(part(number, 3, W, total=3))
    assert [t.name for t in alone.tensors] == [b"w"]
    assert alone.warnings == (
        f"The file is part {number + 1} of a split set of 3, opened alone: tensors of the others are missing.",
    )


def test_a_set_of_one_brings_no_warning() -> None:
    assert model(part(0, 1, W, total=1)).warnings == ()


@pytest.mark.case(21)
@pytest.mark.parametrize(
    ("parts", "at", "expected", "found"),
    [
        ((part(0, 3, W), part(1, 3, V)), 1, 2, 3),
        ((part(0, 2, W), part(1, 3, V)), 2, 2, 3),
        ((part(0, None, W), part(1, 2, V)), 1, 2, None),
        ((part(1, 2, W), part(0, 2, V)), 1, 0, 1),
        ((part(0, 2, W), part(0, 2, V)), 2, 1, 0),
        ((part(0, 2, W), part(2, 2, V)), 2, 1, 2),
        ((part(0, 2, W, total=3), part(1, 2, V, total=3)), 1, 3, 2),
        ((part(0, 2, W, total=2), part(1, 2, V, total=1)), 2, 1, 2),
    ],
)
def test_parts_that_do_not_belong_together(parts: tuple[bytes, ...], at: int, expected: int, found: int | None) -> None:
    with pytest.raises(SplitError, match=f"part {at} |Part {at} ") as caught:
        model(*parts)
    assert (caught.value.part, caught.value.expected, caught.value.found) == (at, expected, found)


def test_parts_of_different_byte_orders_are_refused() -> None:
    big = build([V], [("split.no", U16, 1)], byte_order="big")
    with pytest.raises(SplitError, match="Part 2 is big-endian and part 1 is little-endian"):
        model(part(0, 2, W), big)


def test_a_later_part_may_leave_its_number_out() -> None:
    whole = model(part(0, 2, W), part(None, None, V))
    assert whole.warnings == ("Parts that do not say which part they are (split.no): 2.",)


def test_split_keys_of_other_types_count_as_missing() -> None:
    odd = build([W], [("split.no", STRING, "0"), ("split.count", ARRAY, (U16, [2]))])
    with pytest.raises(SplitError, match="does not say of how many parts"):
        model(odd, part(1, 2, V))


def test_an_error_in_a_part_notes_which_part() -> None:
    with pytest.raises(ValueError, match="truncated") as caught:
        model(part(0, 2, W), part(1, 2, V)[:40])
    assert caught.value.__notes__ == ["in part 2 of 2"]


def test_warnings_of_parts_say_which_part() -> None:
    odd = build([V], [("split.no", U16, 1)], offsets=[4])
    assert [line.startswith("Part 2: ") for line in model(part(0, 2, W), odd).warnings] == [True, True]


def test_original_shapes_stand_in_the_first_part() -> None:
    first = build(
        [], [("split.no", U16, 0), ("split.count", U16, 2), ("comfy.gguf.orig_shape.v", ARRAY, (I32, [2, 2, 2]))]
    )
    assert model(first, part(1, 2, V)).find(b"v").original_shape == (2, 2, 2)
    assert read(part(1, 2, V)).tensors[0].original_shape is None


def test_a_model_has_at_least_one_file() -> None:
    with pytest.raises(ValueError, match="at least one file"):
        model()


@pytest.mark.case(21)
@pytest.mark.parametrize(
    ("name", "parsed"),
    [
        (b"m-00001-of-00002.gguf", SplitName(b"m", 1, 2)),
        (b"dir/a-b-00003-of-00003.gguf", SplitName(b"dir/a-b", 3, 3)),
        (b"\xff\n-00001-of-99999.gguf", SplitName(b"\xff\n", 1, 99_999)),
        (b"m-00001-of-00002-00001-of-00001.gguf", SplitName(b"m-00001-of-00002", 1, 1)),
        (b"m.gguf", None),
        (b"-00001-of-00002.gguf", None),
        (b"m-00000-of-00002.gguf", None),
        (b"m-00003-of-00002.gguf", None),
        (b"m-1-of-2.gguf", None),
        (b"m-000001-of-000002.gguf", None),
        (b"m-00001-of-00002.gguf\n", None),
        (b"m-00001-of-00002.GGUF", None),
        ("m-0000\u0661-of-00002.gguf".encode(), None),
    ],
)
def test_split_names(name: bytes, parsed: SplitName | None) -> None:
    assert split_name(name) == parsed
    if parsed is not None:
        assert part_name(*parsed) == name


@pytest.mark.case(21)
@pytest.mark.parametrize(("number", "count"), [(0, 2), (3, 2), (-1, 1), (1, 100_000)])
def test_part_names_that_do_not_exist(number: int, count: int) -> None:
    with pytest.raises(ValueError, match=f"no part {number} of {count}"):
        part_name(b"m", number, count)
