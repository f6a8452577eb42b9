"""Network definitions in the documented vocabulary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from smelt.errors import GraphError, ShapeError
from smelt.gie._enums import (
    ActivationType,
    DataType,
    ElementWiseOperation,
    LayerType,
    PoolingType,
    ScaleMode,
)
from smelt.network import Layer, NetworkDefinition, Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike

    from smelt.ir import Graph

ItemT = TypeVar("ItemT")

MAX_INPUT_ELEMENTS: Final = 1 << 30
"""Elements of an input, batch included, that the documented API allows."""
_MAX_LRN_WINDOW: Final = 15
_MAX_LRN_ALPHA: Final = 1e20
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

    def __init__(self, layer: Layer) -> None:
        self.layer = layer

    @property
    def name(self) -> str:
        """The layer's name, as profiler and build log show it."""
        return self.layer.name

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

    def set_stride(self, stride: tuple[int, int]) -> None:
        """Set the steps between windows of a convolution, deconvolution or pooling."""
        self.layer.update(strides=tuple(stride))

    def set_padding(self, padding: tuple[int, int]) -> None:
        """Set the zeros on either side of a convolution, deconvolution or pooling."""
        self.layer.update(pads=(*padding, *padding))

    def set_nb_groups(self, groups: int) -> None:
        """Set the parts into which channels and filters are divided."""
        self.layer.update(group=groups)

    def __repr__(self) -> str:
        kind = self.layer.kind if self.type is None else self.type.name
        return f"InferLayer({self.name!r}, {kind})"


class InferNetwork:
    """A network with an implicit batch: a sequence of layers and a set of tensors.

    Tensors have dims (C, H, W). Weights are held by reference until the build, and kept alive.
    Source: GIE User Guide, "The network definition"; TensorRT 3.0.4 header, INetworkDefinition.
    """

    def __init__(self, name: str = "network") -> None:
        self.definition = NetworkDefinition(name)

    @property
    def graph(self) -> Graph:
        """The graph that is built."""
        return self.definition.graph

    def fill(self, definition: NetworkDefinition) -> None:
        """Take over what a parser has read. Raises GraphError: there are layers already."""
        if self.definition.layers or self.definition.inputs:
            raise GraphError("the network has layers already; parse into a new one")
        self.definition = definition

    # ---- tensors

    def add_input(self, name: str, kind: DataType, dims: Sequence[int]) -> Tensor:
        """Add an input of dims (C, H, W), contiguous NCHW with the batch in front.

        Raises ShapeError: the dims are not three, or hold 2^30 elements or more.
        """
        count = 1
        for extent in dims:
            count *= extent
        if len(dims) != 3:
            raise ShapeError(f"dims are (C, H, W), not {tuple(dims)}", node=name)
        if count >= MAX_INPUT_ELEMENTS:
            raise ShapeError(f"{count} elements; there must be fewer than 2^30", node=name)
        return self.definition.add_input(name, DataType(kind).dtype.value, tuple(dims))

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
        return None if layer is None else InferLayer(layer)

    # ---- layers

    def add_convolution(
        self,
        x: Tensor,
        nb_output_maps: int,
        kernel_size: tuple[int, int],
        weights: ArrayLike,
        bias: ArrayLike | None = None,
    ) -> InferLayer:
        """Add a 2-D correlation; weights are K x C x R x S, a bias of no numbers is none."""
        made = self.definition.add_convolution(
            x, nb_output_maps, kernel_size, weights, _optional(bias)
        )
        return self._layer_of(made)

    def add_deconvolution(
        self,
        x: Tensor,
        nb_output_maps: int,
        kernel_size: tuple[int, int],
        weights: ArrayLike,
        bias: ArrayLike | None = None,
    ) -> InferLayer:
        """Add a deconvolution; weights are C x K x R x S."""
        made = self.definition.add_deconvolution(
            x, nb_output_maps, kernel_size, weights, _optional(bias)
        )
        return self._layer_of(made)

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
        name = ActivationType(kind).name.lower()
        return self._layer_of(self.definition.add_activation(x, name))

    def add_pooling(self, x: Tensor, kind: PoolingType, window_size: tuple[int, int]) -> InferLayer:
        """Add a pooling with stride 1; set another with `InferLayer.set_stride`."""
        name = PoolingType(kind).name.lower()
        made = self.definition.add_pooling(x, name, window_size, stride=1)
        return self._layer_of(made)

    def add_lrn(self, x: Tensor, window: int, alpha: float, beta: float, k: float) -> InferLayer:
        """Add a normalisation across channels.

        Raises ShapeError: the window is even or beyond 1 … 15, or a parameter out of its range.
        """
        if window % 2 == 0 or not 1 <= window <= _MAX_LRN_WINDOW:
            raise ShapeError(f"the window of LRN is {window}; it must be odd, 1 to 15")
        ranges = (("alpha", alpha, (-_MAX_LRN_ALPHA, _MAX_LRN_ALPHA)), ("beta", beta, _LRN_BETA))
        for name, value, (low, high) in (*ranges, ("k", k, _LRN_K)):
            if not low <= value <= high:
                raise ShapeError(f"{name} of LRN is {value}; it must be in [{low}, {high}]")
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
            ScaleMode(mode).name.lower(),
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
        return self._layer_of(self.definition.add_concatenation(list(inputs)))

    def add_element_wise(
        self, first: Tensor, second: Tensor, operation: ElementWiseOperation
    ) -> InferLayer:
        """Combine two tensors of one shape. Raises ShapeError: their dims differ."""
        if first.shape != second.shape:
            raise ShapeError(f"elementwise needs equal dims, not {first.shape} and {second.shape}")
        name = ElementWiseOperation(operation).name.lower()
        return self._layer_of(self.definition.add_elementwise(first, second, name))

    def _layer_of(self, made: Tensor) -> InferLayer:
        for layer in reversed(self.definition.layers):
            if any(output.value is made.value for output in layer.outputs):
                return InferLayer(layer)
        raise GraphError(f"no layer makes {made.name}")


def _at(items: Sequence[ItemT], index: int) -> ItemT | None:
    return items[index] if 0 <= index < len(items) else None


def _optional(numbers: ArrayLike | None) -> ArrayLike | None:
    """Weights of count 0 stand for none."""
    size = getattr(numbers, "size", None)
    empty = size == 0 if size is not None else numbers in ((), [])
    return None if numbers is None or empty else numbers
