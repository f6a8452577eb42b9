"""Runs a graph on references, checking every array against what was inferred."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Protocol

import numpy as np

from smelt.errors import GraphError, ShapeError
from smelt.interp._symbols import bind_symbols, check_result

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import ArrayLike

    from smelt.ir import Array, Graph, Node, Value


class Listener(Protocol):
    """What follows a run: tracing, comparing, stepping."""

    def will_run(self, node: Node, inputs: Sequence[Array | None], /) -> None:
        """Hear of a node before it runs."""

    def did_run(self, node: Node, outputs: Sequence[Array], /) -> None:
        """Hear of a node after it ran."""


def interpret(
    graph: Graph,
    inputs: Mapping[str, ArrayLike],
    *,
    outputs: Iterable[str] | None = None,
    listeners: Sequence[Listener] = (),
) -> dict[str, Array]:
    """Run the graph on the references of its ops.

    Args:
        graph: what to run.
        inputs: an array for each input, by name; their extents bind the graph's symbols.
        outputs: names of the values to return, any in the graph; None for the graph's outputs.
        listeners: told of every node before and after it runs.

    Raises BindingError when an array does not fit an input, GraphError naming the node that fails.
    """
    wanted = _wanted_values(graph, outputs)
    given: dict[str, Array] = {name: np.asarray(array) for name, array in inputs.items()}
    symbols = bind_symbols(graph, given)
    values: dict[int, Array] = {id(v): given[v.name] for v in graph.inputs}
    needed = _needed_nodes(graph, wanted)
    uses = Counter(id(v) for node in needed for v in node.inputs if v is not None)
    uses.update(id(v) for v in wanted)
    for node in needed:
        arrays = [None if v is None else _array_of(v, values) for v in node.inputs]
        for listener in listeners:
            listener.will_run(node, arrays)
        results = run_node(node, arrays)
        for value, array in zip(node.outputs, results, strict=False):
            check_result(graph, node, value, array, symbols)
            values[id(value)] = array
        for listener in listeners:
            listener.did_run(node, results)
        _release(node, values, uses)
    return {value.name: _array_of(value, values) for value in wanted}


def _wanted_values(graph: Graph, names: Iterable[str] | None) -> list[Value]:
    if names is None:
        return list(graph.outputs)
    by_name = {value.name: value for value in graph.values()}
    wanted = list(names)
    for name in wanted:
        if name not in by_name:
            raise GraphError(f"the network {graph.name} has no value {name!r} to return")
    return [by_name[name] for name in wanted]


def _needed_nodes(graph: Graph, wanted: Sequence[Value]) -> list[Node]:
    """The nodes on which the wanted values depend, in order."""
    needed: list[Node] = []
    live = {id(v) for v in wanted}
    for node in reversed(graph.nodes):
        if any(id(v) in live for v in node.outputs):
            needed.append(node)
            live.update(id(v) for v in node.inputs if v is not None)
    return needed[::-1]


def _array_of(value: Value, values: Mapping[int, Array]) -> Array:
    if value.constant is not None:
        return value.constant.array
    if id(value) not in values:
        raise GraphError(f"value {value.name} is read before anything makes it")
    return values[id(value)]


def run_node(node: Node, arrays: Sequence[Array | None]) -> tuple[Array, ...]:
    """What the reference of a node's op makes of its operands, which are not checked.

    Raises GraphError naming the node when it fails.
    """
    try:
        # What is not a number, or infinite, is an answer here, not a reason to warn.
        with np.errstate(all="ignore"):
            results = node.op.reference(*arrays)
    except GraphError as error:
        where = f"{error.node} in {node}" if error.node else str(node)
        kind = ShapeError if isinstance(error, ShapeError) else GraphError
        raise kind(error.message, node=where) from error
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        why = str(error) or type(error).__name__
        shapes = ", ".join("-" if a is None else f"{a.dtype}{list(a.shape)}" for a in arrays)
        raise GraphError(f"the reference failed on {shapes}: {why}", node=str(node)) from error
    if len(results) < len(node.outputs):
        raise GraphError(
            f"the reference gave {len(results)} results where {len(node.outputs)} are inferred",
            node=str(node),
        )
    return results


def _release(node: Node, values: dict[int, Array], uses: Counter[int]) -> None:
    """Drop what nobody reads any more: a deep network needs the memory of its widest part."""
    for value in node.inputs:
        if value is not None:
            uses[id(value)] -= 1
            if not uses[id(value)]:
                values.pop(id(value), None)
    for value in node.outputs:
        if not uses[id(value)]:
            values.pop(id(value), None)
