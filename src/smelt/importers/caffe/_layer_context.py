"""What converting one layer needs: its inputs, its weights, and the graph to add nodes to."""

from __future__ import annotations

import difflib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from smelt import ops
from smelt.errors import GraphError, ModelFormatError, ShapeError
from smelt.ir import Constant
from smelt.types import DType

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from smelt.importers.caffe._protobuf_wire import Blob
    from smelt.importers.caffe._prototxt import Layer
    from smelt.ir import Array, Graph, Op, Value
    from smelt.types import Dim, Shape

_log = logging.getLogger("smelt.importers.caffe")
_ROLES: Final = ("weight", "bias")


class UnsupportedLayer(Exception):
    """Why a layer is not imported; the importer gathers these and reports all at once."""


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of a network by layer, and how to store them."""

    blobs: Mapping[str, Sequence[Blob]]
    what: str | None
    """What the file is called; None when there is none."""
    dtype: DType


@dataclass(frozen=True, slots=True)
class LayerContext:
    """One layer on its way into the graph."""

    layer: Layer
    inputs: tuple[Value, ...]
    graph: Graph
    weights: Weights
    batches: Mapping[str, int]
    """The symbols that stand for the declared batch, and what the prototxt declares for them."""

    @property
    def where(self) -> str:
        """The layer, as errors name it."""
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

    def parameters(self, field: str) -> Any:
        """The layer's parameters, with their defaults."""
        return self.layer.parameters(field)

    def axis(self, axis: int, rank: int | None = None) -> int:
        """The axis counted from the front. Raises ShapeError naming the layer."""
        rank = self.rank if rank is None else rank
        if not -rank <= axis < rank:
            raise self.misfit(f"axis {axis} is outside its input of {rank} axes")
        return axis % rank

    def require_inputs(self, minimum: int, maximum: int | None = None) -> None:
        """Check the number of bottoms. Raises GraphError naming the layer."""
        limit = minimum if maximum is None else maximum
        if not minimum <= len(self.inputs) <= limit:
            wanted = str(minimum) if limit == minimum else f"{minimum} to {limit}"
            raise GraphError(
                f"{self.layer.type} takes {wanted} bottoms, not {len(self.inputs)}; correct the "
                "prototxt",
                node=self.where,
            )

    def misfit(self, problem: str) -> ShapeError:
        """The error that says what does not fit in this layer."""
        return ShapeError(problem, node=self.where)

    # ---- nodes

    def add(self, op: Op, *inputs: Value | Constant | None, name: str = "") -> Value:
        """Add a node of one result. The layer's last node has its name, others ``layer:name``."""
        values = [self.graph.add_constant(v) if isinstance(v, Constant) else v for v in inputs]
        node = self.graph.add(
            op,
            *values,
            name=f"{self.layer.name}:{name}" if name else self.layer.name,
            layers=(self.layer.name,),
        )
        return node.output

    def number(self, value: float, name: str) -> Constant:
        """A scalar parameter of the layer."""
        return Constant(f"{self.layer.name}:{name}", np.array(value, np.float32))

    def integers(self, values: Sequence[int], name: str) -> Constant:
        """A vector of integers, as shapes and axes are given to ops."""
        return Constant(f"{self.layer.name}:{name}", np.array(values, np.int64))

    def reshape(self, value: Value, shape: Sequence[Dim], name: str = "") -> Value:
        """Give a value another shape of the same number of elements.

        Raises ShapeError: when more than one extent depends on the batch and is not where it was.
        """
        source = value.tensor.shape
        wanted: list[int] = []
        for axis, extent in enumerate(shape):
            if isinstance(extent, int):
                wanted.append(extent)
            else:
                wanted.append(0 if axis < len(source) and source[axis] == extent else -1)
        if wanted.count(-1) > 1:
            raise self.misfit(
                f"it reshapes {list(source)} to {list(shape)}, which uses the batch twice"
            )
        constant = self.integers(wanted, f"{name or 'reshape'}.shape")
        return self.add(ops.Reshape(), value, constant, name=name)

    # ---- weights

    def blob_count(self) -> int:
        """How many blobs the caffemodel has for the layer."""
        return len(self.weights.blobs.get(self.layer.name, ()))

    def blob(self, index: int) -> Array:
        """The elements of a blob of the layer. Raises ModelFormatError when there is none."""
        blobs = self.weights.blobs.get(self.layer.name, ())
        if index < len(blobs):
            return blobs[index].array()
        if self.weights.what is None:
            raise ModelFormatError(
                f"{self.layer} needs weights, and no caffemodel was given: name the network's "
                "(smelt build --weights FILE; in Python the second argument)"
            )
        if blobs:
            problem = f"needs more than the {len(blobs)} blobs that {self.weights.what} has for it"
        else:
            close = difflib.get_close_matches(self.layer.name, self.weights.blobs, 3)
            hint = f" (it has {', '.join(map(repr, close))})" if close else ""
            problem = f"needs weights, and {self.weights.what} has none of that name{hint}"
        raise ModelFormatError(f"{self.layer} {problem}: do both files belong to the same network?")

    def weight(self, index: int, shape: Sequence[int], role: str | None = None) -> Constant:
        """Blob ``index`` in a shape, as the constant ``layer.weight``, ``.bias`` or another role.

        Extents of one are free, as legacy files pad to four. Raises ShapeError when others differ.
        """
        array = self.blob(index)
        if [d for d in array.shape if d != 1] != [d for d in shape if d != 1]:
            raise self.misfit(
                f"blob {index} of {self.weights.what} is {list(array.shape)} where the prototxt "
                f"expects {list(shape)}: the two files do not belong to the same network"
            )
        return self.store(array.reshape(shape), role or _ROLES[index])

    def store(self, array: Array, role: str) -> Constant:
        """Weights as a constant of the graph; with float16 weights, computed with as float32."""
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
        """What ``op`` makes of weights, recorded, so that new weights take the same way."""
        return Constant.derive(f"{source.name}:{op.name}", op, source, *others)

    def reshape_weight(self, source: Constant, shape: Sequence[int]) -> Constant:
        """Weights in another shape, recorded."""
        if source.type.shape == tuple(shape):
            return source
        return self.derive(ops.Reshape(), source, self.integers(shape, "shape"))
