"""Replace an If with a constant condition by the branch that it takes."""

from __future__ import annotations

from typing import ClassVar

from smelt import ops
from smelt.ir import FreshNames, Graph, Node, Value, clone, remove_dead, substitute
from smelt.passes._base import NodePass, Note
from smelt.types import override


class InlineBranches(NodePass):
    """Replace each If whose condition is constant by the nodes of the branch that it takes."""

    discovers_values: ClassVar[bool] = True

    @override
    def rewrite(self, graph: Graph, node: Node, names: FreshNames) -> Note | None:
        condition = node.inputs[0] if isinstance(node.op, ops.If) else None
        if condition is None or condition.constant is None:
            return None
        truth = bool(condition.constant.fix().any())
        inputs = list(node.inputs)
        branch = "then_branch" if truth else "else_branch"
        if not _inline(graph, node, node.op.regions[0 if truth else 1], names):
            reason = (
                f"its {branch} returns an input, a constant or the same value twice as outputs of "
                "the network"
            )
            return Note.refusal(node.layers, reason)
        remove_dead(graph, inputs)
        return Note(node.layers, node.layers, f"always computes its {branch}")


def _inline(graph: Graph, node: Node, branch: Graph, names: FreshNames) -> bool:
    """Replace a node by the nodes of a branch; return whether that was possible."""
    pairs = list(zip(node.outputs, branch.outputs, strict=True))
    renamed = [inner for outer, inner in pairs if graph.is_output(outer)]
    if len(set(renamed)) < len(renamed) or any(value.producer is None for value in renamed):
        return False
    region = clone(branch)
    replacements: dict[Value, Value | None] = dict(zip(region.inputs, node.inputs[1:], strict=True))
    for value in region.values():
        if value.constant is not None:
            # Only the value is renamed: a refit finds the constant by its name.
            value.name = names.make(value.name)
            value.users.clear()  # the copies added below become its users
    for inner_node in region.nodes:
        inputs = [replacements.get(v, v) if v is not None else None for v in inner_node.inputs]
        label = names.make(f"{node.name}/{inner_node.name}")
        op, layers = inner_node.op, node.layers
        labels = [label, *(names.make(f"{label}:{i}") for i in range(1, len(inner_node.outputs)))]
        copy = graph.add(op, *inputs, name=label, output_names=labels, before=node, layers=layers)
        replacements.update((a, b) for a, b in zip(inner_node.outputs, copy.outputs, strict=True))
    for outer, inner in zip(list(node.outputs), region.outputs, strict=True):
        source = replacements.get(inner, inner)
        if source is not None:
            substitute(graph, outer, source)
    graph.remove(node)
    return True
