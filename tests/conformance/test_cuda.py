"""Every op's cases by the CUDA backend's tactics: interpreted here, compiled where there is a GPU.

An interpreter runs the kernels' own text on the host, on every machine. On a GPU the same kernels
are compiled by many processes, launched, and must give the same bits again.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from smelt.backends.cuda import gluon_unavailable_reason
from smelt.ops import (
    ALL_OPS,
    GRU,
    LSTM,
    Conv,
    ConvSum,
    FusedPair,
    Gather,
    GatherElements,
    Gemm,
    MatMul,
    MaxPool,
    Op,
    Resize,
)
from tests.support.cuda_conformance import CudaWorkers, Request, every_request
from tests.support.cuda_op_coverage import kernel_coverage_error
from tests.support.window_reuse_cases import WINDOW_REUSE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

    from smelt.devices.cuda import CudaDevice
    from tests.support.cuda_conformance import Answer

_MAX_SECONDS = 300.0
_ROOT = Path(__file__).resolve().parents[2]
_every_op = pytest.mark.parametrize("op", ALL_OPS, ids=lambda op: op.name)


class _Interpreter:
    """A process in which Triton interprets kernels."""

    def __init__(self) -> None:
        paths = os.pathsep.join([str(_ROOT), str(_ROOT / "src")])
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.triton_interpreter"],
            cwd=_ROOT,
            env=os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": paths},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def check(self, op: type[Op], how: str) -> None:
        """Fail with what is wrong with the op's trials; skip where there should be none."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(op.name, how, file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        assert answer, f"the interpreter ended at {op.name}; its message stands above"
        count, wrong = cast("tuple[int, list[str]]", json.loads(answer))
        detail = kernel_coverage_error(op.name, how, count)
        assert not detail, detail
        if not count:
            pytest.skip(f"no kernel for GPUs computes {op.name} yet")
        assert not wrong, "\n".join(wrong)


@pytest.fixture(scope="module")
def interpreter() -> Iterator[_Interpreter]:
    if importlib.util.find_spec("triton") is None:
        pytest.skip("the kernels' language is not installed: the extra cuda-build")
    made = _Interpreter()
    yield made
    with made.process:  # closes its input, which ends it
        pass


@_every_op
def test_kernels_for_gpus_compute_what_the_reference_does(
    op: type[Op], interpreter: _Interpreter
) -> None:
    interpreter.check(op, "sampled")


@_every_op
def test_kernels_for_gpus_read_and_write_float16_where_nodes_have_float32(
    op: type[Op], interpreter: _Interpreter
) -> None:
    interpreter.check(op, "float16")


@_every_op
def test_kernels_for_gpus_read_and_write_bfloat16_where_nodes_have_float32(
    op: type[Op], interpreter: _Interpreter
) -> None:
    interpreter.check(op, "bfloat16")


@pytest.mark.parametrize("op", [Conv, ConvSum, Gemm, MatMul], ids=lambda op: op.name)
def test_kernels_for_gpus_round_to_tf32_what_they_multiply(
    op: type[Op], interpreter: _Interpreter
) -> None:
    interpreter.check(op, "tf32")


def test_kernels_that_hold_their_weights_compute_what_the_reference_does(
    interpreter: _Interpreter,
) -> None:
    interpreter.check(Conv, "persistent")


def test_kernels_of_two_products_compute_what_the_reference_does(
    interpreter: _Interpreter,
) -> None:
    interpreter.check(FusedPair, "chained")


def test_windows_that_slide_over_shared_memory_compute_what_the_reference_does(
    interpreter: _Interpreter,
) -> None:
    interpreter.check(Conv, "window_reuse")


@pytest.mark.parametrize("op", [FusedPair, Conv, ConvSum, Gemm, MaxPool], ids=lambda op: op.name)
def test_kernels_that_begin_with_their_last_tiles_compute_what_the_reference_does(
    op: type[Op], interpreter: _Interpreter
) -> None:
    interpreter.check(op, "reversed_tile_order")


@pytest.mark.parametrize("op", [Gather, GatherElements, GRU, LSTM, Resize], ids=lambda op: op.name)
def test_kernels_for_gpus_stay_inside_whatever_indices_lengths_and_tables_say(
    op: type[Op], interpreter: _Interpreter
) -> None:
    interpreter.check(op, "hostile")


@_every_op
def test_what_is_no_number_stays_where_the_op_brings_it(
    op: type[Op], interpreter: _Interpreter
) -> None:
    interpreter.check(op, "strange")


@_every_op
@pytest.mark.requirement("G-61")
def test_kernels_for_gpus_take_images_in_pairs(op: type[Op], interpreter: _Interpreter) -> None:
    interpreter.check(op, "half2")


@pytest.mark.slow
@_every_op
def test_more_kernels_for_gpus_compute_what_the_reference_does(
    op: type[Op], interpreter: _Interpreter, *, every_trial: bool
) -> None:
    interpreter.check(op, "all" if every_trial else "covering")


@pytest.fixture(scope="module")
def answers(
    gpu: CudaDevice, request: pytest.FixtureRequest
) -> Iterator[dict[Request, list[Future[Answer]]]]:
    """What becomes of the trials of all tests that were selected, as soon as it is known."""
    del gpu
    if importlib.util.find_spec("triton") is None:
        pytest.skip("the kernels' language is not installed: the extra cuda-build")
    chosen = {str(item.name) for item in request.session.items}
    name = test_compiled_kernels_compute_on_the_gpu_what_the_reference_does.__name__
    workers = CudaWorkers()
    yield {asked: workers.ask(asked) for asked in every_request() if f"{name}[{asked}]" in chosen}
    workers.close()


@pytest.mark.parametrize("asked", list(every_request()), ids=str)
def test_compiled_kernels_compute_on_the_gpu_what_the_reference_does(
    asked: Request, answers: dict[Request, list[Future[Answer]]], gpu: CudaDevice
) -> None:
    found = [share.result(_MAX_SECONDS) for share in answers[asked]]
    count = sum(answer.trials for answer in found)
    needs_more = gpu.properties.capability < (9, 0) or (
        asked.op == WINDOW_REUSE and gluon_unavailable_reason()
    )
    detail = kernel_coverage_error(asked.op, asked.storage, count)
    assert not detail or (needs_more and not count), detail
    if not count:
        pytest.skip(f"no kernel for GPUs computes {asked} yet")
    wrong = [reason for answer in found for reason in answer.wrong]
    assert not wrong, "\n".join(wrong)
