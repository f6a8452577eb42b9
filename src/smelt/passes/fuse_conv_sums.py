"""A convolution that is added to another one's result becomes part of its sum.

A residual block that changes the number of channels projects its shortcut. As one node the two are
one longer sum: the projection is neither stored nor read again, and is one launch less.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from smelt import ops
from smelt.ir import Constant
from smelt.passes._base import Note, Pass, PassResult
from smelt.types import override

if TYPE_CHECKING:
    from smelt.ir import Graph, Node, Value


@dataclass(frozen=True)
class FuseConvSums(Pass):
    """Sum convolutions that are added as one."""

    name: ClassVar[str] = "fuse-conv-sums"

    @override
    def apply(self, graph: Graph) -> PassResult:
        notes: list[Note] = []
        for node in list(graph.nodes):
            other = _added_to(node)
            if other is None:
                continue
            layers = (*node.layers, *other.layers)
            if graph.is_output(other.output) or len(other.output.users) > 1:
                notes.append(Note.refusal(layers, f"{other.output.name!r} has other readers"))
            elif (reason := _why_no_bias(node, other)) is not None:
                notes.append(Note.refusal(layers, reason))
            else:
                notes.append(Note(layers, _folded(graph, node, other).layers))
        return PassResult.of(notes)


def _added_to(node: Node) -> Node | None:
    """The convolution whose result the node's epilogue adds to its own, first of all."""
    fused = node.op
    if not isinstance(fused, ops.Fused) or not _is_dense(node) or not fused.stages:
        return None
    stage, *rest = fused.stages
    places = [a for a in stage.arguments if a >= fused.root_inputs]
    if not isinstance(stage.op, ops.Add) or -1 not in stage.arguments or len(places) != 1:
        return None
    if any(-1 in s.arguments or places[0] in s.arguments for s in rest):
        return None
    value = node.inputs[places[0]]
    made = None if value is None else value.producer
    if made is None or not isinstance(made.op, ops.Conv) or not _is_dense(made):
        return None
    fits = value is not None and value.tensor == node.output.tensor
    return made if fits and (_is_pointwise(made.op) or _is_pointwise(fused.root)) else None


def _is_dense(node: Node) -> bool:
    """Whether the node's root is a convolution in one group, its weights and bias constant."""
    root = node.op.root if isinstance(node.op, ops.Fused) else node.op
    count = node.op.root_inputs if isinstance(node.op, ops.Fused) else len(node.inputs)
    if not isinstance(root, ops.Conv) or root.group != 1:
        return False
    return all(v is None or v.constant is not None for v in node.inputs[1:count])


def _is_pointwise(op: object) -> bool:
    return isinstance(op, ops.Conv) and not any(op.pads) and set(op.kernel_shape) == {1}


def _folded(graph: Graph, node: Node, other: Node) -> Node:
    """One node in the place of the one that adds."""
    fused = node.op
    assert isinstance(fused, ops.Fused)  # noqa: S101  (found to be one)
    assert isinstance(fused.root, ops.Conv)  # noqa: S101
    assert isinstance(other.op, ops.Conv)  # noqa: S101
    stage, *rest = fused.stages
    place = next(a for a in stage.arguments if a >= 0)
    parts = [(fused.root, node), (other.op, other)]
    if not _is_pointwise(other.op):
        parts.reverse()
    own: list[Value | None] = [v for _, part in parts for v in part.inputs[:2]]
    bias = _bias(graph, node, other)
    own += [] if bias is None else [bias]
    extras = list(node.inputs[fused.root_inputs :])
    del extras[place - fused.root_inputs]
    op: ops.Op = ops.ConvSum(parts[0][0], parts[1][0])
    if rest:
        moved = {
            k: len(own) + (k - fused.root_inputs) - (k > place)
            for k in range(fused.root_inputs, len(node.inputs))
        }
        stages = (
            replace(s, arguments=tuple(moved[a] if a >= 0 else a + 1 for a in s.arguments))
            for s in rest
        )
        op = ops.Fused(op, len(own), tuple(stages))
    made = graph.add(
        op,
        *own,
        *extras,
        name=node.name,
        output_names=(node.output.name,),
        before=node,
        layers=tuple(dict.fromkeys((*other.layers, *node.layers))),
    )
    graph.replace_uses(node.output, made.output)
    graph.remove(node)
    graph.remove(other)
    return made


def _biases(node: Node, other: Node) -> list[Value]:
    count = node.op.root_inputs if isinstance(node.op, ops.Fused) else len(node.inputs)
    return [v for v in (*node.inputs[2:count], *other.inputs[2:]) if v is not None]


def _why_no_bias(node: Node, other: Node) -> str | None:
    """Why the biases have no sum, if there are two."""
    values = _biases(node, other)
    return (
        ops.combined_overflow_reason(ops.Add(), *(v.constant for v in values))
        if values[1:]
        else None
    )


def _bias(graph: Graph, node: Node, other: Node) -> Value | None:
    """The sum of both biases, as far as there are any."""
    values = _biases(node, other)
    constants = [v.constant for v in values if v.constant is not None]
    if len(constants) < 2:
        return next(iter(values), None)
    first, second = constants
    name = f"{first.name}+{second.name}"
    return graph.add_constant(Constant.derive(name, ops.Add(), first, second))
