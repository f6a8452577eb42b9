"""Resizing in every mode, and results that follow from extents alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smelt import ops
from smelt.backends.cpu.families.fill import FillFamily
from smelt.backends.cpu.families.resample import ResampleFamily
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
    few_examples,
    supported_cases,
)

if TYPE_CHECKING:
    from smelt.backends import Family
    from smelt.backends.cpu import CpuTarget
    from smelt.ir import Case

FAMILIES: list[tuple[Family[CpuTarget], tuple[type, ...]]] = [
    (ResampleFamily(), (ops.Resize,)),
    (FillFamily(), (ops.ConstantOfShape, ops.Range)),
]
CASES = [(f, c) for f, kinds in FAMILIES for c in supported_cases(f, kinds)]
_SCALES = frozenset({2})
POINTS = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"]


@every_target
@pytest.mark.parametrize(
    ("family", "case"), [pytest.param(f, c.values[0], id=c.id) for f, c in CASES]
)
def test_cases_agree_with_their_reference(
    family: Family[CpuTarget], case: Case, target: CpuTarget
) -> None:
    assert_tactics_agree(family, case.op, case.inputs, case.constants, target=target, gap=2)


@given(st.data())
@few_examples
def test_any_resizing_agrees(data: st.DataObject) -> None:
    draw = data.draw
    channels = draw(st.sampled_from([1, 3, 16, 20]))
    shape = (draw(st.integers(1, 2)), channels, draw(st.integers(1, 9)), draw(st.integers(1, 9)))
    sizes = [shape[0], channels, draw(st.integers(1, 19)), draw(st.integers(1, 19))]
    if sizes == list(shape):
        sizes[3] += 1
    mode = draw(st.sampled_from(["nearest", "linear", "cubic"]))
    op = ops.Resize(
        antialias=draw(st.sampled_from([0, 1])) if mode != "nearest" else 0,
        mode=mode,
        coordinate_transformation_mode=draw(st.sampled_from(POINTS)),
        nearest_mode=draw(st.sampled_from(["round_prefer_floor", "floor", "ceil"])),
    )
    arrays = [random(shape), None, None, np.array(sizes)]
    assert_agrees_somehow(FAMILIES[0][0], op, arrays, data, frozenset({3}))


@every_target
def test_the_batch_of_a_resized_image_may_be_a_symbol(target: CpuTarget) -> None:
    op = ops.Resize(mode="linear", axes=(2, 3))
    arrays = [random((3, 5, 6, 7)), None, np.array([2.0, 1.5], np.float32)]
    for symbols in ({(0, 0): "n"}, {(0, 0): "n", (0, 1): "c"}):
        assert_tactics_agree(
            FAMILIES[0][0], op, arrays, frozenset({2}), symbols=symbols, target=target
        )


@every_target
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_what_is_infinite_stays_out_of_places_that_it_has_no_part_in(
    mode: str, target: CpuTarget
) -> None:
    image = random((1, 1, 9, 9))
    image[0, 0, 0, 0] = np.inf
    arrays = [image, None, np.array([2.0, 2.0], np.float32)]
    family, node = ResampleFamily(), make_node(ops.Resize(mode=mode, axes=(2, 3)), arrays, _SCALES)
    for tactic in tactics_of(family, node, target):
        (made,) = run_tactic(family, node, tactic, arrays, target=target)
        assert np.isfinite(made[0, 0, 6:, 6:]).all(), tactic
