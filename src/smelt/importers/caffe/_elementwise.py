"""Converters of elementwise layers: activations, and arithmetic with constants or blobs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from smelt import ops
from smelt.errors import GraphError
from smelt.importers.caffe._layer_context import LayerContext, UnsupportedLayer
from smelt.types import DType

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from smelt.importers.caffe._prototxt import Layer
    from smelt.ir import Constant, Op, Value
    from smelt.types import Dim


def unary(make: Callable[[], Op]) -> Callable[[LayerContext], list[Value]]:
    """Return the converter of a layer that is one op without parameters."""

    def convert(step: LayerContext) -> list[Value]:
        step.require_inputs(1)
        return [step.add(make(), step.x)]

    return convert


def convert_relu(step: LayerContext) -> list[Value]:
    """Add a Relu, or a LeakyRelu if the layer has a negative slope."""
    step.require_inputs(1)
    slope = float(step.parameters("relu_param").negative_slope)
    return [step.add(ops.LeakyRelu(alpha=slope) if slope else ops.Relu(), step.x)]


def convert_elu(step: LayerContext) -> list[Value]:
    """Add an exponential linear unit."""
    step.require_inputs(1)
    return [step.add(ops.Elu(alpha=float(step.parameters("elu_param").alpha)), step.x)]


def convert_relu6(step: LayerContext) -> list[Value]:
    """Add a ReLU with the upper bound 6."""
    step.require_inputs(1)
    return [step.add(ops.Clip(), step.x, step.number(0, "minimum"), step.number(6, "maximum"))]


def convert_prelu(step: LayerContext) -> list[Value]:
    """Add a ReLU with learned negative slopes, one per channel or one for all."""
    step.require_inputs(1)
    shared = bool(step.parameters("prelu_param").channel_shared)
    channels = 1 if shared else _extent(step, 1)
    slope = step.weight(0, (channels,), "slope")
    if not shared:
        slope = step.reshape_weight(slope, (channels, *[1] * (step.rank - 2)))
    return [step.add(ops.PRelu(), step.x, slope)]


def convert_power(step: LayerContext) -> list[Value]:
    """Compute ``(shift + scale * x) ** power``."""
    step.require_inputs(1)
    p = step.parameters("power_param")
    chain = _affine(step, p.scale, p.shift)
    if p.power != 1:
        chain.append(("power", ops.Pow(), step.number(p.power, "power")))
    return [_run(step, chain)]


def convert_exp(step: LayerContext) -> list[Value]:
    """Compute ``base ** (shift + scale * x)``; base -1 means e."""
    step.require_inputs(1)
    p = step.parameters("exp_param")
    factor = _logarithm(step, p.base)
    chain = _affine(step, p.scale * factor, p.shift * factor)
    return [_run(step, [*chain, ("exp", ops.Exp(), None)])]


def convert_log(step: LayerContext) -> list[Value]:
    """Compute the logarithm of ``shift + scale * x``; base -1 means e."""
    step.require_inputs(1)
    p = step.parameters("log_param")
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
        value = step.add(op, *inputs, name="" if number == len(chain) else name)
    return value


def convert_threshold(step: LayerContext) -> list[Value]:
    """Return 1 where the input is greater than the threshold, and 0 elsewhere."""
    step.require_inputs(1)
    limit = step.number(step.parameters("threshold_param").threshold, "threshold")
    above = step.add(ops.Greater(), step.x, limit, name="above")
    return [step.add(ops.Cast(DType.FLOAT32), above)]


def refuse_batch_norm(layer: Layer) -> str | None:
    """Return why the parameters of a BatchNorm are not supported, or None."""
    p = layer.parameters("batch_norm_param")
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
    step.require_inputs(1)
    channels = _extent(step, 1)
    count = step.blob(2).reshape(-1)
    if count.size != 1:
        raise step.shape_error(
            f"blob 2, the scale of the moving averages, must have one element, not {count.size}"
        )
    factor = np.float32(0 if count[0] == 0 else 1 / count[0])
    stored = [step.blob(i) for i in range(2)]
    if any(array.size != channels for array in stored):
        raise step.shape_error(
            f"the moving averages have {[a.size for a in stored]} elements for {channels} channels"
        )
    mean, variance = (array.reshape(channels).astype(np.float32) * factor for array in stored)
    affine = [
        step.weight(3 + i, (channels,), ("weight", "bias")[i])
        if step.blob_count() == 5
        else step.store(np.full(channels, 1 - i, np.float32), ("scale", "shift")[i])
        for i in range(2)
    ]
    op = ops.BatchNormalization(epsilon=float(step.parameters("batch_norm_param").eps))
    return [
        step.add(op, step.x, *affine, step.store(mean, "mean"), step.store(variance, "variance"))
    ]


def convert_scale(step: LayerContext) -> list[Value]:
    """Multiply by weights or a second bottom along some axes, and optionally add a bias."""
    step.require_inputs(1, 2)
    p = step.parameters("scale_param")
    factor: Value | Constant
    shape: tuple[Dim, ...]
    if len(step.inputs) == 2:
        factor, shape = _second_bottom(step, p.axis)
        bias_index = 0
    else:
        shape = _weight_extents(step, p.axis, p.num_axes)
        factor = _align_axes(step, step.weight(0, _static_extents(step, shape)), p.axis)
        bias_index = 1
    if not p.bias_term:
        return [step.add(ops.Mul(), step.x, factor)]
    bias = _align_axes(step, step.weight(bias_index, _static_extents(step, shape), "bias"), p.axis)
    return [step.add(ops.Add(), step.add(ops.Mul(), step.x, factor, name="product"), bias)]


def convert_bias(step: LayerContext) -> list[Value]:
    """Add weights or a second bottom along some axes."""
    step.require_inputs(1, 2)
    p = step.parameters("bias_param")
    if len(step.inputs) == 2:
        return [step.add(ops.Add(), step.x, _second_bottom(step, p.axis)[0])]
    weights = step.weight(0, _weight_extents(step, p.axis, p.num_axes), "bias")
    return [step.add(ops.Add(), step.x, _align_axes(step, weights, p.axis))]


def _weight_extents(step: LayerContext, axis: int, count: int) -> tuple[int, ...]:
    """Return the extents of ``count`` axes from ``axis`` on, or of all of them if it is -1."""
    if count == 0:
        return ()
    start = step.axis(axis)
    stop = step.rank if count == -1 else start + count
    if not start < stop <= step.rank:
        raise step.shape_error(
            f"num_axes {count} from axis {axis} is out of range for an input of {step.rank} axes"
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
            f"the second bottom {second.tensor} does not match {step.x.tensor} from axis {start}"
        )
    if start + len(shape) == step.rank:
        return second, shape
    target = (*shape, *[1] * (step.rank - start - len(shape)))
    return step.reshape(second, target, "spread"), shape


_ELTWISE = {0: ("product", ops.Mul), 1: ("sum", ops.Add), 2: ("maximum", ops.Max)}


def convert_eltwise(step: LayerContext) -> list[Value]:
    """Compute the product, weighted sum or maximum of blobs of equal shapes."""
    p = step.parameters("eltwise_param")
    if len(step.inputs) < 2:
        raise GraphError("an Eltwise layer must have at least two bottoms", node=step.where)
    for value in step.inputs[1:]:
        if value.tensor.shape != step.shape:
            raise step.shape_error(
                f"the bottoms have different shapes:  {step.x.tensor} and {value.tensor}"
            )
    coefficients = list(p.coeff)
    if coefficients and (p.operation != 1 or len(coefficients) != len(step.inputs)):
        raise step.shape_error(
            f"there are {len(coefficients)} coefficients; a sum must have one for each of the "
            f"{len(step.inputs)} bottoms, and other operations none"
        )
    terms = [
        value
        if coefficient == 1
        else step.add(
            ops.Mul(), value, step.number(coefficient, f"coeff{number}"), name=f"scaled{number}"
        )
        for number, (value, coefficient) in enumerate(
            zip(step.inputs, coefficients or [1.0] * len(step.inputs), strict=True)
        )
    ]
    name, kind = _ELTWISE[p.operation]
    result = terms[0]
    for number, term in enumerate(terms[1:], 1):
        result = step.add(
            kind(), result, term, name="" if number == len(terms) - 1 else f"{name}{number}"
        )
    return [result]


def convert_mvn(step: LayerContext) -> list[Value]:
    """Normalise each channel, or each image, to mean 0 and optionally variance 1."""
    step.require_inputs(1)
    p = step.parameters("mvn_param")
    axes = step.integers(range(1 if p.across_channels else 2, step.rank), "axes")
    if step.rank < 3 and not p.across_channels:
        raise UnsupportedLayer("the input has no spatial axes to average over")
    mean = step.add(ops.ReduceMean(keepdims=True), step.x, axes, name="mean")
    if not p.normalize_variance:
        return [step.add(ops.Sub(), step.x, mean)]
    centred = step.add(ops.Sub(), step.x, mean, name="centred")
    squares = step.add(ops.Mul(), centred, centred, name="squares")
    variance = step.add(ops.ReduceMean(keepdims=True), squares, axes, name="variance")
    deviation = step.add(ops.Sqrt(), variance, name="deviation")
    divisor = step.add(ops.Add(), deviation, step.number(p.eps, "eps"), name="divisor")
    return [step.add(ops.Div(), centred, divisor)]


def _extent(step: LayerContext, axis: int) -> int:
    return _static_extents(step, (step.shape[step.axis(axis)],))[0]
