"""The trials of the CPU backend, compiled once and run two ways.

A trial goes the way that a real network goes (assemble, compile, run list, contexts of one and of
three threads), and is run once more with every buffer of the plan between guard pages.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from smelt.backends import CodeCache
from smelt.backends.cpu import CpuBackend, compile_runtime, generator_version, host_target
from smelt.devices.cpu import MappedCode, abi
from smelt.engine import (
    VERSION,
    Binding,
    EngineHeader,
    Fingerprint,
    Launch,
    Space,
    detect_host,
)
from smelt.runtime import Engine
from smelt.types import evaluate_dim
from tests.support.cpu_kernels import GuardedBuffer, call_kernel
from tests.support.trials import Trial, covering, difference, narrow_trials

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from smelt.backends.cpu import CpuTarget
    from smelt.engine import View
    from smelt.ir import Case
    from smelt.types import DType, TensorType

Array = np.ndarray[Any, Any]

_KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
_THREADS = (2, 3, 4)


class TrialRunner:
    """The trials of one op, their kernels compiled into one image."""

    def __init__(self, trials: Sequence[Trial], backend: CpuBackend, target: CpuTarget) -> None:
        """Compile every kernel of the trials, each once."""
        steps = [step for trial in trials for step in trial.plan.steps]
        kernels = [step.kernel for step in steps if isinstance(step, Launch)]
        self.target = target
        self.image = backend.compile(kernels, target)
        self.runtime = compile_runtime(target)
        self.code = MappedCode(self.image.code)
        base = self.code.address
        self.functions = {name: _KERNEL(base + at) for name, at in self.image.symbols}

    def engine(self, trial: Trial) -> Engine:
        """The trial as an engine."""
        host = detect_host()
        graph = trial.graph
        bindings = [(v, True) for v in graph.inputs] + [(v, False) for v in graph.outputs]
        used = {s.kernel.symbol for s in trial.plan.steps if isinstance(s, Launch)}
        header = EngineHeader(
            name="case",
            fingerprint=Fingerprint(
                "cpu",
                self.target.architecture,
                self.target.features,
                host.system,
                abi.ABI_VERSION,
                VERSION,
            ),
            bindings=tuple(
                Binding(v.name, given, v.tensor.dtype, v.tensor.shape) for v, given in bindings
            ),
            max_batch_size=None,
            plans=(trial.plan,),
            layers=trial.assembled.layers,
            weights=(),
            symbols=tuple(s for s in self.image.symbols if s[0] in used),
            runtime_symbols=self.runtime.symbols,
        )
        return Engine.create(header, trial.weights.data(), self.image.code, self.runtime.code)

    def run_guarded(self, trial: Trial, *, at_end: bool) -> tuple[Array, ...] | None:
        """The outputs, every buffer between guard pages; None for plans with Python steps."""
        launches = [s for s in trial.plan.steps if isinstance(s, Launch)]
        if len(launches) < len(trial.plan.steps):
            return None
        values = trial.values
        data = np.frombuffer(bytes(trial.weights.data()), np.uint8)
        inputs = list(trial.arrays.values())
        buffers: list[GuardedBuffer] = []
        for buffer in trial.plan.buffers:
            # Kernels may rely on the alignment of what the engine allocates, not of bindings.
            ours = buffer.space in (Space.ARENA, Space.WEIGHTS)
            made = GuardedBuffer(buffer.size_bytes, at_end=at_end, align=64 if ours else 1)
            if buffer.space is Space.ERRORS:
                made.bytes[:] = 0
            elif buffer.space is Space.WEIGHTS:
                made.bytes[:] = data[buffer.start : buffer.start + buffer.size_bytes]
            elif buffer.space is Space.INPUT:
                flat = np.ascontiguousarray(inputs[buffer.start]).reshape(-1).view(np.uint8)
                made.bytes[: flat.size] = flat
            buffers.append(made)
        self._launch(launches, buffers, values)
        for buffer, made in zip(trial.plan.buffers, buffers, strict=True):
            assert buffer.space is not Space.ERRORS or not made.bytes.any(), f"{trial} tells of one"
        places = {b.start: k for k, b in enumerate(trial.plan.buffers) if b.space is Space.OUTPUT}
        return tuple(
            _bound(buffers[places[len(inputs) + number]], value.tensor, values)
            for number, value in enumerate(trial.graph.outputs)
        )

    def _launch(
        self, launches: list[Launch], buffers: list[GuardedBuffer], values: Mapping[str, int]
    ) -> None:
        written = {launch.operands[i].buffer for launch in launches for i in launch.writes}
        for number, buffer in enumerate(buffers):
            buffer.seal(sealed=number not in written)
        for launch in launches:
            words = [_address(view, buffers, values) for view in launch.operands]
            call_kernel(
                self.functions[launch.kernel.symbol],
                [*words, *(evaluate_dim(scalar, values) for scalar in launch.scalars)],
                chunks=evaluate_dim(launch.chunks, values),
                scratch_bytes=launch.scratch_bytes,
            )
        for buffer in buffers:
            buffer.seal(sealed=False)


def _address(view: View, buffers: list[GuardedBuffer], values: Mapping[str, int]) -> int:
    return buffers[view.buffer].address + evaluate_dim(view.offset, values)


def _bound(buffer: GuardedBuffer, kind: TensorType, values: Mapping[str, int]) -> Array:
    shape = tuple(evaluate_dim(d, values) for d in kind.shape)
    return buffer.array(kind.dtype.numpy, shape)


def failures(trial: Trial, runner: TrialRunner, number: int) -> list[str]:
    """What is wrong with a trial, in words; by turns other numbers of threads are compared."""
    found: list[str] = []
    engine = runner.engine(trial)
    runs: list[list[Array]] = []
    threads = _THREADS[number % len(_THREADS)]
    for count in (1, threads):
        with engine.create_context(threads=count) as context:
            made = context.run(trial.arrays)
        runs.append([made[v.name] for v in trial.graph.outputs])
    for one, several, wanted in zip(*runs, trial.wanted, strict=True):
        if reason := difference(one, wanted, trial.case.tolerance, trial.step):
            found.append(f"{trial}: {reason}")
        if (
            not np.array_equal(one.view(np.uint8), several.view(np.uint8))
            if one.ndim
            else (one.tobytes() != several.tobytes())
        ):
            found.append(f"{trial}: {threads} threads give other bits than one")
    guarded = runner.run_guarded(trial, at_end=number % 2 == 0)
    for mine, wanted in zip(guarded or (), trial.wanted if guarded else (), strict=True):
        if reason := difference(mine, wanted, trial.case.tolerance, trial.step):
            found.append(f"{trial}, between guard pages: {reason}")
    return found


def single_job_backend() -> CpuBackend:
    """One that compiles what no test of the session has compiled, in one thread."""
    return CpuBackend(CodeCache.open(generator_version()), jobs=1)


def check_reduced_precision(
    cases: Iterable[Case], storage: DType, *, every_trial: bool = True
) -> int:
    """Run tactics that store float32 as ``storage``, all or a covering choice; their number."""
    backend, target = single_job_backend(), host_target()
    if target.storage(storage) is not storage:
        pytest.skip(f"this processor does not convert {storage.value}")
    trials = list(narrow_trials(cases, backend, target, storage))
    trials = trials if every_trial else covering(trials)
    runner = TrialRunner(trials, backend, target)
    wrong = [
        reason for number, trial in enumerate(trials) for reason in failures(trial, runner, number)
    ]
    assert not wrong, "\n".join(wrong)
    return len(trials)
