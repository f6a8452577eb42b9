"""Converters of control flow: the values that a region captures become inputs of its node."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx

from smelt.errors import GraphError, UnsupportedError
from smelt.ir import Graph, Value
from smelt.types import DType, Limit, TensorType, counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.importers.onnx._node_context import NodeContext
    from smelt.importers.onnx._scope import Scope
    from smelt.types import Dim, ValueType


def conditional(context: NodeContext) -> list[Value]:
    """Convert If; if the condition is constant, only the branch that is taken remains."""
    condition = context.input(0)
    branches = [_branch(context, name) for name in ("then_branch", "else_branch")]
    if condition.constant is not None and condition.constant.array.size == 1:
        return _inline(context, branches[0 if condition.constant.fix().item() else 1])
    then_scope, else_scope = (_build_region(context, branch, ()) for branch in branches)
    captured = _merge_captured(then_scope, else_scope)
    symbol = context.scope.state.symbols.reserve_count(context.name)
    results = context.emit_all(
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
                context.bound_symbol(symbol, extent, _larger(then_extent, else_extent))
    return results


def _larger(first: Dim, second: Dim) -> Dim:
    """Return an upper bound of two extents, neither of which is negative."""
    if isinstance(gap := first - second, int):
        return first if gap > 0 else second
    return first + second


def loop(context: NodeContext) -> list[Value]:
    """Convert Loop; its carried values keep their types in all iterations."""
    body = context.attribute("body", onnx.GraphProto)
    states = [context.input(index) for index in range(2, len(context.inputs))]
    if len(body.input) != 2 + len(states) or len(body.output) < 1 + len(states):
        raise GraphError(
            f"the body has {counted(len(body.input), 'input')} and "
            f"{counted(len(body.output), 'output')}; with "
            f"{counted(len(states), 'loop-carried value')} it must have {2 + len(states)} inputs "
            f"and at least {counted(1 + len(states), 'output')}",
            node=context.where,
        )
    leading_types = (TensorType(DType.INT64, ()), TensorType(DType.BOOL, ()))
    scope = _build_region(context, body, [*leading_types, *(value.type for value in states)])
    symbol = context.scope.state.symbols.reserve_count(context.name)
    results = context.emit_all(
        "Loop",
        context.optional(0),
        context.optional(1),
        *states,
        *(value for value, _ in scope.captured),
        body=scope.graph,
        state_count=len(states),
        count_symbol=symbol,
    )
    trips = context.elements(0)
    max_trips = Limit.MAX_LOOP_TRIPS.most
    if trips is not None and trips.size == 1:
        max_trips = min(max(int(trips.item()), 0), max_trips)
    for result in results[len(states) :]:
        context.bound_symbol(symbol, result.tensor.shape[0], max_trips)
    return results


def scan(context: NodeContext) -> list[Value]:
    """Refuse Scan.

    Raises:
        UnsupportedError: always.
    """
    raise UnsupportedError("Scan is not supported; export the recurrence as Loop, LSTM or GRU")


def _branch(context: NodeContext, name: str) -> onnx.GraphProto:
    """Return a branch of an If after checking its inputs and outputs."""
    branch = context.attribute(name, onnx.GraphProto)
    if branch.input or len(branch.output) < len(context.outputs):
        raise GraphError(
            f"the {name} has {counted(len(branch.input), 'input')} and "
            f"{counted(len(branch.output), 'output')}; it must have no inputs and at least "
            f"{counted(len(context.outputs), 'output')}",
            node=context.where,
        )
    return branch


def _inline(context: NodeContext, branch: onnx.GraphProto) -> list[Value]:
    """Add the nodes of a branch to the graph around it, and return its outputs."""
    outer = context.scope
    scope = outer.nested(outer.graph, f"{context.name}/", shares_graph=True)
    outer.state.fill(scope, branch)
    return [scope.require(entry.name, context.where) for entry in branch.output]


def _build_region(
    context: NodeContext, proto: onnx.GraphProto, types: Sequence[ValueType]
) -> Scope:
    """Return the scope of a region with inputs of ``types``; its graph is complete."""
    outer = context.scope
    scope = outer.nested(Graph(proto.name or context.name), outer.prefix)
    for entry, type_ in zip(proto.input, types, strict=True):
        if entry.name in scope.values:
            raise GraphError(
                f"the subgraph {proto.name!r} has two inputs with the name {entry.name!r}; rename "
                "one of them",
                node=context.where,
            )
        scope.values[entry.name] = scope.graph.add_input(entry.name, type_)
    outer.state.fill(scope, proto)
    scope.graph.outputs = [scope.require(entry.name, context.where) for entry in proto.output]
    return scope


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
