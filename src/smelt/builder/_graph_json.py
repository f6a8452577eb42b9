"""Graphs as JSON data in engines; data that is read is not trusted.

Constants are stored by the writer of a graph, which knows which of them are identical. A graph
refers to them by position.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from smelt.engine import as_json, codec
from smelt.errors import EngineFormatError, InternalError, SmeltError
from smelt.ir import Graph, verify
from smelt.ops import op_from_json, op_to_json
from smelt.types import Guard, Relation, TensorType, dim_from_text, dim_to_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from smelt.ir import Constant, Value

MALFORMED_DATA_ERRORS: Final = (
    SmeltError, InternalError, LookupError, TypeError, ValueError, AttributeError,
    ArithmeticError, RecursionError, MemoryError,
)  # fmt: skip
"""Errors that may be raised while reading a graph that this package did not write. They mean that
the data is malformed.
"""


GUARDS: Final = codec.tuple_of(
    codec.record_row(
        Guard,
        left=codec.DIM_TEXT,
        relation=codec.enum_of(Relation),
        right=codec.DIM_TEXT,
        what=codec.TEXT,
        node=codec.TEXT,
    )
)
"""Codec of guards."""
_INPUTS: Final = codec.tuple_of(codec.row(codec.TEXT, codec.DTYPE, codec.tuple_of(codec.DIM_TEXT)))
"""Codec of inputs: name, element type and shape."""


def malformed_error(what: str, error: BaseException) -> EngineFormatError:
    """Return the error to raise for one of `MALFORMED_DATA_ERRORS`.

    ``what`` names the data that was read.
    """
    name = "" if isinstance(error, SmeltError) else f"{type(error).__name__}, "
    return EngineFormatError(
        f"{what} is not valid ({name}{str(error)[:500]}); download the engine again, or build it "
        "again"
    )


def graph_to_data(graph: Graph, position: Callable[[Constant], int]) -> dict[str, Any]:
    """Return a graph as JSON-serialisable values.

    Args:
        graph: the graph to write.
        position: returns the position at which a constant is stored.
    """
    references: dict[Value, list[Any]] = {v: ["input", k] for k, v in enumerate(graph.inputs)}

    def reference(value: Value | None) -> Any:
        if value is None:
            return None
        if value.constant is None:
            return references[value]
        # Two values of one constant are two tensors in a plan, so the reference numbers the value,
        # too.
        return references.setdefault(value, ["constant", position(value.constant), len(references)])

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
        references |= {v: ["node", number, k] for k, v in enumerate(node.outputs)}
    return {
        "name": graph.name,
        "bounds": {name: dim_to_text(bound) for name, bound in graph.symbol_bounds.items()},
        "assumed": GUARDS.write(graph.guards),
        "inputs": _INPUTS.write(
            tuple((v.name, v.tensor.dtype, v.tensor.shape) for v in graph.inputs)
        ),
        "nodes": nodes,
        "outputs": [reference(v) for v in graph.outputs],
    }


def graph_from_data(data: Any, constants: Sequence[Constant]) -> Graph:
    """Return the verified graph that `graph_to_data` wrote; its types are inferred.

    Raises:
        MALFORMED_DATA_ERRORS: the data is malformed.
    """
    graph = Graph(str(data["name"]))
    graph.symbol_bounds = {str(k): dim_from_text(v) for k, v in data["bounds"].items()}
    graph.guards = GUARDS.read(data["assumed"], "the guards of a graph")
    for name, dtype, shape in _INPUTS.read(data["inputs"], "the inputs of a graph"):
        graph.add_input(name, TensorType(dtype, shape))
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
    """Return the value that a reference denotes.

    Raises:
        EngineFormatError: the reference is invalid.
    """
    match reference:
        case None:
            return None
        case ["input", int(k)] if 0 <= k < len(graph.inputs):
            return graph.inputs[k]
        case ["constant", int(k), int(value_number)] if 0 <= k < len(constants):
            if value_number not in values:
                values[value_number] = graph.add_constant(constants[k])
            return values[value_number]
        case ["node", int(n), int(k)] if 0 <= n < len(graph.nodes) and k >= 0:
            return graph.nodes[n].outputs[k]
        case _:
            raise EngineFormatError(f"the reference {reference!r} has no target")


def _required(value: Value | None) -> Value:
    if value is None:
        raise EngineFormatError("an output is missing")
    return value
