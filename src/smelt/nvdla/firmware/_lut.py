"""Programming of lookup tables; SDP and CDP have the same registers for them."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final

from smelt.nvdla.loadable import Precision

if TYPE_CHECKING:
    from smelt.nvdla.firmware._context import OperationContext
    from smelt.nvdla.loadable import LutParameters

_EXPONENTIAL_TABLE, _LINEAR_TABLE = 0, 1
_WRITE: Final = 1
"""Value of LUT_ACCESS_TYPE for writing entries."""
_BYTE, _HALF_WORD, _WORD = 0xFF, 0xFFFF, 0xFFFFFFFF
_HIGH_BITS: Final = 0x3F
"""Mask of the high word of CDP's 38-bit bounds."""
_SHIFT_BITS: Final = 0x1F
"""Mask of a slope's shift."""


class LutMethod(IntEnum):
    """Indexing of the first table."""

    EXPONENTIAL = 0
    LINEAR = 1


def write_lut(context: OperationContext, block: str, table: int, precision: int) -> None:
    """Write both tables, their ranges and the slopes beyond the ranges, if they are not loaded yet.

    Args:
        context: The operation that uses the tables.
        block: ``SDP`` or ``CDP``.
        table: Index of the lookup table, or a negative number for none.
        precision: Precision of the values that are looked up.
    """
    if table < 0 or context.is_lut_loaded:
        return
    lut = context.read_lut(table)
    _write_table(context, block, _EXPONENTIAL_TABLE, lut.linear_exp_table)
    _write_table(context, block, _LINEAR_TABLE, lut.linear_only_table)
    method = context.check_enum(lut.method, len(LutMethod), "the lookup table's method")
    context.write(
        block,
        LUT_LE_FUNCTION=method,
        LUT_HYBRID_PRIORITY=lut.hybrid_priority,
        LUT_UFLOW_PRIORITY=lut.underflow_priority,
        LUT_OFLOW_PRIORITY=lut.overflow_priority,
    )
    index = "LUT_LE_INDEX_OFFSET" if method == LutMethod.EXPONENTIAL else "LUT_LE_INDEX_SELECT"
    context.write(
        block,
        **{index: lut.linear_exp_offset & _BYTE},
        LUT_LO_INDEX_SELECT=lut.linear_only_offset & _BYTE,
    )
    for name, value in (
        ("LE_START", lut.linear_exp_start),
        ("LE_END", lut.linear_exp_end),
        ("LO_START", lut.linear_only_start),
        ("LO_END", lut.linear_only_end),
    ):
        _write_bound(context, block, name, value)
    _write_slopes(context, block, lut, is_float=precision == Precision.FP16)


def _write_table(
    context: OperationContext, block: str, table: int, entries: tuple[int, ...]
) -> None:
    context.write(block, LUT_TABLE_ID=table, LUT_ACCESS_TYPE=_WRITE)
    registers = context.registers
    address = registers.map.register(f"{block}.S_LUT_ACCESS_DATA").address
    for entry in entries:  # the entry index auto-increments
        registers.bus.write(address, entry & _HALF_WORD)


def _write_bound(context: OperationContext, block: str, name: str, value: int) -> None:
    if block == "SDP":
        context.write_word(f"SDP.S_LUT_{name}", value & _WORD)
        return
    context.write_word(f"{block}.S_LUT_{name}_LOW", value & _WORD)
    context.write_word(f"{block}.S_LUT_{name}_HIGH", value >> 32 & _HIGH_BITS)


def _write_slopes(
    context: OperationContext, block: str, lut: LutParameters, *, is_float: bool
) -> None:
    """Write scale and shift of the slopes below and above both tables."""
    shift_bits = 0 if is_float else _SHIFT_BITS  # a slope in half precision needs no shift
    for table, name in (("LE", "linear_exp"), ("LO", "linear_only")):
        for part, mask in (("scale", _HALF_WORD), ("shift", shift_bits)):
            slopes = {
                f"LUT_{table}_SLOPE_{field}_{part.upper()}": mask
                & getattr(lut, f"{name}_{side}_{part}")
                for field, side in (("UFLOW", "underflow"), ("OFLOW", "overflow"))
            }
            context.write(block, **slopes)
