"""NonMaxSuppression: the best boxes of each class that do not overlap a better box."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np

from smelt.ir import Case, Op, Operand
from smelt.ops._boxes import suppress
from smelt.ops._conformance_data import floats
from smelt.ops._reference_numerics import required
from smelt.ops._shape import (
    INDICES,
    input_type,
    known,
    optional_type,
    require_dtype,
    require_inputs,
    require_rank,
    require_scalar,
    require_shape,
)
from smelt.ops._shape_operands import operand_at
from smelt.types import DType, SymbolicDim, TensorType, override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array
    from smelt.types import Dim, ValueType

_MAX_BOX_BOUND: Final = 4096
"""Largest ``max_output_boxes_per_class`` that bounds a symbolic number of boxes.

Exporters use larger numbers for "all boxes"; as bounds they would reserve memory for far more boxes
than there are."""


@dataclass(frozen=True)
class NonMaxSuppression(Op):
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

    name: ClassVar[str] = "non_max_suppression"

    center_point_box: int = 0
    """0: boxes are two opposite corners (y, x, y, x); 1: boxes are centre x, y, width, height."""
    count_symbol: str = "selected_count"
    """Symbol of the number of rows."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_inputs(self, inputs, 2, 5)
        boxes, scores = input_type(self, inputs, 0), input_type(self, inputs, 1)
        require_dtype(boxes, {DType.FLOAT32}, "the boxes")
        require_dtype(scores, {DType.FLOAT32}, "the scores")
        require_rank(boxes, "the box tensor", 3)
        require_shape(boxes, (*boxes.shape[:2], 4), "the box tensor")
        require_rank(scores, "the score tensor", 3)
        require_shape(scores, (boxes.shape[0], scores.shape[1], boxes.shape[1]), "the scores")
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
        limit = operand_at(inputs, 2)
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
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        boxes, scores, limit, overlap, min_score = (*inputs, None, None, None)[:5]
        corners = self._corners(required(boxes))
        maximum = 0 if limit is None else int(limit.reshape(-1)[0])
        threshold = 0.0 if overlap is None else float(overlap.reshape(-1)[0])
        rows: list[tuple[int, int, int]] = []
        for image, per_class in enumerate(required(scores)):
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
