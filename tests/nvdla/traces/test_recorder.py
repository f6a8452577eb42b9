"""What the recorder writes replays to the same memory, in both languages."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
from click.testing import CliRunner

from smelt.cli._dla_trace import trace
from smelt.nvdla import MemorySpace, NvdlaError, run_trace
from smelt.nvdla.hardware import NV_FULL, NV_SMALL, Configuration, Machine
from smelt.nvdla.registers import RegisterFile
from smelt.nvdla.traces import TraceRecorder

if TYPE_CHECKING:
    from pathlib import Path

_BASE, _TARGET, _BYTES = 0x80000000, 0x80001000, 4 * 32


def _record(configuration: Configuration) -> TraceRecorder:
    """Record a ReLU over 4 atoms, its interrupt and its result."""
    machine = Machine(configuration, 0x10000, dram_base=_BASE)
    recorder = TraceRecorder(machine, machine.memory, configuration)
    data = np.random.default_rng(1).integers(-128, 128, _BYTES).astype(np.int8)
    recorder.memory.write(MemorySpace.DRAM, _BASE, data.tobytes())
    recorder.record_memory(MemorySpace.DRAM, _TARGET, _BYTES)
    registers = RegisterFile(recorder, machine.register_map)
    atom = configuration.atom_bytes
    lines, channels = 2, _BYTES // 4
    for name, word in {
        "SDP.D_DATA_CUBE_WIDTH": 1,
        "SDP.D_DATA_CUBE_HEIGHT": lines - 1,
        "SDP.D_DATA_CUBE_CHANNEL": channels - 1,
        "SDP.D_DATA_FORMAT": 0,
        "SDP.D_DST_DMA_CFG": 1,
        "SDP.D_DST_BASE_ADDR_LOW": _TARGET,
        "SDP.D_DST_LINE_STRIDE": 2 * atom,
        "SDP.D_DST_SURFACE_STRIDE": 4 * atom,
        "SDP.D_DP_BS_CFG": 0b10010,
        "SDP.D_DP_BN_CFG": 1,
        "SDP.D_DP_EW_CFG": 1,
        "SDP.D_CVT_SCALE": 1,
        "SDP_RDMA.D_FEATURE_MODE_CFG": 0,
        "SDP_RDMA.D_SRC_DMA_CFG": 1,
        "SDP_RDMA.D_SRC_BASE_ADDR_LOW": _BASE,
        "SDP_RDMA.D_SRC_LINE_STRIDE": 2 * atom,
        "SDP_RDMA.D_SRC_SURFACE_STRIDE": 4 * atom,
        "SDP_RDMA.D_BRDMA_CFG": 1,
        "SDP_RDMA.D_NRDMA_CFG": 1,
        "SDP_RDMA.D_ERDMA_CFG": 1,
        "SDP.D_OP_ENABLE": 1,
        "SDP_RDMA.D_OP_ENABLE": 1,
    }.items():
        registers.write(name, word)
    assert recorder.wait_for_interrupt(0)
    registers.write("GLB.S_INTR_STATUS", registers.read("GLB.S_INTR_STATUS"))
    result = recorder.memory.read(MemorySpace.DRAM, _TARGET, _BYTES)
    assert np.array_equal(np.frombuffer(result, np.int8), np.maximum(data, 0))
    recorder.record_check(MemorySpace.DRAM, _TARGET, _BYTES)
    return recorder


@pytest.mark.parametrize("configuration", [NV_SMALL, NV_FULL], ids=lambda item: item.name)
@pytest.mark.parametrize("suffix", [".cfg", ".txn"])
def test_a_recorded_trace_passes_and_a_changed_one_fails(
    configuration: Configuration, suffix: str, tmp_path: Path
) -> None:
    path = tmp_path / f"relu{suffix}"
    _record(configuration).write_trace(path)
    result = run_trace(path)
    assert (result.state, result.reason) == ("passed", "")
    assert result.configuration == configuration.name
    text = path.read_text()
    enable = next(line for line in text.splitlines() if "SDP.D_DP_BS_CFG" in line)
    changed = enable.replace("0x12", "0x52").replace("0x00000012", "0x00000052")
    path.write_text(text.replace(enable, changed))
    assert run_trace(path).state == "failed"


def test_a_trace_of_another_suffix_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NvdlaError, match=r"must end in \.cfg or \.txn"):
        _record(NV_SMALL).write_trace(tmp_path / "relu.json")


def test_on_chip_memory_outside_the_window_of_a_txn_is_refused(tmp_path: Path) -> None:
    machine = Machine(NV_FULL, 0x1000, 0x1000)
    recorder = TraceRecorder(machine, machine.memory, NV_FULL)
    recorder.memory.write(MemorySpace.SRAM, 0, b"1")
    with pytest.raises(NvdlaError, match=r"write a \.cfg trace"):
        recorder.write_trace(tmp_path / "sram.txn")
    recorder.write_trace(tmp_path / "sram.cfg")
    assert run_trace(tmp_path / "sram.cfg").reason == "the trace has no checks"


def test_the_command_plays_folders_and_fails_if_one_fails(tmp_path: Path) -> None:
    _record(NV_SMALL).write_trace(tmp_path / "relu.cfg")
    good = CliRunner().invoke(trace, [str(tmp_path), "--json"])
    assert good.exit_code == 0
    assert [entry["state"] for entry in json.loads(good.stdout)] == ["passed"]
    (tmp_path / "bad.cfg").write_text("nonsense\n")
    bad = CliRunner().invoke(trace, [str(tmp_path), "--configuration", "nv_small"])
    assert bad.exit_code == 1
    assert "1 passed, 1 failed, 0 skipped" in bad.stdout
