"""The two look-up tables of the single-point and the cross-channel processor.

Source: NVDLA documentation, LUT programming, and its architecture figure. LE is the table X
(65 entries, exponential or linear), LO the table Y (257, linear). The single-point processor
interpolates with 35 bits of fraction and saturates to 32, the cross-channel one with 16 and 16.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, IntEnum
from fractions import Fraction
from typing import Final

from tests.nvdla.scalar.arithmetic import saturate, shift_right, shift_signed
from tests.nvdla.scalar.floats import Number, floor_log2

LE_STEPS: Final = 64
LO_STEPS: Final = 256


class Function(IntEnum):
    """What LUT_LE_FUNCTION says."""

    EXPONENT = 0
    LINEAR = 1


class Table(IntEnum):
    """A table, with the number that priorities hold."""

    LE = 0
    LO = 1


class Place(Enum):
    """Where a sample lies, seen from one table."""

    HIT = 0
    UNDERFLOW = 1
    OVERFLOW = 2


@dataclass(frozen=True, slots=True)
class Slope:
    """A line beyond a table's end: a scale, and a shift that is right where positive."""

    scale: int = 0
    shift: int = 0


@dataclass(frozen=True, slots=True)
class TableSettings:
    """One table: entries, range, step and slopes.

    ``select`` is the power of two between entries of a linear table, ``index_offset`` the power of
    two of an exponential table's first entry.
    """

    entries: tuple[int, ...] = field(repr=False)
    start: int
    end: int
    select: int = 0
    function: Function = Function.LINEAR
    index_offset: int = 0
    underflow: Slope = Slope()
    overflow: Slope = Slope()


@dataclass(frozen=True, slots=True)
class Priorities:
    """Which table answers where both lie below, both above, or both or neither hit (S_LUT_CFG)."""

    underflow: Table = Table.LE
    overflow: Table = Table.LE
    hybrid: Table = Table.LE


LE_FIRST: Final = Priorities()


@dataclass(frozen=True, slots=True)
class Lut:
    """Both tables and who goes first."""

    le: TableSettings
    lo: TableSettings
    priorities: Priorities = LE_FIRST


@dataclass(frozen=True, slots=True)
class LutWidths:
    """What differs between the two processors."""

    fraction_bits: int
    output_bits: int


SDP_WIDTHS: Final = LutWidths(fraction_bits=35, output_bits=32)
CDP_WIDTHS: Final = LutWidths(fraction_bits=16, output_bits=16)


@dataclass(slots=True)
class LutStatistics:
    """The counters of section "LUT Statistics"."""

    le_hits: int = 0
    lo_hits: int = 0
    underflows: int = 0
    overflows: int = 0
    hybrids: int = 0


def look_up(lut: Lut, value: int, widths: LutWidths, counts: LutStatistics) -> int:
    """Return the answer of both tables to one whole number, and count what happened.

    Source: LUT programming, "Hit/Miss behavior".
    """
    places = {Table.LE: _locate(lut.le, value), Table.LO: _locate(lut.lo, value)}
    table = _select(lut.priorities, places[Table.LE], places[Table.LO], counts)
    settings = lut.le if table is Table.LE else lut.lo
    if places[table] is Place.HIT:
        return _interpolate(settings, value, widths)
    return _extrapolate(settings, value, places[table], widths)


def _select(priorities: Priorities, le: Place, lo: Place, counts: LutStatistics) -> Table:
    """Choose a table and count."""
    if le is lo is Place.UNDERFLOW:
        counts.underflows += 1
        return priorities.underflow
    if le is lo is Place.OVERFLOW:
        counts.overflows += 1
        return priorities.overflow
    if (le is Place.HIT) == (lo is Place.HIT):
        counts.hybrids += 1
        return priorities.hybrid
    if le is Place.HIT:
        counts.le_hits += 1
        return Table.LE
    counts.lo_hits += 1
    return Table.LO


def _locate(settings: TableSettings, value: int) -> Place:
    """Tell where a sample lies; the start itself counts as below, the end as above."""
    distance = value - settings.start
    if distance <= 0:
        return Place.UNDERFLOW
    index = _index(settings, distance)
    if index < 0:
        return Place.UNDERFLOW
    return Place.OVERFLOW if index >= len(settings.entries) - 1 else Place.HIT


def _index(settings: TableSettings, distance: int) -> int:
    """Return the entry below a sample (sections "Exponential mode" and "Linear mode")."""
    if settings.function is Function.EXPONENT:
        return distance.bit_length() - 1 - settings.index_offset
    return distance >> settings.select if settings.select >= 0 else distance << -settings.select


def _fraction(settings: TableSettings, distance: int, bits: int) -> int:
    """Return how far a sample is above its entry, in ``bits`` bits; lower ones are dropped."""
    exponent = settings.select
    if settings.function is Function.EXPONENT:
        exponent = distance.bit_length() - 1
    if exponent <= 0:
        return 0
    rest = distance & (1 << exponent) - 1
    return rest << bits - exponent if exponent <= bits else rest >> exponent - bits


def _interpolate(settings: TableSettings, value: int, widths: LutWidths) -> int:
    distance = value - settings.start
    index = _index(settings, distance)
    fraction = _fraction(settings, distance, widths.fraction_bits)
    below, above = settings.entries[index], settings.entries[index + 1]
    mixed = below * ((1 << widths.fraction_bits) - fraction) + above * fraction
    return saturate(shift_right(mixed, widths.fraction_bits), widths.output_bits)


def _extrapolate(settings: TableSettings, value: int, place: Place, widths: LutWidths) -> int:
    """Continue the table by a line (section "Out-of-range control").

    An exponential table's first entry belongs to ``start + 2 ** index_offset``.
    """
    if place is Place.OVERFLOW:
        edge, entry, slope = settings.end, settings.entries[-1], settings.overflow
    else:
        edge, entry, slope = settings.start, settings.entries[0], settings.underflow
        if settings.function is Function.EXPONENT and settings.index_offset >= 0:
            edge += 1 << settings.index_offset
    moved = shift_signed((value - edge) * slope.scale, slope.shift)
    return saturate(entry + moved, widths.output_bits)


@dataclass(frozen=True, slots=True)
class FloatTable:
    """One table in fp16: entries and slopes are halves, start and end singles, all as fractions."""

    entries: tuple[Fraction, ...] = field(repr=False)
    start: Fraction
    end: Fraction
    select: int = 0
    function: Function = Function.LINEAR
    index_offset: int = 0
    underflow_slope: Fraction = Fraction(0)
    overflow_slope: Fraction = Fraction(0)


@dataclass(frozen=True, slots=True)
class FloatLut:
    """Both tables in fp16."""

    le: FloatTable
    lo: FloatTable
    priorities: Priorities = LE_FIRST


def look_up_float(lut: FloatLut, value: Number) -> Number:
    """Return the exact answer of both tables to one number; no step of it is rounded.

    Source: as ``look_up``; shifts of slopes are not used in fp16 ("Out-of-range control"). Where
    the documentation has only a threshold, compare with one.
    """
    if value is None:
        return None
    places = {Table.LE: _locate_float(lut.le, value), Table.LO: _locate_float(lut.lo, value)}
    table = _select(lut.priorities, places[Table.LE], places[Table.LO], LutStatistics())
    settings = lut.le if table is Table.LE else lut.lo
    if places[table] is Place.HIT:
        index, fraction = _split_float(settings, value - settings.start)
        return settings.entries[index] * (1 - fraction) + settings.entries[index + 1] * fraction
    if places[table] is Place.OVERFLOW:
        return settings.entries[-1] + (value - settings.end) * settings.overflow_slope
    edge = settings.start
    if settings.function is Function.EXPONENT:
        edge += Fraction(2) ** settings.index_offset
    return settings.entries[0] + (value - edge) * settings.underflow_slope


def _locate_float(settings: FloatTable, value: Fraction) -> Place:
    distance = value - settings.start
    if distance <= 0:
        return Place.UNDERFLOW
    index, _ = _split_float(settings, distance)
    if index < 0:
        return Place.UNDERFLOW
    return Place.OVERFLOW if index >= len(settings.entries) - 1 else Place.HIT


def _split_float(settings: FloatTable, distance: Fraction) -> tuple[int, Fraction]:
    """Return the entry below a sample and the way to the next one."""
    if settings.function is Function.EXPONENT:
        exponent = floor_log2(distance)
        return exponent - settings.index_offset, distance / Fraction(2) ** exponent - 1
    steps = distance / Fraction(2) ** settings.select
    index = steps.numerator // steps.denominator
    return index, steps - index
