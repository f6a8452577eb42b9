"""Playing traces on the machine model and checking the results that they expect."""

from __future__ import annotations

import operator
import zlib
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal

from smelt.errors import ModelFormatError
from smelt.nvdla._errors import NvdlaError
from smelt.nvdla._protocols import MemorySpace
from smelt.nvdla.hardware import CONFIGURATIONS, NV_FULL, Configuration, Machine
from smelt.nvdla.registers import load_register_map
from smelt.nvdla.traces._parse import (
    AwaitInterrupt,
    CheckCrc,
    CheckFile,
    Command,
    FillMemory,
    LoadMemory,
    ReadRegister,
    WriteRegister,
    parse_cfg,
    parse_data,
    parse_txn,
)
from smelt.nvdla.traces._trace_files import TraceFile, find_traces
from smelt.types import Limit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

_SLACK_BYTES = 1 << 24
"""Memory in bytes beyond the last byte that a trace names, for results it never initialises."""
_PAGE_BYTES = 1 << 16
"""Alignment of the memory that is allocated for a trace, in bytes."""
_POLLS = 64
"""Number of register reads before an expected value or interrupt counts as missing.

The machine model delivers an interrupt by the second read.
"""
_CONFIGURATION_MARKER = "configuration:"
"""Text in one of a trace's first lines that precedes the configuration's name."""
_COMMENT_CHARACTERS = 4096
"""Characters at the start of a trace among which the marker is looked for."""
_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "==": operator.eq,
    "<=": operator.le,
    ">=": operator.ge,
}

_CHECKS = (ReadRegister, AwaitInterrupt, CheckCrc, CheckFile)
"""Commands that check a result; a trace without any of them is skipped."""

State = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True, slots=True)
class TraceResult:
    """Outcome of playing a trace."""

    name: str
    configuration: str
    state: State
    reason: str = ""

    def to_dict(self) -> dict[str, str]:
        """Return the result as plain data for JSON."""
        return asdict(self)


_PIECE_BYTES = 1024
"""Bytes as which each row of a data file is counted when a command moves it."""


class _SkippedError(Exception):
    """The trace cannot be played, or checks nothing."""


class _MismatchError(Exception):
    """A result differs from what the trace expects."""


def run_trace(
    path: str | Path | TraceFile, *, configuration: Configuration | None = None
) -> TraceResult:
    """Play one trace and check every result that it expects.

    Args:
        path: A ``.cfg`` or ``.txn`` file, or a trace that `find_traces` returned.
        configuration: The hardware configuration. By default a comment in the trace's first four
            lines names it, otherwise one of its folders; a ``.txn`` trace without either is for
            nv_full.

    Returns:
        The result. The state is ``failed`` if a result differs or the trace is invalid, and
        ``skipped`` if a data file is missing, the configuration is unknown, or the trace has no
        checks; ``reason`` gives the details.

    Raises:
        FileNotFoundError: If there is no such trace.
        ModelFormatError: If the path leads to several traces, or to none.
    """
    trace = path if isinstance(path, TraceFile) else _find_single(path)
    chosen = configuration
    state: State = "passed"
    reason = ""
    try:
        text = trace.text()
        chosen = configuration or _configuration_of(trace, text)
        _play(trace, text, chosen)
    except _SkippedError as error:
        state, reason = "skipped", str(error)
    except (_MismatchError, ModelFormatError, NvdlaError) as error:
        state, reason = "failed", str(error)
    return TraceResult(trace.name, "" if chosen is None else chosen.name, state, reason)


def _play(trace: TraceFile, text: str, configuration: Configuration | None) -> None:
    """Play a trace.

    Raises:
        _SkippedError: If the trace cannot be played, or checks nothing.
        _MismatchError: If a result differs from what the trace expects.
        ModelFormatError: If the trace is invalid.
    """
    if configuration is None:
        raise _SkippedError(
            "the trace's configuration is unknown: no comment in the trace and no folder of its "
            f"path names a configuration; give one of {', '.join(CONFIGURATIONS)}"
        )
    commands = _parse(trace, text, configuration)
    _Player(trace, configuration, commands).play()
    if not any(isinstance(command, _CHECKS) for command in commands):
        raise _SkippedError("the trace has no checks")


def _find_single(path: str | Path) -> TraceFile:
    traces = find_traces(path)
    if not traces:
        raise ModelFormatError(f"{path} contains no trace (.cfg or .txn)")
    if len(traces) != 1:
        raise ModelFormatError(
            f"{path} contains {len(traces)} traces; pass one of those that find_traces returns"
        )
    return traces[0]


def _configuration_of(trace: TraceFile, text: str) -> Configuration | None:
    """Return the configuration that a trace is for, or None if it is not known."""
    for line in text[:_COMMENT_CHARACTERS].splitlines()[:4]:
        if _CONFIGURATION_MARKER in line:
            return CONFIGURATIONS.get(line.split(_CONFIGURATION_MARKER, 1)[1].strip())
    for part in reversed(trace.path.parts[:-1]):
        if part in CONFIGURATIONS:
            return CONFIGURATIONS[part]
    return NV_FULL if trace.path.suffix == ".txn" else None


def _parse(trace: TraceFile, text: str, configuration: Configuration) -> Sequence[Command]:
    if trace.path.suffix == ".txn":
        return parse_txn(text)
    return parse_cfg(text, load_register_map(configuration.register_map))


class _Player:
    """A trace with its data files and a machine with the memory that the trace needs."""

    def __init__(
        self, trace: TraceFile, configuration: Configuration, commands: Sequence[Command]
    ) -> None:
        self._trace = trace
        self._commands = commands
        self._configuration = configuration
        files = (
            command.file for command in commands if isinstance(command, LoadMemory | CheckFile)
        )
        self._data = {name: self._read(name) for name in dict.fromkeys(files)}
        self.machine = self._make_machine()
        self._arrived = 0  # interrupts that no command has waited for yet

    def _read(self, name: str) -> list[tuple[int, bytes]]:
        content = self._trace.data(name)
        if content is None:
            raise _SkippedError(f"data file {name[:120]} is missing")
        try:
            return parse_data(content, Limit.MAX_SPAN_BYTES.most)
        except ModelFormatError as error:
            raise ModelFormatError(f"data file {name[:120]}: {error}") from None

    def _make_machine(self) -> Machine:
        """Return a machine whose memory covers every address that the trace names.

        Raises:
            ModelFormatError: If the trace exceeds a limit, or memory cannot be allocated.
        """
        ends = {
            name: max((at + len(data) for at, data in pieces), default=0)
            for name, pieces in self._data.items()
        }
        piece_bytes = {
            name: sum(len(data) + _PIECE_BYTES for _, data in pieces)
            for name, pieces in self._data.items()
        }
        spans: dict[MemorySpace, list[int]] = {}
        moved_bytes = 0
        for command in self._commands:
            if isinstance(command, FillMemory | CheckCrc | CheckFile):
                end = command.address + command.size_bytes
            elif isinstance(command, LoadMemory):
                end = command.address + ends[command.file]
            else:
                continue
            spans.setdefault(command.space, []).extend((command.address, end))
            moved_bytes += end - command.address
            if isinstance(command, LoadMemory | CheckFile):
                moved_bytes += piece_bytes[command.file]
        if moved_bytes > Limit.MAX_MOVED_BYTES.most:
            detail = Limit.MAX_MOVED_BYTES.excess(moved_bytes)
            raise ModelFormatError(f"the trace's commands fill and compare {detail}")
        sizes = {space: _span(ends) for space, ends in spans.items()}
        dram = sizes.get(MemorySpace.DRAM, (0, _PAGE_BYTES))
        sram = sizes.get(MemorySpace.SRAM, (0, 0))
        try:
            return Machine(
                self._configuration, dram[1], sram[1], dram_base=dram[0], sram_base=sram[0]
            )
        except MemoryError:
            raise ModelFormatError(
                f"the {dram[1] + sram[1]} bytes that the trace spans cannot be allocated"
            ) from None

    def play(self) -> None:
        """Run all commands.

        Raises:
            _MismatchError: If a check fails or a command cannot be run.
        """
        for command in self._commands:
            try:
                self._run(command)
            except _MismatchError as error:
                faults = "".join(f"; {fault.error}" for fault in self.machine.faults)
                raise _MismatchError(f"line {command.line}: {error}{faults}") from None
            except NvdlaError as error:
                raise _MismatchError(f"line {command.line}: {error}") from None

    def _run(self, command: Command) -> None:
        """Run one command; raise _MismatchError if it is a check that fails."""
        memory = self.machine.memory
        if isinstance(command, WriteRegister):
            self.machine.write(command.address, command.value)
        elif isinstance(command, ReadRegister):
            self._check_register(command)
        elif isinstance(command, AwaitInterrupt):
            self._await(command)
        elif isinstance(command, FillMemory):
            memory.fill(command.space, command.address, command.size_bytes, command.value)
        elif isinstance(command, LoadMemory):
            for offset, data in self._data[command.file]:
                memory.write(command.space, command.address + offset, data)
        elif isinstance(command, CheckCrc):
            crc = zlib.crc32(memory.read(command.space, command.address, command.size_bytes))
            if crc != command.crc:
                raise _MismatchError(
                    f"the CRC of {command.size_bytes} bytes at {command.address:#x} is {crc:#x},"
                    f" not {command.crc:#x}"
                )
        else:
            self._check_file(command)

    def _check_register(self, command: ReadRegister) -> None:
        """Read a register until it has the expected value; raise _MismatchError otherwise."""
        compare = _COMPARISONS[command.comparison]
        value = 0
        for _ in range(_POLLS):  # the trace languages define a read as polling
            value = self.machine.read(command.address) & command.mask
            if compare(value, command.expected):
                return
        register = self.machine.register_map.by_address.get(command.address)
        name = register.full_name if register else f"{command.address:#x}"
        raise _MismatchError(
            f"register {name} with mask {command.mask:#x} is {value:#x};"
            f" expected {command.comparison} {command.expected:#x}"
        )

    def _await(self, command: AwaitInterrupt) -> None:
        """Wait for an interrupt; raise _MismatchError if it does not arrive."""
        status = self.machine.register_map.register("GLB.S_INTR_STATUS")
        if command.field is None:
            if not self.machine.wait_for_interrupt(0):
                raise _MismatchError("no interrupt was raised")
            return
        mask = status.fields[command.field].mask
        for _ in range(_POLLS):
            if self._arrived & mask:
                self._arrived &= ~mask
                return
            bits = self.machine.read(status.address)
            self.machine.write(status.address, bits)
            self._arrived |= bits
        raise _MismatchError(f"the interrupt {command.field} was not raised")

    def _check_file(self, command: CheckFile) -> None:
        """Compare memory with a data file; raise _MismatchError at the first difference."""
        actual = self.machine.memory.read(command.space, command.address, command.size_bytes)
        for offset, data in self._data[command.file]:
            expected = data[: max(0, command.size_bytes - offset)]
            part = actual[offset : offset + len(expected)]
            if part != expected:
                at = next(
                    i
                    for i, pair in enumerate(zip(part, expected, strict=True))
                    if pair[0] != pair[1]
                )
                raise _MismatchError(
                    f"memory at {command.address + offset + at:#x} is {part[at]:#04x}, not "
                    f"{expected[at]:#04x} as in {command.file}"
                )


def _span(ends: list[int]) -> tuple[int, int]:
    """Return base and size of the memory for accesses with these first and last addresses."""
    base = min(ends) // _PAGE_BYTES * _PAGE_BYTES
    size = max(ends) - base + _SLACK_BYTES
    if size > Limit.MAX_SPAN_BYTES.most:
        raise ModelFormatError(
            f"the trace accesses memory from {min(ends):#x} to {max(ends):#x}:"
            f" {Limit.MAX_SPAN_BYTES.excess(size)}"
        )
    return base, size
