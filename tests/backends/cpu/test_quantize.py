"""Quantisation by one scale, by one a channel, and by a tensor's own range."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smelt import ops
from smelt.backends.cpu.families.quantize import QuantizeFamily
from tests.support.cpu_families import assert_tactics_agree, random
from tests.support.random_operands import (
    assert_agrees_somehow,
    every_target,
    extents,
    few_examples,
    supported_cases,
)

if TYPE_CHECKING:
    from smelt.backends.cpu import CpuTarget
    from smelt.ir import Case

FAMILY = QuantizeFamily()
KINDS = (ops.QuantizeLinear, ops.DequantizeLinear, ops.DynamicQuantizeLinear)


@every_target
@pytest.mark.parametrize("case", supported_cases(FAMILY, KINDS))
def test_cases_agree_with_their_reference(case: Case, target: CpuTarget) -> None:
    assert_tactics_agree(FAMILY, case.op, case.inputs, case.constants, target=target, gap=2)


@given(st.data())
@few_examples
def test_any_quantisation_and_its_way_back_agree(data: st.DataObject) -> None:
    draw = data.draw
    shape = tuple(draw(extents) for _ in range(draw(st.integers(1, 4))))
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    dtype = np.dtype(draw(st.sampled_from(["int8", "uint8", "int16", "uint16"])))
    count = (shape[axis],) if draw(st.booleans()) else ()
    scale = np.asarray(np.abs(random(count, 1)) / 20 + 0.01, np.float32)
    zero = np.random.default_rng(1).integers(0, 9, count).astype(dtype)
    parameters = [scale, zero] if draw(st.booleans()) else [scale]
    constants = frozenset({1, 2}) & set(range(1 + len(parameters)))
    open_axes = [(0, a) for a in range(len(shape)) if not count or a != axis % len(shape)]
    if draw(st.booleans()):
        limits = np.iinfo(str(dtype))
        x = np.random.default_rng(0).integers(limits.min, limits.max, shape).astype(dtype)
        op = ops.DequantizeLinear(axis)
        arrays = [x, *parameters]
        assert_agrees_somehow(FAMILY, op, arrays, data, constants, open_axes=open_axes)
        return
    arrays = [random(shape) * 30, *parameters]
    made = ops.QuantizeLinear(axis)
    assert_agrees_somehow(FAMILY, made, arrays, data, constants, open_axes=open_axes)


@given(st.data())
@few_examples
def test_any_tensor_is_quantised_by_its_own_range(data: st.DataObject) -> None:
    draw = data.draw
    shape = tuple(draw(extents) for _ in range(draw(st.integers(1, 4))))
    array = random(shape) + np.float32(draw(st.sampled_from([-3.0, 0.0, 3.0])))
    open_axes = [(0, a) for a in range(len(shape))]
    op = ops.DynamicQuantizeLinear()
    assert_agrees_somehow(FAMILY, op, [array], data, open_axes=open_axes)


@every_target
def test_what_is_no_number_or_out_of_range_saturates(target: CpuTarget) -> None:
    line = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, 2.5, 3.5] * 5, np.float32)
    arrays: list[Any] = [line, np.array(1, np.float32), np.array(3, np.int8)]
    assert_tactics_agree(FAMILY, ops.QuantizeLinear(), arrays, frozenset({1, 2}), target=target)
