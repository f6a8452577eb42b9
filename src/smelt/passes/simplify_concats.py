"""Concatenations and parts: what is joined only to be cut again, or cut only to be joined.

Writing the inputs of a concatenation straight into its result is the memory planner's work; here
the candidates are noted.
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
    """Flatten concatenations of concatenations, and cancel them against Split and Slice."""

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
    """Take in the inputs of the concatenations that only this one reads."""
    inner = [_inner_concat(graph, node, value) for value in node.inputs]
    if not any(inner):
        return None
    inputs: list[Value | None] = []
    layers: list[str] = []
    for value, found in zip(node.inputs, inner, strict=True):
        inputs.extend(found.inputs if found is not None else [value])
        layers.extend(found.layers if found is not None else [])
    made = graph.add(
        ops.Concat(_axis(node)),
        *inputs,
        name=names.make(node.name),
        output_names=(node.output.name,),
        before=node,
        layers=tuple(dict.fromkeys((*layers, *node.layers))),
    )
    graph.replace_uses(node.output, made.output)
    graph.remove(node)
    made.name = node.name
    for found in inner:
        if found is not None:
            graph.remove(found)
    return Note(made.layers, made.layers, "several concatenations become one")


def _inner_concat(graph: Graph, node: Node, value: Value | None) -> Node | None:
    before = None if value is None else value.producer
    if value is None or before is None or not isinstance(before.op, ops.Concat):
        return None
    fits = sole_user(graph, value) is node and _axis(before) == _axis(node)
    return before if fits else None


def _cancel_split(graph: Graph, node: Node) -> Note | None:
    """Joining all parts of a tensor, in order, gives the tensor."""
    split = node.inputs[0].producer if node.inputs[0] is not None else None
    if split is None or not isinstance(split.op, ops.Split) or _axis(split) != _axis(node):
        return None
    if len(node.inputs) != len(split.outputs):
        return None
    if any(a is not b for a, b in zip(node.inputs, split.outputs, strict=True)):
        return None
    whole = split.inputs[0]
    if whole is None or not can_substitute(graph, node.output, whole):
        return None
    substitute(graph, node.output, whole)
    graph.remove(node)
    return Note(node.layers, (), f"it concatenates the parts of {split.name}")


def _slice_of_concat(graph: Graph, node: Node) -> Note | None:
    """A slice that is exactly one input of a concatenation is that input."""
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
    """Axis, start and length of a slice along one axis by steps of one."""
    constants = [None if v is None else v.constant for v in node.inputs[1:]]
    if not constants or any(c is None or c.array.size != 1 for c in constants):
        return None
    numbers = [int(c.array.ravel()[0]) for c in constants if c is not None]
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
    """The inputs of a concatenation with their starts and lengths, as far as they are known."""
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
    """Cutting a concatenation where it was joined gives its inputs."""
    concat = node.inputs[0].producer if node.inputs[0] is not None else None
    if concat is None or not isinstance(concat.op, ops.Concat) or _axis(concat) != _axis(node):
        return None
    if len(concat.inputs) != len(node.outputs):
        return None
    pairs = [(a, b) for a, b in zip(concat.inputs, node.outputs, strict=True) if a is not None]
    if any(a.type != b.type or not can_substitute(graph, b, a) for a, b in pairs):
        return None
    taken = [a for a, b in pairs if graph.is_output(b)]
    if len(set(taken)) != len(taken):
        return None
    for whole, part in pairs:
        substitute(graph, part, whole)
    graph.remove(node)
    return Note(node.layers, (), f"it splits the result of {concat.name}")


def _candidates(graph: Graph) -> list[Note]:
    """Say of each concatenation whether its inputs can be written in their places."""
    notes: list[Note] = []
    for node in graph.nodes:
        if not isinstance(node.op, ops.Concat):
            continue
        blocked = [
            v.name for v in node.inputs if v is not None and not _can_be_placed(graph, node, v)
        ]
        if blocked:
            reason = f"these are copied into it: {', '.join(blocked)}"
            notes.append(Note.refusal(node.layers, reason))
        else:
            detail = "its inputs are written directly into it"
            notes.append(Note(node.layers, node.layers, detail))
    return notes


def _can_be_placed(graph: Graph, node: Node, value: Value) -> bool:
    if value.producer is None or graph.is_output(value) or node.inputs.count(value) > 1:
        return False
    return not isinstance(value.producer.op, ops.Split | ops.Slice | ops.Reshape)
