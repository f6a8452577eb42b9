"""Archives of traces whose headers lie: refused with a reason, and all they unpack to counted."""

from __future__ import annotations

import bz2
import gzip
import lzma
import tarfile
from typing import TYPE_CHECKING, Literal

import pytest

from smelt.errors import ModelFormatError
from smelt.nvdla import find_traces
from smelt.types import Limit

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_PACKERS: dict[str, Callable[[bytes], bytes]] = {
    ".tar": bytes,
    ".tar.gz": gzip.compress,
    ".tar.bz2": bz2.compress,
    ".tar.xz": lzma.compress,
    ".tgz": gzip.compress,
}
_TEXT = b"check_nothing(sync_id_0);\n"


def _member(
    name: str, content: bytes = _TEXT, *, kind: bytes = tarfile.REGTYPE, **pax: str
) -> bytes:
    member = tarfile.TarInfo(name)
    member.size, member.type = len(content), kind
    member.pax_headers = {key.replace("_", "."): text for key, text in pax.items()}
    header = member.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")
    return header + content + bytes(-len(content) % tarfile.BLOCKSIZE)


def _refusal(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    with pytest.raises(ModelFormatError) as caught:
        find_traces(path)
    return str(caught.value)


@pytest.mark.parametrize(
    "data",
    [
        _member("a.dat", GNU_sparse_map="a,b"),
        _member("a.dat", b"zz\n", GNU_sparse_major="1", GNU_sparse_minor="0"),
        _member("a.dat", GNU_sparse_map="0," + "9" * 30, GNU_sparse_size="9" * 30),
        _member("L", b"n", kind=tarfile.GNUTYPE_LONGNAME) * 1000,
    ],
    ids=["a map of no numbers", "a count of no number", "a huge number", "names within names"],
)
def test_headers_that_tarfile_fails_on_are_refused(data: bytes, tmp_path: Path) -> None:
    assert "a.tar" in _refusal(tmp_path / "a.tar", data + bytes(10240))


@pytest.mark.parametrize("suffix", _PACKERS)
def test_members_that_are_left_out_count_too(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Limit.MAX_TRACE_BYTES, "most", 1 << 18)
    packed = _PACKERS[suffix](_member("../a.dat", bytes(1 << 17)) * 2 + bytes(1024))
    detail = _refusal(tmp_path / f"a{suffix}", packed)
    assert "MAX_TRACE_BYTES" in detail


@pytest.mark.parametrize("kind", [tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE, tarfile.XGLTYPE])
@pytest.mark.parametrize("before", [b"", _member("a.cfg", bytes(1 << 18))])
def test_a_long_header_is_refused(kind: bytes, before: bytes, tmp_path: Path) -> None:
    size = Limit.MAX_TRACE_HEADER_BYTES.most + (1 << 16)
    data = before + _member("L", b"n" * size, kind=kind) + _member("b.cfg")
    detail = _refusal(tmp_path / "a.tar.xz", lzma.compress(data, preset=0))
    assert "MAX_TRACE_HEADER_BYTES" in detail


@pytest.mark.parametrize(
    "body",
    [
        b"1" * 2000,
        b"0" * 2000 + b"1 k=",
        b"30 comment=" + b"1" * 2000 + b"\n",
        b"24 GNU.sparse.offset=" + b"1" * 200 + b"\n",
    ],
)
@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE])
def test_digits_that_tarfile_reads_again_and_again_are_refused(
    kind: bytes, body: bytes, tmp_path: Path
) -> None:
    data = _member("x", body, kind=kind) + _member("a.cfg") + bytes(1024)
    detail = _refusal(tmp_path / "a.tar.xz", lzma.compress(data))
    assert "MAX_TRACE_HEADER_DIGITS is 64" in detail


@pytest.mark.parametrize("unit", [b"1", b"1 hdrcharset=", b"2 ", b"L"])
@pytest.mark.parametrize(
    "kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK]
)
def test_an_extension_is_refused_by_its_size_before_it_is_read(
    kind: bytes, unit: bytes, tmp_path: Path
) -> None:
    data = _member("x", unit * (20_000 // len(unit)), kind=kind)
    detail = _refusal(tmp_path / "a.tar.xz", lzma.compress(data + bytes(1024)))
    assert "MAX_TRACE_HEADER_BYTES is 5,632" in detail


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
@pytest.mark.parametrize(("size", "counted"), [(6, 64), (2000, 2560)])
@pytest.mark.slow
def test_many_extensions_are_refused(kind: bytes, size: int, counted: int, tmp_path: Path) -> None:
    body = f"{size} k=".encode().ljust(size - 1, b"a") + b"\n"  # one valid record
    data = _member("x", body, kind=kind) + _member("a.cfg", b"")
    count = Limit.MAX_TRACE_EXTENSION_BYTES.most // counted
    path = tmp_path / "a.tar.gz"
    path.write_bytes(gzip.compress(data * count + bytes(1024)))
    find_traces(path)
    assert "MAX_TRACE_EXTENSION_BYTES" in _refusal(path, gzip.compress(data * (count + 1)))


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_thousands_of_members_with_extended_headers_are_read(
    form: Literal[1, 2], tmp_path: Path
) -> None:
    """Python writes such a header for each file, because its time has a fraction."""
    member = tarfile.TarInfo("d" * 120 + "/a.cfg")
    member.mtime = 1.5 if form == tarfile.PAX_FORMAT else 1
    path = tmp_path / "a.tar"
    path.write_bytes(member.tobuf(form) * 4000 + bytes(1024))
    (trace,) = find_traces(path)
    assert trace.path.name == "a.cfg"


def test_a_link_with_a_long_name_and_a_long_target_is_left_out(tmp_path: Path) -> None:
    link = tarfile.TarInfo("n" * 1000)
    link.type, link.linkname = tarfile.SYMTYPE, "t" * 1000
    path = tmp_path / "a.tar"
    path.write_bytes(link.tobuf(tarfile.GNU_FORMAT) + _member("a.cfg") + bytes(1024))
    assert [trace.path.name for trace in find_traces(path)] == ["a.cfg"]


def test_more_members_than_any_archive_has_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Limit.MAX_TRACE_MEMBERS, "most", 10)
    path = tmp_path / "a.tar"
    path.write_bytes(b"".join(_member(f"{n}.cfg") for n in range(10)) + bytes(1024))
    assert len(find_traces(path)) == 10
    detail = _refusal(path, _member("a.cfg", b"") * 11 + bytes(1024))
    assert "MAX_TRACE_MEMBERS is 10" in detail


@pytest.mark.parametrize(("suffix", "pack"), _PACKERS.items())
def test_an_archive_is_read_however_it_is_packed(
    suffix: str, pack: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    path = tmp_path / f"a{suffix}"
    big = bytes(1 << 21)  # larger than a header may be
    data = _member("t/big.dat", big) + _member("../x", big) + _member("t/a.cfg") + bytes(1024)
    path.write_bytes(pack(data))
    (trace,) = find_traces(path)
    assert trace.text() == _TEXT.decode()
    assert trace.data("big.dat") == big


def test_a_sparse_file_is_spread_out(tmp_path: Path) -> None:
    content = b"ab" + bytes(510)
    data = _member("t/s.dat", content, GNU_sparse_map="4,1,9,1", GNU_sparse_size="12")
    path = tmp_path / "a.tar"
    path.write_bytes(data + _member("t/a.cfg") + bytes(1024))
    (trace,) = find_traces(path)
    assert trace.data("s.dat") == b"\0\0\0\0a\0\0\0\0b\0\0"
