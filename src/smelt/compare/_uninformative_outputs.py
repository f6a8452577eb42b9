"""Detection of outputs whose agreement is weak evidence, such as saturated or constant ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from smelt import ops
from smelt.types import is_float_dtype

if TYPE_CHECKING:
    from smelt.ir import Array, Node, Op, Value

_BOUNDS: Final[dict[type[Op], tuple[int, int]]] = {
    ops.HardSigmoid: (0, 1),
    ops.Sigmoid: (0, 1),
    ops.Softmax: (0, 1),
    ops.Softsign: (-1, 1),
    ops.Tanh: (-1, 1),
}
"""Limits of the outputs of saturating ops for inputs of large magnitude."""
_DATA_MOVEMENT_OPS: Final = (
    ops.DequantizeLinear,
    ops.Flatten,
    ops.Identity,
    ops.QuantizeLinear,
    ops.Reshape,
    ops.Squeeze,
    ops.Transpose,
    ops.Unsqueeze,
)
"""Ops that only move or round elements."""


def weak_agreement_note(output: Value, expected: Array, tolerance: float) -> str:
    """Return why the agreement of an output is weak evidence; empty if it is not.

    Args:
        output: the output.
        expected: its values by the oracle.
        tolerance: allowed error relative to the largest magnitude. Values that differ by less count
            as equal.
    """
    if not is_float_dtype(expected.dtype) or expected.size == 0:
        return ""
    are_finite = np.isfinite(expected)
    if not are_finite.all():
        return "" if are_finite.any() else "no element is a finite number"
    allowed = tolerance * float(np.abs(expected).max())
    node = _producer(output)
    bounds = None if node is None else _BOUNDS.get(type(node.op))
    if node is not None and bounds is not None:
        distance = np.minimum(*(np.abs(expected - bound) for bound in bounds))
        source = node.inputs[0]
        if distance.max() <= allowed and source is not None:
            return (
                f"every element is {bounds[0]} or {bounds[1]}; compare {source.name!r}, the input "
                f"of {node.op.name}, instead"
            )
    spread = float(expected.max() - expected.min())
    if expected.size > 1 and spread <= allowed:
        return f"every element is {expected.flat[0]:.4g}"
    return ""


def _producer(value: Value) -> Node | None:
    """Return the node that computes a value, before ops that only move or round it."""
    node = value.producer
    while node is not None and isinstance(node.op, _DATA_MOVEMENT_OPS):
        source = node.inputs[0]
        node = None if source is None else source.producer
    return node
