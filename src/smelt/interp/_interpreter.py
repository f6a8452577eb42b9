"""Runs a graph on references, checking every array against what was inferred."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Protocol

import numpy as np

from smelt.errors import GraphError
from smelt.interp._symbols import bind_symbols
from smelt.ir import check_array, check_guards, evaluate
from smelt.types import enough_memory_for, evaluate_dim, symbols_of

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


@enough_memory_for("the run")
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

    Raises BindingError when an array does not fit an input, ShapeError naming the node whose guard
    fails, IndexRangeError naming the node that is given an index out of range, GraphError naming
    the node that fails otherwise.
    """
    wanted = _wanted_values(graph, outputs)
    given: dict[str, Array] = {name: np.asarray(array) for name, array in inputs.items()}
    symbols = bind_symbols(graph, given)
    values: dict[Value, Array] = {v: given[v.name] for v in graph.inputs}
    needed = _needed_nodes(graph, wanted)
    uses = Counter(v for node in needed for v in node.inputs if v is not None)
    uses.update(v for v in wanted)
    check_guards(graph.guards, symbols)
    for node in needed:
        arrays = [None if v is None else _array_of(v, values) for v in node.inputs]
        for listener in listeners:
            listener.will_run(node, arrays)
        check_guards(node.guards, symbols)
        results = run_node(node, arrays, _largest(graph, symbols))
        for value, array in zip(node.outputs, results, strict=False):
            check_array(value, array, symbols, str(node), graph.symbol_bounds)
            values[value] = array
        for listener in listeners:
            listener.did_run(node, results)
        _release(node, values, uses)
    check_guards(graph.guards, symbols)  # those too that rest on what the run determined
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
    live = set(wanted)
    for node in reversed(graph.nodes):
        if any(v in live for v in node.outputs):
            needed.append(node)
            live.update(v for v in node.inputs if v is not None)
    return needed[::-1]


def _array_of(value: Value, values: Mapping[Value, Array]) -> Array:
    if value.constant is not None:
        return value.constant.array
    if value not in values:
        raise GraphError(f"value {value.name} is read before it is computed")
    return values[value]


def _largest(graph: Graph, symbols: Mapping[str, int]) -> dict[str, int]:
    """The largest values that symbols may come to have, as far as they are known."""
    return {
        name: evaluate_dim(bound, symbols)
        for name, bound in graph.symbol_bounds.items()
        if symbols_of(bound) <= symbols.keys()
    }


def run_node(
    node: Node, arrays: Sequence[Array | None], most: Mapping[str, int] | None = None
) -> tuple[Array, ...]:
    """What the reference of a node's op makes of its operands, which are not checked.

    ``most`` has the largest values of symbols that the run determines.

    Raises GraphError naming the node when it fails, or IndexRangeError.
    """
    results = evaluate(node.op, arrays, str(node), most)
    if len(results) < len(node.outputs):
        raise GraphError(
            f"the reference returned {len(results)} results, and {len(node.outputs)} were inferred",
            node=str(node),
        )
    return results


def _release(node: Node, values: dict[Value, Array], uses: Counter[Value]) -> None:
    """Drop what nobody reads any more: a deep network needs the memory of its widest part."""
    for value in node.inputs:
        if value is not None:
            uses[value] -= 1
            if not uses[value]:
                values.pop(value, None)
    for value in node.outputs:
        if not uses[value]:
            values.pop(value, None)
