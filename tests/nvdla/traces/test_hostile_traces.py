"""Traces that nobody's hardware wrote: refused with a reason, soon, and without much memory."""

from __future__ import annotations

import io
import lzma
import tarfile
import time
from typing import TYPE_CHECKING

import pytest

from smelt.errors import ModelFormatError
from smelt.nvdla import find_traces, run_trace
from smelt.nvdla.traces._parse import parse_txn
from smelt.types import Limit

if TYPE_CHECKING:
    from pathlib import Path

    from smelt.nvdla import TraceResult

MAX_SECONDS = 5.0
"""What was mended took minutes; a busy machine takes a fraction of a second."""


def _play(tmp_path: Path, text: str) -> TraceResult:
    path = tmp_path / "t.cfg"
    path.write_text("// configuration: nv_small\n" + text)
    return run_trace(path)


def test_a_line_of_blanks_without_end_is_refused_at_once(tmp_path: Path) -> None:
    begin = time.process_time()
    result = _play(tmp_path, "f()" + " " * 60_000 + "x\n")
    assert time.process_time() - begin < MAX_SECONDS
    assert result.state == "failed"
    assert "is not a call" in result.reason


@pytest.mark.parametrize("line", ["jump{}(1);", "reg_write(A{}, 1);", 'mem_load(1, 0, "/{}");'])
def test_a_refusal_does_not_repeat_a_long_name(tmp_path: Path, line: str) -> None:
    result = _play(tmp_path, line.format("a" * 50_000))
    assert result.state == "failed"
    assert len(result.reason) < 1000


def test_more_memory_than_a_command_may_name_is_refused(tmp_path: Path) -> None:
    result = _play(tmp_path, "mem_init(pri_mem, 0x0, 0xffffffff, ALL_ONE);\n")
    assert result.state == "failed"
    assert "MAX_COMMAND_BYTES" in result.reason


def test_a_number_of_a_data_file_may_begin_with_zeros_and_not_be_endless(tmp_path: Path) -> None:
    trace = tmp_path / "t.cfg"
    trace.write_text(
        '// configuration: nv_small\nmem_load(pri_mem, 0x0, "d.dat");\n'
        'check_file(s, 1, 0, 12, "d.dat");\n'
    )
    row = "{{offset:{}, size:2, payload:0xff 0x01}}"
    (tmp_path / "d.dat").write_text(row.format("010"))
    assert run_trace(trace).state == "passed"
    (tmp_path / "d.dat").write_text(row.format("1" * 5000))
    result = run_trace(trace)
    assert result.state == "failed"
    assert "5000 digits" in result.reason


def test_the_same_memory_filled_again_and_again_is_refused(tmp_path: Path) -> None:
    result = _play(tmp_path, "mem_init(pri_mem, 0x0, 0x10000000, ALL_ONE);\n" * 17)
    assert result.state == "failed"
    assert "fill and compare" in result.reason


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_a_damaged_archive_is_refused(tmp_path: Path, share: float) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for number in range(40):
            content = bytes((number * index * index) % 251 for index in range(9000))
            member = tarfile.TarInfo(f"nv_small/{number}.dat")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    packed = bytearray(lzma.compress(buffer.getvalue()))
    at = int(len(packed) * share)
    packed[at : at + 8] = bytes(8)
    path = tmp_path / "a.tar.xz"
    path.write_bytes(packed)
    with pytest.raises(ModelFormatError, match="not a readable archive"):
        find_traces(path)


def test_a_file_that_cannot_be_read_is_a_result_and_the_others_still_play(tmp_path: Path) -> None:
    good = "// configuration: nv_small\nreg_read(NVDLA_GLB.S_INTR_MASK_0, 0x0, 0x0);\n"
    (tmp_path / "a.cfg").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "b.cfg").symlink_to(tmp_path / "nowhere")
    (tmp_path / "c.cfg").mkdir()
    (tmp_path / "c.cfg" / "d.cfg").write_text(good)
    results = [run_trace(trace) for trace in find_traces(tmp_path)]
    assert [(result.name, result.state) for result in results] == [
        ("a", "failed"),
        ("b", "failed"),
        ("d", "passed"),
    ]
    assert "is not UTF-8 text" in results[0].reason
    assert "not a regular file" in results[1].reason


@pytest.mark.parametrize("text", ["", "check_nothing(sync_id_0);\n"])
def test_a_trace_that_checks_nothing_has_not_passed(tmp_path: Path, text: str) -> None:
    result = _play(tmp_path, text)
    assert (result.state, result.reason) == ("skipped", "the trace has no checks")


def test_lines_end_in_every_way_and_are_counted_once() -> None:
    commands = [parse_txn(end.join(["# c", "read_reg 1 2 3", ""])) for end in ("\n", "\r\n", "\r")]
    assert [len(found) for found in commands] == [1, 1, 1]
    most = Limit.MAX_TRACE_LINES.most
    assert parse_txn("\n" * most) == []
    with pytest.raises(ModelFormatError, match="MAX_TRACE_LINES"):
        parse_txn("\n" * (most + 1))
