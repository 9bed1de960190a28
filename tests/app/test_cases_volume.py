"""Cases of docs/cases.md about files: damaged, foreign, split, and replaced."""

import os
from pathlib import Path

import pytest

from tests.app.conftest import Face, Serve, path_of, slug
from tests.builder import F8, I32, STRING, U16, U32, base, build, floats, header, kv, pad, tensor_info

W = path_of("m", "data", "w")
PART_1, PART_2 = "m-00001-of-00002", "m-00002-of-00002"


def part(number: int, tensors: list[bytes], data: bytes, *, total: int = 2, count: int = 2) -> bytes:
    """A part of a split set; the first has the architecture."""
    keys = [kv("general.architecture", STRING, "llama")] if number == 0 else []
    keys += [kv("split.no", U16, number), kv("split.count", U16, count), kv("split.tensors.count", I32, total)]
    return pad(header(len(tensors), len(keys)) + b"".join(keys) + b"".join(tensors)) + data


FIRST = part(0, [], b"")
SECOND = part(1, [tensor_info("a", [4, 2], 0, 0), tensor_info("b", [4], 0, 32)], F8 + floats(8, 9, 10, 11))


@pytest.mark.case(5)
def test_a_file_that_lacks_its_last_byte_lists_its_tensor_as_unreadable(serve: Serve) -> None:
    face = serve(base()[:-1])
    assert face.get(path_of("m", "metadata")).status == 200
    (line,) = face.get(path_of("m", "tensors")).json["tensors"]
    assert line["readable"] is False
    assert line["fault"]["type"] == "/problems/tensor-past-end-of-file"
    answer = face.get(W)
    assert slug(answer) == (422, "tensor-past-end-of-file")
    assert answer.json["tensor"] == "w"
    assert "1 of its 32 bytes" in answer.json["detail"]


@pytest.mark.case(5)
def test_whole_tensors_of_a_cut_file_are_served(serve: Serve) -> None:
    infos = [tensor_info("w", [4, 2], 0, 0), tensor_info("cut", [4, 2], 0, 32)]
    face = serve(base(infos=infos, data=F8 + F8[:-1]))
    assert face.get(W).body == F8
    assert face.problem(path_of("m", "data", "cut?rows=0")) == (422, "tensor-past-end-of-file")
    assert face.get("/v1/models").json["models"][0]["unreadable_tensors"] == 1


FOREIGN = {
    "empty": (b"", "an empty file"),
    "short": (b"GGU", "3 bytes"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "Git LFS pointer"),
    "html": (b"<!DOCTYPE html><html></html>", "an HTML page"),
    "zeros": (bytes(200), "zeros"),
    "part": (bytes(range(7, 207)), "later part of a split download"),
}


@pytest.mark.case(6)
def test_files_that_are_no_gguf_are_named_and_hide_nothing(serve: Serve) -> None:
    face = serve({f"{name}.gguf": data for name, (data, _) in FOREIGN.items()} | {"z/good.gguf": base()})
    lines = {line["id"]: line for line in face.get("/v1/models").json["models"]}
    assert set(lines) == {*FOREIGN, "z/good"}
    assert lines["z/good"]["readable"]
    for name, (data, found) in FOREIGN.items():
        assert lines[name]["readable"] is False
        assert lines[name]["bytes"] == len(data)
        assert found in lines[name]["problem"]["detail"]
        for target in (
            lines[name]["href"],
            path_of(name, "metadata"),
            path_of(name, "tensors"),
            path_of(name, "data", "w"),
        ):
            answer = face.get(target)
            assert slug(answer) == (422, "unreadable-model")
            assert answer.json == lines[name]["problem"]
    assert face.get(path_of("z/good", "data", "w")).body == F8


@pytest.mark.case(21)
def test_a_whole_split_set_is_one_model(serve: Serve) -> None:
    face = serve({f"{PART_1}.gguf": FIRST, f"{PART_2}.gguf": SECOND})
    (line,) = face.get("/v1/models").json["models"]
    assert (line["id"], line["files"], line["tensors"], line["bytes"]) == ("m", 2, 2, len(FIRST) + len(SECOND))
    summary = face.get("/v1/models/m").json
    assert summary["architecture"] == "llama"
    assert [file["tensors"] for file in summary["files"]] == [0, 2]
    lines = face.get(path_of("m", "tensors")).json["tensors"]
    assert [(line["name"], line["file"]) for line in lines] == [("a", 1), ("b", 1)]
    assert face.get(path_of("m", "data", "a")).body == F8
    assert face.get(path_of("m", "data", "b")).values == [8, 9, 10, 11]
    assert face.get(path_of("m", "data", "a?format=native&rows=1")).body == F8[16:]


@pytest.mark.case(21)
def test_each_part_of_a_set_opens_alone_by_its_file_name(serve: Serve) -> None:
    face = serve({f"{PART_1}.gguf": FIRST, f"{PART_2}.gguf": SECOND})
    assert face.get(f"/v1/models/{PART_1}.gguf").json["tensors"] == 0
    alone = face.get(f"/v1/models/{PART_2}.gguf").json
    assert (alone["tensors"], alone["architecture"]) == (2, None)
    assert any("part 2" in line for line in alone["warnings"])
    assert face.get(path_of(f"{PART_2}.gguf", "data", "a")).body == F8


@pytest.mark.case(21)
def test_a_later_part_need_not_say_how_many_there_are(serve: Serve) -> None:
    infos = [tensor_info("a", [4, 2], 0, 0), tensor_info("b", [4], 0, 32)]
    second = pad(header(2, 1) + kv("split.no", U16, 1) + b"".join(infos)) + F8 + floats(8, 9, 10, 11)
    face = serve({f"{PART_1}.gguf": FIRST, f"{PART_2}.gguf": second})
    assert face.get("/v1/models/m").json["architecture"] == "llama"
    assert face.get(path_of("m", "data", "a")).body == F8
    assert face.get(path_of("m", "data", "b")).values == [8, 9, 10, 11]
    assert face.get(path_of(f"{PART_2}.gguf", "data", "a")).body == F8


@pytest.mark.case(21)
@pytest.mark.parametrize(("present", "missing"), [(PART_2, PART_1), (PART_1, PART_2)])
def test_a_missing_part_is_named_and_the_others_open_alone(serve: Serve, present: str, missing: str) -> None:
    face = serve({f"{present}.gguf": SECOND if present == PART_2 else FIRST, "other.gguf": base()})
    lines = {line["id"]: line for line in face.get("/v1/models").json["models"]}
    assert lines["other"]["readable"]
    assert lines["m"]["problem"]["type"] == "/problems/incomplete-split"
    answer = face.get("/v1/models/m")
    assert slug(answer) == (422, "incomplete-split")
    assert f"{missing}.gguf" in answer.json["detail"]
    assert present not in answer.json["detail"]
    assert face.problem(path_of("m", "data", "a")) == (422, "incomplete-split")
    assert face.get(f"/v1/models/{present}.gguf").status == 200


@pytest.mark.case(21)
@pytest.mark.parametrize(
    "second",
    [
        part(0, [tensor_info("a", [4, 2], 0, 0), tensor_info("b", [4], 0, 32)], bytes(48)),
        part(1, [tensor_info("a", [4, 2], 0, 0)], F8),
        part(1, [tensor_info("a", [4, 2], 0, 0), tensor_info("b", [4], 0, 32)], bytes(48), count=3),
    ],
    ids=["the first twice", "a tensor too few", "of another count"],
)
def test_parts_that_do_not_belong_together_are_refused(serve: Serve, second: bytes) -> None:
    face = serve({f"{PART_1}.gguf": FIRST, f"{PART_2}.gguf": second})
    assert face.problem("/v1/models/m") == (422, "incomplete-split")
    assert face.get(f"/v1/models/{PART_2}.gguf").status == 200


def replace(path: Path, data: bytes, *, like: os.stat_result | None = None) -> None:
    """Put another file at a path by renaming it there, with the times of ``like``."""
    other = path.with_suffix(".new")
    other.write_bytes(data)
    if like is not None:
        os.utime(other, ns=(like.st_atime_ns, like.st_mtime_ns))
    other.rename(path)


@pytest.mark.case(25)
def test_a_replaced_file_is_seen_though_its_size_and_time_are_the_same(serve: Serve) -> None:
    face = serve(base())
    path = face.root / "m.gguf"
    before = face.get(W)
    assert face.get("/v1/models").json["models"][0]["parameters"] == 8
    status = path.stat()
    replace(path, base(infos=[tensor_info("w", [2, 4], 0, 0)], data=floats(*range(8, 16))), like=status)
    after = path.stat()
    assert (after.st_size, after.st_mtime_ns) == (status.st_size, status.st_mtime_ns)
    answer = face.get(W)
    assert answer.values == list(range(8, 16))
    assert answer.headers["x-tensor-shape"] == "[4,2]"
    assert answer.headers["etag"] != before.headers["etag"]
    assert face.get(path_of("m", "tensors", "w")).json["ne"] == [2, 4]
    replace(path, base(infos=[tensor_info("v", [4], 0, 0)], data=bytes(32)))
    assert face.problem(W) == (404, "no-such-tensor")
    assert face.get("/v1/models").json["models"][0]["parameters"] == 4


@pytest.mark.case(25)
def test_a_file_may_come_go_and_break(serve: Serve) -> None:
    """Whatever was known of a file is known of its present state only."""
    face = serve({"other.gguf": base()})
    path = face.root / "m.gguf"
    assert face.problem(W) == (404, "no-such-model")
    replace(path, base())
    assert face.get(W).body == F8
    replace(path, b"GGU")
    assert face.problem(W) == (422, "unreadable-model")
    assert [line["readable"] for line in face.get("/v1/models").json["models"]] == [False, True]
    replace(path, base())
    assert face.get(W).body == F8
    path.unlink()
    assert face.problem(W) == (404, "no-such-model")
    assert face.get("/v1/models").json["count"] == 1


@pytest.mark.case(25)
def test_the_same_file_elsewhere_has_the_same_etag(serve: Serve, tmp_path: Path) -> None:
    """So replicas that mount the same volume agree."""
    first = serve(base())
    etag = first.get(W).headers["etag"]
    copy = tmp_path / "copy"
    copy.mkdir()
    replace(copy / "m.gguf", base(), like=(first.root / "m.gguf").stat())
    second = Face(copy)
    assert second.get(W).headers["etag"] == etag
    second.close()


def test_every_representation_has_an_etag_of_its_own(serve: Serve) -> None:
    face = serve(build([("w", [4, 2], 0, F8), ("v", [4, 2], 0, F8)], [("k", U32, 1)]))
    queries = ["", "?format=npy", "?format=json", "?format=native", "?dtype=float16", "?dtype=bfloat16", "?rows=0"]
    queries += ["?rows=1", "?cols=0", "?slice=0", "?slice=:,0", "?rows=0,0", "?rows=::-1", "?rows=0:0"]
    etags = [face.get(W + query).headers["etag"] for query in queries]
    etags.append(face.get(path_of("m", "data", "v")).headers["etag"])
    assert len(set(etags)) == len(etags)
    assert all(etag[0] == etag[-1] == '"' and etag.isascii() for etag in etags)
    # What is the same answer has the same one.
    for query in ("?rows=:", "?rows=0:2&cols=:", "?rows=0,1"):
        assert face.get(W + query).headers["etag"] == etags[0], query


def test_a_volume_that_is_away_is_a_503_and_comes_back(serve: Serve) -> None:
    face = serve(base())
    assert face.get("/readyz").json == {"status": "ready"}
    away = face.root.with_name("away")
    face.root.rename(away)
    for target in ("/readyz", "/v1/models", "/v1/models/m", W):
        answer = face.get(target)
        assert slug(answer) == (503, "volume-error")
        assert answer.headers["retry-after"] == "1"
    assert face.get("/healthz").json == {"status": "ok"}
    away.rename(face.root)
    assert face.get(W).body == F8
    assert face.get("/readyz").status == 200


@pytest.mark.case(39)
def test_a_file_that_shrinks_while_it_is_served_is_a_503(serve: Serve) -> None:
    """Before the 200, within the time that a look at the volume holds."""
    face = serve(base(), recheck_seconds=3600)
    assert face.get(path_of("m", "tensors", "w")).status == 200
    os.truncate(face.root / "m.gguf", 130)
    assert face.problem(W) == (503, "volume-error")
    assert face.get("/healthz").status == 200


def test_a_file_without_permission_is_unreadable_and_hides_nothing(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = os.open

    def refuse(path: bytes, flags: int, *, dir_fd: int | None = None) -> int:
        if path == b"secret.gguf":
            raise PermissionError(13, "Permission denied")
        return opened(path, flags, dir_fd=dir_fd)

    monkeypatch.setattr("app.snapshot.os.open", refuse)
    face = serve({"secret.gguf": base(), "m.gguf": base()})
    assert [line["readable"] for line in face.get("/v1/models").json["models"]] == [True, False]
    answer = face.get("/v1/models/secret")
    assert slug(answer) == (422, "unreadable-model")
    assert "permission" in answer.json["detail"]
