"""``smelt bench``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from smelt import ops
from smelt.builder import build
from smelt.ir import Graph
from smelt.types import DType, SymbolicDim, TensorType
from tests.support.small_models import boxes_model, save_model, two_inputs_model

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Smelt


def test_the_answer_has_its_documented_keys_and_sane_numbers(smelt: Smelt, engine: Path) -> None:
    detail = smelt("bench", engine, "--iterations", "20", "--threads", "1", "--json").json
    assert set(detail) == {
        "engine", "network", "device", "threads", "batch", "sizes", "iterations",
        "best_ms", "median_ms", "mean_ms", "p95_ms", "items_per_second",
    }  # fmt: skip
    assert (detail["iterations"], detail["threads"], detail["batch"]) == (20, 1, 1)
    assert 0 < detail["best_ms"] <= detail["median_ms"] <= detail["p95_ms"]
    assert detail["items_per_second"] == pytest.approx(1000 / detail["mean_ms"])


def test_a_time_limit_ends_the_measurement(smelt: Smelt, engine: Path) -> None:
    detail = smelt("bench", engine, "--seconds", "0.05", "--warmup", "0", "--json").json
    assert detail["iterations"] * detail["mean_ms"] < 1000


@pytest.mark.requirement("G-57", "G-58", "G-59")
def test_a_profile_averages_every_layer_of_the_optimised_engine_under_its_fused_name(
    smelt: Smelt, engine: Path
) -> None:
    layers = smelt("bench", engine, "--iterations", "3", "--profile", "--json").json["layers"]
    names = [layer["name"] for layer in layers]
    inspected = smelt("inspect", engine, "--json").json["plans"][0]["layers"]
    assert names == [layer["name"] for layer in inspected]
    assert "conv1 + relu1" in names
    assert all(layer["milliseconds"] >= 0 for layer in layers)
    assert sum(layer["share"] for layer in layers) == pytest.approx(1.0)


@pytest.mark.requirement("G-33")
def test_the_profile_is_a_table_of_names_and_times(smelt: Smelt, engine: Path) -> None:
    text = smelt("bench", engine, "--iterations", "3", "--profile").out
    assert "best " in text
    for name in ("conv1 + relu1", "pool", "scores", "prob"):
        assert any(line.strip().startswith(name) for line in text.splitlines())


def test_a_model_is_built_for_the_batch_that_is_asked_for(smelt: Smelt, open_model: Path) -> None:
    options = ("--tune", "none", "--iterations", "3", "--json")
    detail = smelt("bench", open_model, "--shape", "image=1..4x3x16x16", "--batch", 2, *options)
    assert detail.json["batch"] == 2
    largest = smelt("bench", open_model, "--shape", "image=1..4x3x16x16", *options)
    assert largest.json["batch"] == 4


def test_a_batch_that_the_engine_does_not_have_is_refused(smelt: Smelt, engine: Path) -> None:
    answer = smelt("bench", engine, "--batch", "3")
    assert answer.code == 1
    assert (
        "the engine's batch is fixed at 1; if the model has a dynamic batch, build an engine for a "
        "batch of 3" in answer.err
    )


def test_an_unknown_input_is_refused(smelt: Smelt, engine: Path) -> None:
    answer = smelt("bench", engine, "--input", "picture=random")
    assert answer.code == 1
    assert "no input 'picture'" in answer.err


def test_results_whose_size_depends_on_data_can_be_measured(smelt: Smelt, tmp_path: Path) -> None:
    path = save_model(boxes_model(), tmp_path / "boxes.onnx")
    answer = smelt("bench", path, "--tune", "none", "--iterations", "3", "--json")
    assert answer.code == 0, answer.err
    assert answer.json["iterations"] == 3


def test_open_extents_other_than_the_batch_are_measured_at_their_largest(
    smelt: Smelt, tmp_path: Path
) -> None:
    path = save_model(two_inputs_model(), tmp_path / "two.onnx")
    shapes = ("--shape", "a=1..3x6", "--shape", "b=1..3x4")
    answer = smelt("bench", path, *shapes, "--tune", "none", "--iterations", "3", "--json")
    assert answer.code == 0, answer.err
    assert answer.json["batch"] == 3


def test_the_largest_batch_of_all_plans_is_the_default(
    smelt: Smelt, open_model: Path, tmp_path: Path
) -> None:
    built = tmp_path / "m.engine"
    shapes = [word for n in (1, 4, 2) for word in ("--shape", f"image={n}x3x16x16")]
    assert smelt("build", open_model, "-o", built, *shapes, "--tune", "none").code == 0
    options = ("--iterations", "1", "--json")
    assert smelt("bench", built, *options).json["batch"] == 4
    assert smelt("bench", built, "--batch", 2, *options).json["batch"] == 2
    np.save(tmp_path / "one.npy", np.zeros((1, 3, 16, 16), np.float32))
    given = ("--input", f"image={tmp_path / 'one.npy'}")
    assert smelt("bench", built, *given, *options).json["batch"] == 1


def test_a_batch_is_measured_in_the_plan_that_takes_it_whatever_else_that_has(
    smelt: Smelt, tmp_path: Path
) -> None:
    graph = Graph("twice")
    shape = (SymbolicDim.symbol("n"), SymbolicDim.symbol("width"))
    x = graph.add_input("x", TensorType(DType.FLOAT32, shape))
    graph.outputs.append(graph.add(ops.Add(), x, x, name="y").output)
    built = tmp_path / "twice.engine"
    build(graph, shapes={"x": [(4, 8), (1, 16)]}, tune="none").save(built)
    for batch, width in ((4, 8), (1, 16)):
        detail = smelt("bench", built, "--batch", batch, "--iterations", "1", "--json")
        assert detail.json["sizes"] == {"n": batch, "width": width}
