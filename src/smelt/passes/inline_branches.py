"""Replace an If with a constant condition by the branch that it takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from smelt import ops
from smelt.ir import FreshNames, clone, remove_dead, substitute
from smelt.passes._base import Note, Pass, PassResult
from smelt.types import override

if TYPE_CHECKING:
    from smelt.ir import Graph, Node, Value


@dataclass(frozen=True)
class InlineBranches(Pass):
    """Replace each If whose condition is constant by the nodes of the branch that it takes."""

    name: ClassVar[str] = "inline-branches"
    discovers_values: ClassVar[bool] = True

    @override
    def apply(self, graph: Graph) -> PassResult:
        notes: list[Note] = []
        for node in list(graph.nodes):
            condition = node.inputs[0] if isinstance(node.op, ops.If) else None
            if condition is None or condition.constant is None:
                continue
            truth = bool(condition.constant.fix().any())
            inputs = list(node.inputs)
            if _inline(graph, node, node.op.regions[0 if truth else 1]):
                remove_dead(graph, inputs)
                branch = "then_branch" if truth else "else_branch"
                notes.append(Note(node.layers, node.layers, f"always its {branch}"))
            else:
                reason = "its branch returns a value that cannot take the name of an output"
                notes.append(Note.refusal(node.layers, reason))
        return PassResult.of(notes)


def _inline(graph: Graph, node: Node, branch: Graph) -> bool:
    """Replace a node by the nodes of a branch; return whether that was possible."""
    pairs = list(zip(node.outputs, branch.outputs, strict=True))
    inner_outputs = {inner for outer, inner in pairs if graph.is_output(outer)}
    all_inner_outputs = [inner for outer, inner in pairs if graph.is_output(outer)]
    if len(inner_outputs) < len(all_inner_outputs) or any(
        inner.producer is None for inner in all_inner_outputs
    ):
        return False
    names = FreshNames(graph)
    region = clone(branch)
    replacements: dict[Value, Value | None] = dict(zip(region.inputs, node.inputs[1:], strict=True))
    for value in region.values():
        if (
            value.constant is not None
        ):  # only the value is renamed: a refit finds the constant by its name
            value.name = names.make(value.name)
            value.users.clear()  # the copies added below become its users
    for inner_node in region.nodes:
        inputs = [replacements.get(v, v) if v is not None else None for v in inner_node.inputs]
        label = names.make(f"{node.name}/{inner_node.name}")
        copy = graph.add(
            inner_node.op,
            *inputs,
            name=label,
            output_names=[
                label,
                *(names.make(f"{label}:{i}") for i in range(1, len(inner_node.outputs))),
            ],
            before=node,
            layers=node.layers,
        )
        replacements.update((a, b) for a, b in zip(inner_node.outputs, copy.outputs, strict=True))
    for outer, inner in zip(list(node.outputs), region.outputs, strict=True):
        source = replacements.get(inner, inner)
        if source is not None:
            substitute(graph, outer, source)
    graph.remove(node)
    return True
