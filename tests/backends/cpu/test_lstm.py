"""Recurrent kernels: directions, states, remainders of units, windows, symbols."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smelt import ops
from smelt.backends.cpu import host_target
from smelt.backends.cpu.families.recurrent import GruFamily, LstmFamily
from tests.support.cpu_families import (
    assert_tactics_agree,
    make_node,
    random,
    refusal_reason,
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
    from smelt.ir import Case, Op

FAMILIES: dict[type, tuple[Family[CpuTarget], int]] = {
    ops.LSTM: (LstmFamily(), 4),
    ops.GRU: (GruFamily(), 3),
}
CASES = [(f, c) for kind, (f, _) in FAMILIES.items() for c in supported_cases(f, (kind,))]


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
def test_any_sequence_agrees(data: st.DataObject) -> None:
    draw = data.draw
    kind = draw(st.sampled_from([ops.LSTM, ops.GRU]))
    family, gates = FAMILIES[kind]
    direction = draw(st.sampled_from(["forward", "reverse", "bidirectional"]))
    count = 2 if direction == "bidirectional" else 1
    hidden, width = draw(st.sampled_from([1, 5, 8, 16, 19])), draw(st.integers(1, 9))
    time, batch = draw(st.integers(0, 4)), draw(st.integers(0, 3))
    layout = draw(st.sampled_from([0, 1]))
    op: Op = ops.LSTM(hidden, direction, layout=layout)
    if kind is ops.GRU:
        linear = draw(st.sampled_from([0, 1]))
        op = ops.GRU(hidden, direction, layout=layout, linear_before_reset=linear)
    x = random((batch, time, width) if layout else (time, batch, width))
    state = (batch, count, hidden) if layout else (count, batch, hidden)
    states = [random(state, 5 + k) for k in range(2 if kind is ops.LSTM else 1)]
    arrays = [
        x,
        random((count, gates * hidden, width), 1),
        random((count, gates * hidden, hidden), 2),
        random((count, 2 * gates * hidden), 3) if draw(st.booleans()) else None,
        None,
        *(states if draw(st.booleans()) else []),
    ]
    constants = frozenset({1, 2, 3} if arrays[3] is not None else {1, 2})
    open_axes = [(0, 0), (0, 1)] if len(arrays) == 5 else []
    assert_agrees_somehow(family, op, arrays, data, constants, open_axes=open_axes)


def test_what_is_not_generated_is_refused_with_its_reason() -> None:
    arrays = [random((3, 2, 4)), random((1, 12, 4), 1), random((1, 12, 4), 2)]
    node = make_node(ops.GRU(4), arrays, frozenset({1}))
    assert "not constant" in refusal_reason(GruFamily(), node, host_target())
