"""Trying tactics on this machine: right first, then how fast."""

from __future__ import annotations

import logging
import math
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from smelt.backends import Operands, Stored, WeightStore
from smelt.devices.cpu import CpuMemory, MappedCode, Row, RunList, Scratch, worker_pool
from smelt.engine import Launch, Space, View
from smelt.errors import InternalError
from smelt.types import (
    DType,
    Layout,
    TensorFormat,
    TensorType,
    decode_bfloat16,
    encode_bfloat16,
    evaluate_dim,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from smelt.backends import Backend, Tactic
    from smelt.backends.cpu import CpuTarget
    from smelt.devices.cpu import CpuAllocation, NativeRuntime
    from smelt.engine import Step
    from smelt.ir import Array, Constant, Node

_LOG = logging.getLogger(__name__)
_TOLERANCES: Final = {DType.BFLOAT16: 0.1, DType.FLOAT16: 1e-2}
"""Of tensors that are rounded on the way: activations may bound what errors are compared with."""
_TOLERANCE: Final = 1e-4
_COMPILED_AT_ONCE: Final = 32
"""Kernels that are compiled between two looks at the clock."""
_MOST_AVERAGED: Final = 64


@dataclass(frozen=True, slots=True)
class Repeats:
    """How a candidate is timed: the best of ``count`` means of ``averaged`` runs each, or more."""

    count: int
    averaged: int = 1
    seconds: float = 0.02
    """Time for it, after two means."""
    sample_seconds: float = 0.0
    """A mean is taken of more runs where it would last less than this."""


@dataclass(slots=True)
class _Room:
    """A stretch of memory that a tactic needs."""

    size_bytes: int
    fill: int = 0
    """What its bytes are before anything is written: halos have values."""
    content: Constant | None = None


@dataclass(slots=True)
class _Lowered:
    """Steps on rooms of their own, which nobody has allocated yet: buffer k is room k."""

    steps: tuple[Step, ...]
    rooms: list[_Room]
    inputs: list[View | None]
    outputs: list[View]

    @property
    def launches(self) -> list[Launch]:
        """The steps that a processor does."""
        return [s for s in self.steps if isinstance(s, Launch)]

    @property
    def scratch_bytes(self) -> int:
        """Memory that each worker needs to itself."""
        return max((launch.scratch_bytes for launch in self.launches), default=0)


@dataclass(slots=True)
class _Prepared:
    """Steps on memory."""

    lowered: _Lowered
    memories: list[CpuAllocation]
    inputs: list[NDArray[Any] | None]
    """The inputs as windows on their memory, in logical axis order."""
    outputs: list[NDArray[Any]]


class Laboratory:
    """Compiles tactics of single nodes, checks them against the reference and times them.

    They are checked on all threads, for races, and timed on one: a neighbour that takes a processor
    for a while would make one candidate seem twice as slow as the next.
    """

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

    def compile_ahead(
        self, work: Sequence[tuple[Node, Tactic]], *, deadline: float = math.inf
    ) -> None:
        """Compile the kernels of many tactics, on all processors at once.

        Args:
            work: what is going to be timed.
            deadline: when to stop, in the time of ``time.perf_counter``.
        """
        lowered = [self._lower(node, tactic) for node, tactic in work]
        kernels = {s.kernel.symbol: s.kernel for made in lowered for s in made.launches}
        waiting = list(kernels.values())
        while waiting and time.perf_counter() < deadline:
            self.backend.prepare(waiting[:_COMPILED_AT_ONCE], self.target)
            del waiting[:_COMPILED_AT_ONCE]

    def seconds(self, node: Node, tactics: Sequence[Tactic], *, repeats: Repeats) -> list[float]:
        """The time of each tactic; infinity for one whose results are wrong or move."""
        lowered = [self._lower(node, tactic) for tactic in tactics]
        code, addresses = self._mapped(lowered)
        rng = np.random.default_rng(len(node.name))
        trials = [_data(node, self.sizes, rng, _storage(tactics)) for _ in range(2)]
        shelf = _Shelf(self.memory)
        with ExitStack() as later:  # a worker may look at a list for a while: wait once for all
            times = [
                self._time(
                    node, tactic, self._furnish(made, shelf), addresses, trials, repeats, later
                )
                for tactic, made in zip(tactics, lowered, strict=True)
            ]
        del code
        return times

    def copy_seconds(self, kind: TensorType, *, repeats: Repeats) -> float:
        """The time of a copy of a tensor between the model's axis order and channels last."""
        rooms: list[_Room] = []
        views = [
            self._place(
                Stored("copied", kind, TensorFormat(kind.dtype, layout), Space.ARENA), rooms
            )
            for layout in (Layout.LINEAR, Layout.CHANNELS_LAST)
        ]
        steps = self.backend.reformat(*views)
        lowered = _Lowered(steps, rooms, [views[0]], [views[1]])
        prepared = self._furnish(lowered, _Shelf(self.memory))
        code, addresses = self._mapped([lowered])
        scratch = Scratch(self.memory, lowered.scratch_bytes, 1)
        run_list = self._run_list(prepared, addresses, scratch, 1)
        try:
            return best_mean(run_list, repeats)
        finally:
            run_list.close()
            scratch.close()
            del code

    def _mapped(self, lowered: Sequence[_Lowered]) -> tuple[MappedCode, dict[str, int]]:
        """The code of all launches, to be kept while it runs, and each kernel's address."""
        kernels = [launch.kernel for made in lowered for launch in made.launches]
        image = self.backend.compile(kernels, self.target)
        code = MappedCode(image.code)
        return code, {name: code.address + offset for name, offset in image.symbols}

    def _time(
        self,
        node: Node,
        tactic: Tactic,
        prepared: _Prepared,
        addresses: Mapping[str, int],
        trials: Sequence[tuple[list[Array | None], tuple[Array, ...]]],
        repeats: Repeats,
        later: ExitStack,
    ) -> float:
        scratch = Scratch(self.memory, prepared.lowered.scratch_bytes, self.threads)
        shared = self._run_list(prepared, addresses, scratch, self.threads)
        alone = self._run_list(prepared, addresses, scratch, 1)
        for used in (scratch, shared, alone):
            later.callback(used.close)
        later.callback(prepared.memories.clear)
        for arrays, expected in trials:
            if reason := _check(tactic, prepared, arrays, expected, shared):
                _LOG.warning("%s: %s is out: %s", node, tactic, reason)
                return math.inf
        return best_mean(alone, repeats)

    def _run_list(
        self, prepared: _Prepared, addresses: Mapping[str, int], scratch: Scratch, threads: int
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

    def _lower(self, node: Node, tactic: Tactic) -> _Lowered:
        rooms: list[_Room] = []
        family = self.backend.family(tactic.family)
        halos = tactic.halos or ((),) * len(node.inputs)
        inputs = [
            None
            if v is None or f is None
            else self._place(Stored(v.name, v.tensor, f, Space.ARENA, halo=h), rooms, tactic)
            for v, f, h in zip(node.inputs, tactic.inputs, halos, strict=True)
        ]
        outputs = [
            self._place(Stored(v.name, v.tensor, f, Space.ARENA), rooms)
            for v, f in zip(node.outputs, tactic.outputs, strict=True)
        ]
        packed: list[View] = []
        for constant in family.pack(node, tactic):
            linear = TensorFormat(constant.type.dtype, Layout.LINEAR)
            stored = Stored(constant.name, constant.type, linear, Space.ARENA)
            packed.append(self._place(stored, rooms))
            rooms[-1].content = constant
        workspace = None
        if tactic.workspace_bytes != 0:
            kind = TensorType(DType.UINT8, (self._value(tactic.workspace_bytes),))
            linear = TensorFormat(kind.dtype, Layout.LINEAR)
            workspace = self._place(Stored("workspace", kind, linear, Space.ARENA), rooms)
        operands = Operands(tuple(inputs), tuple(outputs), tuple(packed), workspace)
        steps = family.lower(node, tactic, operands)
        return _Lowered(steps, rooms, inputs, outputs)

    def _place(self, stored: Stored, rooms: list[_Room], tactic: Tactic | None = None) -> View:
        stored.buffer = len(rooms)
        fill = 0 if tactic is None else tactic.halo_value & 0xFF  # only bytes have any but zero
        rooms.append(_Room(self._value(stored.geometry()[2]), fill))
        return stored.view()

    def _furnish(self, lowered: _Lowered, shelf: _Shelf) -> _Prepared:
        memories: list[CpuAllocation] = []
        for room in lowered.rooms:
            if room.content is not None:
                memories.append(shelf.memory_of(room.content))
                continue
            memories.append(self.memory.allocate(room.size_bytes, "trial"))
            memories[-1].bytes[:] = room.fill
        windows = [None if v is None else self._window(v, memories) for v in lowered.inputs]
        results = [self._window(v, memories) for v in lowered.outputs]
        return _Prepared(lowered, memories, windows, results)

    def _window(self, view: View, memories: Sequence[CpuAllocation]) -> NDArray[Any]:
        dtype = view.dtype.numpy
        flat = memories[view.buffer].bytes[self._value(view.offset) :]
        flat = flat[: flat.size // dtype.itemsize * dtype.itemsize].view(dtype)
        shape = tuple(self._value(d) for d in view.shape)
        strides = tuple(self._value(s) * dtype.itemsize for s in view.strides)
        return np.lib.stride_tricks.as_strided(flat, shape, strides)


class _Shelf:
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


def _storage(tactics: Sequence[Tactic]) -> DType:
    """The narrowest type in which tactics store float32."""
    formats = {f.dtype for t in tactics for f in (*t.inputs, *t.outputs) if f is not None}
    return next((dtype for dtype in _TOLERANCES if dtype in formats), DType.FLOAT32)


def _data(
    node: Node, sizes: Mapping[str, int], rng: np.random.Generator, storage: DType
) -> tuple[list[Array | None], tuple[Array, ...]]:
    """Random inputs of a node (its constants as they are), and what the reference makes of them.

    The numbers are such as ``storage`` holds exactly: all tactics then compute from the same.
    """
    arrays: list[Array | None] = []
    for value in node.inputs:
        if value is None or value.constant is not None:
            arrays.append(None if value is None or value.constant is None else value.constant.array)
            continue
        shape = tuple(evaluate_dim(d, sizes) for d in value.tensor.shape)
        if value.dims is not None:  # kernels may rely on what follows from shapes
            known = [evaluate_dim(d, sizes) for d in value.dims]
            arrays.append(np.array(known, value.tensor.dtype.numpy).reshape(shape))
            continue
        array = random_array(value.tensor.dtype, shape, rng)
        narrow = array.dtype == np.float32 and storage is not DType.FLOAT32
        arrays.append(_decoded(_encoded(array, storage), storage) if narrow else array)
    with np.errstate(all="ignore"):
        return arrays, node.op.reference(*arrays)


def _encoded(array: Array, stored: DType) -> Array:
    """The elements as memory of another type holds them."""
    if array.dtype.kind != "f":
        return array
    return encode_bfloat16(array) if stored is DType.BFLOAT16 else array.astype(stored.numpy)


def _decoded(array: Array, stored: DType) -> Array:
    """What lies in memory, as numbers."""
    return decode_bfloat16(array) if stored is DType.BFLOAT16 else array.astype(np.float32)


def random_array(dtype: DType, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Something for an input: any floats, and small integers, which may be indices."""
    if dtype is DType.BOOL:
        return rng.random(shape) < 0.5
    if dtype.is_float:
        return rng.standard_normal(shape, np.float32).astype(dtype.numpy)
    return rng.integers(0, 2, shape).astype(dtype.numpy)


def _check(
    tactic: Tactic,
    prepared: _Prepared,
    arrays: Sequence[Array | None],
    expected: Sequence[Array],
    run_list: RunList,
) -> str | None:
    """Why the results of two runs are not the reference's."""
    for window, array, fmt in zip(prepared.inputs, arrays, tactic.inputs, strict=True):
        if window is not None and fmt is not None:
            if array is None:
                raise InternalError(f"{tactic} reads an absent input")
            window[...] = _encoded(array, fmt.dtype)
    tolerance = _TOLERANCES.get(_storage([tactic]), _TOLERANCE)
    run_list.run()
    first = [window.copy() for window in prepared.outputs]
    run_list.run()
    results = zip(prepared.outputs, first, expected, tactic.outputs, strict=True)
    for window, before, wanted, fmt in results:
        if not np.array_equal(window, before, equal_nan=window.dtype.kind == "f"):
            return "its results differ between runs"
        made = _decoded(before, fmt.dtype) if wanted.dtype == np.float32 else before
        if (error := relative_error(made, wanted)) > tolerance:
            return f"its error is {error:.1e} of the largest magnitude"
    return None


def best_mean(run_list: RunList, repeats: Repeats) -> float:
    """Seconds of a run: the least of several samples.

    What lasts only microseconds is run several times for one sample. Alone, a late worker would
    decide how long it seems to take.
    """
    deadline = time.perf_counter() + repeats.seconds
    best = _mean_seconds(run_list, repeats.averaged)
    averaged = repeats.averaged
    if best * averaged < repeats.sample_seconds:
        averaged = min(math.ceil(repeats.sample_seconds / max(best, 1e-9)), _MOST_AVERAGED)
        averaged = max(averaged, repeats.averaged)
        best = _mean_seconds(run_list, averaged)
    for count in range(1, repeats.count):
        if count > 1 and time.perf_counter() > deadline:
            break
        best = min(best, _mean_seconds(run_list, averaged))
    return best


def _mean_seconds(run_list: RunList, averaged: int) -> float:
    start = time.perf_counter()
    for _ in range(averaged):
        run_list.run()
    return (time.perf_counter() - start) / averaged


def relative_error(got: Array, wanted: Array) -> float:
    """Largest difference, relative to the largest finite magnitude wanted; 0 or inf for ints."""
    if got.shape != wanted.shape:
        return math.inf
    if got.size == 0:
        return 0.0
    if wanted.dtype.kind != "f":
        return 0.0 if np.array_equal(got, wanted) else math.inf
    a, b = got.astype(np.float64), wanted.astype(np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return math.inf
    if not finite.any():
        return 0.0
    scale = float(np.abs(b[finite]).max())
    return float(np.abs(a[finite] - b[finite]).max()) / (scale or 1.0)
