"""The ConvNeXt that is measured is one, before training and after it, for every engine the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import smelt
from benchmarks.support import models
from benchmarks.support.convnext import CONVNEXTS, DEPTHS, EXTENT, WIDTHS, build_convnext
from benchmarks.support.models import expand, find_models, random_inputs, shapes_of
from benchmarks.support.onnx_steps import Ceilings, read_network, roofline_ms
from tests.support.real_models import run_onnxruntime

if TYPE_CHECKING:
    from pathlib import Path

_SMALL: dict[str, Any] = {"depths": (1, 1), "widths": (16, 32), "extent": 32}


@pytest.mark.parametrize("name", CONVNEXTS)
def test_a_small_one_answers_in_float16_as_another_engine_does(name: str, tmp_path: Path) -> None:
    file = tmp_path / f"{name}.onnx"
    build_convnext(name, file, **_SMALL)
    inputs = random_inputs(file, 2, {})
    wanted = run_onnxruntime(str(file), inputs)["y"]
    assert wanted.std() == pytest.approx(1, rel=0.5)
    shapes = {key: array.shape for key, array in inputs.items()}
    network = smelt.network_from_onnx(str(file))
    for precision, most in (("float32", 1e-4), ("float16", 3e-3)):
        with smelt.build(network, precision=precision, shapes=shapes, tune="none") as engine:
            made = engine.run(inputs)["y"]
        assert np.abs(made - wanted).max() <= most * np.abs(wanted).max()


def test_layer_scales_are_a_millionth_before_training_and_blocks_count_after_it(
    tmp_path: Path,
) -> None:
    spans: dict[str, list[float]] = {}
    for name in CONVNEXTS:
        file = tmp_path / f"{name}.onnx"
        build_convnext(name, file, **_SMALL)
        network = read_network(file)
        scales = [network.constants[s.inputs[1]] for s in network.steps if s.op == "Mul"]
        assert [scale.shape for scale in scales] == [(16,), (32,)]
        every = np.concatenate(scales)
        spans[name] = [float(every.min()), float(every.max())]
    assert spans["convnext_untrained"] == pytest.approx([1e-6, 1e-6])
    assert spans["convnext"][1] > 0.2


def test_models_are_found_by_name_and_written_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []

    def build(name: str, file: Path) -> None:
        written.append(name)
        build_convnext(name, file, **_SMALL)

    monkeypatch.setattr(models, "CACHE", tmp_path)
    monkeypatch.setitem(models.BUILDERS, "convnext", ("convnext", build))
    assert expand("convnexts") == list(CONVNEXTS)
    for _ in range(2):
        ((name, file),) = find_models("convnext", [tmp_path / "none"], 1)
        assert (name, file.is_file()) == ("convnext", True)
    assert written == ["convnext"]


def test_the_network_is_as_deep_and_as_wide_as_published(tmp_path: Path) -> None:
    file = tmp_path / "convnext.onnx"
    build_convnext("convnext", file)
    network = read_network(file)
    weights = sum(array.size for array in network.constants.values())
    assert weights == pytest.approx(28.6e6, rel=2e-3)
    assert sum(step.op == "Gelu" for step in network.steps) == sum(DEPTHS) == 18
    shapes = shapes_of(file, random_inputs(file, 1, {}))
    assert list(shapes["x"]) == [1, 3, EXTENT, EXTENT]
    flop = roofline_ms(network, shapes, 4, Ceilings(1e3, 1e30))
    assert flop == pytest.approx(2 * 4.46e9, rel=1e-2)
    assert list(shapes[network.steps[-2].output]) == [1, 1000]
    assert WIDTHS[-1] == 768
