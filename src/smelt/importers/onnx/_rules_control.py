"""Converters of control flow: the values that a region captures become inputs of its node."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx

from smelt.errors import GraphError, UnsupportedError
from smelt.importers.onnx._scope import Scope, UnknownResult
from smelt.ir import Graph, Value
from smelt.types import DType, Limit, TensorType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.importers.onnx._node_context import NodeContext
    from smelt.types import Dim, ValueType


def conditional(node_context: NodeContext) -> list[Value]:
    """Convert If; if the condition is constant, only the branch that is taken remains."""
    condition = node_context.input(0)
    branches = [_branch(node_context, name) for name in ("then_branch", "else_branch")]
    if condition.constant is not None and condition.constant.array.size == 1:
        return _inline(node_context, branches[0 if condition.constant.fix().item() else 1])
    then_scope, else_scope = (_build_region(node_context, branch, ()) for branch in branches)
    captured = _merge_captured(then_scope, else_scope)
    symbol = node_context.scope.state.symbols.reserve_count(node_context.name)
    results = node_context.emit_all(
        "If",
        condition,
        *captured,
        then_branch=then_scope.graph,
        else_branch=else_scope.graph,
        count_symbol=symbol,
    )
    pairs = zip(then_scope.graph.outputs, else_scope.graph.outputs, strict=True)
    for result, (first, second) in zip(results, pairs, strict=True):
        extents = zip(result.tensor.shape, first.tensor.shape, second.tensor.shape, strict=True)
        for extent, then_extent, else_extent in extents:
            if extent not in (then_extent, else_extent):
                node_context.bound_symbol(symbol, extent, _larger(then_extent, else_extent))
    return results


def _larger(first: Dim, second: Dim) -> Dim:
    """Return an upper bound of two extents, neither of which is negative."""
    if isinstance(gap := first - second, int):
        return first if gap > 0 else second
    return first + second


def loop(node_context: NodeContext) -> list[Value]:
    """Convert Loop; its carried values keep their types in all iterations."""
    body = node_context.attribute("body", onnx.GraphProto)
    states = [node_context.input(index) for index in range(2, len(node_context.inputs))]
    if len(body.input) != 2 + len(states) or len(body.output) < 1 + len(states):
        raise GraphError(
            f"the body has {len(body.input)} inputs and {len(body.output)} outputs for "
            f"{len(states)} carried values; it must have two inputs and one output more than "
            "carried values",
            node=node_context.where,
        )
    leading_types = (TensorType(DType.INT64, ()), TensorType(DType.BOOL, ()))
    scope = _build_region(node_context, body, [*leading_types, *(value.type for value in states)])
    symbol = node_context.scope.state.symbols.reserve_count(node_context.name)
    results = node_context.emit_all(
        "Loop",
        node_context.optional(0),
        node_context.optional(1),
        *states,
        *(value for value, _ in scope.captured),
        body=scope.graph,
        state_count=len(states),
        count_symbol=symbol,
    )
    trips = node_context.elements(0)
    max_trips = Limit.MAX_LOOP_TRIPS.most
    if trips is not None and trips.size == 1:
        max_trips = min(max(int(trips.item()), 0), max_trips)
    for result in results[len(states) :]:
        node_context.bound_symbol(symbol, result.tensor.shape[0], max_trips)
    return results


def scan(node_context: NodeContext) -> list[Value]:
    """Refuse Scan.

    Raises:
        UnsupportedError: always.
    """
    raise UnsupportedError("Scan is not supported; export the recurrence as Loop, LSTM or GRU")


def _branch(node_context: NodeContext, name: str) -> onnx.GraphProto:
    """Return a branch of an If after checking its inputs and outputs."""
    branch = node_context.attribute(name, onnx.GraphProto)
    if branch.input or len(branch.output) < len(node_context.outputs):
        raise GraphError(
            f"the {name} has {len(branch.input)} inputs and {len(branch.output)} outputs; it must "
            f"have no inputs and {len(node_context.outputs)} outputs",
            node=node_context.where,
        )
    return branch


def _inline(node_context: NodeContext, branch: onnx.GraphProto) -> list[Value]:
    """Add the nodes of a branch to the graph around it, and return its outputs."""
    outer = node_context.scope
    scope = Scope(
        outer.state,
        outer.graph,
        outer.opsets,
        parent=outer,
        prefix=f"{node_context.name}/",
        references=outer.references,
        inlined=True,
        depth=outer.depth + 1,
    )
    outer.state.fill(scope, branch)
    return _outputs(scope, branch, node_context.where)


def _build_region(
    node_context: NodeContext, proto: onnx.GraphProto, types: Sequence[ValueType]
) -> Scope:
    """Return the scope of a region with inputs of ``types``; its graph is complete."""
    outer = node_context.scope
    scope = Scope(
        outer.state,
        Graph(proto.name or node_context.name),
        outer.opsets,
        parent=outer,
        prefix=outer.prefix,
        references=outer.references,
        depth=outer.depth + 1,
    )
    for entry, type_ in zip(proto.input, types, strict=True):
        if entry.name in scope.values:
            raise GraphError(
                f"input {entry.name!r} of the region occurs twice", node=node_context.where
            )
        scope.values[entry.name] = scope.graph.add_input(entry.name, type_)
    outer.state.fill(scope, proto)
    scope.graph.outputs = _outputs(scope, proto, node_context.where)
    return scope


def _outputs(scope: Scope, proto: onnx.GraphProto, where: str) -> list[Value]:
    values = [scope.lookup(entry.name, where) for entry in proto.output]
    if any(value is None for value in values):
        raise UnknownResult
    return [value for value in values if value is not None]


def _merge_captured(first: Scope, second: Scope) -> list[Value]:
    """Give both regions the same inputs in the same order; return the captured values."""
    outer = {value: value for scope in (first, second) for value, _ in scope.captured}
    for scope in (first, second):
        inner = dict(scope.captured)
        scope.graph.inputs = [
            inner.get(key) or Value(value.name, value.type, dims=value.dims)
            for key, value in outer.items()
        ]
    return list(outer.values())
