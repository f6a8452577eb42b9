"""``LayerContext``: inputs, weights and graph for the conversion of one layer."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from smelt import ops
from smelt.errors import GraphError, ModelFormatError, ShapeError
from smelt.ir import Constant
from smelt.types import DType, counted, similar_names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from smelt.importers.caffe._caffemodel_reader import Blob
    from smelt.importers.caffe._prototxt import Layer
    from smelt.ir import Array, FreshNames, Graph, Op, Value
    from smelt.types import Dim, Shape

_log = logging.getLogger("smelt.importers.caffe")
_ROLES: Final = ("weight", "bias")
BATCH: Final = "batch"
"""Name of the symbolic dimension that stands for the implicit batch."""


class UnsupportedLayerError(Exception):
    """Why a layer is not imported; the importer reports all such reasons together."""


@dataclass(frozen=True, slots=True)
class NetworkWeights:
    """The weights of a network by layer, and their storage type."""

    blobs: Mapping[str, Sequence[Blob]]
    what: str | None
    """Name of the caffemodel in messages; None if there is none."""
    dtype: DType


@dataclass(frozen=True, slots=True)
class LayerContext:
    """The context of the conversion of one layer."""

    layer: Layer
    inputs: tuple[Value, ...]
    graph: Graph
    weights: NetworkWeights
    parameters: Any
    """The message of the layer's parameters, with their defaults; None for a type without."""
    declared_batch: int | None
    """The extent that the prototxt declares for the implicit batch; None without inputs."""
    names: FreshNames
    """Names of nodes and constants; those of layers and blobs are reserved."""

    @property
    def where(self) -> str:
        """The layer as shown in errors."""
        return f"layer {self.layer.name!r}"

    @property
    def x(self) -> Value:
        """The first input."""
        return self.inputs[0]

    @property
    def shape(self) -> Shape:
        """Shape of the first input."""
        return self.x.tensor.shape

    @property
    def rank(self) -> int:
        """Rank of the first input."""
        return len(self.shape)

    def axis(self, axis: int) -> int:
        """Return an axis counted from the front.

        Raises:
            ShapeError: the axis is out of range.
        """
        rank = self.rank
        if not -rank <= axis < rank:
            raise self.shape_error(f"axis {axis} is out of range for an input of rank {rank}")
        return axis % rank

    def require_inputs(self, minimum: int, maximum: int) -> None:
        """Check the number of bottoms.

        Raises:
            GraphError: there are fewer or more.
        """
        if not minimum <= len(self.inputs) <= maximum:
            expected = str(minimum) if maximum == minimum else f"{minimum} to {maximum}"
            raise GraphError(
                f"the layer has {counted(len(self.inputs), 'bottom')}; its type, "
                f"{self.layer.type}, requires {expected}: correct its `bottom` fields",
                node=self.where,
            )

    def shape_error(self, problem: str) -> ShapeError:
        """Return the error for a problem with the shapes of this layer."""
        return ShapeError(problem, node=self.where)

    # ---- nodes

    def add(self, op: Op, *inputs: Value | Constant | None, part: str = "") -> Value:
        """Add a node with one result.

        The last node of a layer has the layer's name, the others ``layer:part``.
        """
        values = [self.graph.add_constant(v) if isinstance(v, Constant) else v for v in inputs]
        node = self.graph.add(
            op,
            *values,
            name=self.names.make(f"{self.layer.name}:{part}") if part else self.layer.name,
            layers=(self.layer.name,),
        )
        return node.output

    def number(self, value: float, name: str) -> Constant:
        """Return a scalar parameter of the layer as a constant."""
        return Constant(self.names.make(f"{self.layer.name}.{name}"), np.array(value, np.float32))

    def integers(self, values: Sequence[int], name: str) -> Constant:
        """Return integers as a constant vector, for example a shape or axes."""
        return Constant(self.names.make(f"{self.layer.name}.{name}"), np.array(values, np.int64))

    def reshape(self, value: Value, shape: Sequence[Dim], name: str = "") -> Value:
        """Reshape a value.

        Raises:
            ShapeError: more than one extent depends on the batch and is not at its old position.
        """
        source = value.tensor.shape
        target: list[int] = []
        for axis, extent in enumerate(shape):
            if isinstance(extent, int):
                target.append(extent)
            else:
                target.append(0 if axis < len(source) and source[axis] == extent else -1)
        if target.count(-1) > 1:
            raise self.shape_error(
                f"{list(source)} cannot be reshaped to {list(shape)}: two extents of the result "
                "depend on the batch"
            )
        constant = self.integers(target, f"{name or 'reshape'}.shape")
        return self.add(ops.Reshape(), value, constant, part=name)

    # ---- weights

    def blob_count(self) -> int:
        """Return the number of blobs that the caffemodel has for the layer."""
        return len(self.weights.blobs.get(self.layer.name, ()))

    def blob(self, index: int) -> Array:
        """Return the elements of a blob of the layer.

        Raises:
            ModelFormatError: the blob is missing.
        """
        blobs = self.weights.blobs.get(self.layer.name, ())
        if index < len(blobs):
            return blobs[index].array()
        if self.weights.what is None:
            raise ModelFormatError(
                f"{self.layer} needs weights, but no caffemodel was given; give the network's "
                "(`smelt build --weights FILE`; in Python the second argument)"
            )
        if blobs:
            found = counted(len(blobs), "blob")
            problem = f"needs more weights, but {self.weights.what} has only {found} for this layer"
        else:
            close = similar_names(self.layer.name, self.weights.blobs)
            hint = f" (similar names: {', '.join(map(repr, close))})" if close else ""
            problem = f"needs weights, but {self.weights.what} has no layer of that name{hint}"
        raise ModelFormatError(f"{self.layer} {problem}: do both files belong to the same network?")

    def weight(self, index: int, shape: Sequence[int], role: str | None = None) -> Constant:
        """Return blob ``index`` in a shape, as the constant ``layer.<role>``.

        The role is ``weight`` or ``bias`` by default. Extents of 1 are ignored, because legacy
        files pad shapes to four extents.

        Raises:
            ShapeError: the shapes differ otherwise.
        """
        array = self.blob(index)
        if [d for d in array.shape if d != 1] != [d for d in shape if d != 1]:
            raise self.shape_error(
                f"blob {index} of {self.weights.what} has the shape {list(array.shape)}, but the "
                f"prototxt requires {list(shape)}: the two files do not belong to the same network"
            )
        return self.store(array.reshape(shape), role or _ROLES[index])

    def store(self, array: Array, role: str) -> Constant:
        """Return weights as a constant; float16 weights are cast to float32 for computation."""
        name = f"{self.layer.name}.{role}"
        if not np.isfinite(array).all():
            _log.warning("%s has values that are not finite; they are imported unchanged", name)
        if self.weights.dtype is DType.FLOAT32:
            return Constant(name, array.astype(np.float32, copy=False))
        with np.errstate(over="ignore"):
            half = array.astype(np.float16, copy=False)
        if np.isinf(half).any() and not np.isinf(array).any():
            _log.warning("%s has values beyond float16's range; they become infinite", name)
        return self.derive(ops.Cast(DType.FLOAT32), Constant(name, half))

    def derive(self, op: Op, source: Constant, *others: Constant) -> Constant:
        """Return the constant that ``op`` computes from weights, with its recipe for refitting."""
        return Constant.derive(f"{source.name}:{op.name}", op, source, *others)

    def reshape_weight(self, source: Constant, shape: Sequence[int]) -> Constant:
        """Return weights in another shape, with the recipe for refitting."""
        if source.type.shape == tuple(shape):
            return source
        return self.derive(ops.Reshape(allowzero=1), source, self.integers(shape, "shape"))
