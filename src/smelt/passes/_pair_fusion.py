"""Fusion of two nodes into one ``FusedPair``, as used by the passes and the tuner."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smelt import ops
from smelt.passes._patterns import merged_layers

if TYPE_CHECKING:
    from smelt.ir import Graph, Node


def fuse_pair_nodes(graph: Graph, first: Node, second: Node) -> Node:
    """Replace two nodes by one ``FusedPair``.

    The first input of ``second`` must be the result of ``first``. The fused node also returns that
    result if other nodes read it. `unfusable_pair_reason` checks the conditions.
    """
    intermediate = first.output
    is_shared = graph.is_output(intermediate) or len(intermediate.users) > 1
    names = (second.output.name, *[intermediate.name] * is_shared)
    op = ops.FusedPair(first.op, len(first.inputs), second.op, returns_intermediate=is_shared)
    inputs, layers = (*first.inputs, *second.inputs[1:]), merged_layers(first, second)
    pair = graph.add(
        op, *inputs, name=second.name, output_names=names, before=second, layers=layers
    )
    pair.precision = second.precision
    for value, fused in zip((second.output, intermediate), pair.outputs, strict=False):
        fused.storage = value.storage
    graph.replace_uses(second.output, pair.output)
    graph.remove(second)
    if is_shared:
        graph.replace_uses(intermediate, pair.outputs[1])
    graph.remove(first)
    return pair


def unfusable_pair_reason(graph: Graph, first: Node, second: Node) -> str | None:
    """Return why two nodes cannot be fused, or None.

    The second node must read the intermediate as its first input only, and no other node may read
    the intermediate before the second node runs.
    """
    intermediate = first.output
    if second.inputs[0] is not intermediate or intermediate in second.inputs[1:]:
        return f"{second} does not read {intermediate.name!r} as its first input only"
    order = {node: position for position, node in enumerate(graph.nodes)}
    early = [user for user in intermediate.users if order[user] < order[second]]
    return f"{early[0]} reads {intermediate.name!r} before {second}" if early else None
