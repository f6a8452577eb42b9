"""Graphs as JSON data: what an engine holds of a network, written exactly and read with suspicion.

Constants are kept by whoever writes a graph, who knows which of them are the same; a graph refers
to them by position.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from smelt.engine import as_json
from smelt.errors import EngineFormatError, InternalError, SmeltError
from smelt.ir import Graph, verify
from smelt.ops import op_from_json, op_to_json
from smelt.types import DType, Guard, Relation, TensorType, dim_from_text, dim_to_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from smelt.ir import Constant, Value

MALFORMED_DATA_ERRORS: Final = (
    SmeltError, InternalError, LookupError, TypeError, ValueError, AttributeError,
    ArithmeticError, RecursionError, MemoryError,
)  # fmt: skip
"""What our own code may raise over a graph that no builder wrote: the graph is at fault."""


def malformed_error(what: str, error: BaseException) -> EngineFormatError:
    """The error for one of `MALFORMED_DATA_ERRORS`; ``what`` names what was read."""
    name = "" if isinstance(error, SmeltError) else f"{type(error).__name__}, "
    return EngineFormatError(
        f"{what} is not valid ({name}{str(error)[:500]}); download the engine again, or build it "
        "again"
    )


def graph_to_data(graph: Graph, position: Callable[[Constant], int]) -> dict[str, Any]:
    """The graph as values that JSON has.

    Args:
        graph: what is written.
        position: where a constant is kept, beside the graph.
    """
    places: dict[Value, list[Any]] = {v: ["input", k] for k, v in enumerate(graph.inputs)}

    def reference(value: Value | None) -> Any:
        if value is None:
            return None
        if value.constant is None:
            return places[value]
        # Two values of one constant are two tensors in a plan: the value counts as well.
        return places.setdefault(value, ["constant", position(value.constant), len(places)])

    nodes: list[Any] = []
    for number, node in enumerate(graph.nodes):
        nodes.append(
            {
                "name": node.name,
                "layers": list(node.layers),
                "op": op_to_json(node.op),
                "inputs": [reference(v) for v in node.inputs],
                "outputs": [v.name for v in node.outputs],
            }
        )
        places |= {v: ["node", number, k] for k, v in enumerate(node.outputs)}
    return {
        "name": graph.name,
        "bounds": {name: dim_to_text(bound) for name, bound in graph.symbol_bounds.items()},
        "assumed": [guard_to_data(guard) for guard in graph.guards],
        "inputs": [[v.name, *_type_to_data(v)] for v in graph.inputs],
        "nodes": nodes,
        "outputs": [reference(v) for v in graph.outputs],
    }


def guard_to_data(guard: Guard) -> list[str]:
    """The guard as values that JSON has."""
    left, right = dim_to_text(guard.left), dim_to_text(guard.right)
    return [left, guard.relation.value, right, guard.what, guard.node]


def guard_from_data(data: Any) -> Guard:
    """The guard that `guard_to_data` wrote. Raises one of `MALFORMED_DATA_ERRORS`."""
    left, relation, right, what, node = data
    sides = (dim_from_text(left), dim_from_text(right))
    return Guard(sides[0], Relation(relation), sides[1], str(what), str(node))


def _type_to_data(value: Value) -> tuple[str, list[str]]:
    return value.tensor.dtype.value, [dim_to_text(d) for d in value.tensor.shape]


def graph_from_data(data: Any, constants: Sequence[Constant]) -> Graph:
    """The graph that `graph_to_data` wrote, well formed; inference says what types it has.

    Raises one of `MALFORMED_DATA_ERRORS`: the data is no such graph.
    """
    graph = Graph(str(data["name"]))
    graph.symbol_bounds = {str(k): dim_from_text(v) for k, v in data["bounds"].items()}
    graph.guards = tuple(map(guard_from_data, data["assumed"]))
    for name, dtype, shape in data["inputs"]:
        kind = TensorType(DType(dtype), tuple(dim_from_text(d) for d in shape))
        graph.add_input(str(name), kind)
    values: dict[int, Value] = {}
    for entry in data["nodes"]:
        graph.add(
            op_from_json(as_json(entry["op"])),
            *(_resolve(r, graph, constants, values) for r in entry["inputs"]),
            name=str(entry["name"]),
            output_names=[str(n) for n in entry["outputs"]],
            layers=tuple(str(x) for x in entry["layers"]),
        )
    graph.outputs = [_required(_resolve(r, graph, constants, values)) for r in data["outputs"]]
    verify(graph)
    return graph


def _resolve(
    reference: Any, graph: Graph, constants: Sequence[Constant], values: dict[int, Value]
) -> Value | None:
    match reference:
        case None:
            return None
        case ["input", int(k)] if 0 <= k < len(graph.inputs):
            return graph.inputs[k]
        case ["constant", int(k), int(which)] if 0 <= k < len(constants):
            if which not in values:
                values[which] = graph.add_constant(constants[k])
            return values[which]
        case ["node", int(n), int(k)] if 0 <= n < len(graph.nodes) and k >= 0:
            return graph.nodes[n].outputs[k]
        case _:
            raise EngineFormatError(f"the reference {reference!r} has no target")


def _required(value: Value | None) -> Value:
    if value is None:
        raise EngineFormatError("an output is missing")
    return value
