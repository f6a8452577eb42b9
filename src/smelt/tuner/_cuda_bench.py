"""Trying tactics on a GPU: right on fresh data, again and again; then how fast, with a cold cache.

A candidate first computes, into poisoned memory, what two sets of random inputs ask for, twice
each. Then a graph of several launches is replayed, each launch with its own copy of the weights,
after everything else was taken out of the cache; activations are where the node before would have
left them. Whatever all these runs wrote must be what the first one did, bit for bit.
"""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np

from smelt.backends import WeightStore
from smelt.devices.cuda import CudaLaunch, CudaRunList, RunGraph
from smelt.engine import VERSION
from smelt.errors import BuildError, DeviceError, EngineMismatchError
from smelt.tuner._cuda_measurer import POISON, CudaMeasurer
from smelt.tuner._isolated_node import (
    cast_to_storage,
    lower_isolated_copy,
    lower_isolated_node,
    random_array,
    random_inputs_and_reference,
    smallest_nonzero,
    storage_dtype_of,
    tensor_view,
    to_stored_layout,
)
from smelt.types import DType, Limit, TensorType, evaluate_dim

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from smelt.backends import Tactic
    from smelt.backends.cuda import CudaBackend, CudaTarget
    from smelt.devices.cuda import CudaDevice, LoadedCall, LoadedKernel
    from smelt.engine import View
    from smelt.ir import Array, Node
    from smelt.tuner._cuda_measurer import Memory
    from smelt.tuner._isolated_node import IsolatedNode, NodeAllocation, TimingRepeats

_LOG = logging.getLogger(__name__)
_TOLERANCES: Final = {DType.FLOAT16: 3e-3, DType.BFLOAT16: 2e-2}
_TOLERANCE: Final = 1e-4
_TF32_TOLERANCE: Final = 3e-3
_ACTIVATION_SETS: Final = 2
"""Sets of activations, which launches use by turns."""
_LAUNCHES_PER_GRAPH: Final = 12
"""Launches of a graph."""
_LONG_SECONDS: Final = 1e-4
_LAUNCHES_PER_LONG_GRAPH: Final = 4
"""Launches of a graph if one takes longer than that."""
_MAX_WEIGHT_COPY_BYTES: Final = 512 << 20
"""Copies of weights take no more than this."""


class CudaBench:
    """Compiles tactics of single nodes, checks them against the reference and times them."""

    trial_limit: ClassVar[Limit] = Limit.MAX_GPU_TRIAL_BYTES
    copy_sample_types: ClassVar[tuple[TensorType, TensorType]] = (
        TensorType(DType.FLOAT16, (1, 64, 7, 7)),
        TensorType(DType.FLOAT16, (8, 64, 112, 112)),
    )

    def __init__(
        self,
        backend: CudaBackend,
        target: CudaTarget,
        device: CudaDevice,
        *,
        sizes: Mapping[str, int],
    ) -> None:
        """A bench on a GPU.

        Args:
            backend: has the tactics' families.
            target: what the GPU runs; of several architectures, the GPU's own.
            device: the GPU.
            sizes: symbol values to tune for.
        """
        self.backend, self.target, self.device = backend, target, device
        self.sizes = sizes
        self.measurer = CudaMeasurer(backend, target, device)
        self.refused: dict[tuple[str, str], str] = {}
        """Why candidates are out, by the node's name and the tactic's text."""
        self._deadline = math.inf

    @property
    def where(self) -> str:
        """What times depend on beside nodes, tactics and sizes."""
        return (
            f"{self.target.name} on {self.device.timing_key}, {VERSION} "
            f"{self.backend.codegen_version}"
        )

    def compile_candidates(
        self, work: Sequence[tuple[Node, Tactic]], *, deadline: float = math.inf
    ) -> None:
        """Have the kernels of many tactics compiled, meanwhile what is ready is timed.

        When time is short, each node's most promising candidate comes first.
        """
        self._deadline = deadline
        if math.isfinite(deadline):
            work = _by_rank(work)
        if work:  # the choice cannot do without the copies' times, whatever else is late
            copies = [
                lower_isolated_copy(self.backend, kind, self.sizes)
                for kind in self.copy_sample_types
            ]
            self.backend.begin([x.kernel for c in copies for x in c.launches], self.target)
        for node, tactic in work:
            if time.perf_counter() > deadline:
                return
            launches = lower_isolated_node(self.backend, node, tactic, self.sizes).launches
            self.backend.begin([launch.kernel for launch in launches], self.target)

    def seconds(
        self, node: Node, tactics: Sequence[Tactic], *, repeats: TimingRepeats
    ) -> list[float]:
        """The time of each tactic; infinity for one whose results are wrong or move.

        NaN for one that is not compiled in time.
        """
        node_bench = _NodeBench(self, node, tactics)
        try:
            return [self._seconds_or_inf(node_bench, node, tactic, repeats) for tactic in tactics]
        finally:
            node_bench.close()

    def _seconds_or_inf(
        self, node_bench: _NodeBench, node: Node, tactic: Tactic, repeats: TimingRepeats
    ) -> float:
        try:
            trial = node_bench.trial(tactic)
            reason = node_bench.find_error(tactic, trial)
            if reason is None:
                seconds = node_bench.time(tactic, trial, repeats)
                reason = node_bench.find_nondeterminism(trial)
                if reason is None:
                    return seconds
        except TimeoutError:
            return math.nan
        except (BuildError, EngineMismatchError) as error:
            reason = str(error)
        except DeviceError as error:
            self._check_device(node, tactic)
            reason = str(error)
        _LOG.warning("%s: tactic %s is rejected: %s", node, tactic, reason)
        self.refused[node.name, str(tactic)] = reason
        return math.inf

    def _check_device(self, node: Node, tactic: Tactic) -> None:
        """Raise DeviceError if a candidate has lost the GPU for this process."""
        try:
            self.device.synchronize()
        except DeviceError as error:
            raise DeviceError(
                f"{tactic} of {node} left {self.device!r} unusable for this process ({error}); "
                'build with tune="none", and report this'
            ) from error

    def copy_seconds(self, kind: TensorType, *, repeats: TimingRepeats) -> float:
        """The time of a copy of a tensor between the model's axis order and channels last."""
        isolated = lower_isolated_copy(self.backend, kind, self.sizes)
        rng = np.random.default_rng(0)
        shape = tuple(evaluate_dim(d, self.sizes) for d in kind.shape)
        kernels = self._loaded(isolated, None)
        allocated: list[Memory] = []
        try:
            sets: list[list[int]] = []
            for _ in range(_ACTIVATION_SETS):
                source, destination = (
                    self.measurer.allocation(r.size_bytes) for r in isolated.allocations
                )
                allocated += [source, destination]
                host = np.zeros(source.size_bytes, np.uint8)
                view = isolated.inputs[0]
                assert view is not None  # noqa: S101  (a copy reads)
                tensor_view(view, host, self.sizes)[...] = random_array(kind.dtype, shape, rng)
                source.fill_from(host)
                sets.append([source.address, destination.address])
            trial = _LoadedTactic(isolated, kernels, sets)
            return self.median(trial, repeats, _LAUNCHES_PER_GRAPH)
        finally:
            for memory in allocated:
                memory.close()

    # ---- launches

    def loaded(self, isolated: IsolatedNode) -> list[LoadedKernel | LoadedCall]:
        """The kernels of an isolated node, on the GPU. Raises TimeoutError: they are late."""
        left = self._deadline - time.perf_counter()
        return self._loaded(isolated, max(0.0, left) if math.isfinite(left) else None)

    def _loaded(
        self, isolated: IsolatedNode, wait_s: float | None
    ) -> list[LoadedKernel | LoadedCall]:
        return [
            self.measurer.loaded(self.backend.records(s.kernel, self.target, wait_s=wait_s))
            for s in isolated.launches
        ]

    def rows(self, trial: _LoadedTactic, sets: Sequence[int]) -> CudaRunList:
        """Launches of a trial, once for each number of a set of memory."""
        rows, words, blocks = list[CudaLaunch](), list[int](), list[int]()
        for number in sets:
            allocations = trial.sets[number]
            for launch, kernel in zip(trial.isolated.launches, trial.kernels, strict=True):
                own = [allocations[v.buffer] + self.value(v.offset) for v in launch.operands]
                own += [self.value(s) for s in launch.scalars]
                words += own
                rows.append(CudaLaunch(kernel, len(own), len(rows)))
                blocks.append(self.value(launch.chunks))
        return CudaRunList(rows, np.array(words, np.int64), blocks)

    def value(self, dim: Any) -> int:
        """A dim at the sizes that are tuned for."""
        return evaluate_dim(dim, self.sizes)

    def run(self, trial: _LoadedTactic, number: int) -> None:
        """Queue a trial's launches on one set of memory."""
        rows = self.rows(trial, [number])
        rows.launch_all(self.measurer.stream)

    def median(
        self, trial: _LoadedTactic, repeats: TimingRepeats, launches_per_graph: int
    ) -> float:
        """Seconds of a trial's launches: the median of replays of a graph of many."""
        stream, count = self.measurer.stream, len(trial.sets)
        # The last sets bring the activations into the cache, with weights that are not used again.
        warm = RunGraph(self.rows(trial, range(count - _ACTIVATION_SETS, count)), stream)
        timed = RunGraph(self.rows(trial, [k % count for k in range(launches_per_graph)]), stream)
        try:
            return self.measurer.median_ms(warm, timed, repeats.count) / launches_per_graph / 1e3
        finally:
            warm.close()
            timed.close()


@dataclass(slots=True)
class _LoadedTactic:
    """An isolated node with its code and memory."""

    isolated: IsolatedNode
    kernels: list[LoadedKernel | LoadedCall]
    sets: list[list[int]]
    """Addresses of all rooms, for each set of memory that launches use by turns."""
    outputs: list[list[Memory]] = field(default_factory=list["list[Memory]"])
    """For each set of activations, the rooms of the outputs."""
    workspace: Memory | None = None
    first: list[list[Memory]] = field(default_factory=list["list[Memory]"])
    """What the first run wrote, for each set of activations."""


class _NodeBench:
    """What the trials of one node share: data, what is expected, and memory."""

    def __init__(self, cuda_bench: CudaBench, node: Node, tactics: Sequence[Tactic]) -> None:
        self.cuda_bench, self.node = cuda_bench, node
        self.storage = storage_dtype_of(tactics)
        self._data: list[tuple[list[Array | None], tuple[Array, ...]]] = []
        self._magnitudes: dict[tuple[int, int], float] = {}
        self._allocations: dict[object, Memory] = {}
        self._keys = WeightStore()

    @property
    def data(self) -> list[tuple[list[Array | None], tuple[Array, ...]]]:
        """Random inputs and what they lead to, for each set.

        They are made when the first kernel is there: until then compilers need the processors.
        """
        if not self._data:
            rng = np.random.default_rng(len(self.node.name))
            self._data = [
                random_inputs_and_reference(self.node, self.cuda_bench.sizes, rng, self.storage)
                for _ in range(_ACTIVATION_SETS)
            ]
        return self._data

    def close(self) -> None:
        """Give all memory back."""
        for memory in self._allocations.values():
            memory.close()

    def _allocation(self, key: object, size_bytes: int) -> tuple[Memory, bool]:
        """Memory by name, and whether it is new."""
        is_new = key not in self._allocations
        if is_new:
            self._allocations[key] = self.cuda_bench.measurer.allocation(size_bytes)
        return self._allocations[key], is_new

    # ---- memory of a tactic

    def trial(self, tactic: Tactic) -> _LoadedTactic:
        """A tactic with its code and memory. Raises BuildError, TimeoutError, DeviceError."""
        cuda_bench = self.cuda_bench
        isolated = lower_isolated_node(cuda_bench.backend, self.node, tactic, cuda_bench.sizes)
        trial = _LoadedTactic(isolated, cuda_bench.loaded(isolated), [])
        weights = self._weights(isolated, tactic)
        copies = min((len(found) for found in weights.values()), default=1)
        sets = math.lcm(_ACTIVATION_SETS, copies) if weights else _ACTIVATION_SETS
        outputs = {view.buffer: n for n, view in enumerate(isolated.outputs)}
        inputs = {v.buffer: n for n, v in enumerate(isolated.inputs) if v is not None}
        trial.outputs = [[] for _ in range(_ACTIVATION_SETS)]
        for number in range(sets):
            addresses: list[int] = []
            set_index = number % _ACTIVATION_SETS
            for index, allocation in enumerate(isolated.allocations):
                if index in weights:
                    addresses.append(weights[index][number % copies])
                elif index in outputs:
                    memory = self._output(tactic, outputs[index], set_index, allocation)
                    addresses.append(memory.address)
                    if number < _ACTIVATION_SETS:
                        trial.outputs[set_index].append(memory)
                elif index in inputs:
                    addresses.append(
                        self._input(isolated, tactic, inputs[index], set_index, allocation)
                    )
                else:
                    trial.workspace, _ = self._allocation(
                        ("workspace", allocation.size_bytes), allocation.size_bytes
                    )
                    addresses.append(trial.workspace.address)
            trial.sets.append(addresses)
        return trial

    def _weights(self, isolated: IsolatedNode, tactic: Tactic) -> dict[int, list[int]]:
        """For each room of constants, the addresses of its copies."""
        constant = [
            i for i, allocation in enumerate(isolated.allocations) if allocation.is_constant
        ]
        total = sum(isolated.allocations[i].size_bytes for i in constant)
        copies = max(
            _ACTIVATION_SETS,
            min(_LAUNCHES_PER_GRAPH + _ACTIVATION_SETS, _MAX_WEIGHT_COPY_BYTES // max(total, 1)),
        )
        inputs = {v.buffer: n for n, v in enumerate(isolated.inputs) if v is not None}
        found: dict[int, list[int]] = {}
        for index in constant:
            allocation = isolated.allocations[index]
            stride = -(-allocation.size_bytes // 256) * 256
            if allocation.content is not None:
                key: object = ("packed", self._keys.key(allocation.content))
            else:
                key = ("constant", inputs[index], tactic.inputs[inputs[index]])
            memory, is_new = self._allocation((key, copies), stride * copies)
            if is_new:
                content = self._constant(isolated, tactic, index, inputs.get(index))
                memory.fill_with_copies(content, stride, copies)
            found[index] = [memory.address + stride * k for k in range(copies)]
        return found

    def _constant(
        self, isolated: IsolatedNode, tactic: Tactic, index: int, position: int | None
    ) -> NDArray[np.uint8]:
        content = isolated.allocations[index].content
        if content is not None:
            return np.ascontiguousarray(content.array).reshape(-1).view(np.uint8)
        assert position is not None  # noqa: S101  (a constant is packed, or an input)
        return self._host(isolated, tactic, position, 0)

    def _host(
        self, isolated: IsolatedNode, tactic: Tactic, position: int, set_index: int
    ) -> NDArray[np.uint8]:
        """An input as it lies in memory."""
        view, fmt = isolated.inputs[position], tactic.inputs[position]
        array = self.data[set_index][0][position]
        assert view is not None and fmt is not None and array is not None  # noqa: S101, PT018
        allocation = isolated.allocations[view.buffer]
        host = np.full(allocation.size_bytes, allocation.fill, np.uint8)
        stored = to_stored_layout(cast_to_storage(array, fmt.dtype), fmt.layout)
        tensor_view(view, host, self.cuda_bench.sizes)[...] = stored
        return host

    def _input(
        self,
        isolated: IsolatedNode,
        tactic: Tactic,
        position: int,
        set_index: int,
        allocation: NodeAllocation,
    ) -> int:
        key = ("input", position, tactic.inputs[position], tactic.halos[position:], set_index)
        memory, is_new = self._allocation(key, allocation.size_bytes)
        if is_new:
            memory.fill_from(self._host(isolated, tactic, position, set_index))
        return memory.address

    def _output(
        self, tactic: Tactic, position: int, set_index: int, allocation: NodeAllocation
    ) -> Memory:
        key = ("output", position, tactic.outputs[position], set_index)
        return self._allocation(key, allocation.size_bytes)[0]

    # ---- is it right

    def find_error(self, tactic: Tactic, trial: _LoadedTactic) -> str | None:
        """Why the results of the first runs are not the reference's."""
        for set_index in range(_ACTIVATION_SETS):
            if reason := self._find_error_in(tactic, trial, set_index):
                return reason
        trial.first = [
            [
                self._snapshot(position, set_index, memory)
                for position, memory in enumerate(memories)
            ]
            for set_index, memories in enumerate(trial.outputs)
        ]
        for set_index in range(_ACTIVATION_SETS):
            self._run_poisoned(trial, set_index)
        return self.find_nondeterminism(trial)

    def _run_poisoned(self, trial: _LoadedTactic, set_index: int) -> None:
        measurer = self.cuda_bench.measurer
        for memory in trial.outputs[set_index]:
            measurer.fill(memory, POISON)
        if trial.workspace is not None:
            measurer.fill(trial.workspace, POISON)
        self.cuda_bench.run(trial, set_index)

    def _snapshot(self, position: int, set_index: int, memory: Memory) -> Memory:
        """A copy of what lies in memory now."""
        kept, _ = self._allocation(
            ("first", position, set_index, memory.size_bytes), memory.size_bytes
        )
        kept.copy_from(memory)
        return kept

    def _find_error_in(self, tactic: Tactic, trial: _LoadedTactic, set_index: int) -> str | None:
        self._run_poisoned(trial, set_index)
        expected = self.data[set_index][1]
        outputs = zip(trial.outputs[set_index], trial.isolated.outputs, expected, strict=True)
        for position, (memory, view, result) in enumerate(outputs):
            fmt = tactic.outputs[position]
            wanted = to_stored_layout(result, fmt.layout)
            key = ("expected", position, fmt, set_index, memory.size_bytes)
            count = memory.size_bytes // fmt.dtype.size_bytes
            if not fmt.dtype.is_float:
                truth, is_new = self._allocation(key, memory.size_bytes)
                if is_new:
                    truth.fill_from(self._stored_bytes(view, wanted, memory.size_bytes))
                if self.cuda_bench.measurer.differs(memory, truth):
                    return "its results are wrong"
                continue
            truth, is_new = self._allocation(key, 4 * count)
            if is_new:
                truth.fill_from(self._stored_float32(view, wanted, count))
            error = self.cuda_bench.measurer.error(memory, truth, fmt.dtype, count)
            error = max(0.0, error - smallest_nonzero(fmt.dtype)) / self._magnitude(
                set_index, position
            )
            if error > _tolerance(tactic):
                return f"its error is {error:.1e} of the largest magnitude"
        return None

    def _magnitude(self, set_index: int, position: int) -> float:
        """The largest finite number of what is wanted, found once; 1 where all are zeros."""
        if (set_index, position) not in self._magnitudes:
            wanted = self.data[set_index][1][position]
            finite = np.max(np.abs(wanted), where=np.isfinite(wanted), initial=0.0)
            self._magnitudes[set_index, position] = float(finite) or 1.0
        return self._magnitudes[set_index, position]

    def _stored_bytes(self, view: View, wanted: Array, size_bytes: int) -> NDArray[np.uint8]:
        host = np.full(size_bytes, POISON, np.uint8)
        tensor_view(view, host, self.cuda_bench.sizes)[...] = wanted
        return host

    def _stored_float32(self, view: View, wanted: Array, count: int) -> NDArray[np.uint8]:
        """What is wanted as float32, at the places of narrower elements; elsewhere poison."""
        value = self.cuda_bench.value
        flat = np.full(count, np.nan, np.float32)
        start = value(view.offset) // view.dtype.size_bytes
        strides = tuple(4 * value(s) for s in view.strides)
        shape = tuple(value(d) for d in view.shape)
        np.lib.stride_tricks.as_strided(flat[start:], shape, strides)[...] = wanted
        return flat.view(np.uint8)

    def find_nondeterminism(self, trial: _LoadedTactic) -> str | None:
        """Why what lies in the outputs is not what the first runs wrote."""
        measurer = self.cuda_bench.measurer
        for set_index, memories in enumerate(trial.outputs):
            for memory, first in zip(memories, trial.first[set_index], strict=True):
                if measurer.differs(memory, first):
                    return "its results differ between runs"
        return None

    # ---- how fast is it

    def time(self, tactic: Tactic, trial: _LoadedTactic, repeats: TimingRepeats) -> float:
        """Seconds; the outputs hold what the last launches wrote into poison."""
        measurer = self.cuda_bench.measurer
        for memories in trial.outputs:
            for memory in memories:
                measurer.fill(memory, POISON)
        is_long = _LONG_SECONDS < tactic.cost_hint < math.inf
        launches_per_graph = _LAUNCHES_PER_LONG_GRAPH if is_long else _LAUNCHES_PER_GRAPH
        return self.cuda_bench.median(trial, repeats, launches_per_graph)


def _tolerance(tactic: Tactic) -> float:
    if dict(tactic.parameters).get("precision") == "tf32":
        return _TF32_TOLERANCE
    return _TOLERANCES.get(storage_dtype_of([tactic]), _TOLERANCE)


def _by_rank(work: Sequence[tuple[Node, Tactic]]) -> list[tuple[Node, Tactic]]:
    """The same, each node's most promising tactic first, then each one's second, and so on."""
    ranks: dict[Node, int] = {}
    placed: list[tuple[int, int]] = []
    order = sorted(range(len(work)), key=lambda i: (work[i][1].cost_hint, i))
    for i in order:
        node = work[i][0]
        ranks[node] = ranks.get(node, -1) + 1
        placed.append((ranks[node], i))
    return [work[i] for _, i in sorted(placed)]
