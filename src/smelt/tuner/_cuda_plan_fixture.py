"""Fixture of in-network trials on a GPU: plans share an arena and weights and run as CUDA graphs.

The weights have their real values, so that activations are those of the engine. The numbers that a
GPU multiplies determine its power draw, and thereby its clock rate.

Launches that start early (PDL) or run concurrently may race with an earlier launch and still give
right results most of the time. Each plan is therefore checked before it is timed. It computes
random inputs several times in poisoned memory, and once with every launch waiting for the one
before. All results must be equal bit for bit, also to those of a plan that differs in launch
variants only.
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
from smelt.engine import ERROR_BYTES, Space
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
    from smelt.engine import Launch
    from smelt.ir import Array, Graph
    from smelt.tuner._in_network_trial import Assignment, PlanRun, Symbols

_LOG = logging.getLogger(__name__)
_RUNS: Final = 4
"""Number of runs that one measured time averages. Chosen without a measurement."""
_CHECKED_INPUTS: Final = 3
"""Number of sets of random inputs with which each plan is checked. With `_CHECKED_RUNS` a plan runs
twelve times, about 5 ms for ResNet-50 at batch 1: a race gives the right result in nine of ten runs
(docs/lab/tuning-on-gpus.md)."""
_CHECKED_RUNS: Final = 3
"""Number of runs per input set that must equal the run in which launches wait. `_CHECKED_INPUTS`
has the reason."""


class CudaPlanFixture(PlanFixture):
    """Plans that share memory and kernels on one GPU."""

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
        """Build a plan of each assignment; None where the compiler or a library rejects a kernel.

        Each assignment is of one of ``graphs``, which have equal inputs and outputs.
        """
        self.device, graph = device, graphs[0]
        self._resources = ExitStack()
        store = WeightStore()
        built_plans = [
            build_plan(graph_of(assignment, graphs), assignment, backend, store, symbols=symbols)
            for assignment in assignments
        ]
        for built in built_plans:
            backend.begin([launch.kernel for launch in built.plan.launches], target)
        self._backend, self._target = backend, target
        self._loader = KernelLoader(device)
        self._kernels: dict[str, LoadedKernel | LoadedCall | None] = {}
        self.plans = [built if self._is_loaded(built) else None for built in built_plans]
        self.stream = self._resources.enter_context(CudaStream(device))
        recorder = self._resources.enter_context(CudaStream(device))
        data = store.data()
        weights = self._uploaded(data)
        self._inputs, self._sizes = graph.inputs, sizes
        self._bindings = self._allocate_bindings(graph, built_plans, sizes)
        self._arena = arena = self._allocate(max(built.plan.arena_bytes for built in built_plans))
        kernels = {name: kernel for name, kernel in self._kernels.items() if kernel is not None}
        self.segment_factory = CudaSegmentFactory(
            device, kernels, recorder, self.stream, LoadedWeights(data, weights.address, weights)
        )
        errors = self._allocate(max(len(built.layers) for built in built_plans) * ERROR_BYTES)
        addresses = [memory.address for memory in self._bindings]
        self.memories = MemoryMap(arena.address, weights.address, errors.address, addresses)
        self._events = [CudaEvent(device) for _ in range(2)]

    # ---- code

    def _is_loaded(self, built_plan: BuiltPlan) -> bool:
        """Load all kernels of a plan; return whether none was rejected."""
        return all(self._loaded(launch) is not None for launch in built_plan.plan.launches)

    def _loaded(self, step: Launch) -> LoadedKernel | LoadedCall | None:
        """Compile and load a launch's kernel once; return None and log a warning on failure."""
        name = step.kernel.symbol
        if name not in self._kernels:
            self._kernels[name] = None
            try:
                record = self._backend.records(step.kernel, self._target)
                self._kernels[name] = self._loader.load(record)
            except (BuildError, EngineMismatchError) as error:
                _LOG.warning("kernel %s is rejected: %s", name, error)
            except LibraryError as error:
                self.device.synchronize()  # raises if the GPU is unusable
                _LOG.warning("kernel %s is rejected: %s", name, error)
        return self._kernels[name]

    # ---- memory

    def _allocate(self, size_bytes: int) -> CudaAllocation:
        memory = CudaMemory(self.device).allocate(max(size_bytes, 1), "trial")
        self._resources.callback(memory.close)
        return memory

    def _uploaded(self, data: NDArray[np.uint8], size_bytes: int = 0) -> CudaAllocation:
        memory = self._allocate(max(data.size, size_bytes))
        self._upload(data, memory)
        return memory

    def _upload(self, data: NDArray[np.uint8], memory: CudaAllocation) -> None:
        copy_memory(self.device, memory.address, int(data.ctypes.data), data.size, self.stream)
        self.stream.synchronize()

    def _allocate_bindings(
        self, graph: Graph, built_plans: Sequence[BuiltPlan], sizes: Mapping[str, int]
    ) -> list[CudaAllocation]:
        """Allocate memory of inputs and outputs, each as large as the largest plan requires."""
        spaces = {Space.INPUT, Space.OUTPUT}
        largest: dict[int, int] = {}
        for buffer in (b for built in built_plans for b in built.plan.buffers if b.space in spaces):
            largest[buffer.start] = max(largest.get(buffer.start, 0), buffer.size_bytes)
        rng = np.random.default_rng(0)
        arrays: list[Array] = [
            random_binding(v, sizes, rng) for v in (*graph.inputs, *graph.outputs)
        ]
        return [
            self._uploaded(array.reshape(-1).view(np.uint8), largest.get(number, 0))
            for number, array in enumerate(arrays)
        ]

    # ---- race checks

    @override
    def find_nondeterministic_plans(
        self, plan_runs: Sequence[PlanRun | None], references: Sequence[int]
    ) -> set[int]:
        nondeterministic: set[int] = set()
        rng = np.random.default_rng(1)
        for _ in range(_CHECKED_INPUTS):
            for value, memory in zip(self._inputs, self._bindings, strict=False):
                self._upload(
                    random_binding(value, self._sizes, rng).reshape(-1).view(np.uint8), memory
                )
            serial_results: dict[int, list[bytes]] = {}
            for number, plan_run in enumerate(plan_runs):
                if plan_run is None or number in nondeterministic:
                    continue
                serial_results[number] = self._results(plan_run, timed=True)
                expected = serial_results.get(references[number], serial_results[number])
                runs = (self._results(plan_run, timed=False) for _ in range(_CHECKED_RUNS))
                if serial_results[number] != expected or any(run != expected for run in runs):
                    nondeterministic.add(number)
        return nondeterministic

    def _results(self, plan_run: PlanRun, *, timed: bool) -> list[bytes]:
        """Run a plan in poisoned memory and return the bytes of its outputs."""
        outputs = self._bindings[len(self._inputs) :]
        for memory in (self._arena, *outputs):
            self.device.call(
                "cuMemsetD8Async", memory.address, POISON, memory.size_bytes, self.stream.handle
            )
        plan_run(timed=timed)
        host_copies = [np.empty(memory.size_bytes, np.uint8) for memory in outputs]
        for host, memory in zip(host_copies, outputs, strict=True):
            address = int(host.ctypes.data)
            copy_memory(self.device, address, memory.address, host.size, self.stream)
        self.stream.synchronize()
        return [host.tobytes() for host in host_copies]

    # ---- time

    @override
    def measure_plan_ms(self, run: Callable[[], None]) -> float:
        start, end = self._events
        run()  # reload this plan's code into the cache after another plan
        start.record(self.stream)
        for _ in range(_RUNS):
            run()
        end.record(self.stream)
        end.synchronize()
        return start.elapsed(end) / _RUNS

    @override
    def close(self) -> None:
        self.device.synchronize()
        self._resources.close()
