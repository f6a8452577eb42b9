"""Factors so small that results next to zero are all there is, as convnets have before training."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING

import numpy as np
import pytest

import smelt
from smelt import ops
from smelt.backends.cpu import host_target
from smelt.builder._cuda_toolchain import CudaToolchain
from smelt.interp import interpret
from smelt.ir import Graph
from smelt.passes import pipeline, run_passes
from smelt.tuner import CostModelTimer
from smelt.types import DType, TensorType, override

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.backends import Tactic
    from smelt.devices.cuda import CudaDevice
    from smelt.ir import Array, Node, Value
    from smelt.runtime import Engine

_WIDTH = 32


def _array(*shape: int, seed: int = 0, scale: float = 1.0) -> Array:
    return (scale * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


def block_of_small_scale(scale: float) -> Graph:
    """The end of a convnet's block: what it adds to its input is scaled for each channel."""
    graph = Graph("block")
    x = graph.add_input("x", TensorType(DType.FLOAT32, (1, _WIDTH, 7, 7)))

    def add(op: ops.Op, name: str, *inputs: Value | Array) -> Value:
        given = [
            graph.add_constant(v, f"{name}.{k}") if isinstance(v, np.ndarray) else v
            for k, v in enumerate(inputs)
        ]
        return graph.add(op, *given, name=name).output

    y = add(ops.Transpose((0, 2, 3, 1)), "to_last", x)
    y = add(ops.MatMul(), "fc1", y, _array(_WIDTH, 4 * _WIDTH, seed=2, scale=0.1))
    y = add(ops.Relu(), "relu", y)
    y = add(ops.MatMul(), "fc2", y, _array(4 * _WIDTH, _WIDTH, seed=3, scale=0.1))
    y = add(ops.Add(), "biased", y, _array(_WIDTH, seed=4))
    y = add(ops.Mul(), "scaled", y, np.full(_WIDTH, scale, np.float32))
    y = add(ops.Transpose((0, 3, 1, 2)), "to_first", y)
    graph.outputs.append(add(ops.Add(), "added", x, y))
    return graph


def _layers(engine: Engine) -> dict[str, str]:
    return {layer.name: layer.tactic for layer in engine.header.layers}


def test_results_next_to_zero_are_as_exact_as_their_storage(
    caplog: pytest.LogCaptureFixture,
) -> None:
    if host_target().storage(DType.FLOAT16) is not DType.FLOAT16:
        pytest.skip("this processor does not convert float16")
    graph = block_of_small_scale(1e-7)
    x = _array(1, _WIDTH, 7, 7, seed=9)
    with caplog.at_level(logging.WARNING):
        engine = smelt.build(graph, precision="float16", tune="fast")
    assert "is out" not in caplog.text
    with engine, engine.create_context() as context:
        (made,) = context.run({"x": x}).values()
    (wanted,) = interpret(graph, {"x": x}).values()
    assert np.abs(made - wanted).max() <= 3e-3 * np.abs(wanted).max()


def _scaled_product(scale: float) -> Graph:
    graph = Graph("product")
    x = graph.add_input("x", TensorType(DType.FLOAT32, (4, 16)))
    w = graph.add_constant(_array(16, 8, seed=1, scale=0.1), "w")
    factors = graph.add_constant(scale * np.linspace(0.5, 1, 8, dtype=np.float32), "s")
    y = graph.add(ops.MatMul(), x, w, name="product").output
    graph.outputs.append(graph.add(ops.Mul(), y, factors, name="scaled").output)
    return graph


@pytest.mark.parametrize(
    ("scale", "storage", "is_folded"),
    [
        (1e-6, DType.FLOAT16, False),
        (1e6, DType.FLOAT16, False),
        (0.25, DType.FLOAT16, True),
        (1e-6, DType.BFLOAT16, True),
        (1e-6, DType.FLOAT32, True),
    ],
)
def test_a_scale_goes_into_weights_that_keep_their_digits(
    scale: float, storage: DType, *, is_folded: bool
) -> None:
    graph = _scaled_product(scale)
    report = run_passes(graph, pipeline(storage_dtype=storage))
    (node,) = graph.nodes
    assert isinstance(node.op, ops.Fused) is not is_folded
    assert any("would have a rounding error" in str(note) for note in report.notes) is not is_folded
    largest = float(np.abs(node.inputs[1].constant.array).max())  # type: ignore[union-attr]
    assert largest == pytest.approx(0.1 * 3 * (scale if is_folded else 1), rel=0.4)


class _Rejecting(CostModelTimer):
    """Finds all kernels of one node wrong, or those that store it in 16 bits."""

    def __init__(self, name: str, *, narrow_alone: bool) -> None:
        super().__init__()
        self.name, self.narrow_alone = name, narrow_alone
        self.is_rejected = False

    @override
    def seconds(self, node: Node, tactics: Sequence[Tactic]) -> list[float]:
        times = super().seconds(node, tactics)
        if node.name != self.name:
            return times
        wrong = [
            not tactic.is_host_step
            and (not self.narrow_alone or tactic.input_formats[0] != node_format(tactic))
            for tactic in tactics
        ]
        times = [math.inf if bad else t for bad, t in zip(wrong, times, strict=True)]
        self.is_rejected = all(
            t.is_host_step for t, s in zip(tactics, times, strict=True) if s < math.inf
        )
        return times

    @override
    def wrong_result_reason(self, node: Node) -> str:
        is_rejected = node.name == self.name and self.is_rejected
        return "its error is 1.1 of the largest magnitude" if is_rejected else ""


def node_format(tactic: Tactic) -> object:
    """The first format of a tactic as float32."""
    first = tactic.input_formats[0]
    return None if first is None else type(first)(DType.FLOAT32, first.layout)


def _build(timer: CostModelTimer, monkeypatch: pytest.MonkeyPatch) -> Engine:
    pytest.importorskip("triton", reason="not installed: the extra cuda-build")

    def rejecting(_toolchain: CudaToolchain, _tuning: object) -> CostModelTimer:
        return timer

    monkeypatch.setattr(CudaToolchain, "timer", rejecting)
    return smelt.build(block_of_small_scale(1.0), "cuda:sm_90", "float16", tune="none")


def test_a_layer_that_is_wrong_in_16_bits_stays_in_float32_and_the_build_says_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = _build(_Rejecting("fc2", narrow_alone=True), monkeypatch)
    detail = "fc2 stays in float32: in float16 every candidate kernel was rejected; "
    assert detail in caplog.text
    assert "reference" not in str(_layers(engine))
    (layer,) = (x for x in engine.header.layers if x.name.startswith("fc2"))
    assert "float32[1, 7, 7, 128]" in str(dict(layer.details)["inputs"])


def test_a_layer_without_a_right_kernel_runs_on_the_host_and_the_build_says_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = _build(_Rejecting("fc2", narrow_alone=False), monkeypatch)
    assert "fc2 runs on the host, which is slow: every candidate kernel was rejected" in caplog.text
    (tactic,) = (t for name, t in _layers(engine).items() if name.startswith("fc2"))
    assert tactic.startswith("reference")


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_a_layer_scale_of_a_millionth_costs_no_layer_its_kernel(
    gpu: CudaDevice, precision: str, caplog: pytest.LogCaptureFixture
) -> None:
    graph = block_of_small_scale(1e-6)
    x = _array(1, _WIDTH, 7, 7, seed=9)
    with caplog.at_level(logging.WARNING):
        engine = smelt.build(graph, f"cuda:{gpu.index}", precision, tune="fast")
    assert "every candidate is wrong" not in caplog.text
    assert "reference" not in str(_layers(engine))
    with engine, engine.create_context() as context:
        (made,) = context.run({"x": x}).values()
    (wanted,) = interpret(graph, {"x": x}).values()
    most = {"float16": 3e-3, "bfloat16": 2e-2}[precision]
    assert np.abs(made - wanted).max() <= most * np.abs(wanted).max()
