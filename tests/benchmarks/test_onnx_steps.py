"""Networks read as steps: what exporters wrote out is one operation again, and means the same."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest

from benchmarks.support.onnx_steps import Ceilings, Network, Step, read_network, roofline_ms
from tests.support.real_models import run_onnxruntime

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Array = np.ndarray[Any, Any]


def _random(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def _save(
    file: Path, nodes: list[Any], constants: dict[str, Array], x: Array, y: list[int]
) -> Path:
    kind = onnx.TensorProto.FLOAT
    graph = onnx.helper.make_graph(
        nodes,
        "steps",
        [onnx.helper.make_tensor_value_info("x", kind, list(x.shape))],
        [onnx.helper.make_tensor_value_info("y", kind, y)],
        [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opset = [onnx.helper.make_opsetid("", 17)]
    model = onnx.helper.make_model(graph, opset_imports=opset, ir_version=8)
    file.write_bytes(model.SerializeToString())
    return file


def _attention(q: Array, k: Array, v: Array, *, scale: float) -> Array:
    weights = np.exp(q @ k * scale)
    return np.asarray(weights / weights.sum(-1, keepdims=True) @ v)


def _gelu(x: Array) -> Array:
    return np.asarray(0.5 * x * (1 + np.vectorize(math.erf)(x / 2**0.5)))


def _convolved(x: Array, w: Array, b: Array, **attributes: Any) -> Array:
    assert attributes == {"strides": (1, 1), "pads": (0,) * 4, "dilations": (1, 1), "group": 1}
    return np.asarray(np.einsum("nchw,oc->nohw", x, w[:, :, 0, 0]) + b.reshape(1, -1, 1, 1))


TABLE: dict[str, Callable[..., Any]] = {
    "Attention": _attention,
    "Conv": _convolved,
    "Gelu": _gelu,
    "MatMul": np.matmul,
}


@pytest.mark.parametrize("order", ["half last", "half first"])
def test_attention_and_gelu_are_found_in_what_was_written_out(order: str, tmp_path: Path) -> None:
    make = onnx.helper.make_node
    x = _random(1, 2, 5, 5)
    halves = (
        [make("Mul", ["x1", "e1"], ["m"]), make("Mul", ["m", "half"], ["g"])]
        if order == "half last"
        else [make("Mul", ["x1", "half"], ["m"]), make("Mul", ["m", "e1"], ["g"])]
    )
    nodes = [
        make("MatMul", ["x", "x"], ["p"]),
        make("Mul", ["p", "scale"], ["s"]),
        make("Softmax", ["s"], ["w"], axis=-1),
        make("MatMul", ["w", "x"], ["x1"]),
        make("Div", ["x1", "root"], ["d"]),
        make("Erf", ["d"], ["e"]),
        make("Add", ["e", "one"], ["e1"]),
        *halves,
        make("MatMul", ["g", "weights"], ["y"]),
    ]
    constants = {
        name: np.array(number, np.float32)
        for name, number in {"scale": 0.25, "root": 2**0.5, "one": 1, "half": 0.5}.items()
    } | {"weights": _random(5, 3)}
    file = _save(tmp_path / "m.onnx", nodes, constants, x, [1, 2, 5, 3])
    network = read_network(file)
    assert [step.op for step in network.steps] == ["Attention", "Gelu", "MatMul"]
    (made,) = network.run(TABLE, network.constants, [x])
    np.testing.assert_allclose(made, run_onnxruntime(str(file), {"x": x})["y"], atol=1e-5)


def test_a_normalisation_is_folded_into_the_convolution_before_it(tmp_path: Path) -> None:
    make = onnx.helper.make_node
    x, names = _random(2, 3, 4, 4), ["scale", "shift", "mean", "variance"]
    nodes = [
        make("Conv", ["x", "weights"], ["c"], kernel_shape=[1, 1]),
        make("BatchNormalization", ["c", *names], ["y"]),
    ]
    constants = {"weights": _random(6, 3, 1, 1)}
    constants |= {name: np.abs(_random(6)) + number for number, name in enumerate(names)}
    file = _save(tmp_path / "m.onnx", nodes, constants, x, [2, 6, 4, 4])
    network = read_network(file)
    assert [step.op for step in network.steps] == ["Conv"]
    (made,) = network.run(TABLE, network.constants, [x])
    np.testing.assert_allclose(made, run_onnxruntime(str(file), {"x": x})["y"], atol=1e-5)


def test_the_roofline_counts_each_layer_by_what_takes_longest() -> None:
    product = Step("MatMul", ["x", "w"], ["p"])
    rectified = Step("Relu", ["p"], ["y"])
    network = Network([product, rectified], {"w": np.zeros((100, 10))}, ["x"], ["y"])
    shapes = {"x": (1, 100), "p": (1, 10), "y": (1, 10)}
    # 2000 operations; 100 + 1000 + 10 numbers of two bytes, for the rectified ones stay inside.
    assert roofline_ms(network, shapes, 2, Ceilings(2000, 1e9)) == pytest.approx(1000)
    assert roofline_ms(network, shapes, 2, Ceilings(1e9, 2220)) == pytest.approx(1000)


def test_what_is_added_behind_a_transposition_is_added_in_the_layer_before_it() -> None:
    product = Step("MatMul", ["x", "w"], ["p"])
    turned = Step("Transpose", ["p"], ["t"], {"axes": (1, 0)})
    added = Step("Add", ["r", "t"], ["y"])
    network = Network([product, turned, added], {"w": np.zeros((100, 10))}, ["x", "r"], ["y"])
    shapes = {"x": (1, 100), "p": (1, 10), "t": (10, 1), "r": (10, 1), "y": (10, 1)}
    # 100 + 1000 + 10 + 10 numbers of two bytes: what is turned stays inside.
    assert roofline_ms(network, shapes, 2, Ceilings(1e9, 2240)) == pytest.approx(1000)
    network.outputs.append("p")  # which is then written, and read again to be turned and added
    assert roofline_ms(network, shapes, 2, Ceilings(1e9, 2280)) == pytest.approx(1000)
