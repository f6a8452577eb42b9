"""Reductions of any axes of any windows, running sums, extremes and best elements of lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smelt import ops
from smelt.backends.cpu import host_target
from smelt.backends.cpu.families.axis_scan import AxisScanFamily
from smelt.backends.cpu.families.reduce import ReduceFamily
from tests.support.cpu_families import (
    assert_tactics_agree,
    make_node,
    random,
    run_tactic,
    tactics_of,
)
from tests.support.random_operands import (
    assert_agrees_somehow,
    every_target,
    extents,
    few_examples,
    supported_cases,
)

if TYPE_CHECKING:
    from smelt.backends import Family
    from smelt.backends.cpu import CpuTarget
    from smelt.ir import Case, Op

REDUCTIONS = (ops.ReduceSum, ops.ReduceMean, ops.ReduceMax, ops.ReduceMin, ops.ReduceProd)
POOLS = (ops.GlobalAveragePool, ops.GlobalMaxPool)
LINES = (ops.ArgMax, ops.ArgMin, ops.CumSum, ops.TopK)
FAMILIES: list[tuple[Family[CpuTarget], tuple[type, ...]]] = [
    (ReduceFamily(), REDUCTIONS + POOLS),
    (AxisScanFamily(), LINES),
]
CASES = [(f, c) for f, kinds in FAMILIES for c in supported_cases(f, kinds)]
KINDS = st.sampled_from(["float32", "int32", "int64", "float16", "float64"])


@every_target
@pytest.mark.parametrize(
    ("family", "case"), [pytest.param(f, c.values[0], id=c.id) for f, c in CASES]
)
def test_cases_agree_with_their_reference(
    family: Family[CpuTarget], case: Case, target: CpuTarget
) -> None:
    tolerance = 3e-3 if "float16" in case.name else 2e-5
    assert_tactics_agree(
        family, case.op, case.inputs, case.constants, target=target, gap=2, tolerance=tolerance
    )


def numbers(shape: tuple[int, ...], dtype: str) -> np.ndarray[Any, Any]:
    """Few different values, so that many are equal."""
    return np.random.default_rng(0).integers(-3, 4, shape).astype(dtype)


@given(st.data())
@few_examples
def test_any_reduction_agrees(data: st.DataObject) -> None:
    draw = data.draw
    shape = tuple(draw(extents) for _ in range(draw(st.integers(1, 4))))
    axes = sorted(draw(st.sets(st.integers(0, len(shape) - 1))))
    kind: Any = draw(st.sampled_from(REDUCTIONS))
    op: Op = kind(draw(st.sampled_from([0, 1])))
    dtype = draw(KINDS)
    arrays = [numbers(shape, dtype), np.array(axes, np.int64)]
    if isinstance(op, ops.ReduceProd):
        arrays[0] = np.where(arrays[0] < 0, -1, 1).astype(dtype)
    open_axes = [(0, a) for a in range(len(shape))]
    tolerance = 3e-3 if dtype == "float16" else 2e-5
    assert_agrees_somehow(
        FAMILIES[0][0],
        op,
        arrays,
        data,
        frozenset({1}),
        open_axes=open_axes,
        tolerance=tolerance,
    )


@given(st.data())
@few_examples
def test_extremes_and_running_sums_agree_along_any_axis(data: st.DataObject) -> None:
    draw = data.draw
    shape = tuple(draw(extents) for _ in range(draw(st.integers(1, 4))))
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    flags = draw(st.sampled_from([0, 1])), draw(st.sampled_from([0, 1]))
    dtype = draw(KINDS.filter(lambda name: name != "float16"))
    kind = draw(st.sampled_from([ops.ArgMax, ops.ArgMin, ops.CumSum]))
    make: Any = kind
    arrays = [numbers(shape, dtype)]
    if kind is ops.CumSum:
        arrays.append(np.array(axis))
    op: Op = make(*flags) if make is ops.CumSum else make(axis, *flags)
    constants = frozenset(range(1, len(arrays)))
    open_axes = [(0, a) for a in range(len(shape))]
    assert_agrees_somehow(FAMILIES[1][0], op, arrays, data, constants, open_axes=open_axes)


@given(st.data())
@few_examples
def test_the_best_elements_agree_however_many_are_equal(data: st.DataObject) -> None:
    draw = data.draw
    shape = tuple(draw(extents) for _ in range(draw(st.integers(1, 3))))
    axis = draw(st.integers(0, len(shape) - 1))
    count = draw(st.integers(0, shape[axis]))
    op = ops.TopK(axis, draw(st.sampled_from([0, 1])))
    arrays = [numbers(shape, draw(KINDS)), np.array([count])]
    others = [(0, a) for a in range(len(shape)) if a != axis]
    assert_agrees_somehow(FAMILIES[1][0], op, arrays, data, frozenset({1}), open_axes=others)


@every_target
def test_not_a_number_is_the_extreme_as_in_the_reference(target: CpuTarget) -> None:
    line = np.array([[1, np.nan, 5, np.nan, 2], [3, 1, 2, 0, np.nan]] * 9, np.float32)
    for last in (0, 1):
        for kind in (ops.ArgMax, ops.ArgMin):
            for array, axis in ((line, 1), (np.ascontiguousarray(line.T), 0)):
                op = kind(axis, select_last_index=last)
                assert_tactics_agree(FAMILIES[1][0], op, [array], target=target)
    for largest in (0, 1):
        arrays = [line, np.array([5])]
        best = ops.TopK(1, largest)
        assert_tactics_agree(FAMILIES[1][0], best, arrays, frozenset({1}), target=target)


def test_sums_do_not_depend_on_threads() -> None:
    arrays = [random((7, 300, 50)), np.array([1])]
    family = FAMILIES[0][0]
    node = make_node(ops.ReduceSum(), arrays, frozenset({1}))
    for tactic in tactics_of(family, node, host_target()):
        alone = run_tactic(family, node, tactic, arrays)
        shared = run_tactic(family, node, tactic, arrays, workers=4)
        assert np.array_equal(alone[0], shared[0])
