"""The graph: mutable, compared by identity.

A ``Graph`` is a list of nodes in topological order. Values refer to their producer and their users,
so a rewrite is local. A constant is a value with a ``Constant``: an array, or a recorded pure
transform of other constants (its *recipe*). A refit computes recipes again from the new weights, so
that they pass through everything that the passes folded.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from smelt.errors import GraphError, InternalError, ShapeError
from smelt.ir._op import Array, Op, Operand, evaluate
from smelt.types import DType, Guard, Limit, TensorType, assume_at_least, collect_guards, may_follow

if TYPE_CHECKING:
    from smelt.types import Dim, ValueType


@dataclass(frozen=True, slots=True, eq=False)
class Recipe:
    """Derivation of a constant from others: result ``output`` of ``op`` on ``inputs``."""

    op: Op
    inputs: tuple[Constant | None, ...]
    output: int = 0


class Constant:
    """Elements known at build time: a named source, or derived from sources by a recipe.

    ``name`` is the name under which a source can be refitted. A derived array is computed on first
    access; its type is inferred without computing it.
    """

    __slots__ = ("_array", "_type", "is_fixed", "name", "recipe")

    def __init__(
        self, name: str, array: Array | None = None, *, recipe: Recipe | None = None
    ) -> None:
        if (array is None) == (recipe is None):
            raise InternalError(f"constant {name} must have either an array or a recipe")
        self.name = name
        self.recipe = recipe
        self.is_fixed = False
        """Whether the build made a decision from the elements of this source; refits keep them."""
        self._array = array
        self._type: TensorType | None = None

    @property
    def array(self) -> Array:
        """Elements of the constant; read-only by convention."""
        if self._array is None:
            for part in sources_first(self, is_known=lambda c: c._array is not None):
                part._array = part._compute()
        if self._array is None:
            raise InternalError(f"constant {self.name} has neither an array nor a recipe")
        return self._array

    def fix(self) -> Array:
        """Return the elements for a decision on the network, which a refit must not change.

        All that the build takes from elements other than weights for kernels is such a decision;
        ``array`` is for weights, for checks that a refit repeats, and for decisions not yet made.
        """
        if not self.is_fixed:
            for source in self.sources():
                source.is_fixed = True
            self.is_fixed = True
        return self.array

    def _compute(self) -> Array:
        """Return the elements; those of the recipe's inputs must have been computed."""
        if self.recipe is None:
            raise InternalError(f"constant {self.name} has neither an array nor a recipe")
        arrays = [None if c is None else c.array for c in self.recipe.inputs]
        op = self.recipe.op
        result = evaluate(op, arrays, f"{op.name} {self.name!r}")[self.recipe.output]
        return np.asarray(result, None, "C")

    def forget(self) -> None:
        """Free the derived elements of this constant and of the constants it is derived from.

        They are computed again on the next access.
        """
        stack: list[Constant] = [self]
        while stack:
            part = stack.pop()
            if part.recipe is not None and part._array is not None:
                part._array = None
                stack.extend(c for c in part.recipe.inputs if c is not None)

    @property
    def type(self) -> TensorType:
        """Element type and shape."""
        if self._type is None:
            for part in sources_first(self, is_known=lambda c: c._type is not None):
                part._type = part._infer()
        if self._type is None:
            raise InternalError(f"constant {self.name} has no type")
        return self._type

    def _infer(self) -> TensorType:
        """Return the type, inferred from the operands of the recipe."""
        if self.recipe is None:
            return Operand.constant(self.array).tensor
        op = self.recipe.op
        operands = [None if c is None else c._operand() for c in self.recipe.inputs]
        try:
            return Operand(op.infer(operands)[self.recipe.output]).tensor
        except ShapeError as error:
            raise ShapeError(error.message, node=f"{op.name} {self.name!r}") from error

    def _operand(self) -> Operand:
        """Return the operand for inference; integers are computed, for shapes depend on them."""
        if self.recipe is None or self.type.dtype.is_integer:
            return Operand.constant(self.array)
        return Operand(self.type, self._array)

    @staticmethod
    def derive(name: str, op: Op, *inputs: Constant | None, output: int = 0) -> Constant:
        """Return the constant that ``op`` computes from ``inputs``, with the recipe recorded.

        The result of an op that is no step of recipes is computed at once; it and the sources
        cannot be refitted.
        """
        derived = Constant(name, recipe=Recipe(op, inputs, output))
        if op.is_recipe_step:
            return derived
        constant = Constant(name, derived.fix())
        constant.is_fixed = True
        return constant

    def sources(self) -> Iterator[Constant]:
        """Return the source constants from which the constant is derived, each once."""
        return (constant for constant in sources_first(self) if constant.recipe is None)


def sources_first(
    *constants: Constant, is_known: Callable[[Constant], bool] = lambda _: False
) -> Iterator[Constant]:
    """Yield the constants and all constants they are derived from, each once, in dependency order.

    The traversal is iterative because recipes may be deeper than the recursion limit. Constants for
    which ``is_known`` is true are skipped together with the constants they are derived from.
    """
    done: set[Constant] = set()
    stack = [(constant, False) for constant in reversed(constants)]
    while stack:
        part, is_ready = stack.pop()
        if part in done or is_known(part):
            continue
        if is_ready or part.recipe is None:
            done.add(part)
            yield part
        else:
            stack.append((part, True))
            stack.extend((c, False) for c in reversed(part.recipe.inputs) if c is not None)


@dataclass(slots=True, eq=False, repr=False)
class Value:
    """Value of the network: an input, a constant, or a result of one node."""

    name: str
    type: ValueType
    producer: Node | None = None
    constant: Constant | None = None
    dims: tuple[Dim, ...] | None = None
    """Elements of an integer scalar or vector as dimensions, if they are known."""
    users: list[Node] = field(default_factory=list["Node"])
    """Nodes that read the value, one entry for each input that reads it."""
    storage: DType = DType.FLOAT32
    """Type in which backends store the value if its type is float32."""

    @property
    def tensor(self) -> TensorType:
        """Type of the value as a tensor type. Raises GraphError when it is another type."""
        if not isinstance(self.type, TensorType):
            raise GraphError(f"value {self.name} must be a tensor, not {self.type}")
        return self.type

    @property
    def operand(self) -> Operand:
        """Operand for inference: the type and, if known, the elements or dimensions."""
        if self.constant is not None:
            array = self.constant.array
            return Operand(Operand.constant(array).type, array, fix=self.constant.fix)
        if self.dims is None:
            return Operand(self.type)
        return Operand(self.type, None, self.dims, self._fix_origin)

    def _fix_origin(self) -> None:
        """Exclude from refits what known dimensions follow from.

        Other nodes than those on constants alone have excluded it when they were inferred.
        """
        inputs = [] if self.producer is None else [v for v in self.producer.inputs if v is not None]
        if all(value.constant is not None for value in inputs):
            fix_numbers(*inputs)

    def __repr__(self) -> str:
        # A value refers to its whole network through its nodes, so these are not printed.
        return f"<Value {self.name!r}: {self.type}>"


def fix_numbers(*values: Value | None) -> None:
    """Exclude constants among values from refits: the build depends on their elements."""
    for value in values:
        if value is not None and value.constant is not None:
            value.constant.fix()


@dataclass(slots=True, eq=False, repr=False)
class Node:
    """Application of an op to inputs, which only methods of the graph may change."""

    name: str
    op: Op
    inputs: list[Value | None]
    outputs: list[Value] = field(default_factory=list[Value])
    layers: tuple[str, ...] = ()
    """Names of the layers of the model that the node computes, in order."""
    guards: tuple[Guard, ...] = ()
    """Conditions on symbols that the inferred types depend on."""
    precision: DType = DType.FLOAT32
    """Type in which kernels read float32 inputs, and multiply them."""

    @property
    def output(self) -> Value:
        """First result of the node."""
        return self.outputs[0]

    def infer(self) -> None:
        """Infer the types of the results again. Raises ShapeError when the inputs do not fit."""
        inferred = infer_node(self)
        for value, kind in zip(self.outputs, inferred.types, strict=True):
            value.type = kind
        self.outputs[0].dims = inferred.dims
        self.guards = inferred.guards

    def __str__(self) -> str:
        return f"{self.op.name} {self.name!r}"

    def __repr__(self) -> str:
        return f"<Node {self}>"


@dataclass(slots=True, eq=False, repr=False)
class Graph:
    """Network: inputs, outputs, and nodes in topological order."""

    name: str = "network"
    inputs: list[Value] = field(default_factory=list[Value])
    outputs: list[Value] = field(default_factory=list[Value])
    nodes: list[Node] = field(default_factory=list[Node])
    symbol_bounds: dict[str, Dim] = field(default_factory=dict[str, "Dim"])
    """Upper bound of each symbol that only a run determines, such as the count of NonZero. A bound
    may depend on symbols of the inputs and on symbols that are bounded earlier."""
    guards: tuple[Guard, ...] = ()
    """Guards beyond those of the nodes: from nodes that were folded into constants."""

    def __repr__(self) -> str:
        counts = f"{len(self.inputs)} inputs, {len(self.nodes)} nodes, {len(self.outputs)} outputs"
        return f"<Graph {self.name!r}: {counts}>"

    def add_input(self, name: str, kind: ValueType) -> Value:
        """Append an input and return its value."""
        value = Value(name, kind)
        self.inputs.append(value)
        return value

    def add_constant(self, constant: Constant | Array, name: str | None = None) -> Value:
        """Return a value that holds a constant; it belongs to the nodes that read it.

        Its name is by default that of the constant, by which the constant is refitted.
        """
        if not isinstance(constant, Constant):
            constant = Constant("constant" if name is None else name, constant)
        return Value(constant.name if name is None else name, constant.type, constant=constant)

    def add(
        self,
        op: Op,
        *inputs: Value | None,
        name: str,
        output_names: Sequence[str] = (),
        before: Node | None = None,
        layers: tuple[str, ...] | None = None,
    ) -> Node:
        """Add a node at the end or ``before`` another node, and infer the types of its results.

        Raises ShapeError, which names the node, when the inputs do not fit the op.
        """
        node = Node(name, op, list(inputs), layers=(name,) if layers is None else layers)
        inferred = infer_node(node)
        for index, kind in enumerate(inferred.types):
            default = name if len(inferred.types) == 1 else f"{name}:{index}"
            label = output_names[index] if index < len(output_names) else default
            node.outputs.append(Value(label, kind, producer=node))
        if inferred.dims is not None:
            node.outputs[0].dims = inferred.dims
        node.guards = inferred.guards
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

    def replace_reads(self, old: Value, new: Value) -> None:
        """Make every user of ``old`` read ``new``; outputs of the graph keep ``old``."""
        for node in list(old.users):
            for index, value in enumerate(node.inputs):
                if value is old:
                    self.set_input(node, index, new)

    def replace_uses(self, old: Value, new: Value) -> None:
        """Make every user of ``old``, and the graph's outputs, read ``new``."""
        self.replace_reads(old, new)
        self.outputs = [new if value is old else value for value in self.outputs]

    def remove(self, node: Node) -> None:
        """Remove a node whose results are not read. Raises InternalError when one is in use."""
        for value in node.outputs:
            if value.users or value in self.outputs:
                raise InternalError(f"{node} cannot be removed: its result {value.name} is in use")
        for source in node.inputs:
            if source is not None:
                _remove(source.users, node)
        node.inputs = [None] * len(node.inputs)
        _remove(self.nodes, node)

    def live_nodes(self, results: Sequence[Value] | None = None) -> list[Node]:
        """Return the nodes on which results, by default the outputs, depend, in order."""
        wanted = set(self.outputs if results is None else results)
        live: list[Node] = []
        for node in reversed(self.nodes):
            if any(v in wanted for v in node.outputs):
                wanted.update(v for v in node.inputs if v is not None)
                live.append(node)
        return live[::-1]

    def remove_unused(self) -> list[Node]:
        """Remove all nodes on which no output depends, and return them."""
        live = set(self.live_nodes())
        dead = [node for node in reversed(self.nodes) if node not in live]
        users = {value: value.users for node in dead for value in node.inputs if value is not None}
        for value, nodes in users.items():
            value.users = [node for node in nodes if node in live]
        for node in dead:
            node.inputs = [None] * len(node.inputs)
        self.nodes = [node for node in self.nodes if node in live]
        return dead

    def infer(self) -> None:
        """Infer all types again, in order. Raises ShapeError when inputs do not fit an op."""
        for node in self.nodes:
            node.infer()

    def is_output(self, value: Value) -> bool:
        """Return whether the value is an output of the graph."""
        return any(value is output for output in self.outputs)

    def constants(self) -> Iterator[Constant]:
        """Yield the constants that nodes or outputs read, each once."""
        found = (value.constant for value in self.values() if value.constant is not None)
        yield from dict.fromkeys(found)

    def values(self) -> Iterator[Value]:
        """Yield all values, each once: inputs, then for each node its inputs and its results."""
        yield from dict.fromkeys(self._all_values())

    def values_by_name(self) -> dict[str, Value]:
        """Return the values by name; an input or a result precedes a constant of the same name."""
        values = sorted(self.values(), key=lambda value: value.constant is None)
        return {value.name: value for value in values}

    def _all_values(self) -> Iterable[Value]:
        yield from self.inputs
        for node in self.nodes:
            yield from (v for v in node.inputs if v is not None)
            yield from node.outputs
        yield from self.outputs


@dataclass(frozen=True, slots=True)
class Inferred:
    """Result of the type and shape inference of one node."""

    types: tuple[ValueType, ...]
    """Types of the results."""
    dims: tuple[Dim, ...] | None
    """Elements of the first result as dimensions, if they are known."""
    guards: tuple[Guard, ...]
    """Conditions on symbols that the types depend on."""


def infer_node(node: Node) -> Inferred:
    """Infer the results of a node from its operands. Raises ShapeError, which names the node."""
    operands = [None if value is None else value.operand for value in node.inputs]
    where = f"{node.op.name} {node.name!r}"
    try:
        with collect_guards() as guards:
            types, dims = node.op.infer_results(operands)
            for index, kind in enumerate(types):
                if isinstance(kind, TensorType):
                    _check_extents(kind, index)
            dims = _fitting_dims(types, dims) if dims is None or may_follow(dims) else None
    except ShapeError as error:
        shapes = ", ".join("-" if o is None else str(o.type) for o in operands)
        raise ShapeError(f"{error.message} (inputs: {shapes})", node=where) from error
    return Inferred(types, dims, tuple(dataclasses.replace(g, node=where) for g in guards))


def _check_extents(kind: TensorType, result: int) -> None:
    """Check that no extent of a result is negative; record guards if symbols decide it.

    A result above MAX_TENSOR_BYTES is refused before its size is used in any computation.
    """
    for axis, extent in enumerate(kind.shape):
        if not assume_at_least(extent, 0, f"axis {axis} of result {result}"):
            raise ShapeError(f"axis {axis} of result {result} is {extent}, which is negative")
    fixed = [extent for extent in kind.shape if isinstance(extent, int)]
    # With an extent of 0, the other extents are still used as loop bounds and strides.
    size = math.prod(fixed) * kind.dtype.size_bytes
    largest = max([size, *fixed])
    if largest > Limit.MAX_TENSOR_BYTES.most:
        detail = Limit.MAX_TENSOR_BYTES.excess(largest)
        raise ShapeError(f"result {result} is {kind}, which does not fit into memory: {detail}")


def _fitting_dims(
    types: Sequence[ValueType], dims: tuple[Dim, ...] | None
) -> tuple[Dim, ...] | None:
    """Return the known elements if the dtype of the result can represent them, otherwise None.

    A shape computed from elements that wrap around would be wrong, so elements that overflow become
    unknown. If symbols decide whether they fit into a type narrower than int64, a guard assumes it.
    Raises ShapeError when a symbolic element overflows int64.
    """
    first = types[0] if types else None
    if dims is None or not isinstance(first, TensorType) or not first.dtype.is_integer:
        return dims
    if first.dtype is DType.INT64:
        return dims if _fit_int64(dims) else None
    with collect_guards():
        is_held = _assume_fits_dtype(dims, first.dtype)
    return dims if is_held and _assume_fits_dtype(dims, first.dtype) else None


def _remove(nodes: list[Node], node: Node) -> None:
    """Remove a node, mostly the last: a builder removes what it has just added."""
    if nodes and nodes[-1] is node:
        nodes.pop()
    else:
        nodes.remove(node)


def _assume_fits_dtype(dims: Sequence[Dim], dtype: DType) -> bool:
    """Return whether a dtype can represent the elements; record a guard if symbols decide it."""
    limits = np.iinfo(dtype.numpy)
    what = f"an element of the result, which must fit into {dtype.value}"
    low, high = int(limits.min), int(limits.max)
    return all(assume_at_least(high, dim, what) and assume_at_least(dim, low, what) for dim in dims)


def _fit_int64(dims: Sequence[Dim]) -> bool:
    """Return whether int64 can represent the elements; one that wraps is not known as a dimension.

    Raises ShapeError when an element depends on a symbol by a factor that int64 cannot represent:
    the error says more than that of the op that needs the element.
    """
    for dim in dims:
        factors = [dim] if isinstance(dim, int) else [factor for _, factor in dim.terms]
        if not all(-(1 << 63) <= factor < 1 << 63 for factor in factors):
            if isinstance(dim, int):
                return False
            raise ShapeError(f"an element of the result is {dim}, which does not fit into int64")
    return True
