"""Convolutions by cuDNN: which nodes it is asked to do, and that they come out right."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from smelt import ops
from smelt.backends.cuda import CudaTarget
from smelt.backends.cuda.families.cudnn import CudnnFamily
from smelt.ops import Stage
from smelt.types import DType, SymbolicDim
from tests.support.cudnn_stub import VERSION, StubCudnn, StubEngine
from tests.support.noise import noise
from tests.support.precision import candidates_in
from tests.support.trials import TF32, graph_of
from tests.support.vendor_library_fixture import HOPPER, LibraryCallFixture, cases_with_epilogues

if TYPE_CHECKING:
    from smelt.ir import Case

Bench = LibraryCallFixture[StubCudnn]
FAMILY = CudnnFamily.name
_WINDOW = ops.Conv((3, 3), pads=(1, 1, 1, 1))


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return LibraryCallFixture(FAMILY, StubCudnn, monkeypatch)


def _own_cases() -> list[Case]:
    return [*cases_with_epilogues(_WINDOW, 4, ops.Relu())]


@pytest.mark.parametrize("storage", ["float32", TF32, "float16", "bfloat16"])
def test_every_convolution_that_it_is_asked_for_comes_out_right(bench: Bench, storage: str) -> None:
    cases = [*ops.Conv.cases(), *ops.Fused.cases(), *_own_cases()]
    trials = list(bench.trials(cases, storage))
    wrong = [reason for trial in trials for reason in bench.run(trial)]
    assert not wrong, "\n".join(wrong)
    ranks = {len(call.what.images.shape) for call in bench.stub.calls}
    kinds = {call.what.images.kind for call in bench.stub.calls}
    assert ranks == {4, 5}  # those of one axis are images of one row
    assert {"float16": 2, "bfloat16": 9}.get(storage, 0) in kinds
    tried = {call.engine for call in bench.stub.calls}
    assert tried == ({51} if storage == TF32 else {10, 41, 51})


def test_a_tactic_says_which_engine_it_is_and_of_which_version(bench: Bench) -> None:
    (node,) = graph_of(_own_cases()[0]).nodes
    tactics, _ = bench.backend.candidates(node, CudaTarget(90))
    said = [dict(tactic.parameters) for tactic in tactics]
    assert {s["version"] for s in said} == {VERSION}
    engines = [(10, ((2, 5), (13, 1))), (41, ((2, 1),)), (10, ((2, 7), (13, 0)))]
    assert [(s["engine"], s["knobs"]) for s in said] == engines
    assert [tactic.workspace_bytes for tactic in tactics] == [0, 4000 + 256, 0]


def test_what_varies_or_rounds_is_not_offered(bench: Bench) -> None:
    (node,) = graph_of(_own_cases()[0]).nodes

    def engines(target: CudaTarget, precision: str) -> list[object]:
        said = (dict(t.parameters) for t in bench.backend.candidates(node, target)[0])
        return [s["engine"] for s in said if s["input_precision"] == precision]

    assert engines(CudaTarget(90), "ieee") == engines(HOPPER, "ieee") == [10, 41, 10]
    assert engines(HOPPER, "tf32") == [51]
    assert engines(CudaTarget(90), "tf32") == []


def test_only_where_it_guesses_nothing_it_is_asked_what_works_at_all(bench: Bench) -> None:
    (node,) = graph_of(_own_cases()[0]).nodes
    bench.stub.proposals |= {3: (), 1: (StubEngine(9, notes=(4,)),)}
    tactics, _ = bench.backend.candidates(node, CudaTarget(90))
    assert [dict(tactic.parameters)["engine"] for tactic in tactics] == [0]


def test_what_it_cannot_do_is_refused_with_the_reason(bench: Bench) -> None:
    weights, batch = noise(8, 4, 3, 3), SymbolicDim.symbol("batch")
    assert "symbolic or 0" in bench.reason(_WINDOW, (batch, 4, 5, 5), weights)
    assert "are not constant" in bench.reason(_WINDOW, (1, 4, 5, 5), (8, 4, 3, 3))
    squashed = ops.Fused(_WINDOW, 2, (Stage(ops.Sigmoid(), (-1,)),))
    assert "sigmoid" in bench.reason(squashed, (1, 4, 5, 5), weights)
    deep = ops.Conv((1, 1, 1, 1))
    assert "axes is 4" in bench.reason(deep, (1, 4, 2, 2, 2, 2), noise(8, 4, 1, 1, 1, 1))
    bench.stub.refuses_graphs = True
    assert "has no algorithm" in bench.reason(_WINDOW, (1, 4, 5, 5), weights)


def test_the_residual_must_be_stored_as_the_result_is(bench: Bench) -> None:
    graph = graph_of(_own_cases()[0])
    graph.outputs = graph.add(ops.Sigmoid(), graph.nodes[0].output, name="next").outputs
    tactics, _ = candidates_in(DType.FLOAT16, bench.backend, graph.nodes[0], HOPPER)
    assert {(t.input_formats[3], t.output_formats[0]) for t in tactics} == {
        (tactics[0].output_formats[0],) * 2
    }
