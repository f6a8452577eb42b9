"""Register maps, read from text files with one line per register, and access by name.

A line ``@BLOCK base`` starts a block; every other line holds a register's name, offset, reset value
and write mask, then its fields as ``name:shift:width``. Numbers except shift and width are
hexadecimal.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import TYPE_CHECKING

from smelt.nvdla._errors import NvError
from smelt.types import counted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smelt.nvdla._protocols import RegisterBus

WORD_MASK = 0xFFFFFFFF
"""All bits of a 32-bit register."""
REGISTER_MAPS = ("nv_full", "v2")
"""Names of the register maps: nv_full has its own, all later configurations share ``v2``."""


@dataclass(frozen=True, slots=True)
class Field:
    """Bit field of a register."""

    name: str
    shift: int
    width: int

    @property
    def mask(self) -> int:
        """The field's bits as a mask of the register's word."""
        return ((1 << self.width) - 1) << self.shift

    def extract(self, word: int) -> int:
        """Return the field's value in a register's word."""
        return (word & self.mask) >> self.shift


@dataclass(frozen=True, slots=True)
class Register:
    """A 32-bit register: address, reset value, writable bits and fields."""

    block: str
    name: str
    address: int
    reset: int
    write_mask: int
    fields: Mapping[str, Field]

    @property
    def is_grouped(self) -> bool:
        """Whether the register exists twice, once for each ping-pong group."""
        return self.name.startswith("D_")

    @property
    def full_name(self) -> str:
        """Block and name of the register, such as ``SDP.D_CVT_SCALE``."""
        return f"{self.block}.{self.name}"

    def field(self, name: str) -> Field:
        """Return a field by name.

        Raises:
            NvdlaError: BAD_PARAMETER if the register has no such field; the message lists its
                fields.
        """
        try:
            return self.fields[name]
        except KeyError:
            names = ", ".join(self.fields) or "none"
            raise NvError.BAD_PARAMETER.error(
                f"register {self.full_name} has no field {name!r}; its fields are {names}"
            ) from None

    def insert(self, word: int, name: str, value: int) -> int:
        """Return a word with one of the fields set to a value.

        Raises:
            NvdlaError: BAD_PARAMETER if the field does not exist; BAD_VALUE if the value needs more
                bits than the field has.
        """
        field = self.field(name)
        if value < 0 or value >> field.width:
            raise NvError.BAD_VALUE.error(
                f"{value} does not fit into {self.full_name}.{name}, which has "
                f"{counted(field.width, 'bit')}"
            )
        return (word & ~field.mask) | (value << field.shift)

    def encode(self, **values: int) -> int:
        """Return a word with the given fields set and all others 0.

        Raises:
            NvdlaError: BAD_PARAMETER if a field does not exist; BAD_VALUE if a value does not fit.
        """
        word = 0
        for name, value in values.items():
            word = self.insert(word, name, value)
        return word

    def decode(self, word: int) -> dict[str, int]:
        """Return the value of every field of a word, by field name."""
        return {name: item.extract(word) for name, item in self.fields.items()}


@dataclass(frozen=True, slots=True)
class RegisterMap:
    """All registers of a hardware configuration, by name and by byte address."""

    name: str
    blocks: Mapping[str, int]
    """Base address of each block, in bytes."""
    registers: Mapping[str, Register] = field(repr=False)
    by_address: Mapping[int, Register] = field(repr=False)
    by_field: Mapping[tuple[str, str], Register] = field(repr=False)
    """Register that has a field, by block and field name.

    No two registers of a block have a field of the same name, except for BDMA's copies.
    """

    def register(self, full_name: str) -> Register:
        """Return a register by block and name, such as ``SDP.D_CVT_SCALE``.

        Raises:
            NvdlaError: BAD_PARAMETER if the map has no such register.
        """
        try:
            return self.registers[full_name]
        except KeyError:
            raise NvError.BAD_PARAMETER.error(
                f"register map {self.name} has no register {full_name!r};"
                f" its blocks are {', '.join(self.blocks)}"
            ) from None


@cache
def load_register_map(name: str) -> RegisterMap:
    """Return the register map named ``nv_full`` or ``v2``.

    Raises:
        NvdlaError: BAD_PARAMETER if there is no map of that name.
    """
    if name not in REGISTER_MAPS:
        raise NvError.BAD_PARAMETER.error(
            f"there is no register map {name!r}; the register maps are {', '.join(REGISTER_MAPS)}"
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
        by_field=MappingProxyType(
            {(item.block, name): item for item in registers.values() for name in item.fields}
        ),
    )


def _register_from_row(block: str, base: int, name: str, row: list[str]) -> Register:
    """Return the register that a line of a map describes, without the name at its start."""
    offset, reset, write_mask = (int(number, 16) for number in row[:3])
    fields: dict[str, Field] = {}
    for item in row[3:]:
        if item:
            field_name, shift, width = item.split(":")
            fields[field_name] = Field(field_name, int(shift), int(width))
    return Register(block, name, base + offset, reset, write_mask, MappingProxyType(fields))


class RegisterFile:
    """Access to registers by name, over any `RegisterBus`."""

    def __init__(self, bus: RegisterBus, register_map: RegisterMap) -> None:
        self.bus = bus
        self.map = register_map

    def read(self, name: str) -> int:
        """Return a register's word."""
        return self.bus.read(self.map.register(name).address)

    def write(self, name: str, word: int) -> None:
        """Set a register to the low 32 bits of a word."""
        self.bus.write(self.map.register(name).address, word & WORD_MASK)

    def read_field(self, name: str, field_name: str) -> int:
        """Return one field of a register."""
        register = self.map.register(name)
        return register.field(field_name).extract(self.bus.read(register.address))

    def write_fields(self, name: str, **values: int) -> None:
        """Set a register to a word with the given fields set and all others 0."""
        register = self.map.register(name)
        self.bus.write(register.address, register.encode(**values))

    def update_fields(self, name: str, **values: int) -> None:
        """Set the given fields of a register and keep its other fields."""
        register = self.map.register(name)
        word = self.bus.read(register.address)
        for field_name, value in values.items():
            word = register.insert(word, field_name, value)
        self.bus.write(register.address, word)
