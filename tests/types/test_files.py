"""What somebody names as a file is one, of a size that is bounded."""

from __future__ import annotations

import copy
import os
import socket
import tracemalloc
import zipfile
from typing import TYPE_CHECKING

import numpy as np
import pytest

from smelt.errors import BindingError, SmeltError
from smelt.types import Limit, open_file, read_array, read_arrays, read_file, write_arrays

if TYPE_CHECKING:
    from pathlib import Path

    from smelt.types import ArrayHeader


@pytest.fixture
def special(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A name that is no regular file: of the kind that the test asks for."""
    path = tmp_path / "named"
    if request.param == "pipe":
        os.mkfifo(path)
    elif request.param == "folder":
        path.mkdir()
    elif request.param == "socket":
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(os.fspath(path))
    else:
        path.symlink_to(request.param)
    return path


SPECIAL = pytest.mark.parametrize(
    "special", ["pipe", "folder", "socket", "/dev/zero", "/dev/tty", "/dev/stdin"], indirect=True
)


@SPECIAL
def test_what_is_no_regular_file_is_refused_without_waiting(special: Path) -> None:
    with pytest.raises(OSError, match=r".") as caught:
        open_file(special, Limit.MAX_MODEL_BYTES)
    assert caught.value.strerror
    assert not isinstance(caught.value, BlockingIOError)


def test_a_pipe_and_a_device_are_called_so(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="it is a pipe; it must be a regular file"):
        read_file(tmp_path / "pipe", Limit.MAX_KEY_BYTES)
    with pytest.raises(OSError, match="it is a device; it must be a regular file"):
        read_file("/dev/zero", Limit.MAX_KEY_BYTES)


def test_a_file_beyond_its_limit_is_refused_by_the_limits_name_before_it_is_read(
    tmp_path: Path,
) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(Limit.MAX_MODEL_BYTES.most + 1)
    with pytest.raises(OSError, match="MAX_MODEL_BYTES is 2,147,483,647"):
        read_file(path, Limit.MAX_MODEL_BYTES)


def test_a_file_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    assert read_file(path, Limit.MAX_KEY_BYTES) == b"abc"
    assert read_file(str(path), Limit.MAX_KEY_BYTES) == b"abc"


def _header(shape: str, descr: str = "'<f4'") -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


@pytest.mark.parametrize(
    "content",
    [
        _header("(1099511627776,)"),
        _header("(4294967296, 4294967296)"),
        _header("(-1,)"),
        _header("(2,)") + bytes(4),
        _header("(1,)") + bytes(5),
        _header("(1,)", "'|O'") + bytes(8),
        _header("(" + "(" * 4000),
        _header("-" * 9000 + "1"),
        b"\x93NUMPY\x03\x00" + bytes(60),
        b"",
        b"PK\x03\x04" + bytes(40),
        b"\x80\x04N.",
    ],
)
def test_arrays_that_their_file_does_not_fill_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "array.npy"
    path.write_bytes(content)
    with pytest.raises(BindingError, match=r"."):
        read_array(path)


def test_a_header_is_refused_before_its_elements_are_read(tmp_path: Path) -> None:
    path = tmp_path / "array.npy"
    path.write_bytes(_header("(1073741824,)"))
    os.truncate(path, path.stat().st_size + (4 << 30))
    seen: list[tuple[int, ...]] = []

    def refuse(header: ArrayHeader) -> None:
        seen.append(header.shape)
        raise ValueError("too long")

    tracemalloc.start()
    try:
        with pytest.raises(BindingError, match="too long"):
            read_array(path, refuse)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert seen == [(1 << 30,)]


def test_an_archive_is_no_array_and_an_array_no_archive(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros(2))
    np.savez(tmp_path / "b.npz", x=np.zeros(2))
    with pytest.raises(BindingError, match="it is an archive of several arrays"):
        read_array(tmp_path / "b.npz")
    with pytest.raises(BindingError, match="it is not a zip archive"):
        read_arrays(tmp_path / "a.npy")


def test_an_archive_that_unpacks_to_too_much_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", _header("(4,)") + bytes(16))
    content = bytearray(path.read_bytes())
    at = content.index(b"PK\x01\x02")
    content[at + 24 : at + 28] = b"\xf0\xff\xff\xff"  # the declared size, in the directory
    archive_of_four = bytes(content)
    path.write_bytes(archive_of_four)
    with pytest.raises(BindingError, match="its size does not match its array"):
        read_arrays(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Limit.MAX_ARRAYS_BYTES, "most", 1 << 20)
        with pytest.raises(BindingError, match="MAX_ARRAYS_BYTES is 1,048,576"):
            read_arrays(path)


def test_an_archive_packed_as_numpy_never_packs_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "packed.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("a.npy", _header("(4,)") + bytes(16))
    with pytest.raises(BindingError, match="method that is not supported"):
        read_arrays(path)


def test_an_archive_holds_arrays_of_any_name(tmp_path: Path) -> None:
    names = [
        "file",
        "allow_pickle",
        "self",
        "args",
        "kwds",
        "/a/../b",
        "x.npy",
        "",
        "x y",
        "\u00e4",
    ]
    arrays = {name: np.full(3, number, np.float32) for number, name in enumerate(names)}
    (tmp_path / "a.npz").write_bytes(write_arrays(arrays))
    found = read_arrays(tmp_path / "a.npz")
    assert {name: array.tolist() for name, array in found.items()} == {
        name: array.tolist() for name, array in arrays.items()
    }
    with np.load(tmp_path / "a.npz") as again:
        assert again["file"].tolist() == [0, 0, 0]


@pytest.mark.parametrize("name", ["a\0b", "\ud800", "n" * 70000])
def test_a_name_that_an_archive_has_no_place_for_is_refused(name: str) -> None:
    with pytest.raises(SmeltError, match=r"cannot be saved in an \.npz archive"):
        write_arrays({name: np.zeros(1)})


def test_elements_of_an_archive_are_read_once_and_only_where_they_are_wanted(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, large=np.zeros(1 << 24, np.uint8), small=np.ones(2))
    tracemalloc.start()
    try:
        found = read_arrays(path, lambda name, header: header.size_bytes < 100)
        _, peak_without = tracemalloc.get_traced_memory()
        read_arrays(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert list(found) == ["small"]
    assert peak_without < 1 << 20
    assert peak < 24 << 20


def test_arrays_are_read_as_numpy_wrote_them(tmp_path: Path) -> None:
    matrix = np.asfortranarray(np.arange(6, dtype=np.int16).reshape(2, 3))
    np.save(tmp_path / "a.npy", matrix)
    np.savez_compressed(tmp_path / "b.npz", x=matrix, empty=np.zeros((0, 5)))
    assert np.array_equal(read_array(tmp_path / "a.npy"), matrix)
    found = read_arrays(tmp_path / "b.npz")
    assert np.array_equal(found["x"], matrix)
    assert found["empty"].shape == (0, 5)


def test_a_message_about_a_name_of_megabytes_leaves_out_its_middle() -> None:
    detail = str(SmeltError("layer '" + "n" * (1 << 22) + "' is wrong"))
    assert detail.startswith("layer 'nnn")
    assert detail.endswith("nnn' is wrong")
    assert len(detail) < 1 << 16


def test_the_directory_of_an_archive_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two million entries were made objects of before anybody could count them."""
    path = tmp_path / "many.npz"
    arrays = {f"array {number}": np.zeros(1) for number in range(100)}
    path.write_bytes(write_arrays(arrays))
    assert read_arrays(path).keys() == arrays.keys()
    monkeypatch.setattr(Limit.MAX_DIRECTORY_BYTES, "most", 5_000)
    with pytest.raises(BindingError, match="MAX_DIRECTORY_BYTES is 5,000"):
        read_arrays(path)
    path.write_bytes(write_arrays({"large": np.zeros(10_000)}))
    assert read_arrays(path)["large"].size == 10_000


@pytest.mark.parametrize(
    ("names", "detail"),
    [
        (("x.npy", "x.npy"), "the array 'x' is in it more than once"),
        (("x.npy", "x"), "the array 'x' is in it more than once"),
        (("x.npy", "y.npy"), "the array 'y' in it overlaps another one"),
    ],
)
def test_an_archive_that_lists_a_member_again_is_refused_before_it_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, str], detail: str
) -> None:
    path = tmp_path / "again.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(names[0], _header("(0,)"))
        again = copy.copy(archive.filelist[0])
        again.filename = names[1]
        archive.filelist.append(again)
    monkeypatch.setattr(zipfile.ZipFile, "open", None)
    with pytest.raises(BindingError, match=detail):
        read_arrays(path)


def test_members_that_overlap_in_part_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "nested.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", _header("(0,)"))
        archive.writestr("y.npy", _header("(0,)"))
        archive.filelist[0].compress_size += 100
    with pytest.raises(BindingError, match="the array 'y' in it overlaps another one"):
        read_arrays(path)
