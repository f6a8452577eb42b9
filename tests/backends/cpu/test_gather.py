"""Kernels that pick elements: gathers, one-hot vectors, triangles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smelt import ops
from smelt.backends import Tactic
from smelt.backends.cpu.families.index_predicate import IndexPredicateFamily
from smelt.backends.cpu.families.indexing import GatherFamily, ScatterFamily
from tests.support.cpu_families import assert_tactics_agree, make_node, random, run_tactic
from tests.support.random_operands import (
    TARGETS,
    assert_agrees_somehow,
    every_target,
    extents,
    few_examples,
    supported_cases,
)

if TYPE_CHECKING:
    from smelt.backends import Family
    from smelt.backends.cpu import CpuTarget
    from smelt.ir import Case

FAMILIES: list[tuple[Family[CpuTarget], tuple[type, ...]]] = [
    (GatherFamily(), (ops.Gather, ops.GatherElements)),
    (IndexPredicateFamily(), (ops.OneHot, ops.Trilu)),
    (ScatterFamily(), (ops.GatherND, ops.ScatterND, ops.ScatterElements)),
]
CASES = [(f, c.values[0], c.id) for f, kinds in FAMILIES for c in supported_cases(f, kinds)]


@every_target
@pytest.mark.parametrize(("family", "case"), [pytest.param(f, c, id=name) for f, c, name in CASES])
def test_cases_agree_with_their_reference(
    family: Family[CpuTarget], case: Case, target: CpuTarget
) -> None:
    assert_tactics_agree(family, case.op, case.inputs, case.constants, target=target, gap=2)


@given(st.data())
@few_examples
def test_any_gather_agrees(data: st.DataObject) -> None:
    draw = data.draw
    shape = tuple(draw(extents) for _ in range(draw(st.integers(1, 3))))
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    picks = tuple(draw(st.sampled_from([0, 1, 2, 7])) for _ in range(draw(st.integers(0, 2))))
    limit = shape[axis]
    indices = np.random.default_rng(0).integers(-limit, limit, picks)
    kind = draw(st.sampled_from([np.int32, np.int64]))
    array = (random(shape) * 50).astype(draw(st.sampled_from(["float32", "int8", "float64"])))
    arrays = [array, np.asarray(indices, kind)]
    assert_agrees_somehow(FAMILIES[0][0], ops.Gather(axis), arrays, data)


@given(st.data())
@few_examples
def test_any_gather_of_single_elements_agrees(data: st.DataObject) -> None:
    draw = data.draw
    shape = tuple(draw(extents) for _ in range(draw(st.integers(1, 3))))
    axis = draw(st.integers(0, len(shape) - 1))
    indices = np.random.default_rng(0).integers(-shape[axis], shape[axis], shape)
    assert_agrees_somehow(FAMILIES[0][0], ops.GatherElements(axis), [random(shape), indices], data)


def test_an_index_beyond_the_axis_stays_inside_the_memory_and_is_told_of() -> None:
    arrays = [random((3, 5)), np.array([99, -99, 1 << 60, -(1 << 60)])]
    node = make_node(ops.Gather(), arrays, frozenset())
    for target in TARGETS:
        (tactic,) = FAMILIES[0][0].tactics(node, target)
        assert isinstance(tactic, Tactic)
        detail = np.zeros(2, np.int64)
        (made,) = run_tactic(FAMILIES[0][0], node, tactic, arrays, target=target, errors=detail)
        assert np.isfinite(made).all()
        assert detail[0] in (99, -99, 1 << 60, -(1 << 60))
        assert detail[1] == ~3


@given(st.data())
@few_examples
def test_any_triangle_of_any_window_agrees(data: st.DataObject) -> None:
    draw = data.draw
    shape = (draw(st.sampled_from([0, 1, 3])), draw(extents), draw(extents))
    op = ops.Trilu(draw(st.sampled_from([0, 1])))
    arrays = [random(shape), np.array(draw(st.integers(-9, 9)))]
    axes = [(0, 0), (0, 1), (0, 2)]
    assert_agrees_somehow(FAMILIES[1][0], op, arrays, data, frozenset({1}), open_axes=axes)


@given(st.data())
@few_examples
def test_any_scatter_and_gather_of_slices_agrees(data: st.DataObject) -> None:
    draw = data.draw
    shape = tuple(draw(st.integers(1, 6)) for _ in range(draw(st.integers(1, 4))))
    length = draw(st.integers(1, len(shape)))
    picks = tuple(draw(st.integers(0, 4)) for _ in range(draw(st.integers(0, 2))))
    rng = np.random.default_rng(0)
    columns = [rng.integers(-e, e, picks) for e in shape[:length]]
    indices = np.stack(columns, -1)
    if draw(st.booleans()):
        assert_agrees_somehow(FAMILIES[2][0], ops.GatherND(), [random(shape), indices], data)
        return
    reduction = draw(st.sampled_from(["none", "add", "mul", "max", "min"]))
    updates = random((*picks, *shape[length:]), 1)
    arrays: list[Any] = [random(shape), indices, updates]
    open_axes = [(0, 0)] if shape[0] > 1 else []
    op = ops.ScatterND(reduction)
    assert_agrees_somehow(FAMILIES[2][0], op, arrays, data, open_axes=open_axes)


@given(st.data())
@few_examples
def test_any_scatter_of_single_elements_agrees(data: st.DataObject) -> None:
    draw = data.draw
    shape = tuple(draw(st.integers(1, 9)) for _ in range(draw(st.integers(1, 3))))
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    kept = tuple(draw(st.integers(0, e)) for e in shape)
    indices = np.random.default_rng(0).integers(-shape[axis], shape[axis], kept)
    reduction = draw(st.sampled_from(["none", "add", "mul", "max", "min"]))
    arrays: list[Any] = [random(shape), indices, random(kept, 1)]
    assert_agrees_somehow(FAMILIES[2][0], ops.ScatterElements(axis, reduction), arrays, data)


def test_updates_of_nothing_write_nothing() -> None:
    arrays = [random((0, 3)), np.array([[0], [7]]), random((2, 3), 1)]
    family = FAMILIES[2][0]
    node = make_node(ops.ScatterND(), arrays, frozenset(), {(0, 0): "n"})
    for target in TARGETS:
        (tactic,) = family.tactics(node, target)
        assert isinstance(tactic, Tactic)
        detail, values = np.zeros(2, np.int64), {"n": 0}
        made = run_tactic(family, node, tactic, arrays, values=values, target=target, errors=detail)
        assert made[0].shape == (0, 3)
        assert detail[1] == ~0
