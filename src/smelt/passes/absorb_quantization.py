"""Convolutions and products of dequantised integers become integer ones with a factor behind.

What a sum of products of integers stands for is the sum times both scales. So the scales leave the
factors: the integers are multiplied as they are, and one multiplication for each result, which is
an epilogue's, does the rest. Weights keep their zero point at nothing; that of the activations
is the kernel's affair. Means of dequantised integers follow from means of the integers.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt import ops
from smelt.ir import FreshNames
from smelt.passes._base import Note, Pass, PassResult
from smelt.passes._node_emitter import Emitter
from smelt.passes._quant_params import QuantParams, dequantized, elements
from smelt.types import DType, fixed_shape, override

if TYPE_CHECKING:
    from smelt.ir import Graph, Node, Value

_BYTES = frozenset({DType.INT8, DType.UINT8})
_PRODUCTS = (ops.Conv, ops.Gemm, ops.MatMul)
_MEANS = (ops.AveragePool, ops.GlobalAveragePool)
_MIDDLE = 128
_BIAS_ERROR = 1e-5
"""How far, relatively, a bias's scale may be from the product of both scales."""
_LARGEST_PRODUCT = 255 * 128
"""Of an activation less its zero point and a weight."""
_LARGEST_SUM = (1 << 31) - 1


@dataclass(frozen=True)
class AbsorbQuantization(Pass):
    """Multiply and average integers instead of what they stand for."""

    name: ClassVar[str] = "absorb-quantization"

    @override
    def apply(self, graph: Graph) -> PassResult:
        notes: list[Note] = []
        names = FreshNames(graph)
        for node in list(graph.nodes):
            if isinstance(node.op, _PRODUCTS + _MEANS):
                rule = _product if isinstance(node.op, _PRODUCTS) else _mean
                reason = rule(graph, node, names)
                if reason is None:
                    notes.append(Note(node.layers, node.layers, "computes with integers"))
                elif reason:
                    notes.append(Note.refusal(node.layers, reason))
        return PassResult.of(notes)


@dataclass(frozen=True, slots=True)
class _Weights:
    """Weights as int8 without a zero point, and the scales of their filters."""

    integers: Value
    scale: Value


def _product(graph: Graph, node: Node, names: FreshNames) -> str | None:
    """Rewrite one product; why not, or "" where it has nothing to do with integers."""
    activations = dequantized(node.inputs[0])
    if activations is None or activations[1].dtype not in _BYTES:
        return ""
    x, steps = activations
    if steps.axis is not None:
        return "its input has a scale for each channel"
    emit = Emitter(graph, node, names)
    weights = _weights(emit, node)
    if isinstance(weights, str):
        return weights
    depth = _products_of(node, weights.integers)
    if depth * _LARGEST_PRODUCT > _LARGEST_SUM:
        return f"sums of {depth} products may not fit into int32"
    reason = ops.combined_overflow_reason(ops.Mul(), weights.scale.constant, steps.scale.constant)
    if reason is not None:
        return f"its scales cannot be folded: {reason}"
    scale = emit.op(ops.Mul(), weights.scale, steps.scale, hint="scale")
    bias, term = _bias(emit, node, scale, depth)
    op = _integer_op(node)
    total = emit.op(op, x, weights.integers, steps.zero, None, bias, hint="integers")
    made = emit.op(ops.Cast(DType.FLOAT32), total, hint="sums")
    made = emit.op(ops.Mul(), made, _along_channels(emit, node, scale), hint="scaled")
    if term is not None:
        made = emit.op(ops.Add(), made, _along_channels(emit, node, term), hint="biased")
    emit.finish(made)
    return None


def _products_of(node: Node, weights: Value) -> int:
    """How many products are summed for an element of the result."""
    shape = fixed_shape(weights.tensor.shape)
    return prod(shape[1:]) if isinstance(node.op, ops.Conv) else shape[0]


def _integer_op(node: Node) -> ops.ConvInteger | ops.MatMulInteger:
    op = node.op
    if isinstance(op, ops.Conv):
        return ops.ConvInteger(op.kernel_shape, op.strides, op.pads, op.dilations, op.group)
    return ops.MatMulInteger()


def _weights(emit: Emitter, node: Node) -> _Weights | str:
    """The weights as the integer kernels want them, or why they cannot be."""
    found = dequantized(node.inputs[1])
    if found is None or found[0].constant is None:
        return "its weights are not quantised constants"
    weights, steps = found
    if isinstance(node.op, ops.Gemm) and (node.op.alpha, node.op.beta, node.op.trans_a) != (
        1.0,
        1.0,
        False,
    ):
        return "it scales or transposes its operands"
    rank = weights.tensor.rank
    filters = 0 if isinstance(node.op, ops.Conv) else rank - 1
    if isinstance(node.op, ops.Gemm) and node.op.trans_b:
        filters = 0
    if not isinstance(node.op, ops.Conv) and rank != 2:
        return f"its weights have rank {rank}"
    if steps.axis is not None and steps.axis % rank != filters and len(elements(steps.scale)) > 1:
        return f"its weights have scales along axis {steps.axis}"
    integers = _without_zero_point(emit, weights, steps)
    if integers is None:
        return "its weights have a zero point"
    if isinstance(node.op, ops.Gemm) and node.op.trans_b:
        integers = emit.op(ops.Transpose((1, 0)), integers, hint="weights")
    return _Weights(integers, emit.op(ops.Reshape(), steps.scale, emit.integers(-1)))


def _without_zero_point(emit: Emitter, weights: Value, steps: QuantParams) -> Value | None:
    """The weights as int8 whose zero point is 0, if they are that but for a shift."""
    zeros = {0.0} if steps.zero is None else set(elements(steps.zero))
    if steps.dtype is DType.INT8:
        return weights if zeros == {0} else None
    if steps.dtype is not DType.UINT8 or zeros != {_MIDDLE}:
        return None
    wide = emit.op(ops.Cast(DType.INT32), weights)
    middle = emit.integers(_MIDDLE, hint="middle")
    shifted = emit.op(ops.Sub(), wide, emit.op(ops.Cast(DType.INT32), middle))
    return emit.op(ops.Cast(DType.INT8), shifted, hint="weights")


def _bias(emit: Emitter, node: Node, scale: Value, depth: int) -> tuple[Value | None, Value | None]:
    """The bias in the sums' own steps, or as a term to add to what they stand for."""
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if bias is None:
        return None, None
    found = dequantized(bias)
    if found is None or found[0].constant is None or found[1].dtype is not DType.INT32:
        return None, bias
    source, steps = found
    given, wanted = np.array(elements(steps.scale)), np.array(elements(scale))
    channels = node.output.tensor.shape[_channel_axis(node)]
    if source.tensor.shape != (channels,) or not np.allclose(given, wanted, rtol=_BIAS_ERROR):
        return None, bias
    # Through what it stands for, so that new scales would still be heeded.
    real = emit.op(ops.DequantizeLinear(0), source, steps.scale, hint="bias")
    whole = emit.op(ops.Round(), emit.op(ops.Div(), real, scale))
    made = emit.op(ops.Cast(DType.INT32), whole, hint="bias")
    # Half of the range is for the bias, and a refit sees to it that a new one is within.
    fits = 2 * depth * _LARGEST_PRODUCT <= _LARGEST_SUM
    return (
        (made, None)
        if fits and ops.derived_overflow_reason(made.constant) is None
        else (None, bias)
    )


def _channel_axis(node: Node) -> int:
    return 1 if isinstance(node.op, ops.Conv) else node.output.tensor.rank - 1


def _along_channels(emit: Emitter, node: Node, vector: Value) -> Value:
    """One number for each channel, so that it broadcasts onto the result."""
    behind = node.output.tensor.rank - 1 - _channel_axis(node)
    if vector.tensor.rank != 1 or not behind:
        return vector
    return emit.op(ops.Reshape(), vector, emit.integers(-1, *[1] * behind))


def _mean(graph: Graph, node: Node, names: FreshNames) -> str | None:
    """Rewrite one mean; why not, or "" where it has nothing to do with integers."""
    found = dequantized(node.inputs[0])
    if found is None or found[1].dtype not in _BYTES or found[1].axis is not None:
        return ""
    if isinstance(node.op, ops.AveragePool) and node.op.count_include_pad and any(node.op.pads):
        return "its padding is zero and not the zero point"
    x, steps = found
    emit = Emitter(graph, node, names)
    mean = emit.op(node.op, x, hint="integers")
    if steps.zero is not None:
        mean = emit.op(ops.Sub(), mean, emit.op(ops.Cast(DType.FLOAT32), steps.zero, hint="zero"))
    emit.finish(emit.op(ops.Mul(), mean, steps.scale, hint="scaled"))
    return None
