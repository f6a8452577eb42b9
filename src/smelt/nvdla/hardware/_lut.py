"""Lookup tables of SDP and CDP: an exponential or linear table (LE) and a linear one (LO).

The LE table has 65 entries, spaced exponentially or linearly; the LO table has 257 entries, spaced
linearly. Values below or above a table's range are extrapolated with a programmed slope.

For fp16, indices follow from fp32 differences, and FP17 numbers are interpolated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from smelt.nvdla.hardware._arithmetic import (
    FP17,
    FP32,
    add,
    fp16_from_bits,
    fp32_from_bits,
    multiply,
    round_to,
    saturate,
    shift_right_rounded,
    shift_signed_saturated,
    sign_extend,
    subtract,
    widen,
)

if TYPE_CHECKING:
    from smelt.nvdla.hardware._group_registers import GroupRegisters
    from smelt.nvdla.hardware._memory import Array, FloatArray
    from smelt.nvdla.hardware._running_operation import Counters


LE_ENTRIES, LO_ENTRIES = 65, 257
"""Numbers of entries of the two tables."""


@dataclass(frozen=True, slots=True)
class LutTable:
    """One table, its range, and the slopes outside it; fp16 operations reinterpret the words."""

    entries: Array
    index_select: int
    """Steps between entries of a linear table have the length 2**index_select."""
    start: int
    end: int
    underflow_scale: int
    underflow_shift: int
    overflow_scale: int
    overflow_shift: int


@dataclass(frozen=True, slots=True)
class Lut:
    """Both tables and their priorities."""

    le: LutTable
    lo: LutTable
    is_exponential: bool
    le_index_offset: int
    prefer_lo_underflow: bool
    prefer_lo_overflow: bool
    prefer_lo_hybrid: bool


@dataclass(frozen=True, slots=True)
class LutStyle:
    """Differences between the tables of SDP and CDP."""

    fraction_bits: int
    output_bits: int
    slope_bits: int
    """Width to which the product with a slope is clamped before it is added to the edge's entry."""
    adds_rounded_difference: bool
    """Whether interpolation rounds (high - low) * fraction, not the whole weighted sum."""
    counts_winners: bool
    """Whether a hit counts only if the other table misses, and a miss only if both tables miss on
    the same side."""
    adds_step_last: bool
    """Whether the edge's entry is the first operand of an fp16 sum, which determines the sign of a
    zero."""


SDP_STYLE = LutStyle(
    35, 32, 32, adds_rounded_difference=False, counts_winners=False, adds_step_last=True
)
CDP_STYLE = LutStyle(
    16, 16, 56, adds_rounded_difference=True, counts_winners=True, adds_step_last=False
)


@dataclass(frozen=True, slots=True)
class LutPositions:
    """Positions of values in one table."""

    index: Array
    fraction: np.ndarray
    underflow: np.ndarray
    overflow: np.ndarray

    @property
    def missed(self) -> np.ndarray:
        """Whether each value is outside the table's range."""
        return np.asarray(self.underflow | self.overflow)


def read_lut(registers: GroupRegisters, tables: tuple[list[int], list[int]]) -> Lut:
    """Return the tables that the registers of SDP or CDP describe."""

    def bound(name: str) -> int:
        if registers.block == "SDP":
            return sign_extend(registers.word(f"S_LUT_{name}"), 32)
        return sign_extend(registers.address(f"S_LUT_{name}_LOW", f"S_LUT_{name}_HIGH"), 38)

    def table(name: str, entries: list[int]) -> LutTable:
        return LutTable(
            np.array(entries, np.int64),
            registers.signed(f"LUT_{name}_INDEX_SELECT"),
            bound(f"{name}_START"),
            bound(f"{name}_END"),
            registers.signed(f"LUT_{name}_SLOPE_UFLOW_SCALE"),
            registers.signed(f"LUT_{name}_SLOPE_UFLOW_SHIFT"),
            registers.signed(f"LUT_{name}_SLOPE_OFLOW_SCALE"),
            registers.signed(f"LUT_{name}_SLOPE_OFLOW_SHIFT"),
        )

    return Lut(
        le=table("LE", tables[0]),
        lo=table("LO", tables[1]),
        is_exponential=registers.get("LUT_LE_FUNCTION") == 0,
        le_index_offset=registers.signed("LUT_LE_INDEX_OFFSET"),
        prefer_lo_underflow=bool(registers.get("LUT_UFLOW_PRIORITY")),
        prefer_lo_overflow=bool(registers.get("LUT_OFLOW_PRIORITY")),
        prefer_lo_hybrid=bool(registers.get("LUT_HYBRID_PRIORITY")),
    )


def look_up(values: Array, lut: Lut, counters: Counters, style: LutStyle) -> Array:
    """Return the values of the tables' function for integers, and count hits and misses."""
    bits = style.fraction_bits
    le = (
        _find_exponential(values, lut, bits)
        if lut.is_exponential
        else _find_linear(values, lut.le, bits)
    )
    lo = _find_linear(values, lut.lo, bits)
    use_lo = _choose_lo(le, lo, lut, counters, counts_winners=style.counts_winners)
    bias = 0
    lowest = 0 if style.counts_winners else 1  # SDP adds nothing for an offset of 0
    if lut.is_exponential and lut.le_index_offset >= lowest:
        bias = 1 << min(lut.le_index_offset, 62)
    from_le = _evaluate(values, le, lut.le, bias, style)
    from_lo = _evaluate(values, lo, lut.lo, 0, style)
    return np.where(use_lo, from_lo, from_le)


def _choose_lo(
    le: LutPositions, lo: LutPositions, lut: Lut, counters: Counters, *, counts_winners: bool
) -> np.ndarray:
    """Return where the result of the LO table is used, and count the hits and misses."""
    alone = np.where(le.missed == lo.missed, lut.prefer_lo_hybrid, le.missed)
    both_over = np.where(le.overflow & lo.overflow, lut.prefer_lo_overflow, alone)
    use_lo = np.where(le.underflow & lo.underflow, lut.prefer_lo_underflow, both_over)
    if counts_winners:
        underflow = int((le.underflow & lo.underflow).sum())
        overflow = int((le.overflow & lo.overflow).sum())
        le_hit = int((~le.missed & lo.missed).sum())
        lo_hit = int((le.missed & ~lo.missed).sum())
        hybrid = int(use_lo.size) - underflow - overflow - le_hit - lo_hit
    else:
        underflow = int(np.where(use_lo, lo.underflow, le.underflow).sum())
        overflow = int(np.where(use_lo, lo.overflow, le.overflow).sum())
        le_hit = int((~le.missed).sum())
        lo_hit = int((~lo.missed).sum())
        hybrid = int(use_lo.size) - underflow - overflow
    counters.lut.update(
        UFLOW=underflow, OFLOW=overflow, HYBRID=hybrid, LE_HIT=le_hit, LO_HIT=lo_hit
    )
    return use_lo


def _find_exponential(values: Array, lut: Lut, fraction_bits: int) -> LutPositions:
    """Return the positions of values in an exponential table."""
    distance = values - lut.le.start
    positive = distance > 0
    safe = np.where(positive, distance, 1)
    exponent = np.frexp(safe.astype(np.float64))[1].astype(np.int64) - 1
    remainder = safe - (np.int64(1) << exponent)
    fraction = np.where(
        exponent <= fraction_bits,
        remainder << np.clip(fraction_bits - exponent, 0, 62),
        remainder >> np.clip(exponent - fraction_bits, 0, 62),
    )
    index = exponent - lut.le_index_offset
    underflow = ~positive | (index < 0)
    return _bounded(index, fraction, underflow, LE_ENTRIES)


def _find_linear(values: Array, table: LutTable, fraction_bits: int) -> LutPositions:
    """Return the positions of values in a linear table."""
    entries, select = table.entries.size, table.index_select
    distance = np.maximum(values - table.start, 0)
    if select <= 0:
        index = np.minimum(distance, entries) << min(-select, 40)
        fraction = np.zeros_like(distance)
    else:
        select = min(select, 62)
        index = distance >> select
        remainder = distance & ((1 << select) - 1)
        fraction = (
            remainder << (fraction_bits - select)
            if select <= fraction_bits
            else remainder >> (select - fraction_bits)
        )
    return _bounded(index, fraction, values <= table.start, entries)


def _bounded(
    index: Array, fraction: np.ndarray, underflow: np.ndarray, entries: int
) -> LutPositions:
    overflow = ~underflow & (index >= entries - 1)
    index = np.where(underflow, 0, np.where(overflow, entries - 1, index))
    fraction = np.where(underflow | overflow, 0, fraction)
    return LutPositions(index, fraction, underflow, overflow)


def _evaluate(
    values: Array, lookup: LutPositions, table: LutTable, bias: int, style: LutStyle
) -> Array:
    """Interpolate inside a table and extrapolate outside it."""
    bits = style.fraction_bits
    low = table.entries[lookup.index]
    high = table.entries[np.minimum(lookup.index + 1, table.entries.size - 1)]
    if style.adds_rounded_difference:
        between = low + shift_right_rounded((high - low) * lookup.fraction, bits)
    else:
        one = np.int64(1) << bits
        between = shift_right_rounded(low * (one - lookup.fraction) + high * lookup.fraction, bits)
    inside = saturate(between, style.output_bits)
    if not lookup.missed.any():
        return inside
    under = (values - (table.start + bias)) * table.underflow_scale
    over = (values - table.end) * table.overflow_scale
    outside = np.where(
        lookup.underflow,
        shift_signed_saturated(under, table.underflow_shift, style.slope_bits),
        shift_signed_saturated(over, table.overflow_shift, style.slope_bits),
    )
    return np.where(lookup.missed, saturate(low + outside, style.output_bits), inside)


def look_up_fp16(values: FloatArray, lut: Lut, counters: Counters, style: LutStyle) -> FloatArray:
    """Return the values of the tables' function for fp32; entries and slopes are fp16 words."""
    le = (
        _find_exponential_fp16(values, lut)
        if lut.is_exponential
        else _find_linear_fp16(values, lut.le)
    )
    lo = _find_linear_fp16(values, lut.lo)
    use_lo = _choose_lo(le, lo, lut, counters, counts_winners=style.counts_winners)
    results: list[FloatArray] = []
    for lookup, table, is_exponential in ((le, lut.le, lut.is_exponential), (lo, lut.lo, False)):
        bias = 2.0**lut.le_index_offset if is_exponential and lut.le_index_offset > -127 else 0.0
        entries = widen(table.entries.astype(np.uint16).view(np.float16), FP17)
        low = entries[lookup.index]
        high = entries[np.minimum(lookup.index + 1, entries.size - 1)]
        step = _step_outside(values, lookup, table, bias)
        outside = add(low, step, FP17) if style.adds_step_last else add(step, low, FP17)
        inside = _between_fp16(low, high, lookup.fraction, style)
        results.append(np.where(lookup.missed, outside, inside))
    return np.where(use_lo, results[1], results[0])


def _find_exponential_fp16(values: FloatArray, lut: Lut) -> LutPositions:
    distance = subtract(values, fp32_from_bits(lut.le.start), FP32)
    mantissa, exponent = np.frexp(distance)
    index = exponent.astype(np.int64) - 1 - lut.le_index_offset
    underflow = ~(distance > 0) | (index < 0)
    return _bounded(index, mantissa * 2 - 1, underflow, LE_ENTRIES)


def _find_linear_fp16(values: FloatArray, table: LutTable) -> LutPositions:
    entries = table.entries.size
    distance = subtract(values, fp32_from_bits(table.start), FP32)
    underflow = ~(distance > 0)
    scaled = np.where(underflow, 0.0, distance) * 2.0**-table.index_select
    scaled = np.minimum(scaled, float(entries))
    index = np.floor(scaled)
    return _bounded(index.astype(np.int64), scaled - index, underflow, entries)


def _between_fp16(
    low: FloatArray, high: FloatArray, fraction: np.ndarray, style: LutStyle
) -> FloatArray:
    """Interpolate between two entries."""
    unit = 2.0**style.fraction_bits
    fraction = np.floor(fraction * unit) / unit
    if style.adds_rounded_difference:
        difference = round_to(subtract(high, low, FP32), FP17)
        return add(multiply(difference, round_to(fraction, FP17), FP17), low, FP17)
    first = multiply(round_to(1.0 - fraction, FP17), low, FP17)
    second = multiply(round_to(fraction, FP17), high, FP17)
    return add(first, second, FP17)


def _step_outside(
    values: FloatArray, lookup: LutPositions, table: LutTable, bias: float
) -> FloatArray:
    """Return the product with the slope that is added to the edge's entry outside a table."""
    start = add(fp32_from_bits(table.start), np.array(bias), FP32)
    under = subtract(values, start, FP32)
    over = subtract(values, fp32_from_bits(table.end), FP32)
    distance = round_to(np.where(lookup.underflow, under, over), FP17)
    scale = np.where(
        lookup.underflow,
        fp16_from_bits(table.underflow_scale, FP17),
        fp16_from_bits(table.overflow_scale, FP17),
    )
    return multiply(distance, scale, FP17)
