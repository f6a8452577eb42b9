"""Trying tactics on this machine: right first, then how fast."""

from __future__ import annotations

import logging
import math
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np

from smelt.backends import WeightStore
from smelt.devices.cpu import CpuMemory, MappedCode, Row, RunList, Scratch, worker_pool
from smelt.engine import VERSION
from smelt.errors import InternalError
from smelt.tuner._isolated_node import (
    IsolatedNode,
    cast_to_storage,
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
"""Of tensors that are rounded on the way: activations may bound what errors are compared with."""
_TOLERANCE: Final = 1e-4
_COMPILE_BATCH: Final = 32
"""Kernels that are compiled between two looks at the clock."""
_MAX_RUNS_PER_MEAN: Final = 64


@dataclass(slots=True)
class _BoundNode:
    """Steps on memory."""

    lowered: IsolatedNode
    memories: list[CpuAllocation]
    inputs: list[NDArray[Any] | None]
    """The inputs as windows on their memory, in logical axis order."""
    outputs: list[NDArray[Any]]


class CpuBench:
    """Compiles tactics of single nodes, checks them against the reference and times them.

    They are checked on all threads, for races, and timed on one: a neighbour that takes a processor
    for a while would make one candidate seem twice as slow as the next.
    """

    trial_limit: ClassVar[Limit] = Limit.MAX_TRIAL_BYTES
    copy_sample_types: ClassVar[tuple[TensorType, TensorType]] = (
        TensorType(DType.FLOAT32, (1, 64, 7, 7)),
        TensorType(DType.FLOAT32, (1, 64, 56, 56)),
    )
    """Copies of larger tensors are as fast."""

    def __init__(
        self,
        backend: Backend[CpuTarget],
        target: CpuTarget,
        runtime: NativeRuntime,
        *,
        threads: int,
        sizes: Mapping[str, int],
    ) -> None:
        self.backend, self.target, self.runtime = backend, target, runtime
        self.threads = threads
        self.sizes = sizes
        self.memory = CpuMemory()
        self.refused: dict[tuple[str, str], str] = {}
        """Why candidates are out, by the node's name and the tactic's text."""

    @property
    def where(self) -> str:
        """What times depend on beside nodes, tactics and sizes."""
        return f"{self.target.name}, {VERSION} {self.backend.codegen_version}"

    def compile_candidates(
        self, work: Sequence[tuple[Node, Tactic]], *, deadline: float = math.inf
    ) -> None:
        """Compile the kernels of many tactics, on all processors at once.

        Args:
            work: what is going to be timed.
            deadline: when to stop, in the time of ``time.perf_counter``.
        """
        lowered = [
            lower_isolated_node(self.backend, node, tactic, self.sizes) for node, tactic in work
        ]
        kernels = {s.kernel.symbol: s.kernel for made in lowered for s in made.launches}
        waiting = list(kernels.values())
        while waiting and time.perf_counter() < deadline:
            self.backend.precompile(waiting[:_COMPILE_BATCH], self.target)
            del waiting[:_COMPILE_BATCH]

    def seconds(
        self, node: Node, tactics: Sequence[Tactic], *, repeats: TimingRepeats
    ) -> list[float]:
        """The time of each tactic; infinity for one whose results are wrong or move."""
        lowered = [
            lower_isolated_node(self.backend, node, tactic, self.sizes) for tactic in tactics
        ]
        code, addresses = self._mapped(lowered)
        rng = np.random.default_rng(len(node.name))
        trials = [
            random_inputs_and_reference(node, self.sizes, rng, storage_dtype_of(tactics))
            for _ in range(2)
        ]
        weight_cache = _PackedWeightCache(self.memory)
        with ExitStack() as later:  # a worker may look at a list for a while: wait once for all
            times = [
                self._time(
                    node,
                    tactic,
                    self._bind_memory(made, weight_cache),
                    addresses,
                    trials,
                    repeats,
                    later,
                )
                for tactic, made in zip(tactics, lowered, strict=True)
            ]
        del code
        return times

    def copy_seconds(self, kind: TensorType, *, repeats: TimingRepeats) -> float:
        """The time of a copy of a tensor between the model's axis order and channels last."""
        lowered = lower_isolated_copy(self.backend, kind, self.sizes)
        prepared = self._bind_memory(lowered, _PackedWeightCache(self.memory))
        code, addresses = self._mapped([lowered])
        scratch = Scratch(self.memory, lowered.scratch_bytes, 1)
        run_list = self._run_list(prepared, addresses, scratch, 1)
        try:
            return best_mean(run_list, repeats)
        finally:
            run_list.close()
            scratch.close()
            del code

    def _mapped(self, lowered: Sequence[IsolatedNode]) -> tuple[MappedCode, dict[str, int]]:
        """The code of all launches, to be kept while it runs, and each kernel's address."""
        kernels = [launch.kernel for made in lowered for launch in made.launches]
        image = self.backend.compile(kernels, self.target)
        code = MappedCode(image.code)
        return code, {name: code.address + offset for name, offset in image.symbols}

    def _time(
        self,
        node: Node,
        tactic: Tactic,
        prepared: _BoundNode,
        addresses: Mapping[str, int],
        trials: Sequence[tuple[list[Array | None], tuple[Array, ...]]],
        repeats: TimingRepeats,
        later: ExitStack,
    ) -> float:
        scratch = Scratch(self.memory, prepared.lowered.scratch_bytes, self.threads)
        shared = self._run_list(prepared, addresses, scratch, self.threads)
        alone = self._run_list(prepared, addresses, scratch, 1)
        for used in (scratch, shared, alone):
            later.callback(used.close)
        try:
            for arrays, expected in trials:
                if reason := _check(tactic, prepared, arrays, expected, shared):
                    _LOG.warning("%s: tactic %s is rejected: %s", node, tactic, reason)
                    self.refused[node.name, str(tactic)] = reason
                    return math.inf
            return best_mean(alone, repeats)
        finally:
            prepared.memories.clear()  # all chunks are done, though workers may look at the lists

    def _run_list(
        self, prepared: _BoundNode, addresses: Mapping[str, int], scratch: Scratch, threads: int
    ) -> RunList:
        launches = prepared.lowered.launches
        words, rows, waits = list[int](), list[Row](), 0
        for index, launch in enumerate(launches):
            own = [
                prepared.memories[v.buffer].address + self._value(v.offset) for v in launch.operands
            ]
            own += [self._value(s) for s in launch.scalars]
            words += own
            waits = index if launch.waits else waits
            rows.append(Row(addresses[launch.kernel.symbol], len(own), waits))
        run_list = RunList(
            rows,
            self.runtime,
            worker_pool(),
            self.memory,
            threads=threads,
            scratch=scratch,
        )
        run_list.words[:] = words
        run_list.set_chunks([self._value(launch.chunks) for launch in launches])
        return run_list

    def _value(self, dim: Any) -> int:
        return evaluate_dim(dim, self.sizes)

    # ---- memory

    def _bind_memory(self, lowered: IsolatedNode, weight_cache: _PackedWeightCache) -> _BoundNode:
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
    """Packed constants, each once however many tactics read it."""

    def __init__(self, memory: CpuMemory) -> None:
        self._memory = memory
        self._keys = WeightStore()
        self._packed: dict[object, CpuAllocation] = {}

    def memory_of(self, constant: Constant) -> CpuAllocation:
        """Where the constant's elements are."""
        key = self._keys.key(constant)
        if key not in self._packed:
            array = np.ascontiguousarray(constant.array)
            memory = self._memory.allocate(array.nbytes, "trial")
            memory.bytes[:] = array.reshape(-1).view(np.uint8)
            self._packed[key] = memory
        return self._packed[key]


def _check(
    tactic: Tactic,
    prepared: _BoundNode,
    arrays: Sequence[Array | None],
    expected: Sequence[Array],
    run_list: RunList,
) -> str | None:
    """Why the results of two runs are not the reference's."""
    for window, array, fmt in zip(prepared.inputs, arrays, tactic.inputs, strict=True):
        if window is not None and fmt is not None:
            if array is None:
                raise InternalError(f"{tactic} reads an input that is missing")
            window[...] = cast_to_storage(array, fmt.dtype)
    tolerance = _TOLERANCES.get(storage_dtype_of([tactic]), _TOLERANCE)
    run_list.run()
    first = [window.copy() for window in prepared.outputs]
    run_list.run()
    results = zip(prepared.outputs, first, expected, tactic.outputs, strict=True)
    for window, before, wanted, fmt in results:
        if not np.array_equal(window, before, equal_nan=is_float_dtype(window.dtype)):
            return "its results differ between runs"
        if (error := relative_error(before, wanted, smallest_nonzero(fmt.dtype))) > tolerance:
            return f"its error is {error:.1e} of the largest magnitude"
    return None


def best_mean(run_list: RunList, repeats: TimingRepeats) -> float:
    """Seconds of a run: the least of several samples.

    What lasts only microseconds is run several times for one sample. Alone, a late worker would
    decide how long it seems to take.
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
