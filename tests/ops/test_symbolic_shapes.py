"""Shapes that depend on symbols are those of the reference once the symbols have values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smelt import ops
from smelt.errors import ShapeError
from smelt.ir import Case, Graph, Operand
from smelt.types import (
    DType,
    SymbolicDim,
    TensorType,
    collect_guards,
    evaluate_dim,
    symbols_of,
)

if TYPE_CHECKING:
    from smelt.ir import Array
    from smelt.types import Dim

N, M = SymbolicDim.symbol("n"), SymbolicDim.symbol("m")
CASES = [
    pytest.param(case, id=f"{cls.name}: {case.name}") for cls in ops.ALL_OPS for case in cls.cases()
]


def symbolic_operand(array: Array | None, *, constant: bool) -> Operand | None:
    """What inference sees of an input when every extent above one is a symbol named after it."""
    if array is None or constant:
        return None if array is None else Operand.constant(array)
    shape = tuple(SymbolicDim.symbol(f"s{e}") if e > 1 else e for e in array.shape)
    return Operand(TensorType(DType.from_numpy(array.dtype), shape))


@pytest.mark.parametrize("case", CASES)
def test_symbols_in_the_inferred_shape_evaluate_to_the_extents_of_the_reference(case: Case) -> None:
    operands = [
        symbolic_operand(a, constant=i in case.constants) for i, a in enumerate(case.inputs)
    ]
    try:
        inferred = case.op.infer(operands)
    except ShapeError:
        return  # an op may need an extent; it must not guess one
    values = {f"s{e}": e for a in case.inputs if a is not None for e in a.shape}
    for kind, result in zip(inferred, case.op.reference(*case.inputs), strict=True):
        assert isinstance(kind, TensorType)
        assert kind.dtype is DType.from_numpy(result.dtype)
        assert kind.rank == result.ndim
        for dim, extent in zip(kind.shape, result.shape, strict=True):
            counted = symbols_of(dim) - values.keys()
            assert counted or evaluate_dim(dim, values) == extent


@pytest.mark.parametrize("case", CASES)
def test_elements_known_as_dimensions_are_those_of_the_reference(case: Case) -> None:
    operands = [None if a is None else Operand.constant(a) for a in case.inputs]
    dims = case.op.infer_dims(operands)
    if dims is not None:
        assert list(dims) == case.op.reference(*case.inputs)[0].reshape(-1).tolist()


bounds = st.one_of(st.integers(-8, 8), st.sampled_from([2**63 - 1, -(2**63), 2**31 - 1]))
steps = st.integers(-3, 3).filter(bool)


@given(start=bounds, end=bounds, step=steps, extent=st.integers(1, 12))
def test_a_slice_of_a_symbolic_axis_is_refused_or_right_for_every_extent(
    start: int, end: int, step: int, extent: int
) -> None:
    listed = [np.array([x], np.int64) for x in (start, end, 0, step)]
    data = Operand(TensorType(DType.FLOAT32, (N,)))
    try:
        (kind,) = ops.Slice().infer([data, *map(Operand.constant, listed)])
    except ShapeError:
        return
    assert isinstance(kind, TensorType)
    inferred = evaluate_dim(kind.shape[0], {"n": extent})
    (result,) = ops.Slice().reference(np.zeros(extent, np.float32), *listed)
    # A negative extent is refused when the symbol takes its value: no run sees it.
    assert inferred < 0 or inferred == result.shape[0]


@given(
    n=st.integers(1, 5),
    parts=st.lists(st.sampled_from(["n", "m", "2", "3"]), min_size=1, max_size=4),
)
def test_a_reshape_with_one_unknown_extent_divides_symbols_exactly(
    n: int, parts: list[str]
) -> None:
    symbols: dict[str, Dim] = {"n": N, "m": M, "2": 2, "3": 3}
    values = {"n": n, "m": 7}
    shape = tuple(symbols[p] for p in parts)
    wanted = (*shape[1:], -1)
    kind = TensorType(DType.INT64, (len(wanted),))
    data = Operand(TensorType(DType.FLOAT32, shape))
    (made,) = ops.Reshape().infer([data, Operand(kind, None, wanted)])
    assert made == TensorType(DType.FLOAT32, (*shape[1:], shape[0]))
    assert isinstance(made, TensorType)
    assert evaluate_dim(made.shape[-1], values) == evaluate_dim(shape[0], values)


@pytest.mark.parametrize("bound", [2**31 - 1, 2**31 + 3, -(2**31)])
def test_a_far_bound_of_a_slice_is_the_end_only_of_axes_that_it_reaches(bound: int) -> None:
    """Axes of more than 2**31 elements were taken whole, and their starts as beyond the end."""
    n = SymbolicDim.symbol("n")
    data = Operand(TensorType(DType.UINT8, (n,)))
    start, end = (0, bound) if bound > 0 else (bound, 2**63 - 1)
    with collect_guards() as guards:
        types = ops.Slice().infer(
            (data, *(Operand.constant(np.array([value])) for value in (start, end)))
        )
    assert types == (data.type,)
    assert all(guard.holds({"n": 2**31 - 1}) for guard in guards)
    assert not all(guard.holds({"n": 2**31 + 10}) for guard in guards)


def test_the_chain_that_exporters_write_for_a_flattening_view_resolves() -> None:
    graph = Graph()
    x = graph.add_input("x", TensorType(DType.FLOAT32, (N, 3, M, 4)))

    def number(*values: int) -> ops.Array:
        return np.array(values, np.int64)

    shape = graph.add(ops.Shape(), x, name="shape").output
    zero = graph.add_constant(np.array(0, np.int64), "zero")
    batch = graph.add(ops.Gather(), shape, zero, name="batch").output
    axes = graph.add_constant(number(0), "axes")
    first = graph.add(ops.Unsqueeze(), batch, axes, name="first").output
    rest = graph.add_constant(number(-1), "rest")
    wanted = graph.add(ops.Concat(0), first, rest, name="wanted").output
    made = graph.add(ops.Reshape(), x, wanted, name="view").output
    assert made.type == TensorType(DType.FLOAT32, (N, 12 * M))


def test_arithmetic_on_shapes_resolves_through_slices_casts_and_divisions() -> None:
    graph = Graph()
    x = graph.add_input("x", TensorType(DType.FLOAT32, (1, 8, N, M)))
    bounds = [graph.add_constant(np.array([v], np.int64), f"c{v}") for v in (2, 4, 0)]
    shape = graph.add(ops.Shape(), x, name="shape").output
    space = graph.add(ops.Slice(), shape, *bounds, name="space").output
    two = graph.add_constant(np.array([2], np.int64), "two")
    narrow = graph.add(ops.Cast(DType.INT32), space, name="narrow").output
    wide = graph.add(ops.Cast(DType.INT64), narrow, name="wide").output
    doubled = graph.add(ops.Mul(), wide, two, name="doubled").output
    one = graph.add_constant(np.array([1], np.int64), "one")
    more = graph.add(ops.Add(), doubled, one, name="more").output
    halved = graph.add(ops.Div(), more, two, name="halved").output
    channels = graph.add(ops.Slice(), shape, bounds[2], bounds[0], bounds[2], name="front").output
    sizes = graph.add(ops.Concat(0), channels, halved, name="sizes").output
    made = graph.add(ops.Resize(), x, None, None, sizes, name="resized").output
    assert made.type == TensorType(DType.FLOAT32, (1, 8, N, M))


def test_the_chain_that_exporters_write_for_an_expansion_resolves() -> None:
    graph = Graph()
    x = graph.add_input("x", TensorType(DType.FLOAT32, (N, 1, 4)))
    parts = [graph.add_constant(np.array([v], np.int64), f"c{v}") for v in (5, -1, 3, 0, 1)]
    five, minus, three, zero, one = parts
    shape = graph.add(ops.Shape(), x, name="shape").output
    batch = graph.add(ops.Slice(), shape, zero, one, zero, name="batch").output
    wanted = graph.add(ops.Concat(0), batch, five, minus, name="wanted").output
    ones = graph.add(ops.ConstantOfShape(DType.INT64, 1), three, name="ones").output
    unknown = graph.add(ops.Mul(), ones, minus, name="unknown").output
    same = graph.add(ops.Equal(), wanted, unknown, name="same").output
    sizes = graph.add(ops.Where(), same, ones, wanted, name="sizes").output
    made = graph.add(ops.Expand(), x, sizes, name="expanded").output
    assert made.type == TensorType(DType.FLOAT32, (N, 5, 4))


def test_a_range_up_to_a_symbol_has_the_symbol_as_its_extent() -> None:
    scalar = TensorType(DType.INT64, ())
    numbers = [Operand.constant(np.array(v, np.int64)) for v in (0, 1)]
    made = ops.Range().infer([numbers[0], Operand(scalar, None, (N,)), numbers[1]])
    assert made == (TensorType(DType.INT64, (N,)),)


def test_equal_symbols_cancel_and_a_known_difference_is_refused() -> None:
    vector = TensorType(DType.INT64, (2,))
    data = Operand(TensorType(DType.FLOAT32, (N, 4)))
    with pytest.raises(ShapeError, match="the numbers of elements do not match"):
        ops.Reshape().infer([data, Operand(vector, None, (N, 5))])
    (made,) = ops.Reshape().infer([data, Operand(vector, None, (2 * N, 2))])
    assert made == TensorType(DType.FLOAT32, (2 * N, 2))
    with pytest.raises(ShapeError, match=r"the -1 of .* cannot be inferred .* multiple of n - 3"):
        ops.Reshape().infer([data, Operand(vector, None, (N - 3, -1))])


def test_division_of_a_dimension_that_may_be_negative_is_not_followed() -> None:
    vector = TensorType(DType.INT64, (1,))
    two = Operand.constant(np.array([2], np.int64))
    assert ops.Div().infer_dims([Operand(vector, None, (N - 1,)), two]) == ((N - 1) // 2,)
    assert ops.Div().infer_dims([Operand(vector, None, (N - 5,)), two]) is None
    assert ops.Div().infer_dims([Operand(vector, None, (-7,)), two]) == (-3,)


def test_repeated_squaring_of_a_dimension_ends_instead_of_filling_the_memory() -> None:
    vector = TensorType(DType.INT64, (1,))
    dims: tuple[Dim, ...] | None = (sum((SymbolicDim.symbol(f"x{i}") for i in range(12)), N),)
    for _ in range(12):
        operand = Operand(vector, None, dims)
        dims = ops.Mul().infer_dims([operand, operand])
    assert dims is None
