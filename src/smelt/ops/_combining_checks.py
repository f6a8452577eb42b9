"""Checks that combining constants at build time, x * a * b as x * (a * b), keeps the results."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from smelt.ir import Array, Constant, Op, sources_first
from smelt.ops.arithmetic import Add, Div, Mul, Sub
from smelt.ops.cast import Cast
from smelt.types import is_float_dtype

_BIAS_SHARE: Final = 2
"""A bias that is cast to an integer may use this fraction (1 / n) of the range of the sum."""
_CANCELLED: Final = 2.0**-8
"""Terms whose sum is below this share of the larger one cancel: they may be meant to round x."""
_ROUNDING_TERM: Final = 2.0**11
"""Magnitude from which terms are not cancelled: float32 then rounds x to multiples of 2**-12. The
bias and the mean of a trained channel may cancel by chance; they are smaller, and lose less."""
_FACTOR_SHARE: Final = 4
"""A factor within the root of this degree of the range, 2**-32 to 2**32 in float32, is ordinary."""


def derived_overflow_reason(constant: Constant | None) -> str | None:
    """Return the reason why a step of a recipe leaves the range of its dtype, or None."""
    for part in () if constant is None else sources_first(constant):
        if part.recipe is not None:
            reason = combined_overflow_reason(part.recipe.op, *part.recipe.inputs)
            if reason is not None:
                return reason
    return None


def combined_overflow_reason(op: Op, *constants: Constant | None) -> str | None:
    """Return the reason why ``op`` on constants keeps less than separate steps would, or None.

    If a combined constant overflows or underflows, the result differs from that of separate steps:
    for x = 1e-30, (x * 1e30) * 1e30 is 1e30, but 1e30 * 1e30 overflows float32. Where one factor is
    broadcast along axes of the other, only the largest product along these axes is checked: small
    weights may underflow next to large ones.

    So does a step that is skipped if it would overflow, vanish or round: (x * 1e30) * 1e-30 is
    infinite for x = 1e10, and (x + 12582912) - 12582912 is x rounded to an integer.
    """
    arrays = [c.array for c in constants if c is not None]
    if isinstance(op, Mul | Div) and any(map(_is_infinite, arrays)):
        return "a factor is infinite, and its product with a zero is not a number"
    if not all(is_float_dtype(array.dtype) and _is_finite(array) for array in arrays):
        return None
    with np.errstate(all="ignore"):
        match op, arrays:
            case Cast(), [array] if op.to.is_integer:
                limit = np.iinfo(op.to.numpy).max // _BIAS_SHARE
                return f"an element exceeds {limit}" if _largest(array) > limit else None
            case ((Add() | Sub()), [left, right]):
                return _sum_loss_reason(op, left, right)
            case ((Mul() | Div()), [left, right]):
                return _product_overflow_reason(op, left, right)
            case _:
                return None


def _sum_loss_reason(op: Add | Sub, left: Array, right: Array) -> str | None:
    """Return the reason why the sum of finite terms is not what adding them in turn gives."""
    (result,) = op.reference(left, right)
    if not _is_finite(result):
        return f"a sum overflows {result.dtype}"
    larger = np.maximum(np.abs(left), np.abs(right)).astype(np.float64)
    # A narrower type rounds to integers from 1 / eps on, before _ROUNDING_TERM.
    rounds = larger >= min(_ROUNDING_TERM, 1 / float(_limits(result).eps))
    cancels = rounds & (np.abs(result).astype(np.float64) < larger * _CANCELLED)
    return (
        "two terms nearly cancel, so that adding their sum rounds differently"
        if cancels.any()
        else None
    )


def _limits(array: Array) -> np.finfo[Any]:
    # numpy has no limits of bfloat16, whose range is that of float32.
    return np.finfo(array.dtype if array.dtype.kind == "f" else np.float32)


def _is_infinite(array: Array) -> bool:
    """Return whether an array of floats has an infinite element."""
    return is_float_dtype(array.dtype) and bool(np.isinf(array).any())


def _product_overflow_reason(op: Mul | Div, left: Array, right: Array) -> str | None:
    """Return the reason why a product or quotient of finite factors leaves the range, or None."""
    shape = np.broadcast_shapes(left.shape, right.shape)
    if 0 in shape:
        return None
    left, right = (a.reshape((1,) * (len(shape) - a.ndim) + a.shape) for a in (left, right))
    # The largest products along an axis are those of the largest elements. For a divisor they are
    # those of the smallest elements, so quotients of larger divisors are checked one by one.
    axes: tuple[int, ...] = ()
    if left.size >= right.size:
        axes = tuple(i for i, n in enumerate(shape) if right.shape[i] == 1 and n > 1)
        left = np.maximum(left.max(axes, keepdims=True), -left.min(axes, keepdims=True))
    elif isinstance(op, Mul):
        return _product_overflow_reason(op, right, left)
    (result,) = op.reference(left, right)
    if not _is_finite(result):
        return f"a {'product' if isinstance(op, Mul) else 'quotient'} overflows {result.dtype}"
    limits = _limits(result)
    if _has_opposite_extremes(op, left, right, 2.0 ** (limits.maxexp // _FACTOR_SHARE)):
        return "the first product may overflow or underflow where the combined one does not"
    least = float(limits.tiny) / (float(limits.eps) if axes else 1.0)
    is_lost = (np.abs(result) < least) & (left != 0) & (right != 0)
    return f"a combined value below {least:g} would lose precision" if is_lost.any() else None


def _has_opposite_extremes(op: Mul | Div, left: Array, right: Array, limit: float) -> bool:
    """Return whether a factor above ``limit`` meets one below its reciprocal.

    If one of the factors is ordinary, then steps differ only for an x or a result beyond 2**96 or
    below 2**-94 in float32. A factor 0 counts as small: it makes NaN of what became infinite.
    """
    with np.errstate(all="ignore"):
        a, b = np.abs(left).astype(np.float64), np.abs(right).astype(np.float64)
        b = b if isinstance(op, Mul) else 1 / b
    return bool((((a > limit) & (b < 1 / limit)) | ((b > limit) & (a < 1 / limit) & (a > 0))).any())


def _is_finite(array: Array) -> bool:
    return bool(np.isfinite(array).all())


def _largest(array: Array) -> float:
    return float(max(array.max(initial=0), -array.min(initial=0)))
