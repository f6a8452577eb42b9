"""How large the result of a convolution, deconvolution or pooling is, by the application's formula.

The documented extents are those of windows that fit wholly. A formula may ask for others, as
Caffe's rounding up does; the difference is made by what lies behind the last row and column.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from smelt.errors import ShapeError
from smelt.ops import ConvTranspose
from smelt.types import require_ints

if TYPE_CHECKING:
    from smelt.ir import Op

Pair = tuple[int, int]


class OutputDimensionsFormula(Protocol):
    """Says how many rows and columns a layer makes."""

    def __call__(self, dims: Pair, kernel: Pair, stride: Pair, padding: Pair, name: str, /) -> Pair:
        """Return (H, W) of the output of the layer ``name`` for an input of ``dims``."""
        ...


def attributes_for(op: Op, dims: Pair, answer: object, name: str) -> dict[str, Any]:
    """The attributes with which ``op`` makes the rows and columns that a formula answered.

    Raises ShapeError: the answer is no pair of extents, or no padding behind the input does that.
    """
    windowed: Any = op
    refuse = partial(ShapeError, node=name)
    wanted = require_ints(answer, "the formula's answer", refuse, count=len(dims), least=1)
    pairs = [
        _behind(windowed, axis, dims[axis], wanted[axis]) for axis in range(len(windowed.strides))
    ]
    if any(pad < 0 for pad, _ in pairs):
        raise ShapeError(
            f"the formula gives an output of {wanted} for an input of {dims}; a window of "
            f"{windowed.kernel_shape} with stride {windowed.strides} cannot produce that",
            node=name,
        )
    first = windowed.pads[: len(pairs)]
    changes: dict[str, Any] = {"pads": (*first, *(pad for pad, _ in pairs))}
    if isinstance(op, ConvTranspose):
        changes["output_padding"] = tuple(extra for _, extra in pairs)
    return changes


def _behind(op: Any, axis: int, extent: int, wanted: int) -> Pair:
    """Padding behind an axis, and extents added behind the output."""
    reach = (op.kernel_shape[axis] - 1) * op.dilations[axis] + 1
    stride, before = op.strides[axis], op.pads[axis]
    if isinstance(op, ConvTranspose):
        plain = (extent - 1) * stride + reach - 2 * before
        return before + max(0, plain - wanted), max(0, wanted - plain)
    if wanted == (extent + 2 * before - reach) // stride + 1:
        return before, 0
    return (wanted - 1) * stride + reach - extent - before, 0
