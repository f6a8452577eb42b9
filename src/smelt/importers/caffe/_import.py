"""Import of a Caffe network: converts its layers in order."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from smelt.errors import GraphError, ModelFormatError, ShapeError, UnsupportedError
from smelt.importers.caffe._caffemodel_reader import MAXIMUM_RANK
from smelt.importers.caffe._data_layers import DATA_LAYERS, channels_read, data_inputs
from smelt.importers.caffe._files import read_caffemodel, read_prototxt
from smelt.importers.caffe._layer_context import (
    BATCH,
    LayerContext,
    NetworkWeights,
    UnsupportedLayerError,
)
from smelt.importers.caffe._layer_table import DROPPED, LAYERS
from smelt.importers.caffe._prototxt import parse_prototxt
from smelt.ir import FreshNames, Graph
from smelt.types import DType, SymbolicDim, TensorType, counted, require_choice

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from smelt.importers.caffe._prototxt import Layer, Prototxt
    from smelt.ir import Value
    from smelt.types import Dim

_log = logging.getLogger(__name__)

MAXIMUM_EXTENT: Final = 1 << 31
"""Exclusive limit of the extents of an input."""


def import_caffe(
    prototxt: Path | bytes | str,
    caffemodel: Path | bytes | str | None = None,
    *,
    dtype: str = "float32",
    outputs: Sequence[str] | None = None,
) -> tuple[Graph, dict[str, Value]]:
    """Read a Caffe network as it runs in the TEST phase.

    The first extent of the inputs is the implicit batch: it becomes the symbol ``batch``, whatever
    the prototxt declares. An input whose first extent differs from that of the first input keeps
    it. Data layers become inputs; losses, Accuracy and Silence are removed. Weights are constants
    named ``layer.weight`` and ``layer.bias`` (``.slope`` of PReLU, ``.mean`` and ``.variance`` of
    BatchNorm, divided by their count), in the shapes that Caffe gives them.

    Args:
        prototxt: a path, the bytes of a file, or the text (a string with a brace or a line end).
        caffemodel: a path or the bytes of a file; None for a network without weights.
        dtype: storage type of the weights, ``float32`` or ``float16``. Weights in float16 are cast
            to float32 where they are used, so inputs, outputs and arithmetic are float32 unless the
            build selects another precision.
        outputs: blobs to mark as outputs; None marks those that no layer reads, an empty list none.

    Returns:
        The graph, and the value of each blob after the last layer that writes it.

    Raises:
        ModelFormatError: a file is missing, malformed, truncated or of another kind.
        GraphError: layers do not fit together; ShapeError if their shapes do not.
        UnsupportedError: layers cannot be imported; the message lists them with reasons.
    """
    require_choice(dtype, "the dtype of weights", UnsupportedError, ("float32", "float16"))
    net = parse_prototxt(*read_prototxt(prototxt))
    weights = _weights_by_layer(caffemodel, DType(dtype))
    _refuse_unknown(net)
    importer = _Importer(net, weights)
    importer.run()
    return importer.graph, importer.finish(outputs)


def _weights_by_layer(caffemodel: Path | bytes | str | None, dtype: DType) -> NetworkWeights:
    if caffemodel is None:
        return NetworkWeights({}, None, dtype)
    layers, what = read_caffemodel(caffemodel)
    return NetworkWeights({layer.name: layer.blobs for layer in layers if layer.blobs}, what, dtype)


def _refuse_unknown(net: Prototxt) -> None:
    """Report all layers that are not supported whatever their shapes are.

    Raises:
        UnsupportedError: there are such layers.
    """
    reasons: list[str] = []
    for layer in net.layers:
        if layer.type in DROPPED or layer.type in DATA_LAYERS:
            continue
        rule = LAYERS.get(layer.type)
        if rule is None:
            reasons.append(f"{layer}: layers of this type are not supported")
        elif reason := rule.refuse(rule.parameters(layer)):
            reasons.append(f"{layer}: {reason}")
    _raise_reasons(reasons)


def _raise_reasons(reasons: Sequence[str]) -> None:
    if reasons:
        layers, them = (
            ("a layer", "it") if len(reasons) == 1 else (f"{len(reasons)} layers", "them")
        )
        raise UnsupportedError(
            f"the network has {layers} that smelt cannot import; end the network before {them}, "
            "and compute the rest outside of smelt:",
            reasons=reasons,
        )


class _Importer:
    """The graph under construction, and the present value of each blob."""

    def __init__(self, net: Prototxt, weights: NetworkWeights) -> None:
        self.graph = Graph(net.name)
        self._net = net
        own = (name for layer in net.layers for name in (layer.name, *layer.tops))
        self._names = FreshNames(self.graph, (*own, *(name for name, _ in net.inputs)))
        self._weights = weights
        self._blobs: dict[str, Value] = {}
        self._read: set[Value] = set()
        self._unknown: dict[str, str] = {}
        """Blobs without a value, with the reason."""
        self._needed = {
            bottom for layer in net.layers if layer.type not in DROPPED for bottom in layer.bottoms
        }
        """Blobs that layers read which are kept; labels are only read by losses."""
        self._channels = channels_read(net, weights)
        self._declared_batch: int | None = None
        self._reasons: list[str] = []
        self._writers = {top: layer.name for layer in reversed(net.layers) for top in layer.tops}
        """The first layer that writes each blob."""

    def run(self) -> None:
        """Convert all layers.

        Raises:
            UnsupportedError: layers are not supported; the message lists all reasons.
        """
        for name, dims in self._net.inputs:
            self._add_input(name, dims, f"input {name!r}")
        for layer in self._net.layers:
            if layer.type in DATA_LAYERS:
                self._add_data_layer(layer)
            elif layer.type == "Silence":
                self._take_bottoms(layer)
            elif layer.type not in DROPPED:
                self._convert(layer)
        _raise_reasons(self._reasons)

    def finish(self, outputs: Sequence[str] | None) -> dict[str, Value]:
        """Name the values after their blobs, mark the outputs, and return the blobs.

        Raises:
            GraphError: there is no blob with the name of an output.
        """
        names = {value.name for value in self.graph.inputs}
        for name, value in self._blobs.items():
            if value.producer is not None and name not in names:
                value.name = name
        if outputs is None:
            chosen = [
                value
                for value in self._blobs.values()
                if value not in self._read and value.producer is not None
            ]
        else:
            chosen = [self._find_output(name) for name in outputs]
        self.graph.outputs = list(dict.fromkeys(chosen))
        return dict(self._blobs)

    def _find_output(self, name: str) -> Value:
        if name not in self._blobs:
            last_blobs = ", ".join(list(self._blobs)[-8:])
            raise GraphError(
                f"there is no blob {name!r} to use as an output; the last blobs are {last_blobs}"
            )
        return self._blobs[name]

    def _add_input(self, name: str, dims: Sequence[int], where: str) -> None:
        """Add an input; its first extent becomes the batch if it equals that of the first input."""
        if not 1 <= len(dims) <= MAXIMUM_RANK or any(not 1 <= d < MAXIMUM_EXTENT for d in dims):
            raise ShapeError(
                f"the declared shape {list(dims[:MAXIMUM_RANK])} must have 1 to {MAXIMUM_RANK} "
                f"extents, each from 1 to {MAXIMUM_EXTENT - 1}",
                node=where,
            )
        if name in self._blobs:
            raise GraphError(f"two inputs have the name {name!r}; rename one", node=where)
        batch: Dim = dims[0]
        if self._declared_batch in (None, dims[0]):
            self._declared_batch = dims[0]
            batch = SymbolicDim.symbol(BATCH)
            _log.info("%s: the declared batch of %d becomes the dynamic batch", where, dims[0])
        else:
            _log.info(
                "%s: the first extent of %d differs from the batch of the first input, so it "
                "stays fixed",
                where,
                dims[0],
            )
        type_ = TensorType(DType.FLOAT32, (batch, *dims[1:]))
        self._blobs[name] = self.graph.add_input(name, type_)

    def _add_data_layer(self, layer: Layer) -> None:
        """Add inputs for the tops of a data layer that are needed."""
        shapes = data_inputs(layer, self._channels)
        for top, shape in zip(layer.tops, shapes, strict=True):
            if isinstance(shape, str):
                self._unknown[top] = shape
            elif top in self._needed:
                self._add_input(top, shape, f"layer {layer.name!r}")

    def _convert(self, layer: Layer) -> None:
        """Convert one layer, or record why that is not possible."""
        inputs = self._take_bottoms(layer)
        try:
            if inputs is not None:
                self._put_tops(layer, self._results(layer, inputs))
                return
        except UnsupportedLayerError as refusal:
            self._reasons.append(f"{layer}: {refusal}")
        self._unknown |= dict.fromkeys(layer.tops, "the layer that computes it is not supported")

    def _results(self, layer: Layer, inputs: Sequence[Value]) -> list[Value]:
        """Add the nodes of a layer, and return the value of each top."""
        where, rule = f"layer {layer.name!r}", LAYERS[layer.type]
        if not layer.tops:
            raise GraphError("the layer has no top; add one", node=where)
        step = LayerContext(
            layer,
            tuple(inputs),
            self.graph,
            self._weights,
            rule.parameters(layer),
            self._declared_batch,
            self._names,
        )
        if rule.bottoms is not None:
            step.require_inputs(*rule.bottoms)
        try:
            return rule.convert(step)
        except ShapeError as error:
            if error.node is not None:
                raise
            raise step.shape_error(error.message) from error

    def _take_bottoms(self, layer: Layer) -> list[Value] | None:
        """Return the values of the bottoms; None if one depends on an unsupported layer.

        Raises:
            GraphError: a blob does not exist.
            ModelFormatError: a blob has no value.
        """
        values: list[Value] = []
        for name in layer.bottoms:
            if name in self._blobs:
                self._read.add(self._blobs[name])
                values.append(self._blobs[name])
            elif name not in self._unknown:
                raise self._missing_blob_error(layer, name)
            elif not self._unknown[name].startswith("the layer"):
                raise ModelFormatError(f"{layer} reads {name!r}: {self._unknown[name]}")
        return values if len(values) == len(layer.bottoms) else None

    def _missing_blob_error(self, layer: Layer, bottom: str) -> GraphError:
        """Return the error for a blob that does not exist at this point."""
        writer = self._writers.get(bottom)
        if writer is None:
            problem = "which is neither an input nor the top of a layer: correct the name"
        elif writer == layer.name:
            problem = "which is the layer's own top: name another bottom"
        else:
            problem = f"which the later layer {writer!r} computes: move this layer after that one"
        return GraphError(
            f"the bottom is the blob {bottom!r}, {problem}", node=f"layer {layer.name!r}"
        )

    def _put_tops(self, layer: Layer, results: Sequence[Value]) -> None:
        """Set the tops of a layer to its results."""
        where = f"layer {layer.name!r}"
        if len(layer.tops) != len(results):
            raise GraphError(
                f"the layer names {counted(len(layer.tops), 'top')}, but with these bottoms and "
                f"parameters it has {counted(len(results), 'result')}; correct its `top` fields",
                node=where,
            )
        if len(set(layer.tops)) != len(layer.tops):
            raise GraphError(f"two tops have the same name: {', '.join(layer.tops)}", node=where)
        for top, value in zip(layer.tops, results, strict=True):
            if top in self._blobs and top not in layer.bottoms:
                raise GraphError(
                    f"the layer overwrites the blob {top!r} without reading it; rename the top",
                    node=where,
                )
            if value is not self._blobs.get(top):
                value.name = f"{top}@{layer.name}"
            # Inserted again at the end, so that outputs are in the order of their computation.
            self._blobs.pop(top, None)
            self._blobs[top] = value
