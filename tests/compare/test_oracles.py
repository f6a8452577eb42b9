"""What an engine is compared with: OpenVINO, another engine, what was recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from smelt.builder import build
from smelt.compare import _compare as room
from smelt.compare import compare
from smelt.compare._oracle import make_oracle
from smelt.errors import BindingError, SmeltError, UnsupportedError
from smelt.importers import network_from_onnx
from smelt.interp import interpret
from smelt.ir import clone
from smelt.ops import LeakyRelu, Relu
from tests.conftest import ROOT
from tests.support.small_models import inception_model, save_model, two_inputs_model

if TYPE_CHECKING:
    from pathlib import Path

    from smelt.runtime import Engine

MNIST = ROOT / "examples" / "01_mnist"


def _build_wrongly(network: Any, **options: Any) -> Engine:
    """Build with another activation in one place, as a broken kernel would have it."""
    graph = clone(getattr(network, "graph", network))
    for node in graph.nodes:
        if isinstance(node.op, Relu) and node.output.name == "wide_relu":
            node.op = LeakyRelu(alpha=0.5)
    return build(graph, **options)


def _picture() -> dict[str, Any]:
    return {"image": np.random.default_rng(5).standard_normal((1, 3, 16, 16), np.float32)}


# ---- OpenVINO


@pytest.fixture
def _openvino() -> None:
    pytest.importorskip("openvino", reason="not installed: smelt-engine[bench]")


@pytest.mark.usefixtures("_openvino")
def test_a_right_engine_passes_against_openvino_in_every_layer(tmp_path: Path) -> None:
    found = compare(
        save_model(inception_model(), tmp_path / "m.onnx"), "openvino", layers=True, tune="none"
    )
    assert found.passed
    assert len(found.layers) == 17


@pytest.mark.usefixtures("_openvino")
def test_a_wrong_engine_fails_against_openvino_and_is_reduced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "build", _build_wrongly)
    part = tmp_path / "part.onnx"
    found = compare(inception_model(), "openvino", layers=True, reduce_to=part, tune="none")
    assert not found.passed
    assert found.first_difference is not None
    assert found.first_difference.tensor == "wide_relu"
    assert found.reduction is not None
    assert found.reduction.nodes == ("relu 'wide_relu'",)


@pytest.mark.usefixtures("_openvino")
def test_what_openvino_cannot_run_is_told_as_an_error_of_ours() -> None:
    model = inception_model()
    graph = network_from_onnx(model).graph
    next(node for node in model.graph.node if node.op_type == "Conv").op_type = "Convoluted"
    with pytest.raises(SmeltError, match=r"^OpenVINO cannot run the model: "):
        make_oracle("openvino", graph, model).values(_picture(), ["prob"])


def test_a_caffe_model_is_refused_for_openvino_by_name() -> None:
    with pytest.raises(UnsupportedError, match=r"mnist.prototxt is a Caffe model.*with reference"):
        compare(MNIST / "mnist.prototxt", "openvino", weights=MNIST / "mnist.caffemodel")
    with pytest.raises(UnsupportedError, match=r"absent.prototxt is a Caffe model"):
        compare("absent.prototxt", "openvino")


# ---- another engine


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    """A right engine of the inception network."""
    path = tmp_path / "right.engine"
    with build(network_from_onnx(inception_model()), tune="none") as made:
        made.save(path)
    return path


def test_an_engine_is_compared_with_another_one(
    engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = compare(inception_model(), engine, tune="none", layers=True)
    assert found.passed
    assert found.against == str(engine)
    assert [name for name, _ in found.layers] == ["prob"]  # of the rest it says nothing
    monkeypatch.setattr(room, "build", _build_wrongly)
    assert not compare(inception_model(), engine, _picture(), tune="none").passed


def test_an_engine_that_lacks_an_output_or_takes_other_inputs_is_told(engine: Path) -> None:
    with pytest.raises(BindingError, match=r"right.engine has no output 'wide_relu'; it has: prob"):
        compare(inception_model(), engine, outputs=["wide_relu"], tune="none")
    open_model = inception_model("n")
    with pytest.raises(BindingError, match=r"right.engine cannot run on these inputs: image: "):
        compare(open_model, engine, shapes={"image": (2, 3, 16, 16)}, tune="none")


def test_a_damaged_engine_is_told_as_such(engine: Path) -> None:
    engine.write_bytes(engine.read_bytes()[:-100])
    with pytest.raises(SmeltError, match=r"right\.engine"):
        compare(inception_model(), engine, tune="none")


# ---- what was recorded


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    """What the inception network answers to a picture, with one result from the middle."""
    graph = network_from_onnx(inception_model()).graph
    path = tmp_path / "golden.npz"
    found = interpret(graph, _picture(), outputs=["prob", "wide_relu"])
    np.savez(path, **found)  # type: ignore[arg-type]
    return path


def test_outputs_are_compared_with_recorded_ones_and_so_are_the_layers_that_were(
    golden: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = compare(inception_model(), golden, _picture(), layers=True, tune="none")
    assert found.passed
    assert [name for name, _ in found.layers] == ["wide_relu", "prob"]
    monkeypatch.setattr(room, "build", _build_wrongly)
    wrong = compare(inception_model(), golden, _picture(), layers=True, tune="none")
    assert not wrong.passed
    assert wrong.first_difference is not None
    assert wrong.first_difference.tensor == "wide_relu"


def test_the_only_output_needs_no_name(golden: Path, tmp_path: Path) -> None:
    path = tmp_path / "golden.npy"
    np.save(path, np.load(golden)["prob"])
    assert compare(inception_model(), path, _picture(), tune="none").passed
    with pytest.raises(BindingError, match=r"without a name, but the outputs are prob, wide_relu"):
        compare(inception_model(), path, _picture(), outputs=["prob", "wide_relu"], tune="none")


def test_what_was_recorded_is_right_for_given_inputs_alone(golden: Path) -> None:
    with pytest.raises(BindingError, match=r"not for random ones; .* --input image=FILE"):
        compare(inception_model(), golden, tune="none")


def test_a_recording_without_an_output_says_what_it_has(tmp_path: Path) -> None:
    path = tmp_path / "golden.npz"
    np.savez(path, other=np.zeros(3))
    with pytest.raises(BindingError, match=r"golden\.npz has no output 'prob'; it has: other"):
        compare(inception_model(), path, _picture(), tune="none")


def test_a_recording_of_another_shape_is_refused_by_its_header(tmp_path: Path) -> None:
    path = tmp_path / "golden.npz"
    np.savez(path, prob=np.zeros((1, 3), np.float32))
    with pytest.raises(BindingError, match=r"'prob' is float32\[1, 10\], but .* float32\[1, 3\]"):
        compare(inception_model(), path, _picture(), tune="none")


@pytest.mark.parametrize("name", ["golden.npz", "golden.npy"])
def test_a_recording_that_is_none_is_told(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"nonsense")
    with pytest.raises(BindingError, match=rf"{name} cannot be read as an? .np[yz] "):
        compare(inception_model(), tmp_path / name, _picture(), tune="none")


def test_parts_are_reduced_only_with_who_answers_for_parts(golden: Path, tmp_path: Path) -> None:
    with pytest.raises(
        SmeltError, match=r"golden.npz gives results for the whole network only.*reference"
    ):
        compare(inception_model(), golden, _picture(), reduce_to=tmp_path / "part.onnx")


def test_open_extents_follow_the_inputs_that_a_recording_is_for(tmp_path: Path) -> None:
    graph = network_from_onnx(two_inputs_model()).graph
    given = {"a": np.ones((3, 6), np.float32), "b": np.ones((3, 4), np.float32)}
    path = tmp_path / "golden.npz"
    np.savez(path, **interpret(graph, given))  # type: ignore[arg-type]
    assert compare(two_inputs_model(), path, given, tune="none").passed
