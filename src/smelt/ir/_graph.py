"""The graph: mutable, compared by identity.

A ``Graph`` is a list of nodes in an order in which they can run. Values know their producer and
their users, so a rewrite is local. A constant is a value with a ``Constant``: an array, or a
recorded pure transform of other constants (its *recipe*), so that new weights can be pushed through
whatever the passes folded.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from smelt.errors import GraphError, InternalError, ShapeError
from smelt.ir._op import Operand
from smelt.types import TensorType

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from smelt.ir._op import Array, Op
    from smelt.types import Dim, ValueType


@dataclass(frozen=True, slots=True, eq=False)
class Recipe:
    """How a constant follows from others: result ``output`` of ``op`` on ``inputs``."""

    op: Op
    inputs: tuple[Constant | None, ...]
    output: int = 0


class Constant:
    """Elements known at build time: a named source, or derived from sources by a recipe.

    ``name`` is the name under which a source can be refitted. Derived arrays are computed when
    first asked for; their types are known without.
    """

    __slots__ = ("_array", "_type", "name", "recipe")

    def __init__(
        self, name: str, array: Array | None = None, *, recipe: Recipe | None = None
    ) -> None:
        if (array is None) == (recipe is None):
            raise InternalError(f"constant {name}: needs an array or a recipe, not both")
        self.name = name
        self.recipe = recipe
        self._array = array
        self._type: TensorType | None = None

    @property
    def array(self) -> Array:
        """The elements; read-only by convention."""
        if self._array is None:
            if self.recipe is None:
                raise InternalError(f"constant {self.name} has neither array nor recipe")
            arrays = [None if c is None else c.array for c in self.recipe.inputs]
            with np.errstate(all="ignore"):  # weights may be infinite; that is not ours to report
                made = self.recipe.op.reference(*arrays)[self.recipe.output]
            self._array = np.asarray(made, None, "C")
        return self._array

    def forget(self) -> None:
        """Let go of derived elements, and of those that they were derived from.

        They are computed anew when they are asked for again.
        """
        if self.recipe is not None and self._array is not None:
            self._array = None
            for constant in self.recipe.inputs:
                if constant is not None:
                    constant.forget()

    @property
    def type(self) -> TensorType:
        """Element type and shape."""
        if self._type is None:
            self._type = self._operand().tensor
        return self._type

    def _operand(self) -> Operand:
        """What is known of the constant without computing it."""
        if self.recipe is None:
            return Operand.constant(self.array)
        known = [None if c is None else c._operand() for c in self.recipe.inputs]
        made = Operand(self.recipe.op.infer(known)[self.recipe.output])
        # Shapes and axes decide what follows from them.
        if made.tensor.dtype.is_integer:
            return Operand.constant(self.array)
        return Operand(made.type, self._array)

    @staticmethod
    def derive(name: str, op: Op, *inputs: Constant | None, output: int = 0) -> Constant:
        """The constant that ``op`` makes of ``inputs``; the transform is recorded."""
        return Constant(name, recipe=Recipe(op, inputs, output))

    def sources(self) -> Iterator[Constant]:
        """The named arrays from which the constant follows, each once."""
        seen: set[int] = set()
        stack: list[Constant] = [self]
        while stack:
            constant = stack.pop()
            if id(constant) in seen:
                continue
            seen.add(id(constant))
            if constant.recipe is None:
                yield constant
            else:
                stack.extend(c for c in constant.recipe.inputs if c is not None)


@dataclass(slots=True, eq=False)
class Value:
    """A tensor of the network: an input, a constant, or a result of one node."""

    name: str
    type: ValueType
    producer: Node | None = None
    constant: Constant | None = None
    dims: tuple[Dim, ...] | None = None
    """Elements of an integer vector, where they are known as dimensions."""
    users: list[Node] = field(default_factory=list["Node"])
    """Nodes that read the value, once for each input that reads it."""

    @property
    def tensor(self) -> TensorType:
        """The type, which must be a tensor's. Raises GraphError."""
        if not isinstance(self.type, TensorType):
            raise GraphError(f"value {self.name} is a {self.type} where a tensor is needed")
        return self.type

    @property
    def operand(self) -> Operand:
        """What is known of the value, for inference."""
        if self.constant is not None:
            return Operand.constant(self.constant.array)
        return Operand(self.type, None, self.dims)


@dataclass(slots=True, eq=False)
class Node:
    """One application of an op; its inputs change only through the graph."""

    name: str
    op: Op
    inputs: list[Value | None]
    outputs: list[Value] = field(default_factory=list[Value])
    layers: tuple[str, ...] = ()
    """Names of the layers of the model that the node stands for, in order."""

    @property
    def output(self) -> Value:
        """The first result."""
        return self.outputs[0]

    def __str__(self) -> str:
        return f"{self.op.name} {self.name!r}"


@dataclass(slots=True, eq=False)
class Graph:
    """A network: its nodes in an order in which they can run."""

    name: str = "network"
    inputs: list[Value] = field(default_factory=list[Value])
    outputs: list[Value] = field(default_factory=list[Value])
    nodes: list[Node] = field(default_factory=list[Node])
    symbol_bounds: dict[str, int] = field(default_factory=dict[str, int])
    """Declared maximum of the symbols that a run itself determines (the count of
    NonMaxSuppression)."""

    def add_input(self, name: str, kind: ValueType) -> Value:
        """Append an input."""
        value = Value(name, kind)
        self.inputs.append(value)
        return value

    def add_constant(self, constant: Constant | Array, name: str = "constant") -> Value:
        """A value that holds a constant; it is no input and belongs to whoever reads it."""
        if not isinstance(constant, Constant):
            constant = Constant(name, constant)
        return Value(constant.name, constant.type, constant=constant)

    def add(
        self,
        op: Op,
        *inputs: Value | None,
        name: str,
        output_names: Sequence[str] = (),
        before: Node | None = None,
        layers: tuple[str, ...] | None = None,
    ) -> Node:
        """Add a node, last or ``before`` another, and infer the types of its results.

        Raises ShapeError: naming the node, when the op refuses the inputs.
        """
        node = Node(name, op, list(inputs), layers=(name,) if layers is None else layers)
        types, dims = infer_node(node)
        for index, kind in enumerate(types):
            default = name if len(types) == 1 else f"{name}:{index}"
            label = output_names[index] if index < len(output_names) else default
            node.outputs.append(Value(label, kind, producer=node))
        if dims is not None:
            node.outputs[0].dims = dims
        for value in inputs:
            if value is not None:
                value.users.append(node)
        position = len(self.nodes) if before is None else self.nodes.index(before)
        self.nodes.insert(position, node)
        return node

    def set_input(self, node: Node, index: int, value: Value | None) -> None:
        """Make input ``index`` of ``node`` read ``value``."""
        old = node.inputs[index]
        if old is not None:
            old.users.remove(node)
        node.inputs[index] = value
        if value is not None:
            value.users.append(node)

    def replace_uses(self, old: Value, new: Value) -> None:
        """Make every user of ``old``, and the graph's outputs, read ``new``."""
        for node in list(old.users):
            for index, value in enumerate(node.inputs):
                if value is old:
                    self.set_input(node, index, new)
        self.outputs = [new if value is old else value for value in self.outputs]

    def remove(self, node: Node) -> None:
        """Remove a node whose results nobody reads. Raises InternalError."""
        for value in node.outputs:
            if value.users or value in self.outputs:
                raise InternalError(f"{node} is removed while {value.name} is in use")
        for index in range(len(node.inputs)):
            self.set_input(node, index, None)
        self.nodes.remove(node)

    def remove_unused(self) -> list[Node]:
        """Remove every node that no output depends on; returns them."""
        wanted = set(map(id, self.outputs))
        dead: list[Node] = []
        for node in reversed(self.nodes):
            if any(id(v) in wanted for v in node.outputs):
                wanted.update(id(v) for v in node.inputs if v is not None)
            else:
                dead.append(node)
        for node in dead:
            self.remove(node)
        return dead

    def infer(self) -> None:
        """Infer every type again, in order. Raises ShapeError."""
        for node in self.nodes:
            types, dims = infer_node(node)
            for value, kind in zip(node.outputs, types, strict=True):
                value.type = kind
            node.outputs[0].dims = dims

    def is_output(self, value: Value) -> bool:
        """Whether the value leaves the graph."""
        return any(value is output for output in self.outputs)

    def constants(self) -> Iterator[Constant]:
        """The constants that nodes read, each once."""
        seen: set[int] = set()
        for value in self.values():
            if value.constant is not None and id(value.constant) not in seen:
                seen.add(id(value.constant))
                yield value.constant

    def values(self) -> Iterator[Value]:
        """Every value: inputs, then what each node reads first and what it makes; each once."""
        seen: set[int] = set()
        for value in self._all_values():
            if id(value) not in seen:
                seen.add(id(value))
                yield value

    def _all_values(self) -> Iterable[Value]:
        yield from self.inputs
        for node in self.nodes:
            yield from (v for v in node.inputs if v is not None)
            yield from node.outputs
        yield from self.outputs


def infer_node(node: Node) -> tuple[tuple[ValueType, ...], tuple[Dim, ...] | None]:
    """Types of the results of a node, and the first result's elements where they are dimensions."""
    operands = [None if value is None else value.operand for value in node.inputs]
    try:
        return node.op.infer(operands), node.op.infer_dims(operands)
    except ShapeError as error:
        shapes = ", ".join("-" if o is None else str(o.type) for o in operands)
        where = f"{node.op.name} {node.name!r}"
        raise ShapeError(f"{error.message} (inputs: {shapes})", node=where) from error
