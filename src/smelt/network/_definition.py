"""A network: a graph, seen as layers and tensors."""

from __future__ import annotations

from contextlib import contextmanager
from math import prod
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from smelt.errors import GraphError, ShapeError
from smelt.ir import Constant, Graph, Op, Value
from smelt.network._caller_location import atomic, caller_location, located
from smelt.network._layers import LayerMethods
from smelt.network._tensor import Layer, Tensor
from smelt.ops import checked_op
from smelt.types import (
    DType,
    SymbolicDim,
    TensorType,
    format_integer,
    is_float_dtype,
    override,
    require_array,
    require_choice,
    require_int,
    require_list,
    require_str,
    shown,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from smelt.ir import Array, Node
    from smelt.types import Dim, Shape

BATCH = "batch"
"""The symbol of an implicit batch."""
_LARGEST_VOLUME = 1 << 30


class NetworkDefinition(LayerMethods):
    """A network under construction.

    With ``batch="implicit"`` shapes are those of one image, and an engine decides how many images
    there are at a time; with ``batch="explicit"`` shapes are complete, and an extent may be a
    symbol, given as its name.
    """

    def __init__(
        self,
        name: str = "network",
        batch: Literal["implicit", "explicit"] = "implicit",
        *,
        tensor_names: str = "{layer}",
    ) -> None:
        """Start an empty network.

        Args:
            name: name of the network, and of its engines.
            batch: whether shapes leave out the batch.
            tensor_names: how a layer's only result is named; ``{layer}`` and ``{index}`` are
                filled in. Of several results each is named ``layer:index`` by default.
        """
        self._graph = Graph(require_str(name, "the network's name", GraphError))
        self._batch = _batch(batch)
        self._tensor_names = _template(tensor_names)
        self._tensors: dict[Value, Tensor] = {}
        self._values: dict[str, Value] = {}
        self._layer_names: set[str] = set()
        self._numbers: dict[str, int] = {}
        self._kinds: dict[str, str] = {}
        self._locations: dict[str, str] = {}
        self._default_names: set[Value] = set()
        """Values, by id, that bear the name of their layer."""

    @classmethod
    def from_graph(cls, graph: Graph) -> NetworkDefinition:
        """The network that a graph is; the graph is not copied."""
        symbol = SymbolicDim.symbol(BATCH)
        implicit = any(value.tensor.shape[:1] == (symbol,) for value in graph.inputs)
        network = cls(graph.name, "implicit" if implicit else "explicit")
        network._graph = graph
        network._values = {value.name: value for value in graph.values()}
        network._layer_names = {_layer_of(node) for node in graph.nodes}
        return network

    # ---- what it is made of

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
        """The graph of the network, of which this is a view."""
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
        """The layers, in the order in which they run."""
        groups: dict[str, list[Node]] = {}
        for node in self._graph.nodes:
            groups.setdefault(_layer_of(node), []).append(node)
        return [self._layer(name, nodes) for name, nodes in groups.items()]

    def find(self, name: str) -> Tensor | None:
        """The tensor of a name, or None."""
        value = self._values.get(require_str(name, "a tensor's name", GraphError))
        return None if value is None or value.constant is not None else self.tensor(value)

    def find_layer(self, name: str) -> Layer | None:
        """The layer of a name, or None."""
        require_str(name, "a layer's name", GraphError)
        return next((layer for layer in self.layers if layer.name == name), None)

    def tensor(self, value: Value) -> Tensor:
        """The tensor that a value of the graph is."""
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
            name: its name, which an engine keeps.
            dtype: element type, ``"float32"`` for example.
            shape: extents; without the batch where that is implicit, as (C, H, W).
            batch: ``"explicit"`` for a complete shape; None for what the network is. All inputs of
                a network agree, so the first may decide.

        Raises:
            ShapeError: an extent is not an extent, or the tensor would be too large.
            GraphError: the name is taken, or the batch is another than the first input's.
        """
        if batch is not None:
            self._decide_batch(batch)
        value = Value(name, TensorType(_dtype(dtype), self._full_shape(shape)))
        self._claim(name, value)
        self._graph.inputs.append(value)
        return self.tensor(value)

    def _decide_batch(self, batch: Literal["implicit", "explicit"]) -> None:
        """Let the first input say whether shapes leave out the batch."""
        _batch(batch)
        if batch != self._batch and self._graph.inputs:
            raise GraphError(
                f"the network's batch is {self._batch}, set by its first input; another input has "
                f"{batch}"
            )
        self._batch = batch

    @located
    def mark_output(self, tensor: Tensor) -> None:
        """Let a tensor leave the network. Any number may; marking one twice changes nothing.

        Raises GraphError: the tensor is an input, or of another network.
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
        """Apply any op: ``network.add(ops.Elu(alpha=0.5), x)``.

        Args:
            op: what to compute.
            inputs: tensors; arrays become constants; None leaves an optional input out.
            name: name of the layer; made from the op's when absent.

        Returns:
            The result, or a tuple where the op has several.
        """
        if not isinstance(given := cast("object", op), Op):
            raise GraphError(f"add takes an op, as ops.Elu(alpha=0.5), not {shown(given)}")
        label = self._layer_name(name, op.name)
        values = [
            array if array is None else self._operand(array, f"{label}.{index}")
            for index, array in enumerate(inputs)
        ]
        results = self.apply(label, op.name, op, *values)
        return results[0] if len(results) == 1 else tuple(results)

    @override
    def apply(
        self, layer: str, kind: str, op: Op, *inputs: Value | None, part: str = ""
    ) -> list[Tensor]:
        node_name = f"{layer}/{part}" if part else layer
        node = self._graph.add(checked_op(op), *inputs, name=node_name, layers=(layer,))
        if not part and len(node.outputs) == 1:
            node.output.name = self._tensor_names.format(layer=layer, index=0)
            self._default_names.add(node.output)
        for value in node.outputs:
            self._claim(value.name, value)
        self._locations[layer], self._kinds[layer] = caller_location(), kind
        self._layer_names.add(layer)
        return [self.tensor(value) for value in node.outputs]

    @override
    def mark(self) -> int:
        return len(self._graph.nodes)

    @override
    def roll_back(self, mark: int) -> None:
        for node in reversed(self._graph.nodes[mark:]):
            for value in node.outputs:
                self._disclaim(value)
            self._layer_names.difference_update(node.layers)
            self._graph.remove(node)
        self._numbers.clear()
        weights = [value for value in self._values.values() if value.constant is not None]
        for value in weights:
            if not value.users:
                self._disclaim(value)

    @override
    def begin(self, name: str | None, kind: str) -> str:
        return self._layer_name(name, kind)

    @override
    def value_of(self, tensor: object) -> Value:
        if not isinstance(tensor, Tensor):
            raise GraphError(f"expected a tensor of the network, not {type(tensor).__name__}")
        if tensor.network is not self:
            raise GraphError(f"tensor {tensor.name!r} belongs to another network")
        return tensor.value

    @override
    def weight(self, constant: Constant) -> Value:
        value = self._graph.add_constant(constant)
        self._claim(value.name, value)
        return value

    # ---- what tensors and layers ask for

    def shape_of(self, value: Value) -> Shape:
        """The shape that the network shows of a value."""
        shape = value.tensor.shape
        if self._batch == "implicit" and shape[:1] == (SymbolicDim.symbol(BATCH),):
            return shape[1:]
        return shape

    def rename(self, value: Value, name: str) -> None:
        """Give a value a name of its own. Raises GraphError."""
        if require_str(name, "the tensor's name", GraphError) == value.name:
            return
        self._claim(name, value)
        self._disclaim(value)
        self._default_names.discard(value)
        value.name = name

    @located
    def rename_layer(self, old: str, new: str) -> None:
        """Give a layer another name; a result that bears the layer's name by default follows.

        Raises GraphError: there is no such layer, or the new name is empty or taken.
        """
        for name in (old, new):
            require_str(name, "a layer's name", GraphError)
        nodes = [node for node in self._graph.nodes if _layer_of(node) == old]
        if not nodes:
            raise GraphError(f"there is no layer {old!r}")
        if old == new:
            return
        self._layer_name(new, "")
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
                self.rename(value, self._tensor_names.format(layer=new, index=0))
                self._default_names.add(value)

    def reshape_input(self, value: Value, shape: Sequence[int | str]) -> None:
        """Give an input another shape and infer the rest; undone on ShapeError."""
        if not any(value is own for own in self._graph.inputs):
            raise GraphError(
                f"the shape of {value.name!r} follows from its layer; only that of an input can "
                "be set"
            )
        kind = TensorType(value.tensor.dtype, self._full_shape(shape))
        old = value.type
        with self._undone_on_error(lambda: setattr(value, "type", old)):
            value.type = kind

    def replace_op(self, node: Node, op: Op) -> None:
        """Give a node another op and infer the rest; undone on ShapeError."""
        old, op = node.op, checked_op(op)
        with self._undone_on_error(lambda: setattr(node, "op", old)):
            node.op = op

    @contextmanager
    def _undone_on_error(self, undo: Callable[[], None]) -> Generator[None]:
        yield
        try:
            self._graph.infer()
        except GraphError as error:
            undo()
            self._graph.infer()
            broken = [_layer_of(node) for node in self._graph.nodes if str(node) == error.node]
            added = self._locations.get(broken[0], "") if broken else ""
            origin = f" (the layer was added at {added})" if added else ""
            raise type(error)(f"{error.message}{origin}", node=error.node) from error

    def _layer(self, name: str, nodes: Sequence[Node]) -> Layer:
        made = {value for node in nodes for value in node.outputs}
        own = set(nodes)
        read = {
            value: value
            for node in nodes
            for value in node.inputs
            if value is not None and value.constant is None and value not in made
        }
        results = [
            value
            for node in nodes
            for value in node.outputs
            if self._graph.is_output(value)
            or not value.users
            or any(user not in own for user in value.users)
        ]
        return Layer(
            name,
            self._kinds.get(name, nodes[-1].op.name),
            tuple(self.tensor(value) for value in read.values()),
            tuple(self.tensor(value) for value in results),
            tuple(nodes),
            self._locations.get(name, ""),
            self,
        )

    def _operand(self, given: Tensor | Array, name: str) -> Value:
        if isinstance(given, Tensor):
            return self.value_of(given)
        return self.weight(Constant(name, _array(given, name)))

    def _layer_name(self, name: str | None, kind: str) -> str:
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

    def _claim(self, name: str, value: Value) -> None:
        """Note whose a name is. Raises GraphError: it is another's."""
        if not require_str(name, "the tensor's name", GraphError):
            raise GraphError("a tensor must have a name")
        if self._values.setdefault(name, value) is not value:
            raise GraphError(
                f"the tensor name {name!r} is already used; give each tensor a unique name"
            )

    def _disclaim(self, value: Value) -> None:
        if self._values.get(value.name) is value:
            del self._values[value.name]

    def _full_shape(self, shape: Sequence[int | str]) -> Shape:
        given = require_list(shape, "the extents of a shape", ShapeError)
        dims = tuple(_extent(extent, given) for extent in given)
        if self._batch == "implicit" and SymbolicDim.symbol(BATCH) in dims:
            raise ShapeError(f"shape {given} includes the implicit batch; leave it out")
        volume = prod(d for d in dims if isinstance(d, int))
        if volume >= _LARGEST_VOLUME:
            detail = format_integer(volume)
            raise ShapeError(
                f"shape {shown(given)} has {detail} elements; it must have fewer than 2**30"
            )
        return (SymbolicDim.symbol(BATCH), *dims) if self._batch == "implicit" else dims


def _batch(batch: object) -> str:
    return require_choice(batch, "batch", GraphError, ("implicit", "explicit"))


def _template(names: object) -> str:
    """How results are named."""
    template = require_str(names, "tensor_names", GraphError)
    try:
        template.format(layer="", index=0)
    except (ValueError, LookupError, AttributeError) as error:
        raise GraphError(
            f"tensor_names is {shown(names)}; it may contain {{layer}} and {{index}}: {error}"
        ) from error
    return template


def _layer_of(node: Node) -> str:
    return node.layers[0] if node.layers else node.name


def _extent(extent: object, shape: list[object]) -> Dim:
    if isinstance(extent, str):
        try:
            return SymbolicDim.symbol(extent)
        except ShapeError as error:
            raise ShapeError(f"extent {shown(extent)} in {shown(shape)}: {error}") from error
    if isinstance(extent, SymbolicDim):
        return extent
    return require_int(extent, f"an extent in {shown(shape)}", ShapeError, least=1)


def _dtype(dtype: Any) -> DType:
    if isinstance(dtype, DType):
        return dtype
    given = "None" if dtype is None else dtype  # which numpy takes for float64
    try:
        return DType.BFLOAT16 if dtype == "bfloat16" else DType.from_numpy(np.dtype(given))
    except (TypeError, ValueError) as error:
        known = ", ".join(d.value for d in DType)
        raise GraphError(
            f"{shown(dtype)} is not an element type; the element types are: {known}"
        ) from error


def _array(given: Array, name: str) -> Array:
    array: Array = require_array(given, name, GraphError)
    if not (array.dtype.kind in "iub" or is_float_dtype(array.dtype)):
        raise GraphError(f"{name} has element type {array.dtype}; it must be numeric")
    return array
