"""Tensors that stay in float32 in a 16-bit build: logits, and tensors that only bindings read.

A softmax turns an absolute error of a logit into a relative error of the same size: rounded to
float16, logits of 20 give errors of 0.8 %. A tensor that is moved in less time than a launch takes
costs nothing more in float32. And a float32 output binding would only be rounded to be copied once
more.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from smelt.backends._base import Aliasing
from smelt.backends._fused_programs import root_of
from smelt.backends.cuda._cost_model import count_of
from smelt.ops import (
    Concat,
    Flatten,
    Gather,
    Identity,
    LogSoftmax,
    Reshape,
    Slice,
    Softmax,
    Split,
    Squeeze,
    Transpose,
    Unsqueeze,
)
from smelt.types import DType, Layout

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from smelt.backends._base import Tactic
    from smelt.ir import Node, Value
    from smelt.types import TensorFormat

_MAX_ELEMENTS: Final = 1 << 18
"""Maximum number of logits that stay in float32: these are written and read in half a
microsecond."""
PASS_THROUGH_OPS: Final = (
    Concat, Flatten, Gather, Identity, Reshape, Slice, Split, Squeeze, Transpose, Unsqueeze,
)  # fmt: skip
"""Ops that only pass on their input, mostly as windows, which have the type of their source."""


def keep_logits_float32(
    node: Node, tactics: Sequence[Tactic], fixed_families: Collection[str]
) -> list[Tactic]:
    """Return the tactics of a 16-bit build with float32 for the tensors that stay in it.

    Views, half2 kernels and tactics with fixed types are unchanged: views have the type of their
    source, and half2 kernels are 16-bit only.

    Args:
        node: node of the tactics.
        tactics: tactics whose float32 tensors are stored in 16 bits.
        fixed_families: families whose tactics have fixed types.
    """
    inputs = [
        _is_passed_through(node, n) and stays_float32(value) for n, value in enumerate(node.inputs)
    ]
    outputs = [stays_float32(value) for value in node.outputs]
    if not any((*inputs, *outputs)):
        return list(tactics)
    return [
        tactic if tactic.family in fixed_families else _with_float32(tactic, inputs, outputs)
        for tactic in tactics
    ]


def _with_float32(tactic: Tactic, inputs: Sequence[bool], outputs: Sequence[bool]) -> Tactic:
    """Return a tactic with the marked inputs and outputs stored as float32."""
    formats = [fmt for fmt in (*tactic.inputs, *tactic.outputs) if fmt is not None]
    is_half2 = any(fmt.layout is Layout.PAIRED for fmt in formats)
    if is_half2 or tactic.aliasing is not Aliasing.NONE:
        return tactic
    return replace(
        tactic,
        inputs=tuple(
            _as_float32(fmt) if stays and fmt is not None else fmt
            for fmt, stays in zip(tactic.inputs, inputs, strict=True)
        ),
        outputs=tuple(
            _as_float32(fmt) if stays else fmt
            for fmt, stays in zip(tactic.outputs, outputs, strict=True)
        ),
    )


def _as_float32(fmt: TensorFormat) -> TensorFormat:
    """Return a format with its elements stored as float32."""
    return replace(fmt, dtype=DType.FLOAT32)


def _is_passed_through(node: Node, position: int) -> bool:
    """Return whether a node passes an input on unchanged, or applies a softmax to it."""
    return isinstance(node.op, PASS_THROUGH_OPS) or (position == 0 and _has_softmax(node))


def _has_softmax(node: Node) -> bool:
    """Return whether a node computes a softmax before its epilogue."""
    return isinstance(root_of(node)[0], Softmax | LogSoftmax)


def stays_float32(value: Value | None) -> bool:
    """Return whether only softmaxes and bindings read a value, also through pass-through ops.

    All values that are connected by pass-through ops get one type; otherwise they would be copied.
    """
    if value is None or value.tensor.dtype is not DType.FLOAT32:
        return False
    visited, pending = {value}, [value]
    feeds_softmax = is_large = False
    while pending:
        current = pending.pop()
        for user in current.users:
            if _has_softmax(user) and user.inputs[0] is current:
                feeds_softmax = True
            elif not isinstance(user.op, PASS_THROUGH_OPS):
                return False
        if current.producer is None:
            return False
        is_large |= count_of(current) > _MAX_ELEMENTS
        neighbours = [v for v in _pass_through_neighbours(current) if v not in visited]
        visited.update(neighbours)
        pending += neighbours
    return not (feeds_softmax and is_large)


def _pass_through_neighbours(value: Value) -> Iterator[Value]:
    """Yield the values that a value is made from or passed on as, by pass-through ops."""
    producer = value.producer
    if producer is not None and isinstance(producer.op, PASS_THROUGH_OPS):
        sources = producer.inputs if isinstance(producer.op, Concat) else producer.inputs[:1]
        yield from (v for v in sources if v is not None and v.constant is None)
    for user in value.users:
        if isinstance(user.op, PASS_THROUGH_OPS):
            yield from user.outputs
