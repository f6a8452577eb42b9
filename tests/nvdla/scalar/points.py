"""Random configurations of the single-point processor, with where each operand comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
from hypothesis import strategies as st

from tests.nvdla.scalar.arithmetic import Converter, Cube, HalfCube, Precision
from tests.nvdla.scalar.configurations import INTEGERS, ONLY_INT8, SPACES, draw_cube, draw_halves
from tests.nvdla.scalar.sdp import (
    Adder,
    Algorithm,
    ElementStage,
    FloatAdder,
    FloatMultiplier,
    FloatPointProcessor,
    FloatStage,
    Multiplier,
    PointProcessor,
    PointStage,
)
from tests.nvdla.scalar.tables import float_luts, luts

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn

Shape: TypeAlias = tuple[int, int, int]

_INT16: Final = st.integers(-(2**15), 2**15 - 1)


@dataclass(frozen=True, slots=True)
class OperandPlan:
    """Where a stage's operands come from, and how memory holds them."""

    adder_from_memory: bool
    multiplier_from_memory: bool
    is_per_kernel: bool
    component_bytes: int


@dataclass(frozen=True, slots=True)
class PointCase:
    """A run of the integer pipe over data from memory."""

    settings: PointProcessor
    precision: Precision
    data: Cube
    plans: dict[str, OperandPlan]
    """For the stages BS, BN and EW."""
    source_space: int
    target_space: int


@dataclass(frozen=True, slots=True)
class HalfPointCase:
    """A run of the fp16 pipe over data from memory."""

    settings: FloatPointProcessor
    data: HalfCube
    plans: dict[str, OperandPlan]


@st.composite
def point_cases(
    draw: DrawFn, precisions: st.SearchStrategy[Precision] = INTEGERS, *, has_lut: bool
) -> PointCase:
    """Draw all stages in int8 or int16; where only int8 can be drawn, the output is int8 too."""
    precision = draw(precisions)
    shape = (draw(st.integers(1, 40)), draw(st.integers(1, 3)), draw(st.integers(1, 3)))
    plans = {stage: _draw_plan(draw, precision) for stage in ("BS", "BN", "EW")}
    y = draw(st.booleans()) or has_lut
    element = _draw_element_stage(draw, shape, plans["EW"], has_lut=has_lut) if y else None
    is_comparison = (
        element is not None
        and element.adder is not None
        and element.adder.algorithm is Algorithm.EQUAL
    )
    wide = (Precision.INT8, Precision.INT16, Precision.FP16)
    outputs = wide if precision is Precision.INT16 else wide[: 1 if precisions is ONLY_INT8 else 2]
    settings = PointProcessor(
        x1=_draw_point_stage(draw, shape, plans["BS"]) if draw(st.booleans()) else None,
        x2=_draw_point_stage(draw, shape, plans["BN"]) if draw(st.booleans()) else None,
        y=element,
        output_precision=precision if is_comparison else draw(st.sampled_from(outputs)),
        output_converter=Converter(
            offset=draw(st.integers(-(2**31), 2**31 - 1) | st.integers(-99, 99)),
            scale=draw(_INT16 | st.just(1)),
            shift=draw(st.integers(0, 31)),
        ),
    )
    data = draw_cube(draw, shape, precision)
    return PointCase(settings, precision, data, plans, draw(SPACES), draw(SPACES))


def _draw_plan(draw: DrawFn, precision: Precision) -> OperandPlan:
    return OperandPlan(
        adder_from_memory=draw(st.booleans()),
        multiplier_from_memory=draw(st.booleans()),
        is_per_kernel=draw(st.booleans()),
        component_bytes=draw(st.integers(1, 2)) if precision is Precision.INT8 else 2,
    )


def _draw_operands(
    draw: DrawFn, shape: Shape, plan: OperandPlan, *, from_memory: bool, register_bits: int
) -> Cube:
    """Draw a cube as the operands' source has them: one number, one a channel, or all."""
    if not from_memory:
        limit = 1 << register_bits - 1
        value = draw(st.integers(-limit, limit - 1) | st.integers(-9, 9))
        return np.full(shape, value, np.int64)
    precision = Precision.INT8 if plan.component_bytes == 1 else Precision.INT16
    if plan.is_per_kernel:
        return np.broadcast_to(draw_cube(draw, (shape[0], 1, 1), precision), shape).copy()
    return draw_cube(draw, shape, precision)


def _draw_point_stage(draw: DrawFn, shape: Shape, plan: OperandPlan) -> PointStage:
    """Draw X1 or X2; the leaky rectifier forbids an adder."""
    is_prelu = draw(st.booleans())
    adder = multiplier = None
    if not is_prelu and draw(st.booleans()):
        algorithm = draw(st.sampled_from((Algorithm.MAX, Algorithm.MIN, Algorithm.SUM)))
        operands = _draw_operands(
            draw, shape, plan, from_memory=plan.adder_from_memory, register_bits=16
        )
        adder = Adder(algorithm, operands, draw(st.integers(0, 24)))
    if is_prelu or draw(st.booleans()):
        operands = _draw_operands(
            draw, shape, plan, from_memory=plan.multiplier_from_memory, register_bits=16
        )
        multiplier = Multiplier(operands, is_prelu)
    return PointStage(adder, multiplier, draw(st.integers(0, 24)), draw(st.booleans()))


def _draw_element_stage(
    draw: DrawFn, shape: Shape, plan: OperandPlan, *, has_lut: bool
) -> ElementStage:
    """Draw Y; a comparison has no converter and nothing behind it."""
    is_prelu = draw(st.booleans())
    adder = multiplier = None
    if not is_prelu and draw(st.booleans()):
        algorithms = [Algorithm.MAX, Algorithm.MIN, Algorithm.SUM]
        algorithm = draw(st.sampled_from(algorithms if has_lut else list(Algorithm)))
        operands = _draw_operands(
            draw, shape, plan, from_memory=plan.adder_from_memory, register_bits=32
        )
        adder = Adder(algorithm, operands)
    if is_prelu or draw(st.booleans()):
        operands = _draw_operands(
            draw, shape, plan, from_memory=plan.multiplier_from_memory, register_bits=32
        )
        multiplier = Multiplier(operands, is_prelu)
    converts_adder = (
        adder is not None and plan.adder_from_memory and adder.algorithm is not Algorithm.EQUAL
    )
    converts_multiplier = multiplier is not None and plan.multiplier_from_memory
    return ElementStage(
        adder=adder,
        adder_converter=_draw_converter(draw) if converts_adder else None,
        multiplier=multiplier,
        multiplier_converter=_draw_converter(draw) if converts_multiplier else None,
        truncate=draw(st.integers(0, 40)),
        lut=draw(
            luts(
                largest_start=2**12, largest_select=10, largest_value=2**31 - 1, least_offset=1
            )  # 0 is a known difference
        )
        if has_lut
        else None,
    )


def _draw_converter(draw: DrawFn) -> Converter | None:
    return draw(st.none() | st.builds(Converter, _INT16, _INT16, st.integers(0, 20)))


@st.composite
def half_point_cases(draw: DrawFn) -> HalfPointCase:
    """Draw all stages in fp16, without tables."""
    shape = (draw(st.integers(1, 20)), draw(st.integers(1, 3)), draw(st.integers(1, 3)))
    plans = {stage: _draw_plan(draw, Precision.FP16) for stage in ("BS", "BN", "EW")}
    stages = {
        stage: _draw_half_stage(draw, shape, plan, has_relu=stage != "EW")
        for stage, plan in plans.items()
    }
    settings = FloatPointProcessor(
        x1=stages["BS"], x2=stages["BN"], y=stages["EW"], nan_is_zero=draw(st.booleans())
    )
    data = draw_halves(draw, shape)
    for index in range(draw(st.integers(0, 2))):
        data.flat[index % data.size] = draw(st.sampled_from((np.nan, np.inf, -np.inf, 65504.0)))
    return HalfPointCase(settings, data, plans)


@st.composite
def half_table_cases(draw: DrawFn) -> HalfPointCase:
    """Draw Y's tables alone in fp16."""
    shape = (draw(st.integers(1, 20)), draw(st.integers(1, 3)), draw(st.integers(1, 3)))
    plan = OperandPlan(
        adder_from_memory=False, multiplier_from_memory=False, is_per_kernel=True, component_bytes=2
    )
    settings = FloatPointProcessor(y=FloatStage(lut=draw(float_luts())))
    data = draw_halves(draw, shape, largest=64.0)
    return HalfPointCase(settings, data, {"BS": plan, "BN": plan, "EW": plan})


def _draw_half_stage(
    draw: DrawFn, shape: Shape, plan: OperandPlan, *, has_relu: bool
) -> FloatStage | None:
    if draw(st.booleans()):
        return None
    is_prelu = draw(st.booleans())
    adder = multiplier = None
    if not is_prelu and draw(st.booleans()):
        algorithm = draw(st.sampled_from((Algorithm.MAX, Algorithm.MIN, Algorithm.SUM)))
        operands = _draw_half_operands(draw, shape, plan, from_memory=plan.adder_from_memory)
        adder = FloatAdder(algorithm, operands)
    if is_prelu or draw(st.booleans()):
        operands = _draw_half_operands(draw, shape, plan, from_memory=plan.multiplier_from_memory)
        multiplier = FloatMultiplier(operands, is_prelu)
    return FloatStage(adder, multiplier, has_relu and draw(st.booleans()))


def _draw_half_operands(
    draw: DrawFn, shape: Shape, plan: OperandPlan, *, from_memory: bool
) -> HalfCube:
    if not from_memory:
        return np.broadcast_to(draw_halves(draw, (1, 1, 1)), shape).copy()
    if plan.is_per_kernel:
        return np.broadcast_to(draw_halves(draw, (shape[0], 1, 1)), shape).copy()
    return draw_halves(draw, shape)
