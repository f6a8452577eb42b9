"""If and Loop infer and run their regions."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import smelt
from smelt import ops
from smelt.errors import ShapeError
from smelt.interp import interpret
from smelt.ir import Graph, Op, Operand
from smelt.types import DType, Limit, SymbolicDim, TensorType, collect_guards

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
    with pytest.raises(ShapeError, match="passes 0 values to region 'identity', which has 1 input"):
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
    with pytest.raises(ShapeError, match=r"loop-carried value 0 enters the body as float32\[2\]"):
        ops.Loop(body, 1).infer([None, flag(), Operand(TensorType(F, (2,)))])


def test_a_loop_without_an_end_is_stopped_by_the_limits_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Limit.MAX_LOOP_TRIPS, "most", 5)
    case = next(iter(ops.Loop.cases()))
    with pytest.raises(ShapeError, match="6 trips; the limit MAX_LOOP_TRIPS is 5"):
        case.op.reference(None, np.asarray(1, np.bool_), *case.inputs[2:])


def _counting_body(*, ends: bool) -> Graph:
    """A body whose only result is the trip, and that ends behind the captured one if ``ends``."""
    body = Graph("body")
    trip = body.add_input("trip", TensorType(DType.INT64, ()))
    condition = body.add_input("condition", TensorType(DType.BOOL, ()))
    last = body.add_input("last", TensorType(DType.INT64, ()))
    goes_on = body.add(ops.Less(), trip, last, name="less").output if ends else condition
    body.outputs = [goes_on, body.add(ops.Identity(), trip, name="kept").output]
    return body


@pytest.mark.parametrize("most", [{}, {"loop_count": 3}])
def test_too_many_trips_are_refused_before_the_first(
    monkeypatch: pytest.MonkeyPatch, most: dict[str, int]
) -> None:
    monkeypatch.setattr(ops.Identity, "reference", _fail)
    arrays = (np.asarray(1 << 62), None, np.asarray(0))
    with pytest.raises(ShapeError, match=r"4,?611,?686,?018,?427,?387,?904.*at most 3|TRIPS is"):
        ops.Loop(_counting_body(ends=False), 0).reference_within(most, *arrays)


def _fail(*_: object) -> None:
    raise AssertionError("a trip has begun")


@pytest.mark.parametrize("trips", [None, np.asarray(1 << 62)])
def test_a_loop_that_a_condition_ends_is_refused_at_the_trip_that_is_too_many(
    monkeypatch: pytest.MonkeyPatch, trips: Any
) -> None:
    op = ops.Loop(_counting_body(ends=True), 0)
    most = {"loop_count": 3}
    (stack,) = op.reference_within(most, trips, None, np.asarray(2))
    assert stack.tolist() == [0, 1, 2]
    begun: list[int] = []

    def listen(_: ops.Identity, x: Any) -> tuple[Any]:
        begun.append(int(x))
        return (x,)

    monkeypatch.setattr(ops.Identity, "reference", listen)
    with pytest.raises(ShapeError, match=r"loop_count is 4, .*maximum 3.*max_workspace"):
        op.reference_within(most, trips, None, np.asarray(1 << 40))
    assert begun == [0, 1, 2]


def test_a_loop_that_stacks_too_much_stops_before_the_memory_is_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Limit.MAX_LOOP_BYTES, "most", 1000)
    case = next(iter(ops.Loop.cases()))
    assert len(case.op.reference(np.asarray(7, np.int64), *case.inputs[1:])[1]) == 7
    with pytest.raises(ShapeError, match="MAX_LOOP_BYTES is 1,000"):
        case.op.reference(np.asarray(8, np.int64), *case.inputs[1:])


@pytest.mark.parametrize(
    ("trips", "words"),
    [
        ((1 << 63) - 1, "9,223,372,036,854,775,807 trips; the limit MAX_LOOP_TRIPS"),
        (1 << 24, "MAX_LOOP_BYTES is 2,147,483,648"),
    ],
)
def test_a_constant_number_of_trips_is_refused_before_it_is_run(trips: int, words: str) -> None:
    body = Graph("body")
    body.add_input("trip", TensorType(DType.INT64, ()))
    on = body.add_input("condition", TensorType(DType.BOOL, ()))
    state = body.add_input("state", TensorType(F, (64,)))
    body.outputs = [on, state, body.add(ops.Neg(), state, name="row").output]
    operands = [Operand.constant(np.asarray(trips)), None, Operand(TensorType(F, (64,)))]
    with pytest.raises(ShapeError, match=words):
        ops.Loop(body, 1).infer(operands)


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


def test_a_branch_refuses_extents_that_its_types_take_as_equal() -> None:
    branch = Graph("then")
    x = branch.add_input("x", TensorType(F, (2, 3)))
    bias = branch.add_constant(np.ones((4,), np.float32), "bias")
    branch.outputs = [x]
    op = ops.If(branch, region(ops.Identity()))
    op.infer([flag(), Operand(TensorType(F, (2, N)))])
    branch.outputs = [branch.add(ops.Add(), x, bias, name="sum").output]
    assert [str(guard.what) for guard in branch.nodes[0].guards] == [
        "axis -1 of the broadcast shapes [2, n] and [4]"
    ]
    with pytest.raises(ShapeError, match=r"add 'sum': axis -1 .*: 1 \(n\) must equal 4"):
        op.reference(np.asarray(1, np.bool_), np.ones((2, 1), np.float32))


def test_a_trip_refuses_a_state_of_another_shape_than_the_body_was_inferred_for() -> None:
    body = Graph("body")
    body.add_input("trip", TensorType(DType.INT64, ()))
    condition = body.add_input("condition", TensorType(DType.BOOL, ()))
    state = body.add_input("state", TensorType(F, (2,)))
    marked = body.add(ops.NonZero(), state, name="marked").output
    flat = body.add(ops.Reshape(), marked, body.add_constant(np.array([-1]), "all"), name="flat")
    body.outputs = [condition, body.add(ops.Cast(F), flat.output, name="next").output]
    op = ops.Loop(body, 1)
    (made,) = op.infer([None, flag(), Operand(TensorType(F, (2,)))])
    assert made == TensorType(F, (2,))
    three = np.asarray(3, np.int64)
    with pytest.raises(
        ShapeError, match=r"the result state does not have .*: axis 0 must be 2, not 1"
    ):
        op.reference(three, None, np.asarray([0, 1], np.float32))


def test_a_loop_assumes_that_no_trip_changes_an_extent() -> None:
    body = Graph("body")
    body.add_input("trip", TensorType(DType.INT64, ()))
    condition = body.add_input("condition", TensorType(DType.BOOL, ()))
    body.add_input("state", TensorType(F, (2,)))
    other = body.add_input("other", TensorType(F, (2,)))
    body.outputs = [condition, body.add(ops.Identity(), other, name="next").output]
    op = ops.Loop(body, 1)
    start, capture = Operand(TensorType(F, (N,))), Operand(TensorType(F, (4,)))
    with collect_guards() as guards:
        assert op.infer([None, flag(), start, capture]) == (TensorType(F, (4,)),)
    assert [str(g.violation({"n": 5})) for g in guards] == [
        "axis 0 of loop-carried value 0 before and after a trip: 5 (n) must equal 4"
    ]


def test_trips_whose_scans_differ_in_an_extent_are_refused_with_both() -> None:
    body = Graph("body")
    body.add_input("trip", TensorType(DType.INT64, ()))
    condition = body.add_input("condition", TensorType(DType.BOOL, ()))
    state = body.add_input("state", TensorType(F, (3,)))
    one = body.add_constant(np.ones(1, np.float32), "one")
    less = body.add(ops.Sub(), state, one, name="less").output
    positive = body.add(ops.Relu(), less, name="positive").output
    body.symbol_bounds["count"] = 3
    found = body.add(ops.NonZero("count"), positive, name="found").output
    body.outputs = [condition, less, found]
    graph = Graph("outer")
    start = graph.add_input("start", TensorType(F, (3,)))
    trips = graph.add_constant(np.asarray(4), "trips")
    loop = graph.add(ops.Loop(body, 1, "trips"), trips, None, start, name="stacking")
    graph.symbol_bounds["count"] = 3
    graph.outputs = list(loop.outputs)
    words = (
        r"loop 'stacking'.*: axis 1 of scan output 0 of loop has 3 elements in iteration 0 "
        "and 2 in iteration 2"
    )
    x = np.array([9, 9, 3], np.float32)
    for run in (partial(interpret, graph), smelt.build(graph, tune="none").run):
        with pytest.raises(ShapeError, match=words):
            run({"start": x})
