"""Bench that checks tactics of single nodes on a GPU and times them with a cold cache.

A candidate first computes two sets of random inputs, twice each, into poisoned memory. Then the L2
cache is flushed and a graph of several launches is replayed. Each launch has its own copy of the
weights; activations are in the cache, where the preceding node would have left them. All runs must
write the same bits as the first one.
"""

from __future__ import annotations

import logging
import math
import time
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np

from smelt.backends import WeightStore
from smelt.devices.cuda import CudaLaunch, CudaRunList, RunListGraph
from smelt.engine import VERSION
from smelt.errors import Argument, BuildError, DeviceError, EngineMismatchError
from smelt.signal_errors import pass_on_handler_error
from smelt.tuner._cuda_measurer import POISON, CudaMeasurer
from smelt.tuner._isolated_node import (
    argument_words,
    cast_to_storage,
    large_error_reason,
    lower_isolated_copy,
    lower_isolated_node,
    random_inputs_and_reference,
    smallest_nonzero,
    storage_dtype_of,
    tensor_view,
    to_stored_layout,
)
from smelt.types import DType, Limit, TensorType, evaluate_dim, random_array

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from smelt.backends import Tactic
    from smelt.backends.cuda import CudaBackend, CudaTarget
    from smelt.devices.cuda import CudaDevice, LoadedCall, LoadedKernel
    from smelt.engine import View
    from smelt.ir import Array, Constant, Node
    from smelt.tuner._cuda_measurer import PoisonedMemory
    from smelt.tuner._isolated_node import IsolatedNode, TimingRepeats

_LOG = logging.getLogger(__name__)
_TOLERANCES: Final = {DType.FLOAT16: 3e-3, DType.BFLOAT16: 2e-2}
"""Error limits relative to the largest magnitude of a result, by storage type. They are the errors
that the project allows for these types."""
_TOLERANCE: Final = 1e-4
"""Relative error limit of float32 results. It is the error that the project allows for float32."""
_TF32_TOLERANCE: Final = 3e-3
"""Relative error limit of float32 results computed with TF32 products. TF32 has the mantissa of
float16, and so its limit."""
_ACTIVATION_SETS: Final = 2
"""Number of sets of activations; consecutive launches alternate between them. Chosen without a
measurement."""
_LAUNCHES_PER_GRAPH: Final = 12
"""Number of launches in a timed graph. Chosen without a measurement."""
_LONG_SECONDS: Final = 1e-4
"""Estimated seconds above which a launch counts as long. Chosen without a measurement."""
_LAUNCHES_PER_LONG_GRAPH: Final = 4
"""Number of launches in a timed graph of long launches. Chosen without a measurement."""
_MAX_WEIGHT_COPY_BYTES: Final = 512 << 20
"""Maximum total bytes of the copies of a tactic's weights. Chosen without a measurement."""


@dataclass(eq=False)
class CudaBench:
    """Compiles tactics of single nodes, checks them against the reference and times them."""

    trial_limit: ClassVar[Limit] = Limit.MAX_GPU_TRIAL_BYTES
    copy_sample_types: ClassVar[tuple[TensorType, TensorType]] = (
        TensorType(DType.FLOAT16, (1, 64, 7, 7)),
        TensorType(DType.FLOAT16, (8, 64, 112, 112)),
    )

    backend: CudaBackend
    """Provides the kernel families of the tactics."""
    target: CudaTarget
    """Compilation target; its architecture must be the GPU's own."""
    device: CudaDevice
    _: KW_ONLY
    sizes: Mapping[str, int]
    """Symbol values to tune for."""
    refused: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    """Rejection reasons of candidates by node name and tactic text."""
    _deadline: float = field(default=math.inf, init=False)

    def __post_init__(self) -> None:
        self.measurer = CudaMeasurer(self.backend, self.target, self.device)

    @property
    def where(self) -> str:
        """Key of what times depend on besides node, tactic and sizes."""
        return (
            f"{self.target.name} on {self.device.timing_key}, {VERSION} "
            f"{self.backend.codegen_version}"
        )

    def compile_candidates(
        self, work: Sequence[tuple[Node, Tactic]], *, deadline: float = math.inf
    ) -> None:
        """Start to compile the kernels of many tactics; kernels that are ready can be timed.

        With a finite deadline, the candidate with the best estimate of each node comes first.
        """
        self._deadline = deadline
        if math.isfinite(deadline):
            work = _by_rank(work)
        if work:  # the choice of formats always needs the copy times
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
        """Return the seconds of each tactic; infinity if results are wrong or vary between runs.

        NaN marks a tactic that was not compiled in time.
        """
        node_bench = _NodeBench(self, node, tactics)
        try:
            return [self._seconds_or_inf(node_bench, node, tactic, repeats) for tactic in tactics]
        finally:
            node_bench.close()

    def _seconds_or_inf(
        self, node_bench: _NodeBench, node: Node, tactic: Tactic, repeats: TimingRepeats
    ) -> float:
        """Check and time one tactic; record the reason if it is rejected."""
        try:
            trial = node_bench.trial(tactic)
            reason = node_bench.find_error(tactic, trial)
            if reason is None:
                seconds = node_bench.time(tactic, trial, repeats)
                reason = node_bench.find_nondeterminism(trial)
                if reason is None:
                    return seconds
        except TimeoutError as error:
            pass_on_handler_error(error)
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
        """Raise DeviceError if a candidate left the GPU unusable for this process."""
        try:
            self.device.synchronize()
        except DeviceError as error:
            untuned = Argument("tune", "none")
            raise DeviceError(
                f"{tactic} of {node} left {self.device!r} unusable for this process ({error}); "
                f"build with {untuned}, and report this",
                arguments=[untuned],
            ) from error

    def copy_seconds(self, kind: TensorType, *, repeats: TimingRepeats) -> float:
        """Return the seconds of a copy of a tensor from the model's axis order to channels last."""
        isolated = lower_isolated_copy(self.backend, kind, self.sizes)
        rng = np.random.default_rng(0)
        shape = tuple(evaluate_dim(d, self.sizes) for d in kind.shape)
        kernels = self._loaded(isolated, None)
        allocated: list[PoisonedMemory] = []
        try:
            sets: list[list[int]] = []
            for _ in range(_ACTIVATION_SETS):
                source, destination = (
                    self.measurer.allocation(r.size_bytes) for r in isolated.allocations
                )
                allocated += [source, destination]
                host = np.zeros(source.size_bytes, np.uint8)
                view = isolated.inputs[0]
                assert view is not None  # noqa: S101  (a copy has an input)
                tensor_view(view, host, self.sizes)[...] = random_array(
                    kind.dtype.numpy, shape, rng
                )
                source.fill_from(host)
                sets.append([source.address, destination.address])
            trial = _LoadedTactic(isolated, kernels, sets)
            return self.median(trial, repeats, _LAUNCHES_PER_GRAPH)
        finally:
            for memory in allocated:
                memory.close()

    # ---- launches

    def loaded(self, isolated: IsolatedNode) -> list[LoadedKernel | LoadedCall]:
        """Load the kernels of an isolated node onto the GPU.

        Raises:
            TimeoutError: they are not compiled before the deadline.
        """
        remaining_s = self._deadline - time.perf_counter()
        return self._loaded(isolated, max(0.0, remaining_s) if math.isfinite(remaining_s) else None)

    def _loaded(
        self, isolated: IsolatedNode, wait_s: float | None
    ) -> list[LoadedKernel | LoadedCall]:
        return [
            self.measurer.loaded(self.backend.records(s.kernel, self.target, wait_s=wait_s))
            for s in isolated.launches
        ]

    def rows(self, trial: _LoadedTactic, sets: Sequence[int]) -> CudaRunList:
        """Build a run list that launches a trial once on each of the memory sets ``sets``."""
        rows, words, blocks = list[CudaLaunch](), list[int](), list[int]()
        for number in sets:
            for launch, kernel in zip(trial.isolated.launches, trial.kernels, strict=True):
                operand_words = argument_words(launch, trial.address_sets[number], self.sizes)
                words += operand_words
                rows.append(CudaLaunch(kernel, len(operand_words), len(rows)))
                blocks.append(self.value(launch.chunks))
        return CudaRunList(rows, np.array(words, np.int64), blocks)

    def value(self, dim: Any) -> int:
        """Evaluate a dimension at the sizes to tune for."""
        return evaluate_dim(dim, self.sizes)

    def median(
        self, trial: _LoadedTactic, repeats: TimingRepeats, launches_per_graph: int
    ) -> float:
        """Return the seconds of a trial's launches: the median over replays of a graph."""
        stream, count = self.measurer.stream, len(trial.address_sets)
        # The last sets load the activations into the cache, with weights that are not used again.
        warm_up = RunListGraph(self.rows(trial, range(count - _ACTIVATION_SETS, count)), stream)
        timed = RunListGraph(
            self.rows(trial, [k % count for k in range(launches_per_graph)]), stream
        )
        try:
            return self.measurer.median_ms(warm_up, timed, repeats.count) / launches_per_graph / 1e3
        finally:
            warm_up.close()
            timed.close()


@dataclass(slots=True)
class _LoadedTactic:
    """An isolated node with its loaded kernels and memory."""

    isolated: IsolatedNode
    kernels: list[LoadedKernel | LoadedCall]
    address_sets: list[list[int]]
    """Addresses of all allocations, for each memory set; launches alternate between the sets."""
    outputs: list[list[PoisonedMemory]] = field(default_factory=list["list[PoisonedMemory]"])
    """Memory of the outputs, for each set of activations."""
    workspace: PoisonedMemory | None = None
    first_outputs: list[list[PoisonedMemory]] = field(default_factory=list["list[PoisonedMemory]"])
    """Copies of the outputs of the first run, for each set of activations."""


class _NodeBench:
    """State that the trials of one node share: inputs, expected results and memory."""

    def __init__(self, cuda_bench: CudaBench, node: Node, tactics: Sequence[Tactic]) -> None:
        self.cuda_bench, self.node, self.measurer = cuda_bench, node, cuda_bench.measurer
        self.storage = storage_dtype_of(tactics)
        self._allocations: dict[object, PoisonedMemory] = {}
        self._keys = WeightStore()

    @cached_property
    def data(self) -> list[tuple[list[Array | None], tuple[Array, ...]]]:
        """Random inputs and expected results, for each set of activations.

        They are computed when the first kernel is loaded: until then compilers need the CPUs.
        """
        rng = np.random.default_rng(len(self.node.name))
        return [
            random_inputs_and_reference(self.node, self.cuda_bench.sizes, rng, self.storage)
            for _ in range(_ACTIVATION_SETS)
        ]

    def close(self) -> None:
        """Release all memory."""
        for memory in self._allocations.values():
            memory.close()

    def _allocation(
        self,
        key: object,
        size_bytes: int,
        read: Callable[[], NDArray[np.uint8]] | None = None,
        copies: int = 1,
    ) -> PoisonedMemory:
        """Return the memory for ``key``; at its first use, it gets copies of what is read."""
        if key not in self._allocations:
            self._allocations[key] = memory = self.measurer.allocation(size_bytes)
            if read is not None:
                memory.fill_with_copies(read(), size_bytes // copies, copies)
        return self._allocations[key]

    # ---- memory of a tactic

    def trial(self, tactic: Tactic) -> _LoadedTactic:
        """Load a tactic's kernels and allocate its memory.

        Raises:
            BuildError: a kernel does not compile.
            TimeoutError: a kernel is not compiled before the deadline.
            DeviceError: the GPU is out of memory or a kernel cannot be loaded.
        """
        cuda_bench = self.cuda_bench
        isolated = lower_isolated_node(cuda_bench.backend, self.node, tactic, cuda_bench.sizes)
        trial = _LoadedTactic(isolated, cuda_bench.loaded(isolated), [])
        weights = self._weights(isolated, tactic)
        copies = min((len(copy_addresses) for copy_addresses in weights.values()), default=1)
        sets = math.lcm(_ACTIVATION_SETS, copies) if weights else _ACTIVATION_SETS
        outputs = {view.buffer: n for n, view in enumerate(isolated.outputs)}
        inputs = {v.buffer: n for n, v in enumerate(isolated.inputs) if v is not None}
        trial.outputs = [[] for _ in range(_ACTIVATION_SETS)]
        for number in range(sets):
            addresses: list[int] = []
            set_index = number % _ACTIVATION_SETS
            for index, size_bytes in enumerate(a.size_bytes for a in isolated.allocations):
                if index in weights:
                    addresses.append(weights[index][number % copies])
                elif index in outputs:
                    position = outputs[index]
                    key = ("output", position, tactic.output_formats[position], set_index)
                    memory = self._allocation(key, size_bytes)
                    addresses.append(memory.address)
                    if number < _ACTIVATION_SETS:
                        trial.outputs[set_index].append(memory)
                elif index in inputs:
                    position = inputs[index]
                    addresses.append(self._input(isolated, tactic, position, set_index, size_bytes))
                else:
                    trial.workspace = self._allocation(("workspace", size_bytes), size_bytes)
                    addresses.append(trial.workspace.address)
            trial.address_sets.append(addresses)
        return trial

    def _weights(self, isolated: IsolatedNode, tactic: Tactic) -> dict[int, list[int]]:
        """Return the addresses of the copies of each constant, by allocation index."""
        constant = [i for i, a in enumerate(isolated.allocations) if a.is_constant]
        total = sum(isolated.allocations[i].size_bytes for i in constant)
        fitting = _MAX_WEIGHT_COPY_BYTES // max(total, 1)
        copies = max(_ACTIVATION_SETS, min(_LAUNCHES_PER_GRAPH + _ACTIVATION_SETS, fitting))
        inputs = {v.buffer: n for n, v in enumerate(isolated.inputs) if v is not None}
        addresses: dict[int, list[int]] = {}
        for index in constant:
            allocation = isolated.allocations[index]
            stride = -(-allocation.size_bytes // 256) * 256
            if allocation.content is not None:
                key: object = ("packed", self._keys.key(allocation.content))
                read = partial(_packed_bytes, allocation.content)
            else:
                key = ("constant", inputs[index], tactic.input_formats[inputs[index]])
                read = partial(self._stored_input, isolated, tactic, inputs[index], 0)
            memory = self._allocation((key, copies), stride * copies, read, copies)
            addresses[index] = [memory.address + stride * k for k in range(copies)]
        return addresses

    def _stored_input(
        self, isolated: IsolatedNode, tactic: Tactic, position: int, set_index: int
    ) -> NDArray[np.uint8]:
        """Return the bytes of an input in the storage format of a tactic."""
        view, fmt = isolated.inputs[position], tactic.input_formats[position]
        array = self.data[set_index][0][position]
        assert view is not None and fmt is not None and array is not None  # noqa: S101, PT018
        allocation = isolated.allocations[view.buffer]
        host = np.full(allocation.size_bytes, allocation.fill, np.uint8)
        stored = to_stored_layout(cast_to_storage(array, fmt.dtype), fmt.layout)
        tensor_view(view, host, self.cuda_bench.sizes)[...] = stored
        return host

    def _input(
        self, isolated: IsolatedNode, tactic: Tactic, position: int, set_index: int, size_bytes: int
    ) -> int:
        """Return the address of an input; its memory is written when it is first used."""
        fmt, halos = tactic.input_formats[position], tactic.halos[position:]
        key = ("input", position, fmt, halos, set_index)
        read = partial(self._stored_input, isolated, tactic, position, set_index)
        return self._allocation(key, size_bytes, read).address

    # ---- result checks

    def find_error(self, tactic: Tactic, trial: _LoadedTactic) -> str | None:
        """Run a trial twice per set; return why it is rejected, or None if results are right."""
        for set_index in range(_ACTIVATION_SETS):
            if reason := self._find_error_in(tactic, trial, set_index):
                return reason
        trial.first_outputs = [
            [self._snapshot(p, set_index, memory) for p, memory in enumerate(memories)]
            for set_index, memories in enumerate(trial.outputs)
        ]
        for set_index in range(_ACTIVATION_SETS):
            self._run_poisoned(trial, set_index)
        return self.find_nondeterminism(trial)

    def _run_poisoned(self, trial: _LoadedTactic, set_index: int) -> None:
        workspace = [] if trial.workspace is None else [trial.workspace]
        for memory in (*trial.outputs[set_index], *workspace):
            self.measurer.fill(memory, POISON)
        self.cuda_bench.rows(trial, [set_index]).launch_all(self.measurer.stream)

    def _snapshot(self, position: int, set_index: int, memory: PoisonedMemory) -> PoisonedMemory:
        """Return a copy of the current content of memory."""
        key = ("first", position, set_index, memory.size_bytes)
        snapshot = self._allocation(key, memory.size_bytes)
        snapshot.copy_from(memory)
        return snapshot

    def _find_error_in(self, tactic: Tactic, trial: _LoadedTactic, set_index: int) -> str | None:
        """Run one set and return why the results differ from the reference, if they do."""
        self._run_poisoned(trial, set_index)
        expected = self.data[set_index][1]
        outputs = zip(trial.outputs[set_index], trial.isolated.outputs, expected, strict=True)
        for position, (memory, view, result) in enumerate(outputs):
            fmt = tactic.output_formats[position]
            reference = to_stored_layout(result, fmt.layout)
            key = ("expected", position, fmt, set_index, memory.size_bytes)
            count = memory.size_bytes // fmt.dtype.size_bytes
            if not fmt.dtype.is_float:
                read = partial(self._stored_bytes, view, reference, memory.size_bytes)
                if self.measurer.differs(memory, self._allocation(key, memory.size_bytes, read)):
                    return "the results differ from the reference"
                continue
            read = partial(self._stored_float32, view, reference, count)
            reference_memory = self._allocation(key, 4 * count, read)
            error = self.measurer.error(memory, reference_memory, fmt.dtype, count)
            magnitude = self._magnitudes[set_index][position]
            error = max(0.0, error - smallest_nonzero(fmt.dtype)) / magnitude
            if error > _tolerance(tactic):
                return large_error_reason(error, _tolerance(tactic))
        return None

    @cached_property
    def _magnitudes(self) -> list[list[float]]:
        """Largest finite magnitude of each expected result, by set; 1 if all are zero."""
        return [
            [float(np.max(np.abs(x), where=np.isfinite(x), initial=0.0)) or 1.0 for x in results]
            for _, results in self.data
        ]

    def _stored_bytes(self, view: View, reference: Array, size_bytes: int) -> NDArray[np.uint8]:
        host = np.full(size_bytes, POISON, np.uint8)
        tensor_view(view, host, self.cuda_bench.sizes)[...] = reference
        return host

    def _stored_float32(self, view: View, reference: Array, count: int) -> NDArray[np.uint8]:
        """Return expected results as float32 at the positions of the elements; elsewhere NaN."""
        value = self.cuda_bench.value
        flat = np.full(count, np.nan, np.float32)
        start = value(view.offset) // view.dtype.size_bytes
        strides = tuple(4 * value(s) for s in view.strides)
        shape = tuple(value(d) for d in view.shape)
        np.lib.stride_tricks.as_strided(flat[start:], shape, strides)[...] = reference
        return flat.view(np.uint8)

    def find_nondeterminism(self, trial: _LoadedTactic) -> str | None:
        """Return a reason if the outputs differ from those of the first run, else None."""
        for set_index, memories in enumerate(trial.outputs):
            for memory, first in zip(memories, trial.first_outputs[set_index], strict=True):
                if self.measurer.differs(memory, first):
                    return "the results differ between runs"
        return None

    # ---- timing

    def time(self, tactic: Tactic, trial: _LoadedTactic, repeats: TimingRepeats) -> float:
        """Return seconds per launch. The outputs are poisoned before and hold results after."""
        for memories in trial.outputs:
            for memory in memories:
                self.measurer.fill(memory, POISON)
        is_long = _LONG_SECONDS < tactic.estimated_seconds < math.inf
        launches_per_graph = _LAUNCHES_PER_LONG_GRAPH if is_long else _LAUNCHES_PER_GRAPH
        return self.cuda_bench.median(trial, repeats, launches_per_graph)


def _packed_bytes(constant: Constant) -> NDArray[np.uint8]:
    return np.ascontiguousarray(constant.array).reshape(-1).view(np.uint8)


def _tolerance(tactic: Tactic) -> float:
    if dict(tactic.parameters).get("input_precision") == "tf32":
        return _TF32_TOLERANCE
    return _TOLERANCES.get(storage_dtype_of([tactic]), _TOLERANCE)


def _by_rank(work: Sequence[tuple[Node, Tactic]]) -> list[tuple[Node, Tactic]]:
    """Order work by rank: the best estimate of every node, then every second best, and so on."""
    ranks: dict[Node, int] = {}
    ranked: list[tuple[int, int]] = []
    order = sorted(range(len(work)), key=lambda i: (work[i][1].estimated_seconds, i))
    for i in order:
        node = work[i][0]
        ranks[node] = ranks.get(node, -1) + 1
        ranked.append((ranks[node], i))
    return [work[i] for _, i in sorted(ranked)]
