"""Narrow floats: a reference says of them what it says of the same numbers in float32."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest

from smelt.errors import ShapeError
from smelt.ir import evaluate
from smelt.ops import ALL_OPS, Cast, ConvSum, Fused, FusedPair, Operand, Pow, ScatterND, TopK
from smelt.types import DType

if TYPE_CHECKING:
    from smelt.ops import Array, Op

_ROUND_BETWEEN = (FusedPair, ConvSum, Fused)
"""Several ops, each of which rounds what it gives."""
_NARROW = pytest.mark.parametrize("dtype", [DType.BFLOAT16, DType.FLOAT16], ids=str)


def _specials(dtype: DType) -> Array:
    tiny, huge = (1e-40, 1e30) if dtype is DType.BFLOAT16 else (6e-8, 6e4)
    numbers = [0, -0.0, math.nan, math.inf, -math.inf, tiny, -tiny, 2 * tiny, 1, -1, 2.5, 3, huge]
    return np.array(numbers).astype(dtype.numpy)


def _is_legal(op: Op, inputs: list[Array | None]) -> bool:
    try:
        op.infer([None if a is None else Operand.constant(a) for a in inputs])
    except ShapeError:
        return False
    return True


@_NARROW
@pytest.mark.parametrize("op", ALL_OPS, ids=lambda op: op.name)
def test_a_reference_says_of_narrow_floats_what_it_says_of_float32(
    op: type[Op], dtype: DType
) -> None:
    chosen, specials = np.random.default_rng(0), _specials(dtype)
    for case in op.cases():
        if case.op.regions or isinstance(case.op, _ROUND_BETWEEN):
            continue
        narrow = [
            chosen.choice(specials, a.shape)
            if a is not None and a.dtype == np.float32 and index not in case.constants
            else a
            for index, a in enumerate(case.inputs)
        ]
        if not _is_legal(case.op, narrow):
            continue
        wide = [
            a.astype(np.float32) if a is not None and a.dtype == dtype.numpy else a for a in narrow
        ]
        made, wanted = evaluate(case.op, narrow), evaluate(case.op, wide)
        for one, other in zip(made, wanted, strict=True):
            with np.errstate(all="ignore"):
                rounded = other.astype(one.dtype)
            if one.dtype == dtype.numpy:
                one, rounded = one.astype(np.float32), rounded.astype(np.float32)
            np.testing.assert_allclose(one, rounded, rtol=2e-3, err_msg=case.name)


def test_the_largest_of_bfloat16_are_those_that_are_no_numbers() -> None:
    x = np.array([1, math.nan, 3, math.inf, 2, math.nan, -1, 5]).astype(DType.BFLOAT16.numpy)
    _, largest = TopK().reference(x, np.array([8]))
    _, smallest = TopK(largest=0).reference(x, np.array([8]))
    assert largest.tolist() == [1, 5, 3, 7, 2, 4, 0, 6]
    assert smallest.tolist() == [6, 0, 4, 2, 7, 3, 1, 5]


@_NARROW
def test_updates_of_one_place_are_combined_without_rounding_between(dtype: DType) -> None:
    data, ones = np.zeros(1, dtype.numpy), np.full(600, 8, dtype.numpy)
    (made,) = ScatterND("add").reference(data, np.zeros((600, 1), np.int64), ones)
    assert made.astype(np.float32) == pytest.approx(4800, rel=4e-3)


@pytest.mark.parametrize(
    "dtype", [DType.FLOAT32, DType.FLOAT64, DType.FLOAT16, DType.BFLOAT16], ids=str
)
@pytest.mark.parametrize("shape", [(1,), (2,)])
def test_powers_of_a_half_are_those_of_ieee_754(dtype: DType, shape: tuple[int, ...]) -> None:
    half = np.array([0.5]).astype(dtype.numpy)
    for base, power in ((-math.inf, math.inf), (-0.0, 0.0), (math.inf, math.inf), (4, 2)):
        (made,) = evaluate(Pow(), (np.full(shape, base).astype(dtype.numpy), half))
        np.testing.assert_array_equal(made.astype(np.float64), np.full(shape, power))
        assert not np.signbit(made).any()


@pytest.mark.parametrize("target", list(DType))
def test_a_cast_of_a_bool_is_0_or_1_whatever_byte_stands_for_true(target: DType) -> None:
    """The conversion of ml_dtypes returned the byte: 2 and 255 for True."""
    flags = np.array([0, 1, 2, 255, 128], np.uint8).view(np.bool_)
    (result,) = Cast(target).reference(flags)
    assert result.dtype == target.numpy
    assert result.view(np.uint8 if target is DType.BOOL else result.dtype).tolist() == [
        0,
        1,
        1,
        1,
        1,
    ]
