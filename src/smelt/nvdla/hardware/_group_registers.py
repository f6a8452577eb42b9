"""Access of an engine to the registers of one operation, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from smelt.nvdla._errors import NvError
from smelt.nvdla._protocols import MemorySpace, Precision
from smelt.nvdla.hardware._arithmetic import sign_extend
from smelt.nvdla.hardware._memory import Surface

if TYPE_CHECKING:
    from smelt.nvdla.registers import Register, RegisterMap


class GroupRegisters:
    """Registers of one block for one operation: those of its group, and the single ones."""

    def __init__(
        self, block: str, register_map: RegisterMap, single: dict[str, int], group: dict[str, int]
    ) -> None:
        self.block = block
        self._map = register_map
        self._single = single
        self._group = group

    def word(self, name: str) -> int:
        """Return a register's word."""
        return self._group[name] if name in self._group else self._single[name]

    def full_name(self, field: str) -> str:
        """Return block, register and name of a field, for messages."""
        return f"{self._owner(field).full_name}.{field}"

    def _owner(self, field: str) -> Register:
        return self._map.by_field[self.block, field]

    def get(self, field: str) -> int:
        """Return a field; its name says in which register of the block it is."""
        register = self._owner(field)
        return register.fields[field].extract(self.word(register.name))

    def signed(self, field: str) -> int:
        """Return a field as a signed number."""
        return sign_extend(self.get(field), self._owner(field).fields[field].width)

    def extents(self, prefix: str = "") -> tuple[int, int, int]:
        """Return a cube's width, height and channels, whose fields' names start with ``prefix``."""
        width, height, channels = (
            self.get(f"{prefix}{name}") + 1 for name in ("WIDTH", "HEIGHT", "CHANNEL")
        )
        return width, height, channels

    def address(self, low: str, high: str) -> int:
        """Return the 64-bit address in a pair of registers."""
        return (self.word(high) << 32) | self.word(low)

    def space(self, field: str) -> MemorySpace:
        """Return the memory space that a RAM_TYPE field selects."""
        return MemorySpace.DRAM if self.get(field) else MemorySpace.SRAM

    def surface(
        self, side: str, extents: tuple[int, int, int], atom_bytes: int, ram_type: str = ""
    ) -> Surface:
        """Return the source, destination or operand that the registers describe.

        Args:
            side: The name in its registers, such as ``SRC``.
            extents: Width, height and number of surfaces.
            atom_bytes: Size of an atom in bytes.
            ram_type: Field that selects the memory space, if it is not named after the side.
        """
        name = f"D_{side}_BASE_ADDR"
        return Surface(
            self.space(ram_type or f"{side}_RAM_TYPE"),
            self.address(f"{name}_LOW", f"{name}_HIGH"),
            self.word(f"D_{side}_LINE_STRIDE"),
            self.word(f"D_{side}_SURFACE_STRIDE"),
            *extents,
            atom_bytes,
            f"{self.block}.{name}",
        )

    def precision(self, field: str) -> Precision:
        """Return a precision field.

        Raises:
            NvdlaError: BAD_VALUE if the field has the reserved value 3.
        """
        value = self.get(field)
        if value > max(Precision):
            raise NvError.BAD_VALUE.error(
                f"{self.full_name(field)} is {value}, which is not a precision (0 to 2)"
            )
        return Precision(value)

    def report(self, **values: int) -> None:
        """Set counter or status registers to values, saturated to 32 bits."""
        for name, value in values.items():
            words = self._group if name in self._group else self._single
            words[name] = min(value, 0xFFFFFFFF)


def flush_nans(registers: GroupRegisters, values: np.ndarray) -> np.ndarray:
    """Replace the NaNs of fp16 values by 0 if that is programmed."""
    if registers.get("NAN_TO_ZERO"):
        return np.where(np.isnan(values), np.float16(0), values)
    return values
