"""Cases of docs/cases.md about names: any byte in a model, key or tensor, and paths that try to leave the volume."""

import base64
import os
from collections.abc import Iterator
from urllib.parse import quote, unquote_to_bytes, urlencode

import pytest

from tests.app.conftest import Face, Serve, path_of, slug, write_files
from tests.builder import F8, STRING, U8, base, build, floats, kv, tensor_info

HOSTILE = [
    b"dense/kernel:0",
    b"a%2Fb",
    b"x/rows",
    b"x",
    b"w\xff",
    b"\n",
    b"\r\nSet-Cookie: a=b",
    "\u202egnp.exe".encode(),
    b"..",
    b".",
    b"",
    b" ",
    b"\0",
    b"a\0b",
    b"a//b",
    b"/a",
    b"a/",
    b"/",
    b"//",
    b"../../etc/passwd",
    b"a/../b",
    b"a/./b",
    b"%",
    b"%00",
    b"a?b=c",
    b"a#b",
    b"a;b",
    b"a+b",
    b"a&b",
    b"=",
    b"=x",
    b"-",
    b"a/-/data/b",
    b"\\",
    b'"',
    "é".encode(),
    "e\u0301".encode(),
    b"\xed\xa0\x80",
    b"x" * 300,
    b"~!*'()",
]


def hostile_model() -> bytes:
    """A model with a tensor and a key of every hostile name; each tensor's one weight is its place in the table."""
    tensors = [(name, [1], 0, floats(place)) for place, name in enumerate(HOSTILE)]
    return build(tensors, [(name, U8, place) for place, name in enumerate(HOSTILE)])


@pytest.fixture(scope="module")
def face(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Face]:
    root = tmp_path_factory.mktemp("names")
    (root / "m.gguf").write_bytes(hostile_model())
    face = Face(root)
    yield face
    face.close()


@pytest.mark.case(4)
@pytest.mark.parametrize("target", ["dense%2Fkernel:0", "dense/kernel:0", "dense%2Fkernel%3A0", "dense%2fkernel:0"])
def test_a_slash_in_a_name_may_be_encoded_or_not(serve: Serve, target: str) -> None:
    face = serve(base(infos=[tensor_info("dense/kernel:0", [4, 2], 0, 0)]))
    by_path = face.get(path_of("m", "data", target))
    by_query = face.get(f"/v1/data?model=m&tensor={target}")
    assert by_path == by_query
    assert by_path.body == F8


@pytest.mark.case(4)
def test_names_that_look_encoded_or_like_a_verb_are_names(serve: Serve) -> None:
    infos = [tensor_info("a%2Fb", [4, 2], 0, 0), tensor_info("x/rows", [4, 2], 0, 32), tensor_info("x", [4, 2], 0, 64)]
    face = serve(base(infos=infos, data=F8 + floats(*range(8, 16)) + floats(*range(16, 24))))
    assert face.get(path_of("m", "data", "a%252Fb")).body == F8
    assert face.problem(path_of("m", "data", "a%2Fb")) == (404, "no-such-tensor")
    assert face.get(path_of("m", "data", "x/rows?rows=0")).values == [8, 9, 10, 11]
    assert face.get(path_of("m", "data", "x?rows=0")).values == [16, 17, 18, 19]


@pytest.mark.case(4, 71)
@pytest.mark.parametrize("place", range(len(HOSTILE)), ids=lambda place: repr(HOSTILE[place])[:24])
def test_every_tensor_of_the_table_is_reached_by_its_links_and_by_parameters(face: Face, place: int) -> None:
    line = face.get(path_of("m", "tensors")).json["tensors"][place]
    name = base64.b64decode(line["name_base64"]) if "name_base64" in line else line["name"].encode()
    assert name == HOSTILE[place]
    assert face.get(line["href"]).json["start"] == line["start"]
    by_path = face.get(line["data"])
    assert by_path.values == [place]
    assert face.get("/v1/data?" + urlencode({"model": "m", "tensor": name})) == by_path
    assert unquote_to_bytes(line["data"]) == b"/v1/models/m/-/data/" + name


@pytest.mark.case(71)
@pytest.mark.parametrize("place", range(len(HOSTILE)), ids=lambda place: repr(HOSTILE[place])[:24])
def test_every_key_of_the_listing_is_reached_by_its_link(face: Face, place: int) -> None:
    line = face.get(path_of("m", "metadata")).json["metadata"][place]
    assert (line["value"], face.get(line["href"]).json["value"]) == (place, place)
    key = base64.b64decode(line["key_base64"]) if "key_base64" in line else line["key"].encode()
    assert key == HOSTILE[place]
    found = face.get(f"{path_of('m', 'metadata')}?{urlencode({'prefix': key})}").json["metadata"]
    assert place in [other["value"] for other in found]
    assert len(found) == sum(name.startswith(key) for name in HOSTILE)


@pytest.mark.case(71)
def test_a_glob_finds_names_of_any_bytes(face: Face) -> None:
    table = path_of("m", "tensors")
    for glob, count in ((b"w\xff", 1), (b"*\xff*", 1), (b"\xed*", 1), (b"x/*", 1), (b"[xw]*", 4), (b"\n", 1)):
        answer = face.get(f"{table}?{urlencode({'name': glob})}").json
        assert answer["count"] == count, glob


def test_the_pages_of_a_table_are_the_table(face: Face) -> None:
    shown: list[str] = []
    target = f"{path_of('m', 'tensors')}?name=*a*&limit=2"
    while target:
        page = face.get(target).json
        assert 1 <= len(page["tensors"]) <= 2
        shown += [line["data"] for line in page["tensors"]]
        target = page.get("next", "")
    assert [unquote_to_bytes(path).removeprefix(b"/v1/models/m/-/data/") for path in shown] == [
        name for name in HOSTILE if b"a" in name
    ]


@pytest.mark.case(71)
def test_the_next_link_keeps_a_glob_of_bytes(serve: Serve) -> None:
    face = serve(base(infos=[tensor_info(b"\xff%d" % place, [4, 2], 0, 32 * place) for place in range(3)], data=F8 * 3))
    first = face.get(f"{path_of('m', 'tensors')}?name=%FF*&limit=2").json
    assert (first["count"], len(first["tensors"])) == (3, 2)
    last = face.get(first["next"]).json
    assert [line["name_base64"] for line in last["tensors"]] == [base64.b64encode(b"\xff2").decode()]


@pytest.mark.case(42)
def test_long_names_that_differ_late_are_apart(serve: Serve) -> None:
    names = ["n" * 63 + "a", "n" * 63 + "b", "m" * 300]
    infos = [tensor_info(name, [1], 0, 32 * place) for place, name in enumerate(names)]
    face = serve(base(infos=infos, data=b"".join(floats(place) + bytes(28) for place in range(3))))
    assert [line["name"] for line in face.get(path_of("m", "tensors")).json["tensors"]] == names
    for place, name in enumerate(names):
        assert face.get(path_of("m", "data", name)).values == [place]
    assert len(face.get("/v1/models/m").json["warnings"]) == 3


@pytest.mark.case(43)
def test_a_name_that_two_tensors_have_is_ambiguous(serve: Serve) -> None:
    infos = [tensor_info("w", [4, 2], 0, 0), tensor_info("w", [4, 2], 0, 32), tensor_info("v", [4, 2], 0, 64)]
    face = serve(base(infos=infos, data=F8 * 3))
    assert [line["name"] for line in face.get(path_of("m", "tensors")).json["tensors"]] == ["w", "w", "v"]
    assert any('"w"' in line for line in face.get("/v1/models/m").json["warnings"])
    answer = face.get(path_of("m", "data", "w"))
    assert slug(answer) == (409, "ambiguous-tensor")
    assert "2 times" in answer.json["detail"]
    assert slug(face.get("/v1/data?model=m&tensor=w")) == (409, "ambiguous-tensor")
    both = face.get(path_of("m", "tensors", "w")).json["same_name"]
    assert [line["offset"] for line in both] == [0, 32]
    assert face.get(path_of("m", "data", "v")).body == F8


@pytest.mark.case(71)
def test_names_that_are_not_utf_8_keep_a_form_that_leads_back(serve: Serve) -> None:
    entries = [kv(b"bad\xff", U8, 7), kv("s", STRING, "x\r\ny")]
    infos = [
        tensor_info(b"w\xff", [4, 2], 0, 0),
        tensor_info(b"\n", [4, 2], 0, 32),
        tensor_info("\u202e", [4, 2], 0, 64),
    ]
    face = serve(base(entries=entries, infos=infos, data=F8 * 3))
    lines = face.get(path_of("m", "tensors")).json["tensors"]
    assert [line["name"] for line in lines] == ["w\ufffd", "\n", "\u202e"]
    assert [line["data"].rpartition("/")[2] for line in lines] == ["w%FF", "%0A", "%E2%80%AE"]
    assert face.get(path_of("m", "metadata", "bad%FF")).json["value"] == 7
    for line in lines:
        assert face.get(line["data"]).body == F8
        disposition = face.get(line["data"]).headers["content-disposition"]
        assert disposition.isascii()
        assert disposition.startswith('attachment; filename="')
    assert face.get(path_of("m", "metadata", "s")).json["value"] == "x\r\ny"


@pytest.fixture(scope="module")
def fenced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Face]:
    """A volume with a model beside it, a link that leads to that, and a pipe that nobody writes to."""
    root = tmp_path_factory.mktemp("fenced") / "root"
    write_files(root, {"m.gguf": base(), "folder/n.gguf": base(), "../outside.gguf": base()})
    (root / "link.gguf").symlink_to(root.parent / "outside.gguf")
    os.mkfifo(root / "pipe.gguf")
    face = Face(root)
    yield face
    face.close()


@pytest.mark.case(46, 73)
@pytest.mark.parametrize(
    "target",
    [
        "../../etc/passwd",
        "../../../../../../etc/passwd",
        "%2e%2e%2fetc",
        "%2e%2e/outside",
        "..%2foutside",
        "..%5c..",
        "..",
        ".",
        "",
        "/",
        "/etc/passwd",
        "%2Fetc%2Fpasswd",
        "{outside}",
        "folder/../../outside",
        "folder/../m",
        "folder//../m",
        "./m",
        "m/.",
        "m/",
        "m.gguf/",
        "a%00b.gguf",
        "m%00",
        "m.gguf%00.gguf",
        "folder",
        "pipe",
        "x" * 5000,
        "x" * 250,
        "y/" * 2000,
        "%ff%fe",
        "link",
        "%25",
        "%zz",
    ],
)
def test_no_path_leads_out_of_the_volume(fenced: Face, target: str) -> None:
    """The same answer whether something is there or not."""
    target = target.replace("{outside}", quote(str(fenced.root.parent / "outside")))
    unknown = fenced.get("/v1/models/unknown")
    assert slug(unknown) == (404, "no-such-model")
    assert fenced.get("/v1/models/folder/n").status == 200
    assert fenced.get(f"/v1/models/{target}") == unknown
    data = fenced.get(path_of(target, "data", "w"))
    assert (data.status, data.body) == (404, unknown.body)
    # By parameter: the query is decoded once, as the path is.
    by_query = fenced.get(f"/v1/data?model={target.replace('+', '%2B')}&tensor=w")
    assert (by_query.status, by_query.body) == (404, unknown.body)


@pytest.mark.case(46)
def test_only_what_lies_below_the_root_is_listed(serve: Serve) -> None:
    face = serve({"m.gguf": base(), "folder/n.gguf": base(), "../outside.gguf": base(), "notes.txt": base()})
    (face.root / "link.gguf").symlink_to(face.root.parent / "outside.gguf")
    (face.root / "inside.gguf").symlink_to(face.root / "folder" / "n.gguf")
    assert [line["id"] for line in face.get("/v1/models").json["models"]] == ["inside", "m", "folder/n"]


@pytest.mark.case(71)
def test_the_names_of_model_files_may_hold_any_byte(serve: Serve) -> None:
    ids = [name for name in HOSTILE if b"\0" not in name and not name.startswith(b"/") and len(name) < 250]
    ids = [name for name in ids if not {b"", b".", b".."}.intersection(name.split(b"/"))]
    face = serve({name + b".gguf": base() for name in ids} | {b"-/-/-.gguf": base(), b"data/-/tensors.gguf": base()})
    models = face.get("/v1/models").json["models"]
    assert len(models) == len(ids) + 2
    for line in models:
        assert line["readable"], line
        summary = face.get(line["href"]).json
        assert summary["id"] == line["id"]
        assert face.get(summary["links"]["metadata"]).json["count"] == 1
        (tensor,) = face.get(summary["links"]["tensors"]).json["tensors"]
        assert face.get(tensor["data"]).body == F8
        model = base64.b64decode(line["id_base64"]) if "id_base64" in line else line["id"].encode()
        assert face.get("/v1/data?" + urlencode({"model": model, "tensor": "w"})).body == F8
        assert face.get(line["href"] + ".gguf").status == 200
