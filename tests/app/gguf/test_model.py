"""Finding tensors, and the errors: fields, sentences, built-in kin."""

import pickle

import pytest

from app.gguf import (
    AmbiguousTensor,
    BadHeader,
    GGUFError,
    NoSuchTensor,
    NotGGUF,
    SplitError,
    UnsupportedVersion,
    quoted,
)
from tests.app.gguf.reading import model
from tests.builder import F8, build

TWICE = build([("w", [4, 2], 0, F8), ("v", [4, 2], 0, F8), ("w", [4, 2], 0, F8)])


def test_find_gives_the_one_tensor_of_a_name() -> None:
    whole = model(TWICE)
    assert whole.find(b"v") is whole.tensors[1]
    assert whole.byte_order == "little"


@pytest.mark.case(43)
def test_find_tells_missing_from_ambiguous() -> None:
    whole = model(TWICE)
    with pytest.raises(NoSuchTensor) as missing:
        whole.find(b"x")
    assert missing.value.tensor == b"x"
    assert isinstance(missing.value, KeyError)
    assert str(missing.value) == 'Tensor "x": The model has no tensor of this name.'
    with pytest.raises(AmbiguousTensor) as ambiguous:
        whole.find(b"w")
    assert (ambiguous.value.tensor, ambiguous.value.count) == (b"w", 2)


def test_memory_is_counted() -> None:
    small, large = model(TWICE), model(build([(f"t{n}", [1], 0, b"1234") for n in range(1000)]))
    assert 1000 < small.memory_bytes < 10_000 < 500_000 < large.memory_bytes < 2_000_000


@pytest.mark.parametrize(
    "error",
    [
        NotGGUF("zeros", "Download it."),
        UnsupportedVersion(7),
        BadHeader("It lies.", offset=5, key=b"k", tensor=b"t"),
        SplitError("Part 2 is wrong.", 2, 1, None),
        NoSuchTensor(b"w"),
        AmbiguousTensor(b"w", 3),
    ],
)
def test_errors_are_value_errors_that_survive_pickling(error: GGUFError) -> None:
    assert isinstance(error, ValueError)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)
    assert error.reason in str(error)


def test_an_error_says_where() -> None:
    error = BadHeader("It lies.", offset=5, key=b"a\nb")
    assert str(error) == 'Metadata key "a\\nb", byte offset 5: It lies.'


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (b"w", '"w"'),
        ("größe".encode(), '"größe"'),
        (b"a\r\nb\0", '"a\\r\\nb\\x00"'),
        ("a\u202eb".encode(), '"a\\u202eb"'),
        (b"\xff", '"\\xff"'),
        (b"k" * 80, '"' + "k" * 80 + '"'),
        (b"k" * 70_000, '"' + "k" * 80 + '…" (70,000 bytes)'),
        ("é".encode() * 80, '"' + "é" * 80 + '"'),
    ],
)
def test_names_in_messages_are_one_printable_line(name: bytes, shown: str) -> None:
    assert quoted(name) == shown
    assert quoted(name).isprintable()
