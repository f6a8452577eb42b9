"""GPU kernels on the host: Triton's interpreter runs a kernel's own text on numpy's memory.

It shows that the text computes the right thing, on every machine; not how fast, and not what the
compiler makes of it. Triton decides when it is first imported whether it interprets, so this runs
as a process of its own, which reads the names of ops and answers with what is wrong:
``TRITON_INTERPRET=1 python -m tests.support.triton_interpreter``.
"""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from smelt.backends.cuda import CudaBackend, CudaTarget, function_of
from smelt.backends.cuda._source import TRITON_TYPES
from smelt.engine import Launch
from smelt.ops import ALL_OPS
from smelt.types import DType, evaluate_dim
from tests.support.trial_memory import TrialMemory
from tests.support.trials import (
    PAIRS,
    difference,
    narrow_trials,
    paired_trials,
    sample,
    trials_of_cases,
)

if TYPE_CHECKING:
    from smelt.engine import KernelSpec
    from smelt.ops import Op
    from tests.support.trials import Trial

TARGET = CudaTarget(90)


class _Storage:
    """What the interpreter asks of a tensor's storage."""

    def __init__(self, address: int) -> None:
        self._address = address

    def data_ptr(self) -> int:
        return self._address

    def cpu(self) -> _Storage:
        return self

    def copy_(self, _other: object) -> None:
        return


class _Pointer:
    """An address that the interpreter takes for a tensor."""

    def __init__(self, address: int, dtype: DType) -> None:
        self._address = address
        self.dtype = TRITON_TYPES[dtype]

    def data_ptr(self) -> int:
        return self._address

    def untyped_storage(self) -> _Storage:
        return _Storage(self._address)

    def new_empty(self, *_arguments: object, **_options: object) -> _Pointer:
        return self

    def set_(self, *_arguments: object) -> None:
        return

    def storage_offset(self) -> int:
        return 0

    def size(self) -> tuple[int, ...]:
        return ()

    stride = size


def interpret(
    backend: CudaBackend, kernel: KernelSpec, words: list[int], scalars: list[int], programs: int
) -> None:
    """Run a kernel on addresses of the host."""
    interpreter = importlib.import_module("triton.runtime.interpreter")
    function = function_of(backend.generate(kernel, TARGET), kernel.symbol)
    pointers = [_Pointer(word, DType(d)) for word, d in zip(words, kernel["dtypes"], strict=True)]
    _let_tensors_bound_loops(interpreter)
    _leave_out_hints()
    with np.errstate(all="ignore"):
        interpreter.InterpretedFunction(function)[(programs,)](*pointers, *scalars)


def _as_int(tensor: Any) -> int:
    return int(tensor.handle.data.item())


def _let_tensors_bound_loops(interpreter: Any) -> None:
    """A scalar is an array of one element there, which newer numpy makes no int of."""

    def patch(tensor: Any, scope: Any, original: Any = interpreter._patch_lang_tensor) -> None:
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", _as_int)

    if not hasattr(interpreter, "smelt_patched"):
        interpreter._patch_lang_tensor = patch
        interpreter.smelt_patched = True


def run_trial(trial: Trial, backend: CudaBackend) -> TrialMemory:
    """Run a trial's plan; what it leaves in memory."""
    memory = TrialMemory(trial)
    bases = [int(array.ctypes.data) for array in memory.arrays]
    for step in trial.plan.steps:
        assert isinstance(step, Launch), step
        scalars = [evaluate_dim(s, trial.values) for s in step.scalars]
        programs = evaluate_dim(step.chunks, trial.values)
        interpret(backend, step.kernel, memory.words(step, bases), scalars, programs)
    return memory


def _leave_out_hints() -> None:
    """What only asks for time: early starts, and prefetches, the one assembly in our kernels."""
    language: Any = importlib.import_module("triton.language")

    def nothing(*_arguments: object, **_options: object) -> None:
        return

    language.extra.cuda.gdc_wait = language.extra.cuda.gdc_launch_dependents = nothing
    language.inline_asm_elementwise = nothing


_SAMPLED_CASES = 4
_SAMPLED_TRIALS = 6


def check(op: type[Op], how: str) -> tuple[int, list[str]]:
    """How many trials of an op were run, and what was wrong with them.

    Args:
        op: whose cases.
        how: "all" of them, some ("sampled"), some with float32 stored as "float16", or all in
            "pairs" of images.
    """
    backend = CudaBackend()
    cases = list(op.cases())
    if how not in {"all", PAIRS}:
        cases = sample(cases, _SAMPLED_CASES)
    if how == PAIRS:
        found = paired_trials(cases, backend, replace(TARGET, pairs=True))
    elif how == DType.FLOAT16.value:
        found = narrow_trials(cases, backend, TARGET, DType.FLOAT16)
    else:
        found = trials_of_cases(cases, backend, TARGET)
    trials = [trial for trial in found if not trial.tactic.is_reference]
    if how != "all":
        trials = sample(trials, _SAMPLED_TRIALS, key=lambda trial: trial.tactic.family)
    wrong: list[str] = []
    for trial in trials:
        memory = run_trial(trial, backend)
        wrong += [f"{trial}: {reason}" for reason in memory.damage()]
        for mine, wanted in zip(memory.outputs(), trial.wanted, strict=True):
            if reason := difference(mine, wanted, trial.case.tolerance, trial.step):
                wrong.append(f"{trial}: {reason}")
    return len(trials), wrong


def main() -> None:
    """Answer each line ``OP sampled|all|float16|pairs`` with a line of JSON."""
    ops = {op.name: op for op in ALL_OPS}
    for line in sys.stdin:
        name, how = line.split()
        answer = check(ops[name], how)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
