"""What an import knows while it runs: names, problems, and which value a name stands for."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from smelt.errors import GraphError, ModelFormatError
from smelt.importers.onnx._types import SymbolTable
from smelt.ir import Value
from smelt.types import Limit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from onnx import AttributeProto, FunctionProto, GraphProto, TypeProto

    from smelt.importers.onnx._external_data import ExternalData
    from smelt.ir import Array, Graph
    from smelt.types import Dim, Guard

logger = logging.getLogger("smelt.importers.onnx")


_MAX_CHARACTERS = 1000
"""Of a name that is made here; the names of inputs and outputs stay what they are."""


class UnknownResult(Exception):
    """A result that cannot be known because of a problem that is noted already."""


FunctionKey = tuple[str, str, str]
"""Domain, name and overload."""


class GraphFiller(Protocol):
    """What turns the nodes of a message into nodes of a scope's graph."""

    def __call__(self, scope: Scope, proto: GraphProto, /) -> None:
        """Fill the scope."""
        ...


@dataclass(slots=True, eq=False)
class ImportState:
    """What all graphs of one import share."""

    external: ExternalData
    root: Graph
    """The network itself, around all regions."""
    fill: GraphFiller
    functions: Mapping[FunctionKey, FunctionProto] = field(
        default_factory=dict["FunctionKey", "FunctionProto"]
    )
    symbols: SymbolTable = field(default_factory=SymbolTable)
    problems: list[str] = field(default_factory=list[str])
    """One line for each node that nothing here can run."""
    _value_names: dict[str, int] = field(default_factory=dict[str, int])
    _node_names: dict[str, int] = field(default_factory=dict[str, int])
    _known: dict[Value, Array] = field(default_factory=dict["Value", "Array"])
    _read_while_importing: dict[Value, None] = field(default_factory=dict["Value", None])
    _node_count: int = 0
    _work: int = 0
    _expanded_nodes: int = 0
    _expanded_bytes: int = 0

    def reserve_name(self, preferred_name: str) -> str:
        """A name for a value that no other has."""
        return _reserve(self._value_names, preferred_name)

    def reserve_node_name(self, preferred_name: str) -> str:
        """A name for a node that no other has."""
        return _reserve(self._node_names, preferred_name)

    def count_node(self) -> None:
        """Note one node more. Raises ModelFormatError when there are too many."""
        self._node_count += 1
        if self._node_count > Limit.MAX_IMPORTED_NODES.most:
            detail = Limit.MAX_IMPORTED_NODES.excess(self._node_count)
            raise ModelFormatError(f"with its functions expanded the model has {detail}")

    def count_expanded(self, nodes: int, size_bytes: int) -> None:
        """Note what a function's body or a sparse tensor adds to what the file itself holds.

        Functions that call each other twice each double at every level.

        Raises ModelFormatError: there is too much of it.
        """
        self._expanded_nodes += nodes
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
        """Whether so many operations more may be computed now; if so, they are noted."""
        if not isinstance(work, int) or self._work + work > Limit.MAX_FOLDED_WORK.most:
            return False
        self._work += work
        return True

    def set_known(self, value: Value, array: Array) -> None:
        """Note the elements of a value that shapes determine."""
        self._known[value] = array

    def known(self, value: Value) -> Array | None:
        """Elements of a value that is constant or that shapes determine."""
        if value.constant is not None:
            return value.constant.array
        array = self._known.get(value)
        if array is not None:
            self._read_while_importing[value] = None
        return array

    def keep_guards(self) -> None:
        """Let the graph keep what the elements rest on that were read while it was imported.

        Who reads a constant instead of a value does not need the nodes that compute it.
        """
        guards: dict[Guard, None] = {}
        left = set(self.root.nodes)  # those of regions are run where they stand
        values = list(self._read_while_importing)
        while values:
            node = values.pop().producer
            if node is not None and node in left:
                left.remove(node)
                guards.update(dict.fromkeys(node.guards))
                values += [value for value in node.inputs if value is not None]
        self.root.guards = tuple(guards)


def _reserve(taken: dict[str, int], preferred_name: str) -> str:
    """The wish or, where it is taken, it with a number; ``taken`` knows the last number of each."""
    if (
        len(preferred_name) > _MAX_CHARACTERS
    ):  # a name of a megabyte would stand before those of every call
        preferred_name = (
            f"{preferred_name[: _MAX_CHARACTERS // 2]}…{preferred_name[-_MAX_CHARACTERS // 2 :]}"
        )
    name, number = preferred_name, taken.get(preferred_name, 1)
    while name in taken:
        number += 1
        name = f"{preferred_name}_{number}"
    taken[preferred_name] = number
    taken.setdefault(name, 1)
    return name


@dataclass(slots=True, eq=False)
class Scope:
    """The names that the nodes of one graph or function see."""

    state: ImportState
    graph: Graph
    opsets: Mapping[str, int]
    parent: Scope | None = None
    """The scope around a region; its values are captured. A function has none."""
    inlined: bool = False
    """Whether the nodes go into the graph of the scope around, so that nothing is captured."""
    prefix: str = ""
    """Stands before the names of nodes and values that the model does not show."""
    references: Mapping[str, AttributeProto] | None = None
    """Attributes of the call, within a function."""
    values: dict[str, Value | None] = field(default_factory=dict["str", "Value | None"])
    """None for a result of a node that nothing here can run."""
    captured: list[tuple[Value, Value]] = field(default_factory=list["tuple[Value, Value]"])
    """Values of the scopes around with the region's inputs that stand for them."""
    hints: dict[str, TypeProto] = field(default_factory=dict["str", "TypeProto"])
    """What the model declares of its values; believed only where nothing better is known."""
    depth: int = 0

    def __post_init__(self) -> None:
        if self.depth > Limit.MAX_REGION_DEPTH.most:
            raise ModelFormatError(
                f"functions and subgraphs are nested {Limit.MAX_REGION_DEPTH.excess(self.depth)}, "
                f"at {self.prefix[:200]!r}; does a function call itself?"
            )

    def lookup(self, name: str, reader: str) -> Value | None:
        """The value of a name, ours or of a scope around; None when it cannot be known.

        Raises GraphError: the name stands for nothing.
        """
        if name in self.values:
            return self.values[name]
        if self.parent is None:
            raise GraphError(
                f"it reads {name!r}, which is not an input, an initializer or a node's output; "
                "the name is misspelled, or a part of the model is missing",
                node=reader,
            )
        outer = self.parent.lookup(name, reader)
        if self.inlined:
            return outer
        self.values[name] = None if outer is None else self._capture(name, outer)
        return self.values[name]

    def _capture(self, name: str, outer: Value) -> Value:
        if outer.constant is not None:
            return Value(outer.name, outer.type, constant=outer.constant)
        inner = self.graph.add_input(name, outer.type)
        inner.dims = outer.dims
        known = self.state.known(outer)
        if known is not None:
            self.state.set_known(inner, known)
        self.captured.append((outer, inner))
        return inner
