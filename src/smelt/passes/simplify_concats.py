"""Simplify concatenations, and cancel them against Split and Slice.

The memory planner writes the inputs of a concatenation directly into its result where it can. This
pass only notes for which inputs that is possible.
"""

from __future__ import annotations

from smelt import ops
from smelt.ir import FreshNames, Graph, Node, Value, can_substitute, sole_user, substitute
from smelt.passes._base import NodePass, Note, PassResult
from smelt.passes._patterns import producer_of_kind, replace_node
from smelt.types import TensorType, override


class SimplifyConcats(NodePass):
    """Flatten nested concatenations, and cancel them against Split and Slice."""

    @override
    def rewrite(self, graph: Graph, node: Node, names: FreshNames) -> Note | None:
        match node.op:
            case ops.Concat():
                return _cancel_split(graph, node) or _flatten(graph, node)
            case ops.Slice():
                return _slice_of_concat(graph, node)
            case ops.Split():
                return _split_of_concat(graph, node)
            case _:
                return None

    @override
    def apply(self, graph: Graph) -> PassResult:
        result = super().apply(graph)
        return PassResult(result.modified, (*result.notes, *_candidates(graph)))


def _axis(node: Node) -> int:
    axis = getattr(node.op, "axis", 0)
    return int(axis) % node.inputs[0].tensor.rank if node.inputs[0] is not None else int(axis)


def _flatten(graph: Graph, node: Node) -> Note | None:
    """Replace nested concatenations that only this one reads by their inputs."""
    inner = [_inner_concat(graph, node, value) for value in node.inputs]
    if not any(inner):
        return None
    inputs: list[Value | None] = []
    layers: list[str] = []
    for value, nested in zip(node.inputs, inner, strict=True):
        inputs.extend(nested.inputs if nested is not None else [value])
        layers.extend(nested.layers if nested is not None else [])
    all_layers = tuple(dict.fromkeys((*layers, *node.layers)))
    flat = replace_node(graph, node, ops.Concat(_axis(node)), *inputs, layers=all_layers)
    for nested in inner:
        if nested is not None:
            graph.remove(nested)
    return Note(flat.layers, flat.layers, "several concatenations become one")


def _inner_concat(graph: Graph, node: Node, value: Value | None) -> Node | None:
    """Return the concatenation along the same axis that only ``node`` reads, or None."""
    producer = producer_of_kind(value, ops.Concat)
    if value is None or producer is None:
        return None
    is_mergeable = sole_user(graph, value) is node and _axis(producer) == _axis(node)
    return producer if is_mergeable else None


def _cancel_split(graph: Graph, node: Node) -> Note | None:
    """Remove a concatenation of all parts of a Split in order."""
    split = producer_of_kind(node.inputs[0], ops.Split)
    if split is None or _axis(split) != _axis(node):
        return None
    if len(node.inputs) != len(split.outputs):
        return None
    if any(a is not b for a, b in zip(node.inputs, split.outputs, strict=True)):
        return None
    source = split.inputs[0]
    if source is None or not substitute(graph, node.output, source):
        return None
    graph.remove(node)
    return Note(node.layers, (), f"it concatenates the parts of {split.name}")


def _slice_of_concat(graph: Graph, node: Node) -> Note | None:
    """Replace a Slice that is exactly one input of a concatenation by that input."""
    concat = producer_of_kind(node.inputs[0], ops.Concat)
    if concat is None:
        return None
    window = _window(node)
    if window is None or window[0] != _axis(concat):
        return None
    for value, start, length in _parts(concat):
        if (start, length) == window[1:] and substitute(graph, node.output, value):
            graph.remove(node)
            return Note(node.layers, (), f"it slices {value.name!r} from {concat.name}")
    return None


def _window(node: Node) -> tuple[int, int, int] | None:
    """Return axis, start and length of a slice along one axis with step 1, or None."""
    constants = [None if v is None else v.constant for v in node.inputs[1:]]
    if not constants or any(c is None or c.array.size != 1 for c in constants):
        return None
    numbers = [int(c.fix().ravel()[0]) for c in constants if c is not None]
    data = node.inputs[0]
    if data is None or len(numbers) < 3 or numbers[3:] not in ([], [1]):
        return None
    axis = numbers[2] % data.tensor.rank
    extent, length = data.tensor.shape[axis], node.output.tensor.shape[axis]
    if not isinstance(extent, int) or not isinstance(length, int):
        return None
    start = min(max(numbers[0] + (extent if numbers[0] < 0 else 0), 0), extent)
    return axis, start, length


def _parts(concat: Node) -> list[tuple[Value, int, int]]:
    """Return the inputs of a concatenation with their starts and lengths, up to a symbolic one."""
    parts: list[tuple[Value, int, int]] = []
    start = 0
    for value in concat.inputs:
        if value is None or not isinstance(value.type, TensorType):
            break
        length = value.type.shape[_axis(concat)]
        if not isinstance(length, int):
            break
        parts.append((value, start, length))
        start += length
    return parts


def _split_of_concat(graph: Graph, node: Node) -> Note | None:
    """Replace a Split that undoes a concatenation by the concatenation's inputs."""
    concat = producer_of_kind(node.inputs[0], ops.Concat)
    if concat is None or _axis(concat) != _axis(node):
        return None
    if len(concat.inputs) != len(node.outputs):
        return None
    pairs = [(a, b) for a, b in zip(concat.inputs, node.outputs, strict=True) if a is not None]
    if any(a.type != b.type or not can_substitute(graph, b, a) for a, b in pairs):
        return None
    output_sources = [a for a, b in pairs if graph.is_output(b)]
    if len(set(output_sources)) != len(output_sources):
        return None
    for source, part in pairs:
        substitute(graph, part, source)
    graph.remove(node)
    return Note(node.layers, (), f"it restores the inputs of {concat.name}")


def _candidates(graph: Graph) -> list[Note]:
    """Note for each concatenation whether its inputs can be written directly into its result."""
    notes: list[Note] = []
    for node in graph.nodes:
        if not isinstance(node.op, ops.Concat):
            continue
        present = [v for v in node.inputs if v is not None]
        blocked = [v.name for v in present if not _can_be_written_directly(graph, node, v)]
        if blocked:
            reason = f"these inputs are copied into its result: {', '.join(blocked)}"
            notes.append(Note.refusal(node.layers, reason))
        else:
            detail = "its inputs are written directly into its result"
            notes.append(Note(node.layers, node.layers, detail))
    return notes


def _can_be_written_directly(graph: Graph, node: Node, value: Value) -> bool:
    if value.producer is None or graph.is_output(value) or node.inputs.count(value) > 1:
        return False
    return not isinstance(value.producer.op, ops.Split | ops.Slice | ops.Reshape)
