"""The guide's second sample: profiling by layers, half2 mode, and what the build makes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from smelt import gie
from smelt.interp import interpret
from tests.support.gie import (
    AccumulatingProfiler,
    RecordingLogger,
    buffers_for,
    build,
    execute,
    found,
    layer_names,
    numbers,
    report,
)
from tests.support.inception import CLASSES, INPUT, write_inception

if TYPE_CHECKING:
    from pathlib import Path

ITERATIONS = 10
HEADS = "/3x3_reduce", "/5x5_reduce"
"""What the merged convolutions of a module are called."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_inception(tmp_path_factory.mktemp("inception"))


def _parse(
    files: tuple[Path, Path], *outputs: str, dtype: gie.DataType = gie.DataType.FLOAT
) -> gie.InferNetwork:
    network = gie.InferNetwork()
    blobs = gie.create_caffe_parser().parse(*files, network, dtype)
    for name in outputs or ("prob",):
        network.mark_output(found(blobs, name))
    return network


@pytest.fixture(scope="module")
def engine(files: tuple[Path, Path]) -> gie.CudaEngine:
    return build(_parse(files), max_batch_size=2)


@pytest.mark.requirement("G-74", "G-58", "G-59")
def test_googlenet_sample_averages_layers_over_iterations_under_their_combined_names(
    engine: gie.CudaEngine,
) -> None:
    context, profiler = engine.create_execution_context(), AccumulatingProfiler()
    context.profiler = profiler
    buffers = buffers_for(engine, 2, {"data": numbers(2, *INPUT)})
    for _ in range(ITERATIONS):
        assert engine.execute(context, buffers)
    means = profiler.means(ITERATIONS)
    assert profiler.calls == layer_names(engine) * ITERATIONS
    assert sum(means.values()) > 0
    assert "conv1 + relu_conv1" in means
    assert len([name for name in means if all(f"a{head}" in name for head in HEADS)]) == 1


@pytest.mark.requirement("G-74", "G-63")
@pytest.mark.parametrize("batch", [1, 2, 3])
def test_googlenet_sample_asks_for_half2_and_is_told_what_it_gets_on_a_processor(
    files: tuple[Path, Path], batch: int
) -> None:
    """Both steps of the guide; odd batches too. Weights are rounded to 16 bits, sums are not."""
    logger = RecordingLogger(quiet=True)
    network = _parse(files, dtype=gie.DataType.HALF2)
    engine = build(network, logger, max_batch_size=3, half2_mode=True)
    (warning,) = logger.texts(gie.Severity.WARNING)
    assert "half2 mode is only for GPUs" in warning
    assert "float32" in warning
    x = numbers(batch, *INPUT)
    exact = interpret(_parse(files).graph, {"data": x})["prob"]
    odds = execute(engine, {"data": x})["prob"]
    assert odds.dtype == np.float32
    assert 1e-5 < np.abs(odds - exact).max() < 1e-2
    assert np.array_equal(odds.argmax(1), exact.argmax(1))


@pytest.mark.requirement("G-1", "G-23", "G-40")
def test_build_makes_fewer_layers_that_compute_the_same(
    files: tuple[Path, Path], engine: gie.CudaEngine
) -> None:
    network = _parse(files)
    x = numbers(2, *INPUT)
    assert engine.nb_layers < network.nb_layers
    kinds = [str(node["op"]).split(" ")[0] for node in report(engine)["nodes"]]
    written = [layer.kind for layer in network.definition.layers]
    assert (written.count("conv"), kinds.count("conv")) == (14, 11)
    assert (written.count("relu"), kinds.count("relu")) == (14, 0)
    wanted = interpret(network.graph, {"data": x})["prob"]
    assert wanted.shape == (2, CLASSES)
    assert np.allclose(execute(engine, {"data": x})["prob"], wanted, atol=1e-5)


@pytest.mark.requirement("G-24")
def test_layers_that_lead_nowhere_are_not_in_the_engine(
    files: tuple[Path, Path], engine: gie.CudaEngine
) -> None:
    network = _parse(files)
    names = [layer.name for layer in network.definition.layers]
    assert "aside" in names
    assert not any("aside" in name for name in layer_names(engine))
    kept = build(_parse(files, "prob", "aside"))
    assert any("aside" in name for name in layer_names(kept))


@pytest.mark.requirement("G-24", "G-59")
def test_bias_and_relu_go_into_their_convolution(engine: gie.CudaEngine) -> None:
    nodes = {tuple(node["layers"]): node for node in report(engine)["nodes"]}
    (fused,) = [node for layers, node in nodes.items() if layers[0] == "a/3x3"]
    assert fused["layers"] == ["a/3x3", "a/relu_3x3"]
    assert fused["op"] == "conv | relu"
    assert "a/3x3 + a/relu_3x3" in layer_names(engine)


@pytest.mark.requirement("G-24")
@pytest.mark.parametrize("module", ["a", "b"])
def test_1x1_convolutions_of_one_source_become_one_unless_a_concatenation_takes_them(
    engine: gie.CudaEngine, module: str
) -> None:
    plan = report(engine)
    nodes = [node for node in plan["nodes"] if node["op"].startswith("conv")]
    (wide,) = [node for node in nodes if f"{module}/3x3_reduce" in node["layers"]]
    assert {f"{module}{head}" for head in HEADS} <= set(wide["layers"])
    assert wide["types"][0].startswith("float32[batch, 16,")  # 8 and 8 filters
    (alone,) = [node for node in nodes if f"{module}/1x1" in node["layers"]]
    assert alone is not wide
    notes = [note for done in plan["passes"] for note in done["notes"]]
    (why,) = [n for n in notes if n["before"][0] == f"{module}/1x1" and not n["applied"]]
    assert "directly into a concatenation" in why["detail"]


@pytest.mark.requirement("G-24", "G-13")
def test_concatenations_cost_nothing_because_layers_write_into_their_result(
    engine: gie.CudaEngine,
) -> None:
    nodes = [node for node in report(engine)["nodes"] if node["op"] == "concat"]
    assert nodes
    assert {node["aliasing"] for node in nodes} == {"concat"}
    steps = engine.engine.header.plans[0].steps
    running = {engine.engine.layers[step.layer].name for step in steps}
    moved = [name for name in running if "/output" in name]
    assert not moved, moved


@pytest.mark.requirement("G-27")
def test_output_in_the_middle_stops_the_fusion_there_and_the_log_says_why(
    files: tuple[Path, Path],
) -> None:
    network = _parse(files)
    before = network.definition.find_layer("a/3x3")
    assert before is not None
    network.mark_output(before.outputs[0])
    engine = build(network)
    nodes = report(engine)["nodes"]
    assert ["a/3x3"] in [node["layers"] for node in nodes]
    assert ["a/5x5", "a/relu_5x5"] in [node["layers"] for node in nodes]
    assert engine.nb_bindings == 3
    notes = [note for done in report(engine)["passes"] for note in done["notes"]]
    assert any(
        not n["applied"] and n["before"] == ["a/3x3"] and "output" in n["detail"] for n in notes
    )
