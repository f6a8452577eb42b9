"""Network definitions in the documented vocabulary."""

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

ItemT = TypeVar("ItemT")

# The documented API has these ranges.
_INPUT_ELEMENTS: Final = 1 << 30
_LRN_WINDOWS: Final = range(1, 16, 2)
_LRN_ALPHA: Final = (-1e20, 1e20)
_LRN_BETA: Final = (0.01, 1e5)
_LRN_K: Final = (1e-5, 1e10)

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
_LAYER_TYPES: Final = {kind: layer for layer, kinds in _KINDS.items() for kind in kinds}


class InferLayer:
    """A layer of a network, in the documented vocabulary."""

    def __init__(self, network: InferNetwork, nodes: tuple[Node, ...]) -> None:
        self._network = network
        self._nodes = nodes

    @property
    def layer(self) -> Layer:
        """The layer as the network definition shows it."""
        found = self._network.definition.find_layer(self.name)
        if found is None:
            raise GraphError(f"the layer {self.name!r} is no longer part of its network")
        return found

    @property
    def name(self) -> str:
        """The layer's name, as profiler and build log show it."""
        node = self._nodes[-1]
        return node.layers[0] if node.layers else node.name

    @name.setter
    def name(self, name: str) -> None:
        self._network.definition.rename_layer(self.name, name)

    def set_name(self, name: str) -> None:
        """Give the layer a name; a result that bears the layer's name by default follows.

        Raises GraphError: the name is empty or taken.
        """
        self.name = name

    @property
    def type(self) -> LayerType | None:
        """The documented kind; None for a layer that the guide does not have."""
        return _LAYER_TYPES.get(self.layer.kind)

    @property
    def nb_inputs(self) -> int:
        """Number of tensors that the layer reads."""
        return len(self.layer.inputs)

    def get_input(self, index: int) -> Tensor | None:
        """Return an input, or None when there is none."""
        return _at(self.layer.inputs, index)

    @property
    def nb_outputs(self) -> int:
        """Number of tensors that the layer computes."""
        return len(self.layer.outputs)

    def get_output(self, index: int) -> Tensor | None:
        """Return an output, or None when there is none."""
        return _at(self.layer.outputs, index)

    # ---- windows

    @property
    def kernel_size(self) -> tuple[int, int]:
        """Rows and columns of a window of a convolution, deconvolution or pooling."""
        return self._windowed("kernel_shape")

    @property
    def stride(self) -> tuple[int, int]:
        """Steps between windows: (1, 1) unless set."""
        return self._windowed("strides")

    def set_stride(self, stride: tuple[int, int]) -> None:
        """Set the steps between windows; what depends on them is inferred anew."""
        self._windowed("strides")
        self.layer.update(strides=stride)
        self._network.apply_formula(self)

    @property
    def padding(self) -> tuple[int, int]:
        """Zeros above and left of the input, and as many below and right: (0, 0) unless set."""
        return self._windowed("pads")

    def set_padding(self, padding: tuple[int, int]) -> None:
        """Set the zeros on either side; what depends on them is inferred anew."""
        self._windowed("pads")
        refuse = partial(ShapeError, node=self.name)
        self.layer.update(pads=require_ints(padding, "padding", refuse, count=2, least=0) * 2)
        self._network.apply_formula(self)

    @property
    def nb_groups(self) -> int:
        """Parts into which channels and filters are divided: 1 unless set."""
        return self._network.groups_of(self.layer)

    def set_nb_groups(self, groups: int) -> None:
        """Set the parts into which channels and filters are divided.

        The number of weights says for how many groups they are; the build compares the two.

        Raises ShapeError: the weights are for another number of groups.
        """
        self._network.set_groups(self.layer, groups)

    def _windowed(self, attribute: str) -> tuple[int, int]:
        numbers = getattr(self.layer.op, attribute, None)
        if numbers is None:
            raise GraphError(f"a layer of type {self.type!r} has no window", node=self.name)
        return (int(numbers[0]), int(numbers[1]))

    def __repr__(self) -> str:
        kind = self.layer.kind if self.type is None else self.type.name
        return f"InferLayer({self.name!r}, {kind})"


class InferNetwork:
    """A network with an implicit batch: a sequence of layers and a set of tensors.

    A tensor has a ``name``, a ``dtype`` and a ``shape``, its dims (C, H, W); the shape may be set
    where the tensor is an input. By default a result is called "layer [index]". Weights, arrays of
    any real type, are held by reference until the build, and kept alive.

    Source: GIE User Guide, "The network definition"; TensorRT 3.0.4 header, INetworkDefinition.
    """

    def __init__(self, name: str = "network") -> None:
        self.definition = NetworkDefinition(name, tensor_names="{layer} [{index}]")
        self._formulas: dict[LayerType, OutputDimensionsFormula] = {}
        self._unstated_groups: set[Node] = set()
        """Layers, by their node, whose weights are for groups that nobody has set yet."""

    @property
    def graph(self) -> Graph:
        """The graph that is built."""
        return self.definition.graph

    def fill(self, definition: NetworkDefinition) -> None:
        """Take over what a parser has read. Raises GraphError: there are layers already."""
        if self.definition.layers or self.definition.inputs:
            raise GraphError("the network already has layers; parse into an empty network")
        self.definition = definition

    def check(self, max_batch_size: int) -> None:
        """Check what is documented of a network as a whole; called when the build begins.

        Raises ShapeError: an input has too many elements, or groups of weights were not set.
        """
        max_batch_size = require_int(max_batch_size, "max_batch_size", BuildError, least=1)
        for tensor in self.definition.inputs:
            count = max_batch_size * math.prod(fixed_extents(tensor.shape, tensor.name))
            if count >= _INPUT_ELEMENTS:
                raise ShapeError(
                    f"{max_batch_size} x {list(tensor.shape)} are {count} elements; with its "
                    "batch an input must have fewer than 2^30",
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
        for index in range(self.nb_layers if self._formulas else 0):
            if (made := self.get_layer(index)) is not None:
                self.apply_formula(made)

    # ---- tensors

    def add_input(self, name: str, kind: DataType, dims: Sequence[int]) -> Tensor:
        """Add an input of dims (C, H, W), contiguous NCHW with the batch in front.

        Raises ShapeError: the dims are not three, or hold 2^30 elements or more.
        """
        refuse = partial(ShapeError, node=require_str(name, "the tensor's name", GraphError))
        extents = require_ints(dims, "the tuple of dims (C, H, W)", refuse, count=3, least=1)
        count = math.prod(extents)
        if count >= _INPUT_ELEMENTS:
            raise refuse(f"{count} elements; there must be fewer than 2^30")
        return self.definition.add_input(name, DataType.of(kind).dtype.value, extents)

    def mark_output(self, tensor: Tensor) -> None:
        """Make a tensor an output of the network."""
        self.definition.mark_output(tensor)

    @property
    def nb_inputs(self) -> int:
        """Number of inputs."""
        return len(self.definition.inputs)

    def get_input(self, index: int) -> Tensor | None:
        """Return an input, or None when there is none."""
        return _at(self.definition.inputs, index)

    @property
    def nb_outputs(self) -> int:
        """Number of outputs that are marked."""
        return len(self.definition.outputs)

    def get_output(self, index: int) -> Tensor | None:
        """Return an output, or None when there is none."""
        return _at(self.definition.outputs, index)

    @property
    def nb_layers(self) -> int:
        """Number of layers."""
        return len(self.definition.layers)

    def get_layer(self, index: int) -> InferLayer | None:
        """Return a layer, or None when there is none."""
        layer = _at(self.definition.layers, index)
        return None if layer is None else InferLayer(self, layer.nodes)

    # ---- groups and formulas

    def groups_of(self, layer: Layer) -> int:
        """The groups of a layer as they were set."""
        if layer.nodes[-1] in self._unstated_groups:
            return 1
        return int(getattr(layer.op, "group", 1))

    def set_groups(self, layer: Layer, groups: int) -> None:
        """Set the groups of a layer; see `InferLayer.set_nb_groups`."""
        made = getattr(layer.op, "group", None)
        if made is None:
            raise GraphError("only convolutions and deconvolutions have groups", node=layer.name)
        if made != require_int(groups, "groups", partial(ShapeError, node=layer.name), least=1):
            raise ShapeError(
                f"its weights are for {made} groups, not {groups}: they are K x C / groups x R x S "
                "for a convolution and C x K / groups x R x S for a deconvolution",
                node=layer.name,
            )
        self._unstated_groups.discard(layer.nodes[-1])

    def set_convolution_output_dimensions_formula(
        self, formula: OutputDimensionsFormula | None
    ) -> None:
        """Let a formula say how large convolutions' results are; None for the documented one."""
        self._set_formula(LayerType.CONVOLUTION, formula)

    def set_deconvolution_output_dimensions_formula(
        self, formula: OutputDimensionsFormula | None
    ) -> None:
        """Let a formula say how large deconvolutions' results are; None for the documented one."""
        self._set_formula(LayerType.DECONVOLUTION, formula)

    def set_pooling_output_dimensions_formula(
        self, formula: OutputDimensionsFormula | None
    ) -> None:
        """Let a formula say how large poolings' results are; None for the documented one."""
        self._set_formula(LayerType.POOLING, formula)

    def _set_formula(self, kind: LayerType, formula: OutputDimensionsFormula | None) -> None:
        if formula is not None:
            require_callable(formula, "the formula", GraphError)
        before = self._formulas.pop(kind, None)
        if formula is not None:
            self._formulas[kind] = formula
        for index in range(self.nb_layers):
            layer = self.get_layer(index)
            if layer is None or layer.type is not kind:
                continue
            if formula is not None:
                self.apply_formula(layer)
            elif before is not None:
                layer.set_padding(layer.padding)

    def apply_formula(self, layer: InferLayer) -> None:
        """Give a layer the extents that its formula asks for, if there is one."""
        formula = None if layer.type is None else self._formulas.get(layer.type)
        source = layer.get_input(0)
        if formula is None or source is None:
            return
        _, rows, columns = fixed_extents(source.shape, layer.name, 3)
        dims = (rows, columns)
        answer = formula(dims, layer.kernel_size, layer.stride, layer.padding, layer.name)
        layer.layer.update(**attributes_for(layer.layer.op, dims, answer, layer.name))

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
        """Add a 2-D correlation; weights are K x C x R x S, a bias of no numbers is none.

        Set stride, padding and groups on the layer. A window that is larger than the input needs
        its ``padding`` here already.
        """
        self.definition.value_of(x)  # or says what is none
        groups = _groups_of(weights, nb_output_maps, x, kernel_size)
        made = self.definition.add_convolution(
            x, nb_output_maps, kernel_size, weights, _optional(bias), padding=padding, groups=groups
        )
        return self._windowed(made, groups)

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
        """Add a deconvolution; weights are C x K x R x S."""
        self.definition.value_of(x)  # or says what is none
        groups = _groups_of(weights, nb_output_maps, x, kernel_size)
        made = self.definition.add_deconvolution(
            x, nb_output_maps, kernel_size, weights, _optional(bias), padding=padding, groups=groups
        )
        return self._windowed(made, groups)

    def add_fully_connected(
        self,
        x: Tensor,
        nb_outputs: int,
        weights: ArrayLike,
        bias: ArrayLike | None = None,
    ) -> InferLayer:
        """Add a fully connected layer: C x H x W becomes K x 1 x 1; weights are row-major."""
        made = self.definition.add_fully_connected(x, nb_outputs, weights, _optional(bias))
        return self._layer_of(made)

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
        """Add a pooling with stride 1; set another on the layer. A mean leaves the padding out."""
        name = PoolingType.of(kind).name.lower()
        made = self.definition.add_pooling(x, name, window_size, stride=1, padding=padding)
        return self._windowed(made, 1)

    def add_lrn(self, x: Tensor, window: int, alpha: float, beta: float, k: float) -> InferLayer:
        """Add a normalisation across channels.

        Raises ShapeError: the window is even or beyond 1 … 15, or a parameter out of its range.
        """
        if require_int(window, "the window of LRN", ShapeError) not in _LRN_WINDOWS:
            raise ShapeError(f"the window of LRN is {window}; it must be odd, 1 to 15")
        ranges = (("alpha", alpha, _LRN_ALPHA), ("beta", beta, _LRN_BETA))
        for name, value, (low, high) in (*ranges, ("k", k, _LRN_K)):
            require_float(value, f"{name} of LRN", ShapeError, low, high)
        made = self.definition.add_lrn(x, window, alpha=alpha, beta=beta, k=k)
        return self._layer_of(made)

    def add_scale(
        self,
        x: Tensor,
        mode: ScaleMode,
        shift: ArrayLike | None = None,
        scale: ArrayLike | None = None,
        power: ArrayLike | None = None,
    ) -> InferLayer:
        """Add ``(x * scale + shift) ^ power``; what is absent is 0, 1 and 1."""
        made = self.definition.add_scale(
            x,
            ScaleMode.of(mode).name.lower(),
            shift=_optional(shift),
            scale=_optional(scale),
            power=_optional(power),
        )
        return self._layer_of(made)

    def add_soft_max(self, x: Tensor) -> InferLayer:
        """Add a softmax across channels."""
        return self._layer_of(self.definition.add_softmax(x))

    def add_concatenation(self, inputs: Sequence[Tensor]) -> InferLayer:
        """Join tensors along the channels."""
        return self._layer_of(self.definition.add_concatenation(inputs))

    def add_element_wise(
        self, first: Tensor, second: Tensor, operation: ElementWiseOperation
    ) -> InferLayer:
        """Combine two tensors of one shape. Raises ShapeError: their dims differ."""
        for tensor in (first, second):
            self.definition.value_of(tensor)  # or says what is none
        if first.shape != second.shape:
            raise ShapeError(f"elementwise needs equal dims, not {first.shape} and {second.shape}")
        name = ElementWiseOperation.of(operation).name.lower()
        return self._layer_of(self.definition.add_elementwise(first, second, name))

    def _layer_of(self, made: Tensor) -> InferLayer:
        for layer in reversed(self.definition.layers):
            if any(output.value is made.value for output in layer.outputs):
                return InferLayer(self, layer.nodes)
        raise GraphError(f"{made.name} is not the output of a layer")

    def _windowed(self, made: Tensor, groups: int) -> InferLayer:
        layer = self._layer_of(made)
        if groups != 1:
            self._unstated_groups.add(layer.layer.nodes[-1])
        self.apply_formula(layer)
        return layer


def check_network(network: object) -> None:
    """See to it that a network is one. Raises GraphError."""
    if not isinstance(network, InferNetwork):
        kind = type(network).__name__
        raise GraphError(f"expected a network from create_network, not {kind}")


def _at(items: Sequence[ItemT], index: int) -> ItemT | None:
    index = require_int(index, "the index", GraphError)
    return items[index] if 0 <= index < len(items) else None


def _optional(numbers: ArrayLike | None) -> ArrayLike | None:
    """Weights of count 0 stand for none."""
    empty = numbers is None or not require_array(numbers, "an array of weights", GraphError).size
    return None if empty else numbers


def fixed_extents(shape: Shape, name: str, count: int | None = None) -> tuple[int, ...]:
    """Extents as the documented API has them: numbers. Raises ShapeError: one is open."""
    if not all(isinstance(extent, int) for extent in shape):
        raise ShapeError(
            f"{[*map(str, shape)]} has symbolic extents; dims must be numbers", node=name
        )
    return require_ints(shape, "dims", partial(ShapeError, node=name), count=count)


def _groups_of(weights: ArrayLike, count: int, x: Tensor, kernel_size: tuple[int, int]) -> int:
    """The groups for which there are so many weights; 1 if for none."""
    count = require_int(count, "nb_output_maps", ShapeError, least=1)
    extents = require_ints(kernel_size, "kernel_size", ShapeError, count=2, least=1)
    channels, *_ = fixed_extents(x.shape[:1], x.name, 1)
    every = count * channels * math.prod(extents)
    size = require_array(weights, "weights", GraphError).size
    groups = every // (size or 1)
    fits = groups * size == every
    return groups if fits and groups and not (count % groups or channels % groups) else 1
