"""Ops that run graphs: what a region reads from outside becomes an explicit input of the node."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from smelt.errors import GraphError, UnsupportedError
from smelt.importers.onnx._scope import Scope, UnknownResult
from smelt.ir import Graph, Value
from smelt.types import DType, Limit, TensorType

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx

    from smelt.importers.onnx._node_context import NodeContext
    from smelt.types import Dim, ValueType


def conditional(node_context: NodeContext) -> list[Value]:
    """If: a condition that is constant leaves only its branch."""
    condition = node_context.input(0)
    branches = [_branch(node_context, name) for name in ("then_branch", "else_branch")]
    if condition.constant is not None and condition.constant.array.size == 1:
        return _inline(node_context, branches[0 if condition.constant.array.item() else 1])
    then_scope, else_scope = (_build_region(node_context, branch, ()) for branch in branches)
    captured = _merge_captured(then_scope, else_scope)
    symbol = node_context.scope.state.symbols.reserve(f"{node_context.name}_count")
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
        for extent, one, other in extents:
            if extent not in (one, other):
                node_context.bound_symbol(symbol, extent, _larger(one, other))
    return results


def _larger(one: Dim, other: Dim) -> Dim:
    """An upper bound of both extents, none of which is negative."""
    if isinstance(gap := one - other, int):
        return one if gap > 0 else other
    return one + other


def loop(node_context: NodeContext) -> list[Value]:
    """Loop: its states keep their types from trip to trip."""
    body = cast("onnx.GraphProto", node_context.attributes["body"])
    states = [node_context.input(index) for index in range(2, len(node_context.inputs))]
    if len(body.input) != 2 + len(states) or len(body.output) < 1 + len(states):
        raise GraphError(
            f"its body has {len(body.input)} inputs and {len(body.output)} outputs for "
            f"{len(states)} carried values; it must have two inputs and one output more than "
            "carried values",
            node=node_context.where,
        )
    heads = (TensorType(DType.INT64, ()), TensorType(DType.BOOL, ()))
    scope = _build_region(node_context, body, [*heads, *(value.type for value in states)])
    symbol = node_context.scope.state.symbols.reserve(f"{node_context.name}_count")
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
    most = Limit.MAX_LOOP_TRIPS.most
    if trips is not None and trips.size == 1:
        most = min(max(int(trips.item()), 0), most)
    for result in results[len(states) :]:
        node_context.bound_symbol(symbol, result.tensor.shape[0], most)
    return results


def scan(node_context: NodeContext) -> list[Value]:
    """Scan is not run. Raises UnsupportedError."""
    raise UnsupportedError("Scan is not supported; export the recurrence as Loop, LSTM or GRU")


def _branch(node_context: NodeContext, name: str) -> onnx.GraphProto:
    branch = cast("onnx.GraphProto", node_context.attributes[name])
    if branch.input or len(branch.output) < len(node_context.outputs):
        raise GraphError(
            f"its {name} has {len(branch.input)} inputs and {len(branch.output)} outputs; it must "
            f"have no inputs and {len(node_context.outputs)} outputs",
            node=node_context.where,
        )
    return branch


def _inline(node_context: NodeContext, branch: onnx.GraphProto) -> list[Value]:
    """Add a branch's nodes to the graph around it."""
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
    """The scope of a region whose inputs have ``types``; its graph is complete."""
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
    for entry, kind in zip(proto.input, types, strict=True):
        if entry.name in scope.values:
            raise GraphError(
                f"input {entry.name!r} of its region occurs twice", node=node_context.where
            )
        scope.values[entry.name] = scope.graph.add_input(entry.name, kind)
    outer.state.fill(scope, proto)
    scope.graph.outputs = _outputs(scope, proto, node_context.where)
    return scope


def _outputs(scope: Scope, proto: onnx.GraphProto, where: str) -> list[Value]:
    values = [scope.lookup(entry.name, where) for entry in proto.output]
    if any(value is None for value in values):
        raise UnknownResult
    return [value for value in values if value is not None]


def _merge_captured(first: Scope, second: Scope) -> list[Value]:
    """Give both regions the same inputs, in the same order; returns the values around them."""
    outer = {value: value for scope in (first, second) for value, _ in scope.captured}
    for scope in (first, second):
        inner = dict(scope.captured)
        scope.graph.inputs = [
            inner.get(key) or Value(value.name, value.type, dims=value.dims)
            for key, value in outer.items()
        ]
    return list(outer.values())
