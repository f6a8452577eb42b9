"""What follows from quantised tensors, and is counted in their steps.

A number that lies next to the middle between two steps may be rounded to either by two right
engines, and whatever follows from it differs, too.
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
"""As many as networks differ by that are rounded in another order, all of them rightly."""

_STEP_PRESERVING_OPS: Final = (
    ops.Abs,
    ops.AveragePool,
    ops.Clip,
    ops.Concat,
    ops.DepthToSpace,
    ops.Elu,
    ops.Expand,
    ops.Flatten,
    ops.Gather,
    ops.GlobalAveragePool,
    ops.GlobalMaxPool,
    ops.HardSigmoid,
    ops.Identity,
    ops.LeakyRelu,
    ops.Max,
    ops.MaxPool,
    ops.Min,
    ops.Neg,
    ops.Pad,
    ops.ReduceMax,
    ops.ReduceMean,
    ops.ReduceMin,
    ops.Relu,
    ops.Reshape,
    ops.Resize,
    ops.Sigmoid,
    ops.Slice,
    ops.Softmax,
    ops.Softsign,
    ops.SpaceToDepth,
    ops.Split,
    ops.Squeeze,
    ops.Tanh,
    ops.Tile,
    ops.Transpose,
    ops.Unsqueeze,
)
"""Ops whose result is not a further off than what they read."""
_SUMS: Final = (ops.ConvInteger, ops.MatMulInteger)


@dataclass(frozen=True, slots=True)
class QuantizationStep:
    """How far apart neighbouring numbers of a tensor are."""

    share: float
    """As a share of the largest magnitude: that of the quantised tensors that it follows from."""
    size: float | None = None
    """In the tensor's own numbers, where they are quantised, or become it next."""

    def size_for(self, magnitude: float) -> float:
        """The step of a tensor whose largest magnitude is known."""
        return self.share * magnitude if self.size is None else self.size


def quantized_steps(graph: Graph) -> dict[str, QuantizationStep]:
    """The steps of the tensors that follow from quantised ones, by the tensor's name.

    Sizes, indices and truths are left out: they are right or wrong.
    """
    steps: dict[str, QuantizationStep] = {}
    for node in graph.nodes:
        read = [steps[v.name] for v in node.inputs if v is not None and v.name in steps]
        for value in node.outputs:
            step = _step_of(node, value, read)
            if step is not None:
                steps[value.name] = step
    return steps


def _step_of(node: Node, value: Value, read: Sequence[QuantizationStep]) -> QuantizationStep | None:
    op, kind = node.op, value.type
    if not isinstance(kind, TensorType):
        return None
    if isinstance(op, ops.QuantizeLinear | ops.DynamicQuantizeLinear) and kind.dtype.is_integer:
        return QuantizationStep(1 / (2 ** (8 * kind.dtype.size_bytes) - 1), 1.0)
    if not read or not (kind.dtype.is_float or _is_counted(node, kind.dtype)):
        return None
    share = max(step.share for step in read)
    sizes = [step.size for step in read if step.size is not None]
    if isinstance(op, ops.DequantizeLinear):
        return QuantizationStep(share, _largest(node.inputs[1]))
    if isinstance(op, _STEP_PRESERVING_OPS) and len(sizes) == len(read):
        return QuantizationStep(share, max(sizes))
    return QuantizationStep(share, _step_read_next(value))


def _is_counted(node: Node, kind: DType) -> bool:
    """Whether integers stand for real numbers, and are no indices."""
    source = node.inputs[0]
    if source is None or not isinstance(node.op, _STEP_PRESERVING_OPS):
        return isinstance(node.op, _SUMS)
    return source.tensor.dtype is kind


def _step_read_next(value: Value) -> float | None:
    """The steps in which a tensor is counted where it is read; None where it is not."""
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
