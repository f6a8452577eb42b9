"""Helpers for passes that recognise subgraphs, such as ops that exporters decompose."""

from __future__ import annotations

from smelt import ops
from smelt.errors import InternalError
from smelt.ir import Graph, Node, Op, Value, fix_numbers


def layers_of_pattern(graph: Graph, last: Node, *sources: Value | None) -> tuple[str, ...]:
    """Return the layers of ``last`` and its private ancestors up to ``sources``.

    Private ancestors are nodes that only nodes of this set read. All scalar constants that they
    read are fixed: the node that replaces them depends on the values of these constants.
    """
    nodes, pending = [last], [last]
    while pending:
        for value in pending.pop().inputs:
            if value is None or any(value is source for source in sources):
                continue
            if number_of(value) is not None:
                fix_numbers(value)
            node = value.producer
            if node is None or node in nodes:
                continue
            if not graph.is_output(value) and all(user in nodes for user in value.users):
                nodes.append(node)
                pending.append(node)
    return merged_layers(*sorted(nodes, key=graph.nodes.index))


def required_input(node: Node, index: int) -> Value:
    """Return input ``index`` of a node.

    Raises:
        InternalError: the input is absent.
    """
    value = node.inputs[index]
    if value is None:
        raise InternalError(f"input {index} of {node} is missing")
    return value


def input_at(node: Node, index: int) -> Value | None:
    """Return input ``index`` of a node, or None if it is absent."""
    return node.inputs[index] if index < len(node.inputs) else None


def root_of(op: Op) -> Op:
    """Return the root of a fused op, or the op itself."""
    return op.root if isinstance(op, ops.Fused) else op


def channel_axis(node: Node) -> int:
    """Return the axis of the result that runs over the filters of a convolution or product."""
    is_product = isinstance(root_of(node.op), ops.Gemm | ops.MatMul | ops.MatMulInteger)
    return node.output.tensor.rank - 1 if is_product else 1


def merged_layers(*nodes: Node) -> tuple[str, ...]:
    """Return the layers of all nodes, each once."""
    return tuple(dict.fromkeys(layer for node in nodes for layer in node.layers))


def replace_node(
    graph: Graph, node: Node, op: Op, *inputs: Value | None, layers: tuple[str, ...]
) -> Node:
    """Replace a node with one result by a new one, which takes its names, and return that."""
    names = (node.output.name,)
    new = graph.add(op, *inputs, name=node.name, output_names=names, before=node, layers=layers)
    graph.replace_uses(node.output, new.output)
    graph.remove(node)
    return new


def square_root_of(value: Value | None) -> Value | None:
    """Return ``d`` if the value is ``d * d`` or ``d ** 2``, or None."""
    product = producer_of_kind(value, ops.Mul)
    if product is not None and product.inputs[0] is product.inputs[1]:
        return product.inputs[0]
    power = producer_of_kind(value, ops.Pow)
    return power.inputs[0] if power is not None and number_of(power.inputs[1]) == 2 else None


def number_of(value: Value | None) -> float | None:
    """Return the element of a constant with one element; None for other values."""
    if value is None or value.constant is None or value.constant.array.size != 1:
        return None
    return float(value.constant.array.ravel()[0])


def producer_of_kind(value: Value | None, kind: type[Op]) -> Node | None:
    """Return the node that computes a value if its op is of class ``kind``, or None."""
    node = None if value is None else value.producer
    return node if node is not None and isinstance(node.op, kind) else None
