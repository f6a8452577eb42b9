"""Comparison of intermediate results, to find the first layer that differs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from smelt import ops
from smelt.compare._delta_debugging import cut_part
from smelt.errors import UnsupportedError
from smelt.ir import clone
from smelt.types import TensorType

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from smelt.compare._error_metrics import ErrorTolerances, OutputError
    from smelt.compare._oracle import Oracle
    from smelt.ir import Array, Graph, Node, Value

    Run = Callable[[Graph, Mapping[str, Array]], dict[str, Array]]
    """Builds an engine from a graph, runs it and returns its outputs."""
    MakePartOracle = Callable[[Graph], Oracle]
    """Returns the oracle for a part of the network."""


_NEAREST: Final = 4
"""Number of suspects next to an output that are tried if the bisection finds none."""
_ROUNDING: Final = (ops.QuantizeLinear, ops.DynamicQuantizeLinear)


@dataclass(frozen=True, slots=True)
class LayerDifference:
    """A layer whose result is wrong although its inputs are right."""

    layer: str
    node: str
    op: str
    tensor: str
    error: OutputError
    fused_only: bool
    """Whether the result is right in an engine whose outputs are all intermediate results.

    The cause is then in the fused code of this and the neighbouring layers.
    """


def compared_values(graph: Graph) -> list[tuple[Node, Value]]:
    """Return the results that are compared with their nodes, in the order of execution.

    Unused results are omitted: old models declare results without a meaning, as Dropout's mask.
    """
    return [
        (node, value)
        for node in graph.nodes
        for value in node.outputs
        if isinstance(value.type, TensorType) and (value.users or graph.is_output(value))
    ]


@dataclass(frozen=True, slots=True)
class LayerComparer:
    """Compares the layers of a network with an oracle."""

    graph: Graph
    """The network."""
    inputs: Mapping[str, Array]
    """Its inputs."""
    oracle: Oracle
    """The oracle for the network."""
    tolerances: ErrorTolerances
    """Allowed errors."""
    run: Run
    """Runs an engine."""

    def errors(self, make_oracle: MakePartOracle) -> list[tuple[Node, OutputError]]:
        """Return the error of each intermediate result, in an engine that has them all as outputs.

        An error of one quantisation step can grow to many steps within a few layers, even if all of
        them are right. A layer that depends on quantised tensors is therefore compared with the
        reference of this single layer on the inputs that the engine computed. Steps are then
        allowed only for layers that round to steps themselves.

        Args:
            make_oracle: returns the oracle for a single layer.
        """
        tolerances, exact = self.tolerances, replace(self.tolerances, quantized={})
        compared = compared_values(self.graph)
        names = [value.name for _, value in compared]
        actual = self.run(with_outputs(self.graph, names), self.inputs)
        unquantized = [name for name in names if name not in tolerances.quantized]
        expected = self.oracle.values(self.inputs, unquantized)
        known = {value: np.asarray(self.inputs[value.name]) for value in self.graph.inputs}
        known |= {value: actual[value.name] for _, value in compared}
        for node, value in compared:
            if value.name in tolerances.quantized:
                expected |= _reference_of_node(self.graph, node, known, make_oracle)
        return [
            (
                node,
                (tolerances if isinstance(node.op, _ROUNDING) else exact).error(
                    value.name, actual[value.name], expected[value.name]
                ),
            )
            for node, value in compared
            if value.name in expected
        ]

    def find_first_difference(
        self, errors: Sequence[tuple[Node, OutputError]]
    ) -> LayerDifference | None:
        """Return the first layer that differs, or None.

        An engine with all intermediate results as outputs fuses fewer layers. If all of its results
        are right although the network's are not, engines with a single intermediate result as
        output are tried, from a wrong output towards the inputs. Tensors that depend on quantised
        ones are not used in this search, because they may be right and still differ by many steps.

        Args:
            errors: the result of `errors`.
        """
        tolerances = self.tolerances
        for node, error in errors:
            if not error.passed:
                return _difference(node, error, fused_only=False)
        producers = {e.name: node for node, e in errors if e.name not in tolerances.quantized}
        expected = self.oracle.values(self.inputs, list(producers))

        def error_at(name: str) -> OutputError:
            actual = self.run(with_outputs(self.graph, [name]), self.inputs)[name]
            return tolerances.error(name, actual, expected[name])

        first: OutputError | None = None
        suspects = [value.name for value in self.graph.outputs if value.name in producers]
        while (wrong := _first_wrong(suspects, error_at)) is not None:
            first = wrong
            suspects = _ancestors(producers[first.name], producers)
        return None if first is None else _difference(producers[first.name], first, fused_only=True)


def _reference_of_node(
    graph: Graph, node: Node, known: Mapping[Value, Array], make_oracle: MakePartOracle
) -> dict[str, Array]:
    """Return the expected outputs of one node by name; empty if they cannot be computed.

    Args:
        graph: the network.
        node: the node.
        known: values that the engine computed.
        make_oracle: returns the oracle for the node.
    """
    if any(v is not None and v.constant is None and v not in known for v in node.inputs):
        return {}
    part, arrays = cut_part(graph, [node], known)
    names = [value.name for value in part.nodes[0].outputs]
    try:
        return make_oracle(part).values(arrays, names)
    except UnsupportedError:
        return {}


def _first_wrong(
    names: Sequence[str], error_at: Callable[[str], OutputError]
) -> OutputError | None:
    """Return the error of a wrong value, preferably the first, or None.

    The search is a bisection, which assumes that all values after the first wrong one are wrong.
    The assumption fails for parallel branches. If the bisection finds nothing, the values at the
    end, which are nearest to the known wrong result, are therefore tried too.

    Args:
        names: names of values in the order of execution.
        error_at: returns the error of a value.
    """
    first: OutputError | None = None
    low, high = 0, len(names)
    while low < high:
        middle = (low + high) // 2
        error = error_at(names[middle])
        if error.passed:
            low = middle + 1
        else:
            first, high = error, middle
    if first is not None:
        return first
    errors = (error_at(name) for name in reversed(names[-_NEAREST:]))
    return next((error for error in errors if not error.passed), None)


def _ancestors(node: Node, producers: Mapping[str, Node]) -> list[str]:
    """Return the names of the values that a node depends on, in the order of execution."""
    needed = set(node.inputs)
    names: list[str] = []
    for name, producer in reversed(list(producers.items())):
        if any(value in needed for value in producer.outputs):
            names.append(name)
            needed.update(producer.inputs)
    return names[::-1]


def _difference(node: Node, error: OutputError, *, fused_only: bool) -> LayerDifference:
    layer = " + ".join(node.layers) or node.name
    return LayerDifference(layer, node.name, node.op.name, error.name, error, fused_only)


def with_outputs(graph: Graph, names: Sequence[str]) -> Graph:
    """Return a copy of a graph whose outputs are the values of given names."""
    copy = clone(graph)
    by_name = copy.values_by_name()
    copy.outputs = [by_name[name] for name in names]
    copy.remove_unused()
    return copy
