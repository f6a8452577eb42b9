"""A refit of a constant from which the build made a decision is refused; others take effect."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

import smelt
from smelt import ops
from smelt.errors import BindingError, SmeltError
from smelt.interp import interpret
from smelt.ir import Case, Constant, Graph
from smelt.ops import ALL_OPS
from smelt.types import DType, SymbolicDim, TensorType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from smelt.ir import Array, Value

    Make = Callable[[Graph, Value, Value], Value]

_INT64, _FLOAT32 = DType.INT64, DType.FLOAT32


def _cases() -> Iterator[Case]:
    """Yield the first case of each op for each choice of constants, and one of all but input 0."""
    for cls in ALL_OPS:
        chosen: dict[frozenset[int], Case] = {}
        for case in cls.cases():
            given = frozenset(i for i, a in enumerate(case.inputs) if a is not None)
            for constants in (case.constants & given, given - {0}):
                made = Case(case.name, case.op, case.inputs, case.tolerance, constants)
                chosen.setdefault(constants, made)
        yield from (case for constants, case in chosen.items() if constants)


def _graph_of(case: Case, arrays: dict[int, Array]) -> Graph:
    """Return the op with constants that a Where reads, too; kernels must read those."""
    graph = Graph("case")
    flag = graph.add_input("flag", TensorType(DType.BOOL, ()))
    inputs: list[Value | None] = []
    for index, array in enumerate(case.inputs):
        if array is None:
            inputs.append(None)
            continue
        kind = TensorType(DType.from_numpy(array.dtype), array.shape)
        is_constant = index in case.constants
        inputs.append(
            graph.add_constant(arrays[index], f"k{index}")
            if is_constant
            else graph.add_input(f"x{index}", kind)
        )
    graph.outputs += graph.add(case.op, *inputs, name="y").outputs
    for index in sorted(case.constants):
        constant = inputs[index]
        assert constant is not None
        other = graph.add_input(f"x{index}", constant.type)
        second = graph.add(ops.Where(), flag, constant, other, name=f"second{index}")
        graph.outputs.append(second.output)
    return graph


def _other_numbers(array: Array) -> Iterator[Array]:
    """Yield other elements for a constant, by which decisions would be others."""
    yield np.flip(array).copy()
    if array.dtype == np.bool_:
        yield ~array
        return
    for number in (0, 1, 2):
        yield np.full_like(array, number)
    yield (array + 1).astype(array.dtype)


def _equal(actual: Array, wanted: Array, tolerance: float) -> bool:
    if actual.shape != wanted.shape or actual.dtype != wanted.dtype:
        return False
    if wanted.dtype.kind in "iub":
        return bool(np.array_equal(actual, wanted))
    wide = wanted.astype(np.float64)
    finite = np.abs(wide[np.isfinite(wide)])
    most = tolerance * max(1.0, float(finite.max(initial=0.0)))
    return bool(np.allclose(actual.astype(np.float64), wide, 0, most, equal_nan=True))


def _is_refitted_or_refused(
    engine: smelt.Engine, name: str, array: Array, graph: Graph, feed: dict[str, Array], most: float
) -> bool:
    """Return whether a refit is refused, or has the results of the network that it leads to."""
    wanted = interpret(graph, feed)
    try:
        engine.refit({name: array})
    except BindingError:
        return True
    results = engine.run(feed)
    return all(_equal(results[n], wanted[n], most) for n in wanted)


def _gives_the_same_when_reloaded(engine: smelt.Engine, feed: dict[str, Array]) -> bool:
    """Return whether the engine, saved without a signature and built again, gives the same bits."""
    with smelt.load(engine.serialize(sign=False)) as other:
        wanted, results = engine.run(feed), other.run(feed)
    return all(results[n].tobytes() == wanted[n].tobytes() for n in wanted)


@pytest.mark.parametrize("case", [pytest.param(c, id=f"{c.op.name}-{c.name}") for c in _cases()])
@pytest.mark.slow
def test_a_constant_of_any_op_is_refitted_everywhere_or_refused(case: Case) -> None:
    known = {i: a for i, a in enumerate(case.inputs) if i in case.constants and a is not None}
    feed = {f"x{i}": a for i, a in enumerate(case.inputs) if a is not None}
    feed["flag"] = np.asarray(1, np.bool_)
    try:
        engine = smelt.build(_graph_of(case, known), tune="none")
    except SmeltError as error:
        pytest.skip(f"it cannot be built: {error}")
    with engine:
        for index, array in known.items():
            is_reloaded = False
            for other in _other_numbers(array):
                try:
                    graph = _graph_of(case, known | {index: other})
                    interpret(graph, feed)
                except SmeltError:
                    continue  # these numbers are none of a network
                assert _is_refitted_or_refused(
                    engine, f"k{index}", other, graph, feed, case.tolerance
                ), f"k{index} = {other}"
                if not is_reloaded:
                    assert _gives_the_same_when_reloaded(engine, feed)
                    is_reloaded = True
                try:
                    engine.refit({f"k{index}": array})
                except BindingError:
                    break


def _pair(*numbers: float) -> Array:
    return np.asarray(numbers, np.float32)


def _branches() -> ops.If:
    then, other = Graph("then"), Graph("else")
    for branch, op in ((then, ops.Neg()), (other, ops.Abs())):
        value = branch.add_input("v", TensorType(_FLOAT32, (3, 4)))
        branch.outputs.append(branch.add(op, value, name="r").output)
    return ops.If(then, other)


def _extent(graph: Graph, k: Value, x: Value) -> Value:
    """Return the extents n + k, as a vector."""
    graph.inputs[0].type = TensorType(_FLOAT32, (SymbolicDim.symbol("n"), 4))
    extents = graph.add(ops.Shape(0, 1), x, name="extents").output
    return graph.add(ops.Add(), extents, k, name="sum").output


def _one(op: ops.Op, *more: Array | int, first: bool = False) -> Make:
    """Return a maker of a node that reads x and k, or k and x, and further constants."""

    def make(graph: Graph, x: Value, k: Value) -> Value:
        rest = [graph.add_constant(np.asarray(m), f"c{i}") for i, m in enumerate(more)]
        return graph.add(op, *((k, x) if first else (x, k)), *rest, name="op").output

    return make


def _resize(index: int) -> Make:
    def make(graph: Graph, x: Value, k: Value) -> Value:
        inputs: list[Value | None] = [x, None, None, None]
        inputs[index] = k
        return graph.add(ops.Resize(mode="nearest"), *inputs, name="op").output

    return make


def _range(index: int) -> Make:
    """Return a maker of a Range to an open limit, with k as its start or step."""

    def make(graph: Graph, x: Value, k: Value) -> Value:
        zero, one = (graph.add_constant(np.asarray(v), f"c{v}") for v in (0, 1))
        limit = _extent(graph, graph.add_constant(np.asarray([0]), "none"), x)
        limit = graph.add(ops.Squeeze(), limit, name="limit").output
        bounds = [k if index == 0 else zero, limit, k if index == 2 else one]
        return graph.add(ops.Range(), *bounds, name="op").output

    return make


def _chained(graph: Graph, x: Value, k: Value) -> Value:
    """Return a window whose start is computed from constants by a node."""
    one, three = (graph.add_constant(np.asarray([v]), f"c{v}") for v in (1, 3))
    start = graph.add(ops.Add(), k, one, name="start").output
    return graph.add(ops.Slice(), x, start, three, name="op").output


def _filled(graph: Graph, x: Value, k: Value) -> Value:
    extents = _extent(graph, k, x)
    return graph.add(ops.ConstantOfShape(_INT64, 2), extents, name="op").output


def _written(graph: Graph, x: Value, k: Value) -> Value:
    return _extent(graph, k, x)


def _chosen(graph: Graph, x: Value, k: Value) -> Value:
    return graph.add(_branches(), k, x, name="op").output


def _captured(graph: Graph, x: Value, k: Value) -> Value:
    """Return the result of an If whose regions hold k; a region is code and no weight."""
    flag = graph.add_input("flag", TensorType(DType.BOOL, ()))
    then, other = Graph("then"), Graph("else")
    for branch, op in ((then, ops.Add()), (other, ops.Sub())):
        value = branch.add_input("v", x.type)
        assert k.constant is not None
        result = branch.add(op, value, branch.add_constant(k.constant), name="r").output
        branch.outputs.append(result)
    return graph.add(ops.If(then, other), flag, x, name="op").output


def _integers(graph: Graph, x: Value, k: Value) -> Value:
    """Return a product of bytes with the zero point k."""
    weights = graph.add_constant(np.arange(20, dtype=np.int8).reshape(4, 5), "w")
    data = graph.add(ops.Cast(DType.UINT8), x, name="bytes").output
    return graph.add(ops.MatMulInteger(), data, weights, k, name="op").output


def _normalised(graph: Graph, x: Value, k: Value) -> Value:
    """Return a normalisation of rows with the epsilon k, of which a pass makes one node."""
    axes = graph.add_constant(np.asarray([-1]), "axes")
    ones = graph.add_constant(np.full(4, 2, np.float32), "scale")
    mean = graph.add(ops.ReduceMean(), x, axes, name="mean").output
    centred = graph.add(ops.Sub(), x, mean, name="centred").output
    square = graph.add(ops.Mul(), centred, centred, name="square").output
    variance = graph.add(ops.ReduceMean(), square, axes, name="variance").output
    shifted = graph.add(ops.Add(), variance, k, name="shifted").output
    root = graph.add(ops.Sqrt(), shifted, name="root").output
    value = graph.add(ops.Div(), centred, root, name="unit").output
    return graph.add(ops.Mul(), value, ones, name="op").output


_LISTED: dict[str, tuple[Make, object, object]] = {
    "start of a Slice": (_one(ops.Slice(), np.asarray([3])), [1], [2]),
    "computed start of a Slice": (_chained, [0], [1]),
    "pads": (_one(ops.Pad()), [1, 0, 0, 0], [0, 1, 0, 0]),
    "value of a Pad": (
        lambda g, x, k: (
            g.add(ops.Pad(), x, g.add_constant(np.asarray([1, 0, 0, 0]), "p"), k, name="op").output
        ),
        np.float32(1),
        np.float32(2),
    ),
    "repeats": (_one(ops.Tile()), [1, 2], [2, 1]),
    "shape": (_one(ops.Reshape()), [2, 6], [6, 2]),
    "sizes of a Split": (_one(ops.Split(axis=1)), [1, 3], [3, 1]),
    "axis of a CumSum": (_one(ops.CumSum()), 0, 1),
    "k of a Trilu": (_one(ops.Trilu()), 0, 1),
    "k of a TopK": (_one(ops.TopK()), [1], [2]),
    "axes of a sum": (_one(ops.ReduceSum()), [0], [1]),
    "depth of a OneHot": (_one(ops.OneHot(), _pair(0, 1)), 12, 13),
    "sizes of a Resize": (_resize(3), [6, 8], [8, 6]),
    "scales of a Resize": (
        _resize(2),
        np.asarray([2, 3], np.float32),
        np.asarray([3, 2], np.float32),
    ),
    "condition": (_chosen, True, False),
    "constant of a region": (_captured, np.float32(1), np.float32(2)),
    "start of a Range": (_range(0), 0, 1),
    "step of a Range": (_range(2), 1, 2),
    "extent": (_filled, [1], [2]),
    "extent as a result": (_written, [1], [2]),
    "factor 1": (_one(ops.Mul()), np.ones(4, np.float32), np.full(4, 3, np.float32)),
    "factor 1, first": (_one(ops.Mul(), first=True), np.float32(1), np.float32(3)),
    "term 0": (_one(ops.Add()), np.float32(0), np.float32(5)),
    "zero point": (_integers, np.uint8(0), np.uint8(3)),
    "epsilon": (_normalised, np.float32(0.25), np.float32(4)),
    "index": (_one(ops.Gather(axis=1)), 1, 2),
    "weights": (_one(ops.MatMul()), np.ones((4, 2), np.float32), np.full((4, 2), 2, np.float32)),
}
"""Makers of a value from x, which is float32[3, 4], and from k; the old and the new k."""


def _listed(make: Make, k: Array, *, twice: bool) -> Graph:
    graph = Graph("listed")
    x = graph.add_input("x", TensorType(_FLOAT32, (3, 4)))
    constant = graph.add_constant(Constant("k", k))
    node = make(graph, x, constant).producer
    assert node is not None
    outputs = list(node.outputs)
    if twice:
        flag = graph.add_input("first", TensorType(DType.BOOL, ()))
        other = graph.add_input("other", constant.type)
        outputs.append(graph.add(ops.Where(), flag, constant, other, name="second").output)
    # What a pass removes is read by a node that stays.
    graph.outputs += [graph.add(ops.Identity(), v, name=f"{v.name}/read").output for v in outputs]
    return graph


@pytest.mark.parametrize("twice", [True, False], ids=["read twice", "read once"])
@pytest.mark.parametrize("name", _LISTED)
def test_a_decided_constant_is_refitted_everywhere_or_refused(name: str, *, twice: bool) -> None:
    make, old, new = _LISTED[name]
    old, new = np.asarray(old), np.asarray(new)
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    feed = {"x": x, "first": np.asarray(1, np.bool_), "other": old, "flag": np.asarray(1, np.bool_)}
    graph = _listed(make, old, twice=twice)
    feed = {value.name: feed[value.name] for value in graph.inputs}
    shapes = {"x": ((3, 4), (3, 4), (9, 4))} if "n" in str(graph.inputs[0].type) else None
    with smelt.build(graph, tune="none", shapes=shapes) as engine:
        graph = _listed(make, new, twice=twice)
        assert _is_refitted_or_refused(engine, "k", new, graph, feed, 1e-4)


def test_weights_and_what_only_recipes_read_stay_refittable() -> None:
    """A product of two constants of integers is computed at build time, and again by a refit."""
    graph = Graph("tables")
    x = graph.add_input("x", TensorType(DType.INT32, (4,)))
    a, b = (graph.add_constant(np.arange(4, dtype=np.int32) + n, f"k{n}") for n in (1, 2))
    product = graph.add(ops.Mul(), a, b, name="product").output
    graph.outputs.append(graph.add(ops.Add(), x, product, name="y").output)
    new = np.asarray([5, 7, 9, 2], np.int32)
    with smelt.build(graph, tune="none") as engine:
        engine.refit({"k1": new, "k2": new})
        assert engine.run({"x": np.zeros(4, np.int32)})["y"].tolist() == (new * new).tolist()
