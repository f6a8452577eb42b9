"""Whole models: what people trained, and the topologies of the onnx package."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from smelt.importers.onnx import import_onnx
from smelt.interp import interpret
from smelt.ir import verify
from smelt.types import evaluate_dim, symbols_of
from tests.importers.onnx.one_node import compare

if TYPE_CHECKING:
    from smelt.ir import Array, Graph

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
LIGHT_MODELS = (
    "light_bvlc_alexnet",
    "light_densenet121",
    "light_inception_v1",
    "light_inception_v2",
    "light_resnet50",
    "light_shufflenet",
    "light_squeezenet",
    "light_vgg19",
    "light_zfnet512",
)
MODELS = {
    "fastestdet_coco/FastestDet.onnx": 1e-4,
    "mnist_cntk_onnx/mnist.onnx": 1e-4,
    "mtcnn_onnx/onet.onnx": 1e-4,
    "mtcnn_onnx/pnet.onnx": 1e-4,
    "mtcnn_onnx/rnet.onnx": 1e-4,
    "ppocrv4_cls/ch_ppocr_mobile_v2.0_cls_infer.onnx": 1e-4,
    "silero_vad/silero_vad_16k_sequence.onnx": 1e-4,
    # Both sides round to half precision, in orders of their own: each may be off by 3e-3.
    "squeezenet1.1_fp16_onnx/SqueezeNet_fp16.onnx": 6e-3,
    "ultraface/version-RFB-320.onnx": 1e-4,
    "ultraface/version-RFB-320_simplified.onnx": 1e-4,
}


def _random_inputs(graph: Graph) -> dict[str, Array]:
    source = np.random.default_rng(7)
    names = {name for value in graph.inputs for name in symbols_of(*value.tensor.shape)}
    few = {"N", "x_0", "batch", "sequence_length"}
    sizes = {name: 3 if name in few else 48 for name in names}
    made: dict[str, Array] = {}
    for value in graph.inputs:
        shape = [evaluate_dim(extent, sizes) for extent in value.tensor.shape]
        if value.tensor.dtype.is_float:
            made[value.name] = source.random(shape).astype(value.tensor.dtype.numpy)
        else:
            made[value.name] = source.integers(0, 2, shape, value.tensor.dtype.numpy)
    return made


@pytest.mark.shared
@pytest.mark.parametrize("name", MODELS)
def test_a_trained_model_agrees_with_onnxruntime(name: str, shared: Path) -> None:
    path = shared / "models" / name
    compare(str(path), _random_inputs(import_onnx(path)), MODELS[name])


@pytest.mark.shared
def test_the_language_model_with_open_extents_agrees_with_onnxruntime() -> None:
    path = Path(tempfile.gettempdir()) / "minilm.onnx"
    if not path.is_file():
        pytest.skip(f"no {path}; the reference models' README says how it is built")
    compare(str(path), _random_inputs(import_onnx(path)))


@pytest.mark.parametrize("name", LIGHT_MODELS)
def test_a_topology_of_the_onnx_package_imports(name: str) -> None:
    graph = import_onnx(LIGHT / f"{name}.onnx")
    verify(graph)
    (output,) = graph.outputs
    assert output.tensor.shape[:2] == (1, 1000)
    assert [value.tensor.shape for value in graph.inputs] == [(1, 3, 224, 224)]


# Not SqueezeNet: its thousand equal scores are near 1e10, where a last bit decides the softmax, and
# a library's matrix product does not round all columns alike.
@pytest.mark.parametrize(
    "name", ["light_bvlc_alexnet", "light_inception_v1", "light_shufflenet", "light_zfnet512"]
)
def test_a_topology_of_the_onnx_package_gives_the_expected_result(name: str) -> None:
    graph = import_onnx(LIGHT / f"{name}.onnx")
    (value,) = graph.inputs
    count = 3 * 224 * 224
    x = (np.arange(count) / count).astype(np.float32).reshape(1, 3, 224, 224)
    (result,) = interpret(graph, {value.name: x}).values()
    expected = onnx.TensorProto()
    expected.ParseFromString((LIGHT / f"{name}_output_0.pb").read_bytes())
    np.testing.assert_allclose(result, numpy_helper.to_array(expected), rtol=1e-3, atol=1e-5)
