"""What the volume holds: ids, split sets, links, and names that no careful person gives a file."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import Unavailable
from app.volume import Found, Volume


def put(root: Path, *names: str | bytes) -> None:
    """Make empty files, and their folders: the volume looks at names only."""
    for name in names:
        path = os.path.join(os.fsencode(root), os.fsencode(name))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "xb"):
            pass


def files(found: Found | None, root: Path) -> list[str]:
    """The found files by their names below the root."""
    assert found is not None
    return [os.fsdecode(os.path.relpath(path, os.fsencode(os.path.realpath(root)))) for path in found.paths]


def listed(volume: Volume) -> list[bytes]:
    return [found.model_id for found in volume.walk()]


def test_ids_are_paths_without_the_suffix_at_any_depth(tmp_path: Path) -> None:
    put(tmp_path, "b.gguf", "a/x.gguf", "a/b/c/d/deep.gguf", "b/y.gguf", "notes.txt", "GGUF", "upper.GGUF")
    volume = Volume(tmp_path)
    assert listed(volume) == [b"b", b"a/x", b"a/b/c/d/deep", b"b/y"]
    for found in volume.walk():
        assert volume.find(found.model_id) == found
        assert files(found, tmp_path) == [os.fsdecode(found.model_id) + ".gguf"]


def test_a_real_file_name_is_an_alias(tmp_path: Path) -> None:
    put(tmp_path, "a/x.gguf")
    volume = Volume(tmp_path)
    assert volume.find(b"a/x.gguf") == volume.find(b"a/x") == Found(b"a/x", (os.fsencode(tmp_path / "a/x.gguf"),))
    put(tmp_path, "a/x.gguf.gguf")  # now that name is an id of its own
    assert files(volume.find(b"a/x.gguf"), tmp_path) == ["a/x.gguf.gguf"]
    assert listed(volume) == [b"a/x", b"a/x.gguf"]


@pytest.mark.case(21)
def test_a_whole_split_set_is_one_model(tmp_path: Path) -> None:
    parts = [f"a/m-{number:05}-of-00012.gguf" for number in range(1, 13)]
    put(tmp_path, *parts)
    volume = Volume(tmp_path)
    (found,) = volume.walk()
    assert found.model_id == b"a/m"
    assert files(found, tmp_path) == parts
    assert found.missing == ()
    assert volume.find(b"a/m") == found


@pytest.mark.case(21)
def test_each_part_opens_alone_by_its_file_name(tmp_path: Path) -> None:
    put(tmp_path, "m-00001-of-00002.gguf", "m-00002-of-00002.gguf")
    volume = Volume(tmp_path)
    for name in ("m-00002-of-00002", "m-00002-of-00002.gguf"):
        found = volume.find(name.encode())
        assert found is not None
        assert found.model_id == b"m-00002-of-00002"
        assert files(found, tmp_path) == ["m-00002-of-00002.gguf"]
        assert found.missing == ()


@pytest.mark.case(21)
def test_a_partial_set_names_what_is_missing(tmp_path: Path) -> None:
    put(tmp_path, "m-00002-of-00003.gguf")
    volume = Volume(tmp_path)
    (found,) = volume.walk()
    assert found == volume.find(b"m")
    assert found.model_id == b"m"
    assert found.missing == (b"m-00001-of-00003.gguf", b"m-00003-of-00003.gguf")
    assert files(volume.find(b"m-00002-of-00003"), tmp_path) == ["m-00002-of-00003.gguf"]


def test_a_set_that_promises_many_parts_names_a_few(tmp_path: Path) -> None:
    put(tmp_path, "m-00001-of-99999.gguf")
    (found,) = Volume(tmp_path).walk()
    assert 1 <= len(found.missing) <= 16
    assert found.missing[0] == b"m-00002-of-99999.gguf"


def test_of_two_sets_with_one_stem_the_whole_one_is_the_model(tmp_path: Path) -> None:
    put(tmp_path, *(f"m-{number:05}-of-00003.gguf" for number in (1, 2, 3)), "m-00001-of-00002.gguf")
    volume = Volume(tmp_path)
    assert [(found.model_id, len(found.paths), found.missing) for found in volume.walk()] == [
        (b"m", 3, ()),
        (b"m-00001-of-00002", 1, ()),
    ]
    for found in volume.walk():
        assert volume.find(found.model_id) == found
    put(tmp_path, "m-00002-of-00002.gguf")  # both whole: the same one each time
    assert {(found.model_id, len(found.paths)) for found in volume.walk()} >= {(b"m", 2), (b"m-00001-of-00003", 1)}
    assert files(volume.find(b"m"), tmp_path) == ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"]


def test_a_plain_file_is_preferred_to_a_set_of_its_name(tmp_path: Path) -> None:
    put(tmp_path, "m.gguf", "m-00001-of-00002.gguf", "m-00002-of-00002.gguf")
    volume = Volume(tmp_path)
    assert listed(volume) == [b"m", b"m-00001-of-00002", b"m-00002-of-00002"]
    for found in volume.walk():
        assert volume.find(found.model_id) == found
        assert len(found.paths) == 1


@pytest.mark.parametrize("name", ["m-00003-of-00002", "m-00000-of-00002", "m-0001-of-0002", "-00001-of-00001"])
def test_names_that_only_look_like_parts_are_plain_files(tmp_path: Path, name: str) -> None:
    put(tmp_path, name + ".gguf")
    volume = Volume(tmp_path)
    assert listed(volume) == [name.encode()]
    assert volume.find(name.encode()) is not None


@pytest.mark.parametrize("name", [".gguf", "..gguf", "...gguf", "a/.gguf", "a/..gguf"])
def test_a_file_whose_id_could_not_be_asked_for_is_no_model(tmp_path: Path, name: str) -> None:
    put(tmp_path, name)
    volume = Volume(tmp_path)
    assert listed(volume) == []
    assert volume.find(name.encode()) is None
    assert volume.find(name.encode().removesuffix(b".gguf")) is None


@given(st.binary(min_size=1, max_size=20).filter(lambda name: b"/" not in name and b"\0" not in name))
def test_any_file_name_is_found_by_the_id_it_is_listed_under(
    tmp_path_factory: pytest.TempPathFactory, name: bytes
) -> None:
    root = tmp_path_factory.mktemp("volume")
    put(root, name + b".gguf", b"folder\xff/" + name + b"-00001-of-00001.gguf")
    volume = Volume(root)
    every = list(volume.walk())
    assert len(every) == (0 if name == b"." or name == b".." else 1) + 1
    for found in every:
        assert volume.find(found.model_id) == found
        assert os.path.isfile(found.paths[0])


@pytest.mark.case(46, 73)
@pytest.mark.parametrize(
    "model_id",
    [
        b"",
        b"/",
        b"//",
        b"m/",
        b"/m",
        b".",
        b"..",
        b"../outside/secret",
        b"a/../m",
        b"a/./m",
        b"./m",
        b"..\\m",
        b"a//x",
        b"m\0",
        b"m\0.gguf",
        b"\0",
        b"m.gguf/x",
        b"m.gguf/",
        b"m/x",
        b"n",
        b"m.gguf.gguf",
        b"a",
        b"a.gguf",
        b"/etc/passwd",
        b"x" * 5000,
        b"x" * 300,
        b"x/" * 2500 + b"x",
        b"a/" * 1000 + b"x",
        b"\xff" * 100,
        b"m-00001-of-00001",
        b"m*",
    ],
)
def test_what_names_no_model_is_not_found(tmp_path: Path, model_id: bytes) -> None:
    root = tmp_path / "root"
    put(tmp_path, "root/m.gguf", "root/a/x.gguf", "outside/secret.gguf")
    (root / "a.gguf").mkdir()
    assert Volume(root).find(model_id) is None


def test_links_inside_the_root_are_followed(tmp_path: Path) -> None:
    put(tmp_path, "blobs/sha256.gguf", "real/x.gguf")
    (tmp_path / "named.gguf").symlink_to("blobs/sha256.gguf")
    (tmp_path / "again.gguf").symlink_to(tmp_path / "named.gguf")
    (tmp_path / "folder").symlink_to("real")
    volume = Volume(tmp_path)
    assert listed(volume) == [b"again", b"named", b"blobs/sha256", b"real/x"]
    assert files(volume.find(b"again"), tmp_path) == ["blobs/sha256.gguf"]
    assert files(volume.find(b"folder/x"), tmp_path) == ["real/x.gguf"]


@pytest.mark.case(46)
def test_links_out_of_the_root_are_followed_only_where_allowed(tmp_path: Path) -> None:
    root = tmp_path / "root"
    put(tmp_path, "root/m.gguf", "root-beside/secret.gguf", "root-beside/s-00001-of-00001.gguf")
    (root / "link.gguf").symlink_to("../root-beside/secret.gguf")
    (root / "folder").symlink_to("../root-beside")
    (root / "part-00001-of-00001.gguf").symlink_to("../root-beside/secret.gguf")
    closed = Volume(root)
    assert listed(closed) == [b"m"]
    for model_id in (b"link", b"link.gguf", b"folder/secret", b"folder/s", b"part", b"folder/missing"):
        assert closed.find(model_id) is None
    opened = Volume(root, outside_symlinks=True)
    assert listed(opened) == [b"link", b"m", b"part", b"folder/s", b"folder/secret"]
    for found in opened.walk():
        assert files(opened.find(found.model_id), root) == [
            os.path.relpath(os.path.realpath(os.fsdecode(path)), root) for path in found.paths
        ]


def test_links_in_a_circle_or_to_nothing_are_passed_over(tmp_path: Path) -> None:
    put(tmp_path, "a/x.gguf")
    (tmp_path / "a" / "up").symlink_to("..")
    (tmp_path / "self.gguf").symlink_to("self.gguf")
    (tmp_path / "gone.gguf").symlink_to("nowhere.gguf")
    for volume in (Volume(tmp_path), Volume(tmp_path, outside_symlinks=True)):
        assert listed(volume) == [b"a/x"]
        assert volume.find(b"self") is None
        assert volume.find(b"gone") is None


@pytest.mark.case(46)
def test_only_regular_files_are_models(tmp_path: Path) -> None:
    put(tmp_path, "m.gguf", "folder.gguf/inner.gguf")
    os.mkfifo(tmp_path / "pipe.gguf")
    (tmp_path / "device.gguf").symlink_to("/dev/zero")
    volume = Volume(tmp_path, outside_symlinks=True)
    assert listed(volume) == [b"m", b"folder.gguf/inner"]
    for model_id in (b"pipe", b"pipe.gguf", b"device", b"folder"):
        assert volume.find(model_id) is None


def test_the_root_may_itself_be_a_link(tmp_path: Path) -> None:
    put(tmp_path, "real/m.gguf")
    (tmp_path / "root").symlink_to("real")
    volume = Volume(tmp_path / "root")
    assert listed(volume) == [b"m"]
    assert volume.find(b"m") is not None


def test_names_need_not_be_utf8(tmp_path: Path) -> None:
    put(tmp_path, b"\xff\xfe/w\xe4.gguf", "ümlaut.gguf", b"line\nfeed.gguf")
    volume = Volume(tmp_path)
    assert listed(volume) == [b"line\nfeed", "ümlaut".encode(), b"\xff\xfe/w\xe4"]
    for found in volume.walk():
        assert volume.find(found.model_id) == found


def refusing(folder: Path, real: Callable[[bytes], Iterator[os.DirEntry[bytes]]]) -> Callable[[bytes], object]:
    def scandir(path: bytes) -> Iterator[os.DirEntry[bytes]]:
        if path == os.fsencode(folder):
            raise PermissionError(13, "Permission denied")
        return real(path)

    return scandir


def test_a_folder_that_cannot_be_listed_hides_only_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "a/x.gguf", "b/y.gguf", "b/c/z.gguf", "d/m.gguf")
    monkeypatch.setattr(os, "scandir", refusing(tmp_path / "b", os.scandir))
    volume = Volume(tmp_path)
    assert listed(volume) == [b"a/x", b"d/m"]
    assert volume.readable()


def test_an_unlistable_root_is_not_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "m.gguf")
    volume = Volume(tmp_path)
    assert volume.readable()
    monkeypatch.setattr(os, "scandir", refusing(tmp_path, os.scandir))
    assert not volume.readable()
    with pytest.raises(Unavailable):
        listed(volume)


def test_a_missing_root_holds_nothing_until_it_is_there(tmp_path: Path) -> None:
    root = tmp_path / "mount"
    volume = Volume(root)
    assert not volume.readable()
    with pytest.raises(Unavailable):
        listed(volume)
    assert volume.find(b"m") is None
    put(root, "m.gguf")
    assert volume.readable()
    assert listed(volume) == [b"m"]
    assert volume.find(b"m") is not None


def test_a_file_in_the_place_of_the_root_is_not_readable(tmp_path: Path) -> None:
    put(tmp_path, "root")
    assert not Volume(tmp_path / "root").readable()
    with pytest.raises(Unavailable):
        listed(Volume(tmp_path / "root"))
