"""InferNetwork and InferLayer of GIE: define a network layer by layer."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from smelt.errors import BuildError, GraphError, ShapeError
from smelt.gie._enums import (
    ActivationType,
    DataType,
    ElementWiseOperation,
    LayerType,
    PoolingType,
    ScaleMode,
)
from smelt.gie._output_dimensions import attributes_for
from smelt.network import Layer, NetworkDefinition, Tensor
from smelt.types import (
    counted,
    require_array,
    require_callable,
    require_float,
    require_int,
    require_ints,
    require_str,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike

    from smelt.gie._output_dimensions import OutputDimensionsFormula
    from smelt.ir import Graph, Node
    from smelt.types import Shape

    OptionalFormula = OutputDimensionsFormula | None
    """A formula, or None for the default one."""

ItemT = TypeVar("ItemT")

# Ranges of parameters in the documented API.
_INPUT_ELEMENTS: Final = 1 << 30
"""An input must have fewer elements than this."""
_LRN_WINDOWS: Final = range(1, 16, 2)
_LRN_RANGES: Final = {"alpha": (-1e20, 1e20), "beta": (0.01, 1e5), "k": (1e-5, 1e10)}

_KINDS: Final = {
    LayerType.CONVOLUTION: ("convolution", "conv"),
    LayerType.FULLY_CONNECTED: ("fully_connected", "gemm", "mat_mul"),
    LayerType.ACTIVATION: ("activation", "relu", "sigmoid", "tanh", "prelu", "elu", "leaky_relu"),
    LayerType.POOLING: ("pooling", "max_pool", "average_pool"),
    LayerType.LRN: ("lrn",),
    LayerType.SCALE: ("scale", "batch_normalization"),
    LayerType.SOFTMAX: ("softmax",),
    LayerType.DECONVOLUTION: ("deconvolution", "conv_transpose"),
    LayerType.CONCATENATION: ("concatenation", "concat"),
    LayerType.ELEMENTWISE: ("elementwise", "add", "mul", "max", "sum"),
}
"""Kinds of layers of smelt's network definition, by GIE's type of layer."""
_LAYER_TYPES: Final = {kind: layer for layer, kinds in _KINDS.items() for kind in kinds}


class InferLayer:
    """A layer of a network."""

    def __init__(self, network: InferNetwork, nodes: tuple[Node, ...]) -> None:
        self._network = network
        self._nodes = nodes

    @property
    def layer(self) -> Layer:
        """The corresponding layer of smelt's network definition."""
        layer = self._network.definition.find_layer(self.name)
        if layer is None:
            raise GraphError(f"the layer {self.name!r} is no longer part of its network")
        return layer

    @property
    def name(self) -> str:
        """Name of the layer, as the profiler and the build log show it."""
        node = self._nodes[-1]
        return node.layers[0] if node.layers else node.name

    @name.setter
    def name(self, name: str) -> None:
        self._network.definition.rename_layer(self.name, name)

    def set_name(self, name: str) -> None:
        """Set the name of the layer; default names of its outputs change accordingly.

        Raises:
            GraphError: the name is empty or already used.
        """
        self.name = name

    @property
    def type(self) -> LayerType | None:
        """Type of the layer; None for a layer that GIE does not have."""
        return _LAYER_TYPES.get(self.layer.kind)

    @property
    def nb_inputs(self) -> int:
        """Number of input tensors of the layer."""
        return len(self.layer.inputs)

    def get_input(self, index: int) -> Tensor | None:
        """Return an input, or None if the index is out of range."""
        return _at(self.layer.inputs, index)

    @property
    def nb_outputs(self) -> int:
        """Number of output tensors of the layer."""
        return len(self.layer.outputs)

    def get_output(self, index: int) -> Tensor | None:
        """Return an output, or None if the index is out of range."""
        return _at(self.layer.outputs, index)

    # ---- windows

    @property
    def kernel_size(self) -> tuple[int, int]:
        """Window size (H, W) of a convolution, deconvolution or pooling."""
        return self._windowed("kernel_shape")

    @property
    def stride(self) -> tuple[int, int]:
        """Steps (H, W) between windows; the default is (1, 1)."""
        return self._windowed("strides")

    def set_stride(self, stride: tuple[int, int]) -> None:
        """Set the steps (H, W) between windows, and infer the dependent shapes again."""
        self._windowed("strides")
        self.layer.update(strides=stride)
        self._network.apply_formula(self)

    @property
    def padding(self) -> tuple[int, int]:
        """Zeros (H, W) on either side of the input; the default is (0, 0)."""
        return self._windowed("pads")

    def set_padding(self, padding: tuple[int, int]) -> None:
        """Set the zeros (H, W) on either side, and infer the dependent shapes again."""
        self._windowed("pads")
        refuse = partial(ShapeError, node=self.name)
        self.layer.update(pads=require_ints(padding, "padding", refuse, count=2, minimum=0) * 2)
        self._network.apply_formula(self)

    @property
    def nb_groups(self) -> int:
        """Number of groups of channels and filters; the default is 1."""
        return self._network.groups_of(self.layer)

    def set_nb_groups(self, groups: int) -> None:
        """Set the number of groups of channels and filters.

        The number of groups also follows from the number of weights. The two must agree; the build
        fails if the weights are for several groups and this method was not called.

        Raises:
            ShapeError: the weights are for another number of groups.
        """
        self._network.set_groups(self.layer, groups)

    def _windowed(self, attribute: str) -> tuple[int, int]:
        numbers = getattr(self.layer.op, attribute, None)
        if numbers is None:
            raise GraphError(f"a layer of kind {self.layer.kind!r} has no window", node=self.name)
        return (int(numbers[0]), int(numbers[1]))

    def __repr__(self) -> str:
        kind = self.layer.kind if self.type is None else self.type.name
        return f"InferLayer({self.name!r}, {kind})"


class InferNetwork:
    """A network with an implicit batch: a sequence of layers and a set of tensors.

    A tensor has a ``name``, a ``dtype`` and a ``shape``, its dims (C, H, W). The shape of an input
    may be changed. The default name of an output is "layer [index]". Weights are arrays of any real
    type; the network holds references to them until the build.

    Source: GIE User Guide, "The network definition"; TensorRT 3.0.4 header, INetworkDefinition.
    """

    def __init__(self, name: str = "network") -> None:
        self.definition = NetworkDefinition(name, tensor_name_format="{layer} [{index}]")
        self._formulas: dict[LayerType, OutputDimensionsFormula] = {}
        self._unstated_groups: set[Node] = set()
        """Last nodes of layers with weights for several groups, until `set_groups` is called."""

    @property
    def graph(self) -> Graph:
        """The network as a graph."""
        return self.definition.graph

    def fill(self, definition: NetworkDefinition) -> None:
        """Replace the empty definition by one that a parser has read.

        Raises:
            GraphError: the network has layers or inputs already.
        """
        if self.definition.layers or self.definition.inputs:
            raise GraphError(
                "the network already has layers or inputs; parse into an empty network"
            )
        self.definition = definition

    def check(self, max_batch_size: int) -> None:
        """Check the documented limits of the network; the builder calls it before a build.

        Raises:
            ShapeError: an input has too many elements, or the groups of a layer were not set.
        """
        max_batch_size = require_int(max_batch_size, "max_batch_size", BuildError, minimum=1)
        for tensor in self.definition.inputs:
            count = max_batch_size * math.prod(fixed_extents(tensor.shape, tensor.name))
            if count >= _INPUT_ELEMENTS:
                raise ShapeError(
                    f"the input has {count:,} elements (batch {max_batch_size} x dims "
                    f"{list(tensor.shape)}); it must have fewer than 2^30",
                    node=tensor.name,
                )
        for layer in self.definition.layers:
            if layer.nodes[-1] in self._unstated_groups:
                groups = getattr(layer.op, "group", 1)
                raise ShapeError(
                    f"the weights are for {groups} groups; call set_nb_groups({groups}), or give "
                    "weights for all channels",
                    node=layer.name,
                )
        for layer in self.definition.layers if self._formulas else ():
            self.apply_formula(InferLayer(self, layer.nodes))

    # ---- tensors

    def add_input(self, name: str, kind: DataType, dims: Sequence[int]) -> Tensor:
        """Add an input; its buffer is contiguous NCHW, where N is the batch.

        Args:
            name: name of the tensor.
            kind: element type.
            dims: extents (C, H, W).

        Raises:
            ShapeError: there are not three dims, or they have 2^30 elements or more.
        """
        refuse = partial(ShapeError, node=require_str(name, "the tensor's name", GraphError))
        extents = require_ints(dims, "the shape (C, H, W) of the input", refuse, count=3, minimum=1)
        count = math.prod(extents)
        if count >= _INPUT_ELEMENTS:
            raise refuse(f"the input has {count:,} elements; it must have fewer than 2^30")
        return self.definition.add_input(name, DataType.of(kind).dtype.value, extents)

    def mark_output(self, tensor: Tensor) -> None:
        """Make a tensor an output of the network."""
        self.definition.mark_output(tensor)

    @property
    def nb_inputs(self) -> int:
        """Number of inputs."""
        return len(self.definition.inputs)

    def get_input(self, index: int) -> Tensor | None:
        """Return an input, or None if the index is out of range."""
        return _at(self.definition.inputs, index)

    @property
    def nb_outputs(self) -> int:
        """Number of marked outputs."""
        return len(self.definition.outputs)

    def get_output(self, index: int) -> Tensor | None:
        """Return an output, or None if the index is out of range."""
        return _at(self.definition.outputs, index)

    @property
    def nb_layers(self) -> int:
        """Number of layers."""
        return len(self.definition.layers)

    def get_layer(self, index: int) -> InferLayer | None:
        """Return a layer, or None if the index is out of range."""
        layer = _at(self.definition.layers, index)
        return None if layer is None else InferLayer(self, layer.nodes)

    # ---- groups and formulas

    def groups_of(self, layer: Layer) -> int:
        """Return the number of groups of a layer that was set; 1 if it was not set."""
        if layer.nodes[-1] in self._unstated_groups:
            return 1
        return int(getattr(layer.op, "group", 1))

    def set_groups(self, layer: Layer, groups: int) -> None:
        """Set the groups of a layer; see `InferLayer.set_nb_groups`."""
        weight_groups = getattr(layer.op, "group", None)
        if weight_groups is None:
            raise GraphError("only convolutions and deconvolutions have groups", node=layer.name)
        if weight_groups != require_int(
            groups, "groups", partial(ShapeError, node=layer.name), minimum=1
        ):
            raise ShapeError(
                f"the weights are for {counted(weight_groups, 'group')}, not {groups}; their shape "
                "is K x C / groups x R x S for a convolution and C x K / groups x R x S for a "
                "deconvolution",
                node=layer.name,
            )
        self._unstated_groups.discard(layer.nodes[-1])

    def set_convolution_output_dimensions_formula(self, formula: OptionalFormula) -> None:
        """Set the formula for the output sizes of convolutions; None for the default one."""
        self._set_formula(LayerType.CONVOLUTION, formula)

    def set_deconvolution_output_dimensions_formula(self, formula: OptionalFormula) -> None:
        """Set the formula for the output sizes of deconvolutions; None for the default one."""
        self._set_formula(LayerType.DECONVOLUTION, formula)

    def set_pooling_output_dimensions_formula(self, formula: OptionalFormula) -> None:
        """Set the formula for the output sizes of poolings; None for the default one."""
        self._set_formula(LayerType.POOLING, formula)

    def _set_formula(self, kind: LayerType, formula: OptionalFormula) -> None:
        """Set or remove the formula of a type of layer, and apply it to existing layers."""
        if formula is not None:
            require_callable(formula, "the formula", GraphError)
        before = self._formulas.pop(kind, None)
        if formula is not None:
            self._formulas[kind] = formula
        for existing in self.definition.layers:
            layer = InferLayer(self, existing.nodes)
            if layer.type is not kind:
                continue
            if formula is not None:
                self.apply_formula(layer)
            elif before is not None:
                layer.set_padding(layer.padding)

    def apply_formula(self, layer: InferLayer) -> None:
        """Give a layer the output size that the formula of its type returns, if there is one."""
        formula = None if layer.type is None else self._formulas.get(layer.type)
        source = layer.get_input(0)
        if formula is None or source is None:
            return
        _, rows, columns = fixed_extents(source.shape, layer.name, 3)
        dims = (rows, columns)
        size = formula(dims, layer.kernel_size, layer.stride, layer.padding, layer.name)
        layer.layer.update(**attributes_for(layer.layer.op, dims, size, layer.name))

    # ---- layers

    def add_convolution(
        self,
        x: Tensor,
        nb_output_maps: int,
        kernel_size: tuple[int, int],
        weights: ArrayLike,
        bias: ArrayLike | None = None,
        *,
        padding: tuple[int, int] = (0, 0),
    ) -> InferLayer:
        """Add a 2-D convolution (a correlation, as usual in networks).

        Stride, padding and groups are set on the returned layer. If the window is larger than the
        input, ``padding`` must be given here.

        Args:
            x: input tensor.
            nb_output_maps: number K of output channels.
            kernel_size: window size (R, S).
            weights: array of K x C / groups x R x S elements.
            bias: array of K elements; None or an empty array for no bias.
            padding: zeros (H, W) on either side of the input.
        """
        self.definition.value_of(x)  # raises if x is not a tensor of this network
        groups = _groups_of(weights, nb_output_maps, x, kernel_size)
        output = self.definition.add_convolution(
            x, nb_output_maps, kernel_size, weights, _optional(bias), padding=padding, groups=groups
        )
        return self._windowed(output, groups)

    def add_deconvolution(
        self,
        x: Tensor,
        nb_output_maps: int,
        kernel_size: tuple[int, int],
        weights: ArrayLike,
        bias: ArrayLike | None = None,
        *,
        padding: tuple[int, int] = (0, 0),
    ) -> InferLayer:
        """Add a 2-D deconvolution; see `add_convolution`. Weights are C x K / groups x R x S."""
        self.definition.value_of(x)  # raises if x is not a tensor of this network
        groups = _groups_of(weights, nb_output_maps, x, kernel_size)
        output = self.definition.add_deconvolution(
            x, nb_output_maps, kernel_size, weights, _optional(bias), padding=padding, groups=groups
        )
        return self._windowed(output, groups)

    def add_fully_connected(
        self, x: Tensor, nb_outputs: int, weights: ArrayLike, bias: ArrayLike | None = None
    ) -> InferLayer:
        """Add a fully connected layer from C x H x W to K x 1 x 1.

        The weights are row-major, K rows of C x H x W elements.
        """
        output = self.definition.add_fully_connected(x, nb_outputs, weights, _optional(bias))
        return self._layer_of(output)

    def add_activation(self, x: Tensor, kind: ActivationType) -> InferLayer:
        """Add an activation."""
        name = ActivationType.of(kind).name.lower()
        return self._layer_of(self.definition.add_activation(x, name))

    def add_pooling(
        self,
        x: Tensor,
        kind: PoolingType,
        window_size: tuple[int, int],
        *,
        padding: tuple[int, int] = (0, 0),
    ) -> InferLayer:
        """Add a pooling of stride 1, which can be changed on the returned layer.

        An average does not count the padding.
        """
        name = PoolingType.of(kind).name.lower()
        output = self.definition.add_pooling(x, name, window_size, stride=1, padding=padding)
        return self._windowed(output, 1)

    def add_lrn(self, x: Tensor, window: int, alpha: float, beta: float, k: float) -> InferLayer:
        """Add a local response normalisation across channels.

        Raises:
            ShapeError: the window is not odd or not in 1 to 15, or a parameter is out of range.
        """
        if require_int(window, "the window of LRN", ShapeError) not in _LRN_WINDOWS:
            raise ShapeError(
                f"the window of LRN is {window}; it must be an odd number from 1 to 15"
            )
        for name, value in (("alpha", alpha), ("beta", beta), ("k", k)):
            require_float(value, f"{name} of LRN", ShapeError, *_LRN_RANGES[name])
        output = self.definition.add_lrn(x, window, alpha=alpha, beta=beta, k=k)
        return self._layer_of(output)

    def add_scale(
        self,
        x: Tensor,
        mode: ScaleMode,
        shift: ArrayLike | None = None,
        scale: ArrayLike | None = None,
        power: ArrayLike | None = None,
    ) -> InferLayer:
        """Add ``(x * scale + shift) ^ power``; the defaults are shift 0, scale 1 and power 1."""
        output = self.definition.add_scale(
            x,
            ScaleMode.of(mode).name.lower(),
            shift=_optional(shift),
            scale=_optional(scale),
            power=_optional(power),
        )
        return self._layer_of(output)

    def add_soft_max(self, x: Tensor) -> InferLayer:
        """Add a softmax across channels."""
        return self._layer_of(self.definition.add_softmax(x))

    def add_concatenation(self, inputs: Sequence[Tensor]) -> InferLayer:
        """Join tensors along the channels."""
        return self._layer_of(self.definition.add_concatenation(inputs))

    def add_element_wise(
        self, first: Tensor, second: Tensor, operation: ElementWiseOperation
    ) -> InferLayer:
        """Combine two tensors of the same dims element by element.

        Raises:
            ShapeError: the dims differ.
        """
        for tensor in (first, second):
            self.definition.value_of(tensor)  # raises if it is not a tensor of this network
        if first.shape != second.shape:
            raise ShapeError(
                f"an elementwise layer needs inputs of equal dims, not {first.shape} and "
                f"{second.shape}"
            )
        name = ElementWiseOperation.of(operation).name.lower()
        return self._layer_of(self.definition.add_elementwise(first, second, name))

    def _layer_of(self, tensor: Tensor) -> InferLayer:
        """Return the layer that computes a tensor."""
        for layer in reversed(self.definition.layers):
            if any(output.value is tensor.value for output in layer.outputs):
                return InferLayer(self, layer.nodes)
        raise GraphError(f"{tensor.name} is not the output of a layer")

    def _windowed(self, output: Tensor, groups: int) -> InferLayer:
        """Return a new layer with windows, after its formula was applied."""
        layer = self._layer_of(output)
        if groups != 1:
            self._unstated_groups.add(layer.layer.nodes[-1])
        self.apply_formula(layer)
        return layer


def check_network(network: object) -> None:
    """Check the type of a network.

    Raises:
        GraphError: the argument is not an `InferNetwork`.
    """
    if not isinstance(network, InferNetwork):
        kind = type(network).__name__
        raise GraphError(f"expected a network from create_network, not {kind}")


def _at(items: Sequence[ItemT], index: int) -> ItemT | None:
    index = require_int(index, "the index", GraphError)
    return items[index] if 0 <= index < len(items) else None


def _optional(numbers: ArrayLike | None) -> ArrayLike | None:
    """Return weights, or None if the array is empty, as GIE's Weights of count 0."""
    empty = numbers is None or not require_array(numbers, "an array of weights", GraphError).size
    return None if empty else numbers


def fixed_extents(shape: Shape, name: str, count: int | None = None) -> tuple[int, ...]:
    """Return the extents of a shape as numbers; GIE has no symbolic extents.

    Args:
        shape: the shape.
        name: name of the tensor or layer, for messages.
        count: required number of extents; None for any.

    Raises:
        ShapeError: an extent is symbolic, or there is another number of extents.
    """
    if not all(isinstance(extent, int) for extent in shape):
        raise ShapeError(
            f"the shape [{', '.join(map(str, shape))}] has symbolic extents; GIE needs numbers",
            node=name,
        )
    return require_ints(shape, "dims", partial(ShapeError, node=name), count=count)


def _groups_of(weights: ArrayLike, count: int, x: Tensor, kernel_size: tuple[int, int]) -> int:
    """Return the number of groups that follows from the number of weights; 1 if none fits."""
    count = require_int(count, "nb_output_maps", ShapeError, minimum=1)
    extents = require_ints(kernel_size, "kernel_size", ShapeError, count=2, minimum=1)
    channels, *_ = fixed_extents(x.shape[:1], x.name, 1)
    dense_size = count * channels * math.prod(extents)  # number of weights without groups
    size = require_array(weights, "weights", GraphError).size
    groups = dense_size // (size or 1)
    fits = groups * size == dense_size
    return groups if fits and groups and not (count % groups or channels % groups) else 1
