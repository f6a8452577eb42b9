"""Interpreter of graphs: runs references and checks each array against its inferred type."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Protocol

import numpy as np

from smelt.errors import GraphError
from smelt.interp._symbols import bind_symbols
from smelt.ir import check_array, check_guards, evaluate
from smelt.types import counted, enough_memory_for, evaluate_dim, symbols_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import ArrayLike

    from smelt.ir import Array, Graph, Node, Value


class Listener(Protocol):
    """Observer of a run, for tracing, comparison and stepping."""

    def will_run(self, node: Node, inputs: Sequence[Array | None], /) -> None:
        """Called before a node runs."""

    def did_run(self, node: Node, outputs: Sequence[Array], /) -> None:
        """Called after a node has run."""


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
        graph: the graph.
        inputs: an array for each input, by name; their extents are the values of the symbols.
        outputs: names of the values to return, any in the graph; None for the graph's outputs.
        listeners: called before and after each node runs.

    Raises:
        BindingError: an array does not fit an input.
        ShapeError: a guard fails; the message names the node.
        IndexRangeError: an index is out of range; the message names the node.
        GraphError: a node fails for another reason, or ``outputs`` names an unknown value.
    """
    wanted = _wanted_values(graph, outputs)
    arrays_by_name: dict[str, Array] = {name: np.asarray(array) for name, array in inputs.items()}
    symbols = bind_symbols(graph, arrays_by_name)
    values: dict[Value, Array] = {v: arrays_by_name[v.name] for v in graph.inputs}
    needed = graph.live_nodes(wanted)
    uses = Counter(v for node in needed for v in node.inputs if v is not None)
    uses.update(wanted)
    check_guards(graph.guards, symbols)
    for node in needed:
        arrays = [None if v is None else _array_of(v, values) for v in node.inputs]
        for listener in listeners:
            listener.will_run(node, arrays)
        check_guards(node.guards, symbols)
        results = run_node(node, arrays, _known_bounds(graph, symbols))
        for value, array in zip(node.outputs, results, strict=False):
            check_array(value, array, symbols, str(node), graph.symbol_bounds)
            values[value] = array
        for listener in listeners:
            listener.did_run(node, results)
        _release(node, values, uses)
    check_guards(graph.guards, symbols)  # also those with symbols that this run determined
    return {value.name: _array_of(value, values) for value in wanted}


def _wanted_values(graph: Graph, names: Iterable[str] | None) -> list[Value]:
    """Return the values of the names. Raises GraphError when a name is unknown."""
    if names is None:
        return list(graph.outputs)
    by_name = graph.values_by_name()
    wanted = list(names)
    for name in wanted:
        if name not in by_name:
            raise GraphError(f"the network {graph.name} has no value {name!r} to return")
    return [by_name[name] for name in wanted]


def _array_of(value: Value, values: Mapping[Value, Array]) -> Array:
    if value.constant is not None:
        return value.constant.array
    if value not in values:
        raise GraphError(f"the value {value.name} is read before it is computed")
    return values[value]


def _known_bounds(graph: Graph, symbols: Mapping[str, int]) -> dict[str, int]:
    """Return the upper bounds of symbols that can be evaluated with the known symbols."""
    return {
        name: evaluate_dim(bound, symbols)
        for name, bound in graph.symbol_bounds.items()
        if symbols_of(bound) <= symbols.keys()
    }


def run_node(
    node: Node, arrays: Sequence[Array | None], most: Mapping[str, int] | None = None
) -> tuple[Array, ...]:
    """Run the reference of a node on arrays, which are not checked.

    ``most`` has upper bounds of the symbols that the run determines.

    Raises GraphError or IndexRangeError, which name the node, when the reference fails.
    """
    results = evaluate(node.op, arrays, str(node), most)
    if len(results) < len(node.outputs):
        raise GraphError(
            f"the op's reference method returned {counted(len(results), 'result')}; its infer "
            f"method returned {len(node.outputs)}",
            node=str(node),
        )
    return results


def _release(node: Node, values: dict[Value, Array], uses: Counter[Value]) -> None:
    """Release arrays that are not read again, so that memory does not grow with the depth."""
    for value in node.inputs:
        if value is not None:
            uses[value] -= 1
            if not uses[value]:
                values.pop(value, None)
    for value in node.outputs:
        if not uses[value]:
            values.pop(value, None)
