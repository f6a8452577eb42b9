"""Move QuantizeLinear before data movement, so that bytes are moved instead of floats.

Exporters quantise every tensor, so a pooling, concatenation or reshape stands between a
DequantizeLinear and a QuantizeLinear. Quantisation is elementwise and monotonic, so it commutes
with the maximum and with data movement. After the move the two are adjacent, and cancel if their
parameters are equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from smelt import ops
from smelt.errors import ShapeError
from smelt.ir import FreshNames, Graph, Node, Value, sole_user, substitute
from smelt.passes._base import Note, Pass, PassResult
from smelt.passes._patterns import input_at, producer_of_kind
from smelt.passes._quant_params import quant_params_of
from smelt.types import override

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
_QUANTIZATION_OPS = (ops.QuantizeLinear, ops.DequantizeLinear)


class MoveQuantization(Pass):
    """Quantise before data movement, and remove pairs that cancel."""

    @override
    def apply(self, graph: Graph) -> PassResult:
        notes: list[Note] = []
        names = FreshNames(graph)
        for node in graph.nodes:
            _make_per_tensor(node)
            _simplify_zero_point(graph, node, names)
        # Last to first, so that a node that moves up meets those that have not moved yet.
        for node in reversed(list(graph.nodes)):
            notes.extend(_move_up(graph, node, names))
        return PassResult.of(notes)


def _make_per_tensor(node: Node) -> None:
    """Drop the axis of a scale with one element, which makes the op elementwise."""
    if not isinstance(node.op, _QUANTIZATION_OPS) or node.op.axis is None or node.inputs[1] is None:
        return
    shape = node.inputs[1].tensor.shape
    if shape == () or (shape == (1,) and node.output.tensor.rank > 0):
        node.op = replace(node.op, axis=None)


def _simplify_zero_point(graph: Graph, node: Node, names: FreshNames) -> None:
    """Make a per-tensor zero point a literal constant, or remove it if it is 0.

    A zero point is used as padding and as the start value of sums at build time, so a refit could
    not change it.
    """
    zero = input_at(node, 2)
    if not isinstance(node.op, _QUANTIZATION_OPS) or node.op.axis is not None:
        return
    if zero is None or zero.constant is None:
        return
    array = zero.constant.fix().reshape(())
    if not array:
        graph.set_input(node, 2, None)
        node.inputs.pop()
        if isinstance(node.op, ops.QuantizeLinear):
            node.op = replace(node.op, output_dtype=zero.tensor.dtype)
    elif zero.constant.recipe is not None or zero.constant.name:
        literal = array.copy()
        graph.set_input(node, 2, graph.add_constant(literal, names.make(f"{node.name}/zero")))


def _move_up(graph: Graph, node: Node, names: FreshNames) -> list[Note]:
    """Move a QuantizeLinear before data movement as often as possible."""
    notes: list[Note] = []
    pending = [node]
    while pending:
        current = pending.pop()
        if not isinstance(current.op, ops.QuantizeLinear):
            continue
        note = _cancel(graph, current)
        if note is None:
            moved = _swap(graph, current, names)
            if not moved:
                continue
            pending += moved
            note = Note(current.layers, moved[0].layers, "quantises before the data movement")
        notes.append(note)
    return notes


def _cancel(graph: Graph, node: Node) -> Note | None:
    """Remove a QuantizeLinear after a DequantizeLinear with equal parameters."""
    dequantize = producer_of_kind(node.inputs[0], ops.DequantizeLinear)
    params, source_params = quant_params_of(node), quant_params_of(dequantize)
    source = None if dequantize is None else dequantize.inputs[0]
    if params is None or source_params is None or source is None:
        return None
    if not params.equals(source_params) or not substitute(graph, node.output, source):
        return None
    params.fix(source_params)
    source_params.fix()
    layers = node.layers
    graph.remove(node)
    return Note(layers, (), "the integers are already computed")


def _swap(graph: Graph, node: Node, names: FreshNames) -> list[Node]:
    """Swap a QuantizeLinear and the data movement before it.

    Returns the new QuantizeLinear nodes; none if the swap is not possible.
    """
    value, params = node.inputs[0], quant_params_of(node)
    data_movement = None if value is None else value.producer
    if value is None or data_movement is None or params is None or params.axis is not None:
        return []
    if not isinstance(data_movement.op, _DATA_MOVEMENT_OPS) or len(data_movement.outputs) != 1:
        return []
    if sole_user(graph, value) is not node:
        return []
    count = len(data_movement.inputs) if isinstance(data_movement.op, ops.Concat) else 1
    inputs: list[Value | None] = []
    quantize_nodes: list[Node] = []
    for source in data_movement.inputs[:count]:
        name = names.make(f"{node.name}/moved")
        quantised = graph.add(
            node.op, source, *node.inputs[1:], name=name, before=data_movement, layers=node.layers
        )
        quantize_nodes.append(quantised)
        inputs.append(quantised.output)
    inputs.extend(data_movement.inputs[count:])
    moved = _moved(graph, data_movement, inputs, names)
    if moved is None or not substitute(graph, node.output, moved.output):
        for unused in (*([] if moved is None else [moved]), *quantize_nodes):
            graph.remove(unused)
        return []
    graph.remove(node)
    name = data_movement.name
    graph.remove(data_movement)
    moved.name = name
    return quantize_nodes


def _moved(
    graph: Graph, node: Node, inputs: Sequence[Value | None], names: FreshNames
) -> Node | None:
    """Add a node's op on quantised inputs; None if it does not take integers of their width."""
    name = names.make(f"{node.name}/bytes")
    try:
        return graph.add(node.op, *inputs, name=name, before=node, layers=node.layers)
    except ShapeError:
        return None
