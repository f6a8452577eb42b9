"""Layers that bring data in: they become inputs, where the prototxt tells their shape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from smelt.errors import GraphError, ModelFormatError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.importers.caffe._layer_context import Weights
    from smelt.importers.caffe._prototxt import Layer, Prototxt

DATA_LAYERS: Final = frozenset(
    {
        "Input",
        "Data",
        "DummyData",
        "HDF5Data",
        "ImageData",
        "MemoryData",
        "WindowData",
        "AnnotatedData",
    }
)
_CURE: Final = (
    'put an Input layer in its place: layer { name: "data" type: "Input" top: "data" '
    "input_param { shape { dim: 1 dim: 3 dim: 224 dim: 224 } } }"
)


def data_inputs(layer: Layer, net: Prototxt, weights: Weights) -> Sequence[Sequence[int] | str]:
    """The shape of each top, or why it has none. Raises ModelFormatError, GraphError."""
    if layer.bottoms:
        raise GraphError(f"a {layer.type} layer must have no bottom", node=f"layer {layer.name!r}")
    match layer.type:
        case "Input":
            shapes = [tuple(s.dim) for s in layer.parameters("input_param").shape]
        case "DummyData":
            shapes = _dummy_shapes(layer)
        case "MemoryData":
            p = layer.parameters("memory_data_param")
            shapes = [(p.batch_size, p.channels, p.height, p.width), (p.batch_size,)]
        case _:
            return _database_shapes(layer, net, weights)
    count = len(layer.tops)
    if len(shapes) == 1:
        shapes = shapes * count
    if len(shapes) < count or not count:
        raise ModelFormatError(
            f"{layer} has {count} tops and {len(shapes)} shapes; give one shape for each top"
        )
    return shapes[:count]


def _dummy_shapes(layer: Layer) -> list[tuple[int, ...]]:
    p = layer.parameters("dummy_data_param")
    if p.shape:
        return [tuple(shape.dim) for shape in p.shape]
    return list(zip(p.num, p.channels, p.height, p.width, strict=False))


def _database_shapes(layer: Layer, net: Prototxt, weights: Weights) -> list[Sequence[int] | str]:
    """A database knows the shape of its images; what is cropped is known here too."""
    labels: list[Sequence[int] | str] = [
        f"it is a label, which the {layer.type} layer {layer.name!r} reads from its source; {_CURE}"
    ] * (len(layer.tops) - 1)
    image = layer.parameters("image_data_param")
    size = layer.parameters("transform_param").crop_size
    height, width = (size, size) if size else (image.new_height, image.new_width)
    channels = _channels_read(layer, net, weights)
    if not (height and width and channels):
        return [
            f"its shape is in the source of the {layer.type} layer {layer.name!r}; {_CURE}",
            *labels,
        ]
    batch = layer.parameters("data_param").batch_size or image.batch_size
    return [(batch, channels, height, width), *labels]


def _channels_read(data: Layer, net: Prototxt, weights: Weights) -> int:
    """Channels that the first convolution of the data expects, 0 when there is none."""
    for layer in net.layers:
        if data.tops and data.tops[0] in layer.bottoms and layer.type == "Convolution":
            blobs = weights.blobs.get(layer.name, ())
            if blobs and len(blobs[0].shape) == 4:
                return blobs[0].shape[1] * int(layer.parameters("convolution_param").group)
    return 0
