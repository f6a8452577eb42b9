"""One node of the model while it is brought to ops: what it asks for, and what is made of it.

Converters emit ops through `NodeContext`. A result that follows from small constants is computed
at once,
because the shapes behind it depend on its elements; the transform is recorded, so that a weight
stays replaceable.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from smelt.errors import GraphError, ModelFormatError, ShapeError, UnsupportedError
from smelt.importers.onnx._tensors import dtype_from_onnx
from smelt.ir import Constant, Op, Value
from smelt.ops import ALL_OPS
from smelt.types import TensorType, element_count, fixed_shape, symbols_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from smelt.importers.onnx._attributes import Attribute
    from smelt.importers.onnx._scope import Scope
    from smelt.ir import Array, Graph, Node
    from smelt.types import Dim

_MAX_FOLDED_ELEMENTS = 4096
"""Most elements of a result that is computed at once."""
_MAX_READ = 1 << 16
"""Most elements from which it is computed."""
_LARGEST_DIM = 1 << 31
"""Above it an element is not an extent, and need not be followed."""
REFUSALS = (ArithmeticError, LookupError, TypeError, ValueError)
"""What numbers that mean nothing end in, where no check has met them before."""


@cache
def op_classes() -> Mapping[str, type[Op]]:
    """The ops by their ONNX names."""
    return {cls.__name__: cls for cls in ALL_OPS}


@dataclass(slots=True, eq=False)
class NodeContext:
    """A node of the model: inputs are values of the graph, attributes are checked."""

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
        """The node as messages show it."""
        return f"{self.op_type} {self.name!r}"

    @property
    def graph(self) -> Graph:
        """The graph into which the node goes."""
        return self.scope.graph

    # ---- what the node asks for

    def input(self, index: int) -> Value:
        """Input ``index``, which must be there. Raises ModelFormatError."""
        value = self.optional(index)
        if value is None:
            raise ModelFormatError(f"{self.where}: input {index} is required and missing")
        return value

    def optional(self, index: int) -> Value | None:
        """Input ``index``; None when it is absent."""
        return self.inputs[index] if index < len(self.inputs) else None

    def present(self) -> list[Value]:
        """All inputs, which must be there. Raises ModelFormatError."""
        return [self.input(index) for index in range(len(self.inputs))]

    def elements(self, index: int) -> Array | None:
        """Elements of input ``index``, where they are known now."""
        value = self.optional(index)
        return None if value is None else self.scope.state.known(value)

    def integer(self, name: str, default: int) -> int:
        """An integer attribute."""
        return cast("int", self.attributes.get(name, default))

    def number(self, name: str, default: float) -> float:
        """A floating-point attribute."""
        return cast("float", self.attributes.get(name, default))

    def text(self, name: str, default: str) -> str:
        """A string attribute."""
        return cast("str", self.attributes.get(name, default))

    def integers(self, name: str) -> tuple[int, ...] | None:
        """A list of integers; None when it is absent."""
        return cast("tuple[int, ...] | None", self.attributes.get(name))

    def is_output_used(self, index: int) -> bool:
        """Whether anything may read output ``index``."""
        return index < len(self.outputs) and bool(self.outputs[index])

    def without(self, *names: str) -> dict[str, Attribute]:
        """The attributes but for some."""
        return {key: value for key, value in self.attributes.items() if key not in names}

    # ---- what is made of it

    def emit(self, op: str, *inputs: Value | None, **attributes: object) -> Value:
        """Apply an op, named as in ONNX; returns its first result."""
        return self.emit_all(op, *inputs, **attributes)[0]

    def emit_all(self, op: str, *inputs: Value | None, **attributes: object) -> list[Value]:
        """Apply an op, named as in ONNX; returns its results.

        Raises UnsupportedError: there is no such op, or it has no such attribute.
        Raises GraphError: the op refuses the inputs.
        """
        return self.apply(make_op(op, attributes, self.where), *inputs)

    def apply(self, op: Op, *inputs: Value | None) -> list[Value]:
        """Apply an op; returns its results."""
        given = list(inputs)
        while given and given[-1] is None:
            given.pop()
        try:
            node = self._add(op, given)
        except ShapeError:
            # Elements that follow from fixed extents may be what the op needs to see.
            seen = [self._shown(value) for value in given]
            if seen == given:
                raise
            node = self._add(op, seen)
        folded = _fold(self.scope, node)
        if folded is not None:
            return folded
        self.emitted.append(node)
        return list(node.outputs)

    def constant(self, array: Array | Sequence[int] | float, dtype: object = None) -> Value:
        """A constant that the node brings along."""
        elements = np.array(array, cast("np.dtype[Any] | None", dtype))
        name = self.scope.state.reserve_name(f"{self.name}/constant")
        return self.graph.add_constant(elements, name)

    def integers_value(self, elements: Sequence[int]) -> Value:
        """A constant int64 vector."""
        return self.constant(np.array(elements, np.int64))

    def bound_symbol(self, counted: str, extent: Dim, bound: Dim) -> None:
        """Declare an upper bound of an extent that a run of the node determines.

        ``counted`` is the op's ``count_symbol``, with which the symbols of its results begin. An
        extent that follows from the inputs, as the trips of a Loop may, needs no bound.
        """
        for name in symbols_of(extent):
            if name == counted or name.startswith(f"{counted}_"):
                for graph in (self.scope.state.root, self.graph):
                    graph.symbol_bounds.setdefault(name, bound)

    def _add(self, op: Op, inputs: Sequence[Value | None]) -> Node:
        self.scope.state.count_node()
        try:
            return self.graph.add(op, *inputs, name=self.name)
        except GraphError as error:
            if error.node is not None:
                raise
            raise type(error)(error.message, node=self.where) from error
        except REFUSALS as error:
            raise ShapeError(
                f"the inputs of {op.name} are invalid: {error}", node=self.where
            ) from error

    def _shown(self, value: Value | None) -> Value | None:
        if value is None or value.constant is not None:
            return value
        elements = self.scope.state.known(value)
        if elements is None:
            return value
        return self.graph.add_constant(
            elements, self.scope.state.reserve_name(f"{value.name}/known")
        )


def make_op(name: str, attributes: Mapping[str, object], where: str) -> Op:
    """The op of an ONNX name with attributes.

    Raises UnsupportedError: there is no such op, or it has no such attribute.
    """
    cls = op_classes().get(name)
    if cls is None:
        raise UnsupportedError(f"smelt has no op {name}")
    return make_op_of(cls, name, attributes, where)


def make_op_of(cls: type[Op], name: str, attributes: Mapping[str, object], where: str) -> Op:
    """An op of a class with attributes. Raises UnsupportedError: it has no such attribute."""
    fields = {entry.name: entry for entry in dataclasses.fields(cls) if entry.init}
    attributes = {
        key if key in fields else _snake_case(key): value for key, value in attributes.items()
    }
    unknown = sorted(set(attributes) - set(fields))
    if unknown:
        raise UnsupportedError(f"attribute {', '.join(unknown)} of {name} is not supported")
    for key, entry in fields.items():
        required = (
            entry.default is dataclasses.MISSING and entry.default_factory is dataclasses.MISSING
        )
        if required and key not in attributes:
            raise ModelFormatError(f"{where}: attribute {key!r} is required and missing")
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
    """An ONNX attribute as the op's field has it."""
    kind = annotation.split("|")[0].strip()
    if isinstance(value, int) and kind == "bool":
        return bool(value)
    if isinstance(value, int) and not isinstance(value, bool) and kind == "DType":
        return dtype_from_onnx(value, where)
    return value


def _fold(scope: Scope, node: Node) -> list[Value] | None:
    """Replace a node on small constants by its results; note what fixed extents determine."""
    arrays = _evaluate(scope, node)
    if arrays is None:
        return None
    if not all(value is None or value.constant is not None for value in node.inputs):
        for value, array in zip(node.outputs, arrays, strict=True):
            scope.state.set_known(value, array)
        return None
    constants = [None if value is None else value.constant for value in node.inputs]
    scope.graph.remove(node)
    results: list[Value] = []
    for index in range(len(arrays)):
        name = scope.state.reserve_name(f"{node.name}/folded")
        results.append(
            scope.graph.add_constant(Constant.derive(name, node.op, *constants, output=index))
        )
    return results


def _evaluate(scope: Scope, node: Node) -> Sequence[Array] | None:
    kinds = [value.type for value in node.outputs]
    if node.op.regions or not all(isinstance(kind, TensorType) for kind in kinds):
        return None
    tensors = cast("list[TensorType]", kinds)
    counts = [element_count(tensor.shape) for tensor in tensors]
    if any(not isinstance(count, int) or count > _MAX_FOLDED_ELEMENTS for count in counts):
        return None
    extents = [extent for tensor in tensors for extent in tensor.shape]
    if any(not isinstance(extent, int) or extent > _MAX_FOLDED_ELEMENTS for extent in extents):
        return None  # a tensor without elements may still have a huge extent
    if len(tensors) == 1:
        array = _from_dims(node.output.dims, tensors[0])
        if array is not None:
            return [array]
    inputs = [None if value is None else scope.state.known(value) for value in node.inputs]
    absent = [value is None for value in node.inputs]
    if not inputs or [array is None for array in inputs] != absent:
        return None
    if sum(array.size for array in inputs if array is not None) > _MAX_READ:
        return None
    operands = [None if value is None else value.operand for value in node.inputs]
    if not scope.state.afford(node.op.count_work(operands, kinds)):
        return None
    return _run_reference(node.op, inputs, tensors)


def _from_dims(dims: Sequence[Dim] | None, kind: TensorType) -> Array | None:
    if dims is None or kind.rank > 1 or len(dims) != element_count(kind.shape):
        return None
    if not all(isinstance(dim, int) and abs(dim) < _LARGEST_DIM for dim in dims):
        return None
    return np.array(dims, kind.dtype.numpy).reshape(fixed_shape(kind.shape))


def _run_reference(
    op: Op, inputs: Sequence[Array | None], kinds: Sequence[TensorType]
) -> Sequence[Array] | None:
    try:
        with np.errstate(all="ignore"):
            arrays = op.reference(*inputs)
    except REFUSALS:
        return None  # what cannot be computed now fails where it is run, with its node's name
    fits = len(arrays) == len(kinds) and all(
        array.shape == kind.shape and array.dtype == kind.dtype.numpy
        for array, kind in zip(arrays, kinds, strict=False)
    )
    return arrays if fits else None
