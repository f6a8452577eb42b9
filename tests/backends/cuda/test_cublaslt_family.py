"""Products by cuBLASLt: which nodes it is asked to do, and that they come out right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

from smelt import ops
from smelt.backends import WeightStore, assemble
from smelt.backends.cuda import CudaBackend, CudaTarget
from smelt.devices.cuda import (
    LIBRARY,
    CudaRow,
    CudaRunList,
    CudaStream,
    KernelLoader,
    cuda_device,
    open_cublaslt,
)
from smelt.engine import Launch
from smelt.ir import Case, Graph
from smelt.ops.fused import Stage
from smelt.types import DType, SymbolicDim, TensorType, encode_bfloat16
from tests.support.cublaslt_stub import VERSION, StubCublasLt
from tests.support.cuda_driver_stub import StubDriver
from tests.support.cuda_engines import use_stub
from tests.support.trial_memory import GUARD_BYTES, TrialMemory
from tests.support.trials import (
    TF32,
    Trial,
    difference,
    graph_of,
    narrow_trials,
    tf32_trials,
    trials_of_cases,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.backends import Refusal, Tactic
    from smelt.engine import View
    from smelt.ir import Node, Value
    from smelt.types import Shape

HOPPER = CudaTarget(90, allows_tf32=True)
Array = np.ndarray[Any, Any]


class LibraryAlone(CudaBackend):
    """A backend that offers nothing else for what the library does."""

    def candidates(
        self, node: Node, target: CudaTarget, storage: DType = DType.FLOAT32
    ) -> tuple[list[Tactic], list[Refusal]]:
        tactics, refusals = super().candidates(node, target, storage)
        return [tactic for tactic in tactics if tactic.family == LIBRARY], refusals


class Bench:
    """The stub of a GPU and of the library, and what runs a trial there."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        driver = StubDriver(lazy=True)
        use_stub(driver, patch)
        self.cublaslt = StubCublasLt(driver)
        self.cublaslt.install(patch)
        self.device = cuda_device(0)
        self.backend = LibraryAlone(library=open_cublaslt(self.device))
        self.loader = KernelLoader(self.device)
        self.stream = CudaStream(self.device)

    def run(self, trial: Trial) -> list[str]:
        """What is wrong with a trial."""
        memory = TrialMemory(trial)
        bases = [int(array.ctypes.data) for array in memory.arrays]
        for step in trial.plan.steps:
            assert isinstance(step, Launch)
            if step.kernel.family != LIBRARY:
                _copy(memory, *step.operands)
                continue
            words = memory.words(step, bases)
            loaded = self.loader.load(self.backend.records(step.kernel, HOPPER))
            row = CudaRow(loaded, len(words), 0)
            CudaRunList([row], np.array(words, np.int64), [cast("int", step.chunks)]).launch_all(
                self.stream
            )
            self.stream.synchronize()
        pairs = zip(memory.outputs(), trial.wanted, strict=True)
        wrong = [difference(a, b, trial.case.tolerance, trial.step) for a, b in pairs]
        return [f"{trial}: {reason}" for reason in (*memory.damage(), *wrong) if reason]


def _copy(memory: TrialMemory, source: View, target: View) -> None:
    """What the kernels do that copy between formats."""
    x = _window(memory, source)
    if source.dtype is DType.BFLOAT16:
        x = (x.astype(np.uint32) << 16).view(np.float32)
    narrow = target.dtype is DType.BFLOAT16 is not source.dtype
    _window(memory, target)[...] = encode_bfloat16(x.astype(np.float32)) if narrow else x


def _window(memory: TrialMemory, view: View) -> Array:
    dtype = view.dtype.numpy
    flat = memory.arrays[view.buffer][GUARD_BYTES + cast("int", view.offset) :]
    flat = flat[: flat.size // dtype.itemsize * dtype.itemsize].view(dtype)
    strides = [cast("int", s) * dtype.itemsize for s in view.strides]
    return np.lib.stride_tricks.as_strided(flat, cast("tuple[int, ...]", view.shape), strides)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


def _floats(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _own_cases() -> Iterator[Case]:
    """What the ops' own cases leave out."""
    conv, gelu = ops.Conv((1, 1)), ops.Gelu(approximate="tanh")
    weights, bias, image = _floats(8, 16, 1, 1, seed=1), _floats(8, seed=2), _floats(2, 16, 5, 4)
    residual = ops.Fused(conv, 3, (Stage(ops.Add(), (3, -1)), Stage(ops.Relu(), (-2,))))
    yield Case(
        "residual", residual, (image, weights, bias, _floats(2, 8, 5, 4, seed=3)),
        constants=frozenset({1, 2}),
    )  # fmt: skip
    late = ops.Fused(conv, 2, (Stage(ops.Add(), (-1, 2)), Stage(gelu, (-2,))))
    yield Case(
        "bias as an epilogue", late, (image, weights, bias.reshape(8, 1, 1)),
        constants=frozenset({1, 2}),
    )  # fmt: skip
    both = ops.Fused(ops.MatMul(), 2, (Stage(ops.Add(), (-1, 2)), Stage(ops.Add(), (-2, 3))))
    yield Case(
        "bias and addend", both,
        (_floats(2, 3, 16), _floats(16, 8, seed=1), _floats(2, 3, 8, seed=4), bias),
        constants=frozenset({1, 3}),
    )  # fmt: skip
    yield Case("stack", ops.MatMul(), (_floats(2, 3, 4, 8), _floats(2, 3, 8, 5, seed=1)))
    turned = ops.Gemm(alpha=0.5, trans_a=True, trans_b=True)
    yield Case("turned", turned, (_floats(8, 6), _floats(4, 8, seed=1), _floats(6, 4, seed=2)))


def _trials(bench: Bench, storage: str) -> Iterator[Trial]:
    cases = [c for op in (ops.Conv, ops.Gemm, ops.MatMul, ops.Fused) for c in op.cases()]
    cases += _own_cases()
    cases = [c for c in cases if bench.backend.candidates(graph_of(c).nodes[0], HOPPER)[0]]
    if storage == TF32:
        return tf32_trials(cases, bench.backend, HOPPER)
    if storage == "float32":
        return trials_of_cases(cases, bench.backend, CudaTarget(90))
    return narrow_trials(cases, bench.backend, HOPPER, DType(storage))


@pytest.mark.parametrize("storage", ["float32", TF32, "float16", "bfloat16"])
def test_every_product_that_it_is_asked_for_comes_out_right(bench: Bench, storage: str) -> None:
    trials = list(_trials(bench, storage))
    wrong = [reason for trial in trials for reason in bench.run(trial)]
    assert not wrong, "\n".join(wrong)
    own = {case.name for case in _own_cases()}
    if storage in {"float16", "bfloat16"}:  # what nothing but a binding takes stays wide
        own -= {"residual", "bias and addend", "turned"}
    assert own <= {trial.case.name for trial in trials}
    assert {call.epilogue for call in bench.cublaslt.calls} == {1, 4, 6, 36}


@pytest.mark.parametrize("is_last", [False, True])
def test_what_is_added_must_be_stored_as_the_result_is(bench: Bench, is_last: bool) -> None:
    graph = graph_of(next(_own_cases()))
    (node,) = graph.nodes
    if not is_last:
        graph.outputs = graph.add(ops.Sigmoid(), node.output, name="next").outputs
    tactics, refusals = bench.backend.candidates(node, HOPPER, DType.FLOAT16)
    assert bool(tactics) is not is_last
    assert {t.outputs[0].dtype for t in tactics} <= {DType.FLOAT16}
    told = "what is added is stored as float16, the result as float32"
    assert (told in {r.reason for r in refusals}) is is_last


def test_float32_is_rounded_only_where_tf32_is_asked_for(bench: Bench) -> None:
    (node,) = graph_of(next(_own_cases())).nodes
    for target, precisions in ((HOPPER, {"ieee", "tf32"}), (CudaTarget(90), {"ieee"})):
        tactics, _ = bench.backend.candidates(node, target)
        assert {dict(t.parameters)["precision"] for t in tactics} == precisions
    (node,) = graph_of(list(_own_cases())[1]).nodes
    narrow, _ = bench.backend.candidates(node, HOPPER, DType.FLOAT16)
    assert {dict(t.parameters)["precision"] for t in narrow} == {"ieee"}


def test_a_tactic_says_which_version_it_is_of_and_how_much_room_it_takes(bench: Bench) -> None:
    (node,) = graph_of(next(_own_cases())).nodes
    tactics, _ = bench.backend.candidates(node, CudaTarget(90))
    assert {dict(t.parameters)["version"] for t in tactics} == {VERSION}
    assert [t.workspace_bytes for t in tactics] == [0, 4096 + 256]
    assert len({dict(t.parameters)["algorithm"] for t in tactics}) == 2


def test_without_the_library_nothing_is_offered() -> None:
    (node,) = graph_of(next(_own_cases())).nodes
    tactics, refusals = CudaBackend().candidates(node, HOPPER)
    assert LIBRARY not in {t.family for t in tactics} | {r.family for r in refusals}


def _reason(bench: Bench, op: ops.Op, *values: Any) -> str:
    graph = Graph("one")
    inputs: list[Value] = []
    for k, value in enumerate(values):
        if isinstance(value, tuple):
            kind = TensorType(DType.FLOAT32, cast("Shape", value))
            inputs.append(graph.add_input(f"x{k}", kind))
        else:
            inputs.append(graph.add_constant(value, f"w{k}"))
    node = graph.add(op, *inputs, name="node")
    tactics, refusals = bench.backend.candidates(node, HOPPER, DType.FLOAT16)
    assert not tactics
    return next(r.reason for r in refusals if r.family == LIBRARY)


def test_what_it_cannot_do_is_refused_with_the_reason(bench: Bench) -> None:
    batch = SymbolicDim.symbol("batch")
    weights = _floats(8, 4, 1, 1)
    assert "not all known" in _reason(bench, ops.Conv((1, 1)), (batch, 4, 5, 5), weights)
    strided = ops.Conv((1, 1), (2, 2))
    assert "leaves out no pixel" in _reason(bench, strided, (1, 4, 5, 5), weights)
    assert "one tap" in _reason(bench, ops.Conv((3, 3)), (1, 4, 5, 5), _floats(8, 4, 3, 3))
    scaled = ops.Gemm(beta=0.5)
    assert "multiplied by 0.5" in _reason(bench, scaled, (3, 4), _floats(4, 8), _floats(8))
    assert "no bias" in _reason(bench, ops.Gemm(), (3, 4), _floats(4, 8), _floats(3, 1))
    assert "vector" in _reason(bench, ops.MatMul(), (3, 4), _floats(4))
    assert "is constant" in _reason(bench, ops.MatMul(), _floats(3, 4), (4, 5))
    squashed = ops.Fused(ops.MatMul(), 2, (Stage(ops.Sigmoid(), (-1,)),))
    assert "sigmoid" in _reason(bench, squashed, (3, 4), _floats(4, 5))
    twice = ops.Fused(ops.MatMul(), 2, (Stage(ops.Relu(), (-1,)), Stage(ops.Relu(), (-2,))))
    assert "more than" in _reason(bench, twice, (3, 4), _floats(4, 5))
    exact = ops.Fused(ops.MatMul(), 2, (Stage(ops.Gelu(), (-1,)),))
    assert "gelu" in _reason(bench, exact, (3, 4), _floats(4, 5))
    bench.cublaslt.refuses_heuristics = True
    assert "no algorithm" in _reason(bench, ops.MatMul(), (3, 4), _floats(4, 5))


def test_operands_are_never_windows(bench: Bench) -> None:
    """Where a result is concatenated, or an operand a slice, a copy stands between."""
    graph = Graph("windows")
    x = graph.add_input("x", TensorType(DType.FLOAT32, (2, 6)))
    parts = graph.add(ops.Split(axis=1, num_outputs=2), x, name="split").outputs
    made = [
        graph.add(ops.MatMul(), part, graph.add_constant(_floats(3, 5, seed=k), f"w{k}"),
                  name=f"product{k}").output
        for k, part in enumerate(parts)
    ]  # fmt: skip
    graph.outputs = graph.add(ops.Concat(axis=1), *made, name="concat").outputs
    whole = CudaBackend(library=open_cublaslt(bench.device))
    chosen = {
        id(node): min(
            whole.candidates(node, HOPPER)[0],
            key=lambda t: (t.family != LIBRARY, t.is_reference, t.aliasing.value == "none"),
        )
        for node in graph.nodes
    }
    plan = assemble(graph, chosen, whole, WeightStore()).plan
    kinds = [step.kernel.family for step in plan.steps if isinstance(step, Launch)]
    assert sorted(kinds) == ["copy"] * 4 + [LIBRARY] * 2
