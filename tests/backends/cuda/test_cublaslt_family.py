"""Products by cuBLASLt: which nodes it is asked to do, and that they come out right."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

from smelt import ops
from smelt.backends import WeightStore, build_plan
from smelt.backends.cuda import CudaBackend, CudaTarget
from smelt.backends.cuda.families.cublaslt import CublasLtFamily
from smelt.engine import Launch
from smelt.ir import Case, Graph
from smelt.ops import Stage
from smelt.types import DType, SymbolicDim, TensorType
from tests.support.cublaslt_stub import VERSION, StubCublasLt
from tests.support.noise import noise
from tests.support.precision import candidates_in
from tests.support.trials import TF32, graph_of
from tests.support.vendor_library_fixture import HOPPER, LibraryCallFixture, cases_with_epilogues

if TYPE_CHECKING:
    from collections.abc import Iterator


FAMILY = CublasLtFamily.name
Bench = LibraryCallFixture[StubCublasLt]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return LibraryCallFixture(FAMILY, StubCublasLt, monkeypatch)


def _own_cases() -> Iterator[Case]:
    """What the ops' own cases leave out."""
    yield from cases_with_epilogues(ops.Conv((1, 1)), 16, ops.Gelu(approximate="tanh"))
    bias = noise(8, seed=2)
    both = ops.Fused(ops.MatMul(), 2, (Stage(ops.Add(), (-1, 2)), Stage(ops.Add(), (-2, 3))))
    yield Case(
        "bias and addend", both,
        (noise(2, 3, 16), noise(16, 8, seed=1), noise(2, 3, 8, seed=4), bias),
        constants=frozenset({1, 3}),
    )  # fmt: skip
    yield Case("stack", ops.MatMul(), (noise(2, 3, 4, 8), noise(2, 3, 8, 5, seed=1)))
    transposed = ops.Gemm(alpha=0.5, trans_a=True, trans_b=True)
    yield Case("transposed", transposed, (noise(8, 6), noise(4, 8, seed=1), noise(6, 4, seed=2)))


def _cases() -> list[Case]:
    cases = [c for op in (ops.Conv, ops.Gemm, ops.MatMul, ops.Fused) for c in op.cases()]
    return [*cases, *_own_cases()]


@pytest.mark.parametrize("storage", ["float32", TF32, "float16", "bfloat16"])
def test_every_product_that_it_is_asked_for_comes_out_right(bench: Bench, storage: str) -> None:
    trials = list(bench.trials(_cases(), storage))
    wrong = [reason for trial in trials for reason in bench.run(trial)]
    assert not wrong, "\n".join(wrong)
    own = {case.name for case in _own_cases()}
    if storage in {"float16", "bfloat16"}:  # what nothing but a binding takes stays wide
        own -= {"residual", "bias and addend", "transposed"}
    assert own <= {trial.case.name for trial in trials}
    assert {call.epilogue for call in bench.stub.calls} == {1, 4, 6, 36}


@pytest.mark.parametrize("is_last", [False, True])
def test_what_is_added_must_be_stored_as_the_result_is(bench: Bench, is_last: bool) -> None:
    graph = graph_of(next(_own_cases()))
    (node,) = graph.nodes
    if not is_last:
        graph.outputs = graph.add(ops.Sigmoid(), node.output, name="next").outputs
    tactics, refusals = candidates_in(DType.FLOAT16, bench.backend, node, HOPPER)
    assert bool(tactics) is not is_last
    assert {t.output_formats[0].dtype for t in tactics} <= {DType.FLOAT16}
    detail = "the addend differs from the result in type: float16 and float32"
    assert (detail in {r.reason for r in refusals}) is is_last


def test_float32_is_rounded_only_where_tf32_is_asked_for(bench: Bench) -> None:
    (node,) = graph_of(next(_own_cases())).nodes
    for target, precisions in ((HOPPER, {"ieee", "tf32"}), (CudaTarget(90), {"ieee"})):
        tactics, _ = bench.backend.candidates(node, target)
        assert {dict(t.parameters)["input_precision"] for t in tactics} == precisions
    (node,) = graph_of(list(_own_cases())[1]).nodes
    narrow, _ = candidates_in(DType.FLOAT16, bench.backend, node, HOPPER)
    assert {dict(t.parameters)["input_precision"] for t in narrow} == {"ieee"}


def test_a_tactic_says_which_version_it_is_of_and_how_much_room_it_takes(bench: Bench) -> None:
    (node,) = graph_of(next(_own_cases())).nodes
    tactics, _ = bench.backend.candidates(node, CudaTarget(90))
    assert {dict(t.parameters)["version"] for t in tactics} == {VERSION}
    assert [t.workspace_bytes for t in tactics] == [0, 4096 + 256]
    assert len({dict(t.parameters)["algorithm"] for t in tactics}) == 2


def test_without_the_library_nothing_is_offered() -> None:
    (node,) = graph_of(next(_own_cases())).nodes
    tactics, refusals = CudaBackend().candidates(node, HOPPER)
    assert FAMILY not in {t.family for t in tactics} | {r.family for r in refusals}


def test_what_it_cannot_do_is_refused_with_the_reason(bench: Bench) -> None:
    batch = SymbolicDim.symbol("batch")
    weights = noise(8, 4, 1, 1)
    assert "symbolic or 0" in bench.reason(ops.Conv((1, 1)), (batch, 4, 5, 5), weights)
    strided = ops.Conv((1, 1), (2, 2))
    assert "stride 1, no padding" in bench.reason(strided, (1, 4, 5, 5), weights)
    assert "1x1" in bench.reason(ops.Conv((3, 3)), (1, 4, 5, 5), noise(8, 4, 3, 3))
    scaled = ops.Gemm(beta=0.5)
    assert "beta is 0.5" in bench.reason(scaled, (3, 4), noise(4, 8), noise(8))
    endless = ops.Gemm(alpha=math.inf)
    assert "alpha is inf" in bench.reason(endless, (3, 4), noise(4, 8), noise(8))
    assert "the library cannot add" in bench.reason(ops.Gemm(), (3, 4), noise(4, 8), noise(3, 1))
    assert "vector" in bench.reason(ops.MatMul(), (3, 4), noise(4))
    assert "is constant" in bench.reason(ops.MatMul(), noise(3, 4), (4, 5))
    squashed = ops.Fused(ops.MatMul(), 2, (Stage(ops.Sigmoid(), (-1,)),))
    assert "sigmoid" in bench.reason(squashed, (3, 4), noise(4, 5))
    twice = ops.Fused(ops.MatMul(), 2, (Stage(ops.Relu(), (-1,)), Stage(ops.Relu(), (-2,))))
    assert "cannot fuse" in bench.reason(twice, (3, 4), noise(4, 5))
    exact = ops.Fused(ops.MatMul(), 2, (Stage(ops.Gelu(), (-1,)),))
    assert "gelu" in bench.reason(exact, (3, 4), noise(4, 5))
    bench.stub.refuses_heuristics = True
    assert "has no algorithm" in bench.reason(ops.MatMul(), (3, 4), noise(4, 5))


def test_operands_are_never_windows(bench: Bench) -> None:
    """Where a result is concatenated, or an operand a slice, a copy stands between."""
    graph = Graph("windows")
    x = graph.add_input("x", TensorType(DType.FLOAT32, (2, 6)))
    parts = graph.add(ops.Split(axis=1, num_outputs=2), x, name="split").outputs
    made = [
        graph.add(ops.MatMul(), part, graph.add_constant(noise(3, 5, seed=k), f"w{k}"),
                  name=f"product{k}").output
        for k, part in enumerate(parts)
    ]  # fmt: skip
    graph.outputs = graph.add(ops.Concat(axis=1), *made, name="concat").outputs
    whole = CudaBackend(libraries=[bench.opened])
    chosen = {
        node: min(
            whole.candidates(node, HOPPER)[0],
            key=lambda t: (t.family != FAMILY, t.is_host_step, t.aliasing.value == "none"),
        )
        for node in graph.nodes
    }
    plan = build_plan(graph, chosen, whole, WeightStore()).plan
    kinds = [step.kernel.family for step in plan.steps if isinstance(step, Launch)]
    assert sorted(kinds) == ["copy"] * 4 + [FAMILY] * 2
