"""Networks on a GPU: trained ones, and those that are measured, in every precision.

Answers are compared with ONNX Runtime's in float32, and with the references where the model is not
ONNX. Narrow types may err by so much as follows from them: float16 by 3e-3, and by three times what
rounding every tensor does, but for what is less than a step of it; bfloat16 by 2e-2; tf32 by 3e-3,
or by three times what rounding products' operands does, if that is more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import smelt
from benchmarks.cpu_latency import largest_error
from benchmarks.support.models import TOPOLOGIES, build_topology, random_inputs
from benchmarks.support.onnx_steps import read_network
from smelt.devices.cuda import CudaLaunch
from smelt.interp import interpret
from smelt.ops import GRU, LSTM, Attention, Conv, ConvTranspose, Gemm, MatMul
from smelt.runtime import _cuda_graph_segments
from tests.support.answers import classes_of_pictures, digits_read
from tests.support.gpu import library, nothing_is_lost
from tests.support.real_models import (
    ALL_MODELS,
    DATA_DEPENDENT,
    RealModel,
    model_named,
    relative_error,
    run_engine,
    run_onnxruntime,
)

if TYPE_CHECKING:
    from pathlib import Path

    from smelt import Engine
    from smelt.devices.cuda import CudaDevice, LoadedKernel
    from smelt.ir import Value
    from tests.support.real_models import Array, Arrays

pytestmark = pytest.mark.shared

_BOUNDS = {"float32": 1e-4, "tf32": 3e-3, "float16": 3e-3, "bfloat16": 2e-2}
_ROUNDING_ERRORS = {
    ("squeezenet1.1_fp16", "bfloat16"): 5e-3,
    ("efficientnet_lite0", "bfloat16"): 5e-3,
}
"""Of networks that err by three times as much on pictures as on the noise that a build tries."""
_PRODUCTS = (Attention, Conv, ConvTranspose, Gemm, GRU, LSTM, MatMul)
_TORCHS_ERRORS = 3.0
_STEP = 2.0**-10
"""Of float16: what is less may be luck, torch's or ours."""
_RUNS = 4
_EARLY_RUNS = 40


def _wanted(model: RealModel, shared: Path) -> Arrays:
    given = model.inputs(shared)
    files = model.files(shared)
    if len(files) == 1:
        return run_onnxruntime(str(files[0]), given)
    return interpret(model.network(shared).graph, given)


def _run_often(engine: Engine, given: Arrays) -> Arrays:
    """The outputs of several runs in two contexts, which must agree in every bit."""
    with engine.create_context() as context:
        first = context.run(given)
        runs = [context.run(given) for _ in range(_RUNS - 1)]
    runs.append(run_engine(engine, given))
    for made in runs:
        for name, array in first.items():
            assert made[name].tobytes() == array.tobytes(), f"{name} moves from run to run"
    return first


def _decides_by_data(model: RealModel, shared: Path) -> bool:
    nodes = model.network(shared).graph.nodes
    return any(node.op.name in DATA_DEPENDENT for node in nodes)


@pytest.mark.parametrize("precision", list(_BOUNDS))
@pytest.mark.parametrize("model", ALL_MODELS, ids=lambda model: model.name)
def test_a_trained_network_answers_on_a_gpu_as_elsewhere(
    model: RealModel, precision: str, shared: Path, gpu: CudaDevice
) -> None:
    if precision != "float32" and _decides_by_data(model, shared):
        pytest.skip("a rounded score may choose another box, which says nothing about errors")
    given, wanted = model.inputs(shared), _wanted(model, shared)
    del gpu
    max_rounding_error = _ROUNDING_ERRORS.get((model.name, precision))
    with model.build(
        shared, device="cuda", precision=precision, max_rounding_error=max_rounding_error
    ) as engine:
        mine = _run_often(engine, given)
    _check_errors(mine, wanted, model, shared, precision)


def _check_errors(
    mine: Arrays, wanted: Arrays, model: RealModel, shared: Path, precision: str
) -> None:
    """Whether answers are as near as the precision lets them be.

    In tf32, which keeps no layer in float32, answers may err by more than the bound where torch's
    do.
    """
    assert mine.keys() == wanted.keys()
    bound = max(_BOUNDS[precision], model.tolerance)
    errors = {name: relative_error(mine[name], array) for name, array in wanted.items()}
    if precision in ("float32", "bfloat16"):
        assert max(errors.values()) <= bound, errors
        return
    rounded = _on_rounded_tensors(model, shared, precision)
    for name, error in errors.items():
        torchs = _TORCHS_ERRORS * relative_error(rounded[name], wanted[name])
        most = max(bound, torchs) if precision == "tf32" else min(bound, max(torchs, _STEP))
        assert error <= most, (name, errors, torchs)


def _on_rounded_tensors(model: RealModel, shared: Path, precision: str) -> Arrays:
    """What the references make of the network when it is rounded as torch rounds it.

    In float16 every tensor is, between the layers: FastestDet's answers differ by 4 % then, and a
    softmax of large logits by as much as their steps. In tf32 the operands of products alone are.
    """
    graph, given = model.network(shared).graph, model.inputs(shared)
    is_narrow = precision == "float16"
    values: dict[Value, Any] = {v: given[v.name] for v in graph.inputs}
    for node in graph.nodes:
        operands = [None if v is None else values.get(v, _constant(v)) for v in node.inputs]
        if is_narrow or isinstance(node.op, _PRODUCTS):
            operands = [_rounded(array, precision) for array in operands]
        values |= dict(zip(node.outputs, node.op.reference(*operands), strict=True))
    made = {v.name: values[v] for v in graph.outputs}
    return {k: _rounded(v, precision) for k, v in made.items()} if is_narrow else made


def _constant(value: Value) -> Array | None:
    return None if value.constant is None else value.constant.array


def _rounded(array: Any, precision: str) -> Any:
    """An array of floats to the nearest numbers of another type, in its own type."""
    if array is None or array.dtype.kind != "f":
        return array
    if precision == "float16":
        return array.astype(np.float16).astype(array.dtype)
    bits = array.astype(np.float32).view(np.uint32)
    bits = bits + np.uint32(1 << 12)  # tf32 has ten bits behind the first
    return (bits & np.uint32(0xFFFFE000)).view(np.float32).astype(array.dtype)


@pytest.mark.parametrize("precision", list(_BOUNDS))
def test_lenet_reads_as_many_digits_on_a_gpu(precision: str, shared: Path, gpu: CudaDevice) -> None:
    del gpu
    read = digits_read(shared, device="cuda", precision=precision)
    assert read == 9914 if precision == "float32" else read >= 9900


@pytest.mark.parametrize("precision", ["float32", "float16"])
@pytest.mark.parametrize("key", ["squeezenet_v1.0_caffe", "squeezenet1.1_fp16_onnx"])
def test_pictures_are_of_the_same_classes_on_a_gpu(
    key: str, precision: str, shared: Path, gpu: CudaDevice
) -> None:
    del gpu
    answers = classes_of_pictures(key, shared, device="cuda", precision=precision)
    assert len(answers) == 50
    on_cpu = classes_of_pictures(key, shared)
    assert [mine[0] for mine, _ in answers] == [mine[0] for mine, _ in on_cpu]


@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("name", TOPOLOGIES)
def test_float16_errs_at_most_three_times_as_far_as_torchs(
    name: str, batch: int, shared: Path, gpu: CudaDevice
) -> None:
    del gpu
    file = build_topology(name, shared / "models/build_topologies.py", batch)
    given = random_inputs(file, batch, {})
    wanted = list(run_onnxruntime(str(file), given).values())
    shapes = {key: array.shape for key, array in given.items()}
    network = smelt.network_from_onnx(file)
    with smelt.build(
        network, device="cuda", precision="float16", tune="none", shapes=shapes
    ) as engine:
        mine = largest_error(list(_run_often(engine, given).values()), wanted)
    assert mine <= _BOUNDS["float16"]
    assert mine <= _TORCHS_ERRORS * largest_error(_run_torch(file, given), wanted)


def check_early_starts(engine: Engine, given: Arrays, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare runs in which no launch starts early, as none does untuned, and in which all do.

    Inputs alternate: what a launch reads too soon is then of another run.
    """
    turns = [given, {key: np.roll(array, 1, -1) for key, array in given.items()}]
    with engine.create_context() as context:
        wanted = [context.run(turn) for turn in turns]

    def early(kernel: LoadedKernel, words: int, wait_for: int, _starts_early: bool) -> CudaLaunch:
        return CudaLaunch(kernel, words, wait_for, uses_pdl=True)

    monkeypatch.setattr(_cuda_graph_segments, "CudaLaunch", early)
    with engine.create_context() as context:
        for number in range(_EARLY_RUNS):
            mine = context.run(turns[number % 2])
            for name, array in wanted[number % 2].items():
                assert mine[name].tobytes() == array.tobytes(), f"{name} of run {number}"


def _run_torch(file: Path, given: Arrays) -> list[Array]:
    torch = library("torch")
    networks: Any = library("benchmarks.support.torch_network")
    network = read_network(file)
    module = networks.torch_module(network, "float16")
    inputs = [
        networks.torch_tensor(torch.from_numpy(given[key]), "float16") for key in network.inputs
    ]
    with torch.inference_mode():
        return [np.asarray(result.float().cpu().numpy()) for result in module(*inputs)]


@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("name", TOPOLOGIES)
def test_launches_that_start_early_change_no_bit(
    name: str, batch: int, shared: Path, gpu: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    del gpu
    file = build_topology(name, shared / "models/build_topologies.py", batch)
    given = random_inputs(file, batch, {})
    shapes = {key: array.shape for key, array in given.items()}
    network = smelt.network_from_onnx(file)
    with smelt.build(
        network, device="cuda", precision="float16", tune="none", shapes=shapes
    ) as engine:
        check_early_starts(engine, given, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "float16"])
@pytest.mark.parametrize("name", ["lenet", "squeezenet1.1_fp16", "mtcnn_o_onnx", "ppocr_cls"])
def test_a_network_tuned_by_timing_on_a_gpu_answers_too(
    name: str, precision: str, shared: Path, gpu: CudaDevice, caplog: pytest.LogCaptureFixture
) -> None:
    del gpu
    model = model_named(name)
    wanted = _wanted(model, shared)
    with model.build(shared, tune="fast", device="cuda", precision=precision) as engine:
        mine = _run_often(engine, model.inputs(shared))
    assert " is out: " not in caplog.text
    _check_errors(mine, wanted, model, shared, precision)


def test_engines_and_contexts_give_all_memory_back(shared: Path, gpu: CudaDevice) -> None:
    model = model_named("mtcnn_o_onnx")
    given = model.inputs(shared)

    def use() -> None:
        with model.build(shared, device="cuda", precision="float16") as engine:
            _run_often(engine, given)

    use()
    with nothing_is_lost(gpu):
        for _ in range(5):
            use()
