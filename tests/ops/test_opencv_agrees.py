"""Caffe's own ops, run by OpenCV's importer of Caffe too."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from smelt.ops import LRN, AveragePool, Crop, DetectionOutput, MaxPool, PriorBox

cv2: Any = pytest.importorskip("cv2")

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smelt.ops import Array, Case


def run_opencv(layer: str, inputs: Mapping[str, Array]) -> Array:
    """The result ``y`` of one layer, given as prototxt."""
    text = ""
    for name, array in inputs.items():
        extents = " ".join(f"dim: {extent}" for extent in array.shape)
        text += f'input: "{name}" input_shape {{ {extents} }}\n'
    net = cv2.dnn.readNetFromCaffe(bytearray((text + layer).encode()))
    for name, array in inputs.items():
        net.setInput(array, name)
    result: Array = net.forward("y")
    return result


def _text(key: str, value: float | str | tuple[float, ...]) -> str:
    values = value if isinstance(value, tuple) else (value,)
    return " ".join(f"{key}: {str(v).lower() if isinstance(v, bool) else v}" for v in values)


def _named(case: Case, *names: str) -> dict[str, Array]:
    return {
        name: array for name, array in zip(names, case.inputs, strict=True) if array is not None
    }


@pytest.mark.parametrize(
    "case",
    [c for c in PriorBox.cases() if c.name != "given_image"],  # which OpenCV does not read
    ids=lambda case: case.name,
)
def test_prior_boxes_are_opencvs(case: Case) -> None:
    op = case.op
    assert isinstance(op, PriorBox)
    fields = ["min_size", "max_size", "aspect_ratio", "flip", "clip", "variance", "offset"]
    fields += [f for f in ("step_h", "step_w") if getattr(op, f)]
    parameters = " ".join(_text(field, getattr(op, field)) for field in fields)
    layer = (
        'layer { name: "y" type: "PriorBox" bottom: "a" bottom: "b" top: "y" '
        f"prior_box_param {{ {parameters} }} }}"
    )
    theirs = run_opencv(layer, _named(case, "a", "b"))
    (ours,) = op.reference(*case.inputs)
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize(
    "case",
    # OpenCV reads no eta, knows no CORNER_SIZE and gives a row where nothing is found.
    [
        c
        for c in DetectionOutput.cases()
        if c.name not in {"nothing_found", "corner_size", "adaptive_threshold"}
    ],
    ids=lambda case: case.name,
)
def test_detections_are_opencvs(case: Case) -> None:
    op = case.op
    assert isinstance(op, DetectionOutput)
    # OpenCV wants a number to keep, fills its result up with zeros, and always has a background.
    op = replace(op, background_label_id=0)
    if op.keep_top_k < 0:
        op = replace(op, keep_top_k=99)
    inputs = _named(case, "a", "b", "c")
    if op.variance_encoded_in_target:
        inputs["c"] = inputs["c"][:, :1].copy()
    fields = ["num_classes", "share_location", "background_label_id", "code_type", "keep_top_k"]
    fields += ["variance_encoded_in_target"]
    parameters = " ".join(_text(field, getattr(op, field)) for field in fields)
    threshold = max(op.confidence_threshold, -1e30)
    parameters += f" confidence_threshold: {threshold} nms_param {{ {_text('eta', op.eta)}"
    parameters += f" top_k: {op.top_k} nms_threshold: {op.nms_threshold} }}"
    layer = (
        'layer { name: "y" type: "DetectionOutput" bottom: "a" bottom: "b" bottom: "c" top: "y" '
        f"detection_output_param {{ {parameters} }} }}"
    )
    theirs = run_opencv(layer, inputs)
    (ours,) = op.reference(*case.inputs)
    np.testing.assert_allclose(_sorted(ours), _sorted(theirs), atol=1e-5)


def _sorted(rows: Array) -> Array:
    flat = rows.reshape(-1, 7)
    flat = flat[flat.any(axis=1)]
    return flat[np.lexsort((flat[:, 2], flat[:, 1], flat[:, 0]))]


@pytest.mark.parametrize("name", ["within", "within_larger_than_image", "across"])
def test_response_normalisation_is_opencvs(name: str) -> None:
    (case,) = (c for c in LRN.cases() if c.name == name)
    op = case.op
    assert isinstance(op, LRN)
    op = replace(op, bias=1.0)  # Caffe's within a channel, whatever k is
    region = "WITHIN_CHANNEL" if op.region == "within_channel" else "ACROSS_CHANNELS"
    layer = (
        'layer { name: "y" type: "LRN" bottom: "a" top: "y" lrn_param { '
        f"local_size: {op.size} alpha: {op.alpha} beta: {op.beta} k: {op.bias} "
        f"norm_region: {region} }} }}"
    )
    theirs = run_opencv(layer, _named(case, "a"))
    np.testing.assert_allclose(op.reference(*case.inputs)[0], theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ["MAX", "AVE"])
@pytest.mark.parametrize(
    ("kernel", "stride", "pad", "height", "width"),
    [(3, 2, 0, 12, 14), (3, 2, 1, 8, 9), (2, 2, 1, 5, 6), (3, 3, 1, 7, 8), (5, 1, 2, 4, 5)],
)
def test_pooling_rounds_up_as_caffe_does(
    kind: str, kernel: int, stride: int, pad: int, height: int, width: int
) -> None:
    x = np.random.default_rng(0).uniform(-1, 1, (1, 3, height, width)).astype(np.float32)
    layer = (
        'layer { name: "y" type: "Pooling" bottom: "a" top: "y" pooling_param { '
        f"pool: {kind} kernel_size: {kernel} stride: {stride} pad: {pad} }} }}"
    )
    window = ((kernel,) * 2, (stride,) * 2, (pad,) * 4)
    op = (
        MaxPool(*window, ceil_mode=True)
        if kind == "MAX"
        else AveragePool(*window, ceil_mode=True, count_include_pad=True)
    )
    np.testing.assert_allclose(op.reference(x)[0], run_opencv(layer, {"a": x}), atol=1e-6)


@pytest.mark.parametrize("case", list(Crop.cases()), ids=lambda case: case.name)
def test_crops_are_opencvs(case: Case) -> None:
    op = case.op
    assert isinstance(op, Crop)
    layer = (
        'layer { name: "y" type: "Crop" bottom: "a" bottom: "b" top: "y" crop_param { '
        f"axis: {op.axis} {_text('offset', op.offset)} }} }}"
    )
    theirs = run_opencv(layer, _named(case, "a", "b"))
    np.testing.assert_array_equal(op.reference(*case.inputs)[0], theirs)
