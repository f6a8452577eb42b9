"""Access of an engine to the registers of one operation, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smelt.nvdla._status import NvdlaError, NvError
from smelt.nvdla.hardware._arithmetic import sign_extend
from smelt.nvdla.hardware._configuration import Precision
from smelt.nvdla.hardware._memory import require_space

if TYPE_CHECKING:
    from smelt.nvdla._protocols import MemorySpace
    from smelt.nvdla.registers import RegisterMap


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

    def get(self, name: str, field: str) -> int:
        """Return a field of a register."""
        register = self._map.registers[f"{self.block}.{name}"]
        return register.fields[field].extract(self.word(name))

    def signed(self, name: str, field: str) -> int:
        """Return a field of a register as a signed number."""
        register = self._map.registers[f"{self.block}.{name}"]
        item = register.fields[field]
        return sign_extend(item.extract(self.word(name)), item.width)

    def address(self, low: str, high: str) -> int:
        """Return the 64-bit address in a pair of registers."""
        return (self.word(high) << 32) | self.word(low)

    def space(self, name: str, field: str) -> MemorySpace:
        """Return the memory space that a RAM_TYPE field selects."""
        return require_space(self.get(name, field))

    def precision(self, name: str, field: str) -> Precision:
        """Return a precision field.

        Raises:
            NvdlaError: BAD_VALUE if the field has the reserved value 3.
        """
        value = self.get(name, field)
        if value > max(Precision):
            raise NvdlaError(
                NvError.BAD_VALUE,
                f"{self.block}.{name}.{field} is {value}, which is not a precision (0 to 2)",
            )
        return Precision(value)

    def report(self, name: str, value: int) -> None:
        """Set a counter or status register to a value, saturated to 32 bits."""
        words = self._group if name in self._group else self._single
        words[name] = min(value, 0xFFFFFFFF)
