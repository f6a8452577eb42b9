"""Outputs of which it says little that they agree."""

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
"""What elements come to where inputs are large."""
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


def weak_agreement_note(output: Value, wanted: Array, tolerance: float) -> str:
    """Why it says little that an output agrees; empty where it says something.

    Args:
        output: the output.
        wanted: what it should be.
        tolerance: the error that is allowed, relative to the largest magnitude: what differs by
            no more is not told apart.
    """
    if not is_float_dtype(wanted.dtype) or wanted.size == 0:
        return ""
    are_finite = np.isfinite(wanted)
    if not are_finite.all():
        return "" if are_finite.any() else "no element is a finite number"
    allowed = tolerance * float(np.abs(wanted).max())
    node = _maker(output)
    bounds = None if node is None else _BOUNDS.get(type(node.op))
    if node is not None and bounds is not None:
        distance = np.minimum(*(np.abs(wanted - bound) for bound in bounds))
        read = node.inputs[0]
        if distance.max() <= allowed and read is not None:
            return (
                f"every element is {bounds[0]} or {bounds[1]}; compare {read.name!r}, the input "
                f"of {node.op.name}, instead"
            )
    spread = float(wanted.max() - wanted.min())
    if wanted.size > 1 and spread <= allowed:
        return f"every element is {wanted.flat[0]:.4g}"
    return ""


def _maker(value: Value) -> Node | None:
    """The node that computes a value, behind those that only move or round it."""
    node = value.producer
    while node is not None and isinstance(node.op, _DATA_MOVEMENT_OPS):
        read = node.inputs[0]
        node = None if read is None else read.producer
    return node
