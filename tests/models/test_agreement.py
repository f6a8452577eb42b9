"""Every real model against ONNX Runtime or OpenCV, on one example, as built without timing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pytest

import smelt
from tests.support.real_models import (
    ALL_MODELS,
    CAFFE_MODELS,
    RealModel,
    arena_ratio,
    model_named,
    reference_steps,
    relative_error,
    run_engine,
)

if TYPE_CHECKING:
    from pathlib import Path

    from smelt import Engine

pytestmark = pytest.mark.shared


@dataclass(frozen=True, slots=True)
class _Built:
    model: RealModel
    engine: Engine


@pytest.fixture(scope="module", params=ALL_MODELS, ids=lambda model: model.name)
def built(request: pytest.FixtureRequest, shared: Path) -> _Built:
    model: RealModel = request.param
    return _Built(model, model.build(shared))


def test_an_engine_computes_what_the_other_engine_computes(built: _Built, shared: Path) -> None:
    mine = run_engine(built.engine, built.model.inputs(shared))
    theirs = built.model.peer(shared)
    assert mine.keys() == theirs.keys()
    for name, array in theirs.items():
        wanted = _without_empty_rows(array) if name == "detection_out" else array
        assert relative_error(mine[name], wanted) <= built.model.tolerance, name


def test_a_model_gives_the_same_bits_for_any_number_of_threads(built: _Built, shared: Path) -> None:
    given = built.model.inputs(shared)
    one, *others = (run_engine(built.engine, given, threads) for threads in (1, 2, 3, 4))
    for made in others:
        for name, array in one.items():
            np.testing.assert_array_equal(array, made[name], err_msg=name)


def test_an_engine_runs_nothing_as_a_reference_but_what_depends_on_data(built: _Built) -> None:
    assert reference_steps(built.engine) == []


def test_tensors_take_hardly_more_memory_than_must_be_alive_at_once(built: _Built) -> None:
    assert arena_ratio(built.engine) <= 1.1


@pytest.mark.parametrize("name", ["lenet", "mtcnn_r_onnx", "silero", "minilm"])
def test_a_model_tuned_by_timing_agrees_too_and_no_tactic_is_found_wrong(
    name: str, shared: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = model_named(name)
    mine = run_engine(model.build(shared, tune="fast"), model.inputs(shared))
    assert " is out: " not in caplog.text
    for output, array in model.peer(shared).items():
        assert relative_error(mine[output], array) <= model.tolerance, output


@pytest.mark.requirement("G-38")
@pytest.mark.parametrize(
    "name", ["lenet", "cifar10_quick", "mtcnn_o", "ultraface_caffe", "efficientnet_lite0"]
)
def test_every_picture_of_a_batch_gets_the_answer_that_it_gets_alone(
    name: str, shared: Path
) -> None:
    model = model_named(name)
    ((label, image),) = model.inputs(shared).items()
    steps = np.linspace(1, 0.5, 3, dtype=np.float32).reshape(-1, *[1] * (image.ndim - 1))
    images = np.concatenate([image, image[..., ::-1], image[..., ::-1, :]]) * steps
    engine = model.build(shared, max_batch_size=4, shapes=None)
    with engine.create_context() as context:
        together = context.run({label: images})
        for row in range(3):
            alone = context.run({label: np.ascontiguousarray(images[row : row + 1])})
            for output, array in alone.items():
                assert relative_error(together[output][row : row + 1], array) <= 1e-5, output


def test_a_detector_says_of_which_picture_its_boxes_are(shared: Path) -> None:
    model = model_named("face_ssd")
    image = model.inputs(shared)["data"]
    engine = model.build(shared, max_batch_size=2)
    with engine.create_context() as context:
        (alone,) = context.run({"data": image}).values()
        (both,) = context.run({"data": np.concatenate([image, image])}).values()
    first, second = (both[:, :, both[0, 0, :, 0] == number] for number in (0, 1))
    for part in (first, second):
        assert part.shape == alone.shape
        np.testing.assert_allclose(part[..., 1:], alone[..., 1:], atol=1e-4)


@pytest.mark.requirement("G-14", "G-23")
@pytest.mark.parametrize("model", CAFFE_MODELS, ids=lambda model: model.name)
def test_a_caffe_model_is_built_once_and_run_from_its_serialised_form(
    model: RealModel, shared: Path, tmp_path: Path
) -> None:
    engine = model.build(shared)
    engine.save(tmp_path / "model.engine")
    with smelt.Engine.load(tmp_path / "model.engine") as loaded:
        again = run_engine(loaded, model.inputs(shared))
    for name, array in run_engine(engine, model.inputs(shared)).items():
        np.testing.assert_array_equal(again[name], array, err_msg=name)


def _without_empty_rows(rows: np.ndarray) -> np.ndarray:
    """OpenCV fills up with zeros to the largest number of detections."""
    return rows[:, :, rows[0, 0, :, 2] > 0]
