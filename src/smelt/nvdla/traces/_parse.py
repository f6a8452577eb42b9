"""Parsers of both trace languages and of their data files.

A ``.cfg`` trace names registers (``reg_write(NVDLA_SDP.D_CVT_SCALE_0, 0x1);``); a ``.txn`` trace
uses word addresses (``write_reg 0xffff1401 0x0``). Both become the same commands. Every error in a
trace names the line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from smelt.errors import ModelFormatError
from smelt.nvdla._errors import NvdlaError
from smelt.nvdla._protocols import MemorySpace
from smelt.types import Limit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from smelt.nvdla.registers import RegisterMap


@dataclass(frozen=True, slots=True)
class _MemoryCommand:
    """A command on memory from an address on."""

    line: int
    space: MemorySpace
    address: int


@dataclass(frozen=True, slots=True)
class FillMemory(_MemoryCommand):
    """Fill a memory range with one byte value."""

    size_bytes: int
    value: int = 0


@dataclass(frozen=True, slots=True)
class LoadMemory(_MemoryCommand):
    """Copy a data file to memory."""

    file: str


@dataclass(frozen=True, slots=True)
class WriteRegister:
    """Write a register by its byte address."""

    line: int
    address: int
    value: int


@dataclass(frozen=True, slots=True)
class ReadRegister:
    """Read a register by its byte address and compare the bits of a mask."""

    line: int
    address: int
    mask: int
    expected: int
    comparison: str = "=="


@dataclass(frozen=True, slots=True)
class AwaitInterrupt:
    """Wait for any interrupt, or for the interrupt of one engine's group and clear it."""

    line: int
    field: str | None = None
    """Field of GLB.S_INTR_STATUS to wait for, or None for any interrupt."""


@dataclass(frozen=True, slots=True)
class CheckCrc(_MemoryCommand):
    """Compare the CRC-32 of a memory range with an expected value."""

    size_bytes: int
    crc: int


@dataclass(frozen=True, slots=True)
class CheckFile(_MemoryCommand):
    """Compare a memory range with a data file."""

    size_bytes: int
    file: str


Command: TypeAlias = (
    FillMemory | LoadMemory | WriteRegister | ReadRegister | AwaitInterrupt | CheckCrc | CheckFile
)


_CALL = re.compile(r"(\w+)\s*\((.*)\)\s*;?$")
"""Pattern of a call on a stripped line.

The pattern has no two adjacent runs of blanks, which would backtrack for ever on a long line.
"""
_SPACES = {
    "pri_mem": MemorySpace.DRAM,
    "1": MemorySpace.DRAM,
    "sec_mem": MemorySpace.SRAM,
    "0": MemorySpace.SRAM,
}
_PATTERNS = {"ALL_ZERO": 0, "ALL_ONE": 0xFF, "ALL_FF": 0xFF}
SRAM_WINDOW = range(0x50000000, 0x60000000)
"""Addresses of the on-chip memory in the test bench of ``.txn`` traces."""

_CFG_USAGES = {
    "reg_write": "REGISTER VALUE",
    "poll_reg_equal": "REGISTER VALUE",
    "reg_read": "REGISTER VALUE",
    "intr_notify": "ENGINE_GROUP",
    "mem_init": "SPACE ADDRESS SIZE PATTERN",
    "mem_load": "SPACE ADDRESS FILE",
    "check_crc": "SYNC SPACE ADDRESS SIZE CRC",
    "check_file": "SYNC SPACE ADDRESS SIZE FILE",
}
_TXN_USAGES = {
    "wait": "",
    "write_reg": "ADDRESS VALUE",
    "read_reg": "ADDRESS MASK VALUE",
    "load_mem": "ADDRESS SIZE FILE",
    "dump_mem": "ADDRESS SIZE FILE",
}
"""Arguments of each command; read_reg accepts a comparison operator before its value."""

_T = TypeVar("_T")

_DATA_ROW = re.compile(
    rb"offset'?\s*+:\s*+(0x[0-9a-fA-F]++|\d++)\s*+,\s*+'?size'?\s*+:\s*+(0x[0-9a-fA-F]++|\d++)"
    rb"\s*+,\s*+'?(?:payload|value)'?\s*+:\s*+((?:0x(?:[0-9a-fA-F](?!x))++\s*+)++)"
)
_MAX_DIGITS = 20
"""Maximum length of a number in a data row: any 64-bit decimal number fits."""
_HEX_LINE = re.compile(rb"^[ \t]*+((?:0x(?:[0-9a-fA-F](?!x))++[ \t]*+)++)\r?$", re.MULTILINE)


def parse_cfg(text: str, register_map: RegisterMap) -> list[Command]:
    """Return the commands of a ``.cfg`` trace.

    Raises:
        ModelFormatError: If a line is not a valid command; the message names the line.
    """

    def parse(number: int, line: str) -> Command | None:
        match = _CALL.match(line)
        if match is None:
            raise _error(number, line, "is not a call like reg_write(NAME, VALUE);")
        arguments = [item.strip() for item in match[2].split(",")] if match[2].strip() else []
        return _parse_cfg_command(number, match[1], arguments, register_map)

    return _parse_lines(text, "//", parse)


def parse_txn(text: str) -> list[Command]:
    """Return the commands of a ``.txn`` trace.

    Raises:
        ModelFormatError: If a line is not a valid command; the message names the line.
    """

    def parse(number: int, line: str) -> Command:
        name, *arguments = line.split()
        return _parse_txn_command(number, name, arguments)

    return _parse_lines(text, "#", parse)


def _parse_lines(
    text: str, comment: str, parse: Callable[[int, str], Command | None]
) -> list[Command]:
    """Return the commands of the lines that are not empty, without comments."""
    # Lines are counted before any is made: each empty one of a gigabyte would take 8 bytes.
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if (count := text.count("\n") + (not text.endswith("\n"))) > Limit.MAX_TRACE_LINES.most:
        raise ModelFormatError(f"the trace has {Limit.MAX_TRACE_LINES.excess(count)}")
    commands: list[Command] = []
    for number, line in enumerate(text.split("\n"), 1):
        content = line.split(comment, 1)[0].strip()
        if not content:
            continue
        try:
            command = parse(number, content)
        except (ValueError, NvdlaError) as error:
            raise _error(number, content, f"is invalid: {str(error)[:200]}") from None
        if command is not None:
            commands.append(command)
    return commands


def _error(number: int, line: str, problem: str) -> ModelFormatError:
    return ModelFormatError(f"line {number}: {line[:120]!r} {problem}")


def _number(text: str, bits: int = 32) -> int:
    try:
        value = int(text, 0)
    except ValueError:
        value = -1
    if value < 0 or value >> bits:
        raise ValueError(f"{text} is not an unsigned {bits}-bit number")
    return value


def _look_up(table: Mapping[str, _T], name: str) -> _T:
    if name not in table:
        raise ValueError(f"{name} is not one of {', '.join(table)}")
    return table[name]


def _check_count(name: str, arguments: Sequence[str], usages: Mapping[str, str]) -> None:
    if name not in usages:
        raise ValueError(f"{name} is not a command; the commands are {', '.join(usages)}")
    needed = usages[name].split()
    if len(arguments) < len(needed):
        raise ValueError(f"{needed[len(arguments)]} is missing: {name} takes {', '.join(needed)}")


def _parse_cfg_command(
    line: int, name: str, arguments: list[str], register_map: RegisterMap
) -> Command | None:
    """Return the command of a ``.cfg`` line, or None if it has no effect.

    Raises:
        ValueError: If the command is unknown or an argument is missing or invalid.
        NvdlaError: If a register or interrupt does not exist.
    """
    if name in {"check_nothing", "sync_notify", "sync_wait"}:
        return None  # commands run in file order, which satisfies every synchronisation
    _check_count(name, arguments, _CFG_USAGES)
    if name in {"reg_write", "poll_reg_equal", "reg_read"}:
        return _parse_cfg_register(line, name, arguments, register_map)
    if name == "intr_notify":
        source, _, group = arguments[0].rpartition("_")
        field = f"{source.upper()}_DONE_STATUS{_number(group, 1)}"
        register_map.register("GLB.S_INTR_STATUS").field(field)
        return AwaitInterrupt(line, field)
    if name.startswith("check_"):
        del arguments[0]  # what it waits for
    space, address = _look_up(_SPACES, arguments[0]), _number(arguments[1], 64)
    if name == "mem_load":
        return LoadMemory(line, space, address, arguments[2].strip('"'))
    size = _size(arguments[2])
    if name == "mem_init":
        return FillMemory(line, space, address, size, _look_up(_PATTERNS, arguments[3]))
    if name == "check_crc":
        return CheckCrc(line, space, address, size, _number(arguments[3]))
    return CheckFile(line, space, address, size, arguments[3].strip('"'))


def _parse_cfg_register(
    line: int, name: str, arguments: list[str], register_map: RegisterMap
) -> Command:
    full_name = arguments[0].removeprefix("NVDLA_").removesuffix("_0")
    address = register_map.register(full_name).address
    if name == "reg_write":
        return WriteRegister(line, address, _number(arguments[1]))
    mask = _number(arguments[2]) if len(arguments) > 2 else 0xFFFFFFFF
    return ReadRegister(line, address, mask, _number(arguments[1]) & mask)


def _size(text: str) -> int:
    value = _number(text)
    if value > Limit.MAX_COMMAND_BYTES.most:
        raise ValueError(f"the command has {Limit.MAX_COMMAND_BYTES.excess(value)}")
    return value


def _txn_register_address(text: str) -> int:
    return (_number(text) & 0xFFFF) << 2


def _parse_txn_command(line: int, name: str, arguments: list[str]) -> Command:
    """Return the command of a ``.txn`` line.

    Raises:
        ValueError: If the command is unknown or an argument is missing or invalid.
    """
    _check_count(name, arguments, _TXN_USAGES)
    if name == "wait":
        return AwaitInterrupt(line)
    if name == "write_reg":
        return WriteRegister(line, _txn_register_address(arguments[0]), _number(arguments[1]))
    if name == "read_reg":
        return _parse_txn_read(line, arguments)
    address = _number(arguments[0], 64)
    space = MemorySpace.SRAM if address in SRAM_WINDOW else MemorySpace.DRAM
    if name == "load_mem":
        return LoadMemory(line, space, address, arguments[2])
    return CheckFile(line, space, address, _size(arguments[1]), arguments[2])


def _parse_txn_read(line: int, arguments: list[str]) -> ReadRegister:
    address, mask = _txn_register_address(arguments[0]), _number(arguments[1])
    if len(arguments) == 3:
        return ReadRegister(line, address, mask, _number(arguments[2]))
    if arguments[2] not in {"==", "<=", ">="}:
        raise ValueError(f"{arguments[2]} is not a comparison; expected ==, <= or >=")
    return ReadRegister(line, address, mask, _number(arguments[3]), arguments[2])


def parse_data(content: bytes, limit_bytes: int) -> list[tuple[int, bytes]]:
    """Return the pieces (offset, bytes) of a data file in any of its three forms.

    Raises:
        ModelFormatError: If a row does not have as many bytes as it declares, or ends beyond
            ``limit_bytes``; if a number is incomplete.
    """
    if b"offset" not in content[:4096]:  # plain lines of bytes, without offsets
        joined = b"".join(match[1] for match in _HEX_LINE.finditer(content))
        return [(0, _hex_bytes(joined))]
    pieces: list[tuple[int, bytes]] = []
    for match in _DATA_ROW.finditer(content):
        offset, size = _row_number(match[1]), _row_number(match[2])
        data = _hex_bytes(match[3])
        if len(data) != size:
            raise ModelFormatError(
                f"the row at offset {offset:#x} declares {size} bytes but has {len(data)}"
            )
        if offset + size > limit_bytes:
            raise ModelFormatError(
                f"the row at offset {offset:#x} ends at {offset + size:#x}; it must end at "
                f"{limit_bytes:#x} or before"
            )
        pieces.append((offset, data))
    return pieces


def _row_number(digits: bytes) -> int:
    """Return a row's offset or size; a decimal number may have leading zeros."""
    if len(digits) > _MAX_DIGITS:
        raise ModelFormatError(
            f"the offset or size of a row has {len(digits)} digits; at most {_MAX_DIGITS} are "
            "allowed"
        )
    return int(digits, 16 if digits.startswith(b"0x") else 10)


def _hex_bytes(text: bytes) -> bytes:
    digits = text.replace(b"0x", b"").decode("ascii")
    try:
        return bytes.fromhex(digits)
    except ValueError as error:  # the patterns accept nothing but digits
        raise ModelFormatError(
            "a value of the data has an odd number of hexadecimal digits; write 0x01, not 0x1"
        ) from error
