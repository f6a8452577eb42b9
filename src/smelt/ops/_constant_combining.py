"""Checks that combining constants at build time, x * a * b as x * (a * b), stays in range."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from smelt.ir import sources_first
from smelt.ops.arithmetic import Add, Div, Mul, Sub
from smelt.ops.cast import Cast
from smelt.types import is_float_dtype

if TYPE_CHECKING:
    from smelt.ir import Array, Constant, Op

_BIAS_SHARE: Final = 2
"""A bias that is cast to an integer may use this fraction (1 / n) of the range of the sum."""


def derived_overflow_reason(constant: Constant | None) -> str | None:
    """Return the reason why a step of a recipe leaves the range of its dtype, or None."""
    for part in () if constant is None else sources_first(constant):
        if part.recipe is not None:
            reason = combined_overflow_reason(part.recipe.op, *part.recipe.inputs)
            if reason is not None:
                return reason
    return None


def combined_overflow_reason(op: Op, *constants: Constant | None) -> str | None:
    """Return the reason why ``op`` on finite constants leaves the range of their dtype, or None.

    If a combined constant overflows or underflows, the result differs from that of separate steps:
    for x = 1e-30, (x * 1e30) * 1e30 is 1e30, but 1e30 * 1e30 overflows float32. Where one factor is
    broadcast along axes of the other, only the largest product along these axes is checked: small
    weights may underflow next to large ones.
    """
    arrays = [c.array for c in constants if c is not None]
    if not all(is_float_dtype(array.dtype) and _is_finite(array) for array in arrays):
        return None
    with np.errstate(all="ignore"):
        match op, arrays:
            case Cast(), [array] if op.to.is_integer:
                limit = np.iinfo(op.to.numpy).max // _BIAS_SHARE
                return f"an element exceeds {limit}" if _largest(array) > limit else None
            case ((Add() | Sub()), [left, right]):
                (result,) = op.reference(left, right)
                return None if _is_finite(result) else f"a sum overflows {result.dtype}"
            case ((Mul() | Div()), [left, right]):
                return _product_overflow_reason(op, left, right)
            case _:
                return None


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
    limits = np.finfo(result.dtype if result.dtype.kind == "f" else np.float32)  # bfloat16 as wide
    least = float(limits.tiny) / (float(limits.eps) if axes else 1.0)
    is_lost = (np.abs(result) < least) & (left != 0) & (right != 0)
    return f"a number below {least:g} would lose precision" if is_lost.any() else None


def _is_finite(array: Array) -> bool:
    return bool(np.isfinite(array).all())


def _largest(array: Array) -> float:
    return float(max(array.max(initial=0), -array.min(initial=0)))
