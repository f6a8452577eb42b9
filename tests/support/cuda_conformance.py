"""Trials on a GPU: every tactic's kernels compiled, launched and compared with the reference.

A process of its own does a share of one op's trials: ``python -m tests.support.cuda_conformance``
reads
requests and answers each with a line of JSON. After a fault that ends all use of the GPU it says
which trial it was and ends; `CudaWorkers` goes on behind it in a fresh one.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import warnings
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from smelt.backends.cuda import CudaBackend, CudaTarget, compile_kernel
from smelt.devices.cuda import (
    CudaError,
    CudaKernel,
    CudaMemory,
    CudaModule,
    CudaStream,
    KernelArguments,
    LaunchConfig,
    copy_memory,
    cuda_device,
    launch,
)
from smelt.engine import Launch
from smelt.errors import SmeltError
from smelt.ops import ALL_OPS
from smelt.types import DType, evaluate_dim
from tests.support.dense_cases import DENSE_CASES
from tests.support.persistent_conv_cases import PERSISTENT, persistent_trials
from tests.support.prefetch_gemm_cases import prefetch_trials
from tests.support.trial_memory import TrialMemory
from tests.support.trials import (
    HALF2,
    STRANGE,
    TF32,
    difference,
    half2_trials,
    narrow_trials,
    shuffled,
    strange_trials,
    tf32_trials,
    trials_of_cases,
)
from tests.support.window_reuse_cases import WINDOW_REUSE, window_reuse_trials

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from smelt.devices.cuda import CudaAllocation, CudaDevice, CudaFunction
    from smelt.engine import KernelSpec
    from smelt.ir import Case
    from tests.support.trials import Trial

Array = np.ndarray[Any, Any]
ROOT: Final = Path(__file__).resolve().parents[2]
_FEW: Final = {DType.BFLOAT16.value: 1, TF32: 3, HALF2: 3}
"""Storages whose tiles others have, too: how many tactics are tried that differ in tiles alone."""
DENSE: Final = "dense"
"""Stands for an op in requests: the cases of the sizes that networks have."""
_POISONS: Final = (0xA5, 0x5A, 0xFF)
"""What outputs and workspaces hold before each run; the last is no number in any float."""
_STICKY: Final = frozenset({700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 999})
"""The driver's errors after which a process cannot use the GPU."""


@dataclass(frozen=True, slots=True)
class Request:
    """A share of one op's trials."""

    op: str
    storage: str = "float32"
    part: int = 0
    parts: int = 1
    skip: int = 0
    """Trials of the share that are done."""

    def __str__(self) -> str:
        return f"{self.op}-{self.storage}"


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a share."""

    trials: int
    done: int
    wrong: tuple[str, ...]


class _NodeBench:
    """One GPU, and the kernels that were compiled for it."""

    def __init__(self) -> None:
        self.device: CudaDevice = cuda_device(0)
        self.target = CudaTarget(int(self.device.properties.architecture.removeprefix("sm_")))
        self.backend = CudaBackend()
        self.stream = CudaStream(self.device)
        self._memory = CudaMemory(self.device)
        self._known: dict[str, tuple[CudaKernel, CudaModule, CudaFunction]] = {}

    def kernel(self, spec: KernelSpec) -> tuple[CudaKernel, CudaModule, CudaFunction]:
        """A kernel, compiled and loaded."""
        if spec.symbol not in self._known:
            text = self.backend.generate(spec, self.target)
            made = compile_kernel(spec, text, self.target)
            made = CudaKernel.from_bytes(made.to_bytes(), 0)
            module = CudaModule(self.device, made.cubin)
            function = module.function(made.entry, made.dynamic_shared_bytes)
            self._known[spec.symbol] = made, module, function
        return self._known[spec.symbol]

    def run(self, trial: Trial, memory: TrialMemory) -> None:
        """Run a trial's plan on the GPU and bring every buffer back."""
        taken: list[CudaAllocation] = []
        for array in memory.arrays:
            taken.append(self._memory.allocate(array.nbytes, "trial"))
            self._copy(taken[-1].address, array.ctypes.data, array.nbytes)
        bases = [allocation.address for allocation in taken]
        for step in trial.plan.steps:
            assert isinstance(step, Launch), step
            self._launch(trial, step, memory.words(step, bases))
        for array, address in zip(memory.arrays, bases, strict=True):
            self._copy(array.ctypes.data, address, array.nbytes)
        self.stream.synchronize()
        for allocation in taken:
            allocation.close()

    def _copy(self, target: int, source: int, size_bytes: int) -> None:
        copy_memory(self.device, target, source, size_bytes, self.stream)

    def _launch(self, trial: Trial, step: Launch, words: list[int]) -> None:
        kernel, _, function = self.kernel(step.kernel)
        words += [evaluate_dim(scalar, trial.values) for scalar in step.scalars]
        words += [0] * kernel.scratch_words
        arguments = KernelArguments(words)
        shape = LaunchConfig(
            (evaluate_dim(step.chunks, trial.values), 1, 1),
            kernel.threads,
            kernel.dynamic_shared_bytes,
            uses_pdl=kernel.supports_pdl,
            cluster_size=kernel.cluster,
        )
        launch(function, shape, arguments, self.stream)


def failures(trial: Trial, bench: _NodeBench) -> list[str]:
    """What is wrong with a trial on the GPU.

    It is run on the case's data, on the same data shuffled, and on the case's again, each time with
    other content in all memory: the first and the last run must agree in every bit.
    """
    runs: list[list[bytes]] = []
    found: list[str] = []
    for number, poison in enumerate(_POISONS):
        inputs, wanted = shuffled(trial) if number == 1 else (None, trial.wanted)
        memory = TrialMemory(trial, inputs, poison)
        bench.run(trial, memory)
        outputs = memory.outputs()
        runs.append([output.tobytes() for output in outputs])
        reasons = memory.damage()
        reasons += [
            f"a launch tells of an index out of range: {detail}" for detail in memory.detail()
        ]
        for mine, right in zip(outputs, wanted, strict=True):
            if reason := difference(mine, right, trial.case.tolerance, trial.step):
                reasons.append(reason)
        found += [f"{trial}, run {number}: {reason}" for reason in reasons]
    if runs[0] != runs[-1]:
        found.append(f"{trial}: the same inputs give other bits")
    return found


def trials_for(request: Request, backend: CudaBackend, target: CudaTarget) -> list[Trial]:
    """The trials of a request's share."""
    cases = _cases(request.op)
    every: Iterable[Trial]
    if request.op == PERSISTENT:
        held = persistent_trials(backend, target, DType(request.storage))
        every = [*held, *prefetch_trials(backend, target)]
    elif request.op == WINDOW_REUSE:
        every = window_reuse_trials(backend, target, DType(request.storage))
    elif request.storage == "float32":
        every = trials_of_cases(cases, backend, target)
    elif request.storage == TF32:
        every = tf32_trials(cases, backend, replace(target, allows_tf32=True))
    elif request.storage == STRANGE:
        every = strange_trials(cases, backend, target)
    elif request.storage == HALF2:
        every = half2_trials(cases, backend, replace(target, uses_half2=True))
    else:
        every = narrow_trials(cases, backend, target, DType(request.storage))
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        made = [trial for trial in every if not trial.tactic.is_host_step]
    made = _spread(made, _FEW.get(request.storage, len(made)))
    return made[request.part :: request.parts]


def _spread(trials: Sequence[Trial], count: int) -> list[Trial]:
    """Of trials that differ in tiles alone so many, evenly spread."""
    alike: dict[object, list[Trial]] = {}
    for trial in trials:
        alike.setdefault(_numbers_of(trial), []).append(trial)
    found: list[Trial] = []
    for group in alike.values():
        most = min(count, len(group))
        found += [group[number * len(group) // most] for number in range(most)]
    return found


def _numbers_of(trial: Trial) -> tuple[object, ...]:
    """What decides the types of all numbers, and how they lie."""
    tactic = trial.tactic
    return (
        trial.case.name,
        tactic.family,
        tactic.input_formats,
        tactic.output_formats,
        trial.symbols,
    )


def _cases(name: str) -> Sequence[Case]:
    if name in {DENSE, PERSISTENT, WINDOW_REUSE}:
        return DENSE_CASES if name == DENSE else ()
    return list({op.name: op for op in ALL_OPS}[name].cases())


def _answer(request: Request, bench: _NodeBench) -> tuple[Answer, bool]:
    """The answer, and whether the GPU can still be used."""
    trials = trials_for(request, bench.backend, bench.target)
    wrong: list[str] = []
    for number, trial in enumerate(trials[request.skip :], request.skip):
        try:
            wrong += failures(trial, bench)
        except SmeltError as error:
            wrong.append(f"{trial}: {error}")
            if isinstance(error, CudaError) and error.status in _STICKY:
                return Answer(len(trials), number + 1, tuple(wrong)), False
    return Answer(len(trials), len(trials), tuple(wrong)), True


def main() -> None:
    """Answer each line of JSON with another."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print must not get among the replies
    bench = _NodeBench()
    for line in sys.stdin:
        answer, is_alive = _answer(Request(**json.loads(line)), bench)
        print(json.dumps(asdict(answer)), file=replies, flush=True)
        if not is_alive:
            replies.close()
            os._exit(1)  # nothing of the GPU can be given back


# ---- in the process that asks


class CudaWorkers:
    """Processes that share the trials between them."""

    def __init__(self, count: int | None = None) -> None:
        """Start none yet."""
        self.count = count or len(os.sched_getaffinity(0))
        self._pool = ThreadPoolExecutor(self.count)
        self._own = threading.local()
        self._processes: list[subprocess.Popen[str]] = []

    def ask(self, request: Request) -> list[Future[Answer]]:
        """Queue an op's trials, cut into shares if there may be many."""
        parts = self.count if request.op in _LARGE else 1
        shares = [Request(request.op, request.storage, part=k, parts=parts) for k in range(parts)]
        return [self._pool.submit(self._do, share) for share in shares]

    def _do(self, share: Request) -> Answer:
        wrong: list[str] = []
        done, trials = 0, 1
        while done < trials:
            process = self._process()
            assert process.stdin is not None
            assert process.stdout is not None
            asked = replace(share, skip=done)
            print(json.dumps(asdict(asked)), file=process.stdin, flush=True)
            line = process.stdout.readline()
            if not line:
                process.wait()
                wrong.append(f"{share}: the process ended with {process.returncode} after {done}")
                break
            answer = json.loads(line)
            wrong += answer["wrong"]
            done, trials = answer["done"], answer["trials"]
            if done < trials:
                process.wait()
        return Answer(trials if done else 0, done, tuple(wrong))

    def _process(self) -> subprocess.Popen[str]:
        process = getattr(self._own, "process", None)
        if process is None or process.poll() is not None:
            paths = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
            process = self._own.process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.cuda_conformance"],
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            self._processes.append(process)
        return process

    def close(self) -> None:
        """End every process."""
        self._pool.shutdown(cancel_futures=True)
        for process in self._processes:
            with contextlib.suppress(OSError), process:
                if process.stdin is not None:
                    process.stdin.close()


_LARGE: Final = frozenset({"conv", "fused", "gemm", "mat_mul", DENSE})
_NARROW: Final = ("float16", "bfloat16")
_STORAGES: Final = ("float32", TF32, *_NARROW, HALF2, STRANGE)


def every_request() -> Iterator[Request]:
    """Every op in every storage, the large ones first."""
    for storage in _NARROW:
        yield Request(PERSISTENT, storage)
        yield Request(WINDOW_REUSE, storage)
    names = sorted([*(op.name for op in ALL_OPS), DENSE], key=lambda name: name not in _LARGE)
    for name in names:
        for storage in _STORAGES:
            yield Request(name, storage)


if __name__ == "__main__":
    main()
