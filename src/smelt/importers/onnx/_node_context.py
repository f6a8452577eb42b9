"""``NodeContext``: the inputs and attributes of one node, and the ops into which it is converted.

Converters emit ops through `NodeContext`. A result of small constants is computed at once, because
later shapes may depend on its elements. The computation is recorded as a recipe, so that weights
can still be refitted.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from smelt.errors import GraphError, ModelFormatError, ShapeError, UnsupportedError
from smelt.importers.onnx._tensors import dtype_from_onnx
from smelt.ir import Constant, Op, Value, fix_numbers
from smelt.ops import ALL_OPS
from smelt.types import Limit, TensorType, element_count, fixed_shape, symbols_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import ArrayLike, DTypeLike

    from smelt.importers.onnx._attributes import Attribute
    from smelt.importers.onnx._scope import Scope
    from smelt.ir import Array, Graph, Node
    from smelt.types import Dim

T = TypeVar("T")

_MAX_FOLDED_ELEMENTS = 4096
"""Largest number of elements of a result that is computed during the import."""
_MAX_INPUT_ELEMENTS = 1 << 16
"""Largest number of input elements of such a computation."""
_MAX_DIMENSION = 1 << 31
"""Exclusive limit of elements that are tracked as possible extents."""
REFUSALS = (ArithmeticError, LookupError, TypeError, ValueError)
"""Errors that invalid numbers cause in code that does not check them first."""


@cache
def op_classes() -> Mapping[str, type[Op]]:
    """Return the op classes by their ONNX names."""
    return {cls.__name__: cls for cls in ALL_OPS}


@dataclass(slots=True, eq=False)
class NodeContext:
    """A node of the model with its inputs as values of the graph, and checked attributes."""

    scope: Scope
    name: str
    op_type: str
    version: int
    inputs: list[Value | None]
    outputs: Sequence[str]
    attributes: dict[str, Attribute]
    emitted: list[Node] = field(default_factory=list["Node"])

    @property
    def where(self) -> str:
        """The node as shown in messages."""
        return f"{self.op_type} {self.name!r}"

    @property
    def graph(self) -> Graph:
        """The graph to which the node is added."""
        return self.scope.graph

    def shape_error(self, problem: str) -> ShapeError:
        """Return the error for a problem with the shapes of this node."""
        return ShapeError(problem, node=self.where)

    # ---- inputs and attributes

    def input(self, index: int) -> Value:
        """Return input ``index``.

        Raises:
            ModelFormatError: the input is absent.
        """
        value = self.optional(index)
        if value is None:
            raise ModelFormatError(f"{self.where}: input {index} is required but missing")
        return value

    def optional(self, index: int) -> Value | None:
        """Return input ``index``, or None if it is absent."""
        return self.inputs[index] if index < len(self.inputs) else None

    def elements(self, index: int) -> Array | None:
        """Return the elements of input ``index`` if they are known during the import, or None."""
        value = self.optional(index)
        fix_numbers(value)
        return None if value is None else self.scope.state.known(value)

    def attribute(self, name: str, kind: type[T], default: T | None = None) -> T:
        """Return an attribute, whose type the op's schema says.

        Raises:
            ModelFormatError: the attribute is absent and has no default.
        """
        value = self.attributes.get(name, default)
        if not isinstance(value, kind):
            raise ModelFormatError(f"{self.where}: attribute {name!r} is required but missing")
        return value

    def integer(self, name: str, default: int) -> int:
        """Return an integer attribute."""
        return self.attribute(name, int, default)

    def number(self, name: str, default: float) -> float:
        """Return a floating-point attribute."""
        return self.attribute(name, float, default)

    def text(self, name: str, default: str) -> str:
        """Return a string attribute."""
        return self.attribute(name, str, default)

    def integers(self, name: str) -> tuple[int, ...] | None:
        """Return an attribute that is a list of integers, or None if it is absent."""
        value = self.attributes.get(name)
        if not isinstance(value, tuple):
            return None
        return tuple(item for item in value if isinstance(item, int))

    def is_output_used(self, index: int) -> bool:
        """Return whether output ``index`` is named, so that it may be read."""
        return index < len(self.outputs) and bool(self.outputs[index])

    def without(self, *names: str) -> dict[str, Attribute]:
        """Return all attributes except those of the given names."""
        return {key: value for key, value in self.attributes.items() if key not in names}

    # ---- conversion to ops

    def emit(self, op: str, *inputs: Value | None, **attributes: object) -> Value:
        """Apply the op of an ONNX name, and return its first result."""
        return self.emit_all(op, *inputs, **attributes)[0]

    def emit_all(self, op: str, *inputs: Value | None, **attributes: object) -> list[Value]:
        """Apply the op of an ONNX name, and return its results.

        Raises:
            UnsupportedError: there is no such op, or it has no such attribute.
            GraphError: the op does not accept the inputs.
        """
        cls = op_classes().get(op)
        if cls is None:
            raise UnsupportedError(f"the op {op} is not supported")
        return self.apply(make_op(cls, op, attributes, self.where), *inputs)

    def apply(self, op: Op, *inputs: Value | None) -> list[Value]:
        """Apply an op, and return its results; they are constants if they could be computed."""
        operands = list(inputs)
        while operands and operands[-1] is None:
            operands.pop()
        try:
            node = self._add(op, operands)
        except ShapeError:
            # Inference may need elements that are known from shapes, so they become constants.
            constant_operands = [self._known_as_constant(value) for value in operands]
            if constant_operands == operands:
                raise
            node = self._add(op, constant_operands)
        folded = _fold(self.scope, node)
        if folded is not None:
            return folded
        self.emitted.append(node)
        return list(node.outputs)

    def constant(self, array: ArrayLike, dtype: DTypeLike | None = None) -> Value:
        """Add a constant."""
        elements = np.array(array, dtype)
        name = self.scope.state.reserve_name(f"{self.name}/constant")
        return self.graph.add_constant(elements, name)

    def integers_value(self, elements: Sequence[int]) -> Value:
        """Add a constant int64 vector."""
        return self.constant(np.array(elements, np.int64))

    def bound_symbol(self, count_symbol: str, extent: Dim, bound: Dim) -> None:
        """Declare an upper bound of an extent that is known only at run time.

        ``count_symbol`` is that of the op, with which the symbols of its results start.
        Extents that follow from the inputs, such as the trips of some Loops, need no bound.
        """
        made = re.compile(rf"{count_symbol}(_\d+_\d+)?")
        for name in symbols_of(extent):
            if made.fullmatch(name):
                for graph in (self.scope.state.root, self.graph):
                    graph.symbol_bounds.setdefault(name, bound)

    def _add(self, op: Op, inputs: Sequence[Value | None]) -> Node:
        """Add a node to the graph; errors name the node of the model."""
        self.scope.state.count(Limit.MAX_IMPORTED_NODES, 1)
        try:
            return self.graph.add(op, *inputs, name=self.name)
        except GraphError as error:
            if error.node is not None:
                raise
            raise type(error)(error.message, node=self.where) from error
        except REFUSALS as error:
            raise self.shape_error(f"the inputs of {op.name} are invalid: {error}") from error

    def _known_as_constant(self, value: Value | None) -> Value | None:
        """Return a constant with the elements of a value if they are known, or the value itself."""
        if value is None or value.constant is not None:
            return value
        state = self.scope.state
        elements = state.known(value)
        if elements is None:
            return value
        return self.graph.add_constant(elements, state.reserve_name(f"{value.name}/known"))


def make_op(cls: type[Op], name: str, attributes: Mapping[str, object], where: str) -> Op:
    """Return an op of a class with attributes.

    Raises:
        UnsupportedError: the op has no such attribute.
        ModelFormatError: a required attribute is missing.
        ShapeError: the values of the attributes are invalid.
    """
    fields = {entry.name: entry for entry in dataclasses.fields(cls) if entry.init}
    attributes = {
        key if key in fields else _snake_case(key): value for key, value in attributes.items()
    }
    unknown = sorted(set(attributes) - set(fields))
    if unknown:
        nouns, verb = ("attribute", "is") if len(unknown) == 1 else ("attributes", "are")
        raise UnsupportedError(f"{nouns} {', '.join(unknown)} of {name} {verb} not supported")
    for key, entry in fields.items():
        required = (
            entry.default is dataclasses.MISSING and entry.default_factory is dataclasses.MISSING
        )
        if required and key not in attributes:
            raise ModelFormatError(f"{where}: attribute {key!r} is required but missing")
    values = {
        key: _coerce(str(fields[key].type), value, where) for key, value in attributes.items()
    }
    try:
        return cls(**values)
    except GraphError as error:
        raise type(error)(error.message, node=where) from error
    except REFUSALS as error:
        raise ShapeError(f"the attributes of {name} are invalid: {error}", node=where) from error


def _snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def _coerce(annotation: str, value: object, where: str) -> object:
    """Convert an ONNX attribute to the type of the op's field."""
    type_name = annotation.split("|")[0].strip()
    if isinstance(value, int) and type_name == "bool":
        return bool(value)
    if isinstance(value, int) and not isinstance(value, bool) and type_name == "DType":
        return dtype_from_onnx(value, where)
    return value


def _fold(scope: Scope, node: Node) -> list[Value] | None:
    """Replace a node on small constants by its results, or record elements known from shapes."""
    arrays = _evaluate(scope, node)
    if arrays is None:
        return None
    if not all(value is None or value.constant is not None for value in node.inputs):
        fix_numbers(*node.inputs)
        for value, array in zip(node.outputs, arrays, strict=True):
            scope.state.set_known(value, array)
        return None
    constants = [None if value is None else value.constant for value in node.inputs]
    scope.graph.remove(node)
    names = [scope.state.reserve_name(f"{node.name}/folded") for _ in arrays]
    return [
        scope.graph.add_constant(Constant.derive(name, node.op, *constants, output=index))
        for index, name in enumerate(names)
    ]


def _evaluate(scope: Scope, node: Node) -> Sequence[Array] | None:
    """Return the results of a node if they are known and small, or None."""
    types = [value.type for value in node.outputs]
    tensors = [type_ for type_ in types if isinstance(type_, TensorType)]
    if node.op.regions or len(tensors) < len(types):
        return None
    # The extents count too, because a tensor without elements may still have a huge one.
    sizes = [size for tensor in tensors for size in (element_count(tensor.shape), *tensor.shape)]
    if any(not isinstance(size, int) or size > _MAX_FOLDED_ELEMENTS for size in sizes):
        return None
    if len(tensors) == 1:
        array = _from_dims(node.output.dims, tensors[0])
        if array is not None:
            return [array]
    inputs = [None if value is None else scope.state.known(value) for value in node.inputs]
    absent = [value is None for value in node.inputs]
    if not inputs or [array is None for array in inputs] != absent:
        return None
    if sum(array.size for array in inputs if array is not None) > _MAX_INPUT_ELEMENTS:
        return None
    operands = [None if value is None else value.operand for value in node.inputs]
    if not scope.state.afford(node.op.count_work(operands, types)):
        return None
    return _run_reference(node.op, inputs, tensors)


def _from_dims(dims: Sequence[Dim] | None, type_: TensorType) -> Array | None:
    """Return known dimensions as an array of a type, or None."""
    if dims is None or type_.rank > 1 or len(dims) != element_count(type_.shape):
        return None
    if not all(isinstance(dim, int) and abs(dim) < _MAX_DIMENSION for dim in dims):
        return None
    return np.array(dims, type_.dtype.numpy).reshape(fixed_shape(type_.shape))


def _run_reference(
    op: Op, inputs: Sequence[Array | None], types: Sequence[TensorType]
) -> Sequence[Array] | None:
    """Return the results of the op's reference, or None if it fails or returns other types."""
    try:
        with np.errstate(all="ignore"):
            arrays = op.reference(*inputs)
    except REFUSALS:
        return None  # the error is raised when the network runs, with the name of the node
    matches = len(arrays) == len(types) and all(
        array.shape == type_.shape and array.dtype == type_.dtype.numpy
        for array, type_ in zip(arrays, types, strict=False)
    )
    return arrays if matches else None
