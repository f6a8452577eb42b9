"""Register traces and archives of them to start from, and how they are played.

An input is a letter for what it is (``c``: a ``.cfg``, ``t``: a ``.txn``, ``a``: an archive), then
the trace, and after a line of percent signs the data file that it may name.
"""

from __future__ import annotations

import contextlib
import io
import tarfile
import zlib
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import pytest

from smelt.errors import SmeltError
from smelt.nvdla.traces import TraceFile, find_traces, run_trace
from smelt.types import Limit
from tests.fuzz.mutators import mutate_bytes, mutate_tokens

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator, Sequence
    from pathlib import Path

_Mode: TypeAlias = Literal["w", "w:gz", "w:xz", "w:bz2"]
_MAX_BYTES: Final = 1 << 25
"""Memory of a trace here, for the process has little."""
_BREAK: Final = b"\n%%%%\n"
_DATA: Final = (
    b"{offset:0x0, size:4, payload:0x01 0x02 0x03 0x04}\n{offset:16, size:2, value:0xff 0x0}"
)
_TUPLE: Final = b"{'offset':0x10, 'size':2, 'payload':0xff 0x01}\n"
_HEX: Final = b"0x01 0x02 0x03 0x04\n0x05\n"
_POOLING: Final = {
    "PDP_RDMA.D_DATA_CUBE_IN_WIDTH": 7,
    "PDP_RDMA.D_DATA_CUBE_IN_HEIGHT": 7,
    "PDP_RDMA.D_DATA_CUBE_IN_CHANNEL": 7,
    "PDP_RDMA.D_FLYING_MODE": 1,
    "PDP_RDMA.D_SRC_BASE_ADDR_LOW": 0x80000000,
    "PDP_RDMA.D_SRC_LINE_STRIDE": 64,
    "PDP_RDMA.D_SRC_SURFACE_STRIDE": 512,
    "PDP_RDMA.D_SRC_RAM_CFG": 1,
    "PDP.D_DATA_CUBE_IN_WIDTH": 7,
    "PDP.D_DATA_CUBE_IN_HEIGHT": 7,
    "PDP.D_DATA_CUBE_IN_CHANNEL": 7,
    "PDP.D_DATA_CUBE_OUT_WIDTH": 3,
    "PDP.D_DATA_CUBE_OUT_HEIGHT": 3,
    "PDP.D_DATA_CUBE_OUT_CHANNEL": 7,
    "PDP.D_OPERATION_MODE_CFG": 0x11,
    "PDP.D_POOLING_KERNEL_CFG": 0x110101,
    "PDP.D_DST_BASE_ADDR_LOW": 0x80001000,
    "PDP.D_DST_LINE_STRIDE": 32,
    "PDP.D_DST_SURFACE_STRIDE": 128,
    "PDP.D_DST_RAM_CFG": 1,
    "PDP_RDMA.D_OP_ENABLE": 1,
    "PDP.D_OP_ENABLE": 1,
}
NOT_PARSERS: Final = ("TraceResult.to_dict",)


def trace_seeds() -> Iterator[bytes]:
    """Every command of both languages, right and wrong ones, every form of a data file."""
    crc = zlib.crc32(bytes(128))
    writes = [f"reg_write(NVDLA_{name}_0, {value:#x});" for name, value in _POOLING.items()]
    pooling = ["mem_init(pri_mem, 0x80000000, 0x200, ALL_ZERO);", *writes]
    checks = [f"check_crc(s, 1, 0x80001000, 0x80, {crc:#x});", 'check_file(s, 1, 0, 4, "d.dat");']
    yield _cfg(*pooling, "intr_notify(PDP_0, s);", checks[0])
    yield _cfg(*pooling, "intr_notify(PDP_0, s);", checks[0].replace("0x80,", "0x81,"))
    yield _cfg('mem_load(pri_mem, 0x0, "d.dat");', checks[1], data=_DATA)
    yield _cfg('mem_load(pri_mem, 0x0, "d.dat");', checks[1], data=_TUPLE)
    yield _cfg('mem_load(pri_mem, 0x2, "d.dat");', checks[1], data=_HEX)
    yield _cfg('mem_load(pri_mem, 0x2, "d.dat");', data=b"0x1\n")
    yield _cfg('mem_load(pri_mem, 0x0, "d.dat");', data=_DATA.replace(b"size:4", b"size:5"))
    yield _cfg('mem_load(pri_mem, 0x0, "no.dat");')
    yield _cfg('mem_load(pri_mem, 0x0, "../d.dat");')
    yield _cfg("sync_wait(s);", "sync_notify(s);", "check_nothing(s);", "// nothing", "")
    yield _cfg("reg_read(NVDLA_CDMA.S_POINTER_0, 0x0, 0xff);", "poll_reg_equal(CDMA.S_POINTER, 1);")
    yield _cfg("mem_init(sec_mem, 0x50000000, 16, ALL_ONE);", "mem_init(0, 0x50000010, 1, ALL_FF);")
    yield _cfg("mem_init(pri_mem, 0x0, 16, ALL_ZERO);", "mem_init(pri_mem, 1 << 40, 1, ALL_ONE);")
    yield _cfg("mem_init(1, 0x0, 16, ALL_ZERO);", "mem_init(1, 0xffff00000000, 1, ALL_ONE);")
    yield _cfg(*["mem_init(1, 0x0, 0x2ffffff, ALL_ZERO);"] * 9)
    yield _cfg("intr_notify(PDP_0, s);", "jump(1);")
    yield _cfg("intr_notify(PDP_0, s);")
    yield _cfg("intr_notify(XYZ_0, s);")
    yield _cfg("reg_write(NVDLA_PDP.D_OP_ENABLE_0, 0x1ffffffff);")
    yield _cfg("not a call")
    yield b"c// configuration: no such\ncheck_nothing(s);"
    yield b"ccheck_nothing(s);"
    yield _txn(
        "load_mem 0x80000000 0x0 d.dat", "write_reg 0xffff1401 0x0", "read_reg 0xffff1401 0x1 0x0",
        "read_reg 0xffff1401 0x1 <= 0x1", "read_reg 0xffff1401 0x1 == 0x1 # no",
        "dump_mem 0x80000000 0x4 d.dat",
    )  # fmt: skip
    yield _txn("load_mem 0x50000000 0x0 d.dat", "dump_mem 0x50000001 0x4 d.dat", "wait")
    yield _txn("wait 1")
    yield _txn("read_reg 0xffff1401 0x1 != 0x1")
    yield _txn("hop")
    modes: tuple[_Mode, ...] = ("w", "w:gz", "w:xz", "w:bz2")
    for mode in modes:
        yield b"a" + _archive(mode)


def _cfg(*lines: str, data: bytes = _DATA) -> bytes:
    text = "\n".join(("// configuration: nv_small", *lines))
    return b"c" + text.encode() + _BREAK + data


def _txn(*lines: str) -> bytes:
    return b"t" + "\n".join(lines).encode() + _BREAK + _DATA


def _archive(mode: _Mode) -> bytes:
    buffer = io.BytesIO()
    names = ("nv_small/a.cfg", "nv_small/b/input.cfg", "nv_small/d.dat", "../x.cfg", "/x.cfg")
    archive: tarfile.TarFile
    with tarfile.open(fileobj=buffer, mode=mode) as archive:
        for name in names:
            content = b'mem_load(1, 0, "d.dat");' if name.endswith("a.cfg") else _HEX
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def play_trace(data: bytes, folder: Path) -> None:
    """Play a trace by its bytes or, every fourth one, from a folder; or those of an archive."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Limit.MAX_SPAN_BYTES, "most", _MAX_BYTES)
        patch.setattr(Limit.MAX_MOVED_BYTES, "most", 4 * _MAX_BYTES)
        patch.setattr(Limit.MAX_TRACE_BYTES, "most", _MAX_BYTES)
        _play(data, folder)


def _play(data: bytes, folder: Path) -> None:
    kind, rest = data[:1], data[1:]
    if kind == b"a":
        _play_archive(rest, folder)
        return
    suffix = ".txn" if kind == b"t" else ".cfg"
    text, _, content = rest.partition(_BREAK)
    if len(data) % 4:
        files = {PurePosixPath(f"fuzzed/t{suffix}"): text, PurePosixPath("fuzzed/d.dat"): content}
        found = TraceFile(PurePosixPath(f"fuzzed/t{suffix}"), files.get)
        _check(run_trace(found).to_dict())
        return
    home = folder / "traces" / "nv_small"
    home.mkdir(parents=True, exist_ok=True)
    path = home / f"t{suffix}"
    path.write_bytes(text)
    (home / "d.dat").write_bytes(content)
    for other in home.glob("t.*"):
        if other != path:
            other.unlink()
    _check(run_trace(path).to_dict())
    for found in find_traces(home):
        _check(run_trace(found).to_dict())


def _play_archive(data: bytes, folder: Path) -> None:
    path = folder / ("a.tar.xz" if len(data) % 8 else "a.bin")
    with contextlib.suppress(FileNotFoundError, SmeltError):
        run_trace(folder / "none.cfg")
    path.write_bytes(data)
    with contextlib.suppress(SmeltError):
        run_trace(path)
    for found in find_traces(path)[:8]:
        _check(run_trace(found).to_dict())


def _check(row: dict[str, str]) -> None:
    if row["state"] not in {"passed", "failed", "skipped"}:
        raise AssertionError(f"a trace ends as {row['state']}")
    if bool(row["reason"]) == (row["state"] == "passed") or len(row["reason"]) > 5000:
        raise AssertionError(f"{row['state']} is explained by {row['reason'][:200]!r}")


def mutate_trace(data: bytes, chance: random.Random, corpus: Sequence[bytes]) -> bytes:
    """Change tokens of the texts, bytes of the archives."""
    others = [item[1:] for item in corpus if item[:1] == data[:1]]
    if data[:1] == b"a" or chance.random() < 0.1:
        return data[:1] + mutate_bytes(data[1:], chance, others)
    return data[:1] + mutate_tokens(data[1:], chance, others)
