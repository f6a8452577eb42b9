"""What stays in float32 where 16 bits are asked for: logits, and what only bindings take.

A softmax makes of each logit's error a relative one of the same size: rounded to float16, logits of
20 err by 0.8 %. What is moved in less time than a launch takes costs nothing more in float32. And
what a binding of float32 takes would be rounded only to be copied once more.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from smelt.backends._base import Aliasing
from smelt.backends._fused_programs import root_of
from smelt.backends.cuda._cost_model import count_of
from smelt.devices.cuda import LIBRARIES
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
    from collections.abc import Iterator, Sequence

    from smelt.backends._base import Tactic
    from smelt.ir import Node, Value
    from smelt.types import TensorFormat

_MAX_ELEMENTS: Final = 1 << 18
"""Of logits: they are written and read in half a microsecond."""
PASS_THROUGH_OPS: Final = (
    Concat, Flatten, Gather, Identity, Reshape, Slice, Split, Squeeze, Transpose, Unsqueeze,
)  # fmt: skip
"""Ops that hand on what they read: mostly windows, which are as wide as what they are of."""


def keep_logits_float32(node: Node, tactics: Sequence[Tactic]) -> list[Tactic]:
    """The tactics with float32 where that stays, for a node on which 16 bits are asked for.

    Windows are of what there is, images in pairs are of 16 bits, and a library's algorithm is for
    the types that it was asked for.
    """
    inputs = [
        _is_passed_through(node, n) and stays_float32(value) for n, value in enumerate(node.inputs)
    ]
    outputs = [stays_float32(value) for value in node.outputs]
    if not any((*inputs, *outputs)):
        return list(tactics)
    return [_stored_as_float32(tactic, inputs, outputs) for tactic in tactics]


def _stored_as_float32(tactic: Tactic, inputs: Sequence[bool], outputs: Sequence[bool]) -> Tactic:
    every = [fmt for fmt in (*tactic.inputs, *tactic.outputs) if fmt is not None]
    is_half2 = any(fmt.layout is Layout.PAIRED for fmt in every)
    if is_half2 or tactic.aliasing is not Aliasing.NONE or tactic.family in LIBRARIES:
        return tactic
    return replace(
        tactic,
        inputs=tuple(
            _wide(fmt) if stays and fmt is not None else fmt
            for fmt, stays in zip(tactic.inputs, inputs, strict=True)
        ),
        outputs=tuple(
            _wide(fmt) if stays else fmt for fmt, stays in zip(tactic.outputs, outputs, strict=True)
        ),
    )


def _wide(fmt: TensorFormat) -> TensorFormat:
    return replace(fmt, dtype=DType.FLOAT32)


def _is_passed_through(node: Node, position: int) -> bool:
    """Whether a node reads an input as it is made, or softens it."""
    return isinstance(node.op, PASS_THROUGH_OPS) or (position == 0 and _has_softmax(node))


def _has_softmax(node: Node) -> bool:
    return isinstance(root_of(node)[0], Softmax | LogSoftmax)


def stays_float32(value: Value | None) -> bool:
    """Whether only softmaxes and bindings come to read a value, and all that it is handed on with.

    What is joined, cut or turned stays together: in one type, or copies would be made of it.
    """
    if value is None or value.tensor.dtype is not DType.FLOAT32:
        return False
    known, left = {value}, [value]
    is_softened = is_large = False
    while left:
        one = left.pop()
        for user in one.users:
            if _has_softmax(user) and user.inputs[0] is one:
                is_softened = True
            elif not isinstance(user.op, PASS_THROUGH_OPS):
                return False
        if one.producer is None:
            return False
        is_large |= count_of(one) > _MAX_ELEMENTS
        new = [v for v in _pass_through_neighbours(one) if v not in known]
        known.update(new)
        left += new
    return not (is_softened and is_large)


def _pass_through_neighbours(value: Value) -> Iterator[Value]:
    """What a value is handed on from, or as."""
    made = value.producer
    if made is not None and isinstance(made.op, PASS_THROUGH_OPS):
        sources = made.inputs if isinstance(made.op, Concat) else made.inputs[:1]
        yield from (v for v in sources if v is not None and v.constant is None)
    for user in value.users:
        if isinstance(user.op, PASS_THROUGH_OPS):
            yield from user.outputs
