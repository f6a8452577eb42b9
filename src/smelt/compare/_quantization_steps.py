"""Quantisation steps of tensors that depend on quantised ones.

Two correct engines can round a number near the middle between two quantised values to different
ones, and all dependent tensors then differ too. Errors of such tensors are measured in steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from smelt import ops
from smelt.types import TensorType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.ir import Graph, Node, Value
    from smelt.types import DType

ALLOWED_QUANTIZATION_STEPS: Final = 2
"""Default number of steps by which correct results may differ.

Networks whose sums are rounded in another order were seen to differ by as many.
"""

_STEP_PRESERVING_OPS: Final = (
    ops.Abs, ops.AveragePool, ops.Clip, ops.Concat, ops.DepthToSpace, ops.Elu, ops.Expand,
    ops.Flatten, ops.Gather, ops.GlobalAveragePool, ops.GlobalMaxPool, ops.HardSigmoid,
    ops.Identity, ops.LeakyRelu, ops.Max, ops.MaxPool, ops.Min, ops.Neg, ops.Pad,
    ops.ReduceMax, ops.ReduceMean, ops.ReduceMin, ops.Relu, ops.Reshape, ops.Resize,
    ops.Sigmoid, ops.Slice, ops.Softmax, ops.Softsign, ops.SpaceToDepth, ops.Split,
    ops.Squeeze, ops.Tanh, ops.Tile, ops.Transpose, ops.Unsqueeze,
)  # fmt: skip
"""Ops whose output error is at most their input error."""
_SUMS: Final = (ops.ConvInteger, ops.MatMulInteger)


@dataclass(frozen=True, slots=True)
class QuantizationStep:
    """Distance between neighbouring quantised values of a tensor."""

    relative_size: float
    """Size of a step relative to the largest magnitude: the largest of the quantised tensors before
    it."""
    size: float | None = None
    """Step in units of the tensor's values; None unless the tensor is quantised or its reader
    quantises it."""

    def size_for(self, magnitude: float) -> float:
        """Return the step in units of the tensor's values, given its largest magnitude."""
        return self.relative_size * magnitude if self.size is None else self.size


def quantized_steps(graph: Graph) -> dict[str, QuantizationStep]:
    """Return the steps of tensors that depend on quantised ones, by the tensor's name.

    Sizes, indices and booleans are omitted: their values must be exact.
    """
    steps: dict[str, QuantizationStep] = {}
    for node in graph.nodes:
        input_steps = [steps[v.name] for v in node.inputs if v is not None and v.name in steps]
        for value in node.outputs:
            step = _step_of(node, value, input_steps)
            if step is not None:
                steps[value.name] = step
    return steps


def _step_of(
    node: Node, value: Value, input_steps: Sequence[QuantizationStep]
) -> QuantizationStep | None:
    """Return the step of an output of a node, given the steps of its inputs; None for none."""
    op, kind = node.op, value.type
    if not isinstance(kind, TensorType):
        return None
    if isinstance(op, ops.QuantizeLinear | ops.DynamicQuantizeLinear) and kind.dtype.is_integer:
        return QuantizationStep(1 / (2 ** (8 * kind.dtype.size_bytes) - 1), 1.0)
    if not input_steps or not (kind.dtype.is_float or _is_counted(node, kind.dtype)):
        return None
    relative_size = max(step.relative_size for step in input_steps)
    sizes = [step.size for step in input_steps if step.size is not None]
    if isinstance(op, ops.DequantizeLinear):
        return QuantizationStep(relative_size, _largest(node.inputs[1]))
    if isinstance(op, _STEP_PRESERVING_OPS) and len(sizes) == len(input_steps):
        return QuantizationStep(relative_size, max(sizes))
    return QuantizationStep(relative_size, _next_scale(value))


def _is_counted(node: Node, kind: DType) -> bool:
    """Return whether integers of a node's output are quantised real numbers, and not indices."""
    source = node.inputs[0]
    if source is None or not isinstance(node.op, _STEP_PRESERVING_OPS):
        return isinstance(node.op, _SUMS)
    return source.tensor.dtype is kind


def _next_scale(value: Value) -> float | None:
    """Return the largest scale with which the readers of a tensor quantise it, or None."""
    sizes = [
        _largest(node.inputs[1])
        for node in value.users
        if isinstance(node.op, ops.QuantizeLinear) and node.inputs[0] is value
    ]
    return max((size for size in sizes if size is not None), default=None)


def _largest(scale: Value | None) -> float | None:
    if scale is None:
        return 1.0
    return None if scale.constant is None else float(np.abs(scale.constant.array).max())
