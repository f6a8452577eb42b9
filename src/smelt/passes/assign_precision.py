"""Assignment of precision: the type that each node computes in and each result is stored in.

The types of values stay those of the model, which references compute in. A 16-bit build sets
`Node.precision` and `Value.storage`, as a network definition of TensorRT sets the precision of a
layer and the type of its output. Backends list the tactics for what they find there, and their
kernels convert while they load and store, so no node has to be added.

Some tensors stay in float32 in a 16-bit build: what a float32 layer reads, logits, and what only
bindings read. A softmax turns an absolute error of a logit into a relative error of the same size:
rounded to float16, logits of 20 give errors of 0.8 %. A tensor that is moved in less time than a
launch takes costs nothing more in float32. And a float32 output binding would only be rounded to be
copied once more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from math import prod
from typing import TYPE_CHECKING, Final

from smelt import ops
from smelt.passes._patterns import root_of
from smelt.types import DType, TensorType, guessed_extent

if TYPE_CHECKING:
    from smelt.ir import Node, Value

_MAX_LOGITS: Final = 1 << 18
"""Maximum number of logits that stay in float32: these are written and read in half a
microsecond."""
_PASS_THROUGH_OPS: Final = (
    ops.Concat, ops.Flatten, ops.Gather, ops.Identity, ops.Reshape, ops.Slice, ops.Split,
    ops.Squeeze, ops.Transpose, ops.Unsqueeze,
)  # fmt: skip
"""Ops that only pass on their input, mostly as windows, which have the type of their source."""


def assign_precision(
    nodes: Sequence[Node],
    dtype: DType,
    float32_layers: Collection[str] = (),
    *,
    supports_mixed_precision: bool = False,
) -> None:
    """Set the precision of nodes, and the storage type of their results.

    Args:
        nodes: nodes of a graph in topological order, with inferred types.
        dtype: type for float32 tensors: float32, float16 or bfloat16.
        float32_layers: names of the nodes that stay in float32.
        supports_mixed_precision: whether kernels may read and write both float32 and ``dtype``, as
            float32 layers and logits require.
    """
    reads_float32: set[Value] = set()
    for node in reversed(nodes):
        node.precision = dtype
        if _passes_through(node):
            stays = any(value in reads_float32 for value in node.outputs)
        else:
            stays = node.name in float32_layers
        if supports_mixed_precision and stays:
            node.precision = DType.FLOAT32
            reads_float32.update(value for value in node.inputs if value is not None)
    logits = _Logits()
    for node in nodes:
        if supports_mixed_precision and logits.are_read_by(node):
            node.precision = DType.FLOAT32
        for value in node.outputs:
            stays = supports_mixed_precision and (value in reads_float32 or logits.include(value))
            value.storage = DType.FLOAT32 if stays or not value.users else dtype


def _passes_through(node: Node) -> bool:
    return isinstance(node.op, _PASS_THROUGH_OPS)


def _has_softmax(node: Node) -> bool:
    """Return whether a node computes a softmax before its epilogue."""
    return isinstance(root_of(node.op), ops.Softmax | ops.LogSoftmax)


class _Logits:
    """The values that only softmaxes and bindings read, also through pass-through ops.

    All values that are connected by pass-through ops get one type; otherwise they would be copied.
    """

    def __init__(self) -> None:
        self._known: dict[Value, bool] = {}

    def include(self, value: Value) -> bool:
        """Return whether a value is among them."""
        if value not in self._known:
            connected: dict[Value, None] = {value: None}
            answer = self._search(connected)
            self._known |= dict.fromkeys(connected, answer)
        return self._known[value]

    def are_read_by(self, node: Node) -> bool:
        """Return whether a node passes some of them on, or computes their softmax."""
        if _passes_through(node):
            return self.include(node.output)  # the first input may be a constant
        return _has_softmax(node) and node.inputs[0] is not None and self.include(node.inputs[0])

    def _search(self, connected: dict[Value, None]) -> bool:
        """Return the answer for connected values, to which those that are found are added."""
        pending = list(connected)
        feeds_softmax = is_large = False
        while pending:
            current = pending.pop()
            if current.producer is None or not _is_float32(current):
                return False
            for user in current.users:
                if _has_softmax(user) and user.inputs[0] is current:
                    feeds_softmax = True
                elif not _passes_through(user):
                    return False
            is_large |= prod(map(guessed_extent, current.tensor.shape)) > _MAX_LOGITS
            neighbours = [v for v in _neighbours(current) if v not in connected]
            connected |= dict.fromkeys(neighbours)
            pending += neighbours
        return not (feeds_softmax and is_large)


def _is_float32(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.dtype is DType.FLOAT32


def _neighbours(value: Value) -> Iterator[Value]:
    """Yield the values that a value is made from or passed on as, by pass-through ops."""
    producer = value.producer
    if producer is not None and _passes_through(producer):
        sources = producer.inputs if isinstance(producer.op, ops.Concat) else producer.inputs[:1]
        yield from (v for v in sources if v is not None and v.constant is None)
    for user in value.users:
        if _passes_through(user):
            yield from user.outputs
