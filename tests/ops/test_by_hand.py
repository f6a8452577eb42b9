"""What no other library here computes rightly, against loops that say what is meant."""

from __future__ import annotations

from math import ceil, floor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import smelt
from smelt.ir import Graph
from smelt.ops import (
    LRN,
    BatchNormalization,
    Case,
    DetectionOutput,
    Gemm,
    NonMaxSuppression,
    Normalize,
    Operand,
    Pad,
    PriorBox,
)
from smelt.types import DType, TensorType

if TYPE_CHECKING:
    from smelt.ops import Array, Op


def _case(op: type[Op], name: str) -> Case:
    (case,) = (c for c in op.cases() if c.name == name)
    return case


@pytest.mark.parametrize("name", ["across", "across_even", "across_series", "across_few_channels"])
def test_response_normalisation_across_channels_is_the_sum_that_onnx_writes_down(name: str) -> None:
    case = _case(LRN, name)
    op, x = case.op, case.inputs[0]
    assert isinstance(op, LRN)
    assert x is not None
    expected = np.empty_like(x)
    for channel in range(x.shape[1]):
        first = max(0, channel - floor((op.size - 1) / 2))
        last = min(x.shape[1] - 1, channel + ceil((op.size - 1) / 2))
        energy = (x[:, first : last + 1] ** 2).sum(axis=1)
        expected[:, channel] = x[:, channel] / (op.bias + op.alpha / op.size * energy) ** op.beta
    np.testing.assert_allclose(op.reference(x)[0], expected, rtol=1e-5)


def test_response_normalisation_within_a_channel_divides_by_the_whole_square() -> None:
    case = _case(LRN, "within_larger_than_image")
    op, x = case.op, case.inputs[0]
    assert isinstance(op, LRN)
    assert x is not None
    expected = np.empty_like(x)
    half = op.size // 2
    for row in range(x.shape[2]):
        for column in range(x.shape[3]):
            rows = slice(max(0, row - half), row + half + 1)
            columns = slice(max(0, column - half), column + half + 1)
            energy = (x[:, :, rows, columns] ** 2).sum(axis=(2, 3)) * op.alpha / op.size**2
            expected[..., row, column] = x[..., row, column] / (op.bias + energy) ** op.beta
    np.testing.assert_allclose(op.reference(x)[0], expected, rtol=1e-5)


@pytest.mark.parametrize("across", [True, False])
def test_normalize_divides_by_the_norm_of_the_image_or_of_the_place(across: bool) -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (2, 3, 2, 2)).astype(np.float32)
    scale = np.array([1, 2, 3], np.float32)
    (y,) = Normalize(across_spatial=across, channel_shared=False, eps=0.5).reference(x, scale)
    for image in range(2):
        for row, column in np.ndindex(2, 2):
            part = x[image] if across else x[image, :, row, column]
            norm = np.sqrt((part**2).sum() + 0.5)
            expected = x[image, :, row, column] / norm * scale
            np.testing.assert_allclose(y[image, :, row, column], expected, rtol=1e-5)


def test_prior_boxes_are_fractions_of_the_image_that_is_given() -> None:
    feature, image = np.zeros((1, 1, 1, 2), np.float32), np.zeros((1, 3, 7, 7), np.float32)
    op = PriorBox((10.0,), img_h=100, img_w=80, step_h=8.0, step_w=8.0)
    (rows,) = op.reference(feature, image)
    centres = [(4 / 80, 4 / 100), (12 / 80, 4 / 100)]
    expected = [(x - 5 / 80, y - 5 / 100, x + 5 / 80, y + 5 / 100) for x, y in centres]
    np.testing.assert_allclose(rows[0, 0].reshape(2, 4), expected, rtol=1e-6)
    np.testing.assert_allclose(rows[0, 1], 0.1)


def _overlap(a: Array, b: Array) -> float:
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    if width <= 0 or height <= 0:
        return 0.0
    areas = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1])
    return float(width * height / (areas - width * height))


def test_an_eta_below_one_lowers_the_threshold_after_each_box_that_stays() -> None:
    case = _case(DetectionOutput, "adaptive_threshold")
    op = case.op
    assert isinstance(op, DetectionOutput)
    location, confidence, prior = (a for a in case.inputs if a is not None)
    corners, variances = prior[0].reshape(2, -1, 4)
    boxes = corners + location.reshape(-1, 4) * variances
    scores = confidence.reshape(-1, 2)[:, 1]
    threshold, kept = op.nms_threshold, list[int]()
    for box in np.argsort(-scores):
        if all(_overlap(boxes[box], boxes[other]) <= threshold for other in kept):
            kept.append(int(box))
            threshold *= op.eta if threshold > 0.5 else 1
    (rows,) = op.reference(*case.inputs)
    assert 1 < len(kept) < len(scores)
    np.testing.assert_allclose(rows[0, 0, :, 2], scores[kept])
    np.testing.assert_allclose(rows[0, 0, :, 3:], boxes[kept], atol=1e-6)


def test_corner_size_scales_the_offsets_by_the_extents_of_the_prior() -> None:
    location = np.array([[1, 2, 3, 4]], np.float32)
    prior = np.array([[[0, 0, 0.5, 0.25], [0.1, 0.1, 0.2, 0.2]]], np.float32)
    op = DetectionOutput(2, code_type="CORNER_SIZE")
    (rows,) = op.reference(location, np.array([[0.2, 0.8]], np.float32), prior)
    expected = [0, 1, 0.8, 0.1 * 0.5, 0.2 * 0.25, 0.5 + 0.6 * 0.5, 0.25 + 0.8 * 0.25]
    np.testing.assert_allclose(rows[0, 0], [expected], rtol=1e-6)


def test_no_detection_gives_no_row() -> None:
    case = _case(DetectionOutput, "nothing_found")
    assert case.op.reference(*case.inputs)[0].shape == (1, 1, 0, 7)


@pytest.mark.parametrize("op", [NonMaxSuppression, DetectionOutput])
def test_the_number_of_rows_stays_within_its_bound(op: type[Op]) -> None:
    for case in op.cases():
        assert isinstance(case.op, NonMaxSuppression | DetectionOutput)
        operands = [None if a is None else Operand.constant(a) for a in case.inputs]
        bound = case.op.count_bound(operands)
        assert isinstance(bound, int)
        assert case.op.reference(*case.inputs)[0].shape[-2] <= bound


@pytest.mark.parametrize("pads", [(1, -1), (-2, 3), (-1, -1), (2, 2), (0, -3)])
@pytest.mark.parametrize("mode", ["wrap", "edge", "constant"])
def test_pads_of_both_signs_continue_with_what_is_left(mode: str, pads: tuple[int, int]) -> None:
    """ONNX does not say; ONNX Runtime removes elements first."""
    x = np.arange(5, dtype=np.float32)
    before, after = pads
    left = x[max(0, -before) : 5 - max(0, -after)]
    if mode == "edge" and min(pads) < 0 < max(pads):
        pytest.skip("which of its edges goes on is not said either")
    made = (max(0, before), max(0, after))
    expected: Array = np.pad(left, made, "constant")
    if mode == "edge":
        expected = np.pad(left, made, "edge")
    elif mode == "wrap":
        expected = np.pad(left, made, "wrap")
    (y,) = Pad(mode=mode).reference(x, np.array(pads))
    np.testing.assert_array_equal(y, expected)


def test_a_batch_norm_without_deviation_is_an_infinite_factor_and_term() -> None:
    x = np.array([[[3.0, -3.0, 0.0]]], np.float32)
    graph = Graph("norm")
    rows = [np.full(1, n, np.float32) for n in (1.0, 1.0, 1.0, 0.0)]
    constants = [graph.add_constant(row, f"c{k}") for k, row in enumerate(rows)]
    given = graph.add_input("x", TensorType(DType.FLOAT32, x.shape))
    op = BatchNormalization(epsilon=0.0)
    graph.outputs = [graph.add(op, given, *constants, name="y").output]
    expected = [[[np.nan, -np.inf, np.nan]]]
    np.testing.assert_array_equal(op.reference(x, *rows)[0], expected)
    with smelt.build(graph, tune="none") as engine:
        np.testing.assert_array_equal(engine.run({"x": x})["y"], expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_gemm_ignores_the_addend_if_its_scale_is_0(dtype: Any) -> None:
    ones, addend = np.ones((2, 2), dtype), np.array([np.inf, np.nan], dtype)
    assert Gemm(beta=0).reference(ones, ones, addend)[0].tolist() == [[2, 2], [2, 2]]
