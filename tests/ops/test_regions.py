"""If and Loop infer and run their regions."""

from __future__ import annotations

import numpy as np
import pytest

from smelt import ops
from smelt.errors import ShapeError
from smelt.ir import Graph, Op, Operand
from smelt.types import DType, SymbolicDim, TensorType

F = DType.FLOAT32
N = SymbolicDim.symbol("n")


def region(op: Op, *extra: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> Graph:
    """A region that applies an op to its input and constants."""
    graph = Graph(op.name)
    x = graph.add_input("x", TensorType(F, (2, 3)))
    values = [graph.add_constant(a, f"c{i}") for i, a in enumerate(extra)]
    graph.outputs = [graph.add(op, x, *values, name="made").output]
    return graph


def flag(*, known: bool | None = None) -> Operand:
    kind = TensorType(DType.BOOL, ())
    return Operand(kind) if known is None else Operand.constant(np.asarray(known))


def test_the_types_of_a_region_follow_the_nodes_inputs() -> None:
    op = ops.If(region(ops.Identity()), region(ops.Identity()))
    made = op.infer([flag(), Operand(TensorType(F, (N, 7)))])
    assert made == (TensorType(F, (N, 7)),)
    assert op.regions[0].outputs[0].type == TensorType(F, (N, 7))


def test_branches_that_differ_in_an_extent_need_a_symbol_for_it() -> None:
    shorter = np.array([1, 3], np.int64), np.array([2, 1], np.int64)
    branches = region(ops.Expand(), shorter[0]), region(ops.Tile(), shorter[1])
    data = Operand(TensorType(F, (2, 3)))
    with pytest.raises(ShapeError, match=r"float32\[2, 3\] in one branch and float32\[4, 3\]"):
        ops.If(*branches).infer([flag(), data])
    (made,) = ops.If(*branches, "k").infer([flag(), data])
    assert made == TensorType(F, (SymbolicDim.symbol("k_0_0"), 3))


def test_a_constant_condition_chooses_the_branchs_type() -> None:
    branches = region(ops.Identity()), region(ops.Tile(), np.array([2, 1], np.int64))
    data = Operand(TensorType(F, (2, 3)))
    (made,) = ops.If(*branches).infer([flag(known=False), data])
    assert made == TensorType(F, (4, 3))


def test_a_wrong_number_of_captures_is_refused() -> None:
    op = ops.If(region(ops.Identity()), region(ops.Identity()))
    with pytest.raises(ShapeError, match="passes 0 values to identity, which has 1 inputs"):
        op.infer([flag()])


def test_a_condition_that_is_no_bool_is_refused() -> None:
    op = ops.If(region(ops.Identity()), region(ops.Identity()))
    with pytest.raises(ShapeError, match="must be a bool tensor"):
        op.infer([Operand(TensorType(F, ())), Operand(TensorType(F, (2, 3)))])


def test_a_loop_that_runs_a_symbolic_number_of_times_stacks_that_many_scans() -> None:
    op = next(iter(ops.Loop.cases())).op
    state = Operand(TensorType(F, (2,)))
    trips = Operand(TensorType(DType.INT64, ()), None, (N,))
    made = op.infer([trips, None, state, state])
    assert made == (TensorType(F, (2,)), TensorType(F, (N, 2)))


def test_a_loop_whose_trips_are_unknown_stacks_its_count_symbol() -> None:
    op = next(iter(ops.Loop.cases())).op
    state = Operand(TensorType(F, (2,)))
    made = op.infer([Operand(TensorType(DType.INT64, ())), flag(), state, state])
    assert made[1] == TensorType(F, (SymbolicDim.symbol("loop_count"), 2))


def test_a_state_that_grows_is_refused() -> None:
    body = Graph("body")
    body.add_input("trip", TensorType(DType.INT64, ()))
    condition = body.add_input("condition", TensorType(DType.BOOL, ()))
    state = body.add_input("state", TensorType(F, (2,)))
    body.outputs = [condition, body.add(ops.Concat(0), state, state, name="grown").output]
    with pytest.raises(ShapeError, match=r"state 0 of loop changes from float32\[2\]"):
        ops.Loop(body, 1).infer([None, flag(), Operand(TensorType(F, (2,)))])


def test_a_loop_without_an_end_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smelt.ops.loop.MAXIMUM_TRIPS", 5)
    case = next(iter(ops.Loop.cases()))
    with pytest.raises(ShapeError, match="not ended after 5 trips"):
        case.op.reference(None, np.asarray(1, np.bool_), *case.inputs[2:])


def test_a_region_inside_a_region_is_inferred_and_run() -> None:
    inner = ops.If(region(ops.Neg()), region(ops.Identity()))
    body = Graph("body")
    body.add_input("trip", TensorType(DType.INT64, ()))
    condition = body.add_input("condition", TensorType(DType.BOOL, ()))
    state = body.add_input("state", TensorType(F, (2, 3)))
    turned = body.add(inner, condition, state, name="turned").output
    body.outputs = [condition, turned]
    op = ops.Loop(body, 1)
    start = np.ones((2, 3), np.float32)
    (made,) = op.reference(np.asarray(3, np.int64), None, start)
    np.testing.assert_array_equal(made, -start)
    read = ops.op_from_json(ops.op_to_json(op))
    np.testing.assert_array_equal(read.reference(np.asarray(2, np.int64), None, start)[0], start)
