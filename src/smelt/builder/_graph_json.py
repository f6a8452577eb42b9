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
from smelt.types import DType, Guard, Relation, TensorType, dim_from_text, dim_to_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from smelt.ir import Constant, Node, Value

_STORAGE_TYPES: Final = frozenset((DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16))
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
_TYPES: Final = codec.tuple_of(codec.DTYPE)
"""Codec of a node's precision and the storage types of its results."""
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
                "types": _TYPES.write((node.precision, *(v.storage for v in node.outputs))),
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
    references = _References(graph, constants)
    for entry in data["nodes"]:
        node = graph.add(
            op_from_json(as_json(entry["op"])),
            *map(references.resolve, entry["inputs"]),
            name=str(entry["name"]),
            output_names=[str(n) for n in entry["outputs"]],
            layers=tuple(str(x) for x in entry["layers"]),
        )
        _read_types(node, entry["types"])
    graph.outputs = [_required(references.resolve(r)) for r in data["outputs"]]
    verify(graph)
    return graph


def _read_types(node: Node, data: Any) -> None:
    """Set the precision of a node and the storage types of its results.

    Raises:
        EngineFormatError: they are not types of floating-point tensors.
    """
    precision, *storages = _TYPES.read(data, "the precision of a node")
    if not {precision, *storages} <= _STORAGE_TYPES:
        raise EngineFormatError(
            f"the precision of {node} and the storage types of its results must be float32, "
            "float16 or bfloat16"
        )
    node.precision = precision
    for value, storage in zip(node.outputs, storages, strict=True):
        value.storage = storage


class _References:
    """The values of a graph that is being read, by what refers to them."""

    def __init__(self, graph: Graph, constants: Sequence[Constant]) -> None:
        self._graph = graph
        self._constants = constants
        self._values: dict[int, Value] = {}
        """Values of constants, by their numbers."""
        self._named: dict[str, int] = {}
        """Position of the first constant with a name."""

    def resolve(self, reference: Any) -> Value | None:
        """Return the value that a reference denotes.

        Raises:
            EngineFormatError: the reference is invalid.
        """
        graph = self._graph
        match reference:
            case None:
                return None
            case ["input", int(k)] if 0 <= k < len(graph.inputs):
                return graph.inputs[k]
            case ["constant", int(k), int(number)] if 0 <= k < len(self._constants):
                if number not in self._values:
                    self._values[number] = self._add_constant(k)
                return self._values[number]
            case ["node", int(n), int(k)] if 0 <= n < len(graph.nodes) and k >= 0:
                return graph.nodes[n].outputs[k]
            case _:
                raise EngineFormatError(
                    f"{reference!r} refers to no input, constant or node of the graph"
                )

    def _add_constant(self, position: int) -> Value:
        """Return a new value of the constant at a position.

        Constants of a network and of the branches inlined into it may have the same name, by which
        they are refitted. Their values then get different names, which only have to be unique.
        """
        constant = self._constants[position]
        is_first = self._named.setdefault(constant.name, position) == position
        name = constant.name if is_first else f"{constant.name}~{position}"
        return self._graph.add_constant(constant, name)


def _required(value: Value | None) -> Value:
    if value is None:
        raise EngineFormatError("an output is missing")
    return value
