"""Converters of convolutions, inner products, pooling and local response normalisation."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from smelt import ops
from smelt.importers.caffe._layer_context import LayerContext, UnsupportedLayerError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.ir import Constant, Value

MAXIMUM_EXTENT = 1 << 20
"""Largest window extent, stride and padding; larger ones are refused before any computation."""


def spatial(step: LayerContext, name: str, axes: int, default: int | None) -> tuple[int, ...]:
    """Return a spatial parameter, with one number per axis.

    The parameter may be given once, once per spatial axis, or as ``_h`` and ``_w``.

    Raises:
        ShapeError: the parameter is missing, given twice, or out of range.
    """
    p, short = step.parameters, name.removesuffix("_size")
    values_given = list(getattr(p, name))
    height_and_width = [f"{short}_h", f"{short}_w"]
    fields = p.DESCRIPTOR.fields_by_name
    if all(field in fields for field in height_and_width) and any(
        p.HasField(field) for field in height_and_width
    ):
        if values_given:
            raise step.shape_error(
                f"{name} is given together with {short}_h or {short}_w; remove one of the two"
            )
        # Caffe reads a missing one of the two as 0, which is only valid for padding.
        values_given = [int(getattr(p, field)) or (default or 0) for field in height_and_width]
    elif not values_given:
        if default is None:
            raise step.shape_error(f"{name} is missing")
        values_given = [default]
    values = [int(v) for v in (values_given * axes if len(values_given) == 1 else values_given)]
    if len(values) != axes:
        raise step.shape_error(
            f"{name} is {values}; it must have one number, or one for each spatial axis of the "
            f"input ({axes})"
        )
    if any(v > MAXIMUM_EXTENT for v in values) or (default != 0 and min(values) < 1):
        least = 0 if default == 0 else 1
        raise step.shape_error(
            f"{name} is {values}; each number must be from {least} to {MAXIMUM_EXTENT}"
        )
    return tuple(values)


def _spatial_axes(step: LayerContext, x: Value) -> int:
    if x.tensor.rank < 3:
        raise step.shape_error(
            f"the input {x.tensor} has no spatial axes; its rank must be 3 or more"
        )
    return x.tensor.rank - 2


def refuse_convolution(p: Any) -> str | None:
    """Return why the parameters of a convolution are not supported, or None."""
    if p.axis in (1, -3):
        return None
    return f"the channels are on axis {p.axis}; only axis 1 is supported"


def convert_convolution(step: LayerContext) -> list[Value]:
    """Add a convolution for each bottom; all share one set of weights."""
    weights: dict[tuple[int, ...], list[Constant]] = {}
    return [_convolve(step, x, number, weights) for number, x in enumerate(step.inputs)]


def _convolve(
    step: LayerContext, x: Value, number: int, weights: dict[tuple[int, ...], list[Constant]]
) -> Value:
    """Add the convolution of one bottom, with the weights of bottoms of as many channels."""
    p = step.parameters
    transposed = step.layer.type == "Deconvolution"
    axes = _spatial_axes(step, x)
    kernel = spatial(step, "kernel_size", axes, None)
    strides = spatial(step, "stride", axes, 1)
    pads = spatial(step, "pad", axes, 0)
    dilations = spatial(step, "dilation", axes, 1)
    count, group, channels = _output_count(step), int(p.group), x.tensor.shape[1]
    if not isinstance(channels, int):
        raise step.shape_error(f"the channel count of the input is {channels}; it must be static")
    if group < 1 or count % group or channels % group:
        raise step.shape_error(
            f"group is {group}; it must be positive, and divide num_output ({count}) and the "
            f"channel count of the input ({channels})"
        )
    rows, columns = (channels, count // group) if transposed else (count, channels // group)
    shape = (rows, columns, *kernel)
    if shape not in weights:
        weights[shape] = [step.weight(0, shape)]
        weights[shape] += [step.weight(1, (count,))] if p.bias_term else []
    kind = ops.ConvTranspose if transposed else ops.Conv
    op = kind(kernel_shape=kernel, strides=strides, pads=pads * 2, dilations=dilations, group=group)
    return step.add(op, x, *weights[shape], part=str(number) if number else "")


def _output_count(step: LayerContext) -> int:
    """Return num_output, which has no default.

    Raises:
        ShapeError: it is missing.
    """
    count = int(step.parameters.num_output)
    if count < 1:
        raise step.shape_error("num_output is missing or 0; give the number of outputs")
    return count


def convert_inner_product(step: LayerContext) -> list[Value]:
    """Add a matrix product over the axes from ``axis`` on."""
    p = step.parameters
    axis, count = step.axis(p.axis), _output_count(step)
    if axis == 0:
        raise step.shape_error(
            f"axis is {p.axis}, the batch axis; a product that sums over the batch is not "
            "supported: give an axis after the batch axis"
        )
    depths = step.shape[axis:]
    if not all(isinstance(d, int) for d in depths):
        raise step.shape_error(
            f"the extents of the input from axis {axis} on are {list(depths)}; they must be "
            "static, because the weights depend on them"
        )
    depth = math.prod(d for d in depths if isinstance(d, int))
    weights = step.weight(0, (depth, count) if p.transpose else (count, depth))
    bias = [step.weight(1, (count,))] if p.bias_term else []
    if axis == 1:
        x = step.add(ops.Flatten(axis=1), step.x, part="flatten") if step.rank > 2 else step.x
        return [step.add(ops.Gemm(trans_b=not p.transpose), x, weights, *bias)]
    return [_stacked_product(step, axis, depth, weights, bias)]


def _stacked_product(
    step: LayerContext, axis: int, depth: int, weights: Constant, bias: Sequence[Constant]
) -> Value:
    """Add an inner product that keeps more axes than the batch."""
    if not step.parameters.transpose:
        weights = step.derive(ops.Transpose(perm=(1, 0)), weights)
    x = step.x
    if axis != step.rank - 1:
        x = step.reshape(x, (*step.shape[:axis], depth), "flatten")
    if not bias:
        return step.add(ops.MatMul(), x, weights)
    return step.add(ops.Add(), step.add(ops.MatMul(), x, weights, part="product"), *bias)


def refuse_pooling(p: Any) -> str | None:
    """Return why the parameters of a pooling are not supported, or None."""
    if p.pool == 2:
        return "stochastic pooling is not supported: its results are random; set pool to MAX or AVE"
    return None


def convert_pooling(step: LayerContext) -> list[Value]:
    """Add a pooling; the number of windows is rounded up unless a fork's parameter says not to."""
    p = step.parameters
    average = p.pool == 1
    if len(step.layer.tops) > 1:
        raise UnsupportedLayerError("a second top (the indices of the maxima) is not supported")
    if p.global_pooling:
        return [step.add(ops.GlobalAveragePool() if average else ops.GlobalMaxPool(), step.x)]
    axes = _spatial_axes(step, step.x)
    kernel = spatial(step, "kernel_size", axes, None)
    strides = spatial(step, "stride", axes, 1)
    pads = spatial(step, "pad", axes, 0)
    if any(pad >= extent for pad, extent in zip(pads, kernel, strict=True)):
        raise step.shape_error(f"pad {list(pads)} must be smaller than the kernel {list(kernel)}")
    ceil = bool(p.ceil_mode) and p.round_mode == 0
    if ceil:
        _check_windows(step, kernel, strides, pads)
    if average:
        op = ops.AveragePool(kernel, strides, pads * 2, ceil_mode=ceil, count_include_pad=True)
        return [step.add(op, step.x)]
    return [step.add(ops.MaxPool(kernel, strides, pads * 2, ceil_mode=ceil), step.x)]


def _check_windows(
    step: LayerContext, kernel: Sequence[int], strides: Sequence[int], pads: Sequence[int]
) -> None:
    """Refuse poolings with a last window outside of the input, which Caffe only clips if padded."""
    for extent, k, s in zip(step.shape[2:], kernel, strides, strict=True):
        if isinstance(extent, int) and not any(pads):
            count = -(-(extent - k) // s) + 1
            if (count - 1) * s >= extent > 0 and count > 1:
                raise step.shape_error(
                    f"the last window starts at {(count - 1) * s} on an axis of extent {extent}: "
                    "Caffe's result there is undefined; use a stride no larger than the kernel"
                )


def convert_lrn(step: LayerContext) -> list[Value]:
    """Add a local response normalisation across channels or within each."""
    p = step.parameters
    size = int(p.local_size)
    if size % 2 == 0 or size > MAXIMUM_EXTENT:
        raise step.shape_error(f"local_size is {size}; it must be odd and at most {MAXIMUM_EXTENT}")
    if p.norm_region == 0:
        op = ops.LRN(size, float(p.alpha), float(p.beta), float(p.k))
    else:  # within a channel Caffe ignores k and adds 1
        op = ops.LRN(size, float(p.alpha), float(p.beta), region="within_channel")
    return [step.add(op, step.x)]
