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
from smelt.devices.cuda import CudaRow, CudaRunList, RunGraph
from smelt.engine import VERSION
from smelt.errors import BuildError, DeviceError, EngineMismatchError
from smelt.tuner._cuda_gauge import POISON, Gauge
from smelt.tuner._specimen import (
    as_stored,
    copy_alone,
    encoded,
    lower_alone,
    random_array,
    random_data,
    smallest_step,
    storage_of,
    window_on,
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
    from smelt.tuner._cuda_gauge import Memory
    from smelt.tuner._specimen import Repeats, Room, Specimen

_LOG = logging.getLogger(__name__)
_TOLERANCES: Final = {DType.FLOAT16: 3e-3, DType.BFLOAT16: 2e-2}
_TOLERANCE: Final = 1e-4
_TF32_TOLERANCE: Final = 3e-3
_SETS: Final = 2
"""Sets of activations, which launches use by turns."""
_ROTATED: Final = 12
"""Launches of a graph."""
_LONG_SECONDS: Final = 1e-4
_ROTATED_LONG: Final = 4
"""Launches of a graph if one takes longer than that."""
_MOST_ROTATED_BYTES: Final = 512 << 20
"""Copies of weights take no more than this."""


class CudaLaboratory:
    """Compiles tactics of single nodes, checks them against the reference and times them."""

    trial_limit: ClassVar[Limit] = Limit.MAX_GPU_TRIAL_BYTES
    copied: ClassVar[tuple[TensorType, TensorType]] = (
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
        """A laboratory on a GPU.

        Args:
            backend: has the tactics' families.
            target: what the GPU runs; of several architectures, the GPU's own.
            device: the GPU.
            sizes: symbol values to tune for.
        """
        self.backend, self.target, self.device = backend, target, device
        self.sizes = sizes
        self.gauge = Gauge(backend, target, device)
        self.refused: dict[tuple[str, str], str] = {}
        """Why candidates are out, by the node's name and the tactic's text."""
        self._deadline = math.inf

    @property
    def where(self) -> str:
        """What times depend on beside nodes, tactics and sizes."""
        return f"{self.target.name} on {self.device.place}, {VERSION} {self.backend.edition}"

    def compile_ahead(
        self, work: Sequence[tuple[Node, Tactic]], *, deadline: float = math.inf
    ) -> None:
        """Have the kernels of many tactics compiled, meanwhile what is ready is timed.

        When time is short, each node's most promising candidate comes first.
        """
        self._deadline = deadline
        if math.isfinite(deadline):
            work = _by_rank(work)
        if work:  # the choice cannot do without the copies' times, whatever else is late
            copies = [copy_alone(self.backend, kind, self.sizes) for kind in self.copied]
            self.backend.begin([x.kernel for c in copies for x in c.launches], self.target)
        for node, tactic in work:
            if time.perf_counter() > deadline:
                return
            launches = lower_alone(self.backend, node, tactic, self.sizes).launches
            self.backend.begin([launch.kernel for launch in launches], self.target)

    def seconds(self, node: Node, tactics: Sequence[Tactic], *, repeats: Repeats) -> list[float]:
        """The time of each tactic; infinity for one whose results are wrong or move.

        NaN for one that is not compiled in time.
        """
        bench = _Bench(self, node, tactics)
        try:
            return [self._tried(bench, node, tactic, repeats) for tactic in tactics]
        finally:
            bench.close()

    def _tried(self, bench: _Bench, node: Node, tactic: Tactic, repeats: Repeats) -> float:
        try:
            trial = bench.trial(tactic)
            reason = bench.fault(tactic, trial)
            if reason is None:
                seconds = bench.time(tactic, trial, repeats)
                reason = bench.change(trial)
                if reason is None:
                    return seconds
        except TimeoutError:
            return math.nan
        except (BuildError, EngineMismatchError) as error:
            reason = str(error)
        except DeviceError as error:
            self._check_device(node, tactic)
            reason = str(error)
        _LOG.warning("%s: %s is out: %s", node, tactic, reason)
        self.refused[node.name, str(tactic)] = reason
        return math.inf

    def _check_device(self, node: Node, tactic: Tactic) -> None:
        """Raise DeviceError if a candidate has lost the GPU for this process."""
        try:
            self.device.synchronize()
        except DeviceError as error:
            raise DeviceError(
                f"{tactic} of {node} broke {self.device!r} for this process ({error}); "
                'build with tune="none", and report this'
            ) from error

    def copy_seconds(self, kind: TensorType, *, repeats: Repeats) -> float:
        """The time of a copy of a tensor between the model's axis order and channels last."""
        specimen = copy_alone(self.backend, kind, self.sizes)
        rng = np.random.default_rng(0)
        shape = tuple(evaluate_dim(d, self.sizes) for d in kind.shape)
        kernels = self._loaded(specimen, None)
        lent: list[Memory] = []
        try:
            sets: list[list[int]] = []
            for _ in range(_SETS):
                source, destination = (self.gauge.room(r.size_bytes) for r in specimen.rooms)
                lent += [source, destination]
                host = np.zeros(source.size_bytes, np.uint8)
                view = specimen.inputs[0]
                assert view is not None  # noqa: S101  (a copy reads)
                window_on(view, host, self.sizes)[...] = random_array(kind.dtype, shape, rng)
                source.fill_from(host)
                sets.append([source.address, destination.address])
            trial = _Trial(specimen, kernels, sets)
            return self.median(trial, repeats, _ROTATED)
        finally:
            for memory in lent:
                memory.close()

    # ---- launches

    def loaded(self, specimen: Specimen) -> list[LoadedKernel | LoadedCall]:
        """The kernels of a specimen's launches, on the GPU. Raises TimeoutError: they are late."""
        left = self._deadline - time.perf_counter()
        return self._loaded(specimen, max(0.0, left) if math.isfinite(left) else None)

    def _loaded(self, specimen: Specimen, wait_s: float | None) -> list[LoadedKernel | LoadedCall]:
        return [
            self.gauge.loaded(self.backend.records(s.kernel, self.target, wait_s=wait_s))
            for s in specimen.launches
        ]

    def rows(self, trial: _Trial, sets: Sequence[int]) -> CudaRunList:
        """Launches of a trial, once for each number of a set of memory."""
        rows, words, blocks = list[CudaRow](), list[int](), list[int]()
        for number in sets:
            rooms = trial.sets[number]
            for launch, kernel in zip(trial.specimen.launches, trial.kernels, strict=True):
                own = [rooms[v.buffer] + self.value(v.offset) for v in launch.operands]
                own += [self.value(s) for s in launch.scalars]
                words += own
                rows.append(CudaRow(kernel, len(own), len(rows)))
                blocks.append(self.value(launch.chunks))
        return CudaRunList(rows, np.array(words, np.int64), blocks)

    def value(self, dim: Any) -> int:
        """A dim at the sizes that are tuned for."""
        return evaluate_dim(dim, self.sizes)

    def run(self, trial: _Trial, number: int) -> None:
        """Queue a trial's launches on one set of memory."""
        rows = self.rows(trial, [number])
        rows.launch_all(self.gauge.stream)

    def median(self, trial: _Trial, repeats: Repeats, rotated: int) -> float:
        """Seconds of a trial's launches: the median of replays of a graph of many."""
        stream, count = self.gauge.stream, len(trial.sets)
        # The last sets bring the activations into the cache, with weights that are not used again.
        warm = RunGraph(self.rows(trial, range(count - _SETS, count)), stream)
        timed = RunGraph(self.rows(trial, [k % count for k in range(rotated)]), stream)
        try:
            return self.gauge.median_ms(warm, timed, repeats.count) / rotated / 1e3
        finally:
            warm.close()
            timed.close()


@dataclass(slots=True)
class _Trial:
    """A specimen with its code and memory."""

    specimen: Specimen
    kernels: list[LoadedKernel | LoadedCall]
    sets: list[list[int]]
    """Addresses of all rooms, for each set of memory that launches use by turns."""
    outputs: list[list[Memory]] = field(default_factory=list["list[Memory]"])
    """For each set of activations, the rooms of the outputs."""
    workspace: Memory | None = None
    first: list[list[Memory]] = field(default_factory=list["list[Memory]"])
    """What the first run wrote, for each set of activations."""


class _Bench:
    """What the trials of one node share: data, what is expected, and memory."""

    def __init__(self, lab: CudaLaboratory, node: Node, tactics: Sequence[Tactic]) -> None:
        self.lab, self.node = lab, node
        self.storage = storage_of(tactics)
        self._data: list[tuple[list[Array | None], tuple[Array, ...]]] = []
        self._magnitudes: dict[tuple[int, int], float] = {}
        self._rooms: dict[object, Memory] = {}
        self._keys = WeightStore()

    @property
    def data(self) -> list[tuple[list[Array | None], tuple[Array, ...]]]:
        """Random inputs and what they lead to, for each set.

        They are made when the first kernel is there: until then compilers need the processors.
        """
        if not self._data:
            rng = np.random.default_rng(len(self.node.name))
            self._data = [
                random_data(self.node, self.lab.sizes, rng, self.storage) for _ in range(_SETS)
            ]
        return self._data

    def close(self) -> None:
        """Give all memory back."""
        for memory in self._rooms.values():
            memory.close()

    def _room(self, key: object, size_bytes: int) -> tuple[Memory, bool]:
        """Memory by name, and whether it is new."""
        is_new = key not in self._rooms
        if is_new:
            self._rooms[key] = self.lab.gauge.room(size_bytes)
        return self._rooms[key], is_new

    # ---- memory of a tactic

    def trial(self, tactic: Tactic) -> _Trial:
        """A tactic with its code and memory. Raises BuildError, TimeoutError, DeviceError."""
        lab = self.lab
        specimen = lower_alone(lab.backend, self.node, tactic, lab.sizes)
        trial = _Trial(specimen, lab.loaded(specimen), [])
        weights = self._weights(specimen, tactic)
        copies = min((len(found) for found in weights.values()), default=1)
        sets = math.lcm(_SETS, copies) if weights else _SETS
        outputs = {view.buffer: n for n, view in enumerate(specimen.outputs)}
        inputs = {v.buffer: n for n, v in enumerate(specimen.inputs) if v is not None}
        trial.outputs = [[] for _ in range(_SETS)]
        for number in range(sets):
            addresses: list[int] = []
            part = number % _SETS
            for index, room in enumerate(specimen.rooms):
                if index in weights:
                    addresses.append(weights[index][number % copies])
                elif index in outputs:
                    memory = self._output(tactic, outputs[index], part, room)
                    addresses.append(memory.address)
                    if number < _SETS:
                        trial.outputs[part].append(memory)
                elif index in inputs:
                    addresses.append(self._input(specimen, tactic, inputs[index], part, room))
                else:
                    trial.workspace, _ = self._room(("workspace", room.size_bytes), room.size_bytes)
                    addresses.append(trial.workspace.address)
            trial.sets.append(addresses)
        return trial

    def _weights(self, specimen: Specimen, tactic: Tactic) -> dict[int, list[int]]:
        """For each room of constants, the addresses of its copies."""
        constant = [i for i, room in enumerate(specimen.rooms) if room.is_constant]
        total = sum(specimen.rooms[i].size_bytes for i in constant)
        copies = max(_SETS, min(_ROTATED + _SETS, _MOST_ROTATED_BYTES // max(total, 1)))
        inputs = {v.buffer: n for n, v in enumerate(specimen.inputs) if v is not None}
        found: dict[int, list[int]] = {}
        for index in constant:
            room = specimen.rooms[index]
            stride = -(-room.size_bytes // 256) * 256
            if room.content is not None:
                key: object = ("packed", self._keys.key(room.content))
            else:
                key = ("constant", inputs[index], tactic.inputs[inputs[index]])
            memory, is_new = self._room((key, copies), stride * copies)
            if is_new:
                content = self._constant(specimen, tactic, index, inputs.get(index))
                memory.fill_with_copies(content, stride, copies)
            found[index] = [memory.address + stride * k for k in range(copies)]
        return found

    def _constant(
        self, specimen: Specimen, tactic: Tactic, index: int, position: int | None
    ) -> NDArray[np.uint8]:
        content = specimen.rooms[index].content
        if content is not None:
            return np.ascontiguousarray(content.array).reshape(-1).view(np.uint8)
        assert position is not None  # noqa: S101  (a constant is packed, or an input)
        return self._host(specimen, tactic, position, 0)

    def _host(
        self, specimen: Specimen, tactic: Tactic, position: int, part: int
    ) -> NDArray[np.uint8]:
        """An input as it lies in memory."""
        view, fmt = specimen.inputs[position], tactic.inputs[position]
        array = self.data[part][0][position]
        assert view is not None and fmt is not None and array is not None  # noqa: S101, PT018
        room = specimen.rooms[view.buffer]
        host = np.full(room.size_bytes, room.fill, np.uint8)
        stored = as_stored(encoded(array, fmt.dtype), fmt.layout)
        window_on(view, host, self.lab.sizes)[...] = stored
        return host

    def _input(
        self, specimen: Specimen, tactic: Tactic, position: int, part: int, room: Room
    ) -> int:
        key = ("input", position, tactic.inputs[position], tactic.halos[position:], part)
        memory, is_new = self._room(key, room.size_bytes)
        if is_new:
            memory.fill_from(self._host(specimen, tactic, position, part))
        return memory.address

    def _output(self, tactic: Tactic, position: int, part: int, room: Room) -> Memory:
        key = ("output", position, tactic.outputs[position], part)
        return self._room(key, room.size_bytes)[0]

    # ---- is it right

    def fault(self, tactic: Tactic, trial: _Trial) -> str | None:
        """Why the results of the first runs are not the reference's."""
        for part in range(_SETS):
            if reason := self._fault_of(tactic, trial, part):
                return reason
        trial.first = [
            [self._kept(position, part, memory) for position, memory in enumerate(memories)]
            for part, memories in enumerate(trial.outputs)
        ]
        for part in range(_SETS):
            self._run_poisoned(trial, part)
        return self.change(trial)

    def _run_poisoned(self, trial: _Trial, part: int) -> None:
        gauge = self.lab.gauge
        for memory in trial.outputs[part]:
            gauge.fill(memory, POISON)
        if trial.workspace is not None:
            gauge.fill(trial.workspace, POISON)
        self.lab.run(trial, part)

    def _kept(self, position: int, part: int, memory: Memory) -> Memory:
        """A copy of what lies in memory now."""
        kept, _ = self._room(("first", position, part, memory.size_bytes), memory.size_bytes)
        kept.copy_from(memory)
        return kept

    def _fault_of(self, tactic: Tactic, trial: _Trial, part: int) -> str | None:
        self._run_poisoned(trial, part)
        expected = self.data[part][1]
        outputs = zip(trial.outputs[part], trial.specimen.outputs, expected, strict=True)
        for position, (memory, view, result) in enumerate(outputs):
            fmt = tactic.outputs[position]
            wanted = as_stored(result, fmt.layout)
            key = ("expected", position, fmt, part, memory.size_bytes)
            count = memory.size_bytes // fmt.dtype.size_bytes
            if not fmt.dtype.is_float:
                truth, is_new = self._room(key, memory.size_bytes)
                if is_new:
                    truth.fill_from(self._laid_out(view, wanted, memory.size_bytes))
                if self.lab.gauge.differs(memory, truth):
                    return "its results are wrong"
                continue
            truth, is_new = self._room(key, 4 * count)
            if is_new:
                truth.fill_from(self._laid_out_wide(view, wanted, count))
            error = self.lab.gauge.error(memory, truth, fmt.dtype, count)
            error = max(0.0, error - smallest_step(fmt.dtype)) / self._magnitude(part, position)
            if error > _tolerance(tactic):
                return f"its error is {error:.1e} of the largest magnitude"
        return None

    def _magnitude(self, part: int, position: int) -> float:
        """The largest finite number of what is wanted, found once; 1 where all are zeros."""
        if (part, position) not in self._magnitudes:
            wanted = self.data[part][1][position]
            finite = np.max(np.abs(wanted), where=np.isfinite(wanted), initial=0.0)
            self._magnitudes[part, position] = float(finite) or 1.0
        return self._magnitudes[part, position]

    def _laid_out(self, view: View, wanted: Array, size_bytes: int) -> NDArray[np.uint8]:
        host = np.full(size_bytes, POISON, np.uint8)
        window_on(view, host, self.lab.sizes)[...] = wanted
        return host

    def _laid_out_wide(self, view: View, wanted: Array, count: int) -> NDArray[np.uint8]:
        """What is wanted as float32, at the places of narrower elements; elsewhere poison."""
        value = self.lab.value
        flat = np.full(count, np.nan, np.float32)
        start = value(view.offset) // view.dtype.size_bytes
        strides = tuple(4 * value(s) for s in view.strides)
        shape = tuple(value(d) for d in view.shape)
        np.lib.stride_tricks.as_strided(flat[start:], shape, strides)[...] = wanted
        return flat.view(np.uint8)

    def change(self, trial: _Trial) -> str | None:
        """Why what lies in the outputs is not what the first runs wrote."""
        gauge = self.lab.gauge
        for part, memories in enumerate(trial.outputs):
            for memory, first in zip(memories, trial.first[part], strict=True):
                if gauge.differs(memory, first):
                    return "its results differ between runs"
        return None

    # ---- how fast is it

    def time(self, tactic: Tactic, trial: _Trial, repeats: Repeats) -> float:
        """Seconds; the outputs hold what the last launches wrote into poison."""
        gauge = self.lab.gauge
        for memories in trial.outputs:
            for memory in memories:
                gauge.fill(memory, POISON)
        is_long = _LONG_SECONDS < tactic.cost_hint < math.inf
        rotated = _ROTATED_LONG if is_long else _ROTATED
        return self.lab.median(trial, repeats, rotated)


def _tolerance(tactic: Tactic) -> float:
    if dict(tactic.parameters).get("precision") == "tf32":
        return _TF32_TOLERANCE
    return _TOLERANCES.get(storage_of([tactic]), _TOLERANCE)


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
