"""Detection: prior boxes, decoded boxes, and the suppression of overlapping ones."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from math import prod
from typing import TYPE_CHECKING, Final

import numpy as np

from smelt.errors import ShapeError
from smelt.ir import INTERPRETED_OPERATIONS, Array, Case, Operand
from smelt.ops._base import BuiltinOp
from smelt.ops._conformance_data import floats
from smelt.ops._reference_numerics import narrow, widen
from smelt.ops._shape import (
    FLOATS,
    INDICES,
    input_type,
    input_types,
    known,
    optional_type,
    require_choice,
    require_dtype,
    require_rank,
    require_scalar,
    require_shape,
)
from smelt.ops._shape_operands import input_at, present
from smelt.types import (
    DType,
    SymbolicDim,
    TensorType,
    assume_at_least,
    assume_divides,
    assume_equal,
    element_count,
    override,
)

if TYPE_CHECKING:
    from smelt.types import Dim, ValueType


def overlaps(box: Array, boxes: Array) -> Array:
    """Return the intersection over union of a box ``[x0, y0, x1, y1]`` with each of ``boxes``."""
    low, high = np.maximum(box[:2], boxes[:, :2]), np.minimum(box[2:], boxes[:, 2:])
    shared = np.prod(np.maximum(high - low, 0), axis=1)
    area = np.prod(np.maximum(box[2:] - box[:2], 0))
    areas = np.prod(np.maximum(boxes[:, 2:] - boxes[:, :2], 0), axis=1)
    union = area + areas - shared
    return np.where(union > 0, shared / np.where(union > 0, union, 1), 0)


def suppress(
    boxes: Array, ranking: Array, threshold: float, limit: int, eta: float = 1.0
) -> list[int]:
    """Return the indices of at most ``limit`` boxes that are kept, best first.

    ``ranking`` holds the indices of boxes, best first. A box is suppressed if its overlap with a
    better box that is kept exceeds the threshold. After each kept box, a threshold above 0.5 is
    multiplied by ``eta``.
    """
    kept: list[int] = []
    candidates = ranking
    while candidates.size and len(kept) < limit:
        best = int(candidates[0])
        kept.append(best)
        candidates = candidates[1:]
        if eta == 1.0:
            candidates = candidates[overlaps(boxes[best], boxes[candidates]) <= threshold]
        else:
            # A box is compared with the threshold at the time when it is the next candidate.
            if threshold > 0.5:
                threshold *= eta
            while candidates.size and overlaps(boxes[candidates[0]], boxes[kept]).max() > threshold:
                candidates = candidates[1:]
    return kept


def _suppression_work(sets: Dim, boxes: Dim, kept: Dim) -> Dim:
    """Return the operations of suppression in ``sets`` sets of boxes, of which so many are kept."""
    trips = sets * (kept + 1)
    return trips * (INTERPRETED_OPERATIONS + _PAIR_OPERATIONS * boxes)


_MAX_PRIORS: Final = 256
"""Sizes or aspect ratios of a PriorBox; detectors have fewer than 10."""
_PAIR_OPERATIONS: Final = 64
"""Operations in the time of comparing two boxes: 30 ns, in some 20 passes over short arrays."""
_MAX_BOX_BOUND: Final = 4096
"""Largest ``max_output_boxes_per_class`` that bounds a symbolic number of boxes.

Exporters use larger numbers for "all boxes"; as bounds they would reserve memory for far more boxes
than there are."""


class NonMaxSuppression(BuiltinOp):
    """Selected boxes as rows ``[image, class, box]``.

    The rows are sorted by image, then class, then descending score.

    Inputs are boxes, scores, and optionally max_output_boxes_per_class (without it no box is
    selected), iou_threshold and score_threshold. The number of rows is the symbol ``count_symbol``.
    The code that adds the node must set its upper bound in the graph's ``symbol_bounds`` (see
    ``count_bound``).

    Shapes: boxes ``[N, boxes, 4]``, scores ``[N, classes, boxes]``, the others one element
    each; result ``[count, 3]``.

    Dtypes: boxes, scores and thresholds float32, the maximum int64; result int64.

    Raises ShapeError: when the shapes of boxes and scores do not match.

    Source: ONNX NonMaxSuppression-11.
    """

    center_point_box: int = 0
    """0: boxes are two opposite corners (y, x, y, x); 1: boxes are centre x, y, width, height."""
    count_symbol: str = "selected_count"
    """Symbol of the number of rows."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        boxes, scores = input_types(self, inputs, 2, 5)
        require_dtype(boxes, {DType.FLOAT32}, "the box tensor")
        require_dtype(scores, {DType.FLOAT32}, "the score tensor")
        require_rank(boxes, "the box tensor", 3)
        require_shape(boxes, (*boxes.shape[:2], 4), "the box tensor")
        require_rank(scores, "the score tensor", 3)
        require_shape(scores, (boxes.shape[0], scores.shape[1], boxes.shape[1]), "the score tensor")
        for index, allowed in ((2, INDICES), (3, {DType.FLOAT32}), (4, {DType.FLOAT32})):
            kind = optional_type(self, inputs, index)
            if kind is not None:
                require_dtype(kind, allowed, f"input {index} of non_max_suppression")
                require_scalar(kind, f"input {index} of non_max_suppression")
        return (TensorType(DType.INT64, (SymbolicDim.symbol(self.count_symbol), 3)),)

    def count_bound(self, inputs: Sequence[Operand | None]) -> Dim:
        """Return the upper bound of the number of rows."""
        boxes, scores = input_type(self, inputs, 0), input_type(self, inputs, 1)
        best: Dim = known(boxes.shape[1], scores.shape[2])
        limit = input_at(inputs, 2)
        if limit is None:
            return 0
        if limit.dims is not None and isinstance(limit.dims[0], int):
            maximum = max(limit.dims[0], 0)
            if isinstance(best, int):
                best = min(best, maximum)
            elif maximum <= _MAX_BOX_BOUND:
                best = maximum
        return known(boxes.shape[0], scores.shape[0]) * scores.shape[1] * best

    @override
    def count_work(self, inputs: Sequence[Operand | None], results: Sequence[ValueType], /) -> Dim:
        boxes, scores = input_type(self, inputs, 0), input_type(self, inputs, 1)
        kept, limit = boxes.shape[1], input_at(inputs, 2)
        most = 0 if limit is None else limit.elements
        if most is not None and isinstance(kept, int):
            kept = min(kept, max(int(np.reshape(most, -1)[0]), 0))
        return _suppression_work(scores.shape[0] * scores.shape[1], boxes.shape[1], kept)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        limit, overlap, min_score = (input_at(inputs, index) for index in (2, 3, 4))
        corners = self._corners(present(inputs, 0))
        maximum = 0 if limit is None else int(limit.reshape(-1)[0])
        threshold = 0.0 if overlap is None else float(overlap.reshape(-1)[0])
        rows: list[tuple[int, int, int]] = []
        for image, per_class in enumerate(present(inputs, 1)):
            for label, row in enumerate(per_class):
                ranking = np.argsort(-row, kind="stable")
                if min_score is not None:
                    ranking = ranking[row[ranking] > min_score.reshape(-1)[0]]
                kept = suppress(corners[image], ranking, threshold, max(maximum, 0))
                rows += [(image, label, box) for box in kept]
        return (np.array(rows, np.int64).reshape(-1, 3),)

    def _corners(self, boxes: Array) -> Array:
        """Return the boxes as pairs of a minimum and a maximum corner."""
        first, second = boxes[..., :2], boxes[..., 2:]
        if self.center_point_box:
            return np.concatenate((first - second / 2, first + second / 2), axis=-1)
        return np.concatenate((np.minimum(first, second), np.maximum(first, second)), axis=-1)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        def case(
            name: str, op: NonMaxSuppression, shape: tuple[int, int, int], most: int, *rest: float
        ) -> Case:
            images, classes, count = shape
            first = floats(images, count, 2, high=1.0, low=0.0)
            second = floats(images, count, 2, low=0.1, high=0.5, seed=1)
            boxes = np.concatenate((first, second if op.center_point_box else first + second), -1)
            scores = floats(images, classes, count, low=0.0, seed=2)
            limits = [np.array([value], np.float32) for value in rest]
            arrays = (boxes, scores, np.array([most], np.int64), *limits)
            return Case(name, op, arrays, constants=frozenset({2, 3, 4}))

        yield case("one_class", cls(), (1, 1, 33), 5, 0.5, 0.1)
        yield case("classes_and_images", cls(), (2, 3, 17), 4, 0.3, 0.0)
        yield case("centres", cls(center_point_box=1), (1, 2, 33), 9, 0.4, 0.2)
        yield case("high_score_only", cls(), (1, 1, 65), 65, 0.9, 0.8)
        yield case("nothing_left", cls(), (1, 2, 9), 3, 0.5, 2.0)
        yield case("no_thresholds", cls(), (1, 2, 9), 3)
        flipped = np.array([[[1, 1, 0, 0], [0, 0.1, 1, 1.1], [0, 10, 1, 11]]], np.float32)
        scores = np.array([[[0.9, 0.75, 0.6]]], np.float32)
        arrays = (flipped, scores, np.array([3], np.int64), np.array([0.5], np.float32))
        yield Case("flipped_corners", cls(), arrays, constants=frozenset({2, 3}))
        yield Case("no_maximum", cls(), arrays[:2])


_CODES = ("CORNER", "CENTER_SIZE", "CORNER_SIZE")


class DetectionOutput(BuiltinOp):
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
        location, confidence, prior = input_types(self, inputs, 3)
        for kind, what in ((location, "locations"), (confidence, "confidences"), (prior, "priors")):
            require_dtype(kind, FLOATS, f"the tensor of {what}")
            require_rank(kind, f"the tensor of {what}", 2, 4)
        require_choice(self.code_type, _CODES, "code_type")
        rows = 1 if self.variance_encoded_in_target and prior.shape[1] == 1 else 2
        require_shape(prior, (1, rows, *prior.shape[2:]), "the prior tensor")
        coordinates = element_count(prior.shape[2:])
        if not assume_divides(4, coordinates, "the number of coordinates in input 2"):
            raise ShapeError(
                f"the number of coordinates of the prior boxes is {coordinates}; it must be a "
                "multiple of 4"
            )
        priors = coordinates // 4
        shared = 1 if self.share_location else self.num_classes
        self._check_extent(location, priors * (shared * 4), "locations")
        self._check_extent(confidence, priors * self.num_classes, "confidences")
        if not assume_equal(location.shape[0], confidence.shape[0], "axis 0 of inputs 0 and 1"):
            raise ShapeError(
                f"the number of images is {location.shape[0]} in the locations and "
                f"{confidence.shape[0]} in the confidences; both must be equal"
            )
        count = SymbolicDim.symbol(self.count_symbol)
        return (TensorType(confidence.dtype, (1, 1, count, 7)),)

    @staticmethod
    def _check_extent(kind: TensorType, wanted: Dim, what: str) -> None:
        extent = element_count(kind.shape[1:])
        named = f"the number of {what} for each image and the number that the prior boxes need"
        if not assume_equal(extent, wanted, named):
            raise ShapeError(
                f"the number of {what} for each image is {extent}; the prior boxes need {wanted}"
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
    def count_work(self, inputs: Sequence[Operand | None], results: Sequence[ValueType], /) -> Dim:
        location, _, prior = (input_type(self, inputs, index) for index in range(3))
        boxes: Dim = element_count(prior.shape[2:]) // 4
        kept = min(boxes, self.top_k) if self.top_k >= 0 and isinstance(boxes, int) else boxes
        return _suppression_work(location.shape[0] * max(self.num_classes, 1), boxes, kept)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        location, confidence, prior = (widen(present(inputs, index)) for index in range(3))
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


class PriorBox(BuiltinOp):
    """Prior boxes around the cells of a feature map, as fractions of the image.

    Inputs are the feature map and the image, of which only the shapes are used. For each min_size,
    a cell has a square of that size, a square of the geometric mean of min_size and max_size, and
    one box for each other aspect ratio. The second row of the result holds the variances. Sizes are
    not rounded to pixels.

    Shapes: two tensors ``[N, C, H, W]`` give ``[1, 2, H * W * boxes * 4]``.

    Dtypes: any; the result is float32.

    Raises ShapeError: when the attributes are invalid or the feature map is empty.

    Source: Caffe (SSD) PriorBoxLayer.
    """

    min_size: tuple[float, ...]
    """Side lengths of the squares in pixels."""
    max_size: tuple[float, ...] = ()
    """Side length in pixels for each min_size; empty for no second square."""
    aspect_ratio: tuple[float, ...] = ()
    """Ratios of width to height in addition to 1."""
    flip: bool = True
    """Whether the inverse of each ratio is added."""
    clip: bool = False
    """Whether boxes are clipped to the image."""
    variance: tuple[float, ...] = (0.1,)
    """One variance, or one for each of the four coordinates."""
    img_h: int = 0
    """Height of the image; 0 for that of the second input."""
    img_w: int = 0
    """Width of the image; 0 for that of the second input."""
    step_h: float = 0.0
    """Height of a cell in pixels; 0 for the image height divided by the feature map height."""
    step_w: float = 0.0
    """Width of a cell in pixels; 0 for the image width divided by the feature map width."""
    offset: float = 0.5
    """Position of the box centre in its cell, as a fraction of the cell."""

    @property
    def ratios(self) -> tuple[float, ...]:
        """All distinct aspect ratios, starting with 1."""
        ratios = [1.0]
        for ratio in self.aspect_ratio:
            if all(abs(ratio - other) > 1e-6 for other in ratios):
                ratios += [ratio, 1.0 / ratio] if self.flip else [ratio]
        return tuple(ratios)

    @property
    def sizes(self) -> tuple[tuple[float, float], ...]:
        """Width and height in pixels of each box of a cell."""
        sizes: list[tuple[float, float]] = []
        for index, edge in enumerate(self.min_size):
            sizes.append((edge, edge))
            if self.max_size:
                mean = math.sqrt(edge * self.max_size[index])
                sizes.append((mean, mean))
            roots = [math.sqrt(ratio) for ratio in self.ratios[1:]]
            sizes += [(edge * root, edge / root) for root in roots]
        return tuple(sizes)

    def _check_attributes(self) -> None:
        """Check sizes, ratios and variances. Raises ShapeError."""
        for name in ("min_size", "aspect_ratio"):
            count = len(getattr(self, name))
            if count > _MAX_PRIORS:  # the ratios are compared with each other
                raise ShapeError(f"{name} has {count} numbers; at most {_MAX_PRIORS} are supported")
        if not self.min_size or min(self.min_size) <= 0:
            raise ShapeError(
                f"min_size of prior_box is {self.min_size}; it must have at least one number, and "
                "all must be positive"
            )
        if self.max_size and len(self.max_size) != len(self.min_size):
            raise ShapeError(
                f"max_size is {self.max_size}; it must have as many numbers as min_size, or be "
                "empty"
            )
        if any(high <= low for low, high in zip(self.min_size, self.max_size, strict=False)):
            raise ShapeError(
                f"max_size is {self.max_size}; each number must exceed that of min_size, "
                f"{self.min_size}"
            )
        if not all(0 < ratio < math.inf for ratio in self.aspect_ratio):
            raise ShapeError(f"aspect_ratio is {self.aspect_ratio}; it must be positive and finite")
        if len(self.variance) not in {1, 4}:
            raise ShapeError(f"variance is {self.variance}; it must have one number or four")

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        feature, image = input_types(self, inputs, 2)
        self._check_attributes()
        require_rank(feature, "the feature map of prior_box", 4)
        require_rank(image, "the image of prior_box", 4)
        height, width = feature.shape[2:]
        for axis, extent in enumerate((height, width), 2):
            if not assume_at_least(extent, 1, f"axis {axis} of input 0"):
                raise ShapeError(f"the feature map {feature} is empty, so it has no prior boxes")
        count = height * width * (len(self.sizes) * 4)
        return (TensorType(DType.FLOAT32, (1, 2, count)),)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        height, width = (int(e) for e in present(inputs, 0).shape[2:])
        image_h, image_w = present(inputs, 1).shape[2:]
        image_h, image_w = self.img_h or image_h, self.img_w or image_w
        step_h = self.step_h or image_h / max(height, 1)
        step_w = self.step_w or image_w / max(width, 1)
        y: Array = (np.arange(height) + self.offset)[:, None, None] * step_h / image_h
        x: Array = (np.arange(width) + self.offset)[None, :, None] * step_w / image_w
        halves = np.array(self.sizes).T / 2
        half_w, half_h = halves[0] / image_w, halves[1] / image_h
        edges = np.broadcast_arrays(x - half_w, y - half_h, x + half_w, y + half_h)
        boxes = np.stack(edges, axis=-1).reshape(-1)
        if self.clip:
            boxes = np.clip(boxes, 0, 1)
        variances = self.variance if len(self.variance) == 4 else self.variance * 4
        rows = np.stack((boxes, np.tile(np.array(variances), boxes.size // 4)))
        return (rows[None].astype(np.float32),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        arrays = (floats(1, 3, 3, 5), floats(1, 3, 32, 48))
        yield Case("square", cls((10.0,)), arrays)
        four = (0.1, 0.1, 0.2, 0.2)
        yield Case("ssd", cls((30.0,), (60.0,), (2.0, 3.0), variance=four), arrays)
        op = cls((8.0, 12.5), (16.0, 20.0), (2.0, 1.0), flip=False, clip=True)
        yield Case("clipped", op, arrays)
        op = cls((10.0, 16.0, 24.0), step_h=8.0, step_w=10.0, offset=0.25)
        yield Case("given_steps", op, arrays)
        yield Case("given_image", cls((10.0,), img_h=100, img_w=80), arrays)
