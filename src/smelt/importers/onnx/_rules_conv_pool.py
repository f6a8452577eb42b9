"""Converters of convolutions and poolings; automatic padding becomes explicit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smelt.errors import ModelFormatError, UnsupportedError
from smelt.importers.onnx._types import agrees
from smelt.types import counted, fixed_shape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.importers.onnx._node_context import NodeContext
    from smelt.ir import Value
    from smelt.types import Dim

_AUTO_PADS = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")


def convolution(context: NodeContext) -> list[Value]:
    """Convert Conv, and ConvInteger, which is Conv with zero points."""
    x, weights, others = context.input(0), context.input(1), context.inputs[2:]
    return [convolve(context, x, weights, *others, op=context.op_type)]


def convolve(
    context: NodeContext, x: Value, weights: Value, *others: Value | None, op: str = "Conv"
) -> Value:
    """Emit a convolution with the node's attributes; the kernel may be taken from the weights."""
    kernel = _kernel_of(context, weights)
    attributes = context.without("auto_pad", "pads", "kernel_shape")
    pads = _resolve_pads(context, x.tensor.shape[2:], kernel)
    return context.emit(op, x, weights, *others, kernel_shape=kernel, pads=pads, **attributes)


def pooling(context: NodeContext) -> list[Value]:
    """Convert AveragePool, MaxPool and LpPool."""
    x = context.input(0)
    kernel = context.integers("kernel_shape") or ()
    attributes = context.without("auto_pad", "pads", "storage_order")
    if context.integer("storage_order", 0) and context.is_output_used(1):
        raise UnsupportedError("indices in column-major order (storage_order=1) are not supported")
    extents = x.tensor.shape[2:]
    if _auto_pad(context).startswith("SAME"):
        attributes.pop("ceil_mode", None)  # with this padding, windows fit exactly
        if _auto_pad(context) == "SAME_UPPER" and not context.integer("count_include_pad", 0):
            # Windows of two elements with stride 2 need one or no element of padding at the end,
            # and ceil_mode has the same effect for a symbolic extent.
            pairs = _takes_pairs(context, kernel)
            extents = tuple(
                2 if pair and not isinstance(extent, int) else extent
                for extent, pair in zip(extents, pairs, strict=False)
            )
            attributes["ceil_mode"] = int(extents != x.tensor.shape[2:])
    pads = _resolve_pads(context, extents, kernel)
    return context.emit_all(context.op_type, x, pads=pads, **attributes)


def _takes_pairs(context: NodeContext, kernel: Sequence[int]) -> list[bool]:
    """Return for each axis whether its windows are adjacent pairs of elements."""
    windows = zip(kernel, *_steps(context, len(kernel)), strict=True)
    return [window == (2, 2, 1) for window in windows]


def transposed_convolution(context: NodeContext) -> list[Value]:
    """Convert ConvTranspose; output_shape and auto_pad become pads."""
    x, weights = context.input(0), context.input(1)
    kernel, extents = _kernel_of(context, weights), x.tensor.shape[2:]
    rank = len(kernel)
    strides, dilations = _steps(context, rank)
    extra = list(_filled(context, "output_padding", rank, 0))
    output_extents = _output_extents(context, extents, strides)
    if output_extents is None:
        pads = _resolve_pads(context, extents, kernel)
    else:
        totals: list[int] = []
        # With auto_pad, a kernel that is shorter than its stride leaves the output shorter than
        # input * stride, as in ONNX's shape inference and ONNX Runtime.
        grows = bool(context.integers("output_shape"))
        for axis, (extent, target) in enumerate(zip(extents, output_extents, strict=True)):
            window_extent = (kernel[axis] - 1) * dilations[axis] + 1
            total = (extent - 1) * strides[axis] + window_extent + extra[axis] - target
            if not isinstance(total, int):
                raise UnsupportedError(
                    f"output_shape and auto_pad need a static extent of axis {axis + 2}, which is "
                    f"{extent}; fix its value in the model"
                )
            extra[axis] += max(-total, 0) if grows else 0
            totals.append(max(total, 0))
        pads = _halves(totals, upper=_auto_pad(context) == "SAME_UPPER")
    return context.emit_all(
        "ConvTranspose",
        x,
        weights,
        context.optional(2),
        kernel_shape=kernel,
        strides=strides,
        dilations=dilations,
        pads=pads,
        output_padding=tuple(extra),
        group=context.integer("group", 1),
    )


def _output_extents(
    context: NodeContext, extents: Sequence[Dim], strides: Sequence[int]
) -> Sequence[Dim] | None:
    """Return the spatial extents that output_shape or auto_pad define, or None."""
    output_shape = context.integers("output_shape")
    if output_shape:
        if len(output_shape) < len(extents):
            raise context.shape_error(
                f"output_shape is {list(output_shape)}; it must have at least "
                f"{counted(len(extents), 'number')}, one for each spatial axis"
            )
        return output_shape[-len(extents) :]
    if _auto_pad(context).startswith("SAME"):
        return [extent * stride for extent, stride in zip(extents, strides, strict=True)]
    return None


def _kernel_of(context: NodeContext, weights: Value) -> tuple[int, ...]:
    """Return the kernel extents from kernel_shape or from the weights."""
    shape = weights.tensor.shape[2:]
    declared = context.integers("kernel_shape")
    if declared:
        if not agrees(shape, declared):
            raise context.shape_error(
                f"kernel_shape {list(declared)} does not match the weights {weights.tensor}"
            )
        return declared
    if not all(isinstance(extent, int) for extent in shape):
        raise UnsupportedError("the extents of the kernel are not known; set kernel_shape")
    return fixed_shape(shape)


def _auto_pad(context: NodeContext) -> str:
    mode = context.text("auto_pad", "NOTSET") or "NOTSET"
    if mode not in _AUTO_PADS:
        raise ModelFormatError(
            f"{context.where}: auto_pad is {mode!r}; it must be one of {', '.join(_AUTO_PADS)}"
        )
    return mode


def _filled(context: NodeContext, name: str, length: int, default: int) -> tuple[int, ...]:
    """Return an attribute that is a list of ``length`` integers, or the default for each."""
    values = context.integers(name) or (default,) * length
    if len(values) != length:
        raise context.shape_error(
            f"{name} is {list(values)}; it must have {counted(length, 'number')}"
        )
    return values


def _steps(context: NodeContext, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the strides and the dilations."""
    return _filled(context, "strides", rank, 1), _filled(context, "dilations", rank, 1)


def _resolve_pads(
    context: NodeContext, extents: Sequence[Dim], kernel: Sequence[int]
) -> tuple[int, ...]:
    """Return the padding before each axis, followed by that after each axis."""
    rank = len(kernel)
    mode = _auto_pad(context)
    if mode == "NOTSET":
        return _filled(context, "pads", 2 * rank, 0)
    if mode == "VALID":
        return (0,) * (2 * rank)
    if len(extents) != rank:
        raise context.shape_error(
            f"the kernel has {counted(rank, 'extent')}; it must have one for each spatial axis of "
            f"the input ({len(extents)})"
        )
    strides, dilations = _steps(context, rank)
    if min(strides, default=1) < 1:
        raise context.shape_error(f"strides is {list(strides)}; all must be positive")
    totals = [
        _same_padding(extents[axis], (kernel[axis] - 1) * dilations[axis] + 1, strides[axis], axis)
        for axis in range(rank)
    ]
    return _halves(totals, upper=mode == "SAME_UPPER")


def _same_padding(extent: Dim, window_extent: int, stride: int, axis: int) -> int:
    """Return the total padding with which there is one window per ``stride`` elements."""
    if stride == 1:
        return max(window_extent - 1, 0)
    if not isinstance(extent, int):
        raise UnsupportedError(
            f"auto_pad with stride {stride} needs a static extent of axis {axis + 2}, which is "
            f"{extent}; fix its value in the model"
        )
    windows = -(-extent // stride)
    return max((windows - 1) * stride + window_extent - extent, 0)


def _halves(totals: Sequence[int], *, upper: bool) -> tuple[int, ...]:
    """Split the padding of each axis into begin and end, to which an odd one goes if ``upper``."""
    small = [total // 2 for total in totals]
    large = [total - half for total, half in zip(totals, small, strict=True)]
    return (*small, *large) if upper else (*large, *small)
