"""Lookup tables of SDP and CDP for integers: an exponential or linear table and a linear one.

The LE table has 65 entries, spaced exponentially or linearly; the LO table has 257 entries, spaced
linearly. Values below or above a table's range are extrapolated with a programmed slope.

Lookup tables of SDP and CDP for fp16: indices from fp32 differences, interpolation in FP17.
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
    subtract,
    widen,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from smelt.nvdla.hardware._memory import Array, FloatArray
    from smelt.nvdla.hardware._operation import Counters
    from smelt.nvdla.hardware._state import GroupRegisters


LE_ENTRIES, LO_ENTRIES = 65, 257
"""Numbers of entries of the two tables."""


@dataclass(frozen=True, slots=True)
class Range:
    """Range of a table, and the slopes outside it."""

    start: int
    end: int
    underflow_scale: int
    underflow_shift: int
    overflow_scale: int
    overflow_shift: int


@dataclass(frozen=True, slots=True)
class Lut:
    """Both tables, their ranges and priorities; fp16 operations reinterpret the raw words."""

    le_table: Array
    lo_table: Array
    le: Range
    lo: Range
    is_exponential: bool
    le_index_offset: int
    le_index_select: int
    lo_index_select: int
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


SDP_STYLE = LutStyle(35, 32, 32, adds_rounded_difference=False, counts_winners=False)
CDP_STYLE = LutStyle(16, 16, 56, adds_rounded_difference=True, counts_winners=True)


@dataclass(frozen=True, slots=True)
class Hit:
    """Positions of values in one table."""

    index: Array
    fraction: np.ndarray
    underflow: np.ndarray
    overflow: np.ndarray

    @property
    def missed(self) -> np.ndarray:
        """Whether each value is outside the table's range."""
        missed: np.ndarray = self.underflow | self.overflow
        return missed


def read_lut(
    registers: GroupRegisters, tables: tuple[list[int], list[int]], ends: dict[str, int]
) -> Lut:
    """Return the tables that a block's registers describe; ``ends`` has their starts and ends."""

    def table_range(name: str) -> Range:
        scale, shift = f"S_LUT_{name}_SLOPE_SCALE", f"S_LUT_{name}_SLOPE_SHIFT"
        return Range(
            ends[f"{name}_START"],
            ends[f"{name}_END"],
            registers.signed(scale, f"LUT_{name}_SLOPE_UFLOW_SCALE"),
            registers.signed(shift, f"LUT_{name}_SLOPE_UFLOW_SHIFT"),
            registers.signed(scale, f"LUT_{name}_SLOPE_OFLOW_SCALE"),
            registers.signed(shift, f"LUT_{name}_SLOPE_OFLOW_SHIFT"),
        )

    return Lut(
        le_table=np.array(tables[0], np.int64),
        lo_table=np.array(tables[1], np.int64),
        le=table_range("LE"),
        lo=table_range("LO"),
        is_exponential=registers.get("S_LUT_CFG", "LUT_LE_FUNCTION") == 0,
        le_index_offset=registers.signed("S_LUT_INFO", "LUT_LE_INDEX_OFFSET"),
        le_index_select=registers.signed("S_LUT_INFO", "LUT_LE_INDEX_SELECT"),
        lo_index_select=registers.signed("S_LUT_INFO", "LUT_LO_INDEX_SELECT"),
        prefer_lo_underflow=bool(registers.get("S_LUT_CFG", "LUT_UFLOW_PRIORITY")),
        prefer_lo_overflow=bool(registers.get("S_LUT_CFG", "LUT_OFLOW_PRIORITY")),
        prefer_lo_hybrid=bool(registers.get("S_LUT_CFG", "LUT_HYBRID_PRIORITY")),
    )


def look_up(values: Array, lut: Lut, counters: Counters, style: LutStyle) -> Array:
    """Return the values of the tables' function for integers, and count hits and misses."""
    bits = style.fraction_bits
    le = (
        _find_exponential(values, lut, bits)
        if lut.is_exponential
        else _find_linear(values, lut.le.start, lut.le_index_select, LE_ENTRIES, bits)
    )
    lo = _find_linear(values, lut.lo.start, lut.lo_index_select, LO_ENTRIES, bits)
    use_lo = choose_lo(le, lo, lut)
    count_hits(le, lo, use_lo, counters, counts_winners=style.counts_winners)
    bias = 0
    lowest = 0 if style.counts_winners else 1  # SDP adds nothing for an offset of 0
    if lut.is_exponential and lut.le_index_offset >= lowest:
        bias = 1 << min(lut.le_index_offset, 62)
    from_le = _evaluate(values, le, lut.le_table, lut.le, bias, style)
    from_lo = _evaluate(values, lo, lut.lo_table, lut.lo, 0, style)
    return np.where(use_lo, from_lo, from_le)


def choose_lo(le: Hit, lo: Hit, lut: Lut) -> np.ndarray:
    """Return where the result of the LO table is used."""
    hybrid = np.where(le.missed == lo.missed, lut.prefer_lo_hybrid, le.missed)
    both_over = np.where(le.overflow & lo.overflow, lut.prefer_lo_overflow, hybrid)
    return np.where(le.underflow & lo.underflow, lut.prefer_lo_underflow, both_over)


def count_hits(
    le: Hit, lo: Hit, use_lo: np.ndarray, counters: Counters, *, counts_winners: bool
) -> None:
    """Add the hits and misses of both tables to the counters."""
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
    counters.lut_underflow += underflow
    counters.lut_overflow += overflow
    counters.lut_hybrid += hybrid
    counters.lut_le_hit += le_hit
    counters.lut_lo_hit += lo_hit


def _find_exponential(values: Array, lut: Lut, fraction_bits: int) -> Hit:
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


def _find_linear(values: Array, start: int, select: int, entries: int, fraction_bits: int) -> Hit:
    """Return the positions of values in a linear table with steps of 2**select."""
    distance = np.maximum(values - start, 0)
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
    return _bounded(index, fraction, values <= start, entries)


def _bounded(index: Array, fraction: Array, underflow: np.ndarray, entries: int) -> Hit:
    overflow = ~underflow & (index >= entries - 1)
    index = np.where(underflow, 0, np.where(overflow, entries - 1, index))
    fraction = np.where(underflow | overflow, 0, fraction)
    return Hit(index, fraction, underflow, overflow)


def _evaluate(
    values: Array, hit: Hit, table: Array, edge: Range, bias: int, style: LutStyle
) -> Array:
    """Interpolate inside a table and extrapolate outside it."""
    bits = style.fraction_bits
    low = table[hit.index]
    high = table[np.minimum(hit.index + 1, table.size - 1)]
    if style.adds_rounded_difference:
        between = low + shift_right_rounded((high - low) * hit.fraction, bits)
    else:
        one = np.int64(1) << bits
        between = shift_right_rounded(low * (one - hit.fraction) + high * hit.fraction, bits)
    inside = saturate(between, style.output_bits)
    if not hit.missed.any():
        return inside
    under = (values - (edge.start + bias)) * edge.underflow_scale
    over = (values - edge.end) * edge.overflow_scale
    outside = np.where(
        hit.underflow,
        shift_signed_saturated(under, edge.underflow_shift, style.slope_bits),
        shift_signed_saturated(over, edge.overflow_shift, style.slope_bits),
    )
    return np.where(hit.missed, saturate(low + outside, style.output_bits), inside)


_SDP_FRACTION, _CDP_FRACTION = 2.0**35, 2.0**16


@dataclass(frozen=True, slots=True)
class _LutVariant:
    """Differences between the tables of SDP and CDP."""

    between: Callable[[FloatArray, FloatArray, np.ndarray], FloatArray]
    """Function that interpolates between two entries."""
    counts_winners: bool
    """As `LutStyle.counts_winners`."""
    adds_step_last: bool
    """Whether the edge's entry is the first operand, which determines the sign of a zero sum."""


def look_up_fp16(values: FloatArray, lut: Lut, counters: Counters) -> FloatArray:
    """Return the values of SDP's function for fp32 values; entries and slopes are fp16 words."""
    return _look_up(values, lut, counters, _SDP)


def look_up_cdp_fp16(values: FloatArray, lut: Lut, counters: Counters) -> FloatArray:
    """Return the values of CDP's function for fp32 sums.

    Fractions have 16 bits, and an interpolation has one product.
    """
    return _look_up(values, lut, counters, _CDP)


def _look_up(values: FloatArray, lut: Lut, counters: Counters, style: _LutVariant) -> FloatArray:
    """Evaluate both tables and choose between them."""
    le = (
        _find_exponential_fp16(values, lut)
        if lut.is_exponential
        else _find_linear_fp16(values, lut.le.start, lut.le_index_select, LE_ENTRIES)
    )
    lo = _find_linear_fp16(values, lut.lo.start, lut.lo_index_select, LO_ENTRIES)
    use_lo = choose_lo(le, lo, lut)
    count_hits(le, lo, use_lo, counters, counts_winners=style.counts_winners)
    results: list[FloatArray] = []
    for hit, table, edge, is_exponential in (
        (le, lut.le_table, lut.le, lut.is_exponential),
        (lo, lut.lo_table, lut.lo, False),
    ):
        bias = 2.0**lut.le_index_offset if is_exponential and lut.le_index_offset > -127 else 0.0
        entries = widen(table.astype(np.uint16).view(np.float16), FP17)
        low = entries[hit.index]
        high = entries[np.minimum(hit.index + 1, table.size - 1)]
        step = _step_outside(values, hit, edge, bias)
        outside = add(low, step, FP17) if style.adds_step_last else add(step, low, FP17)
        results.append(np.where(hit.missed, outside, style.between(low, high, hit.fraction)))
    return np.where(use_lo, results[1], results[0])


def _find_exponential_fp16(values: FloatArray, lut: Lut) -> Hit:
    distance = subtract(values, fp32_from_bits(lut.le.start), FP32)
    mantissa, exponent = np.frexp(distance)
    index = exponent.astype(np.int64) - 1 - lut.le_index_offset
    underflow = ~(distance > 0) | (index < 0)
    return _bounded_fp16(index, mantissa * 2 - 1, underflow, LE_ENTRIES)


def _find_linear_fp16(values: FloatArray, start: int, select: int, entries: int) -> Hit:
    distance = subtract(values, fp32_from_bits(start), FP32)
    underflow = ~(distance > 0)
    scaled = np.where(underflow, 0.0, distance) * 2.0**-select
    scaled = np.minimum(scaled, float(entries))
    index = np.floor(scaled)
    return _bounded_fp16(index.astype(np.int64), scaled - index, underflow, entries)


def _bounded_fp16(index: Array, fraction: np.ndarray, underflow: np.ndarray, entries: int) -> Hit:
    overflow = ~underflow & (index >= entries - 1)
    index = np.where(underflow, 0, np.where(overflow, entries - 1, index))
    return Hit(index, np.where(underflow | overflow, 0.0, fraction), underflow, overflow)


def _between_weighted(low: FloatArray, high: FloatArray, fraction: np.ndarray) -> FloatArray:
    fraction = np.floor(fraction * _SDP_FRACTION) / _SDP_FRACTION
    first = multiply(round_to(1.0 - fraction, FP17), low, FP17)
    second = multiply(round_to(fraction, FP17), high, FP17)
    return add(first, second, FP17)


def _between_difference(low: FloatArray, high: FloatArray, fraction: np.ndarray) -> FloatArray:
    fraction = round_to(np.floor(fraction * _CDP_FRACTION) / _CDP_FRACTION, FP17)
    difference = round_to(subtract(high, low, FP32), FP17)
    return add(multiply(difference, fraction, FP17), low, FP17)


def _step_outside(values: FloatArray, hit: Hit, edge: Range, bias: float) -> FloatArray:
    """Return the product with the slope that is added to the edge's entry outside a table."""
    start = add(fp32_from_bits(edge.start), np.array(bias), FP32)
    under = subtract(values, start, FP32)
    over = subtract(values, fp32_from_bits(edge.end), FP32)
    distance = round_to(np.where(hit.underflow, under, over), FP17)
    scale = np.where(
        hit.underflow,
        fp16_from_bits(edge.underflow_scale, FP17),
        fp16_from_bits(edge.overflow_scale, FP17),
    )
    return multiply(distance, scale, FP17)


_SDP = _LutVariant(_between_weighted, counts_winners=False, adds_step_last=True)
_CDP = _LutVariant(_between_difference, counts_winners=True, adds_step_last=False)
