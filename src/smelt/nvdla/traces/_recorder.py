"""Recording firmware's bus accesses and writing them as a trace with the same effect on memory."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from smelt.engine import write_atomically
from smelt.nvdla._errors import NvError
from smelt.nvdla._protocols import MemorySpace
from smelt.nvdla.registers import load_register_map
from smelt.nvdla.traces._parse import SRAM_WINDOW
from smelt.types import require_path

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from typing_extensions import Buffer

    from smelt.nvdla._protocols import DmaMemory, RegisterBus
    from smelt.nvdla.hardware import Configuration

_ROW_BYTES = 32
"""Bytes in a row of a data file."""
_SPACE_NAMES = {MemorySpace.DRAM: "pri_mem", MemorySpace.SRAM: "sec_mem"}


@dataclass(frozen=True, slots=True)
class _Write:
    """A register write."""

    address: int
    value: int


@dataclass(frozen=True, slots=True)
class _Interrupt:
    """Interrupts that a read of the status register returned."""

    bits: int
    was_awaited: bool


@dataclass(frozen=True, slots=True)
class _MemoryEvent:
    """Contents of a memory range, to set or to compare."""

    space: MemorySpace
    address: int
    content: bytes
    is_check: bool


class _RecordedMemory:
    """A DMA memory whose writes are recorded."""

    def __init__(self, recorder: TraceRecorder, memory: DmaMemory) -> None:
        self._recorder = recorder
        self._memory = memory

    def read(self, space: MemorySpace, address: int, size_bytes: int, /) -> bytes:
        """Return a copy of a byte range."""
        return self._memory.read(space, address, size_bytes)

    def write(self, space: MemorySpace, address: int, data: Buffer, /) -> None:
        """Write a byte range and record it."""
        content = bytes(memoryview(data).cast("B"))
        self._memory.write(space, address, content)
        self._recorder.add_memory(space, address, content)


class TraceRecorder:
    """A register bus that records its accesses; its `memory` records software's writes.

    `record_memory` records memory that was written earlier or in another way; `record_check`
    records results that playing the trace compares.
    """

    def __init__(self, bus: RegisterBus, memory: DmaMemory, configuration: Configuration) -> None:
        self.configuration = configuration
        self.memory: DmaMemory = _RecordedMemory(self, memory)
        self._bus = bus
        self._bare_memory = memory
        self._map = load_register_map(configuration.register_map)
        self._status = self._map.register("GLB.S_INTR_STATUS")
        self._events: list[_Write | _Interrupt | _MemoryEvent] = []
        self._recorded_interrupts = 0
        self._was_awaited = False

    def read(self, address: int, /) -> int:
        """Return a register; record the interrupts that a read of the status register returns."""
        value = self._bus.read(address)
        if address == self._status.address and value & ~self._recorded_interrupts:
            self._events.append(_Interrupt(value & ~self._recorded_interrupts, self._was_awaited))
            self._recorded_interrupts |= value
            self._was_awaited = False
        return value

    def write(self, address: int, value: int, /) -> None:
        """Write a register and record the write."""
        if address == self._status.address:
            self._recorded_interrupts &= ~value
        self._events.append(_Write(address, value & 0xFFFFFFFF))
        self._bus.write(address, value)

    def wait_for_interrupt(self, timeout_s: float, /) -> bool:
        """Wait until the interrupt line is asserted; return False after ``timeout_s`` seconds."""
        is_raised = self._bus.wait_for_interrupt(timeout_s)
        self._was_awaited |= is_raised
        return is_raised

    def add_memory(self, space: MemorySpace, address: int, content: bytes) -> None:
        """Record that memory was written."""
        if content:
            self._events.append(_MemoryEvent(space, address, content, is_check=False))

    def record_memory(self, space: MemorySpace, address: int, size_bytes: int) -> None:
        """Record the present contents of memory: at this point the trace will set them."""
        self.add_memory(space, address, self._bare_memory.read(space, address, size_bytes))

    def record_check(self, space: MemorySpace, address: int, size_bytes: int) -> None:
        """Record the present contents of memory: at this point the trace will compare them."""
        content = self._bare_memory.read(space, address, size_bytes)
        if content:
            self._events.append(_MemoryEvent(space, address, content, is_check=True))

    def write_trace(self, path: str | Path) -> None:
        """Write the trace, as ``.cfg`` or ``.txn`` by its suffix, and its data files beside it.

        Raises:
            NvdlaError: BAD_PARAMETER if the path has another suffix; NOT_SUPPORTED if the language
                cannot express a register or an address.
            SmeltError: If a file cannot be written.
        """
        path = require_path(path, "a trace")
        writers = {".cfg": self._cfg_lines, ".txn": self._txn_lines}
        if path.suffix not in writers:
            raise NvError.BAD_PARAMETER.error(
                f"{path.name}: the name of a trace must end in .cfg or .txn"
            )
        lines = list(writers[path.suffix](path))
        _write(path, "\n".join(lines) + "\n")

    def _cfg_lines(self, path: Path) -> Iterator[str]:
        """Yield the lines of a ``.cfg`` trace, and write its data files."""
        yield f"// configuration: {self.configuration.name}"
        for number, event in enumerate(self._events):
            if isinstance(event, _Write):
                name = self._register_name(event.address)
                yield f"reg_write(NVDLA_{name}_0, {event.value:#x});"
            elif isinstance(event, _Interrupt):
                for source in self._sources(event.bits):
                    yield f"intr_notify({source}, sync_id_{number});"
            else:
                yield from self._cfg_memory(path, number, event)

    def _cfg_memory(self, path: Path, number: int, event: _MemoryEvent) -> Iterator[str]:
        """Yield the lines that set or compare memory; ``number`` makes their names unique."""
        space, size = _SPACE_NAMES[event.space], len(event.content)
        location = f"{space}, {event.address:#x}"
        if event.is_check:
            crc = zlib.crc32(event.content)
            yield f"check_crc(sync_id_{number}, {location}, {size:#x}, {crc:#x});"
            return
        file = f"{path.stem}_{number}.dat"
        _write(path.with_name(file), _rows(event.content))
        yield f"mem_init({location}, {size:#x}, ALL_ZERO);"
        yield f'mem_load({location}, "{file}");'

    def _txn_lines(self, path: Path) -> Iterator[str]:
        """Yield the lines of a ``.txn`` trace, and write its data files."""
        yield f"# configuration: {self.configuration.name}"
        for number, event in enumerate(self._events):
            if isinstance(event, _Write):
                name = self._register_name(event.address)
                yield f"write_reg {_word(event.address)} {event.value:#010x} #NVDLA_{name}_0"
            elif isinstance(event, _Interrupt):
                if event.was_awaited:
                    yield "wait"
                bits = f"{event.bits:#010x}"
                yield f"read_reg {_word(self._status.address)} {bits} {bits}"
            else:
                yield self._txn_memory(path, number, event)

    def _txn_memory(self, path: Path, number: int, event: _MemoryEvent) -> str:
        """Return the line that loads or compares memory, and write its data file."""
        if (event.address in SRAM_WINDOW) != (event.space is MemorySpace.SRAM):
            raise NvError.NOT_SUPPORTED.error(
                f"a .txn trace identifies on-chip memory by its address, {SRAM_WINDOW.start:#x} "
                f"to {SRAM_WINDOW.stop:#x}; {event.space.name} at {event.address:#x} cannot be "
                "expressed; write a .cfg trace"
            )
        file = f"{path.stem}_{number}.dat"
        _write(path.with_name(file), _hex_lines(event.content))
        command = "dump_mem" if event.is_check else "load_mem"
        return f"{command} {event.address:#x} {len(event.content):#x} {file}"

    def _register_name(self, address: int) -> str:
        register = self._map.by_address.get(address)
        if register is None:
            raise NvError.NOT_SUPPORTED.error(
                f"a write to {address:#x} cannot be recorded: {self._map.name} has no register "
                "there"
            )
        return register.full_name

    def _sources(self, bits: int) -> Iterator[str]:
        for name, field in self._status.fields.items():
            if bits & field.mask:
                source, _, group = name.partition("_DONE_STATUS")
                yield f"{source}_{group}"


def _write(path: Path, text: str) -> None:
    write_atomically(path, iter([text.encode("ascii")]))


def _word(address: int) -> str:
    return f"{0xFFFF0000 | address >> 2:#010x}"


def _bytes_text(content: bytes) -> str:
    return " ".join(f"{byte:#04x}" for byte in content)


def _rows(content: bytes) -> str:
    rows = ["{"]
    for offset in range(0, len(content), _ROW_BYTES):
        row = content[offset : offset + _ROW_BYTES]
        if any(row):
            rows.append(f"{{offset:{offset:#x}, size:{len(row)}, payload:{_bytes_text(row)}}} ,")
    rows.append("}")
    return "\n".join(rows) + "\n"


def _hex_lines(content: bytes) -> str:
    rows = (content[at : at + _ROW_BYTES] for at in range(0, len(content), _ROW_BYTES))
    return "\n".join(_bytes_text(row) for row in rows) + "\n"
