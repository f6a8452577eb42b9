"""The first layer whose result differs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from smelt import ops
from smelt.compare._reduce import cut_part
from smelt.errors import UnsupportedError
from smelt.ir import clone
from smelt.types import TensorType

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from smelt.compare._error_metrics import ErrorTolerances, OutputError
    from smelt.compare._oracle import Oracle
    from smelt.ir import Array, Graph, Node, Value

    Run = Callable[[Graph, Mapping[str, Array]], dict[str, Array]]
    """Builds an engine of a graph and runs it."""
    AskAbout = Callable[[Graph], Oracle]
    """Gives the oracle of a part of the network."""


_NEAREST: Final = 4
_ROUNDING: Final = (ops.QuantizeLinear, ops.DynamicQuantizeLinear)


@dataclass(frozen=True, slots=True)
class LayerDifference:
    """A layer whose result is wrong while what it reads is right."""

    layer: str
    node: str
    op: str
    tensor: str
    error: OutputError
    fused_only: bool
    """Whether the result is right in an engine that shows every intermediate one: then it is what
    the optimiser makes of the layers around here that is wrong."""


def shown_values(graph: Graph) -> list[tuple[Node, Value]]:
    """The results that can be compared, in the order in which they are computed.

    What nobody reads is left out: old models declare results (Dropout's mask) that mean nothing.
    """
    return [
        (node, value)
        for node in graph.nodes
        for value in node.outputs
        if isinstance(value.type, TensorType) and (value.users or graph.is_output(value))
    ]


def layer_errors(
    graph: Graph,
    inputs: Mapping[str, Array],
    oracle: Oracle,
    tolerances: ErrorTolerances,
    run: Run,
    ask: AskAbout,
) -> list[tuple[Node, OutputError]]:
    """The error of each intermediate result, in an engine that shows them all.

    One quantisation step may become many within a few layers, all of them right. So a layer whose
    result is counted in steps is judged by what it makes of that which the engine itself gave it;
    then only what rounds to steps may be some apart.
    """
    exact = replace(tolerances, quantized={})
    shown = shown_values(graph)
    names = [value.name for _, value in shown]
    got = run(with_outputs(graph, names), inputs)
    wanted = oracle.values(inputs, [name for name in names if name not in tolerances.quantized])
    known = {value: np.asarray(inputs[value.name]) for value in graph.inputs}
    known |= {value: got[value.name] for _, value in shown}
    for node, value in shown:
        if value.name in tolerances.quantized:
            wanted |= _reference_of_node(graph, node, known, ask)
    return [
        (
            node,
            (tolerances if isinstance(node.op, _ROUNDING) else exact).error(
                value.name, got[value.name], wanted[value.name]
            ),
        )
        for node, value in shown
        if value.name in wanted
    ]


def _reference_of_node(
    graph: Graph, node: Node, known: Mapping[Value, Array], ask: AskAbout
) -> dict[str, Array]:
    """What a node should make of what it was given; nothing, where that cannot be told."""
    if any(v is not None and v.constant is None and v not in known for v in node.inputs):
        return {}
    part, arrays = cut_part(graph, [node], known)
    names = [value.name for value in part.nodes[0].outputs]
    try:
        return ask(part).values(arrays, names)
    except UnsupportedError:
        return {}


def find_first_difference(
    graph: Graph,
    inputs: Mapping[str, Array],
    oracle: Oracle,
    tolerances: ErrorTolerances,
    run: Run,
    errors: Sequence[tuple[Node, OutputError]],
) -> LayerDifference | None:
    """The first layer that differs; None when none does.

    An engine that shows every intermediate result fuses less. Where all of its results are right
    and the network's are not, single results are asked for, from a wrong output towards the inputs.
    What is counted in steps tells nothing there: it may be right and many of them off.
    """
    for node, error in errors:
        if not error.passed:
            return _difference(node, error, fused_only=False)
    producers = {e.name: node for node, e in errors if e.name not in tolerances.quantized}
    wanted = oracle.values(inputs, list(producers))

    def error_at(name: str) -> OutputError:
        got = run(with_outputs(graph, [name]), inputs)[name]
        return tolerances.error(name, got, wanted[name])

    found: OutputError | None = None
    suspects = [value.name for value in graph.outputs if value.name in producers]
    while (wrong := _first_wrong(suspects, error_at)) is not None:
        found = wrong
        suspects = _ancestors(producers[found.name], producers)
    return None if found is None else _difference(producers[found.name], found, fused_only=True)


def _first_wrong(
    names: Sequence[str], error_at: Callable[[str], OutputError]
) -> OutputError | None:
    """A wrong one: by bisection, as if all after the first wrong one were wrong; else by trying.

    Branches that do not meet break that rule, so the ones nearest to the end, which lead to what is
    wrong, are tried as well.
    """
    found: OutputError | None = None
    low, high = 0, len(names)
    while low < high:
        middle = (low + high) // 2
        error = error_at(names[middle])
        if error.passed:
            low = middle + 1
        else:
            found, high = error, middle
    if found is not None:
        return found
    errors = (error_at(name) for name in reversed(names[-_NEAREST:]))
    return next((error for error in errors if not error.passed), None)


def _ancestors(node: Node, producers: Mapping[str, Node]) -> list[str]:
    """Names of the values on which a node depends, in the order in which they are computed."""
    wanted = set(node.inputs)
    names: list[str] = []
    for name, maker in reversed(list(producers.items())):
        if any(value in wanted for value in maker.outputs):
            names.append(name)
            wanted.update(value for value in maker.inputs)
    return names[::-1]


def _difference(node: Node, error: OutputError, *, fused_only: bool) -> LayerDifference:
    layer = " + ".join(node.layers) or node.name
    return LayerDifference(layer, node.name, node.op.name, error.name, error, fused_only)


def with_outputs(graph: Graph, names: Sequence[str]) -> Graph:
    """A copy of the graph whose outputs are the values of these names."""
    copy = clone(graph)
    by_name = {value.name: value for value in copy.values()}
    copy.outputs = [by_name[name] for name in names]
    copy.remove_unused()
    return copy
