"""Ops that take dimensions as values: where guards hold, inference is right for every value."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from smelt import ops
from smelt.errors import ShapeError
from smelt.ir import Operand
from smelt.types import (
    DType,
    SymbolicDim,
    TensorType,
    assume_at_least,
    collect_guards,
    evaluate_dim,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.ir import Array, Op
    from smelt.types import Dim, Guard

N, M = SymbolicDim.symbol("n"), SymbolicDim.symbol("m")
_SYMBOLIC: list[Dim] = [
    N, M, N - 1, N + 1, 2 * N, N * M, N // 2, 2 * (N // 2), N - M, 0 - N, 3 - N, (N + 1) // 2,
]  # fmt: skip
extents = st.sampled_from([N, M, N + 1, 2 * N, 2 * (N // 2), N * M, 0, 1, 2, 4])
elements = st.one_of(st.sampled_from(_SYMBOLIC), st.integers(-3, 5), st.just(2**31 - 1))
small = st.one_of(st.sampled_from(_SYMBOLIC), st.integers(-2, 4))
symbols = st.fixed_dictionaries({"n": st.integers(0, 6), "m": st.integers(0, 6)})


def tensor(*shape: Dim) -> Operand:
    return Operand(TensorType(DType.FLOAT32, shape))


def vector(*dims: Dim, rank: int = 1) -> Operand:
    """Dimensions, constant where all are known."""
    known = [dim for dim in dims if isinstance(dim, int)]
    if len(known) == len(dims):
        return Operand.constant(np.array(known if rank else known[0], np.int64))
    return Operand(TensorType(DType.INT64, (len(dims),) * rank), None, dims)


def _array(operand: Operand, values: dict[str, int]) -> Array:
    if operand.value is not None:
        return operand.value
    shape = tuple(evaluate_dim(dim, values) for dim in operand.tensor.shape)
    if operand.dims is not None:
        return np.array([evaluate_dim(d, values) for d in operand.dims], np.int64).reshape(shape)
    return np.ones(shape, np.float32)


def _infer(op: Op, operands: Sequence[Operand]) -> tuple[list[TensorType], list[Guard]] | None:
    """The results' types and what they assume; None where inference refuses."""
    with collect_guards() as guards:
        try:
            kinds = [kind for kind in op.infer(operands) if isinstance(kind, TensorType)]
        except ShapeError:
            return None
        if not all(assume_at_least(dim, 0, "an extent") for kind in kinds for dim in kind.shape):
            return None
    return kinds, guards


def check(op: Op, operands: Sequence[Operand], values: dict[str, int]) -> None:
    """Where the guards hold the reference makes what is inferred; where it refuses, one fails."""
    inferred = _infer(op, operands)
    if inferred is None or not all(guard.holds(values) for guard in inferred[1]):
        return
    with np.errstate(all="ignore"):
        results = op.reference(*(_array(operand, values) for operand in operands))
    for kind, result in zip(inferred[0], results, strict=True):
        assert tuple(evaluate_dim(dim, values) for dim in kind.shape) == result.shape


MANY = settings(max_examples=200)


@MANY
@given(extent=extents, start=elements, end=elements, step=st.sampled_from([1, 2, -1]), at=symbols)
def test_slice(extent: Dim, start: Dim, end: Dim, step: int, at: dict[str, int]) -> None:
    bounds = (vector(start), vector(end), vector(0), vector(step))
    check(ops.Slice(), (tensor(extent), *bounds), at)


@MANY
@given(
    shape=st.lists(extents, min_size=1, max_size=3),
    wanted=st.lists(small, min_size=1, max_size=3),
    allowzero=st.integers(0, 1),
    at=symbols,
)
def test_reshape(shape: list[Dim], wanted: list[Dim], allowzero: int, at: dict[str, int]) -> None:
    check(ops.Reshape(allowzero), (tensor(*shape), vector(*wanted)), at)


@MANY
@given(extent=extents, a=small, b=small, mode=st.sampled_from(["constant", "edge"]), at=symbols)
def test_pad(extent: Dim, a: Dim, b: Dim, mode: str, at: dict[str, int]) -> None:
    check(ops.Pad(mode), (tensor(extent), vector(a, b)), at)


@MANY
@given(extent=extents, a=small, b=small, at=symbols)
def test_split_tile_expand_resize_and_top_k(
    extent: Dim, a: Dim, b: Dim, at: dict[str, int]
) -> None:
    data = tensor(extent)
    check(ops.Split(0), (data, vector(a, b)), at)
    check(ops.Split(0, 3), (data,), at)
    check(ops.Tile(), (data, vector(a)), at)
    check(ops.Expand(), (data, vector(a)), at)
    check(ops.TopK(), (data, vector(a)), at)
    check(ops.Squeeze(), (tensor(extent, 1),), at)
    check(ops.ConstantOfShape(), (vector(a, b),), at)
    check(ops.Range(), (vector(a, rank=0), vector(b, rank=0), vector(2, rank=0)), at)


@MANY
@given(a=extents, b=extents, c=extents, d=extents, at=symbols)
def test_two_tensors(a: Dim, b: Dim, c: Dim, d: Dim, at: dict[str, int]) -> None:
    one, other = tensor(a, b), tensor(c, d)
    for op in (ops.Add(), ops.MatMul(), ops.Gemm(trans_a=True), ops.Concat(1), ops.Crop(1)):
        check(op, (one, other), at)
    check(ops.Einsum("ij,jk->ki"), (one, other), at)
    check(ops.MaxPool((2,), (2,), (1, 0), ceil_mode=True), (tensor(1, a, b),), at)
    check(ops.SpaceToDepth(2), (tensor(1, 1, a, b),), at)
    check(ops.ConvTranspose((2,), (2,), (1, 2)), (tensor(1, a, b), tensor(c, 3, 2)), at)


@MANY
@given(left=small, right=small, at=symbols)
def test_elements_that_are_dimensions(left: Dim, right: Dim, at: dict[str, int]) -> None:
    pair = (vector(left), vector(right))
    arithmetic = (ops.Add(), ops.Sub(), ops.Mul(), ops.Div(), ops.Mod(), ops.Min(), ops.Max())
    for op in (*arithmetic, ops.Equal()):
        with collect_guards() as guards:
            dims = op.infer_dims(pair)
        if dims is not None and all(guard.holds(at) for guard in guards):
            (result,) = op.reference(*(_array(operand, at) for operand in pair))
            assert [evaluate_dim(dim, at) for dim in dims] == result.tolist()
