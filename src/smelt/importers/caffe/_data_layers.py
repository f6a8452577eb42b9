"""Data layers, which become inputs if the prototxt determines their shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from smelt.errors import GraphError, ModelFormatError
from smelt.types import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from smelt.importers.caffe._layer_context import NetworkWeights
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
_ADVICE: Final = (
    'replace that layer by an Input layer, such as: layer { name: "data" type: "Input" top: "data" '
    "input_param { shape { dim: 1 dim: 3 dim: 224 dim: 224 } } }"
)


def data_inputs(layer: Layer, channels: Mapping[str, int]) -> Sequence[Sequence[int] | str]:
    """Return for each top of a data layer its shape, or why the shape is unknown.

    ``channels`` is the result of ``channels_read``.

    Raises:
        ModelFormatError: the number of shapes does not match that of the tops.
        GraphError: the layer has a bottom.
    """
    if layer.bottoms:
        raise GraphError(
            f"the layer has a bottom; a layer of type {layer.type} must have none",
            node=f"layer {layer.name!r}",
        )
    match layer.type:
        case "Input":
            shapes = [tuple(s.dim) for s in layer.parameters("input_param").shape]
        case "DummyData":
            shapes = _dummy_shapes(layer)
        case "MemoryData":
            p = layer.parameters("memory_data_param")
            shapes = [(p.batch_size, p.channels, p.height, p.width), (p.batch_size,)]
        case _:
            return _database_shapes(layer, channels)
    count = len(layer.tops)
    if len(shapes) == 1:
        shapes = shapes * count
    if len(shapes) < count or not count:
        raise ModelFormatError(
            f"{layer} has {counted(count, 'top')} and {counted(len(shapes), 'shape')}; give at "
            "least one top, and one shape for each top"
        )
    return shapes[:count]


def _dummy_shapes(layer: Layer) -> list[tuple[int, ...]]:
    p = layer.parameters("dummy_data_param")
    if p.shape:
        return [tuple(shape.dim) for shape in p.shape]
    return list(zip(p.num, p.channels, p.height, p.width, strict=False))


def _database_shapes(layer: Layer, channels: Mapping[str, int]) -> list[Sequence[int] | str]:
    """Return the shapes of a layer that reads files, as far as the prototxt determines them.

    The extents of an image are known if it is cropped or resized.
    """
    unknown = f"its shape is in the data that the {layer} reads, not in the prototxt; {_ADVICE}"
    labels: list[Sequence[int] | str] = [unknown] * (len(layer.tops) - 1)
    image = layer.parameters("image_data_param")
    size = layer.parameters("transform_param").crop_size
    height, width = (size, size) if size else (image.new_height, image.new_width)
    depth = channels.get(layer.tops[0], 0) if layer.tops else 0
    if not (height and width and depth):
        return [unknown, *labels]
    batch = layer.parameters("data_param").batch_size or image.batch_size
    return [(batch, depth, height, width), *labels]


def channels_read(net: Prototxt, weights: NetworkWeights) -> dict[str, int]:
    """Return for each blob the channels that its first convolution with weights expects."""
    channels: dict[str, int] = {}
    for layer in net.layers:
        if layer.type == "Convolution":
            blobs = weights.blobs.get(layer.name, ())
            if blobs and len(blobs[0].shape) == 4:
                count = blobs[0].shape[1] * int(layer.parameters("convolution_param").group)
                for bottom in layer.bottoms:
                    channels.setdefault(bottom, count)
    return channels
