"""Converters of elementwise layers: activations, and arithmetic with constants or blobs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from smelt import ops
from smelt.errors import GraphError
from smelt.importers.caffe._layer_context import LayerContext, UnsupportedLayerError
from smelt.types import DType, counted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from smelt.ir import Constant, Op, Value
    from smelt.types import Dim


def one_op(make: Callable[[LayerContext], Op]) -> Callable[[LayerContext], list[Value]]:
    """Return the converter of a layer that is one op of its bottoms."""

    def convert(step: LayerContext) -> list[Value]:
        return [step.add(make(step), *step.inputs)]

    return convert


def relu(step: LayerContext) -> Op:
    """Return a Relu, or a LeakyRelu if the layer has a negative slope."""
    slope = float(step.parameters.negative_slope)
    return ops.LeakyRelu(alpha=slope) if slope else ops.Relu()


def convert_relu6(step: LayerContext) -> list[Value]:
    """Add a ReLU with the upper bound 6."""
    return [step.add(ops.Clip(), step.x, step.number(0, "minimum"), step.number(6, "maximum"))]


def convert_prelu(step: LayerContext) -> list[Value]:
    """Add a ReLU with learned negative slopes, one per channel or one for all."""
    shared = bool(step.parameters.channel_shared)
    channels = 1 if shared else _channels(step)
    slope = step.weight(0, (channels,), "slope")
    if not shared:
        slope = step.reshape_weight(slope, (channels, *[1] * (step.rank - 2)))
    return [step.add(ops.PRelu(), step.x, slope)]


def convert_power(step: LayerContext) -> list[Value]:
    """Compute ``(shift + scale * x) ** power``."""
    p = step.parameters
    chain = _affine(step, p.scale, p.shift)
    if p.power != 1:
        chain.append(("power", ops.Pow(), step.number(p.power, "power")))
    return [_run(step, chain)]


def convert_exp(step: LayerContext) -> list[Value]:
    """Compute ``base ** (shift + scale * x)``; base -1 means e."""
    p = step.parameters
    factor = _logarithm(step, p.base)
    chain = _affine(step, p.scale * factor, p.shift * factor)
    return [_run(step, [*chain, ("exp", ops.Exp(), None)])]


def convert_log(step: LayerContext) -> list[Value]:
    """Compute the logarithm of ``shift + scale * x``; base -1 means e."""
    p = step.parameters
    factor = _logarithm(step, p.base)
    chain = [*_affine(step, p.scale, p.shift), ("log", ops.Log(), None)]
    if factor != 1:
        chain.append(("base", ops.Div(), step.number(factor, "logarithm_of_base")))
    return [_run(step, chain)]


def _logarithm(step: LayerContext, base: float) -> float:
    if base == -1:
        return 1.0
    if base <= 0 or base == 1:
        raise step.shape_error(f"base is {base}; it must be positive and not 1, or -1 for e")
    return math.log(base)


def _affine(
    step: LayerContext, scale: float, shift: float
) -> list[tuple[str, Op, Constant | None]]:
    """Return the ops that scale and shift, without those that have no effect."""
    chain: list[tuple[str, Op, Constant | None]] = []
    if scale != 1:
        chain.append(("scale", ops.Mul(), step.number(scale, "scale")))
    if shift != 0:
        chain.append(("shift", ops.Add(), step.number(shift, "shift")))
    return chain


def _run(step: LayerContext, chain: Sequence[tuple[str, Op, Constant | None]]) -> Value:
    """Apply ops in order; the last node has the name of the layer."""
    value = step.x
    if not chain:
        return step.add(ops.Identity(), value)
    for number, (name, op, argument) in enumerate(chain, 1):
        inputs = [value] if argument is None else [value, argument]
        value = step.add(op, *inputs, part="" if number == len(chain) else name)
    return value


def convert_threshold(step: LayerContext) -> list[Value]:
    """Return 1 where the input is greater than the threshold, and 0 elsewhere."""
    limit = step.number(step.parameters.threshold, "threshold")
    above = step.add(ops.Greater(), step.x, limit, part="above")
    return [step.add(ops.Cast(DType.FLOAT32), above)]


def refuse_batch_norm(p: Any) -> str | None:
    """Return why the parameters of a BatchNorm are not supported, or None."""
    if p.HasField("use_global_stats") and not p.use_global_stats:
        return (
            "use_global_stats: false normalises by the statistics of each batch, which is not "
            "supported; set it to true"
        )
    return None


def convert_batch_norm(step: LayerContext) -> list[Value]:
    """Compute ``(x - mean) / sqrt(variance + eps)``.

    Caffe stores sums and a count. The constants ``layer.mean`` and ``layer.variance`` are the
    quotients. Files of a fork contain scale and bias as well.
    """
    channels = _channels(step)
    count = step.blob(2).reshape(-1)
    if count.size != 1:
        raise step.shape_error(
            f"blob 2, the scale of the moving averages, must have one element, not {count.size}"
        )
    factor = np.float32(0 if count[0] == 0 else 1 / count[0])
    stored = [step.blob(i) for i in range(2)]
    if any(array.size != channels for array in stored):
        raise step.shape_error(
            f"blobs 0 and 1, the moving averages, have {stored[0].size} and {stored[1].size} "
            f"elements; each must have one for each channel of the input ({channels})"
        )
    mean, variance = (array.reshape(channels).astype(np.float32) * factor for array in stored)
    affine = [
        step.weight(3 + i, (channels,), ("weight", "bias")[i])
        if step.blob_count() == 5
        else step.store(np.full(channels, 1 - i, np.float32), ("scale", "shift")[i])
        for i in range(2)
    ]
    op = ops.BatchNormalization(epsilon=float(step.parameters.eps))
    return [
        step.add(op, step.x, *affine, step.store(mean, "mean"), step.store(variance, "variance"))
    ]


def convert_scale(step: LayerContext) -> list[Value]:
    """Multiply by weights or a second bottom along some axes, and optionally add a bias."""
    p = step.parameters
    factor, extents = _second_operand(step, "weight")
    if not p.bias_term:
        return [step.add(ops.Mul(), step.x, factor)]
    blob = step.weight(2 - len(step.inputs), _static_extents(step, extents), "bias")
    bias = _align_axes(step, blob, p.axis)
    return [step.add(ops.Add(), step.add(ops.Mul(), step.x, factor, part="product"), bias)]


def convert_bias(step: LayerContext) -> list[Value]:
    """Add weights or a second bottom along some axes."""
    return [step.add(ops.Add(), step.x, _second_operand(step, "bias")[0])]


def _second_operand(step: LayerContext, role: str) -> tuple[Value | Constant, Sequence[Dim]]:
    """Return the second bottom or, without one, the weights of a role; and its own extents."""
    p = step.parameters
    if len(step.inputs) == 2:
        return _second_bottom(step, p.axis)
    extents = _weight_extents(step, p.axis, p.num_axes)
    return _align_axes(step, step.weight(0, extents, role), p.axis), extents


def _weight_extents(step: LayerContext, axis: int, count: int) -> tuple[int, ...]:
    """Return the extents of ``count`` axes from ``axis`` on, or of all of them if it is -1."""
    if count == 0:
        return ()
    start = step.axis(axis)
    stop = step.rank if count == -1 else start + count
    if not start < stop <= step.rank:
        raise step.shape_error(
            f"axis {axis} and num_axes {count} are out of range for an input of rank {step.rank}"
        )
    return _static_extents(step, step.shape[start:stop])


def _static_extents(step: LayerContext, extents: Sequence[Dim]) -> tuple[int, ...]:
    """Return extents that must all be static.

    Raises:
        ShapeError: an extent is symbolic.
    """
    static = tuple(d for d in extents if isinstance(d, int))
    if len(static) != len(extents):
        raise step.shape_error(f"the shape of the weights, {list(extents)}, must be static")
    return static


def _align_axes(step: LayerContext, weights: Constant, axis: int) -> Constant:
    """Append axes of extent 1 to weights, so that they broadcast from ``axis`` on."""
    shape = tuple(int(d) for d in weights.type.shape if isinstance(d, int))
    if not shape:
        return weights
    trailing_axes = step.rank - step.axis(axis) - len(shape)
    return step.reshape_weight(weights, (*shape, *[1] * trailing_axes))


def _second_bottom(step: LayerContext, axis: int) -> tuple[Value, tuple[Dim, ...]]:
    """Return the second bottom, reshaped to broadcast from ``axis`` on, and its own extents."""
    second = step.inputs[1]
    shape = second.tensor.shape
    start = 0 if axis == 0 or not shape else step.axis(axis)
    if tuple(step.shape[start : start + len(shape)]) != tuple(shape):
        raise step.shape_error(
            f"the second bottom {second.tensor} does not match the extents of the first, "
            f"{step.x.tensor}, from axis {start} on"
        )
    if start + len(shape) == step.rank:
        return second, shape
    target = (*shape, *[1] * (step.rank - start - len(shape)))
    return step.reshape(second, target, "spread"), shape


_ELTWISE = {0: ("product", ops.Mul), 1: ("sum", ops.Add), 2: ("maximum", ops.Max)}


def convert_eltwise(step: LayerContext) -> list[Value]:
    """Compute the product, weighted sum or maximum of blobs of equal shapes."""
    p = step.parameters
    if len(step.inputs) < 2:
        raise GraphError("an Eltwise layer must have at least two bottoms", node=step.where)
    for value in step.inputs[1:]:
        if value.tensor.shape != step.shape:
            raise step.shape_error(
                f"the bottoms have different shapes: {step.x.tensor} and {value.tensor}"
            )
    coefficients = list(p.coeff)
    if coefficients and (p.operation != 1 or len(coefficients) != len(step.inputs)):
        raise step.shape_error(
            f"coeff has {counted(len(coefficients), 'number')}; with operation SUM it must have "
            f"one for each of the {len(step.inputs)} bottoms, and with other operations none"
        )
    terms = [
        value
        if coefficient == 1
        else step.add(
            ops.Mul(), value, step.number(coefficient, f"coeff{number}"), part=f"scaled{number}"
        )
        for number, (value, coefficient) in enumerate(
            zip(step.inputs, coefficients or [1.0] * len(step.inputs), strict=True)
        )
    ]
    name, kind = _ELTWISE[p.operation]
    result = terms[0]
    for number, term in enumerate(terms[1:], 1):
        part = "" if number == len(terms) - 1 else f"{name}{number}"
        result = step.add(kind(), result, term, part=part)
    return [result]


def convert_mvn(step: LayerContext) -> list[Value]:
    """Normalise each channel, or each image, to mean 0 and optionally variance 1.

    The top has the four axes of an image, even if the bottom has fewer.
    """
    p = step.parameters
    if step.rank < 3 and not p.across_channels:
        raise UnsupportedLayerError("the input has no spatial axes to average over")
    x, missing = step.x, 4 - step.rank
    if missing > 0:
        x = step.reshape(x, (*step.shape, *[1] * missing), "image")
    axes = step.integers(range(1 if p.across_channels else 2, x.tensor.rank), "axes")
    mean = step.add(ops.ReduceMean(keepdims=True), x, axes, part="mean")
    if not p.normalize_variance:
        return [step.add(ops.Sub(), x, mean)]
    centred = step.add(ops.Sub(), x, mean, part="centred")
    squares = step.add(ops.Mul(), centred, centred, part="squares")
    variance = step.add(ops.ReduceMean(keepdims=True), squares, axes, part="variance")
    deviation = step.add(ops.Sqrt(), variance, part="deviation")
    divisor = step.add(ops.Add(), deviation, step.number(p.eps, "eps"), part="divisor")
    return [step.add(ops.Div(), centred, divisor)]


def _channels(step: LayerContext) -> int:
    return _static_extents(step, (step.shape[step.axis(1)],))[0]
