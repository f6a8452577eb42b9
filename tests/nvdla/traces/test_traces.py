"""Traces: NVIDIA's own play to their checksums; broken ones say where they are broken."""

from __future__ import annotations

import io
import tarfile
import time
from typing import TYPE_CHECKING

import pytest

from smelt.errors import ModelFormatError
from smelt.nvdla import find_traces, run_trace
from smelt.nvdla.hardware import NV_SMALL

if TYPE_CHECKING:
    from pathlib import Path

    from smelt.nvdla.traces import TraceResult

_SECONDS = 60


def _play(text: str, folder: Path, name: str = "t.cfg") -> TraceResult:
    path = folder / name
    path.write_text(text)
    return run_trace(path, configuration=NV_SMALL)


@pytest.mark.shared
def test_every_runnable_trace_of_the_archive_passes_and_the_rest_name_their_missing_file(
    shared: Path,
) -> None:
    start = time.process_time()  # a busy machine does not count
    found = find_traces(shared / "nvdla" / "traces_nv_small_branch.tar.xz")
    results = [run_trace(trace) for trace in found]
    assert time.process_time() - start < _SECONDS
    assert [result for result in results if result.state == "failed"] == []
    assert sum(result.state == "passed" for result in results) == 154
    skipped = [result for result in results if result.state == "skipped"]
    assert all(result.reason.endswith(".dat is missing") for result in skipped)
    assert {result.configuration for result in results} == {
        "nv_small",
        "nv_small_256",
        "nv_large",
    }


@pytest.mark.shared
def test_the_traces_of_nv_full_pass(shared: Path) -> None:
    results = [run_trace(trace) for trace in find_traces(shared / "nvdla" / "traces_nv_full")]
    assert [(result.name, result.state) for result in results] == [
        ("conv_8x8_fc_int16", "passed"),
        ("sanity0", "passed"),
    ]
    assert results[0].to_dict()["configuration"] == "nv_full"


def test_a_wrong_checksum_fails_and_says_both(tmp_path: Path) -> None:
    result = _play(
        "mem_init(pri_mem, 0x80000000, 0x10, ALL_ZERO);\n"
        "check_crc(sync_id_0, 1, 0x80000000, 0x10, 0x1);\n",
        tmp_path,
    )
    assert result.state == "failed"
    assert "line 2: the CRC of 16 bytes at 0x80000000 is 0xecbb4b55, not 0x1" in result.reason


def test_a_right_checksum_passes(tmp_path: Path) -> None:
    text = (
        "mem_init(pri_mem, 0x80000000, 0x10, ALL_ZERO);\n"
        "check_crc(sync_id_0, pri_mem, 0x80000000, 0x10, 0xecbb4b55);\n"
    )
    assert _play(text, tmp_path).state == "passed"


def test_an_interrupt_that_does_not_come_fails(tmp_path: Path) -> None:
    result = _play("intr_notify(SDP_0, sync_id_0);\n", tmp_path)
    assert result.state == "failed"
    assert "SDP_DONE_STATUS0 was not raised" in result.reason


def test_a_fault_of_the_hardware_is_part_of_the_reason(tmp_path: Path) -> None:
    result = _play(
        "reg_write(NVDLA_CDP.D_OP_ENABLE_0, 0x1);\n"
        "reg_write(NVDLA_CDP_RDMA.D_OP_ENABLE_0, 0x1);\n"
        "intr_notify(CDP_0, sync_id_0);\n",
        tmp_path,
    )
    assert result.state == "failed"
    assert "nv_small supports int8" in result.reason or "SRAM" in result.reason


def test_a_missing_data_file_skips_the_trace_and_is_named(tmp_path: Path) -> None:
    result = _play('mem_load(pri_mem, 0x80000000, "absent.dat");\n', tmp_path)
    assert (result.state, result.reason) == ("skipped", "data file absent.dat is missing")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("reg_write(NVDLA_SDP.NOWHERE_0, 0x1);", "has no register"),
        ("reg_write(NVDLA_SDP.D_CVT_SCALE_0, 0x1ffffffff);", "not an unsigned 32-bit number"),
        (
            "reg_write(NVDLA_SDP.D_CVT_SCALE_0);",
            "VALUE is missing: reg_write takes REGISTER, VALUE",
        ),
        ("reg_write(NVDLA_SDP.D_CVT_SCALE_0, zz);", "zz is not an unsigned 32-bit number"),
        ("mem_init(pri_mem, 0x0);", "SIZE is missing"),
        ("check_crc();", "SYNC is missing"),
        ("jump(1);", "jump is not a command"),
        ("not a call", "is not a call"),
        ("mem_init(third_mem, 0x0, 0x10, ALL_ZERO);", "third_mem is not one of pri_mem"),
        ("mem_init(pri_mem, 0x0, 0x10, ALL_RANDOM);", "ALL_RANDOM is not one of ALL_ZERO"),
        ("intr_notify(XYZ_0, sync_id_0);", "has no field"),
        ('mem_load(pri_mem, 0x0, "../../etc/passwd");', "outside the trace's folder"),
        ('mem_load(pri_mem, 0x0, "/etc/passwd");', "outside the trace's folder"),
    ],
)
def test_a_broken_line_fails_with_its_reason(line: str, why: str, tmp_path: Path) -> None:
    result = _play(line, tmp_path)
    assert result.state == "failed"
    assert why in result.reason


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("write_reg 0xffff1401", "VALUE is missing: write_reg takes ADDRESS, VALUE"),
        ("read_reg 0xffff1401 0x1", "VALUE is missing"),
        ("dump_mem", "ADDRESS is missing"),
        ("read_reg 0xffff1401 0x1 != 0x1", "!= is not a comparison"),
        ("hop", "hop is not a command"),
    ],
)
def test_a_broken_line_of_a_txn_fails_with_its_reason(line: str, why: str, tmp_path: Path) -> None:
    result = _play(line, tmp_path, "t.txn")
    assert result.state == "failed"
    assert why in result.reason


def test_memory_too_far_apart_is_refused(tmp_path: Path) -> None:
    result = _play(
        "mem_init(pri_mem, 0x0, 0x10, ALL_ZERO);\n"
        "mem_init(pri_mem, 0xffffffff0000, 0x10, ALL_ZERO);\n",
        tmp_path,
    )
    assert result.state == "failed"
    assert "MAX_SPAN_BYTES" in result.reason


def test_a_data_row_that_lies_about_its_size_is_refused(tmp_path: Path) -> None:
    (tmp_path / "d.dat").write_text("{offset:0x0, size:4, payload:0x01 0x02}\n")
    result = _play('mem_load(pri_mem, 0x80000000, "d.dat");\n', tmp_path)
    assert result.state == "failed"
    assert "declares 4 bytes but has 2" in result.reason


def test_a_trace_without_a_known_configuration_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "t.cfg"
    path.write_text("intr_notify(SDP_0, sync_id_0);\n")
    assert run_trace(path).state == "skipped"
    path.write_text("// configuration: nv_small\ncheck_nothing(sync_id_0);\n")
    assert run_trace(path).configuration == "nv_small"


def test_members_of_an_archive_that_lead_out_of_it_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "t.tar"
    with tarfile.open(path, "w") as archive:
        for name in ("../nv_small/out.cfg", "/nv_small/root.cfg", "nv_small/in.cfg"):
            member = tarfile.TarInfo(name)
            content = b"check_nothing(sync_id_0);\n"
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    assert [str(trace.path) for trace in find_traces(path)] == ["nv_small/in.cfg"]


def test_files_that_are_no_traces_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.tar.xz").write_bytes(b"no archive")
    with pytest.raises(ModelFormatError, match="not a readable archive"):
        find_traces(tmp_path / "a.tar.xz")
    (tmp_path / "a.bin").write_bytes(b"")
    with pytest.raises(ModelFormatError, match=r"neither a trace"):
        find_traces(tmp_path / "a.bin")
    with pytest.raises(FileNotFoundError):
        find_traces(tmp_path / "absent.cfg")
    assert find_traces(tmp_path) == ()
