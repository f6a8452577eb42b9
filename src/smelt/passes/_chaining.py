"""Two nodes become one ``Chain``: what passes and tuner do where one launch does for both."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smelt import ops

if TYPE_CHECKING:
    from smelt.ir import Graph, Node


def chain_nodes(graph: Graph, first: Node, second: Node) -> Node:
    """One node in the place of two, of which the second's first input is the first's result.

    It keeps that result if others read it; `why_not_chained` says whether they come early enough.
    """
    between = first.output
    is_shared = graph.is_output(between) or len(between.users) > 1
    names = (second.output.name, *[between.name] * is_shared)
    made = graph.add(
        ops.Chain(first.op, len(first.inputs), second.op, keeps=is_shared),
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
        graph.replace_uses(between, made.outputs[1])
    graph.remove(first)
    return made


def why_not_chained(graph: Graph, first: Node, second: Node) -> str | None:
    """Why two nodes cannot be one, or None: the second's result must not be needed before."""
    between = first.output
    if second.inputs[0] is not between or between in second.inputs[1:]:
        return f"{second} reads {between.name} otherwise than first"
    order = {node: place for place, node in enumerate(graph.nodes)}
    early = [user for user in between.users if order[user] < order[second]]
    return f"{early[0]} reads {between.name} before {second}" if early else None
