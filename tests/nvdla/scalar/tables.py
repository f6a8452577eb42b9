"""Random look-up tables."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Final

import numpy as np
from hypothesis import strategies as st

from tests.nvdla.scalar.lut import (
    LE_STEPS,
    LO_STEPS,
    FloatLut,
    FloatTable,
    Function,
    Lut,
    Priorities,
    Slope,
    Table,
    TableSettings,
)

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn

_INT16: Final = st.integers(-(2**15), 2**15 - 1)
_SEEDS: Final = st.integers(0, 2**32 - 1)


@st.composite
def luts(
    draw: DrawFn,
    *,
    largest_start: int,
    largest_select: int,
    largest_value: int,
    least_offset: int = 0,
) -> Lut:
    """Draw both tables of a pipeline whose numbers go up to ``largest_value``.

    Source: Programming Guide, limits of LUT: a linear table's end follows from its step, an
    exponential one's is past what the pipeline holds.
    """
    start = st.integers(-largest_start, largest_start)
    function = draw(st.sampled_from(Function))
    le_start, le_select = draw(start), draw(st.integers(-6, largest_select))
    is_linear = function is Function.LINEAR
    le = TableSettings(
        entries=_draw_entries(draw, LE_STEPS + 1),
        start=le_start,
        end=le_start + (1 << le_select + 6) if is_linear else largest_value,
        select=le_select,
        function=function,
        index_offset=draw(st.integers(least_offset, 12)),
        underflow=draw(_slopes()),
        overflow=draw(_slopes()),
    )
    lo_start, lo_select = draw(start), draw(st.integers(-8, largest_select - 2))
    lo = TableSettings(
        entries=_draw_entries(draw, LO_STEPS + 1),
        start=lo_start,
        end=lo_start + (1 << lo_select + 8),
        select=lo_select,
        underflow=draw(_slopes()),
        overflow=draw(_slopes()),
    )
    return Lut(le, lo, draw(_priorities()))


def _draw_entries(draw: DrawFn, count: int) -> tuple[int, ...]:
    generator = np.random.default_rng(draw(_SEEDS))
    return tuple(int(entry) for entry in generator.integers(-(2**15), 2**15, count))


def _slopes() -> st.SearchStrategy[Slope]:
    return st.builds(Slope, _INT16, st.integers(-16, 15))


def _priorities() -> st.SearchStrategy[Priorities]:
    table = st.sampled_from(Table)
    return st.builds(Priorities, table, table, table)


@st.composite
def float_luts(draw: DrawFn) -> FloatLut:
    """Draw both fp16 tables: smooth ones, so that a step of rounding moves no answer far."""
    function = draw(st.sampled_from(Function))
    start = Fraction(draw(st.integers(-16, 16)), 4)
    select = draw(st.integers(-6, 0))
    le = FloatTable(
        entries=_draw_curve(draw, LE_STEPS + 1),
        start=start,
        end=start + Fraction(2) ** (select + 6),
        select=select,
        function=function,
        index_offset=draw(st.integers(-6, 0)),
        underflow_slope=Fraction(draw(st.integers(-8, 8)), 64),
        overflow_slope=Fraction(draw(st.integers(-8, 8)), 64),
    )
    lo_start = Fraction(draw(st.integers(-16, 16)), 4)
    lo_select = draw(st.integers(-8, 0))
    lo = FloatTable(
        entries=_draw_curve(draw, LO_STEPS + 1),
        start=lo_start,
        end=lo_start + Fraction(2) ** (lo_select + 8),
        select=lo_select,
        underflow_slope=Fraction(draw(st.integers(-8, 8)), 64),
        overflow_slope=Fraction(draw(st.integers(-8, 8)), 64),
    )
    return FloatLut(le, lo, draw(_priorities()))


def _draw_curve(draw: DrawFn, count: int) -> tuple[Fraction, ...]:
    generator = np.random.default_rng(draw(_SEEDS))
    steps = np.cumsum(generator.integers(-8, 9, count)) / 256
    return tuple(Fraction(float(np.float16(value))) for value in steps)
