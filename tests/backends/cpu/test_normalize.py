"""Softmax and layer normalisation along any axes of any windows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smelt import ops
from smelt.backends.cpu.families.normalize import NormalizeFamily
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
    from smelt.backends.cpu import CpuTarget
    from smelt.ir import Case

FAMILY = NormalizeFamily()
KINDS = (ops.Softmax, ops.LogSoftmax, ops.LayerNormalization, ops.RMSNormalization)


@every_target
@pytest.mark.parametrize("case", supported_cases(FAMILY, KINDS))
def test_cases_agree_with_their_reference(case: Case, target: CpuTarget) -> None:
    assert_tactics_agree(FAMILY, case.op, case.inputs, case.constants, target=target, gap=2)


@given(st.data())
@few_examples
def test_softmax_agrees_along_any_axis(data: st.DataObject) -> None:
    draw = data.draw
    shape = tuple(draw(extents) for _ in range(draw(st.integers(1, 4))))
    kind = draw(st.sampled_from([ops.Softmax, ops.LogSoftmax]))
    axes = [(0, a) for a in range(len(shape))]
    op = kind(draw(st.integers(-len(shape), len(shape) - 1)))
    assert_agrees_somehow(FAMILY, op, [random(shape)], data, open_axes=axes)


@given(st.data())
@few_examples
def test_layer_normalisation_agrees_from_any_axis(data: st.DataObject) -> None:
    draw = data.draw
    shape = tuple(draw(extents) for _ in range(draw(st.integers(1, 3))))
    axis = draw(st.integers(0, len(shape) - 1))
    arrays = [random(shape), random(shape[axis:], 1)]
    kind = draw(st.sampled_from([ops.LayerNormalization, ops.RMSNormalization]))
    if kind is ops.LayerNormalization and draw(st.booleans()):
        arrays.append(random(shape[axis:], 2))
    open_axes = [(0, a) for a in range(axis)]
    constants = frozenset(range(1, len(arrays))) if draw(st.booleans()) else frozenset[int]()
    assert_agrees_somehow(
        FAMILY, kind(axis), arrays, data, constants, open_axes=open_axes, tolerance=1e-4
    )


@every_target
def test_softmax_of_large_magnitudes_stays_finite(target: CpuTarget) -> None:
    line = np.array([[1e30, -1e30, 3e38, 0.0] * 9, [-1e4, -2e4, -1e4, -9e9] * 9], np.float32)
    assert_tactics_agree(FAMILY, ops.Softmax(1), [line], target=target)


@every_target
@pytest.mark.parametrize("shape", [(2, 64), (2, 301), (64, 2)])
def test_small_probabilities_keep_their_digits(target: CpuTarget, shape: tuple[int, int]) -> None:
    axis = int(np.argmax(shape))
    x = -np.linspace(0, 103, max(shape), dtype=np.float32)
    x = np.stack([x, x + 7], axis=1 - axis)
    exact = np.exp(x.astype(np.float64) - x.max(axis, keepdims=True))
    exact /= exact.sum(axis, keepdims=True)
    node = make_node(ops.Softmax(axis), [x], frozenset())
    for tactic in tactics_of(FAMILY, node, target):
        (made,) = run_tactic(FAMILY, node, tactic, [x], target=target)
        np.testing.assert_allclose(made, exact, rtol=5e-7, atol=3e-45)


@every_target
@pytest.mark.parametrize("length", [8, 16, 64, 112, 128, 256, 272])
def test_softmax_of_lines_that_registers_hold_is_right(target: CpuTarget, length: int) -> None:
    lines = random((5, length)) * 20
    lines[1, ::3] = -np.inf
    lines[2] = -200 + lines[2] / 20
    assert_tactics_agree(FAMILY, ops.Softmax(-1), [lines], target=target)


@every_target
@pytest.mark.parametrize("kind", [ops.Softmax, ops.LogSoftmax])
def test_one_nan_spoils_its_line_alone(kind: type[ops.Softmax], target: CpuTarget) -> None:
    lines = random((3, 64))
    lines[1, 40] = np.nan
    assert_tactics_agree(FAMILY, kind(-1), [lines], target=target)
