"""Ops made of copies: transposes, slices, pads, tiles, pixel shuffles, repetitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smelt import ops
from smelt.backends.cpu.families.data_movement import data_movement_family
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
    from smelt.ir import Case, Op

FAMILY = data_movement_family()
KINDS = (
    ops.DepthToSpace,
    ops.Expand,
    ops.Pad,
    ops.Resize,
    ops.Slice,
    ops.SpaceToDepth,
    ops.Tile,
    ops.Transpose,
)


@every_target
@pytest.mark.parametrize("case", supported_cases(FAMILY, KINDS))
def test_cases_agree_with_their_reference(case: Case, target: CpuTarget) -> None:
    assert_tactics_agree(FAMILY, case.op, case.inputs, case.constants, target=target, gap=2)


@given(st.data())
@few_examples
def test_any_transpose_agrees(data: st.DataObject) -> None:
    shape = tuple(data.draw(extents) for _ in range(data.draw(st.integers(1, 4))))
    perm = tuple(data.draw(st.permutations(range(len(shape)))))
    axes = [(0, a) for a in range(len(shape))]
    assert_agrees_somehow(FAMILY, ops.Transpose(perm), [random(shape)], data, open_axes=axes)


@given(st.data())
@few_examples
def test_any_slice_agrees(data: st.DataObject) -> None:
    draw = data.draw
    shape = tuple(draw(extents) for _ in range(draw(st.integers(1, 3))))
    bounds = [st.integers(-e - 2, e + 2) for e in shape]
    starts, ends = ([draw(b) for b in bounds] for _ in "se")
    steps = [draw(st.sampled_from([-3, -1, 1, 2])) for _ in shape]
    numbers = [np.array(x) for x in (starts, ends, range(len(shape)), steps)]
    arrays = [random(shape), *numbers]
    assert_agrees_somehow(FAMILY, ops.Slice(), arrays, data, frozenset({1, 2, 3, 4}))


@given(st.data())
@few_examples
def test_any_padding_agrees(data: st.DataObject) -> None:
    draw = data.draw
    shape = tuple(draw(st.integers(2, 9)) for _ in range(draw(st.integers(1, 4))))
    pads = [draw(st.integers(0, e - 1)) for e in shape * 2]
    mode = draw(st.sampled_from(["constant", "reflect", "edge", "wrap"]))
    arrays = [random(shape), np.array(pads)]
    if mode == "constant":
        arrays.append(np.array(draw(st.sampled_from([0.0, -1.5])), np.float32))
    constants = frozenset(range(1, len(arrays)))
    assert_agrees_somehow(FAMILY, ops.Pad(mode), arrays, data, constants)


@given(st.data())
@few_examples
def test_repeated_and_stretched_tensors_may_have_symbolic_extents(data: st.DataObject) -> None:
    draw = data.draw
    shape = tuple(draw(extents) for _ in range(draw(st.integers(1, 3))))
    counts = [draw(st.integers(0, 3)) for _ in shape]
    axes = [(0, a) for a in range(len(shape))]
    arrays = [random(shape), np.array(counts)]
    assert_agrees_somehow(FAMILY, ops.Tile(), arrays, data, frozenset({1}), open_axes=axes)
    wider = [*counts[:1], *(1 if e > 1 else c for e, c in zip(shape, counts, strict=True))]
    arrays = [random(shape), np.array(wider)]
    assert_agrees_somehow(FAMILY, ops.Expand(), arrays, data, frozenset({1}))


@pytest.mark.parametrize(
    "op", [ops.DepthToSpace(2), ops.DepthToSpace(2, "CRD"), ops.SpaceToDepth(2)]
)
def test_pixels_are_shuffled_among_any_number_of_channels(op: Op) -> None:
    open_ = {(0, 1): "channels", (0, 2): "height"}
    assert_tactics_agree(FAMILY, op, [random((2, 8, 4, 6))], symbols=open_)
