"""Elementwise kernels: programs, broadcasting, layouts, windows, symbols."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smelt import ops
from smelt.backends.cpu import host_target
from smelt.backends.cpu.families.elementwise import ElementwiseFamily
from smelt.ops import Fused, Stage
from tests.support.cpu_families import assert_tactics_agree, make_node, random, refusal_reason
from tests.support.random_operands import (
    assert_agrees_somehow,
    every_target,
    few_examples,
    supported_cases,
)

if TYPE_CHECKING:
    from smelt.backends.cpu import CpuTarget
    from smelt.ir import Case

FAMILY = ElementwiseFamily()
KINDS = (ops.Add, ops.Where, ops.Cast, ops.Clip, ops.PRelu, ops.Equal, ops.Sum)


@every_target
@pytest.mark.parametrize("case", supported_cases(FAMILY, KINDS))
def test_cases_agree_with_their_reference(case: Case, target: CpuTarget) -> None:
    tolerance = max(2e-5, case.tolerance if "16" in case.name else 0)
    assert_tactics_agree(
        FAMILY, case.op, case.inputs, case.constants, target=target, gap=2, tolerance=tolerance
    )


@pytest.mark.parametrize("number", [float("inf"), float("-inf"), float("nan"), 3.45e38, 1e300])
@pytest.mark.parametrize("kind", [ops.LeakyRelu, ops.Elu, ops.Selu, ops.Celu, ops.Swish])
def test_attributes_may_be_beyond_every_number(kind: type[ops.Elu], number: float) -> None:
    op = kind(alpha=number)
    x = np.array([-1.5, 0.0, 2.0, -0.25], np.float32)
    with np.errstate(all="ignore"):
        assert_tactics_agree(FAMILY, op, [x])


@given(st.data())
@few_examples
def test_any_broadcast_of_any_windows_agrees(data: st.DataObject) -> None:
    draw = data.draw
    shape = tuple(
        draw(st.sampled_from([0, 1, 2, 5, 17, 33])) for _ in range(draw(st.integers(1, 4)))
    )
    kept = st.tuples(*[st.booleans()] * len(shape))
    parts = [tuple(e if k else 1 for e, k in zip(shape, draw(kept), strict=True)) for _ in "ab"]
    arrays = [random(shape), random(parts[0], 1), random(parts[1][draw(st.integers(0, 1)) :], 2)]
    op = Fused(ops.Add(), 2, (Stage(ops.Mul(), (-1, 2)), Stage(ops.Tanh(), (-2,))))
    assert_agrees_somehow(FAMILY, op, arrays, data)


@given(st.data())
@few_examples
def test_extents_may_be_symbols(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.sampled_from([0, 1, 3, 16, 19])) for _ in range(4))
    arrays = [random(shape), random((shape[1], 1, 1), 1)]
    axes = [(0, 0), (0, 2), (0, 3)]
    assert_agrees_somehow(FAMILY, ops.Mul(), arrays, data, frozenset({1}), open_axes=axes)


def test_a_repetition_that_depends_on_a_symbol_is_refused() -> None:
    node = make_node(ops.Add(), [random((4, 3)), random((4, 3))], frozenset(), {(0, 0): "n"})
    assert "it is unknown at build time whether" in refusal_reason(FAMILY, node, host_target())


@every_target
def test_what_is_not_finite_passes_as_in_the_reference(target: CpuTarget) -> None:
    line = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, 3e38, -3e38] * 5, np.float32)
    for op in (ops.Relu(), ops.Sigmoid(), ops.Tanh(), ops.Exp(), ops.Abs(), ops.Floor()):
        assert_tactics_agree(FAMILY, op, [line], target=target)
