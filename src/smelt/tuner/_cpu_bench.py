"""Bench that checks and times tactics of single nodes on this machine's CPU."""

from __future__ import annotations

import logging
import math
import time
from contextlib import ExitStack
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np

from smelt.backends import WeightStore
from smelt.devices.cpu import CpuMemory, MappedCode, RunList, RunListRow, Scratch, worker_pool
from smelt.engine import VERSION
from smelt.errors import InternalError
from smelt.tuner._isolated_node import (
    IsolatedNode,
    argument_words,
    cast_to_storage,
    large_error_reason,
    lower_isolated_copy,
    lower_isolated_node,
    random_inputs_and_reference,
    relative_error,
    smallest_nonzero,
    storage_dtype_of,
    tensor_view,
)
from smelt.types import DType, Limit, TensorType, evaluate_dim, is_float_dtype

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from smelt.backends import Backend, Tactic
    from smelt.backends.cpu import CpuTarget
    from smelt.devices.cpu import CpuAllocation, NativeRuntime
    from smelt.engine import View
    from smelt.ir import Array, Constant, Node
    from smelt.tuner._isolated_node import TimingRepeats

_LOG = logging.getLogger(__name__)
_TOLERANCES: Final = {DType.BFLOAT16: 0.1, DType.FLOAT16: 1e-2}
"""Relative error limits by storage type. They are loose because intermediate tensors are rounded,
while an activation may bound the magnitudes that errors are relative to. Chosen without a
measurement."""
_TOLERANCE: Final = 1e-4
"""Relative error limit of float32 results. It is the error that the project allows for float32."""
_COMPILE_BATCH: Final = 32
"""Number of kernels compiled between two checks of the deadline. Chosen without a measurement."""
_MAX_RUNS_PER_MEAN: Final = 64
"""Maximum number of runs that one sample averages to reach its minimum duration. Chosen without a
measurement."""


@dataclass(slots=True)
class _BoundNode:
    """An isolated node with allocated memory."""

    lowered: IsolatedNode
    memories: list[CpuAllocation]
    inputs: list[NDArray[Any] | None]
    """Views of the inputs' memory in logical axis order; None for an absent input."""
    outputs: list[NDArray[Any]]


@dataclass(eq=False)
class CpuBench:
    """Compiles tactics of single nodes, checks them against the reference and times them.

    Tactics are checked on all threads, to detect races. They are timed on one thread: with several,
    another process that occupies one CPU for a while would distort the comparison of candidates.
    """

    trial_limit: ClassVar[Limit] = Limit.MAX_TRIAL_BYTES
    copy_sample_types: ClassVar[tuple[TensorType, TensorType]] = (
        TensorType(DType.FLOAT32, (1, 64, 7, 7)),
        TensorType(DType.FLOAT32, (1, 64, 56, 56)),
    )
    """Sample tensors for copy costs; copies of larger tensors run at the same rate."""

    backend: Backend[CpuTarget]
    target: CpuTarget
    runtime: NativeRuntime
    _: KW_ONLY
    threads: int
    sizes: Mapping[str, int]
    memory: CpuMemory = field(default_factory=CpuMemory)
    refused: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    """Rejection reasons of candidates by node name and tactic text."""

    @property
    def where(self) -> str:
        """Key of what times depend on besides node, tactic and sizes."""
        return f"{self.target.name}, {VERSION} {self.backend.codegen_version}"

    def compile_candidates(
        self, work: Sequence[tuple[Node, Tactic]], *, deadline: float = math.inf
    ) -> None:
        """Compile the kernels of many tactics on all CPUs.

        Args:
            work: nodes and tactics that will be timed.
            deadline: time of ``time.perf_counter`` at which to stop.
        """
        lowered = [
            lower_isolated_node(self.backend, node, tactic, self.sizes) for node, tactic in work
        ]
        kernels = {
            s.kernel.symbol: s.kernel for lowered_node in lowered for s in lowered_node.launches
        }
        pending = list(kernels.values())
        while pending and time.perf_counter() < deadline:
            self.backend.precompile(pending[:_COMPILE_BATCH], self.target)
            del pending[:_COMPILE_BATCH]

    def seconds(
        self, node: Node, tactics: Sequence[Tactic], *, repeats: TimingRepeats
    ) -> list[float]:
        """Return the seconds of each tactic; infinity if results are wrong or vary between runs."""
        lowered = [
            lower_isolated_node(self.backend, node, tactic, self.sizes) for tactic in tactics
        ]
        code, addresses = self._map_code(lowered)
        rng = np.random.default_rng(len(node.name))
        trials = [
            random_inputs_and_reference(node, self.sizes, rng, storage_dtype_of(tactics))
            for _ in range(2)
        ]
        weight_cache = _PackedWeightCache(self.memory)
        with ExitStack() as cleanup:  # workers may still read a run list: wait once for all
            times: list[float] = []
            for tactic, lowered_node in zip(tactics, lowered, strict=True):
                bound_node = self._bind_memory(lowered_node, weight_cache)
                times.append(
                    self._time(node, tactic, bound_node, addresses, trials, repeats, cleanup)
                )
        del code
        return times

    def copy_seconds(self, kind: TensorType, *, repeats: TimingRepeats) -> float:
        """Return the seconds of a copy of a tensor from the model's axis order to channels last."""
        lowered = lower_isolated_copy(self.backend, kind, self.sizes)
        bound_node = self._bind_memory(lowered, _PackedWeightCache(self.memory))
        code, addresses = self._map_code([lowered])
        scratch = Scratch(self.memory, lowered.scratch_bytes, 1)
        run_list = self._run_list(bound_node, addresses, scratch, 1)
        try:
            return best_mean(run_list, repeats)
        finally:
            run_list.close()
            scratch.close()
            del code

    def _map_code(self, lowered: Sequence[IsolatedNode]) -> tuple[MappedCode, dict[str, int]]:
        """Compile and map the code of all launches; return it with each kernel's address.

        The code stays mapped while the returned object is referenced.
        """
        kernels = [launch.kernel for lowered_node in lowered for launch in lowered_node.launches]
        image = self.backend.compile(kernels, self.target)
        code = MappedCode(image.code)
        return code, {name: code.address + offset for name, offset in image.symbols}

    def _time(
        self,
        node: Node,
        tactic: Tactic,
        bound_node: _BoundNode,
        addresses: Mapping[str, int],
        trials: Sequence[tuple[list[Array | None], tuple[Array, ...]]],
        repeats: TimingRepeats,
        cleanup: ExitStack,
    ) -> float:
        """Check one tactic and return its seconds; infinity if it is rejected.

        The run lists are closed by ``cleanup``.
        """
        scratch = Scratch(self.memory, bound_node.lowered.scratch_bytes, self.threads)
        all_threads = self._run_list(bound_node, addresses, scratch, self.threads)
        single_thread = self._run_list(bound_node, addresses, scratch, 1)
        for resource in (scratch, all_threads, single_thread):
            cleanup.callback(resource.close)
        try:
            for arrays, expected in trials:
                if reason := _check(tactic, bound_node, arrays, expected, all_threads):
                    _LOG.warning("%s: tactic %s is rejected: %s", node, tactic, reason)
                    self.refused[node.name, str(tactic)] = reason
                    return math.inf
            return best_mean(single_thread, repeats)
        finally:
            bound_node.memories.clear()  # all chunks are done; workers read only the run lists

    def _run_list(
        self, bound_node: _BoundNode, addresses: Mapping[str, int], scratch: Scratch, threads: int
    ) -> RunList:
        """Build the run list of a node's launches."""
        launches = bound_node.lowered.launches
        words, rows, waits = list[int](), list[RunListRow](), 0
        allocations = [memory.address for memory in bound_node.memories]
        for index, launch in enumerate(launches):
            operand_words = argument_words(launch, allocations, self.sizes)
            words += operand_words
            waits = index if launch.waits else waits
            rows.append(RunListRow(addresses[launch.kernel.symbol], len(operand_words), waits))
        run_list = RunList(
            rows, self.runtime, worker_pool(), self.memory, threads=threads, scratch=scratch
        )
        run_list.words[:] = words
        run_list.set_chunks([evaluate_dim(launch.chunks, self.sizes) for launch in launches])
        return run_list

    # ---- memory

    def _bind_memory(self, lowered: IsolatedNode, weight_cache: _PackedWeightCache) -> _BoundNode:
        """Allocate the memory of an isolated node; packed constants are shared by the cache."""
        memories: list[CpuAllocation] = []
        for allocation in lowered.allocations:
            if allocation.content is not None:
                memories.append(weight_cache.memory_of(allocation.content))
                continue
            memories.append(self.memory.allocate(allocation.size_bytes, "trial"))
            memories[-1].bytes[:] = allocation.fill
        windows = [None if v is None else self._window(v, memories) for v in lowered.inputs]
        results = [self._window(v, memories) for v in lowered.outputs]
        return _BoundNode(lowered, memories, windows, results)

    def _window(self, view: View, memories: Sequence[CpuAllocation]) -> NDArray[Any]:
        return tensor_view(view, memories[view.buffer].bytes, self.sizes)


class _PackedWeightCache:
    """Memory of packed constants; each is stored once, even if several tactics read it."""

    def __init__(self, memory: CpuMemory) -> None:
        self._memory = memory
        self._keys = WeightStore()
        self._packed: dict[object, CpuAllocation] = {}

    def memory_of(self, constant: Constant) -> CpuAllocation:
        """Return memory that holds the constant's elements."""
        key = self._keys.key(constant)
        if key not in self._packed:
            array = np.ascontiguousarray(constant.array)
            memory = self._memory.allocate(array.nbytes, "trial")
            memory.bytes[:] = array.reshape(-1).view(np.uint8)
            self._packed[key] = memory
        return self._packed[key]


def _check(
    tactic: Tactic,
    bound_node: _BoundNode,
    arrays: Sequence[Array | None],
    expected: Sequence[Array],
    run_list: RunList,
) -> str | None:
    """Run a tactic twice and return why its results are rejected; None if they are accepted.

    Results must be equal in both runs and match the reference within the tolerance.
    """
    for window, array, fmt in zip(bound_node.inputs, arrays, tactic.input_formats, strict=True):
        if window is not None and fmt is not None:
            if array is None:
                raise InternalError(f"{tactic} reads an input that is missing")
            window[...] = cast_to_storage(array, fmt.dtype)
    tolerance = _TOLERANCES.get(storage_dtype_of([tactic]), _TOLERANCE)
    run_list.run()
    first_results = [window.copy() for window in bound_node.outputs]
    run_list.run()
    results = zip(bound_node.outputs, first_results, expected, tactic.output_formats, strict=True)
    for window, first_result, reference, fmt in results:
        if not np.array_equal(window, first_result, equal_nan=is_float_dtype(window.dtype)):
            return "the results differ between runs"
        error = relative_error(first_result, reference, smallest_nonzero(fmt.dtype))
        if error > tolerance:
            return large_error_reason(error, tolerance)
    return None


def best_mean(run_list: RunList, repeats: TimingRepeats) -> float:
    """Return the seconds of a run: the minimum over several samples.

    A sample of a short list averages several runs; in a single short run, one worker that wakes up
    late would dominate the time.
    """
    deadline = time.perf_counter() + repeats.seconds
    best = _mean_seconds(run_list, repeats.runs_per_mean)
    runs_per_mean = repeats.runs_per_mean
    if best * runs_per_mean < repeats.min_sample_seconds:
        runs_per_mean = min(
            math.ceil(repeats.min_sample_seconds / max(best, 1e-9)), _MAX_RUNS_PER_MEAN
        )
        runs_per_mean = max(runs_per_mean, repeats.runs_per_mean)
        best = _mean_seconds(run_list, runs_per_mean)
    for count in range(1, repeats.count):
        if count > 1 and time.perf_counter() > deadline:
            break
        best = min(best, _mean_seconds(run_list, runs_per_mean))
    return best


def _mean_seconds(run_list: RunList, runs_per_mean: int) -> float:
    start = time.perf_counter()
    for _ in range(runs_per_mean):
        run_list.run()
    return (time.perf_counter() - start) / runs_per_mean
