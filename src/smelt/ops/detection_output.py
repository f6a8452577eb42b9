"""DetectionOutput: box regressions and class scores to detections (Caffe SSD)."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.errors import ShapeError
from smelt.ir import Case, Op, Operand
from smelt.ops._boxes import suppress
from smelt.ops._conformance_data import floats
from smelt.ops._reference_numerics import narrow, required, widen
from smelt.ops._shape import (
    FLOATS,
    input_type,
    known,
    require_dtype,
    require_inputs,
    require_rank,
    require_shape,
)
from smelt.ops._shape_operands import present
from smelt.types import (
    SymbolicDim,
    TensorType,
    assume_divides,
    assume_equal,
    element_count,
    override,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array
    from smelt.types import Dim, ValueType

_CODES = ("CORNER", "CENTER_SIZE", "CORNER_SIZE")


@dataclass(frozen=True)
class DetectionOutput(Op):
    """Detections as rows ``[image, label, score, xmin, ymin, xmax, ymax]``.

    Inputs are locations, confidences and priors (the result of PriorBox). Boxes are decoded. For
    each class except the background, the ``top_k`` best boxes above the confidence threshold go
    through greedy non-maximum suppression. The ``keep_top_k`` best detections of each image are
    kept, sorted by label and then by descending score. The number of rows, which may be 0, is the
    symbol ``count_symbol``. The code that adds the node must set its upper bound in the graph's
    ``symbol_bounds`` (see ``count_bound``).

    Shapes: locations ``[N, priors * L * 4]`` (L is 1 if shared, otherwise num_classes), confidences
    ``[N, priors * num_classes]``, priors ``[1, 2, priors * 4]``; trailing extents of 1 are allowed;
    result ``[1, 1, count, 7]``.

    Dtypes: floating-point; the result's is the confidences'.

    Raises ShapeError: when the shapes of the inputs do not match or ``code_type`` is unknown.

    Source: Caffe (SSD) DetectionOutputLayer.
    """

    name: ClassVar[str] = "detection_output"

    num_classes: int
    """Number of classes, including the background."""
    share_location: bool = True
    """Whether all classes share one box for each prior."""
    background_label_id: int = 0
    """Class that is not detected; -1 for none."""
    nms_threshold: float = 0.3
    """Intersection over union above which the box of the lower score is suppressed."""
    top_k: int = -1
    """Number of boxes of a class that enter suppression; -1 for all."""
    eta: float = 1.0
    """Factor of a threshold above 0.5 after each box that is kept."""
    code_type: str = "CORNER"
    """Encoding of locations: "CORNER", "CENTER_SIZE" or "CORNER_SIZE"."""
    variance_encoded_in_target: bool = False
    """Whether the locations are already scaled by the variances."""
    keep_top_k: int = -1
    """Maximum number of detections of an image; -1 for all."""
    confidence_threshold: float = -np.inf
    """Detections must have a score above this threshold."""
    count_symbol: str = "detection_count"
    """Symbol of the number of rows."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_inputs(self, inputs, 3)
        location, confidence, prior = (input_type(self, inputs, index) for index in range(3))
        for kind, what in ((location, "locations"), (confidence, "confidences"), (prior, "priors")):
            require_dtype(kind, FLOATS, f"the tensor of {what}")
            require_rank(kind, f"the tensor of {what}", 2, 4)
        if self.code_type not in _CODES:
            raise ShapeError(
                f"code_type is {self.code_type!r}; it must be one of {', '.join(_CODES)}"
            )
        rows = 1 if self.variance_encoded_in_target and prior.shape[1] == 1 else 2
        require_shape(prior, (1, rows, *prior.shape[2:]), "the prior tensor")
        coordinates = element_count(prior.shape[2:])
        if not assume_divides(4, coordinates, "elements of input 2, four for a prior"):
            raise ShapeError(f"{coordinates} coordinates of prior boxes are not a multiple of 4")
        priors = coordinates // 4
        shared = 1 if self.share_location else self.num_classes
        self._check_extent(location, priors * (shared * 4), "locations")
        self._check_extent(confidence, priors * self.num_classes, "confidences")
        if not assume_equal(location.shape[0], confidence.shape[0], "axis 0 of inputs 0 and 1"):
            raise ShapeError(
                f"there are locations for {location.shape[0]} images and confidences for "
                f"{confidence.shape[0]}"
            )
        count = SymbolicDim.symbol(self.count_symbol)
        return (TensorType(confidence.dtype, (1, 1, count, 7)),)

    @staticmethod
    def _check_extent(kind: TensorType, wanted: Dim, what: str) -> None:
        extent = element_count(kind.shape[1:])
        if not assume_equal(extent, wanted, f"{what} of an image, and what the priors need"):
            raise ShapeError(
                f"there are {extent} {what} for each image; the prior boxes need {wanted}"
            )

    def count_bound(self, inputs: Sequence[Operand | None]) -> Dim:
        """Return the upper bound of the number of rows."""
        location, confidence, prior = (input_type(self, inputs, index) for index in range(3))
        images = known(location.shape[0], confidence.shape[0])
        if self.keep_top_k >= 0:
            return images * self.keep_top_k
        boxes_per_class: Dim = element_count(prior.shape[2:]) // 4
        if self.top_k >= 0:
            boxes_per_class = (
                min(boxes_per_class, self.top_k) if isinstance(boxes_per_class, int) else self.top_k
            )
        return images * self.num_classes * boxes_per_class

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        location, confidence, prior = (widen(required(array)) for array in inputs)
        images, dtype = location.shape[0], present(inputs, 1).dtype
        priors = prior.reshape(prior.shape[1], prod(prior.shape[2:]) // 4, 4)
        shared = 1 if self.share_location else self.num_classes
        boxes = self._decode(location.reshape(images, priors.shape[1], shared, 4), priors)
        scores = confidence.reshape(images, priors.shape[1], self.num_classes)
        rows = [
            (image, label, scores[image, box, label], *self._boxes_of(boxes[image], label)[box])
            for image in range(images)
            for label, box in self._detect(boxes[image], scores[image])
        ]
        return (narrow(np.array(rows, np.float32).reshape(1, 1, len(rows), 7), dtype),)

    def _decode(self, location: Array, priors: Array) -> Array:
        """Decode the locations to the corners of boxes ``[images, priors, L, 4]``."""
        prior = priors[0][None, :, None]
        if not self.variance_encoded_in_target:
            location = location * priors[1][None, :, None]
        if self.code_type == "CORNER":
            return np.asarray(prior + location)
        low, high = prior[..., :2], prior[..., 2:]
        extent = high - low
        if self.code_type == "CORNER_SIZE":
            return np.asarray(prior + location * np.concatenate((extent, extent), axis=-1))
        centre = (low + high) / 2 + location[..., :2] * extent
        with np.errstate(over="ignore"):
            half = extent * np.exp(location[..., 2:]) / 2
        return np.concatenate((centre - half, centre + half), axis=-1)

    def _boxes_of(self, boxes: Array, label: int) -> Array:
        return boxes[:, 0 if self.share_location else label]

    def _detect(self, boxes: Array, scores: Array) -> list[tuple[int, int]]:
        """Return label and box index of the detections of an image."""
        detections: list[tuple[int, int]] = []
        for label in range(self.num_classes):
            if label == self.background_label_id:
                continue
            row = scores[:, label]
            ranking = np.argsort(-row, kind="stable")
            ranking = ranking[row[ranking] > self.confidence_threshold]
            if self.top_k >= 0:
                ranking = ranking[: self.top_k]
            corners = self._boxes_of(boxes, label)
            kept = suppress(corners, ranking, self.nms_threshold, ranking.size, self.eta)
            detections += [(label, box) for box in kept]
        if 0 <= self.keep_top_k < len(detections):
            best = sorted(detections, key=lambda pair: -float(scores[pair[1], pair[0]]))
            detections = sorted(best[: self.keep_top_k], key=lambda pair: pair[0])
        return detections

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        def case(name: str, op: DetectionOutput, images: int, count: int) -> Case:
            shared = 1 if op.share_location else op.num_classes
            location = floats(images, count * shared * 4)
            confidence = floats(images, count * op.num_classes, low=0, seed=1)
            corners = floats(count, 2, low=0.0, high=0.7, seed=2)
            edges = floats(count, 2, low=0.1, high=0.3, seed=3)
            boxes = np.concatenate((corners, corners + edges), axis=1).reshape(-1)
            variances = np.tile(np.array([0.1, 0.1, 0.2, 0.2], np.float32), count)
            return Case(name, op, (location, confidence, np.stack((boxes, variances))[None]))

        op = cls(3, code_type="CENTER_SIZE", nms_threshold=0.45, confidence_threshold=0.1)
        yield case("centre_size", op, 1, 33)
        yield case("corner", cls(2, top_k=9, keep_top_k=4), 2, 17)
        yield case("corner_size", cls(3, code_type="CORNER_SIZE", keep_top_k=5), 1, 17)
        op = cls(4, share_location=False, code_type="CENTER_SIZE", keep_top_k=10, top_k=8)
        yield case("box_for_each_class", op, 2, 17)
        op = cls(2, variance_encoded_in_target=True, background_label_id=-1, nms_threshold=0.6)
        yield case("variance_encoded", op, 1, 9)
        yield case("adaptive_threshold", cls(2, eta=0.8, nms_threshold=0.9), 1, 33)
        yield case("nothing_found", cls(2, confidence_threshold=2.0), 1, 9)
