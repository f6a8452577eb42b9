"""Converters of convolutions and poolings; automatic padding becomes explicit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smelt.errors import ModelFormatError, ShapeError, UnsupportedError
from smelt.types import fixed_shape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.importers.onnx._node_context import NodeContext
    from smelt.ir import Value
    from smelt.types import Dim

_AUTO_PADS = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")


def convolution(node_context: NodeContext) -> list[Value]:
    """Convert Conv; kernel_shape may be taken from the weights."""
    return [
        convolve(
            node_context, node_context.input(0), node_context.input(1), node_context.optional(2)
        )
    ]


def integer_convolution(node_context: NodeContext) -> list[Value]:
    """Convert ConvInteger, which is Conv with zero points."""
    zeros = node_context.optional(2), node_context.optional(3)
    return [
        convolve(
            node_context, node_context.input(0), node_context.input(1), *zeros, op="ConvInteger"
        )
    ]


def convolve(
    node_context: NodeContext, x: Value, weights: Value, *others: Value | None, op: str = "Conv"
) -> Value:
    """Emit a convolution with the attributes of the node."""
    kernel = _kernel_of(node_context, weights)
    attributes = node_context.without("auto_pad", "pads", "kernel_shape")
    pads = _resolve_pads(node_context, x.tensor.shape[2:], kernel)
    return node_context.emit(op, x, weights, *others, kernel_shape=kernel, pads=pads, **attributes)


def pooling(node_context: NodeContext) -> list[Value]:
    """Convert AveragePool, MaxPool and LpPool."""
    x = node_context.input(0)
    kernel = node_context.integers("kernel_shape") or ()
    attributes = node_context.without("auto_pad", "pads", "storage_order")
    if node_context.integer("storage_order", 0) and node_context.is_output_used(1):
        raise UnsupportedError("indices in column-major order (storage_order=1) are not supported")
    extents = x.tensor.shape[2:]
    if _auto_pad(node_context).startswith("SAME"):
        attributes.pop("ceil_mode", None)  # with this padding, windows fit exactly
        if _auto_pad(node_context) == "SAME_UPPER" and not node_context.integer(
            "count_include_pad", 0
        ):
            # Windows of two elements with stride 2 need one or no element of padding at the end,
            # and ceil_mode has the same effect for a symbolic extent.
            pairs = _takes_pairs(node_context, kernel)
            extents = tuple(
                2 if pair and not isinstance(extent, int) else extent
                for extent, pair in zip(extents, pairs, strict=False)
            )
            attributes["ceil_mode"] = int(extents != x.tensor.shape[2:])
    pads = _resolve_pads(node_context, extents, kernel)
    return node_context.emit_all(node_context.op_type, x, pads=pads, **attributes)


def _takes_pairs(node_context: NodeContext, kernel: Sequence[int]) -> list[bool]:
    """Return for each axis whether its windows are adjacent pairs of elements."""
    rank = len(kernel)
    steps = zip(
        _filled(node_context, "strides", rank, 1),
        _filled(node_context, "dilations", rank, 1),
        strict=True,
    )
    return [(extent, *step) == (2, 2, 1) for extent, step in zip(kernel, steps, strict=True)]


def transposed_convolution(node_context: NodeContext) -> list[Value]:
    """Convert ConvTranspose; output_shape and auto_pad become pads."""
    x, weights = node_context.input(0), node_context.input(1)
    kernel, extents = _kernel_of(node_context, weights), x.tensor.shape[2:]
    rank = len(kernel)
    strides = _filled(node_context, "strides", rank, 1)
    dilations = _filled(node_context, "dilations", rank, 1)
    extra = list(_filled(node_context, "output_padding", rank, 0))
    output_extents = _output_extents(node_context, extents, strides)
    if output_extents is None:
        is_explicit = _auto_pad(node_context) == "NOTSET"
        pads = _filled(node_context, "pads", 2 * rank, 0) if is_explicit else (0,) * (2 * rank)
    else:
        heads, tails = [0] * rank, [0] * rank
        # With auto_pad, a kernel that is shorter than its stride leaves the output shorter than
        # input * stride, as in ONNX's shape inference and ONNX Runtime.
        grows = bool(node_context.integers("output_shape"))
        is_upper = _auto_pad(node_context) == "SAME_UPPER"
        for axis, (extent, target) in enumerate(zip(extents, output_extents, strict=True)):
            window_extent = (kernel[axis] - 1) * dilations[axis] + 1
            total = (extent - 1) * strides[axis] + window_extent + extra[axis] - target
            if not isinstance(total, int):
                raise UnsupportedError(
                    f"output_shape and auto_pad need a static extent of axis {axis + 2}, which is "
                    f"{extent}; fix it in the model"
                )
            extra[axis] += max(-total, 0) if grows else 0
            heads[axis], tails[axis] = _halves(max(total, 0), upper=is_upper)
        pads = (*heads, *tails)
    return node_context.emit_all(
        "ConvTranspose",
        x,
        weights,
        node_context.optional(2),
        kernel_shape=kernel,
        strides=strides,
        dilations=dilations,
        pads=pads,
        output_padding=tuple(extra),
        group=node_context.integer("group", 1),
    )


def _output_extents(
    node_context: NodeContext, extents: Sequence[Dim], strides: Sequence[int]
) -> Sequence[Dim] | None:
    """Return the spatial extents that output_shape or auto_pad define, or None."""
    output_shape = node_context.integers("output_shape")
    if output_shape:
        if len(output_shape) < len(extents):
            raise ShapeError(
                f"output_shape {output_shape} has too few extents", node=node_context.where
            )
        return output_shape[-len(extents) :]
    if _auto_pad(node_context).startswith("SAME"):
        return [extent * stride for extent, stride in zip(extents, strides, strict=True)]
    return None


def _kernel_of(node_context: NodeContext, weights: Value) -> tuple[int, ...]:
    """Return the kernel extents from kernel_shape or from the weights."""
    shape = weights.tensor.shape[2:]
    declared = node_context.integers("kernel_shape")
    if declared:
        matches = len(declared) == len(shape) and all(
            not isinstance(extent, int) or extent == declared_extent
            for extent, declared_extent in zip(shape, declared, strict=False)
        )
        if not matches:
            raise ShapeError(
                f"kernel_shape {list(declared)} does not fit weights {weights.tensor}",
                node=node_context.where,
            )
        return declared
    if not all(isinstance(extent, int) for extent in shape):
        raise UnsupportedError("the extents of the kernel are not known; set kernel_shape")
    return fixed_shape(shape)


def _auto_pad(node_context: NodeContext) -> str:
    mode = node_context.text("auto_pad", "NOTSET") or "NOTSET"
    if mode not in _AUTO_PADS:
        raise ModelFormatError(
            f"{node_context.where}: auto_pad is {mode!r}; it must be one of {', '.join(_AUTO_PADS)}"
        )
    return mode


def _filled(node_context: NodeContext, name: str, length: int, default: int) -> tuple[int, ...]:
    """Return an attribute that is a list of ``length`` integers, or the default for each."""
    values = node_context.integers(name) or (default,) * length
    if len(values) != length:
        raise ShapeError(
            f"{name} is {list(values)}; it must have {length} numbers", node=node_context.where
        )
    return values


def _resolve_pads(
    node_context: NodeContext, extents: Sequence[Dim], kernel: Sequence[int]
) -> tuple[int, ...]:
    """Return the padding before each axis, followed by that after each axis."""
    rank = len(kernel)
    mode = _auto_pad(node_context)
    if mode == "NOTSET":
        return _filled(node_context, "pads", 2 * rank, 0)
    if mode == "VALID":
        return (0,) * (2 * rank)
    if len(extents) != rank:
        raise ShapeError(
            f"the kernel has {rank} extents, and the input {len(extents)} spatial axes",
            node=node_context.where,
        )
    strides = _filled(node_context, "strides", rank, 1)
    dilations = _filled(node_context, "dilations", rank, 1)
    pads_by_axis = [
        _halves(
            _same_padding(
                extents[axis], (kernel[axis] - 1) * dilations[axis] + 1, strides[axis], axis
            ),
            upper=mode == "SAME_UPPER",
        )
        for axis in range(rank)
    ]
    return (*(head for head, _ in pads_by_axis), *(tail for _, tail in pads_by_axis))


def _same_padding(extent: Dim, window_extent: int, stride: int, axis: int) -> int:
    """Return the total padding with which there is one window per ``stride`` elements."""
    if stride < 1:
        raise ShapeError(f"stride is {stride}; it must be positive")
    if stride == 1:
        return max(window_extent - 1, 0)
    if not isinstance(extent, int):
        raise UnsupportedError(
            f"auto_pad with stride {stride} needs a static extent of axis {axis + 2}, which is "
            f"{extent}; fix it in the model"
        )
    windows = -(-extent // stride)
    return max((windows - 1) * stride + window_extent - extent, 0)


def _halves(total: int, *, upper: bool) -> tuple[int, int]:
    """Split padding into begin and end; an odd element goes to the end if ``upper``."""
    small = total // 2
    return (small, total - small) if upper else (total - small, small)
