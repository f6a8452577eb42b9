"""Whether constants may be combined beforehand: x * a * b is x * (a * b) if that is in range."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from smelt.ir import sources_first
from smelt.ops.add import Add
from smelt.ops.cast import Cast
from smelt.ops.div import Div
from smelt.ops.mul import Mul
from smelt.ops.sub import Sub
from smelt.types import is_float_dtype

if TYPE_CHECKING:
    from smelt.ir import Array, Constant, Op

_BIAS_SHARE: Final = 2
"""A sum of integers leaves half of its range to its bias, which is cast from a real number."""


def derived_overflow_reason(constant: Constant | None) -> str | None:
    """Say why a step of a constant's derivation leaves the range of its dtype, if one does."""
    for part in () if constant is None else sources_first(constant):
        if part.recipe is not None:
            reason = combined_overflow_reason(part.recipe.op, *part.recipe.inputs)
            if reason is not None:
                return reason
    return None


def combined_overflow_reason(op: Op, *constants: Constant | None) -> str | None:
    """Say why ``op`` on finite constants leaves the range of their dtype; None if it does not.

    A product that overflows, or loses its digits to underflow, is not what the steps of a run would
    give: (x * 1e-30) * 1e30 is x, and x * (1e-30 * 1e-30) is nothing. Where one factor is broadcast
    along axes of the other, the largest product along these decides: small weights may underflow
    beside large ones.
    """
    arrays = [c.array for c in constants if c is not None]
    if not all(is_float_dtype(array.dtype) and _is_finite(array) for array in arrays):
        return None
    with np.errstate(all="ignore"):
        match op, arrays:
            case Cast(), [given] if op.to.is_integer:
                most = np.iinfo(op.to.numpy).max // _BIAS_SHARE
                return f"an element exceeds {most}" if _largest(given) > most else None
            case ((Add() | Sub()), [left, right]):
                (made,) = op.reference(left, right)
                return None if _is_finite(made) else f"a sum overflows {made.dtype}"
            case ((Mul() | Div()), [left, right]):
                return _product_overflow_reason(op, left, right)
            case _:
                return None


def _product_overflow_reason(op: Mul | Div, left: Array, right: Array) -> str | None:
    """The same for a product or quotient of finite factors."""
    shape = np.broadcast_shapes(left.shape, right.shape)
    if 0 in shape:
        return None
    left, right = (a.reshape((1,) * (len(shape) - a.ndim) + a.shape) for a in (left, right))
    # The largest products along an axis are those of the largest elements. (Of a divisor it would
    # be the smallest: quotients of larger divisors are judged one by one.)
    axes: tuple[int, ...] = ()
    if left.size >= right.size:
        axes = tuple(i for i, n in enumerate(shape) if right.shape[i] == 1 and n > 1)
        left = np.maximum(left.max(axes, keepdims=True), -left.min(axes, keepdims=True))
    elif isinstance(op, Mul):
        return _product_overflow_reason(op, right, left)
    (made,) = op.reference(left, right)
    if not _is_finite(made):
        return f"a {'product' if isinstance(op, Mul) else 'quotient'} overflows {made.dtype}"
    limits = np.finfo(made.dtype if made.dtype.kind == "f" else np.float32)  # bfloat16 as wide
    least = float(limits.tiny) / (float(limits.eps) if axes else 1.0)
    is_lost = (np.abs(made) < least) & (left != 0) & (right != 0)
    return f"a number below {least:g} would lose precision" if is_lost.any() else None


def _is_finite(array: Array) -> bool:
    return bool(np.isfinite(array).all())


def _largest(array: Array) -> float:
    return float(max(array.max(initial=0), -array.min(initial=0)))
