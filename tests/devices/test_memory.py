"""Memory: aligned, tracked, guarded where tests want it; code: sealed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from smelt.devices.cpu import CpuMemory, MappedCode
from smelt.devices.null import NullMemory, NullRunList
from smelt.errors import ContextError, DeviceError
from tests.support.guarded_memory import GuardedMemory


@pytest.mark.parametrize("size", [0, 1, 63, 64, 4097, 1 << 20, 5 << 20])
def test_memory_is_aligned_for_every_kernel(size: int) -> None:
    memory = CpuMemory().allocate(size, "test")
    assert memory.address % 64 == 0
    assert memory.bytes.size == memory.size_bytes == size
    memory.bytes[:] = 7
    memory.close()
    memory.close()
    assert memory.bytes.size == 0


def test_memory_that_cannot_be_had_is_a_clear_error() -> None:
    with pytest.raises(DeviceError, match=r"arena: .* bytes of memory cannot be allocated"):
        CpuMemory().allocate(1 << 62, "arena")


@pytest.mark.parametrize("at_end", [True, False])
@pytest.mark.parametrize("size", [64, 100, 8192])
def test_a_byte_beyond_guarded_memory_kills_the_process(size: int, at_end: bool) -> None:
    program = textwrap.dedent(f"""
        import ctypes, sys
        from tests.support.guarded_memory import GuardedMemory
        memory = GuardedMemory(at_end={at_end}, align=4).allocate({size}, "test")
        memory.bytes[:] = 1
        print("inside", flush=True)
        ctypes.c_uint8.from_address(memory.address + ({size} if {at_end} else -1)).value
    """)
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": "src"},
    )
    assert (done.stdout, done.returncode) == ("inside\n", -signal.SIGSEGV)


def test_guarded_memory_keeps_its_alignment() -> None:
    memory = GuardedMemory(align=64).allocate(100, "test")
    assert memory.address % 64 == 0
    assert (memory.address + 128) % 4096 == 0


def test_code_is_mapped_page_aligned_and_never_written_again() -> None:
    code = MappedCode(b"\xc3" * 100)
    assert code.address % 4096 == 0
    assert _mapping_of(code.address).split()[1] == "r-xp"


def _mapping_of(address: int) -> str:
    """The row of the process's map that holds an address: the kernel merges neighbours."""
    with Path("/proc/self/maps").open() as file:
        for row in file:
            low, _, high = row.split()[0].partition("-")
            if int(low, 16) <= address < int(high, 16):
                return row
    raise AssertionError(f"nothing is mapped at {address:#x}")


def test_the_null_device_counts_and_computes_nothing() -> None:
    heard: list[tuple[int, str]] = []

    class Tracker:
        def allocated(self, address: int, size_bytes: int, tag: str) -> None:
            heard.append((size_bytes + address, tag))

        def released(self, address: int, size_bytes: int, tag: str) -> None:
            heard.append((-size_bytes - address, tag))

    memory = NullMemory(Tracker()).allocate(1 << 50, "arena")
    assert (memory.address, memory.size_bytes, memory.bytes.size) == (0, 1 << 50, 0)
    memory.close()
    assert heard == [(1 << 50, "arena"), (-(1 << 50), "arena")]
    run_list = NullRunList(4, 2)
    run_list.words[:] = np.arange(4)
    run_list.set_chunks([1, 0])
    run_list.run(timed=True)
    assert run_list.row_ticks() == [0, 0]
    with pytest.raises(ContextError, match="negative"):
        run_list.set_chunks([-1])
    run_list.close()
    with pytest.raises(ContextError, match="closed"):
        run_list.run()
