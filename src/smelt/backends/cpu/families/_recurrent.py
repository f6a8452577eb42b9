"""What recurrent kernels share: packed gates, and how sequences and states are walked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from smelt.errors import InternalError
from smelt.ir import Constant
from smelt.ops import Pad, Reshape, Slice, Transpose
from smelt.types import DType

if TYPE_CHECKING:
    from smelt.engine import View
    from smelt.ir import Node
    from smelt.ops import GRU, LSTM
    from smelt.types import Dim

X, W, R, B, LENGTHS, H, C, PEEPHOLES = range(8)
"""The inputs of a recurrent op, in ONNX's order."""

FLOAT_BYTES: Final = 4


def why_not_recurrent(node: Node, op: GRU | LSTM) -> str | None:
    """Why no kernel is generated for a recurrent node."""
    if any(v is not None and v.tensor.dtype is not DType.FLOAT32 for v in node.inputs):
        return "only float32 without sequence lengths is generated"
    if op.activations or op.clip:
        return "only the default activations, without clipping, are generated"
    for index in (W, R, B):
        value = node.inputs[index] if index < len(node.inputs) else None
        if value is not None and value.constant is None:
            return "the weights are not constant"
    return None


def constant_of(node: Node, index: int) -> Constant:
    """The constant that an input is."""
    value = node.inputs[index]
    if value is None or value.constant is None:
        raise InternalError(f"{node}: input {index} is not constant")
    return value.constant


def integers(*values: int) -> Constant:
    """A constant of int64, as the ops that pack weights want their extents."""
    return Constant("extents", np.array(values, np.int64))


def rows_of(source: Constant, first: int, last: int) -> Constant:
    """Places ``first`` to ``last`` of axis 1."""
    return Constant.derive(
        source.name, Slice(), source, integers(first), integers(last), integers(1)
    )


def gate_panels(source: Constant, gates: int, hidden: int, lanes: int) -> Constant:
    """``[directions, gates * hidden, ...]`` as ``[directions, ..., gates, padded hidden]``."""
    directions, _, *inner = source.type.shape
    padded = -hidden % lanes
    shape = integers(int(str(directions)), gates, hidden, *(int(str(d)) for d in inner or (1,)))
    parted = Constant.derive(source.name, Reshape(), source, shape)
    wide = Constant.derive(source.name, Pad(), parted, integers(0, 0, 0, 0, 0, 0, padded, 0))
    return Constant.derive(f"{source.name} in gate panels", Transpose((0, 3, 1, 2)), wide)


def sequence_strides(view: View, layout: int) -> tuple[Dim, ...]:
    """(time, direction, batch) strides of all hidden states."""
    return (view.strides[1], view.strides[2], view.strides[0]) if layout else view.strides[:3]


def state_strides(view: View, layout: int) -> tuple[Dim, ...]:
    """(time, direction, batch) strides of a state, which time does not move."""
    return (0, view.strides[1], view.strides[0]) if layout else (0, *view.strides[:2])
