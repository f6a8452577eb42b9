"""State of an import: reserved names, problems, and the value of each name."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from smelt.errors import GraphError, ModelFormatError
from smelt.importers.onnx._types import SymbolTable, unused_name
from smelt.ir import Value
from smelt.types import Limit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from onnx import AttributeProto, FunctionProto, GraphProto, TypeProto

    from smelt.importers.onnx._external_data import ExternalData
    from smelt.ir import Array, Constant, Graph
    from smelt.types import Dim, Guard

logger = logging.getLogger("smelt.importers.onnx")


_PARTS_PER_NODE = 16
"""Number of names and elements of a node that are counted as another node."""
_MAX_CHARACTERS = 1000
"""Largest number of characters of a generated name; inputs and outputs keep their names."""


class UnsupportedInputError(Exception):
    """An input is the result of an unsupported node, which has been recorded already."""


FunctionKey = tuple[str, str, str]
"""Domain, name and overload of a function."""


@dataclass(slots=True, eq=False)
class ImportState:
    """State that all graphs of an import share."""

    external: ExternalData
    root: Graph
    """The graph of the network, which contains all regions."""
    fill: Callable[[Scope, GraphProto], None]
    """Converts the nodes of an ONNX graph into the graph of a scope."""
    functions: Mapping[FunctionKey, FunctionProto]
    symbols: SymbolTable = field(default_factory=SymbolTable)
    problems: list[str] = field(default_factory=list[str])
    """One line for each unsupported node."""
    _value_names: dict[str, int] = field(default_factory=dict[str, int])
    _node_names: dict[str, int] = field(default_factory=dict[str, int])
    _constant_numbers: dict[Constant, int] = field(default_factory=dict["Constant", int])
    _known: dict[Value, Array] = field(default_factory=dict["Value", "Array"])
    _read_while_importing: dict[Value, None] = field(default_factory=dict["Value", None])
    _counts: Counter[Limit] = field(default_factory=Counter["Limit"])
    """What the import has made so far of that which is limited."""

    def reserve_name(self, preferred_name: str) -> str:
        """Return an unused name for a value."""
        return _reserve(self._value_names, preferred_name)

    def reserve_node_name(self, preferred_name: str) -> str:
        """Return an unused name for a node."""
        return _reserve(self._node_names, preferred_name)

    @property
    def constant_count(self) -> int:
        """Number of constants that have names of the model."""
        return len(self._constant_numbers)

    def number_of(self, constant: Constant) -> int:
        """Return the number of a constant that has a name of the model, in the order of naming."""
        return self._constant_numbers.setdefault(constant, len(self._constant_numbers))

    def count(self, limit: Limit, added: int) -> None:
        """Count nodes or, before they become arrays, the initialisers of a graph.

        An initialiser takes 20 µs to import, whatever its size.

        Raises:
            ModelFormatError: the limit is exceeded.
        """
        self._add(limit, added, "the model with its functions expanded has {}")

    def count_expanded(self, nodes: int, size_bytes: int, parts: int = 0) -> None:
        """Count nodes and bytes that functions and sparse tensors add to those in the file.

        The size of functions that call each other twice doubles at every level. ``parts`` are names
        and elements, which take time out of proportion to their bytes: many count as a node.

        Raises:
            ModelFormatError: a limit is exceeded.
        """
        problem = (
            "the functions and sparse tensors of the model expand to {}; simplify the functions, "
            "or split the model"
        )
        self._add(Limit.MAX_EXPANDED_NODES, nodes + parts // _PARTS_PER_NODE, problem)
        self._add(Limit.MAX_EXPANDED_BYTES, size_bytes, problem)

    def _add(self, limit: Limit, added: int, problem: str) -> None:
        self._counts[limit] += added
        if self._counts[limit] > limit.most:
            raise ModelFormatError(problem.format(limit.excess(self._counts[limit])))

    def afford(self, work: Dim) -> bool:
        """Return whether ``work`` more operations may be computed; if so, count them."""
        limit = Limit.MAX_FOLDED_WORK
        if not isinstance(work, int) or self._counts[limit] + work > limit.most:
            return False
        self._counts[limit] += work
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
    """Return an unused name, as ``unused_name``; a long one is shortened.

    Otherwise it would be the prefix of all names in a function's body.
    """
    if len(preferred_name) > _MAX_CHARACTERS:
        half = _MAX_CHARACTERS // 2
        preferred_name = f"{preferred_name[:half]}…{preferred_name[-half:]}"
    return unused_name(taken, preferred_name)


@dataclass(slots=True, eq=False)
class Scope:
    """The names that are visible to the nodes of one graph or function."""

    state: ImportState
    graph: Graph
    opsets: Mapping[str, int]
    parent: Scope | None = None
    """The scope around a region, whose values it captures. A function has none."""
    shares_graph: bool = False
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
                f"the functions and subgraphs nested at {self.prefix[:200]!r} have "
                f"{Limit.MAX_REGION_DEPTH.excess(self.depth)}; does a function call itself?"
            )

    def nested(self, graph: Graph, prefix: str, *, shares_graph: bool = False) -> Scope:
        """Return the scope of a region, into whose graph its nodes are added."""
        return Scope(
            self.state,
            graph,
            self.opsets,
            parent=self,
            shares_graph=shares_graph,
            prefix=prefix,
            references=self.references,
            depth=self.depth + 1,
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
                f"the node reads {name!r}, which is not an input of the model, an initializer or a "
                "node's output; the name is misspelled, or a part of the model is missing",
                node=reader,
            )
        outer = self.parent.lookup(name, reader)
        if self.shares_graph:
            return outer
        self.values[name] = None if outer is None else self._capture(name, outer)
        return self.values[name]

    def require(self, name: str, reader: str) -> Value:
        """Return the value called ``name``.

        Raises:
            GraphError: there is no such value.
            UnsupportedInputError: it is the result of a node that is not supported.
        """
        value = self.lookup(name, reader)
        if value is None:
            raise UnsupportedInputError
        return value

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
