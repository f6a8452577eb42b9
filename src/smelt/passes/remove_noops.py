"""Remove nodes whose result equals one of their inputs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from smelt import ops
from smelt.ir import FreshNames, Graph, Node, Value, fix_numbers, substitute
from smelt.passes._base import NodePass, Note
from smelt.passes._patterns import input_at, merged_layers
from smelt.types import override


class RemoveNoops(NodePass):
    """Remove nodes that do not change their input, and join consecutive Reshapes."""

    @override
    def rewrite(self, graph: Graph, node: Node, names: FreshNames) -> Note | None:
        return _remove(graph, node) or _join_reshapes(graph, node)


def _remove(graph: Graph, node: Node) -> Note | None:
    """Remove a node that does not change its input."""
    source = _unchanged_input(node)
    if source is None or any(v.users or graph.is_output(v) for v in node.outputs[1:]):
        return None
    value = node.output
    if source.type != value.type or not (value.users or graph.is_output(value)):
        return None
    if not substitute(graph, value, source):
        return Note.refusal(node.layers, f"it is needed to produce the output {value.name!r}")
    fix_numbers(*(other for other in node.inputs if other is not source))
    graph.remove(node)
    return Note(node.layers, (), f"{node.op.name} changes nothing")


def _unchanged_input(node: Node) -> Value | None:
    """Return the input that equals the result if their types are equal, or None."""
    number = _LEFT_IDENTITIES.get(type(node.op))
    if number is not None and _holds_only(node, 0, number):
        return node.inputs[1]
    rule = _RULES.get(type(node.op))
    return node.inputs[0] if rule is not None and node.inputs and rule(node) else None


def _always(_node: Node) -> bool:
    return True


def _has_one_input(node: Node) -> bool:
    return len(node.inputs) == 1


def _elements(node: Node, index: int) -> np.ndarray | None:
    value = input_at(node, index)
    return None if value is None or value.constant is None else value.constant.array


def _holds_only(node: Node, index: int, number: float) -> bool:
    """Return whether an input is a constant with at least one element, all equal to ``number``."""
    array = _elements(node, index)
    return array is not None and array.size > 0 and bool(np.all(array == number))


def _identity(number: float) -> Callable[[Node], bool]:
    """Return a rule for ops of which ``number`` is the right identity."""
    return lambda node: _holds_only(node, 1, number)


def _transposes_nothing(node: Node) -> bool:
    op = node.op
    return isinstance(op, ops.Transpose) and op.perm == tuple(range(len(op.perm or ())))


def _slices_all(node: Node) -> bool:
    """Return whether all steps are positive: a result of the same type is then the whole input."""
    if len(node.inputs) < 5 or node.inputs[4] is None:
        return True
    steps = _elements(node, 4)
    return steps is not None and bool(np.all(steps > 0))


def _pads_nothing(node: Node) -> bool:
    pads = _elements(node, 1)
    return pads is not None and not np.any(pads)


def _pools_single_elements(node: Node) -> bool:
    op = node.op
    return (
        isinstance(op, ops.MaxPool | ops.AveragePool)
        and set(op.kernel_shape) | set(op.strides) <= {1}
        and not any(op.pads)
    )


def _resizes_nothing(node: Node) -> bool:
    if getattr(node.op, "coordinate_transformation_mode", "") == "tf_crop_and_resize":
        return False
    scales = _elements(node, 2)
    return scales is not None and scales.size > 0 and bool(np.all(scales == 1))


_RULES: dict[type, Callable[[Node], bool]] = {
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
    ops.Add: _identity(0),
    ops.Sub: _identity(0),
    ops.Mul: _identity(1),
    ops.Div: _identity(1),
    ops.Pow: _identity(1),
}
"""Whether ops return their first input unchanged if the types are equal."""
_LEFT_IDENTITIES: dict[type, float] = {ops.Add: 0, ops.Mul: 1}
"""Ops that return their second input if all elements of the first are this number."""

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
        node.layers = merged_layers(previous, node)
        graph.remove(previous)
    return Note(previous.layers, node.layers, "two reshapes become one")
