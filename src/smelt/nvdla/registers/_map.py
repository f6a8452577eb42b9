"""The register maps: one line of text a register, read into frozen values."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import TYPE_CHECKING

from smelt.nvdla._status import NvdlaError, NvError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smelt.nvdla._protocols import RegisterBus

WORD_MASK = 0xFFFFFFFF
REGISTER_MAPS = ("nv_full", "v2")
"""nv_full's own map, and the one that every later configuration shares."""


@dataclass(frozen=True, slots=True)
class Field:
    """Some bits of a register."""

    name: str
    shift: int
    width: int

    @property
    def mask(self) -> int:
        """The field's bits, in place."""
        return ((1 << self.width) - 1) << self.shift

    def extract(self, word: int) -> int:
        """Return the field's value in a register's word."""
        return (word & self.mask) >> self.shift

    def insert(self, word: int, value: int) -> int:
        """Return the word with this field set.

        Raises:
            NvdlaError: the value needs more bits than the field has (BAD_VALUE).
        """
        if value < 0 or value >> self.width:
            raise NvdlaError(
                NvError.BAD_VALUE,
                f"{value} does not fit into register field {self.name} of {self.width} bits",
            )
        return (word & ~self.mask) | (value << self.shift)


@dataclass(frozen=True, slots=True)
class Register:
    """A 32-bit register: where it is, what it holds after reset, what may be written."""

    block: str
    name: str
    address: int
    reset: int
    write_mask: int
    fields: Mapping[str, Field]

    @property
    def is_grouped(self) -> bool:
        """Whether it exists twice, once for each ping-pong group."""
        return self.name.startswith("D_")

    @property
    def full_name(self) -> str:
        """Block and name, as ``SDP.D_CVT_SCALE``."""
        return f"{self.block}.{self.name}"

    def field(self, name: str) -> Field:
        """Return a field by name.

        Raises:
            NvdlaError: the register has no such field (BAD_PARAMETER); lists those that it has.
        """
        try:
            return self.fields[name]
        except KeyError:
            known = ", ".join(self.fields) or "none"
            raise NvdlaError(
                NvError.BAD_PARAMETER,
                f"register {self.full_name} has no field {name!r}; it has {known}",
            ) from None

    def encode(self, **values: int) -> int:
        """Return a word with these fields set and all others zero."""
        word = 0
        for name, value in values.items():
            word = self.field(name).insert(word, value)
        return word

    def decode(self, word: int) -> dict[str, int]:
        """Return every field's value in a word."""
        return {name: item.extract(word) for name, item in self.fields.items()}


@dataclass(frozen=True, slots=True)
class RegisterMap:
    """All registers of a configuration, by name and by byte address."""

    name: str
    blocks: Mapping[str, int]
    """Each block's base address."""
    registers: Mapping[str, Register] = field(repr=False)
    by_address: Mapping[int, Register] = field(repr=False)

    def register(self, full_name: str) -> Register:
        """Return a register by block and name, as ``SDP.D_CVT_SCALE``.

        Raises:
            NvdlaError: no such register in this map (BAD_PARAMETER).
        """
        try:
            return self.registers[full_name]
        except KeyError:
            raise NvdlaError(
                NvError.BAD_PARAMETER,
                f"register map {self.name} has no register {full_name!r};"
                f" its blocks are {', '.join(self.blocks)}",
            ) from None


@cache
def load_register_map(name: str) -> RegisterMap:
    """Return the register map called ``nv_full`` or ``v2``.

    Raises:
        NvdlaError: there is no map of that name (BAD_PARAMETER).
    """
    if name not in REGISTER_MAPS:
        raise NvdlaError(
            NvError.BAD_PARAMETER,
            f"no register map {name!r}; known are {', '.join(REGISTER_MAPS)}",
        )
    text = resources.files(__package__ or "").joinpath(f"{name}.txt").read_text("ascii")
    blocks: dict[str, int] = {}
    registers: dict[str, Register] = {}
    block = ""
    for line in text.splitlines():
        head, *rest = line.split(" ")
        if head.startswith("@"):
            block = head[1:]
            blocks[block] = int(rest[0], 16)
        else:
            register = _register_from_row(block, blocks[block], head, rest)
            registers[register.full_name] = register
    return RegisterMap(
        name=name,
        blocks=MappingProxyType(blocks),
        registers=MappingProxyType(registers),
        by_address=MappingProxyType({item.address: item for item in registers.values()}),
    )


def _register_from_row(block: str, base: int, name: str, row: list[str]) -> Register:
    offset, reset, write_mask = (int(number, 16) for number in row[:3])
    fields: dict[str, Field] = {}
    for item in row[3:]:
        if item:
            field_name, shift, width = item.split(":")
            fields[field_name] = Field(field_name, int(shift), int(width))
    return Register(block, name, base + offset, reset, write_mask, MappingProxyType(fields))


class RegisterFile:
    """Registers by name, over any bus that reads and writes words by address."""

    def __init__(self, bus: RegisterBus, register_map: RegisterMap) -> None:
        self.bus = bus
        self.map = register_map

    def read(self, name: str) -> int:
        """Return the word of a register."""
        return self.bus.read(self.map.register(name).address)

    def write(self, name: str, word: int) -> None:
        """Set the word of a register."""
        self.bus.write(self.map.register(name).address, word & WORD_MASK)

    def read_field(self, name: str, field_name: str) -> int:
        """Return one field of a register."""
        register = self.map.register(name)
        return register.field(field_name).extract(self.bus.read(register.address))

    def write_fields(self, name: str, **values: int) -> None:
        """Set a register to a word with these fields set and all others zero."""
        register = self.map.register(name)
        self.bus.write(register.address, register.encode(**values))

    def update_fields(self, name: str, **values: int) -> None:
        """Set these fields of a register and leave its others as they are."""
        register = self.map.register(name)
        word = self.bus.read(register.address)
        for field_name, value in values.items():
            word = register.field(field_name).insert(word, value)
        self.bus.write(register.address, word)
