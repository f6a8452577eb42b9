"""QuantizeLinear moves before what only moves elements, so that bytes are moved, not floats.

Exporters quantise every tensor: around a pooling, a concatenation or a reshape stand a
DequantizeLinear and a QuantizeLinear. Rounding to steps keeps order and is done element by
element, so it may as well be done before the largest is taken or elements change places. Then
the two stand beside each other, and where their steps are the same both go.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from smelt import ops
from smelt.ir import FreshNames, can_substitute, sole_user, substitute
from smelt.passes._base import Note, Pass, PassResult
from smelt.passes._quant_params import quant_params_of
from smelt.types import override

if TYPE_CHECKING:
    from smelt.ir import Graph, Node, Value

_DATA_MOVEMENT_OPS = (
    ops.Concat,
    ops.Flatten,
    ops.GlobalMaxPool,
    ops.MaxPool,
    ops.Reshape,
    ops.Squeeze,
    ops.Transpose,
    ops.Unsqueeze,
)
_BESIDE = (ops.QuantizeLinear, ops.DequantizeLinear)


@dataclass(frozen=True)
class MoveQuantization(Pass):
    """Quantise before elements are moved, and drop pairs that cancel."""

    name: ClassVar[str] = "move-quantization"

    @override
    def apply(self, graph: Graph) -> PassResult:
        notes: list[Note] = []
        names = FreshNames(graph)
        for node in graph.nodes:
            _see_whole(node)
            _settle_zero(graph, node, names)
        # Last first: what moves up meets what stands above.
        for node in reversed(list(graph.nodes)):
            notes.extend(_move_up(graph, node, names))
        return PassResult.of(notes)


def _see_whole(node: Node) -> None:
    """One scale for the whole tensor is not a scale along an axis: then the op is elementwise."""
    if not isinstance(node.op, _BESIDE) or node.op.axis is None or node.inputs[1] is None:
        return
    shape = node.inputs[1].tensor.shape
    if shape == () or (shape == (1,) and node.output.tensor.rank > 0):
        node.op = replace(node.op, axis=None)


def _settle_zero(graph: Graph, node: Node, names: FreshNames) -> None:
    """Make one zero point a literal, or leave it out where it is nothing.

    It stands around images and in sums that start from it: new weights could not change it.
    """
    if not isinstance(node.op, _BESIDE) or node.op.axis is not None or len(node.inputs) < 3:
        return
    zero = node.inputs[2]
    if zero is None or zero.constant is None:
        return
    array = zero.constant.array.reshape(())
    if not array:
        graph.set_input(node, 2, None)
        node.inputs.pop()
        if isinstance(node.op, ops.QuantizeLinear):
            node.op = replace(node.op, output_dtype=zero.tensor.dtype)
    elif zero.constant.recipe is not None or zero.constant.name:
        literal = array.copy()
        graph.set_input(node, 2, graph.add_constant(literal, names.make(f"{node.name}/zero")))


def _move_up(graph: Graph, node: Node, names: FreshNames) -> list[Note]:
    """Move a QuantizeLinear up as far as it goes."""
    notes: list[Note] = []
    pending = [node]
    while pending:
        current = pending.pop()
        if not isinstance(current.op, ops.QuantizeLinear):
            continue
        note = _cancel(graph, current)
        if note is None:
            made = _swap(graph, current, names)
            if not made:
                continue
            pending += made
            note = Note(current.layers, made[0].layers, "quantises before the data movement")
        notes.append(note)
    return notes


def _cancel(graph: Graph, node: Node) -> Note | None:
    """Drop a QuantizeLinear of what was just dequantised by the same steps."""
    before = None if node.inputs[0] is None else node.inputs[0].producer
    if before is None or not isinstance(before.op, ops.DequantizeLinear):
        return None
    here, there, source = quant_params_of(node), quant_params_of(before), before.inputs[0]
    if here is None or there is None or source is None or not here.equals(there):
        return None
    if not can_substitute(graph, node.output, source):
        return None
    substitute(graph, node.output, source)
    layers = node.layers
    graph.remove(node)
    return Note(layers, (), "the integers are already computed")


def _swap(graph: Graph, node: Node, names: FreshNames) -> list[Node]:
    """Quantise what the mover before reads; returns the new quantising nodes."""
    value, steps = node.inputs[0], quant_params_of(node)
    data_movement = None if value is None else value.producer
    if value is None or data_movement is None or steps is None or steps.axis is not None:
        return []
    if not isinstance(data_movement.op, _DATA_MOVEMENT_OPS) or len(data_movement.outputs) != 1:
        return []
    if sole_user(graph, value) is not node:
        return []
    count = len(data_movement.inputs) if isinstance(data_movement.op, ops.Concat) else 1
    inputs: list[Value | None] = []
    made: list[Node] = []
    for source in data_movement.inputs[:count]:
        name = names.make(f"{node.name}/moved")
        quantised = graph.add(
            node.op, source, *node.inputs[1:], name=name, before=data_movement, layers=node.layers
        )
        made.append(quantised)
        inputs.append(quantised.output)
    moved = graph.add(
        data_movement.op,
        *inputs,
        *data_movement.inputs[count:],
        name=names.make(f"{data_movement.name}/bytes"),
        before=data_movement,
        layers=data_movement.layers,
    )
    if not substitute(graph, node.output, moved.output):
        for dead in (moved, *made):
            graph.remove(dead)
        return []
    graph.remove(node)
    name = data_movement.name
    graph.remove(data_movement)
    moved.name = name
    return made
