"""Lookup tables of SDP and CDP for fp16: indices from fp32 differences, interpolation in FP17."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from smelt.nvdla.hardware._float import (
    FP17,
    FP32,
    add,
    fp16_from_bits,
    fp32_from_bits,
    multiply,
    round_to,
    subtract,
    widen,
)
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
    from collections.abc import Callable

    from smelt.nvdla.hardware._memory import Array, FloatArray
    from smelt.nvdla.hardware._operation import Counters

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
        _find_exponential(values, lut)
        if lut.is_exponential
        else _find_linear(values, lut.le.start, lut.le_index_select, LE_ENTRIES)
    )
    lo = _find_linear(values, lut.lo.start, lut.lo_index_select, LO_ENTRIES)
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


def _find_exponential(values: FloatArray, lut: Lut) -> Hit:
    distance = subtract(values, fp32_from_bits(lut.le.start), FP32)
    mantissa, exponent = np.frexp(distance)
    index = exponent.astype(np.int64) - 1 - lut.le_index_offset
    underflow = ~(distance > 0) | (index < 0)
    return _bounded(index, mantissa * 2 - 1, underflow, LE_ENTRIES)


def _find_linear(values: FloatArray, start: int, select: int, entries: int) -> Hit:
    distance = subtract(values, fp32_from_bits(start), FP32)
    underflow = ~(distance > 0)
    scaled = np.where(underflow, 0.0, distance) * 2.0**-select
    scaled = np.minimum(scaled, float(entries))
    index = np.floor(scaled)
    return _bounded(index.astype(np.int64), scaled - index, underflow, entries)


def _bounded(index: Array, fraction: np.ndarray, underflow: np.ndarray, entries: int) -> Hit:
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
