"""The machine model: registers on a bus, memory, and engines that run enabled operations.

Operations run lazily: when software reads a single register (status, pointers, interrupts),
accesses memory or waits for an interrupt. Until then the registers of an enabled group read back as
written. Operations take no simulated time; their cycles are estimated. The estimate is the maximum
of the arithmetic (one step of the MAC array, or of an engine's lanes, per cycle), the DRAM bytes
divided by the DRAM bandwidth, and the SRAM bytes divided by the SRAM bandwidth. Engines that are
chained on the fly share one estimate. If the DMA counters of an operation are enabled in
D_PERF_ENABLE, its stall registers hold the estimated cycles in which arithmetic waits for memory.

A register write never raises an error for an operation that the hardware cannot run. As in hardware
that hangs, the operation's engine stays busy. The error is kept in `Machine.faults`, and the next
`Machine.wait_for_interrupt` that would have to wait raises it.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from smelt.nvdla._errors import NvdlaError, NvError
from smelt.nvdla._protocols import MemorySpace
from smelt.nvdla.hardware._bdma import BdmaBlock
from smelt.nvdla.hardware._blocks import GlobalBlock
from smelt.nvdla.hardware._chains import CHAINS, find_chain, make_blocks, run_chain
from smelt.nvdla.hardware._memory import Dma, Memory
from smelt.nvdla.hardware._running_operation import (
    AddressSpan,
    ConvolutionBuffer,
    Counters,
    Operation,
)
from smelt.nvdla.registers import load_register_map

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from typing_extensions import Buffer

    from smelt.nvdla.hardware._bdma import Transfer
    from smelt.nvdla.hardware._chains import Chain
    from smelt.nvdla.hardware._configuration import Configuration
    from smelt.nvdla.hardware._running_operation import TaskAccessLimits

_SOFTWARE = "a descriptor"
"""Name of the firmware's memory accesses in messages."""

KEPT_RECORDS = 4096
"""Maximum number of completed operations that `Machine.records` keeps."""


@dataclass(frozen=True, slots=True)
class OperationRecord:
    """Counters and estimated cycles of one completed operation."""

    engines: tuple[str, ...]
    group: int
    cycles: int
    mac_cycles: int
    dram_bytes: int
    sram_bytes: int
    counters: Counters

    @property
    def bound_by(self) -> str:
        """Limit of the estimate: ``arithmetic`` or ``memory``."""
        return "arithmetic" if self.cycles == self.mac_cycles else "memory"

    @property
    def stall_cycles(self) -> int:
        """Estimated cycles in which the arithmetic waits for memory."""
        return self.cycles - self.mac_cycles


@dataclass(frozen=True, slots=True)
class Fault:
    """An operation that the hardware cannot run, so that its engine hangs."""

    engines: tuple[str, ...]
    group: int
    error: NvdlaError


class SoftwareMemoryAccess:
    """The machine's memory as a `DmaMemory`, for software.

    It holds only a weak reference to its machine: with a reference cycle, the memory would not be
    freed until garbage collection.
    """

    def __init__(self, memories: dict[MemorySpace, Memory], machine: Machine) -> None:
        self.memories = memories
        self._machine = weakref.ref(machine)
        self.limits: TaskAccessLimits | None = None
        """Limits of the running task, which apply to software too, and to its descriptors."""

    def _advance(self) -> None:
        machine = self._machine()
        if machine is not None:
            machine.advance()

    def _window(self, space: MemorySpace, address: int, size_bytes: int) -> np.ndarray:
        self._advance()
        memory = self.memories.get(space)
        if memory is None:
            raise NvError.INVALID_ADDRESS.error(f"this machine has no {space.name}")
        window = memory.window(address, size_bytes, _SOFTWARE)
        if self.limits is not None:
            self.limits.check(AddressSpan(space, address, address + size_bytes), _SOFTWARE)
        return window

    def read(self, space: MemorySpace, address: int, size_bytes: int, /) -> bytes:
        """Return a copy of a byte range; raise NvdlaError(INVALID_ADDRESS) outside memory."""
        return self._window(space, address, size_bytes).tobytes()

    def write(self, space: MemorySpace, address: int, data: Buffer, /) -> None:
        """Write a byte range; raise NvdlaError(INVALID_ADDRESS) outside memory."""
        source = np.frombuffer(memoryview(data).cast("B"), np.uint8)
        self._window(space, address, source.size)[:] = source

    def fill(self, space: MemorySpace, address: int, size_bytes: int, value: int) -> None:
        """Fill a byte range with one value."""
        self._window(space, address, size_bytes)[:] = value

    def view(self, space: MemorySpace) -> np.ndarray:
        """Return a writable view of all bytes of a memory space."""
        self._advance()
        return self.memories[space].data

    def base(self, space: MemorySpace) -> int:
        """Return the address of the first byte of a memory space."""
        return self.memories[space].base


def _out_of_memory(chain: Chain) -> NvdlaError:
    return NvError.INSUFFICIENT_MEMORY.error(
        f"there is not enough memory to model {' and '.join(chain.engines)}; make the operation "
        "smaller"
    )


class Machine:
    """Model of an NVDLA: a `RegisterBus` whose `memory` is the `DmaMemory`."""

    def __init__(
        self,
        configuration: Configuration,
        dram_bytes: int,
        sram_bytes: int = 0,
        *,
        dram_base: int = 0,
        sram_base: int = 0,
        exact_fp16: bool = False,
    ) -> None:
        self.configuration = configuration
        self.register_map = load_register_map(configuration.register_map)
        self.exact_fp16 = exact_fp16
        memories = {
            MemorySpace.DRAM: Memory(MemorySpace.DRAM, dram_base, np.zeros(dram_bytes, np.uint8))
        }
        if configuration.has_sram and sram_bytes:
            memories[MemorySpace.SRAM] = Memory(
                MemorySpace.SRAM, sram_base, np.zeros(sram_bytes, np.uint8)
            )
        self._memories = memories
        self.memory = SoftwareMemoryAccess(memories, self)
        self.records: deque[OperationRecord] = deque(maxlen=KEPT_RECORDS)
        self.faults: list[Fault] = []
        self._condition = threading.Condition(threading.RLock())
        self.reset()

    def reset(self) -> None:
        """Set all registers to their reset values and stop all engines; memory is unchanged."""
        with self._condition:
            self._glb = GlobalBlock(self.register_map)
            self._blocks = make_blocks(self.register_map, self.configuration, self._glb)
            self._is_pending = False
            self._buffer = ConvolutionBuffer()
            self.records.clear()
            self.faults.clear()

    @contextlib.contextmanager
    def limited(self, limits: TaskAccessLimits) -> Generator[None]:
        """Return a context in which engines and software are held to a task's limits.

        The convolution buffer and the lookup tables are cleared first, so that a task cannot read
        data of the previous one.

        Raises:
            NvdlaError: BUSY if another task is inside such a context.
        """
        is_running = False
        try:  # the handler of a signal may raise at any point below, and the machine is free then
            with self._condition:
                if self.memory.limits is not None:
                    raise NvError.BUSY.error(
                        "another task is running; a machine runs one task at a time"
                    )
                is_running = True
                self._buffer = ConvolutionBuffer()
                for block in self._blocks.values():
                    block.clear_tables()
                self.memory.limits = limits
            yield
        finally:
            if is_running:
                self.memory.limits = None

    def protect(self, spans: Sequence[AddressSpan]) -> None:
        """Make part of the running task's memory read-only for engines."""
        if self.memory.limits is not None:
            self.memory.limits = replace(self.memory.limits, read_only=tuple(spans))

    @property
    def total_cycles(self) -> int:
        """Sum of the estimated cycles of all operations in `records`."""
        return sum(record.cycles for record in self.records)

    def read(self, address: int, /) -> int:
        """Return the 32-bit register at a byte address; 0 if there is no register."""
        register = self.register_map.by_address.get(address)
        if register is None or register.block not in self._blocks:
            return 0
        with self._condition:
            if not register.is_grouped:
                self.advance()
            return self._blocks[register.block].read(register)

    def write(self, address: int, value: int, /) -> None:
        """Set the 32-bit register at a byte address; ignore addresses without a register."""
        register = self.register_map.by_address.get(address)
        if register is None or register.block not in self._blocks:
            return
        with self._condition:
            if self._blocks[register.block].write(register, value & 0xFFFFFFFF):
                self._is_pending = True
                self._condition.notify_all()
            elif register.block == "GLB" and self._glb.is_raised:
                self._condition.notify_all()

    def wait_for_interrupt(self, timeout_s: float, /) -> bool:
        """Wait until the interrupt line is asserted; return False after ``timeout_s`` seconds.

        Raises:
            NvdlaError: The error of the first fault, if the line is not asserted and an engine
                hangs: its interrupt will never arrive.
        """
        with self._condition:
            return self._condition.wait_for(self._is_interrupted, timeout_s)

    def _is_interrupted(self) -> bool:
        """Run operations, deliver interrupts and return whether the line is asserted."""
        self.advance()
        is_raised = self._glb.deliver()
        if not is_raised and self.faults:
            error = self.faults[0].error
            status = NvError(error.status or NvError.INVALID_STATE)
            raise NvdlaError(
                status, str(error)
            )  # raising the kept error would make it keep this frame
        return is_raised

    def advance(self) -> None:
        """Run operations until no chain is ready."""
        with self._condition:
            while self._is_pending:
                self._is_pending = False
                for start in CHAINS:
                    chain = find_chain(start, self._blocks)
                    if chain is not None:
                        self._is_pending |= self._run(chain)

    def _run(self, chain: Chain) -> bool:
        """Run a chain; return True if it completed and False if its engines hang."""
        operation = Operation(
            configuration=self.configuration,
            registers={name: self._blocks[name].view() for name in chain.blocks},
            dma=Dma(self._memories, self.memory.limits),
            exact_fp16=self.exact_fp16,
            buffer=self._buffer,
            luts={
                name: self._blocks[name].tables for name in ("SDP", "CDP") if name in self._blocks
            },
        )
        group = self._blocks[chain.blocks[-1]].consumer
        try:
            run_chain(chain, operation, self._launched(chain))
        except (NvdlaError, MemoryError) as failure:
            error = failure if isinstance(failure, NvdlaError) else _out_of_memory(chain)
            for name in chain.blocks:
                self._blocks[name].hang()
            self.faults.append(Fault(chain.engines, group, error.with_traceback(None)))
            self._condition.notify_all()
            return False
        except BaseException:
            self.reset()  # a bug of the model must not affect the next operation
            raise
        record = self._record(chain, group, operation)
        self.records.append(record)
        for name in chain.blocks:
            self._blocks[name].report_stalls(record.stall_cycles)
            self._blocks[name].complete()
        return True

    def _launched(self, chain: Chain) -> list[Transfer]:
        """Return the copies of a BDMA chain's group; none for other chains."""
        block = self._blocks[chain.blocks[0]]
        return block.launched[0][1] if isinstance(block, BdmaBlock) else []

    def _record(self, chain: Chain, group: int, operation: Operation) -> OperationRecord:
        """Return the record of a completed operation, with its estimated cycles."""
        moved = operation.dma.bytes_moved
        configuration = self.configuration
        cycles = operation.mac_cycles
        for space, rate in (
            (MemorySpace.DRAM, configuration.dram_bytes_per_s),
            (MemorySpace.SRAM, configuration.sram_bytes_per_s),
        ):
            bytes_per_cycle = rate / configuration.clock_hz
            cycles = max(cycles, round(moved[space] / bytes_per_cycle))
        return OperationRecord(
            chain.engines,
            group,
            cycles,
            operation.mac_cycles,
            moved[MemorySpace.DRAM],
            moved[MemorySpace.SRAM],
            operation.counters,
        )
