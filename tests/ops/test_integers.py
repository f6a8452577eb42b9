"""Arithmetic of integers of every width, against Python's, which has no width."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import smelt
from smelt import ops
from smelt.ir import Graph
from smelt.types import DType, TensorType

if TYPE_CHECKING:
    from collections.abc import Callable

    from smelt.ops import Op

_INTEGERS = [d for d in DType if d.is_integer]
_every_width = pytest.mark.parametrize("dtype", _INTEGERS, ids=lambda d: d.value)


def _quotient(a: int, b: int) -> int:
    magnitude = abs(a) // abs(b) if b else 0
    return magnitude if (a < 0) == (b < 0) else -magnitude


def _power(a: int, b: int) -> int:
    if b >= 0:
        return pow(a, b, 1 << 64)  # of which every width is the lowest part
    return a ** (b % 2) if abs(a) == 1 else 0


_UNARY: list[tuple[Op, Callable[[int], int]]] = [
    (ops.Abs(), abs),
    (ops.BitwiseNot(), lambda a: ~a),
    (ops.Neg(), lambda a: -a),
    (ops.Relu(), lambda a: max(a, 0)),
    (ops.Sign(), lambda a: (a > 0) - (a < 0)),
]
_BINARY: list[tuple[Op, Callable[[int, int], int]]] = [
    (ops.Add(), lambda a, b: a + b),
    (ops.Sub(), lambda a, b: a - b),
    (ops.Mul(), lambda a, b: a * b),
    (ops.Div(), _quotient),
    (ops.Mod(), lambda a, b: a % b if b else 0),
    (ops.Mod(fmod=1), lambda a, b: a - _quotient(a, b) * b if b else 0),
    (ops.Pow(), _power),
    (ops.Max(), max),
    (ops.Min(), min),
    (ops.Sum(), lambda a, b: a + b),
    (ops.BitShift("LEFT"), lambda a, b: a << min(b, 64)),
    (ops.BitShift("RIGHT"), lambda a, b: a >> min(b, 64)),
    (ops.Equal(), lambda a, b: a == b),
    (ops.Greater(), lambda a, b: a > b),
    (ops.GreaterOrEqual(), lambda a, b: a >= b),
    (ops.Less(), lambda a, b: a < b),
    (ops.LessOrEqual(), lambda a, b: a <= b),
]


def _wrapped(number: int, dtype: np.dtype[Any]) -> int:
    """The number modulo the width of a type."""
    if dtype == np.bool_:
        return number
    bits = dtype.itemsize * 8
    low = number % (1 << bits)
    return low - (1 << bits) if dtype.kind == "i" and low >> (bits - 1) else low


def _corners(op: Op, dtype: DType) -> tuple[Any, ...]:
    found = [c for c in type(op).cases() if c.name.split(",")[0] == f"corners of {dtype.value}"]
    if not found:
        pytest.skip(f"{op.name} takes no {dtype.value}")
    return found[0].inputs


@_every_width
@pytest.mark.parametrize(("op", "function"), _UNARY, ids=lambda x: getattr(x, "name", ""))
def test_an_op_of_one_integer_is_the_exact_result_modulo_its_width(
    op: Op, function: Callable[[int], int], dtype: DType
) -> None:
    (x,) = _corners(op, dtype)
    (y,) = op.reference(x)
    assert y.tolist() == [_wrapped(function(a), y.dtype) for a in x.tolist()]


@_every_width
@pytest.mark.parametrize(("op", "function"), _BINARY, ids=lambda x: getattr(x, "name", ""))
def test_an_op_of_two_integers_is_the_exact_result_modulo_its_width(
    op: Op, function: Callable[[int, int], int], dtype: DType
) -> None:
    x, y = _corners(op, dtype)
    (z,) = op.reference(x, y)
    wanted = [[_wrapped(function(a, b), z.dtype) for b in y.tolist()] for a in x[:, 0].tolist()]
    assert z.tolist() == wanted


@_every_width
def test_a_float_that_no_integer_is_becomes_the_nearest_and_what_is_no_number_zero(
    dtype: DType,
) -> None:
    limits = np.iinfo(dtype.numpy)
    floats = [d for d in DType if d.is_float]
    for source in floats:
        numbers = np.array([-1e30, -7e4, -300.7, -1.5, -0.9, 0.9, 127.5, 300.7, 7e4, 1e30])
        ends = np.array([limits.min, limits.max, limits.max // 2], np.float64)
        with np.errstate(over="ignore"):
            x = np.concatenate([numbers, ends, [np.inf, -np.inf, np.nan]]).astype(source.numpy)
        (y,) = ops.Cast(dtype).reference(x)
        for number, made in zip(x.astype(np.float64).tolist(), y.tolist(), strict=True):
            if math.isnan(number):
                assert made == 0
            elif math.isinf(number):
                assert made == (limits.max if number > 0 else limits.min)
            else:
                assert made == min(max(math.trunc(number), limits.min), limits.max)


def test_the_mean_of_large_integers_is_exact() -> None:
    x = np.array([(1 << 62) + 1, (1 << 62) + 1], np.int64)
    assert ops.ReduceMean(0).reference(x, np.array([0]))[0].tolist() == (-(1 << 63) + 2) // 2
    one = np.array([(1 << 53) + 1], np.int64)
    assert ops.ReduceMean(0).reference(one, np.array([0]))[0].tolist() == (1 << 53) + 1


@pytest.mark.parametrize(
    ("dtype", "value", "outside"),
    [(np.int64, 7.9, 7), (np.uint64, -1.0, 0), (np.int8, 300.0, 127), (np.int32, math.nan, 0)],
)
def test_a_resize_keeps_large_integers_beside_positions_outside_its_region(
    dtype: Any, value: float, outside: int
) -> None:
    large = np.iinfo(dtype).max - 1
    op = ops.Resize(coordinate_transformation_mode="tf_crop_and_resize", extrapolation_value=value)
    region, sizes = np.array([0, 2], np.float32), np.array([5])
    (y,) = op.reference(np.array([1, large, 5], dtype), region, None, sizes)
    assert y.tolist() == [1, large, 5, outside, outside]


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint32, np.uint64])
@pytest.mark.parametrize(
    ("alpha", "beta", "wanted"),
    [
        (0.5, 1.0, [11, 34]),
        (1.0, 0.5, [20, 65]),
        (0.25, 0.5, [5, 17]),
        (2.0, -1.0, [39, 126]),
        (-1.0, 22.0, [2, -20]),
    ],
)
def test_a_gemm_of_integers_scales_them_by_fractions_and_wraps_around(
    alpha: float, beta: float, wanted: list[int], dtype: Any
) -> None:
    x, w, c = (np.array(rows, dtype) for rows in ([[4, 6]], [[2, 4], [2, 8]], [1, 2]))
    graph = Graph("gemm")
    given = graph.add_input("x", TensorType(DType.from_numpy(np.dtype(dtype)), (1, 2)))
    constants = (graph.add_constant(array, name) for name, array in (("w", w), ("c", c)))
    op = ops.Gemm(alpha=alpha, beta=beta)
    graph.outputs = [graph.add(op, given, *constants, name="y").output]
    expected = [_wrapped(number, np.dtype(dtype)) for number in wanted]
    assert op.reference(x, w, c)[0].tolist() == [expected]
    (y,) = smelt.build(graph, tune="none").run({"x": x}).values()
    assert y.tolist() == [expected]
    assert y.dtype == dtype
