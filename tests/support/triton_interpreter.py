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
from typing import TYPE_CHECKING, Any

import numpy as np

from smelt.backends.cuda import CudaBackend, CudaTarget, function_of
from smelt.backends.cuda._source import TRITON_TYPES
from smelt.engine import Launch, Space
from smelt.ops import ALL_OPS
from smelt.types import DType, evaluate_dim
from tests.support.conformance import difference, sample, trials_of_cases

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smelt.engine import KernelSpec
    from smelt.ops import Op
    from tests.support.conformance import Trial

Array = np.ndarray[Any, Any]
TARGET = CudaTarget(90)
_GUARD_BYTES = 4096
_POISON = 0xA5


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


def run_trial(trial: Trial, backend: CudaBackend) -> tuple[Array, ...]:
    """The outputs of a trial's plan, each buffer with room around it that must stay as it is."""
    values = trial.values
    inputs = list(trial.arrays.values())
    data = np.frombuffer(bytes(trial.weights.data()), np.uint8)
    buffers: list[Array] = []
    for buffer in trial.plan.buffers:
        memory = np.full(buffer.size_bytes + 2 * _GUARD_BYTES, _POISON, np.uint8)
        inner = memory[_GUARD_BYTES : _GUARD_BYTES + buffer.size_bytes]
        if buffer.space is Space.WEIGHTS:
            inner[:] = data[buffer.start : buffer.start + buffer.size_bytes]
        elif buffer.space is Space.INPUT:
            flat = np.ascontiguousarray(inputs[buffer.start]).reshape(-1).view(np.uint8)
            inner[: flat.size] = flat
        buffers.append(memory)
    for step in trial.plan.steps:
        assert isinstance(step, Launch), step
        _launch(step, buffers, values, backend)
    for memory, buffer in zip(buffers, trial.plan.buffers, strict=True):
        assert (memory[:_GUARD_BYTES] == _POISON).all(), trial
        assert (memory[_GUARD_BYTES + buffer.size_bytes :] == _POISON).all(), trial
    places = {b.start: k for k, b in enumerate(trial.plan.buffers) if b.space is Space.OUTPUT}
    return tuple(
        _output(buffers[places[len(inputs) + number]], value.tensor, values)
        for number, value in enumerate(trial.graph.outputs)
    )


def _launch(
    step: Launch, buffers: list[Array], values: Mapping[str, int], backend: CudaBackend
) -> None:
    words = [
        int(buffers[v.buffer].ctypes.data) + _GUARD_BYTES + evaluate_dim(v.offset, values)
        for v in step.operands
    ]
    scalars = [evaluate_dim(s, values) for s in step.scalars]
    interpret(backend, step.kernel, words, scalars, evaluate_dim(step.chunks, values))


def _output(memory: Array, kind: Any, values: Mapping[str, int]) -> Array:
    shape = tuple(evaluate_dim(d, values) for d in kind.shape)
    count = int(np.prod(shape)) * kind.dtype.size_bytes
    inner = memory[_GUARD_BYTES : _GUARD_BYTES + count]
    found: Array = inner.view(kind.dtype.numpy).reshape(shape)
    return found


_SAMPLED_CASES = 4
_SAMPLED_TRIALS = 6


def check(op: type[Op], *, sampled: bool) -> tuple[int, list[str]]:
    """How many trials of an op were run, and what was wrong with them."""
    backend = CudaBackend()
    cases = list(op.cases())
    if sampled:
        cases = sample(cases, _SAMPLED_CASES)
    trials = [t for t in trials_of_cases(cases, backend, TARGET) if not t.tactic.is_reference]
    if sampled:
        trials = sample(trials, _SAMPLED_TRIALS, key=lambda trial: trial.tactic.family)
    wrong = [
        f"{trial}: {reason}"
        for trial in trials
        for mine, wanted in zip(run_trial(trial, backend), trial.wanted, strict=True)
        if (reason := difference(mine, wanted, trial.case.tolerance))
    ]
    return len(trials), wrong


def main() -> None:
    """Answer each line ``OP sampled|all`` with a line of JSON."""
    ops = {op.name: op for op in ALL_OPS}
    for line in sys.stdin:
        name, how = line.split()
        answer = check(ops[name], sampled=how == "sampled")
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
