"""Simplify concatenations, and cancel them against Split and Slice.

The memory planner writes the inputs of a concatenation directly into its result where it can. This
pass only notes for which inputs that is possible.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from smelt import ops
from smelt.ir import FreshNames, can_substitute, sole_user, substitute
from smelt.passes._base import Note, Pass, PassResult
from smelt.types import TensorType, override

if TYPE_CHECKING:
    from smelt.ir import Graph, Node, Value


@dataclass(frozen=True)
class SimplifyConcats(Pass):
    """Flatten nested concatenations, and cancel them against Split and Slice."""

    name: ClassVar[str] = "simplify-concats"

    @override
    def apply(self, graph: Graph) -> PassResult:
        notes: list[Note] = []
        names = FreshNames(graph)
        for node in list(graph.nodes):
            match node.op:
                case ops.Concat():
                    note = _cancel_split(graph, node) or _flatten(graph, node, names)
                case ops.Slice():
                    note = _slice_of_concat(graph, node)
                case ops.Split():
                    note = _split_of_concat(graph, node)
                case _:
                    note = None
            if note is not None:
                notes.append(note)
        modified = bool(notes)
        notes.extend(_candidates(graph))
        return PassResult(modified, tuple(notes))


def _axis(node: Node) -> int:
    axis = getattr(node.op, "axis", 0)
    return int(axis) % node.inputs[0].tensor.rank if node.inputs[0] is not None else int(axis)


def _flatten(graph: Graph, node: Node, names: FreshNames) -> Note | None:
    """Replace nested concatenations that only this one reads by their inputs."""
    inner = [_inner_concat(graph, node, value) for value in node.inputs]
    if not any(inner):
        return None
    inputs: list[Value | None] = []
    layers: list[str] = []
    for value, nested in zip(node.inputs, inner, strict=True):
        inputs.extend(nested.inputs if nested is not None else [value])
        layers.extend(nested.layers if nested is not None else [])
    flat = graph.add(
        ops.Concat(_axis(node)),
        *inputs,
        name=names.make(node.name),
        output_names=(node.output.name,),
        before=node,
        layers=tuple(dict.fromkeys((*layers, *node.layers))),
    )
    graph.replace_uses(node.output, flat.output)
    graph.remove(node)
    flat.name = node.name
    for nested in inner:
        if nested is not None:
            graph.remove(nested)
    return Note(flat.layers, flat.layers, "several concatenations become one")


def _inner_concat(graph: Graph, node: Node, value: Value | None) -> Node | None:
    """Return the concatenation along the same axis that only ``node`` reads, or None."""
    producer = None if value is None else value.producer
    if value is None or producer is None or not isinstance(producer.op, ops.Concat):
        return None
    is_mergeable = sole_user(graph, value) is node and _axis(producer) == _axis(node)
    return producer if is_mergeable else None


def _cancel_split(graph: Graph, node: Node) -> Note | None:
    """Remove a concatenation of all parts of a Split in order."""
    split = node.inputs[0].producer if node.inputs[0] is not None else None
    if split is None or not isinstance(split.op, ops.Split) or _axis(split) != _axis(node):
        return None
    if len(node.inputs) != len(split.outputs):
        return None
    if any(a is not b for a, b in zip(node.inputs, split.outputs, strict=True)):
        return None
    source = split.inputs[0]
    if source is None or not can_substitute(graph, node.output, source):
        return None
    substitute(graph, node.output, source)
    graph.remove(node)
    return Note(node.layers, (), f"it concatenates the parts of {split.name}")


def _slice_of_concat(graph: Graph, node: Node) -> Note | None:
    """Replace a Slice that is exactly one input of a concatenation by that input."""
    concat = node.inputs[0].producer if node.inputs[0] is not None else None
    if concat is None or not isinstance(concat.op, ops.Concat):
        return None
    window = _window(node)
    if window is None or window[0] != _axis(concat):
        return None
    for value, start, length in _parts(concat):
        if (start, length) == window[1:] and can_substitute(graph, node.output, value):
            substitute(graph, node.output, value)
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
    concat = node.inputs[0].producer if node.inputs[0] is not None else None
    if concat is None or not isinstance(concat.op, ops.Concat) or _axis(concat) != _axis(node):
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
    return Note(node.layers, (), f"it splits the result of {concat.name}")


def _candidates(graph: Graph) -> list[Note]:
    """Note for each concatenation whether its inputs can be written directly into its result."""
    notes: list[Note] = []
    for node in graph.nodes:
        if not isinstance(node.op, ops.Concat):
            continue
        blocked = [
            v.name
            for v in node.inputs
            if v is not None and not _can_be_written_directly(graph, node, v)
        ]
        if blocked:
            reason = f"these are copied into it: {', '.join(blocked)}"
            notes.append(Note.refusal(node.layers, reason))
        else:
            detail = "its inputs are written directly into it"
            notes.append(Note(node.layers, node.layers, detail))
    return notes


def _can_be_written_directly(graph: Graph, node: Node, value: Value) -> bool:
    if value.producer is None or graph.is_output(value) or node.inputs.count(value) > 1:
        return False
    return not isinstance(value.producer.op, ops.Split | ops.Slice | ops.Reshape)
