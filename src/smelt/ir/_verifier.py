"""Verifier of the invariants of a graph, which hold before and after each pass."""

from __future__ import annotations

from collections import Counter

from smelt.errors import GraphError, InternalError, SmeltError
from smelt.ir._graph import Graph, Node, Value, infer_node
from smelt.signal_errors import pass_on_handler_error
from smelt.types import Limit, TensorType, counted, symbols_of


def verify(graph: Graph, *, during: str | None = None) -> None:
    """Check that a graph and all regions of its nodes are well formed.

    Args:
        graph: the graph.
        during: the step of smelt that has just changed the graph, such as "pass fold-constants".

    Raises:
        GraphError: the graph is not well formed; the message names the node.
        InternalError: the graph is not well formed and ``during`` is given.
    """
    try:
        _verify(graph, depth=0)
    except SmeltError as error:
        pass_on_handler_error(error)
        if during is None:
            raise
        raise InternalError(f"after {during}, graph {graph.name!r}: {error}") from error


def _verify(graph: Graph, depth: int) -> None:
    """Check a graph at a nesting depth, and its regions. Raises GraphError."""
    if depth > Limit.MAX_REGION_DEPTH.most:
        raise GraphError(f"the nested regions have {Limit.MAX_REGION_DEPTH.excess(depth)}")
    _check_names(graph)
    _check_order(graph)
    _check_users(graph)
    for node in graph.nodes:
        _check_types(node)
        for region in node.op.regions:
            try:
                _verify(region, depth + 1)
            except GraphError as error:
                raise GraphError(f"in region {region.name!r}: {error}", node=str(node)) from error
    _check_counts(graph)
    _check_bounds(graph)


def _check_names(graph: Graph) -> None:
    """Check that names are unique among nodes, among constants, and among all other values.

    A constant may have the name of a result: in ONNX, a weight may also be an output.
    """
    for name, count in Counter(node.name for node in graph.nodes).items():
        if count > 1:
            raise GraphError(f"{count} nodes have the name {name!r}; names must be unique")
    owners: dict[tuple[str, bool], object] = {}
    for value in graph.values():
        owner = value.constant or value
        if owners.setdefault((value.name, owner is value), owner) is not owner:
            kind = "values" if owner is value else "constants"
            raise GraphError(f"two {kind} have the name {value.name!r}; names must be unique")


def _check_order(graph: Graph) -> None:
    """Check that nodes are in topological order and that each result has one producer."""
    _check_inputs(graph)
    known = set(graph.inputs)
    positions = {node: position for position, node in enumerate(graph.nodes)}
    if len(positions) != len(graph.nodes):
        raise GraphError("a node is listed twice in the graph")
    for position, node in enumerate(graph.nodes):
        for value in node.inputs:
            if value is not None and value.constant is None and value not in known:
                raise GraphError(_explain_disorder(value, position, positions), node=str(node))
        for index, result in enumerate(node.outputs):
            if result.producer is not node or result.constant is not None or result in known:
                raise GraphError(
                    f"result {index}, {result.name!r}, also belongs to another node or input",
                    node=str(node),
                )
            known.add(result)
    for output in graph.outputs:
        if output.constant is None and output not in known:
            raise GraphError(f"output {output.name!r} is not computed by a node of the graph")


def _check_inputs(graph: Graph) -> None:
    if len(set(graph.inputs)) != len(graph.inputs):
        raise GraphError("a value is listed twice among the inputs")
    for value in graph.inputs:
        if value.producer is not None or value.constant is not None:
            raise GraphError(f"input {value.name!r} is also a constant or the result of a node")
        extents = value.type.shape if isinstance(value.type, TensorType) else ()
        if any(isinstance(extent, int) and extent < 0 for extent in extents):
            raise GraphError(f"input {value.name!r} has a negative extent: {value.type}")


def _explain_disorder(value: Value, position: int, positions: dict[Node, int]) -> str:
    """Return the message for a node that reads a value which is not computed before it."""
    if value.producer is None:
        return (
            f"the node reads {value.name!r}, which is not an input, constant or result of the graph"
        )
    producer_position = positions.get(value.producer)
    if producer_position is None:
        return f"the node reads {value.name!r} of {value.producer}, which is not in the graph"
    if producer_position < position:
        return f"the node reads {value.name!r}, which is not a result of {value.producer}"
    return (
        f"the node reads {value.name!r} before {value.producer} computes it: there is a cycle, or "
        "the nodes are not in topological order"
    )


def _check_users(graph: Graph) -> None:
    """Check that the recorded users of each value are the nodes that read it."""
    reads: dict[Value, Counter[Node]] = {}
    for node in graph.nodes:
        for value in node.inputs:
            if value is not None:
                reads.setdefault(value, Counter())[node] += 1
    for value in graph.values():
        if Counter(value.users) != reads.get(value, Counter()):
            raise GraphError(f"the users recorded at {value.name!r} are not the nodes that read it")


def _check_types(node: Node) -> None:
    """Check that the types of the results of a node are the inferred ones."""
    try:
        types = infer_node(node).types
    except (TypeError, IndexError, ValueError) as error:
        pass_on_handler_error(error)
        raise GraphError(f"the inputs do not fit the op: {error}", node=str(node)) from error
    if len(types) != len(node.outputs):
        results = counted(len(node.outputs), "result")
        message = f"the node has {results}, but its op has {len(types)}"
        raise GraphError(message, node=str(node))
    for value, kind in zip(node.outputs, types, strict=True):
        if value.type != kind:
            message = f"{value.name!r} is declared as {value.type}, but is inferred as {kind}"
            raise GraphError(message, node=str(node))


def _check_counts(graph: Graph) -> None:
    """Check that each symbol that a run determines belongs to one node."""
    makers: dict[str, Node] = {}
    for node in graph.nodes:
        for symbol in _counted_symbols(node):
            other = makers.setdefault(symbol, node)
            if other is not node:
                message = (
                    f"the node and {other} both determine the symbol {symbol!r}; give one of them "
                    "another symbol"
                )
                raise GraphError(message, node=str(node))


def _counted_symbols(node: Node) -> set[str]:
    """Return the symbols that a node itself determines; an If numbers those of its results."""
    own = getattr(node.op, "count_symbol", "")
    if not own:
        return set()
    read, produced = (
        symbols_of(*(d for v in values if isinstance(v.type, TensorType) for d in v.type.shape))
        for values in ([v for v in node.inputs if v is not None], node.outputs)
    )
    return {name for name in produced if name == own or name.startswith(f"{own}_")} - (read - {own})


def _check_bounds(graph: Graph) -> None:
    """Check that bounded symbols are not symbols of inputs and that bounds are not negative."""
    types = [v.type for v in graph.inputs if isinstance(v.type, TensorType)]
    given = symbols_of(*(extent for kind in types for extent in kind.shape))
    for symbol, bound in graph.symbol_bounds.items():
        if symbol in given:
            raise GraphError(
                f"symbol {symbol!r} is defined by an input and also listed as known only at run "
                "time"
            )
        if isinstance(bound, int) and bound < 0:
            raise GraphError(f"symbol {symbol!r} has the bound {bound}; it must be at least 0")
