"""cuBLASLt itself on a GPU: products against numpy, graphs, whole engines."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import smelt
from smelt.devices.cuda import (
    LIBRARY,
    CudaMemory,
    CudaRow,
    CudaRunList,
    CudaStream,
    KernelLoader,
    LibraryCall,
    RunGraph,
    call_to_bytes,
    dotted_version,
    open_cublaslt,
)
from smelt.engine import Launch
from smelt.errors import MissingExtraError
from smelt.interp import interpret
from smelt.types import DType, decode_bfloat16, encode_bfloat16
from tests.support.gpu import download, nothing_is_lost, upload

if TYPE_CHECKING:
    from smelt.devices.cuda import CublasLt, CudaDevice

pytestmark = pytest.mark.gpu
Array = np.ndarray[Any, Any]
_ERRORS = {DType.FLOAT32: 1e-5, DType.FLOAT16: 2e-3, DType.BFLOAT16: 2e-2}
_RUNS = 8


@pytest.fixture(scope="module")
def library(gpu: CudaDevice) -> CublasLt:
    try:
        return open_cublaslt(gpu)
    except MissingExtraError:
        pytest.skip("not installed: smelt[cuda-libraries]")


def _floats(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _stored(array: Array, dtype: DType) -> Array:
    return encode_bfloat16(array) if dtype is DType.BFLOAT16 else array.astype(dtype.numpy)


def _decoded(array: Array, dtype: DType) -> Array:
    return decode_bfloat16(array) if dtype is DType.BFLOAT16 else array.astype(np.float32)


class _Product:
    """A call's operands, and what must come of them."""

    def __init__(self, call: LibraryCall) -> None:
        self.call = call
        m, r, c, d = call.matrices, call.rows, call.columns, call.depth
        first = (m, d, r) if call.turned[0] else (m, r, d)
        second = (m, c, d) if call.turned[1] else (m, d, c)
        shapes: list[tuple[tuple[int, ...], DType]]
        shapes = [(first, call.factors), (second, call.factors)]
        shapes += [((m, r, c), call.result)] * call.adds + [((c,), call.result)] * call.bias
        self.arrays = [_stored(_floats(*s, seed=k), t) for k, (s, t) in enumerate(shapes)]

    def wanted(self) -> Array:
        call = self.call
        x, w, *others = [
            _decoded(a, call.factors if k < 2 else call.result) for k, a in enumerate(self.arrays)
        ]
        x = x.swapaxes(1, 2) if call.turned[0] else x
        w = w.swapaxes(1, 2) if call.turned[1] else w
        total = call.alpha * (x.astype(np.float64) @ w)
        for array in others:
            total = total + array
        if call.activation == "relu":
            total = np.maximum(total, 0)
        if call.activation == "gelu":
            inner = np.sqrt(2 / np.pi) * (total + 0.044715 * total**3)
            total = 0.5 * total * (1 + np.tanh(inner))
        return total

    def run(self, gpu: CudaDevice) -> list[Array]:
        """Results of launches, then of a graph's, each into poisoned memory."""
        call, memory = self.call, CudaMemory(gpu)
        result = np.full((call.matrices, call.rows, call.columns), 77, call.result.numpy)
        sizes = [a.nbytes for a in self.arrays] + [result.nbytes]
        sizes += [call.workspace_bytes + 256] * (call.workspace_bytes > 0)
        rooms = [memory.allocate(size, "product") for size in sizes]
        place = len(self.arrays)
        found: list[Array] = []
        with CudaStream(gpu) as stream:
            for room, array in zip(rooms, self.arrays, strict=False):
                upload(gpu, room.address, array, stream)
            loaded = KernelLoader(gpu).load(call_to_bytes(call))
            words = np.array([room.address for room in rooms], np.int64)
            rows = CudaRunList([CudaRow(loaded, len(words), 0)], words, [1])
            graph = RunGraph(rows, stream)
            for number in range(_RUNS):
                upload(gpu, rooms[place].address, result, stream)
                if number % 2:
                    graph.launch(stream)
                else:
                    rows.launch_all(stream)
                found.append(download(gpu, rooms[place].address, result.copy(), stream))
            graph.close()
        for room in rooms:
            room.close()
        return [_decoded(array, call.result) for array in found]


def _calls() -> list[LibraryCall]:
    plain = LibraryCall(
        0, 1, 96, 64, 256, (False, True), DType.FLOAT16, DType.FLOAT16, "ieee", 1.0,
        adds=False, bias=True, activation="relu",
    )  # fmt: skip
    return [
        plain,
        replace(plain, adds=True),  # the bias, the residual and ReLU in one call
        replace(plain, activation="gelu"),
        replace(plain, bias=False, activation=""),
        replace(plain, rows=49, columns=2048, depth=512, adds=True),  # few rows: sums in pieces
        replace(plain, factors=DType.BFLOAT16, result=DType.BFLOAT16),
        replace(plain, result=DType.FLOAT32),
        replace(plain, factors=DType.FLOAT32, result=DType.FLOAT32, activation=""),
        replace(plain, turned=(True, False), alpha=0.5, activation=""),
        replace(plain, matrices=6, turned=(False, False), bias=False, activation=""),
    ]


@pytest.mark.parametrize("number", range(len(_calls())))
def test_every_algorithm_multiplies_rightly_and_alike_each_time(
    gpu: CudaDevice, library: CublasLt, number: int
) -> None:
    call = replace(_calls()[number], version=library.version)
    proposed = library.algorithms(call, count=8, most_workspace_bytes=32 << 20)
    proposed += library.algorithms(call, count=8, most_workspace_bytes=0)
    assert proposed, f"cuBLASLt {dotted_version(library.version)} has no algorithm for {call}"
    with nothing_is_lost(gpu):
        for algorithm, room in dict.fromkeys(proposed):
            product = _Product(replace(call, algorithm=algorithm, workspace_bytes=room))
            wanted = product.wanted()
            results = product.run(gpu)
            error = np.abs(results[0] - wanted).max() / np.abs(wanted).max()
            assert error <= _ERRORS[call.result], (algorithm, error)
            assert all(np.array_equal(results[0], result) for result in results), algorithm


def _network() -> smelt.NetworkDefinition:
    net = smelt.NetworkDefinition("products")
    x = net.add_input("x", "float32", (64, 28, 28))
    y = net.add_convolution(x, 256, 1, _floats(256, 64, 1, 1) / 8, _floats(256), name="expand")
    y = net.add_activation(y, "relu", name="relu")
    z = net.add_convolution(y, 256, 1, _floats(256, 256, 1, 1) / 16, _floats(256), name="body")
    z = net.add_activation(net.add_elementwise(y, z, "sum", name="sum"), "relu", name="relu2")
    net.mark_output(net.add_concatenation([y, z], name="join"))
    return net


def _families(engine: smelt.Engine) -> set[str]:
    (plan,) = engine.header.plans
    return {step.kernel.family for step in plan.steps if isinstance(step, Launch)}


@pytest.mark.parametrize(("precision", "tolerance"), [("float16", 3e-3), ("float32", 1e-4)])
def test_a_network_in_which_the_library_does_what_it_can_is_right(
    gpu: CudaDevice, library: CublasLt, precision: str, tolerance: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    from smelt.backends.cuda import CudaBackend

    assert gpu is library.device
    offered = CudaBackend.candidates

    def candidates(*arguments: Any) -> Any:
        tactics, refusals = offered(*arguments)
        return [t for t in tactics if t.family == LIBRARY] or tactics, refusals

    monkeypatch.setattr(CudaBackend, "candidates", candidates)
    engine = smelt.build(_network(), "cuda", precision, libraries=True)
    assert LIBRARY in _families(engine)
    loaded = smelt.load(engine.serialize())
    with loaded.create_context() as context:
        for seed in range(4):
            x = _floats(1, 64, 28, 28, seed=seed)
            (wanted,) = interpret(_network().graph, {"x": x}).values()
            runs = [context.run({"x": x})["join"] for _ in range(3)]
            error = np.abs(runs[0] - wanted).max() / np.abs(wanted).max()
            assert error <= tolerance
            assert all(np.array_equal(runs[0], run) for run in runs)


def test_a_tuned_build_lets_the_library_compete(gpu: CudaDevice, library: CublasLt) -> None:
    assert gpu is library.device
    engine = smelt.build(_network(), "cuda", "float16", libraries=True, timing_cache=None)
    features = engine.header.fingerprint.features
    assert (LIBRARY in _families(engine)) == any(f.startswith(f"{LIBRARY}=") for f in features)
    assert "cublaslt(" in engine.header.report
    with engine.create_context() as context:
        assert np.isfinite(context.run({"x": _floats(1, 64, 28, 28)})["join"]).all()
