"""State of an import: reserved names, problems, and the value of each name."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from smelt.errors import GraphError, ModelFormatError
from smelt.importers.onnx._types import SymbolTable, unused_name
from smelt.ir import Value
from smelt.types import Limit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from onnx import AttributeProto, FunctionProto, GraphProto, TypeProto

    from smelt.importers.onnx._external_data import ExternalData
    from smelt.ir import Array, Graph
    from smelt.types import Dim, Guard

logger = logging.getLogger("smelt.importers.onnx")


_PARTS_PER_NODE = 16
"""Number of names and elements of a node that are counted as another node."""
_MAX_CHARACTERS = 1000
"""Largest number of characters of a generated name; inputs and outputs keep their names."""


class UnknownResult(Exception):
    """A result is unknown because of a problem that has been recorded already."""


FunctionKey = tuple[str, str, str]
"""Domain, name and overload of a function."""


class GraphFiller(Protocol):
    """A function that converts the nodes of an ONNX graph into a scope's graph."""

    def __call__(self, scope: Scope, proto: GraphProto, /) -> None:
        """Fill the scope."""
        ...


@dataclass(slots=True, eq=False)
class ImportState:
    """State that all graphs of an import share."""

    external: ExternalData
    root: Graph
    """The graph of the network, which contains all regions."""
    fill: GraphFiller
    functions: Mapping[FunctionKey, FunctionProto] = field(
        default_factory=dict["FunctionKey", "FunctionProto"]
    )
    symbols: SymbolTable = field(default_factory=SymbolTable)
    problems: list[str] = field(default_factory=list[str])
    """One line for each unsupported node."""
    _value_names: dict[str, int] = field(default_factory=dict[str, int])
    _node_names: dict[str, int] = field(default_factory=dict[str, int])
    _known: dict[Value, Array] = field(default_factory=dict["Value", "Array"])
    _read_while_importing: dict[Value, None] = field(default_factory=dict["Value", None])
    _node_count: int = 0
    _weight_count: int = 0
    _work: int = 0
    _expanded_nodes: int = 0
    _expanded_bytes: int = 0

    def reserve_name(self, preferred_name: str) -> str:
        """Return an unused name for a value."""
        return _reserve(self._value_names, preferred_name)

    def reserve_node_name(self, preferred_name: str) -> str:
        """Return an unused name for a node."""
        return _reserve(self._node_names, preferred_name)

    def count_node(self) -> None:
        """Count one node.

        Raises:
            ModelFormatError: the limit is exceeded.
        """
        self._node_count += 1
        if self._node_count > Limit.MAX_IMPORTED_NODES.most:
            detail = Limit.MAX_IMPORTED_NODES.excess(self._node_count)
            raise ModelFormatError(f"with its functions expanded the model has {detail}")

    def count_weights(self, count: int) -> None:
        """Count the initialisers of a graph, before they become arrays.

        Each one takes 20 µs to import, whatever its size.

        Raises:
            ModelFormatError: the limit is exceeded.
        """
        self._weight_count += count
        if self._weight_count > Limit.MAX_IMPORTED_WEIGHTS.most:
            detail = Limit.MAX_IMPORTED_WEIGHTS.excess(self._weight_count)
            raise ModelFormatError(f"with its functions expanded the model has {detail}")

    def count_expanded(self, nodes: int, size_bytes: int, parts: int = 0) -> None:
        """Count nodes and bytes that functions and sparse tensors add to those in the file.

        The size of functions that call each other twice doubles at every level. ``parts`` are names
        and elements, which take time out of proportion to their bytes: many count as a node.

        Raises:
            ModelFormatError: a limit is exceeded.
        """
        self._expanded_nodes += nodes + parts // _PARTS_PER_NODE
        self._expanded_bytes += size_bytes
        for count, limit in (
            (self._expanded_nodes, Limit.MAX_EXPANDED_NODES),
            (self._expanded_bytes, Limit.MAX_EXPANDED_BYTES),
        ):
            if count > limit.most:
                raise ModelFormatError(
                    "the functions and sparse tensors of the model expand to "
                    f"{limit.excess(count)}; simplify the functions, or split the model"
                )

    def afford(self, work: Dim) -> bool:
        """Return whether ``work`` more operations may be computed; if so, count them."""
        if not isinstance(work, int) or self._work + work > Limit.MAX_FOLDED_WORK.most:
            return False
        self._work += work
        return True

    def set_known(self, value: Value, array: Array) -> None:
        """Record the elements of a value that shapes determine."""
        self._known[value] = array

    def known(self, value: Value) -> Array | None:
        """Return the elements of a value that is constant or determined by shapes, or None."""
        if value.constant is not None:
            return value.constant.array
        array = self._known.get(value)
        if array is not None:
            self._read_while_importing[value] = None
        return array

    def keep_guards(self) -> None:
        """Store the guards on which elements depend that were read during the import.

        Nodes that read such elements as constants no longer depend on the nodes with the guards.
        """
        guards: dict[Guard, None] = {}
        unvisited = set(self.root.nodes)  # without nodes of regions, which keep their own guards
        values = list(self._read_while_importing)
        while values:
            node = values.pop().producer
            if node is not None and node in unvisited:
                unvisited.remove(node)
                guards.update(dict.fromkeys(node.guards))
                values += [value for value in node.inputs if value is not None]
        self.root.guards = tuple(guards)


def _reserve(taken: dict[str, int], preferred_name: str) -> str:
    """Return an unused name, as ``unused_name``; a long one is shortened."""
    if (
        len(preferred_name) > _MAX_CHARACTERS
    ):  # a long name would be the prefix of all names in a function's body
        preferred_name = (
            f"{preferred_name[: _MAX_CHARACTERS // 2]}…{preferred_name[-_MAX_CHARACTERS // 2 :]}"
        )
    return unused_name(taken, preferred_name)


@dataclass(slots=True, eq=False)
class Scope:
    """The names that are visible to the nodes of one graph or function."""

    state: ImportState
    graph: Graph
    opsets: Mapping[str, int]
    parent: Scope | None = None
    """The scope around a region, whose values it captures. A function has none."""
    inlined: bool = False
    """Whether the nodes are added to the graph of the parent, so that nothing is captured."""
    prefix: str = ""
    """Prefix of the names of nodes and values that are not visible in the model."""
    references: Mapping[str, AttributeProto] | None = None
    """Attributes of the call of a function; None outside of functions."""
    values: dict[str, Value | None] = field(default_factory=dict["str", "Value | None"])
    """Values by name; None for a result of an unsupported node without a declared type."""
    captured: list[tuple[Value, Value]] = field(default_factory=list["tuple[Value, Value]"])
    """Captured values of outer scopes, each with the input of the region that receives it."""
    hints: dict[str, TypeProto] = field(default_factory=dict["str", "TypeProto"])
    """Declared types of values, which are used only if inference has no result."""
    depth: int = 0

    def __post_init__(self) -> None:
        if self.depth > Limit.MAX_REGION_DEPTH.most:
            raise ModelFormatError(
                f"functions and subgraphs are nested {Limit.MAX_REGION_DEPTH.excess(self.depth)}, "
                f"at {self.prefix[:200]!r}; does a function call itself?"
            )

    def lookup(self, name: str, reader: str) -> Value | None:
        """Return the value of a name in this or an outer scope; None if it is unknown.

        Raises:
            GraphError: the name is not defined.
        """
        if name in self.values:
            return self.values[name]
        if self.parent is None:
            raise GraphError(
                f"the input {name!r} is not an input, an initializer or a node's output; "
                "the name is misspelled, or a part of the model is missing",
                node=reader,
            )
        outer = self.parent.lookup(name, reader)
        if self.inlined:
            return outer
        self.values[name] = None if outer is None else self._capture(name, outer)
        return self.values[name]

    def _capture(self, name: str, outer: Value) -> Value:
        """Return the region's value for a value of an outer scope."""
        if outer.constant is not None:
            return Value(outer.name, outer.type, constant=outer.constant)
        inner = self.graph.add_input(name, outer.type)
        inner.dims = outer.dims
        known = self.state.known(outer)
        if known is not None:
            self.state.set_known(inner, known)
        self.captured.append((outer, inner))
        return inner
