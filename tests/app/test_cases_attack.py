"""Whatever is asked, and whatever the files are: an answer or a problem, never a failure.

`Face` raises what the application does not catch, and holds every answer against what all answers keep.
"""

import random
from collections.abc import Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.app.conftest import Face, write_files
from tests.app.test_cases_volume import FIRST, PART_1, PART_2, SECOND
from tests.app.test_routes import ROUTES, crawl
from tests.builder import ARRAY, BOOL, F8, F32, STRING, U8, U32, build

SEED = build(
    [("w", [4, 2], 0, F8), ("q", [32, 2], 2, bytes(36)), ("m", [32], 39, bytes(17)), ("s", [], 0, bytes(4))],
    [
        ("general.architecture", STRING, "llama"),
        ("general.alignment", U32, 32),
        ("flag", BOOL, 1),
        ("tokens", ARRAY, (STRING, ["a", "bc", ""])),
        ("nested", ARRAY, (ARRAY, [(U8, [1, 2]), (F32, [0.5])])),
        ("comfy.gguf.orig_shape.w", ARRAY, (U32, [2, 2, 2])),
    ],
)
STATUSES = {200, 400, 404, 405, 409, 413, 414, 422}
# What a URL may hold on the wire: all but control characters, space and bytes past ASCII.
URL_BYTES = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=30).map(str.encode)
ESCAPES = st.binary(max_size=8).map(lambda raw: b"".join(b"%%%02X" % byte for byte in raw))
NAMES = st.sampled_from(
    [b"rows", b"cols", b"slice", b"format", b"dtype", b"name", b"type", b"limit", b"cursor", b"items", b"prefix", b"x"]
)
VALUES = st.one_of(
    URL_BYTES,
    ESCAPES,
    st.sampled_from(
        [b"0", b"-1", b"::-1", b"npy", b"json", b"native", b"float16", b"stored", b"...", b"*", b"[", b"[!a-"]
    ),
)
QUERIES = st.lists(st.tuples(NAMES | ESCAPES, VALUES), max_size=4).map(
    lambda pairs: b"&".join(name + b"=" + value for name, value in pairs)
)


@settings(max_examples=300, deadline=None)
@given(
    start=st.sampled_from([path.encode() for path in ROUTES.values()] + [b"/", b"/v1/models/", b"/v1/models/demo/-/"]),
    rest=st.lists(URL_BYTES | ESCAPES | st.sampled_from([b"/", b"/-/", b"..", b"%2F", b"%00"]), max_size=3).map(
        b"".join
    ),
    query=QUERIES | URL_BYTES,
    method=st.sampled_from(["GET", "GET", "GET", "HEAD", "POST"]),
)
@example(start=b"/v1/models", rest=b"", query=b"%", method="GET")
@example(start=b"/v1/models/demo/-/tensors", rest=b"", query=b"name=[[a--&&||~~b]*[z-a]", method="GET")
def test_any_request_is_answered(demo: Face, start: bytes, rest: bytes, query: bytes, method: str) -> None:
    assert demo.get(start + rest.replace(b"?", b"") + b"?" + query, method).status in STATUSES


def mutants(seed: bytes, count: int, generator: random.Random) -> Iterator[bytes]:
    """Copies of a file with a few bytes changed, cut short, or with bytes put in."""
    for _ in range(count):
        data = bytearray(seed)
        for _ in range(generator.randint(1, 4)):
            at = generator.randrange(len(data))
            kind = generator.randrange(4)
            if kind == 0:
                data[at] = generator.choice([0, 1, 0x7F, 0x80, 0xFF, generator.randrange(256)])
            elif kind == 1:
                data[at : at + 8] = generator.choice([2**63, 2**64 - 1, 2**32, 0, 3]).to_bytes(8, "little")
            elif kind == 2:
                del data[at : at + generator.randint(1, 40)]
            else:
                data[at:at] = generator.randbytes(generator.randint(1, 9))
            data = data or bytearray(1)
        yield bytes(data)


@pytest.mark.parametrize("seed", range(3))
def test_any_file_is_listed_and_every_link_of_it_answers(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    root = tmp_path_factory.mktemp("mutants")
    generator = random.Random(seed)
    files: dict[str | bytes, bytes] = {f"{n}.gguf": data for n, data in enumerate(mutants(SEED, 80, generator))}
    for place, data in enumerate(mutants(SECOND, 10, generator)):
        files[f"{place}/{PART_1}.gguf"], files[f"{place}/{PART_2}.gguf"] = FIRST, data
    write_files(root, {**files, "good.gguf": SEED})
    face = Face(root)
    seen = crawl(face)
    assert {answer.status for answer in seen.values()} <= STATUSES
    assert seen["/v1/models"].json["count"] == 91
    assert seen["/v1/models/good/-/data/w"].body == F8
    assert {answer.status for target, answer in seen.items() if "/good" in target} == {200}
    face.close()
