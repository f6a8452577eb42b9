"""Remove nodes whose result equals one of their inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt import ops
from smelt.ir import can_substitute, fix_numbers, substitute
from smelt.passes._base import Note, Pass, PassResult
from smelt.types import override

if TYPE_CHECKING:
    from collections.abc import Callable

    from smelt.ir import Graph, Node, Value


@dataclass(frozen=True)
class RemoveNoops(Pass):
    """Remove nodes that do not change their input, and join consecutive Reshapes."""

    name: ClassVar[str] = "remove-noops"

    @override
    def apply(self, graph: Graph) -> PassResult:
        notes: list[Note] = []
        for node in list(graph.nodes):
            note = _remove(graph, node) or _join_reshapes(graph, node)
            if note is not None:
                notes.append(note)
        return PassResult.of(notes)


def _remove(graph: Graph, node: Node) -> Note | None:
    """Remove a node that does not change its input."""
    source = _unchanged_input(node)
    if source is None or any(v.users or graph.is_output(v) for v in node.outputs[1:]):
        return None
    value = node.output
    if source.type != value.type or not (value.users or graph.is_output(value)):
        return None
    if not can_substitute(graph, value, source):
        return Note.refusal(node.layers, f"it defines the output {value.name!r}")
    substitute(graph, value, source)
    fix_numbers(*(other for other in node.inputs if other is not source))
    graph.remove(node)
    return Note(node.layers, (), f"{node.op.name} changes nothing")


def _unchanged_input(node: Node) -> Value | None:
    """Return the input that equals the result if their types are equal, or None."""
    rule = _RULES.get(type(node.op))
    if rule is None or not node.inputs:
        return None
    index = rule(node)
    return None if index is None else node.inputs[index]


def _first_input_if(condition: bool) -> int | None:  # noqa: FBT001  (the only argument)
    """Return index 0 if the condition holds, or None."""
    return 0 if condition else None


def _always(node: Node) -> int | None:
    return _first_input_if(bool(node.inputs))


def _has_one_input(node: Node) -> int | None:
    return _first_input_if(len(node.inputs) == 1)


def _elements(node: Node, index: int) -> np.ndarray | None:
    value = node.inputs[index] if index < len(node.inputs) else None
    return None if value is None or value.constant is None else value.constant.array


def _holds_only(node: Node, index: int, number: float) -> bool:
    """Return whether an input is a constant with at least one element, all equal to ``number``."""
    value = node.inputs[index]
    if value is None or value.constant is None or not value.constant.array.size:
        return False
    return bool(np.all(value.constant.array == number))


def _right_identity(number: float) -> Callable[[Node], int | None]:
    """Return a rule for ops of which ``number`` is the right identity."""
    return lambda node: _first_input_if(_holds_only(node, 1, number))


def _two_sided_identity(number: float) -> Callable[[Node], int | None]:
    """Return a rule for ops of which ``number`` is an identity on both sides."""
    return lambda node: 1 if _holds_only(node, 0, number) else _right_identity(number)(node)


def _transposes_nothing(node: Node) -> int | None:
    op = node.op
    return _first_input_if(
        isinstance(op, ops.Transpose)
        and op.perm is not None
        and op.perm == tuple(range(len(op.perm)))
    )


def _slices_all(node: Node) -> int | None:
    """Return 0 if all steps are positive: a result of the same type is then the whole input."""
    if len(node.inputs) < 5 or node.inputs[4] is None:
        return 0
    steps = _elements(node, 4)
    return _first_input_if(steps is not None and bool(np.all(steps > 0)))


def _pads_nothing(node: Node) -> int | None:
    pads = _elements(node, 1)
    return _first_input_if(pads is not None and not np.any(pads))


def _pools_single_elements(node: Node) -> int | None:
    op = node.op
    return _first_input_if(
        isinstance(op, ops.MaxPool | ops.AveragePool)
        and set(op.kernel_shape) | set(op.strides) <= {1}
        and not any(op.pads)
    )


def _resizes_nothing(node: Node) -> int | None:
    scales = _elements(node, 2) if len(node.inputs) > 2 else None
    exact = getattr(node.op, "coordinate_transformation_mode", "") != "tf_crop_and_resize"
    return _first_input_if(
        exact and scales is not None and scales.size > 0 and bool(np.all(scales == 1))
    )


_RULES: dict[type, Callable[[Node], int | None]] = {
    # If the type is unchanged, these keep the elements and their order.
    ops.Identity: _always,
    ops.Cast: _always,
    ops.Reshape: _always,
    ops.Flatten: _always,
    ops.Squeeze: _always,
    ops.Unsqueeze: _always,
    ops.Expand: _always,
    ops.Tile: _always,
    ops.Split: _always,
    # These do so only in special cases.
    ops.Slice: _slices_all,
    ops.Pad: _pads_nothing,
    ops.Transpose: _transposes_nothing,
    ops.Resize: _resizes_nothing,
    ops.MaxPool: _pools_single_elements,
    ops.AveragePool: _pools_single_elements,
    ops.Concat: _has_one_input,
    ops.Sum: _has_one_input,
    ops.Mean: _has_one_input,
    ops.Max: _has_one_input,
    ops.Min: _has_one_input,
    ops.Add: _two_sided_identity(0),
    ops.Sub: _right_identity(0),
    ops.Mul: _two_sided_identity(1),
    ops.Div: _right_identity(1),
    ops.Pow: _right_identity(1),
}

_RESHAPES = (ops.Reshape, ops.Flatten, ops.Squeeze, ops.Unsqueeze)


def _join_reshapes(graph: Graph, node: Node) -> Note | None:
    """Let a Reshape read the input of the reshape before it."""
    if not isinstance(node.op, ops.Reshape) or node.inputs[0] is None:
        return None
    previous = node.inputs[0].producer
    shape = _elements(node, 1)
    if previous is None or not isinstance(previous.op, _RESHAPES) or previous.inputs[0] is None:
        return None
    if shape is None or (0 in shape and not node.op.allowzero):
        return None
    graph.set_input(node, 0, previous.inputs[0])
    if not previous.output.users and not graph.is_output(previous.output):
        layers = previous.layers
        graph.remove(previous)
        node.layers = tuple(dict.fromkeys((*layers, *node.layers)))
    return Note(previous.layers, node.layers, "two reshapes become one")
