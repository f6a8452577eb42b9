"""Output sizes of convolutions, deconvolutions and poolings that an application's formula sets.

By default, the output has one row or column for each window that lies entirely within the padded
input. A formula may return other sizes, such as Caffe's, which round up. They are produced by
changing the padding after the last row and column, or the output padding of a deconvolution.
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
    """Function that computes the output size of a layer."""

    def __call__(self, dims: Pair, kernel: Pair, stride: Pair, padding: Pair, name: str, /) -> Pair:
        """Return the output size (H, W) of a layer.

        Args:
            dims: (H, W) of the input.
            kernel: (H, W) of the window.
            stride: steps (H, W) between windows.
            padding: zeros (H, W) on either side of the input.
            name: name of the layer.
        """
        ...


def attributes_for(op: Op, dims: Pair, result: object, name: str) -> dict[str, object]:
    """Return the attributes with which ``op`` has the output size that a formula returned.

    Args:
        op: convolution, deconvolution or pooling.
        dims: (H, W) of the input.
        result: return value of the formula.
        name: name of the layer, for messages.

    Raises:
        ShapeError: the result is not a pair of positive integers, or no padding after the input
            gives this output size.
    """
    windowed: Any = op
    refuse = partial(ShapeError, node=name)
    sizes = require_ints(result, "the result of the formula", refuse, count=len(dims), minimum=1)
    axes = range(len(windowed.strides))
    pairs = [_end_padding(windowed, axis, dims[axis], sizes[axis]) for axis in axes]
    if any(pad < 0 for pad, _ in pairs):
        raise ShapeError(
            f"the formula gives an output of {sizes} for an input of {dims}; a window of "
            f"{windowed.kernel_shape} with stride {windowed.strides} cannot produce this output",
            node=name,
        )
    begin_pads = windowed.pads[: len(pairs)]
    changes: dict[str, object] = {"pads": (*begin_pads, *(pad for pad, _ in pairs))}
    if isinstance(op, ConvTranspose):
        changes["output_padding"] = tuple(extra for _, extra in pairs)
    return changes


def _end_padding(op: Any, axis: int, extent: int, output_extent: int) -> Pair:
    """Return the padding at the end of an axis, and the output padding of a deconvolution.

    A deconvolution grows by output padding and shrinks by padding. For a convolution or pooling the
    padding is kept if it gives the size already; otherwise it is the one with which the last window
    ends exactly at the end of the padded input. It is negative if the size is too small.
    """
    window = (op.kernel_shape[axis] - 1) * op.dilations[axis] + 1  # with dilation
    stride, begin = op.strides[axis], op.pads[axis]
    if isinstance(op, ConvTranspose):
        default = (extent - 1) * stride + window - 2 * begin
        return begin + max(0, default - output_extent), max(0, output_extent - default)
    if output_extent == (extent + 2 * begin - window) // stride + 1:
        return begin, 0
    return (output_extent - 1) * stride + window - extent - begin, 0
