"""Two nodes become one ``FusedPair``: what passes and tuner do where one launch does for both."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smelt import ops

if TYPE_CHECKING:
    from smelt.ir import Graph, Node


def fuse_pair_nodes(graph: Graph, first: Node, second: Node) -> Node:
    """One node in the place of two, of which the second's first input is the first's result.

    It keeps that result if others read it; `unfusable_pair_reason` says whether they come early
    enough.
    """
    intermediate = first.output
    is_shared = graph.is_output(intermediate) or len(intermediate.users) > 1
    names = (second.output.name, *[intermediate.name] * is_shared)
    made = graph.add(
        ops.FusedPair(first.op, len(first.inputs), second.op, returns_intermediate=is_shared),
        *first.inputs,
        *second.inputs[1:],
        name=second.name,
        output_names=names,
        before=second,
        layers=tuple(dict.fromkeys((*first.layers, *second.layers))),
    )
    graph.replace_uses(second.output, made.output)
    graph.remove(second)
    if is_shared:
        graph.replace_uses(intermediate, made.outputs[1])
    graph.remove(first)
    return made


def unfusable_pair_reason(graph: Graph, first: Node, second: Node) -> str | None:
    """Why two nodes cannot be one, or None: the second's result must not be needed before."""
    intermediate = first.output
    if second.inputs[0] is not intermediate or intermediate in second.inputs[1:]:
        return f"{second} reads {intermediate.name} not only as its first input"
    order = {node: place for place, node in enumerate(graph.nodes)}
    early = [user for user in intermediate.users if order[user] < order[second]]
    return f"{early[0]} reads {intermediate.name} before {second}" if early else None
