"""What an import knows while it runs: names, problems, and which value a name stands for."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from smelt.errors import GraphError, ModelFormatError
from smelt.importers.onnx._types import SymbolTable
from smelt.ir import Value

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from onnx import AttributeProto, FunctionProto, GraphProto, TypeProto

    from smelt.ir import Array, Graph

logger = logging.getLogger("smelt.importers.onnx")

_DEEPEST = 40
"""Most functions and regions within each other."""
_MOST_NODES = 1_000_000
"""Most nodes of a network, functions expanded: a few that call each other would fill the memory."""


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

    folder: Path | None
    root: Graph
    """The network itself, around all regions."""
    fill: GraphFiller
    functions: Mapping[FunctionKey, FunctionProto] = field(
        default_factory=dict["FunctionKey", "FunctionProto"]
    )
    symbols: SymbolTable = field(default_factory=SymbolTable)
    problems: list[str] = field(default_factory=list[str])
    """One line for each node that nothing here can run."""
    _value_names: set[str] = field(default_factory=set[str])
    _node_names: set[str] = field(default_factory=set[str])
    _known: dict[int, tuple[Value, Array]] = field(
        default_factory=dict["int", "tuple[Value, Array]"]
    )
    _node_count: int = 0

    def reserve_name(self, wish: str) -> str:
        """A name for a value that no other has."""
        return _reserve(self._value_names, wish)

    def reserve_node_name(self, wish: str) -> str:
        """A name for a node that no other has."""
        return _reserve(self._node_names, wish)

    def count_node(self) -> None:
        """Note one node more. Raises ModelFormatError when there are too many."""
        self._node_count += 1
        if self._node_count > _MOST_NODES:
            raise ModelFormatError(
                f"with its functions expanded the model has more than {_MOST_NODES} nodes; is it "
                "hostile?"
            )

    def set_known(self, value: Value, array: Array) -> None:
        """Note the elements of a value that shapes determine."""
        self._known[id(value)] = (value, array)

    def known(self, value: Value) -> Array | None:
        """Elements of a value that is constant or that shapes determine."""
        if value.constant is not None:
            return value.constant.array
        entry = self._known.get(id(value))
        return None if entry is None else entry[1]


def _reserve(taken: set[str], wish: str) -> str:
    name, number = wish, 2
    while name in taken:
        name, number = f"{wish}_{number}", number + 1
    taken.add(name)
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
        if self.depth > _DEEPEST:
            raise ModelFormatError(
                f"functions or regions lie more than {_DEEPEST} deep in {self.prefix[:200]!r}; "
                "does one call itself?"
            )

    def lookup(self, name: str, reader: str) -> Value | None:
        """The value of a name, ours or of a scope around; None when it cannot be known.

        Raises GraphError: the name stands for nothing.
        """
        if name in self.values:
            return self.values[name]
        if self.parent is None:
            raise GraphError(
                f"it reads {name!r}, which is no input, no weight and no node's result; a name is "
                "mistyped "
                "or a part of the model is missing",
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
