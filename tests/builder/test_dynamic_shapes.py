"""Engines for ranges of shapes: at each shape the right answer, or a refusal that says why."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

import smelt
from smelt import ops
from smelt.errors import (
    BindingError,
    BuildError,
    ContextError,
    IndexRangeError,
    ShapeError,
    UnboundSymbolError,
)
from smelt.interp import interpret
from smelt.ir import Graph
from smelt.runtime import Stream
from smelt.types import DType, SymbolicDim, TensorType
from tests.support.verdicts import compare_verdicts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from smelt.ir import Array, Value
    from smelt.runtime import Engine
    from smelt.types import Dim

RNG = np.random.default_rng(0)
N = SymbolicDim.symbol("n")


def tensor(*shape: Dim | str, dtype: DType = DType.FLOAT32) -> TensorType:
    return TensorType(
        dtype, tuple(SymbolicDim.symbol(d) if isinstance(d, str) else d for d in shape)
    )


def rand(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def agree(graph: Graph, engine: Engine, **inputs: Array) -> None:
    """The engine and the references give the same, or refuse with the same words."""
    with engine.create_context(threads=1) as context:
        made = answer(lambda: context.run(inputs))
    wanted = answer(lambda: interpret(graph, inputs))
    if isinstance(made, str) or isinstance(wanted, str):
        assert made == wanted
        return
    for name, array in wanted.items():
        assert made[name].shape == array.shape
        assert np.allclose(made[name], array, 1e-4, 1e-5)


def answer(run: Callable[[], Mapping[str, Array]]) -> Mapping[str, Array] | str:
    """What a run returns, or what its ShapeError says."""
    try:
        return run()
    except ShapeError as error:
        return str(error)


def build(graph: Graph, **shapes: tuple[tuple[int, ...], ...]) -> Engine:
    return smelt.build(graph, shapes=shapes, tune="none")


def test_the_inner_extents_of_a_product_are_compared_at_each_run() -> None:
    graph = Graph()
    a, b = graph.add_input("a", tensor(4, "h")), graph.add_input("b", tensor("k", 4))
    graph.outputs = [graph.add(ops.MatMul(), a, b, name="product").output]
    ranges = {"a": ((4, 1), (4, 8), (4, 4096)), "b": ((1, 4), (8, 4), (4096, 4))}
    engine = build(graph, **ranges)
    for h, k in ((4, 4), (4096, 4096), (4, 1), (4, 4096), (8, 3), (1, 4)):
        agree(graph, engine, a=rand(4, h), b=rand(k, 4))


def _unet() -> Graph:
    graph = Graph()
    x = graph.add_input("x", tensor(1, 3, "h", "w"))
    pooled = graph.add(ops.MaxPool(kernel_shape=(2, 2), strides=(2, 2)), x, name="pool").output
    up = ops.ConvTranspose(kernel_shape=(2, 2), strides=(2, 2))
    filters = graph.add_constant(rand(3, 3, 2, 2), "filters")
    grown = graph.add(up, pooled, filters, name="grow").output
    graph.outputs = [graph.add(ops.Concat(1), x, grown, name="join").output]
    return graph


def test_a_shortcut_that_does_not_fit_is_refused_with_op_axes_and_extents() -> None:
    graph = _unet()
    engine = build(graph, x=((1, 3, 2, 2), (1, 3, 16, 16), (1, 3, 34, 34)))
    for extents in ((16, 16), (34, 18), (5, 5), (17, 16), (16, 19)):
        agree(graph, engine, x=rand(1, 3, *extents))
    with (
        engine.create_context() as context,
        pytest.raises(ShapeError, match=r"'join': axis 3 of .*: 19 \(w\) must equal 18"),
    ):
        context.run({"x": rand(1, 3, 16, 19)})


def test_a_range_is_refused_where_its_best_shape_is_illegal() -> None:
    with pytest.raises(ShapeError, match="differ on an axis other than"):
        build(_unet(), x=((1, 3, 2, 2), (1, 3, 15, 16), (1, 3, 34, 34)))


def test_an_extent_that_is_equal_or_broadcasts_at_the_ends_is_checked_between_them() -> None:
    graph = Graph()
    x = graph.add_input("x", tensor("n", 4))
    other = graph.add_constant(rand(300, 4), "other")
    graph.outputs = [graph.add(ops.Add(), x, other, name="sum").output]
    engine = build(graph, x=((1, 4), (300, 4), (300, 4)))
    for rows in (300, 2, 299):
        agree(graph, engine, x=rand(rows, 4))


def test_a_tensor_that_is_largest_between_the_ends_of_a_range_has_room() -> None:
    graph = Graph()
    x = graph.add_input("x", tensor("n"))
    extent = graph.add(ops.Shape(), x, name="extent").output
    whole = graph.add_constant(np.array([100]), "whole")
    rest = graph.add(ops.Sub(), whole, extent, name="rest").output
    shape = graph.add(ops.Concat(0), extent, rest, name="shape").output
    axes = graph.add_constant(np.array([1]), "axes")
    column = graph.add(ops.Unsqueeze(), x, axes, name="column").output
    made = graph.add(ops.Expand(), column, shape, name="expand").output
    made = graph.add(ops.Softmax(1), made, name="softmax").output
    graph.outputs = [graph.add(ops.Relu(), made, name="relu").output]
    engine = build(graph, x=((1,), (2,), (99,)))
    for rows in (1, 50, 99, 49):
        agree(graph, engine, x=rand(rows))


def _counted(tail: str) -> tuple[Graph, Mapping[str, tuple[int, ...]]]:
    """What NonZero finds in a vector, and what depends on how much that is."""
    graph = Graph()
    x = graph.add_input("x", tensor("n"))
    y = graph.add_input("y", tensor(6))
    graph.symbol_bounds["count"] = N
    found = graph.add(ops.NonZero("count"), x, name="found").output
    if tail == "equal":
        squeezed = graph.add(ops.Cast(DType.FLOAT32), found, name="cast").output
        graph.outputs = [graph.add(ops.Add(), squeezed, y, name="sum").output]
    else:
        extent = graph.add(ops.Shape(start=1), found, name="extent").output
        six = graph.add_constant(np.array([6]), "six")
        times = graph.add(ops.Sub(), six, extent, name="times").output
        graph.outputs = [graph.add(ops.Tile(), y, times, name="tile").output]
    return graph, {"x": (1, 9)}


@pytest.mark.parametrize("tail", ["equal", "less"])
def test_a_count_that_a_run_finds_is_checked_before_the_next_step(tail: str) -> None:
    graph, _ = _counted(tail)
    engine = build(graph, x=((1,), (6,), (9,)))
    for ones, length in ((6, 9), (6, 6), (5, 9), (0, 4), (9, 9)):
        x = np.zeros(length, np.float32)
        x[:ones] = 1
        agree(graph, engine, x=x, y=rand(6))


def test_memory_for_a_count_follows_the_range_of_shapes() -> None:
    """The bound was once taken for inputs of 1,024 elements, whatever the range."""
    graph = Graph()
    graph.add_input("x", tensor("n"))
    graph.symbol_bounds["count"] = N
    graph.outputs = [graph.add(ops.NonZero("count"), graph.inputs[0], name="found").output]
    engine = build(graph, x=((1,), (10,), (5000,)))
    agree(graph, engine, x=np.ones(5000, np.float32))
    agree(graph, engine, x=np.ones(3, np.float32))


def test_a_batch_below_one_is_refused() -> None:
    graph = Graph()
    graph.outputs = [graph.add(ops.Relu(), graph.add_input("x", tensor("n")), name="y").output]
    with pytest.raises(BuildError, match="max_batch_size"):
        smelt.build(graph, max_batch_size=0, shapes={"x": (3,)})


def test_a_count_that_nothing_of_the_plan_depends_on_is_no_symbol_of_it() -> None:
    """One inside a branch, or of a node that nobody reads, was asked of the caller at each run."""
    branches: list[Graph] = []
    for name in ("then", "else"):
        branch = Graph(name)
        x = branch.add_input("x", tensor("n"))
        found = branch.add(ops.NonZero(f"{name}_count"), x, name=f"{name}_found").output
        summed = branch.add(ops.ReduceSum(keepdims=0), found, name=f"{name}_sum").output
        branch.outputs = [summed]
        branches.append(branch)
    graph = Graph()
    flag = graph.add_input("flag", tensor(dtype=DType.BOOL))
    x = graph.add_input("x", tensor("n"))
    graph.add(ops.NonZero("unused_count"), x, name="unused")
    graph.symbol_bounds |= dict.fromkeys(("then_count", "else_count", "unused_count"), N)
    graph.outputs = [graph.add(ops.If(branches[0], branches[1]), flag, x, name="choice").output]
    engine = build(graph, x=((1,), (6,), (9,)))
    agree(graph, engine, x=rand(5), flag=np.array(True))  # noqa: FBT003


def test_an_index_into_an_axis_without_elements_is_refused() -> None:
    graph = Graph("scatter")
    x = graph.add_input("x", tensor("n", 5))
    at = graph.add_input("at", tensor(1, 2, dtype=DType.INT64))
    values = graph.add_input("values", tensor(1))
    graph.outputs = [graph.add(ops.ScatterND(), x, at, values, name="put").output]
    inputs = {"x": rand(0, 5), "at": np.zeros((1, 2), np.int64), "values": rand(1)}
    for most in (0, 4):  # whether the axis is known to have none or not
        shapes = ((0, 5), (0, 5), (most, 5))
        fixed = {"at": ((1, 2),) * 3, "values": ((1,),) * 3}
        with (
            build(graph, x=shapes, **fixed) as engine,
            engine.create_context() as context,
            pytest.raises(IndexRangeError, match="axis of 0"),
        ):
            context.run(inputs)


def test_a_slice_of_nothing_is_a_result_without_elements() -> None:
    graph = Graph()
    x = graph.add_input("x", tensor(3, 5))
    bounds = [graph.add_constant(np.array([n]), name) for n, name in ((3, "from"), (9, "to"))]
    axes = graph.add_constant(np.array([0]), "axes")
    sliced = graph.add(ops.Slice(), x, *bounds, axes, name="rows").output
    graph.outputs = [graph.add(ops.Relu(), sliced, name="y").output]
    agree(graph, smelt.build(graph, tune="none"), x=rand(3, 5))


def test_columns_beside_each_other_leave_bytes_between_them_to_their_own_buffer() -> None:
    graph = Graph()
    x = graph.add_input("x", tensor("n", 1))
    rows = graph.add(ops.Concat(0), x, x, name="rows").output
    columns = graph.add(ops.Concat(1), rows, rows, rows, name="columns").output
    axes = graph.add_constant(np.array([1]), "axes")
    graph.outputs = [graph.add(ops.ReduceL2(), columns, axes, name="norm").output]
    engine = build(graph, x=((1, 1), (4, 1), (9, 1)))
    for n in (1, 2, 4, 9):
        agree(graph, engine, x=rand(n, 1))


# ---- counts


def counted(graph: Graph, x: Value, name: str, most: Dim) -> Value:
    """Where a tensor is not zero: as many columns as only a run tells."""
    graph.symbol_bounds[name] = most
    return graph.add(ops.NonZero(name), x, name=f"where {name}").output


def integers(graph: Graph, *numbers: int) -> Value:
    return graph.add_constant(np.array(numbers), f"numbers {numbers}")


def test_what_several_counts_are_concatenated_into_is_laid_out_once_all_are_known() -> None:
    """The first part was once written in place, by strides that rest on the second one's count."""
    graph = Graph()
    x = graph.add_input("x", tensor("n", 3))
    parts = [counted(graph, x, "k", N * 3)]
    positive = graph.add(ops.Relu(), x, name="relu").output
    parts.append(counted(graph, positive, "l", N * 3))
    places = graph.add(ops.Concat(1), *parts, name="places").output
    rows = graph.add(ops.Transpose((1, 0)), places, name="rows").output
    graph.outputs = [graph.add(ops.GatherND(), x, rows, name="found").output, places]
    for shapes in (((1, 3), (4, 3), (9, 3)), [(1, 3), (4, 3), (9, 3)]):
        engine = smelt.build(graph, shapes={"x": shapes}, tune="none")
        for n in (1, 4, 9):
            agree(graph, engine, x=rand(n, 3) * RNG.integers(0, 2, (n, 3)).astype(np.float32))


def test_a_count_that_can_never_be_as_an_op_needs_it_is_refused_with_the_op() -> None:
    """The memory for so few did not fit the op's view: the engine was called damaged."""
    graph = Graph()
    found = counted(graph, graph.add_input("x", tensor("n")), "k", N)
    shaped = graph.add(ops.Reshape(), found, integers(graph, 2, 3), name="six").output
    picked = graph.add(ops.Gather(0), shaped, integers(graph, 1), name="row").output
    graph.outputs = [picked]
    for shapes in ([(2,), (6,)], ((1,), (2,), (4,))):
        engine = smelt.build(graph, shapes={"x": shapes}, tune="none")
        agree(graph, engine, x=np.ones(2, np.float32))
    agree(graph, smelt.build(graph, shapes={"x": (6,)}, tune="none"), x=np.ones(6, np.float32))
    with pytest.raises(ShapeError, match=r"'six': the element counts .*: 0 \(k\) must equal 6"):
        smelt.build(graph, shapes={"x": (0,)}, tune="none")


def test_a_value_that_shapes_settle_to_what_an_op_refuses_is_no_fault_of_a_pass() -> None:
    graph = Graph()
    extent = graph.add(ops.Shape(), graph.add_input("x", tensor("n")), name="extent").output
    table = graph.add_constant(rand(3), "table")
    graph.outputs = [graph.add(ops.Gather(0), table, extent, name="entry").output]
    agree(graph, smelt.build(graph, shapes={"x": (2,)}, tune="none"), x=rand(2))
    with pytest.raises(ShapeError, match=r"'entry': index 7 is out of range for an axis of 3"):
        smelt.build(graph, shapes={"x": (7,)}, tune="none")


def _doubled_beyond_three() -> Graph:
    """X twice behind itself where y has more than three elements: one count, or none."""
    branches = [Graph("then"), Graph("else")]
    for branch in branches:
        branch.add_input("x", tensor("n"))
    long, short = branches
    twice = long.inputs * 2
    long.outputs = [long.add(ops.Concat(0), *twice, name="twice").output]
    short.outputs = [short.add(ops.Relu(), *short.inputs, name="once").output]
    graph = Graph()
    x, y = graph.add_input("x", tensor("n")), graph.add_input("y", tensor("m"))
    extent = graph.add(ops.Shape(), y, name="extent").output
    is_long = graph.add(ops.Greater(), extent, integers(graph, 3), name="is long").output
    graph.symbol_bounds["c_0_0"] = N * 2
    choice = graph.add(ops.If(branches[0], branches[1], "c"), is_long, x, name="choice").output
    graph.outputs = [graph.add(ops.Neg(), choice, name="negated").output]
    return graph


def test_plans_may_settle_a_count_each_in_its_own_way() -> None:
    graph = _doubled_beyond_three()
    shapes = {"x": ((1,), (3,), (9,)), "y": [(2,), (5,)]}
    engine = smelt.build(graph, shapes=shapes, tune="none")
    assert [plan.outputs for plan in engine.header.plans] == [((N,),), ((N * 2,),)]
    unsigned = smelt.load(engine.serialize())
    for n, m in ((1, 2), (4, 5), (9, 5), (9, 2)):
        for made in (engine, unsigned):
            agree(graph, made, x=rand(n), y=rand(m))
        given = rand(n), rand(m), np.zeros(n * (2 if m > 3 else 1), np.float32)
        with engine.create_context() as context:
            context.execute(1, given)
        assert np.array_equal(given[2], engine.run({"x": given[0], "y": given[1]})["negated"])


def test_an_extent_that_a_guard_sets_in_one_plan_leaves_its_count_to_the_run() -> None:
    graph = Graph()
    x = graph.add_input("x", tensor("n"))
    found = counted(graph, x, "k", N)
    number = graph.add(ops.Cast(DType.FLOAT32), found, name="number").output
    row = graph.add(ops.Unsqueeze(), x, integers(graph, 0), name="row").output
    graph.outputs = [graph.add(ops.Concat(0), number, row, name="rows").output, found]
    fixed = smelt.build(graph, shapes={"x": [(2,), (6,)]}, tune="none")
    for n in (2, 6):
        agree(graph, fixed, x=np.ones(n, np.float32))
        with pytest.raises(ShapeError, match=rf"'rows'.*: 0 \(k\) must equal {n}"):
            fixed.run({"x": np.zeros(n, np.float32)})


def test_a_small_output_that_is_largest_between_the_ends_has_room() -> None:
    """The room was once taken at the largest symbols, where this extent is negative."""
    graph = Graph()
    x = graph.add_input("x", tensor("n"))
    y = graph.add_input("y", tensor(6))
    bounds = [graph.add_constant(np.array([n]), name) for n, name in ((0, "from"), (-1, "to"))]
    steps = [graph.add_constant(np.array([n]), name) for n, name in ((0, "axes"), (-1, "steps"))]
    sliced = graph.add(ops.Slice(), x, *bounds, *steps, name="back").output
    graph.outputs = [graph.add(ops.Relu(), v, name=f"relu {v.name}").output for v in (sliced, y)]
    engine = build(graph, x=((0,), (6,), (6,)))
    for n in range(7):
        agree(graph, engine, x=rand(n), y=rand(6))


@pytest.mark.parametrize("step", [-(1 << 63), (1 << 63) - 1])
def test_a_step_longer_than_every_axis_takes_its_first_element(step: int) -> None:
    graph = Graph()
    x = graph.add_input("x", tensor("n", "m"))
    start, end = (0, (1 << 63) - 1) if step > 0 else (-1, -(1 << 63))
    bounds = [
        graph.add_constant(np.array([number]), name)
        for name, number in (("from", start), ("to", end), ("axes", 1), ("steps", step))
    ]
    graph.outputs = [graph.add(ops.Slice(), x, *bounds, name="first").output]
    engine = build(graph, x=((3, 5), (4, 6), (7, 9)))
    for shape in ((3, 5), (7, 9)):
        agree(graph, engine, x=rand(*shape))


def test_a_squeeze_of_whatever_is_one_follows_the_shapes_of_a_plan() -> None:
    graph = Graph()
    x = graph.add_input("x", tensor("k", 3, 1))
    graph.outputs = [graph.add(ops.Squeeze(), x, name="y").output]
    for shape, wanted in (((1, 3, 1), (3,)), ((4, 3, 1), (4, 3))):
        engine = smelt.build(graph, shapes={"x": shape}, tune="none")
        assert engine.run({"x": rand(*shape)})["y"].shape == wanted
    with pytest.raises(
        BuildError,
        match=r"the rank of y depends on the input shapes: the tensor is float32\[3\] or",
    ):
        smelt.build(graph, shapes={"x": [(1, 3, 1), (4, 3, 1)]}, tune="none")
    engine = build(graph, x=((1, 3, 1), (2, 3, 1), (4, 3, 1)))
    for k in (1, 2, 4):
        agree(graph, engine, x=rand(k, 3, 1))


def _convolved(graph: Graph, x: Value, name: str, filters: int) -> Value:
    channels = x.tensor.shape[1]
    assert isinstance(channels, int)
    weights = graph.add_constant(0.02 * rand(filters, channels, 3, 3), f"{name} weights")
    conv = ops.Conv((3, 3), pads=(1, 1, 1, 1))
    return graph.add(conv, x, weights, name=name).output


@pytest.mark.parametrize("axis", [0, 1, 2, 3])
@pytest.mark.parametrize("is_first", [True, False])
def test_the_pads_of_a_part_are_not_its_neighbours_in_a_concatenation(
    axis: int, is_first: bool
) -> None:
    """A part that was written in place was read with its neighbour's edge for padding."""
    graph = Graph()
    x = graph.add_input("x", tensor(2, 8, 5, 9))
    part, other = (_convolved(graph, x, name, 8) for name in ("part", "other"))
    parts = (part, other) if is_first else (other, part)
    joined = graph.add(ops.Concat(axis), *parts, name="joined").output
    pool = ops.MaxPool((3, 3), pads=(1, 1, 1, 1))
    graph.outputs = [
        graph.add(ops.Relu(), joined, name="all").output,
        _convolved(graph, part, "read with pads", 4),
        graph.add(pool, other, name="pooled").output,
        _convolved(graph, joined, "whole with pads", 4),
    ]
    agree(graph, smelt.build(graph, tune="none"), x=rand(2, 8, 5, 9))


def test_the_pads_of_what_a_run_counts_are_made_when_it_is_counted() -> None:
    graph = Graph()
    x = graph.add_input("x", tensor("n", 3, 8, 8))
    chosen = graph.add_input("chosen", tensor("n", dtype=DType.BOOL))
    graph.symbol_bounds["k"] = N
    kept = graph.add(ops.Compress(axis=0, count_symbol="k"), x, chosen, name="kept").output
    graph.outputs = [_convolved(graph, kept, "conv", 16)]
    engine = build(graph, x=((0, 3, 8, 8), (3, 3, 8, 8), (7, 3, 8, 8)), chosen=((0,), (3,), (7,)))
    for n in (1, 3, 7):
        agree(graph, engine, x=rand(n, 3, 8, 8), chosen=RNG.random(n) < 0.6)


def test_a_limit_of_boxes_that_means_all_takes_no_memory() -> None:
    graph = Graph()
    boxes = graph.add_input("boxes", tensor(1, "n", 4))
    scores = graph.add_input("scores", tensor(1, 2, "n"))
    limits = [graph.add_constant(np.array([(1 << 63) - 1]), "most")]
    limits += [graph.add_constant(np.array([v], np.float32), f"at {v}") for v in (0.5, 0.1)]
    suppress = ops.NonMaxSuppression(count_symbol="k")
    inputs = [boxes, scores, *limits]
    graph.symbol_bounds["k"] = N * 2
    graph.outputs = [graph.add(suppress, *inputs, name="kept").output]
    engine = build(
        graph, boxes=((1, 1, 4), (1, 5, 4), (1, 9, 4)), scores=((1, 2, 1), (1, 2, 5), (1, 2, 9))
    )
    agree(graph, engine, boxes=np.abs(rand(1, 9, 4)), scores=np.abs(rand(1, 2, 9)))
    assert suppress.count_bound([None if v is None else v.operand for v in inputs]) == N * 2


def _found(rows: int) -> tuple[Engine, Array]:
    """An engine that finds elements, and marks of which there are three."""
    graph = Graph()
    x = graph.add_input("x", tensor("n", 3))
    graph.symbol_bounds["count"] = 3 * N
    found = graph.add(ops.NonZero("count"), x, name="found").output
    graph.outputs = [found, graph.add(ops.Relu(), x, name="positive").output]
    marks = np.zeros((rows, 3), np.float32)
    marks[0, 0] = marks[0, 2] = marks[1, 1] = 1
    return build(graph, x=((1, 3), (2, 3), (9, 3))), marks


@pytest.mark.parametrize("is_queued", [False, True])
@pytest.mark.parametrize("is_flat", [False, True])
def test_what_a_run_decides_lies_at_the_front_of_its_array_in_the_shape_that_the_context_tells(
    is_queued: bool, is_flat: bool
) -> None:
    engine, marks = _found(4)
    found, positive = np.full((2, 27), -9), np.empty((4, 3), np.float32)
    arrays = [marks, found.reshape(-1) if is_flat else found, positive]
    with engine.create_context() as context, Stream() as stream:
        with pytest.raises(ContextError, match="this context has not completed a run"):
            context.output_shape("found")
        if is_queued:
            context.enqueue(1, arrays, stream)
            stream.synchronize()
        else:
            context.execute(1, arrays)
        shape = context.output_shape("found")
        assert (shape, context.output_shape("positive")) == ((2, 3), (4, 3))
        front = found.reshape(-1)[:6].reshape(shape)
        np.testing.assert_array_equal(front, np.nonzero(marks))
        assert (found.reshape(-1)[6:] == -9).all()
        with pytest.raises(BindingError, match="unknown: nothing"):
            context.output_shape("nothing")
        with pytest.raises(BindingError, match=r"found: .*\[2, 3\], expected \[2, 27\]"):
            context.execute(1, [marks, np.empty((2, 3), np.int64), positive])
        context.run({"x": marks[:2] * 0})
        assert context.output_shape("found") == (2, 0)


def test_a_flat_array_does_not_say_how_many_rows_there_are() -> None:
    engine, marks = _found(2)
    with engine.create_context() as context:
        arrays: list[Array] = [
            marks.reshape(-1),
            np.empty((2, 6), np.int64),
            np.empty((2, 3), np.float32),
        ]
        with pytest.raises(
            BindingError, match=r"extent n, .* does not follow from an address or a flat array"
        ):
            context.execute(1, arrays)
        arrays[0] = marks.reshape(1, 2, 3)
        with pytest.raises(
            BindingError, match=r"x: .*\[1, 2, 3\] does not match \[n, 3\]: the array has rank 3"
        ):
            context.execute(1, arrays)


def test_a_bound_of_unknown_symbols_is_refused() -> None:
    graph = Graph()
    x = graph.add_input("x", tensor("n", 3))
    graph.symbol_bounds["count"] = SymbolicDim.symbol("ghost")
    graph.outputs = [graph.add(ops.NonZero("count"), x, name="found").output]
    with pytest.raises(UnboundSymbolError, match="the bound of count is ghost, but the network"):
        build(graph, x=((1, 3), (2, 3), (9, 3)))


def test_an_extent_that_is_negative_for_each_count_is_refused_by_the_run() -> None:
    graph = Graph()
    x = graph.add_input("x", tensor("n", 3))
    graph.symbol_bounds["count"] = 3 * N
    found = graph.add(ops.NonZero("count"), x, name="found").output
    rows = graph.add(ops.Shape(start=1, end=2), found, name="rows").output
    nine = graph.add_constant(np.array([9]), "nine")
    extent = graph.add(ops.Sub(), rows, nine, name="extent").output
    one = graph.add_constant(np.ones(1, np.float32), "one")
    graph.outputs = [graph.add(ops.Expand(), one, extent, name="expand").output]
    engine = build(graph, x=((1, 3), (1, 3), (1, 3)))
    with engine.create_context() as context:
        compare_verdicts(context)
        with pytest.raises(ShapeError, match=r"-6 .* must be at least 0"):
            context.run({"x": np.ones((1, 3), np.float32)})
