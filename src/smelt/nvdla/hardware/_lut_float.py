"""The look-up tables on fp16: indices from fp32 differences, interpolation in FP17."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from smelt.nvdla.hardware._float import fp16_from_bits, fp32_from_bits, round_to_fp17
from smelt.nvdla.hardware._lut import (
    LE_ENTRIES,
    LO_ENTRIES,
    Hit,
    Lut,
    Range,
    choose_lo,
    count_hits,
)

if TYPE_CHECKING:
    from smelt.nvdla.hardware._memory import Array, FloatArray
    from smelt.nvdla.hardware._operation import Counters


def look_up_fp16(values: FloatArray, lut: Lut, counters: Counters) -> FloatArray:
    """Return the tables' function of fp32 values; entries and slopes are fp16 words."""
    le = (
        _find_exponential(values, lut)
        if lut.is_exponential
        else _find_linear(values, lut.le.start, lut.le_index_select, LE_ENTRIES)
    )
    lo = _find_linear(values, lut.lo.start, lut.lo_index_select, LO_ENTRIES)
    use_lo = choose_lo(le, lo, lut)
    count_hits(le, lo, use_lo, counters, counts_winners=False)
    bias = np.float32(2.0**lut.le_index_offset) if lut.is_exponential else np.float32(0)
    from_le = _evaluate(values, le, lut.le_table, lut.le, bias)
    from_lo = _evaluate(values, lo, lut.lo_table, lut.lo, np.float32(0))
    return np.where(use_lo, from_lo, from_le)


def _find_exponential(values: FloatArray, lut: Lut) -> Hit:
    distance = values - fp32_from_bits(lut.le.start)
    mantissa, exponent = np.frexp(distance)
    index = exponent.astype(np.int64) - 1 - lut.le_index_offset
    fraction = mantissa.astype(np.float64) * 2 - 1
    underflow = ~(distance > 0) | (index < 0)
    return _bounded(index, fraction, underflow, LE_ENTRIES)


def _find_linear(values: FloatArray, start: int, select: int, entries: int) -> Hit:
    distance = values - fp32_from_bits(start)
    underflow = ~(distance > 0)
    scaled = np.where(underflow, 0.0, distance.astype(np.float64)) * 2.0**-select
    scaled = np.minimum(scaled, float(entries))
    index = np.floor(scaled)
    return _bounded(index.astype(np.int64), scaled - index, underflow, entries)


def _bounded(index: Array, fraction: np.ndarray, underflow: np.ndarray, entries: int) -> Hit:
    overflow = ~underflow & (index >= entries - 1)
    index = np.where(underflow, 0, np.where(overflow, entries - 1, index))
    return Hit(index, np.where(underflow | overflow, 0.0, fraction), underflow, overflow)


def _evaluate(
    values: FloatArray, hit: Hit, table: Array, edge: Range, bias: np.float32
) -> FloatArray:
    entries = table.astype(np.uint16).view(np.float16).astype(np.float32)
    low = entries[hit.index]
    high = entries[np.minimum(hit.index + 1, table.size - 1)]
    first = round_to_fp17(round_to_fp17(1.0 - hit.fraction) * low)
    second = round_to_fp17(round_to_fp17(hit.fraction) * high)
    inside = round_to_fp17(first + second)
    outside = _outside(values, hit, low, edge, bias)
    return np.where(hit.missed, outside, inside)


def look_up_cdp_fp16(values: FloatArray, lut: Lut, counters: Counters) -> FloatArray:
    """Return CDP's function of fp32 sums: fractions of 16 bits, one product an interpolation."""
    le = (
        _find_exponential(values, lut)
        if lut.is_exponential
        else _find_linear(values, lut.le.start, lut.le_index_select, LE_ENTRIES)
    )
    lo = _find_linear(values, lut.lo.start, lut.lo_index_select, LO_ENTRIES)
    use_lo = choose_lo(le, lo, lut)
    count_hits(le, lo, use_lo, counters, counts_winners=True)
    bias = np.float32(0)
    if lut.is_exponential and lut.le_index_offset > -127:
        bias = np.float32(2.0**lut.le_index_offset)
    from_le = _evaluate_cdp(values, le, lut.le_table, lut.le, bias)
    from_lo = _evaluate_cdp(values, lo, lut.lo_table, lut.lo, np.float32(0))
    return np.where(use_lo, from_lo, from_le)


def _evaluate_cdp(
    values: FloatArray, hit: Hit, table: Array, edge: Range, bias: np.float32
) -> FloatArray:
    entries = table.astype(np.uint16).view(np.float16).astype(np.float32)
    low = entries[hit.index]
    high = entries[np.minimum(hit.index + 1, table.size - 1)]
    fraction = round_to_fp17(np.floor(hit.fraction * 65536.0) / 65536.0)
    inside = round_to_fp17(low + round_to_fp17(round_to_fp17(high - low) * fraction))
    outside = _outside(values, hit, low, edge, bias)
    return np.where(hit.missed, outside, inside)


def _outside(
    values: FloatArray, hit: Hit, low: FloatArray, edge: Range, bias: np.float32
) -> FloatArray:
    under = values - (fp32_from_bits(edge.start) + bias)
    over = values - fp32_from_bits(edge.end)
    distance = round_to_fp17(np.where(hit.underflow, under, over))
    scale = np.where(
        hit.underflow, fp16_from_bits(edge.underflow_scale), fp16_from_bits(edge.overflow_scale)
    )
    return round_to_fp17(low + round_to_fp17(distance * scale))
