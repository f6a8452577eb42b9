"""Fuse a dense convolution with the depthwise convolution that is its only reader.

The expansion of an inverted residual, or a stem, produces a tensor several times as large as its
input and final output. As one ``FusedPair`` the two can run panel by panel, and the intermediate is
never stored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from smelt import ops
from smelt.passes._base import NodePass, Note
from smelt.passes._pair_fusion import fuse_pair_nodes
from smelt.passes._patterns import root_of
from smelt.types import DType, override

if TYPE_CHECKING:
    from smelt.ir import FreshNames, Graph, Node


class FuseConvDepthwise(NodePass):
    """Fuse dense convolutions with the depthwise convolutions after them."""

    @override
    def rewrite(self, graph: Graph, node: Node, names: FreshNames) -> Note | None:
        first = _expansion_before(node)
        if first is None:
            return None
        layers = (*first.layers, *node.layers)
        if graph.is_output(first.output):
            reason = f"{first.output.name!r} is an output of the network"
            return Note.refusal(layers, f"{reason}, so it must be stored")
        if len(first.output.users) > 1:
            return Note.refusal(layers, f"{first.output.name!r} has several readers")
        return Note(layers, fuse_pair_nodes(graph, first, node).layers)


def _expansion_before(node: Node) -> Node | None:
    """Return the dense convolution whose result a depthwise convolution reads, or None."""
    source = node.inputs[0] if node.inputs else None
    conv = _conv_of(node)
    first = None if source is None else source.producer
    if conv is None or first is None or conv.group != node.output.tensor.shape[1]:
        return None
    dense = _conv_of(first)
    return first if conv.group > 1 and dense is not None and dense.group == 1 else None


def _conv_of(node: Node) -> ops.Conv | None:
    """Return a node's 2-D float32 convolution with constant weights, or None.

    The node may be fused with an epilogue.
    """
    root = root_of(node.op)
    if not isinstance(root, ops.Conv) or len(root.kernel_shape) != 2:
        return None
    values = [value for value in (*node.inputs, node.output) if value is not None]
    is_float32 = all(value.tensor.dtype is DType.FLOAT32 for value in values)
    weights = node.inputs[1]
    return root if is_float32 and weights is not None and weights.constant is not None else None
