"""Records what firmware does on a bus, and writes it as a trace that replays to the same memory."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from smelt.engine import write_atomically
from smelt.nvdla._protocols import MemorySpace
from smelt.nvdla._status import NvdlaError, NvError
from smelt.nvdla.registers import load_register_map
from smelt.types import require_path

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from typing_extensions import Buffer

    from smelt.nvdla._protocols import DmaMemory, RegisterBus
    from smelt.nvdla.hardware import Configuration

_ROW_BYTES = 32
_SRAM_WINDOW = range(0x50000000, 0x60000000)
_SPACE_NAMES = {MemorySpace.DRAM: "pri_mem", MemorySpace.SRAM: "sec_mem"}


@dataclass(frozen=True, slots=True)
class _Write:
    address: int
    value: int


@dataclass(frozen=True, slots=True)
class _Interrupt:
    bits: int
    waited: bool


@dataclass(frozen=True, slots=True)
class _Memory:
    space: MemorySpace
    address: int
    content: bytes
    is_check: bool


class _RecordedMemory:
    """A memory whose writes are recorded."""

    def __init__(self, recorder: TraceRecorder, memory: DmaMemory) -> None:
        self._recorder = recorder
        self._memory = memory

    def read(self, space: MemorySpace, address: int, size_bytes: int, /) -> bytes:
        """Return bytes."""
        return self._memory.read(space, address, size_bytes)

    def write(self, space: MemorySpace, address: int, data: Buffer, /) -> None:
        """Set bytes, and record them."""
        content = bytes(memoryview(data).cast("B"))
        self._memory.write(space, address, content)
        self._recorder.add_memory(space, address, content)


class TraceRecorder:
    """A register bus that records what passes through it; `memory` records what software writes.

    Memory that was written before, or by another way, is recorded with `record_memory`; results to
    compare when the trace is played again with `record_check`.
    """

    def __init__(self, bus: RegisterBus, memory: DmaMemory, configuration: Configuration) -> None:
        self.configuration = configuration
        self.memory: DmaMemory = _RecordedMemory(self, memory)
        self._bus = bus
        self._held = memory
        self._map = load_register_map(configuration.register_map)
        self._status = self._map.register("GLB.S_INTR_STATUS")
        self._events: list[_Write | _Interrupt | _Memory] = []
        self._seen = 0
        self._waited = False

    def read(self, address: int, /) -> int:
        """Return a register; interrupts that a status read shows are recorded as awaited."""
        value = self._bus.read(address)
        if address == self._status.address and value & ~self._seen:
            self._events.append(_Interrupt(value & ~self._seen, self._waited))
            self._seen |= value
            self._waited = False
        return value

    def write(self, address: int, value: int, /) -> None:
        """Set a register, and record it."""
        if address == self._status.address:
            self._seen &= ~value
        self._events.append(_Write(address, value & 0xFFFFFFFF))
        self._bus.write(address, value)

    def wait_for_interrupt(self, timeout_s: float, /) -> bool:
        """Wait until the interrupt line is up."""
        is_raised = self._bus.wait_for_interrupt(timeout_s)
        self._waited |= is_raised
        return is_raised

    def add_memory(self, space: MemorySpace, address: int, content: bytes) -> None:
        """Record that memory was set."""
        if content:
            self._events.append(_Memory(space, address, content, is_check=False))

    def record_memory(self, space: MemorySpace, address: int, size_bytes: int) -> None:
        """Record memory as it is now: the trace sets it here."""
        self.add_memory(space, address, self._held.read(space, address, size_bytes))

    def record_check(self, space: MemorySpace, address: int, size_bytes: int) -> None:
        """Record memory as it is now: the trace compares it here."""
        content = self._held.read(space, address, size_bytes)
        if content:
            self._events.append(_Memory(space, address, content, is_check=True))

    def write_trace(self, path: str | Path) -> None:
        """Write the trace, as ``.cfg`` or ``.txn`` by its suffix, and its data files beside it.

        Raises:
            NvdlaError: another suffix (BAD_PARAMETER), or memory that the language has no name
                for (NOT_SUPPORTED).
            SmeltError: a file cannot be written.
        """
        path = require_path(path, "a trace")
        writers = {".cfg": self._cfg_lines, ".txn": self._txn_lines}
        if path.suffix not in writers:
            raise NvdlaError(
                NvError.BAD_PARAMETER, f"{path.name}: a trace's name ends in .cfg or .txn"
            )
        lines = list(writers[path.suffix](path))
        _write(path, "\n".join(lines) + "\n")

    def _cfg_lines(self, path: Path) -> Iterator[str]:
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

    def _cfg_memory(self, path: Path, number: int, event: _Memory) -> Iterator[str]:
        space, size = _SPACE_NAMES[event.space], len(event.content)
        place = f"{space}, {event.address:#x}"
        if event.is_check:
            crc = zlib.crc32(event.content)
            yield f"check_crc(sync_id_{number}, {place}, {size:#x}, {crc:#x});"
            return
        file = f"{path.stem}_{number}.dat"
        _write(path.with_name(file), _rows(event.content))
        yield f"mem_init({place}, {size:#x}, ALL_ZERO);"
        yield f'mem_load({place}, "{file}");'

    def _txn_lines(self, path: Path) -> Iterator[str]:
        yield f"# configuration: {self.configuration.name}"
        for number, event in enumerate(self._events):
            if isinstance(event, _Write):
                name = self._register_name(event.address)
                yield f"write_reg {_word(event.address)} {event.value:#010x} #NVDLA_{name}_0"
            elif isinstance(event, _Interrupt):
                if event.waited:
                    yield "wait"
                bits = f"{event.bits:#010x}"
                yield f"read_reg {_word(self._status.address)} {bits} {bits}"
            else:
                yield self._txn_memory(path, number, event)

    def _txn_memory(self, path: Path, number: int, event: _Memory) -> str:
        if (event.address in _SRAM_WINDOW) != (event.space is MemorySpace.SRAM):
            raise NvdlaError(
                NvError.NOT_SUPPORTED,
                f"a .txn trace identifies on-chip memory by its address, {_SRAM_WINDOW.start:#x} "
                f"to {_SRAM_WINDOW.stop:#x}; {event.space.name} at {event.address:#x} cannot be "
                "expressed; write a .cfg trace",
            )
        file = f"{path.stem}_{number}.dat"
        _write(path.with_name(file), _hex_lines(event.content))
        command = "dump_mem" if event.is_check else "load_mem"
        return f"{command} {event.address:#x} {len(event.content):#x} {file}"

    def _register_name(self, address: int) -> str:
        register = self._map.by_address.get(address)
        if register is None:
            raise NvdlaError(
                NvError.NOT_SUPPORTED,
                f"a write to {address:#x} cannot be recorded: {self._map.name} has no register "
                "there",
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
