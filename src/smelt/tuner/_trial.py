"""Trying tactics on this machine: right first, then how fast."""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from smelt.backends import Operands, Stored
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
    from smelt.ir import Array, Node, Value

_LOG = logging.getLogger(__name__)
_TOLERANCES: Final = {DType.BFLOAT16: 6e-2, DType.FLOAT16: 1e-2}
_TOLERANCE: Final = 1e-4
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
class _Prepared:
    """One tactic on memory of its own."""

    tactic: Tactic
    steps: tuple[Step, ...]
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

    def seconds(self, node: Node, tactics: Sequence[Tactic], *, repeats: Repeats) -> list[float]:
        """The time of each tactic; infinity for one whose results are wrong or move."""
        prepared = [self._prepare(node, tactic) for tactic in tactics]
        launches = [s for p in prepared for s in p.steps if isinstance(s, Launch)]
        image = self.backend.compile([launch.kernel for launch in launches], self.target)
        code = MappedCode(image.code)
        addresses = {name: code.address + offset for name, offset in image.symbols}
        rng = np.random.default_rng(len(node.name))
        trials = [_data(node, self.sizes, rng, _storage(tactics)) for _ in range(2)]
        return [self._time(node, p, addresses, trials, repeats) for p in prepared]

    def _time(
        self,
        node: Node,
        prepared: _Prepared,
        addresses: Mapping[str, int],
        trials: Sequence[tuple[list[Array | None], tuple[Array, ...]]],
        repeats: Repeats,
    ) -> float:
        most = max((s.scratch_bytes for s in prepared.steps if isinstance(s, Launch)), default=0)
        scratch = Scratch(self.memory, most, self.threads)
        shared = self._run_list(prepared, addresses, scratch, self.threads)
        alone = self._run_list(prepared, addresses, scratch, 1)
        try:
            for arrays, expected in trials:
                if reason := _check(prepared, arrays, expected, shared):
                    _LOG.warning("%s: %s is out: %s", node, prepared.tactic, reason)
                    return math.inf
            return best_mean(alone, repeats)
        finally:
            shared.close()
            alone.close()
            scratch.close()

    def _run_list(
        self, prepared: _Prepared, addresses: Mapping[str, int], scratch: Scratch, threads: int
    ) -> RunList:
        launches = [s for s in prepared.steps if isinstance(s, Launch)]
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

    def _prepare(self, node: Node, tactic: Tactic) -> _Prepared:
        memories: list[CpuAllocation] = []
        family = self.backend.family(tactic.family)
        halos = tactic.halos or ((),) * len(node.inputs)
        inputs = [
            None
            if v is None or f is None
            else self._place(v, f, (halo, tactic.halo_value), memories)
            for v, f, halo in zip(node.inputs, tactic.inputs, halos, strict=True)
        ]
        outputs = [
            self._place(v, f, ((), 0), memories)
            for v, f in zip(node.outputs, tactic.outputs, strict=True)
        ]
        packed = tuple(self._pack(c.array, memories) for c in family.pack(node, tactic))
        workspace = None
        if tactic.workspace_bytes != 0:
            workspace = self._pack(
                np.zeros(self._value(tactic.workspace_bytes), np.uint8), memories
            )
        operands = Operands(tuple(inputs), tuple(outputs), packed, workspace)
        steps = family.lower(node, tactic, operands)
        windows = [None if v is None else self._window(v, memories) for v in inputs]
        results = [self._window(v, memories) for v in outputs]
        return _Prepared(tactic, steps, memories, windows, results)

    def _place(
        self,
        value: Value,
        fmt: TensorFormat,
        around: tuple[Any, int],
        memories: list[CpuAllocation],
    ) -> View:
        stored = Stored(value.name, value.tensor, fmt, Space.ARENA, halo=around[0])
        memory = self.memory.allocate(self._value(stored.geometry()[2]), "trial")
        memory.bytes[:] = around[1] & 0xFF  # only bytes have halos of anything but zero
        stored.buffer = len(memories)
        memories.append(memory)
        return stored.view()

    def _pack(self, array: Array, memories: list[CpuAllocation]) -> View:
        kind = TensorType(DType.from_numpy(array.dtype), array.shape)
        stored = Stored("packed", kind, TensorFormat(kind.dtype, Layout.LINEAR), Space.ARENA)
        memory = self.memory.allocate(array.nbytes, "trial")
        memory.bytes[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        stored.buffer = len(memories)
        memories.append(memory)
        return stored.view()

    def _window(self, view: View, memories: Sequence[CpuAllocation]) -> NDArray[Any]:
        dtype = view.dtype.numpy
        flat = memories[view.buffer].bytes[self._value(view.offset) :]
        flat = flat[: flat.size // dtype.itemsize * dtype.itemsize].view(dtype)
        shape = tuple(self._value(d) for d in view.shape)
        strides = tuple(self._value(s) * dtype.itemsize for s in view.strides)
        return np.lib.stride_tricks.as_strided(flat, shape, strides)


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
    prepared: _Prepared,
    arrays: Sequence[Array | None],
    expected: Sequence[Array],
    run_list: RunList,
) -> str | None:
    """Why the results of two runs are not the reference's."""
    tactic = prepared.tactic
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


class MeasuringTimer:
    """Measures the few best candidates by their estimates; believes the estimates of the others."""

    def __init__(
        self,
        laboratory: Laboratory,
        cache: Any,
        *,
        keep: int,
        repeats: int,
        averaged: int = 1,
        seconds: float = math.inf,
        seconds_each: float = 0.02,
        sample_seconds: float = 0.0,
    ) -> None:
        self.laboratory, self.cache = laboratory, cache
        self.keep = keep
        self.repeats = Repeats(repeats, averaged, seconds_each, sample_seconds)
        self.deadline = time.perf_counter() + seconds

    def seconds(self, node: Node, tactics: Sequence[Tactic]) -> list[float]:
        """Seconds of the most promising tactics of each format, infinity for the others."""
        times = [t.cost_hint if is_free(t) else math.inf for t in tactics]
        chosen = self._promising(tactics)
        keys = {i: self._key(node, tactics[i]) for i in chosen}
        for i in chosen:
            times[i] = self.cache.get(keys[i]) or math.inf
        unknown = [i for i in chosen if self.cache.get(keys[i]) is None]
        if unknown and time.perf_counter() > self.deadline:
            for i in unknown:
                times[i] = tactics[i].cost_hint
        elif unknown:
            measured = self.laboratory.seconds(
                node, [tactics[i] for i in unknown], repeats=self.repeats
            )
            for i, seconds in zip(unknown, measured, strict=True):
                times[i] = seconds
                if math.isfinite(seconds):
                    self.cache.put(keys[i], seconds)
        return times if any(map(math.isfinite, times)) else [t.cost_hint for t in tactics]

    def _promising(self, tactics: Sequence[Tactic]) -> list[int]:
        """The best by estimate of each family, for every combination of formats."""
        groups: dict[object, list[int]] = {}
        for i, tactic in enumerate(tactics):
            if not is_free(tactic):
                key = (tactic.inputs, tactic.outputs, tactic.family)
                groups.setdefault(key, []).append(i)
        best = (sorted(g, key=lambda i: tactics[i].cost_hint)[: self.keep] for g in groups.values())
        return sorted(i for group in best for i in group)

    def _key(self, node: Node, tactic: Tactic) -> str:
        lab = self.laboratory
        where = f"{lab.target.name}, 1 thread, {sorted(lab.sizes.items())}"
        return f"{node_text(node)} | {tactic_text(tactic)} | {where}"


def node_text(node: Node) -> str:
    """What a node computes: equal for nodes that take the same time."""
    inputs = ", ".join("-" if v is None else str(v.type) for v in node.inputs)
    return f"{node.op} on {inputs} -> {', '.join(str(v.type) for v in node.outputs)}"


def tactic_text(tactic: Tactic) -> str:
    """A tactic with its formats."""
    formats = " ".join("-" if f is None else str(f) for f in (*tactic.inputs, *tactic.outputs))
    return f"{tactic} | {formats}"


def is_free(tactic: Tactic) -> bool:
    """Whether there is nothing to measure: windows cost nothing, references are the last resort."""
    return tactic.is_reference or tactic.aliasing.value != "none"
