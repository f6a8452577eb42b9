"""The stage on a GPU: plans of one graph share an arena and weights, and run as graphs by turns.

Weights are what they are, so that activations are as in the engine: what numbers are multiplied
decides how much power a GPU takes, and by that its clock.

Launches that start early, or lie side by side, may touch what an earlier one has not done with, and
be right for all that nine times in ten. So before a plan is timed it computes fresh inputs a few
times, each time in memory that holds nothing that it could have read too soon, and once with every
launch waiting for the one before: all of it must agree in every bit, and with a plan that differs
from it in the ways of its launches alone.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import numpy as np

from smelt.backends import WeightStore, build_plan
from smelt.devices.cuda import (
    CudaEvent,
    CudaMemory,
    CudaStream,
    KernelLoader,
    LibraryError,
    copy_memory,
)
from smelt.engine import ERROR_BYTES, Launch, Space
from smelt.errors import BuildError, EngineMismatchError
from smelt.runtime import CudaSegmentFactory, LoadedWeights, MemoryMap
from smelt.tuner._cuda_measurer import POISON
from smelt.tuner._in_network_trial import PlanFixture, graph_of, random_binding
from smelt.types import override

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from smelt.backends import BuiltPlan
    from smelt.backends.cuda import CudaBackend, CudaTarget
    from smelt.devices.cuda import CudaAllocation, CudaDevice, LoadedCall, LoadedKernel
    from smelt.ir import Array, Graph
    from smelt.tuner._in_network_trial import Assignment, PlanRun, Symbols

_LOG = logging.getLogger(__name__)
_RUNS: Final = 4
"""Runs of which one time is the mean."""
_CHECKED_INPUTS: Final = 3
_CHECKED_RUNS: Final = 3
"""Runs of a plan on each inputs that must agree with the one in which launches wait."""


class CudaPlanFixture(PlanFixture):
    """Plans on one GPU."""

    def __init__(
        self,
        graphs: Sequence[Graph],
        assignments: Sequence[Assignment],
        backend: CudaBackend,
        target: CudaTarget,
        device: CudaDevice,
        *,
        symbols: Symbols,
        sizes: Mapping[str, int],
    ) -> None:
        """Assemble plans of ``assignments``; one that the compiler or a library refuses is None.

        Each is of one of ``graphs``, whose inputs and outputs are alike.
        """
        self.device, graph = device, graphs[0]
        self._open = ExitStack()
        store = WeightStore()
        made = [
            build_plan(graph_of(assignment, graphs), assignment, backend, store, symbols=symbols)
            for assignment in assignments
        ]
        for one in made:
            backend.begin([s.kernel for s in _launches(one)], target)
        self._backend, self._target = backend, target
        self._loader = KernelLoader(device)
        self._kernels: dict[str, LoadedKernel | LoadedCall | None] = {}
        self.plans = [one if self._is_loaded(one) else None for one in made]
        self.stream = self._open.enter_context(CudaStream(device))
        recorder = self._open.enter_context(CudaStream(device))
        data = store.data()
        weights = self._uploaded(data)
        self._inputs, self._sizes = graph.inputs, sizes
        self._bindings = self._bound(graph, made, sizes)
        self._arena = arena = self._allocate(max(one.plan.arena_bytes for one in made))
        kernels = {name: kernel for name, kernel in self._kernels.items() if kernel is not None}
        self.machinery = CudaSegmentFactory(
            device, kernels, recorder, self.stream, LoadedWeights(data, weights.address, weights)
        )
        errors = self._allocate(max(len(one.layers) for one in made) * ERROR_BYTES)
        self.memories = MemoryMap(arena.address, weights.address, errors.address)
        self.addresses = [memory.address for memory in self._bindings]
        self._marks = [CudaEvent(device) for _ in range(2)]

    # ---- code

    def _is_loaded(self, made: BuiltPlan) -> bool:
        """Whether all of a plan's kernels are on the GPU."""
        return all(self._loaded(step) is not None for step in _launches(made))

    def _loaded(self, step: Launch) -> LoadedKernel | LoadedCall | None:
        name = step.kernel.symbol
        if name not in self._kernels:
            self._kernels[name] = None
            try:
                record = self._backend.records(step.kernel, self._target)
                self._kernels[name] = self._loader.load(record)
            except (BuildError, EngineMismatchError) as error:
                _LOG.warning("%s is rejected: %s", name, error)
            except LibraryError as error:
                self.device.synchronize()  # raises if the GPU is lost with it
                _LOG.warning("%s is rejected: %s", name, error)
        return self._kernels[name]

    # ---- memory

    def _allocate(self, size_bytes: int) -> CudaAllocation:
        memory = CudaMemory(self.device).allocate(max(size_bytes, 1), "trial")
        self._open.callback(memory.close)
        return memory

    def _uploaded(self, data: NDArray[np.uint8], size_bytes: int = 0) -> CudaAllocation:
        memory = self._allocate(max(data.size, size_bytes))
        self._upload(data, memory)
        return memory

    def _upload(self, data: NDArray[np.uint8], memory: CudaAllocation) -> None:
        copy_memory(self.device, memory.address, int(data.ctypes.data), data.size, self.stream)
        self.stream.synchronize()

    def _bound(
        self, graph: Graph, made: Sequence[BuiltPlan], sizes: Mapping[str, int]
    ) -> list[CudaAllocation]:
        """Memory for inputs and outputs, as large as any plan needs it."""
        spaces = {Space.INPUT, Space.OUTPUT}
        largest: dict[int, int] = {}
        for buffer in (b for one in made for b in one.plan.buffers if b.space in spaces):
            largest[buffer.start] = max(largest.get(buffer.start, 0), buffer.size_bytes)
        rng = np.random.default_rng(0)
        arrays: list[Array] = [
            random_binding(v, sizes, rng) for v in (*graph.inputs, *graph.outputs)
        ]
        return [
            self._uploaded(array.reshape(-1).view(np.uint8), largest.get(number, 0))
            for number, array in enumerate(arrays)
        ]

    # ---- whether launches wait for each other as they must

    @override
    def find_nondeterministic_plans(
        self, plan_runs: Sequence[PlanRun | None], alike: Sequence[int]
    ) -> set[int]:
        found: set[int] = set()
        rng = np.random.default_rng(1)
        for _ in range(_CHECKED_INPUTS):
            for value, memory in zip(self._inputs, self._bindings, strict=False):
                self._upload(
                    random_binding(value, self._sizes, rng).reshape(-1).view(np.uint8), memory
                )
            made: dict[int, list[bytes]] = {}
            for number, plan_run in enumerate(plan_runs):
                if plan_run is None or number in found:
                    continue
                made[number] = self._results(plan_run, timed=True)
                wanted = made.get(alike[number], made[number])
                runs = (self._results(plan_run, timed=False) for _ in range(_CHECKED_RUNS))
                if made[number] != wanted or any(run != wanted for run in runs):
                    found.add(number)
        return found

    def _results(self, plan_run: PlanRun, *, timed: bool) -> list[bytes]:
        """What a plan writes to its outputs, where all memory was poison before."""
        outputs = self._bindings[len(self._inputs) :]
        for memory in (self._arena, *outputs):
            self.device.call(
                "cuMemsetD8Async", memory.address, POISON, memory.size_bytes, self.stream.handle
            )
        plan_run(timed=timed)
        found = [np.empty(memory.size_bytes, np.uint8) for memory in outputs]
        for host, memory in zip(found, outputs, strict=True):
            place = int(host.ctypes.data)
            copy_memory(self.device, place, memory.address, host.size, self.stream)
        self.stream.synchronize()
        return [host.tobytes() for host in found]

    # ---- time

    @override
    def measure_plan_ms(self, run: Callable[[], None]) -> float:
        start, end = self._marks
        run()  # after another plan this one's code must come back into the cache
        start.record(self.stream)
        for _ in range(_RUNS):
            run()
        end.record(self.stream)
        end.synchronize()
        return start.elapsed(end) / _RUNS

    @override
    def close(self) -> None:
        self.device.synchronize()
        self._open.close()


def _launches(made: BuiltPlan) -> list[Launch]:
    return [step for step in made.plan.steps if isinstance(step, Launch)]
