"""Trials of a library's calls on the stub of a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast

import numpy as np

from smelt import ops
from smelt.backends.cuda import CudaBackend, CudaTarget
from smelt.devices.cuda import (
    LIBRARIES,
    CudaLaunch,
    CudaRunList,
    CudaStream,
    KernelLoader,
    cuda_device,
)
from smelt.engine import Launch
from smelt.ir import Case, Graph
from smelt.ops import Stage
from smelt.types import DType, TensorType
from tests.support.cuda_driver_stub import StubDriver
from tests.support.cuda_engines import use_stub
from tests.support.noise import noise
from tests.support.precision import candidates_in
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
    from collections.abc import Callable, Iterable, Iterator

    import pytest

    from smelt.backends import Refusal, Tactic
    from smelt.devices.cuda import LoadedLibrary
    from smelt.engine import View
    from smelt.ir import Node, Value
    from smelt.types import Shape

HOPPER = CudaTarget(90, allows_tf32=True)
Array = np.ndarray[Any, Any]


def cases_with_epilogues(conv: ops.Conv, channels: int, last: ops.Op) -> Iterator[Case]:
    """What ops' own cases leave out behind a convolution that keeps the size of its images.

    Args:
        conv: of so many channels.
        channels: of its images.
        last: the activation behind a bias that is part of the epilogue.
    """
    weights = noise(8, channels, *conv.kernel_shape, seed=1)
    bias, image = noise(8, seed=2), noise(2, channels, 5, 4)
    residual = ops.Fused(conv, 3, (Stage(ops.Add(), (3, -1)), Stage(ops.Relu(), (-2,))))
    arrays = [image, weights, bias, noise(2, 8, 5, 4, seed=3)]
    yield Case("residual", residual, tuple(arrays), constants=frozenset({1, 2}))
    late = ops.Fused(conv, 2, (Stage(ops.Add(), (-1, 2)), Stage(last, (-2,))))
    arrays = [image, weights, bias.reshape(8, 1, 1)]
    yield Case("bias as an epilogue", late, tuple(arrays), constants=frozenset({1, 2}))


class _LibraryOnlyBackend(CudaBackend):
    """A backend that offers nothing else than a library."""

    def __init__(self, opened: LoadedLibrary) -> None:
        super().__init__(libraries=[opened])
        self._only = opened.provider

    def candidates(self, node: Node, target: CudaTarget) -> tuple[list[Tactic], list[Refusal]]:
        tactics, refusals = super().candidates(node, target)
        return [tactic for tactic in tactics if tactic.family == self._only], refusals


class _Stub(Protocol):
    """A library's."""

    def install(self, patch: pytest.MonkeyPatch, /) -> None:
        """Be the only library of its name."""
        ...


LibraryStubT = TypeVar("LibraryStubT", bound=_Stub)


class LibraryCallFixture(Generic[LibraryStubT]):
    """The stubs of a GPU and of a library, and what runs trials there."""

    def __init__(
        self, family: str, make: Callable[[StubDriver], LibraryStubT], patch: pytest.MonkeyPatch
    ) -> None:
        """Put the stubs in their places."""
        driver = StubDriver(lazy=True)
        use_stub(driver, patch)
        self.stub = make(driver)
        self.stub.install(patch)
        self.family = family
        self.device = cuda_device(0)
        self.opened = LIBRARIES[family].open(self.device, None)
        self.backend = _LibraryOnlyBackend(self.opened)
        self.loader = KernelLoader(self.device)
        self.stream = CudaStream(self.device)

    def trials(self, cases: Iterable[Case], storage: str) -> Iterator[Trial]:
        """The trials of those cases that the library can do."""
        able = [c for c in cases if self.backend.candidates(graph_of(c).nodes[0], HOPPER)[0]]
        if storage == TF32:
            return tf32_trials(able, self.backend, HOPPER)
        if storage == "float32":
            return trials_of_cases(able, self.backend, CudaTarget(90))
        return narrow_trials(able, self.backend, HOPPER, DType(storage))

    def reason(self, op: ops.Op, *values: Any) -> str:
        """Why the library refuses an op on values; a tuple is an input of that shape."""
        graph = Graph("one")
        inputs: list[Value] = []
        for k, value in enumerate(values):
            if isinstance(value, tuple):
                kind = TensorType(DType.FLOAT32, cast("Shape", value))
                inputs.append(graph.add_input(f"x{k}", kind))
            else:
                inputs.append(graph.add_constant(value, f"w{k}"))
        node = graph.add(op, *inputs, name="node")
        tactics, refusals = candidates_in(DType.FLOAT16, self.backend, node, HOPPER)
        assert not tactics
        return next(r.reason for r in refusals if r.family == self.family)

    def run(self, trial: Trial) -> list[str]:
        """What is wrong with a trial."""
        memory = TrialMemory(trial)
        bases = [int(array.ctypes.data) for array in memory.arrays]
        for step in trial.plan.steps:
            assert isinstance(step, Launch)
            if step.kernel.family != self.family:
                _copy(memory, *step.operands)
                continue
            words = memory.words(step, bases)
            loaded = self.loader.load(self.backend.records(step.kernel, HOPPER))
            row = CudaLaunch(loaded, len(words), 0)
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
    _window(memory, target)[...] = x.astype(target.dtype.numpy)


def _window(memory: TrialMemory, view: View) -> Array:
    dtype = view.dtype.numpy
    flat = memory.arrays[view.buffer][GUARD_BYTES + cast("int", view.offset) :]
    flat = flat[: flat.size // dtype.itemsize * dtype.itemsize].view(dtype)
    strides = [cast("int", s) * dtype.itemsize for s in view.strides]
    return np.lib.stride_tricks.as_strided(flat, cast("tuple[int, ...]", view.shape), strides)
