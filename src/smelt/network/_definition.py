"""``NetworkBase``: a graph presented as named layers and tensors."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from math import prod
from typing import TYPE_CHECKING, Any, Literal, Self, cast

import numpy as np

from smelt.errors import GraphError, ShapeError
from smelt.ir import Array, Constant, Graph, Node, Op, Value
from smelt.network._caller_location import atomic, caller_location, located
from smelt.network._tensor import Layer, Tensor
from smelt.ops import checked_op
from smelt.types import (
    DType,
    SymbolicDim,
    TensorType,
    format_integer,
    is_float_dtype,
    require_array,
    require_choice,
    require_int,
    require_list,
    require_str,
    shown,
)

if TYPE_CHECKING:
    from smelt.types import Dim, Shape

BATCH = "batch"
"""Name of the symbolic dimension that stands for an implicit batch."""
_MAX_ELEMENTS = 1 << 30
"""Exclusive limit of the product of an input's static extents, in elements."""


class NetworkBase:
    """The names, inputs, outputs and nodes of a network under construction."""

    def __init__(
        self,
        name: str = "network",
        batch: Literal["implicit", "explicit"] = "implicit",
        *,
        tensor_name_format: str = "{layer}",
    ) -> None:
        """Create an empty network.

        Args:
            name: name of the network and of its engines.
            batch: ``"implicit"`` if shapes omit the batch axis, ``"explicit"`` if they include it.
            tensor_name_format: format of the name of a layer's only result; ``{layer}`` and
                ``{index}`` are replaced. The results of a layer with several results are named
                ``layer:index``.

        Raises:
            GraphError: ``name``, ``batch`` or ``tensor_name_format`` is invalid.
        """
        self._graph = Graph(require_str(name, "the network's name", GraphError))
        self._batch = _batch(batch)
        self._tensor_name_format = _checked_template(tensor_name_format)
        self._tensors: dict[Value, Tensor] = {}
        self._values: dict[str, Value] = {}
        self._layer_names: set[str] = set()
        self._numbers: dict[str, int] = {}
        self._kinds: dict[str, str] = {}
        self._locations: dict[str, str] = {}
        self._default_names: set[Value] = set()
        """Values whose name was derived from their layer's name and follows when it is renamed."""

    @classmethod
    def from_graph(cls, graph: Graph) -> Self:
        """Return a network that wraps ``graph``; the graph is not copied.

        The batch is implicit if the first axis of an input is the symbol ``batch``.
        """
        symbol = SymbolicDim.symbol(BATCH)
        implicit = any(value.tensor.shape[:1] == (symbol,) for value in graph.inputs)
        network = cls(graph.name, "implicit" if implicit else "explicit")
        network._graph = graph
        network._values = graph.values_by_name()
        network._layer_names = {_layer_of(node) for node in graph.nodes}
        return network

    # ---- contents

    @property
    def name(self) -> str:
        """Name of the network."""
        return self._graph.name

    @property
    def batch(self) -> str:
        """``implicit`` or ``explicit``."""
        return self._batch

    @property
    def graph(self) -> Graph:
        """The underlying graph, which this object wraps without copying."""
        return self._graph

    @property
    def inputs(self) -> list[Tensor]:
        """The inputs, in the order in which they were added."""
        return [self.tensor(value) for value in self._graph.inputs]

    @property
    def outputs(self) -> list[Tensor]:
        """The outputs, in the order in which they were marked."""
        return [self.tensor(value) for value in self._graph.outputs]

    @property
    def layers(self) -> list[Layer]:
        """The layers, in execution order."""
        groups: dict[str, list[Node]] = {}
        for node in self._graph.nodes:
            groups.setdefault(_layer_of(node), []).append(node)
        return [self._layer(name, nodes) for name, nodes in groups.items()]

    def find(self, name: str) -> Tensor | None:
        """Return the tensor called ``name``, or None; weights are not tensors of the network."""
        value = self._values.get(require_str(name, "a tensor's name", GraphError))
        return None if value is None or value.constant is not None else self.tensor(value)

    def find_layer(self, name: str) -> Layer | None:
        """Return the layer called ``name``, or None."""
        require_str(name, "a layer's name", GraphError)
        return next((layer for layer in self.layers if layer.name == name), None)

    def tensor(self, value: Value) -> Tensor:
        """Return the ``Tensor`` that wraps a value of the graph; the same object on every call."""
        return self._tensors.setdefault(value, Tensor(self, value))

    def __repr__(self) -> str:
        return (
            f"NetworkDefinition({self.name!r}, {len(self._graph.nodes)} nodes, "
            f"inputs={self.inputs}, outputs={self.outputs})"
        )

    # ---- inputs and outputs

    @located
    def add_input(
        self,
        name: str,
        dtype: str | DType | np.dtype[np.generic],
        shape: Sequence[int | str],
        *,
        batch: Literal["implicit", "explicit"] | None = None,
    ) -> Tensor:
        """Add an input.

        Args:
            name: name of the tensor, which becomes the name of the engine's binding.
            dtype: element type, for example ``"float32"``.
            shape: extents, for example (C, H, W); an implicit batch is omitted.
            batch: ``"explicit"`` for a complete shape; None selects the mode of the network. The
                first input may set the mode, and all later inputs must have the same.

        Raises:
            ShapeError: an extent is invalid, or the tensor would have too many elements.
            GraphError: the name is already used, or ``batch`` differs from that of the first input.
        """
        if batch is not None:
            self._decide_batch(batch)
        value = Value(name, TensorType(_dtype(dtype), self._full_shape(shape)))
        self._register_name(name, value)
        self._graph.inputs.append(value)
        return self.tensor(value)

    def _decide_batch(self, batch: Literal["implicit", "explicit"]) -> None:
        """Set the batch mode if there is no input yet; check it otherwise."""
        _batch(batch)
        if batch != self._batch and self._graph.inputs:
            raise GraphError(
                f"batch is {batch!r}; it must be {self._batch!r}, as for the first input of the "
                "network"
            )
        self._batch = batch

    @located
    def mark_output(self, tensor: Tensor) -> None:
        """Make a tensor an output of the network; marking a tensor twice has no effect.

        A network may have any number of outputs.

        Raises:
            GraphError: the tensor is an input, or belongs to another network.
        """
        value = self.value_of(tensor)
        if value.producer is None:
            raise GraphError(
                f"input {value.name!r} cannot be an output itself; add an Identity and mark its "
                "result"
            )
        if not self._graph.is_output(value):
            self._graph.outputs.append(value)

    # ---- layers

    @atomic
    def add(
        self, op: Op, *inputs: Tensor | Array | None, name: str | None = None
    ) -> Tensor | tuple[Tensor, ...]:
        """Add a layer that computes an op: ``network.add(ops.Elu(alpha=0.5), x)``.

        Args:
            op: the op to apply.
            inputs: tensors, or arrays, which become constants; None omits an optional input.
            name: name of the layer; by default the op's name and a number.

        Returns:
            The result, or a tuple of results if the op has several.

        Raises:
            GraphError: ``op`` is not an op, an operand is invalid, or the name is already used.
            ShapeError: the op cannot be applied to the shapes and types of its inputs.
        """
        if not isinstance(argument := cast("object", op), Op):
            raise GraphError(
                "NetworkDefinition.add expects an op such as ops.Elu(alpha=0.5), not "
                f"{shown(argument)}"
            )
        label = self.begin(name, op.name)
        values = [
            array if array is None else self._operand(array, f"{label}.{index}")
            for index, array in enumerate(inputs)
        ]
        results = self.apply(label, op.name, op, *values)
        return results[0] if len(results) == 1 else tuple(results)

    # ---- called by the methods that add layers

    def apply(
        self, layer: str, kind: str, op: Op, *inputs: Value | None, part: str = ""
    ) -> list[Tensor]:
        """Add a node to a layer.

        ``part`` distinguishes the names of a layer's nodes; the last node, which produces the
        result, has an empty ``part``.
        """
        node_name = f"{layer}/{part}" if part else layer
        node = self._graph.add(checked_op(op), *inputs, name=node_name, layers=(layer,))
        if not part and len(node.outputs) == 1:
            node.output.name = self._tensor_name_format.format(layer=layer, index=0)
            self._default_names.add(node.output)
        for value in node.outputs:
            self._register_name(value.name, value)
        self._locations[layer], self._kinds[layer] = caller_location(), kind
        self._layer_names.add(layer)
        return [self.tensor(value) for value in node.outputs]

    def checkpoint(self) -> int:
        """Return the number of nodes."""
        return len(self._graph.nodes)

    def roll_back(self, checkpoint: int) -> None:
        """Remove the nodes added since ``checkpoint``, with their names and unused weights."""
        for node in reversed(self._graph.nodes[checkpoint:]):
            for value in node.outputs:
                self._release_name(value)
            self._layer_names.difference_update(node.layers)
            self._graph.remove(node)
        self._numbers.clear()
        weights = [value for value in self._values.values() if value.constant is not None]
        for value in weights:
            if not value.users:
                self._release_name(value)

    def begin(self, name: str | None, kind: str) -> str:
        """Return the name of a new layer; ``kind`` and a number if ``name`` is None.

        Raises:
            GraphError: the name is empty or already used.
        """
        if name is None:
            number = self._numbers.get(kind, 0) + 1
            while f"{kind}{number}" in self._layer_names:
                number += 1
            self._numbers[kind] = number
            return f"{kind}{number}"
        if not require_str(name, "the layer's name", GraphError) or name in self._layer_names:
            raise GraphError(
                f"the layer name {name!r} is empty or already used; give each layer a unique name"
            )
        return name

    def value_of(self, tensor: object) -> Value:
        """Return the value of a tensor of this network.

        Raises:
            GraphError: the argument is not a tensor, or belongs to another network.
        """
        if not isinstance(tensor, Tensor):
            raise GraphError(f"expected a tensor of the network, not {type(tensor).__name__}")
        if tensor.network is not self:
            raise GraphError(f"tensor {tensor.name!r} belongs to another network")
        return tensor.value

    def weight(self, constant: Constant) -> Value:
        """Add a weight to the network and return its value."""
        value = self._graph.add_constant(constant)
        self._register_name(value.name, value)
        return value

    # ---- called by tensors and layers

    def shape_of(self, value: Value) -> Shape:
        """Return the shape of a value without the implicit batch."""
        shape = value.tensor.shape
        if self._batch == "implicit" and shape[:1] == (SymbolicDim.symbol(BATCH),):
            return shape[1:]
        return shape

    def rename(self, value: Value, name: str) -> None:
        """Rename a value, which then no longer follows the name of its layer.

        Raises:
            GraphError: the name is empty or already used.
        """
        if require_str(name, "the tensor's name", GraphError) == value.name:
            return
        self._register_name(name, value)
        self._release_name(value)
        self._default_names.discard(value)
        value.name = name

    @located
    def rename_layer(self, old: str, new: str) -> None:
        """Rename a layer, and its results if they still have their default names.

        Raises:
            GraphError: there is no layer ``old``, or ``new`` is empty or already used.
        """
        for name in (old, new):
            require_str(name, "a layer's name", GraphError)
        nodes = [node for node in self._graph.nodes if _layer_of(node) == old]
        if not nodes:
            raise GraphError(f"there is no layer {old!r}")
        if old == new:
            return
        self.begin(new, "")
        for node in nodes:
            node.layers = (new, *node.layers[1:]) if node.layers else ()
            node.name = new + node.name.removeprefix(old)
        for table in (self._kinds, self._locations):
            if old in table:
                table[new] = table.pop(old)
        self._layer_names.remove(old)
        self._layer_names.add(new)
        for value in nodes[-1].outputs:
            if value in self._default_names:
                self.rename(value, self._tensor_name_format.format(layer=new, index=0))
                self._default_names.add(value)

    def reshape_input(self, value: Value, shape: Sequence[int | str]) -> None:
        """Change the shape of an input and infer all shapes again.

        Raises:
            GraphError: the value is not an input, or an extent known only at run time has a bound,
                which was computed for the old shape.
            ShapeError: a layer does not accept the new shape; the old shape is then restored.
        """
        if not any(value is graph_input for graph_input in self._graph.inputs):
            raise GraphError(
                f"the shape of {value.name!r} is inferred from its layer; only the shape of an "
                "input can be set"
            )
        new_type = TensorType(value.tensor.dtype, self._full_shape(shape))
        old_type = value.type
        if new_type != old_type and (bounded := self._graph.symbol_bounds):
            raise GraphError(
                f"the shape of {value.name!r} cannot be changed, because the bounds of extents "
                f"that are known only at run time ({', '.join(bounded)}) depend on shapes; change "
                "it in the model"
            )
        with self._undone_on_error(lambda: setattr(value, "type", old_type)):
            value.type = new_type

    def replace_op(self, node: Node, op: Op) -> None:
        """Replace the op of a node and infer all shapes again.

        Raises:
            ShapeError: the new op does not fit the network; the old op is then restored.
        """
        old_op, op = node.op, checked_op(op)
        with self._undone_on_error(lambda: setattr(node, "op", old_op)):
            node.op = op

    @contextmanager
    def _undone_on_error(self, undo: Callable[[], None]) -> Generator[None]:
        """Infer shapes after the body; if that fails, call ``undo`` and name the failing layer."""
        yield
        try:
            self._graph.infer()
        except GraphError as error:
            undo()
            self._graph.infer()
            failing_layers = [
                _layer_of(node) for node in self._graph.nodes if str(node) == error.node
            ]
            location = self._locations.get(failing_layers[0], "") if failing_layers else ""
            origin = f" (the layer was added at {location})" if location else ""
            raise type(error)(f"{error.message}{origin}", node=error.node) from error

    def _layer(self, name: str, nodes: Sequence[Node]) -> Layer:
        """Return the layer that groups ``nodes``; its inputs and outputs are the group's."""
        group = set(nodes)
        inputs = {
            value: value
            for node in nodes
            for value in node.inputs
            if value is not None and value.constant is None and value.producer not in group
        }
        results = [
            value
            for node in nodes
            for value in node.outputs
            if self._graph.is_output(value)
            or not value.users
            or any(user not in group for user in value.users)
        ]
        return Layer(
            name,
            self._kinds.get(name, nodes[-1].op.name),
            tuple(self.tensor(value) for value in inputs.values()),
            tuple(self.tensor(value) for value in results),
            tuple(nodes),
            self._locations.get(name, ""),
            self,
        )

    def _operand(self, operand: Tensor | Array, name: str) -> Value:
        """Return the value of a tensor, or of a numeric array as a weight."""
        if isinstance(operand, Tensor):
            return self.value_of(operand)
        array: Array = require_array(operand, name, GraphError)
        if not (array.dtype.kind in "iub" or is_float_dtype(array.dtype)):
            raise GraphError(f"{name} has element type {array.dtype}; it must be a numeric type")
        return self.weight(Constant(name, array))

    def _register_name(self, name: str, value: Value) -> None:
        """Register the name of a value.

        Raises:
            GraphError: the name is empty or belongs to another value.
        """
        if not require_str(name, "the tensor's name", GraphError):
            raise GraphError("a tensor must have a name")
        if self._values.setdefault(name, value) is not value:
            raise GraphError(
                f"the tensor name {name!r} is already used; give each tensor a unique name"
            )

    def _release_name(self, value: Value) -> None:
        """Release the name of a value."""
        if self._values.get(value.name) is value:
            del self._values[value.name]

    def _full_shape(self, shape: Sequence[int | str]) -> Shape:
        """Check the extents of a shape and prepend the implicit batch, if there is one."""
        extents = require_list(shape, "shape", ShapeError)
        dims = tuple(_extent(extent, extents) for extent in extents)
        if self._batch == "implicit" and SymbolicDim.symbol(BATCH) in dims:
            raise ShapeError(f"shape {extents} includes the implicit batch; leave it out")
        elements = prod(d for d in dims if isinstance(d, int))
        if elements >= _MAX_ELEMENTS:
            count = format_integer(elements)
            raise ShapeError(
                f"shape {shown(extents)} has {count} elements; it must have fewer than 2**30"
            )
        return (SymbolicDim.symbol(BATCH), *dims) if self._batch == "implicit" else dims


def _batch(batch: object) -> str:
    return require_choice(batch, "batch", GraphError, ("implicit", "explicit"))


def _checked_template(names: object) -> str:
    """Check the format string ``tensor_name_format`` by formatting it once."""
    template = require_str(names, "tensor_name_format", GraphError)
    try:
        template.format(layer="", index=0)
    except (ValueError, LookupError, AttributeError) as error:
        raise GraphError(
            f"tensor_name_format is {shown(names)}; it must be a format string whose only fields "
            f"are {{layer}} and {{index}} ({error})"
        ) from error
    return template


def _layer_of(node: Node) -> str:
    return node.layers[0] if node.layers else node.name


def _extent(extent: object, shape: list[object]) -> Dim:
    """Return an extent of ``shape`` as an integer or a symbol."""
    if isinstance(extent, str):
        try:
            return SymbolicDim.symbol(extent)
        except ShapeError as error:
            raise ShapeError(f"extent {shown(extent)} in {shown(shape)}: {error}") from error
    if isinstance(extent, SymbolicDim):
        return extent
    return require_int(extent, f"an extent in {shown(shape)}", ShapeError, minimum=1)


def _dtype(dtype: Any) -> DType:
    """Return the element type that a name, a numpy type or a ``DType`` denotes."""
    if isinstance(dtype, DType):
        return dtype
    specification = "None" if dtype is None else dtype  # np.dtype(None) would be float64
    try:
        return DType.BFLOAT16 if dtype == "bfloat16" else DType.from_numpy(np.dtype(specification))
    except (TypeError, ValueError) as error:
        supported = ", ".join(d.value for d in DType)
        raise GraphError(
            f"{shown(dtype)} is not an element type; the element types are: {supported}"
        ) from error
