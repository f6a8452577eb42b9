"""Run an engine with every buffer of its plans between guard pages, on memory full of poison.

An engine is run as planned, its arena and bindings between guard pages, and spread: each buffer of
a plan on pages of its own, weights that nobody may write. A kernel that leaves a buffer dies on the
spot; one that writes into the few bytes that alignment leaves is seen by the poison there; and what
reads memory that nobody has written for it gives other bits under another poison.
"""

from __future__ import annotations

import contextlib
import mmap
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

import numpy as np

from smelt.devices.cpu import map_pages, protect
from smelt.engine import Space
from smelt.runtime import Engine, _host_code, _staging
from tests.support.guarded_memory import GuardedMemory
from tests.support.verdicts import compare_verdicts

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence
    from typing import Self

    from numpy.typing import NDArray

    from smelt.engine import Buffer, EngineHeader, Plan

Array = np.ndarray[Any, Any]

_PAGE: Final = mmap.PAGESIZE
_ALIGNMENT: Final = 64


@dataclass(frozen=True, slots=True)
class Run:
    """What one run gave."""

    outputs: dict[str, Array]
    damage: tuple[str, ...]
    """What was written where no buffer is, in words."""


class GuardedContext:
    """A context on guarded memory; a run starts from poison."""

    def __init__(
        self, engine: Engine, *, spread: bool, at_end: bool = True, threads: int = 1
    ) -> None:
        """Create it.

        Args:
            engine: for the processor.
            spread: whether each buffer gets pages of its own.
            at_end: whether memory ends at a guard page, else it starts behind one.
            threads: of the context.
        """
        self._at_end = at_end
        self._places = _places(engine.header, at_end=at_end) if spread else None
        if self._places is not None:
            engine = self._places.moved(engine)
        self._engine = engine
        with _guarded_memory(at_end=at_end):
            context: Any = engine.create_context(threads=threads)
        self._context = context
        self.verdicts = [] if spread else compare_verdicts(context)
        """What compares with the full verifier; spread, plans are the same in other places."""
        resources = context._executor._resources
        scratch = resources.others[0]
        self._arena: NDArray[np.uint8] = resources.arena.bytes
        self._scratch: NDArray[np.uint8] = scratch._memory.bytes
        if self._places is not None:
            self._places.guard(int(self._arena.ctypes.data))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the memory back."""
        self._context.close()

    def run(self, inputs: Mapping[str, Array], poison: int) -> Run:
        """Run on copies of the inputs that nobody may write; all else is ``poison`` before.

        Raises:
            DifferingVerdictsError: the full verifier says of the run's values what its own
                conditions do not.
        """
        stretches = self._stretches()
        for start, stop in stretches:
            self._arena[start:stop] = poison
        self._scratch[:] = poison
        guarded = {name: self._input(np.asarray(array)) for name, array in inputs.items()}

        def fresh(shape: Sequence[int], dtype: Any) -> Array:
            return _guarded_array(tuple(shape), np.dtype(dtype), poison, at_end=self._at_end)

        executor = self._context._executor
        executor._resources = replace(executor._resources, new_array=fresh)
        outputs = {
            name: np.array(array, copy=True) for name, array in self._context.run(guarded).items()
        }
        return Run(outputs, self._damage(poison))

    def _input(self, array: Array) -> Array:
        copy = _guarded_array(array.shape, array.dtype, 0, at_end=self._at_end)
        copy[...] = array
        if array.nbytes:
            base = copy.ctypes.data // _PAGE * _PAGE
            protect(base, -(-(copy.ctypes.data + array.nbytes - base) // _PAGE) * _PAGE)
        copy.flags.writeable = False
        return copy

    def _stretches(self) -> list[tuple[int, int]]:
        """Where the arena may be written at all."""
        if self._places is None:
            return [(0, self._arena.size)]
        return [(room.start, room.start + room.size) for room in self._places.arena]

    def _damage(self, poison: int) -> tuple[str, ...]:
        if self._places is None:
            return ()
        used: dict[int, list[tuple[int, int]]] = {}
        for plan in self._engine.header.plans:
            for buffer in plan.buffers:
                if buffer.space is Space.ARENA:
                    page = buffer.start // _PAGE
                    used.setdefault(page, []).append((buffer.start, buffer.size_bytes))
        found: list[str] = []
        for room in self._places.arena:
            end = room.start
            for start, size in [
                *sorted(used.get(room.start // _PAGE, [])),
                (room.start + room.size, 0),
            ]:
                if not (self._arena[end:start] == poison).all():
                    found.append(f"bytes beside {room.text} were written")
                    break
                end = max(end, start + size)
        return tuple(found)


# ---- plans whose buffers have pages of their own


@dataclass(frozen=True, slots=True)
class _Room:
    """Whole pages for one buffer; the page behind them is a guard."""

    start: int
    size: int
    text: str


@dataclass(slots=True)
class _Places:
    """Where every buffer goes."""

    plans: list[Plan]
    arena: list[_Room]
    weights: list[_Room]
    sources: list[Buffer]
    """The weights' buffers as they were."""
    moves: list[int]
    """Where each of these begins now."""

    def moved(self, engine: Engine) -> Engine:
        """The engine with its buffers where they go."""
        file = engine.file
        end = max((room.start + room.size for room in self.weights), default=0) + _PAGE
        weights = map_pages(end)
        for buffer, start in zip(self.sources, self.moves, strict=True):
            data = file.weights[buffer.start : buffer.start + buffer.size_bytes]
            weights[start : start + buffer.size_bytes] = data
        base = int(weights.ctypes.data)
        protect(base, end)
        for room in self.weights:
            protect(base + room.start + room.size, _PAGE, readable=False)
        arena_bytes = max((room.start + room.size for room in self.arena), default=0) + _PAGE
        plans = tuple(replace(plan, arena_bytes=arena_bytes) for plan in self.plans)
        header = replace(file.header, plans=plans, weights=(), network_arrays=())
        return Engine.create(header, weights, file.code, file.runtime_code)

    def guard(self, base: int) -> None:
        """Forbid the pages behind each room of the arena at ``base``."""
        for room in self.arena:
            protect(base + room.start + room.size, _PAGE, readable=False)


def _places(header: EngineHeader, *, at_end: bool) -> _Places:
    """Give every buffer of the arena and of the weights pages of its own."""
    places = _Places([], [], [], [], [])
    ends = {Space.ARENA: 0, Space.WEIGHTS: 0}
    for number, plan in enumerate(header.plans):
        buffers: list[Buffer] = []
        for index, buffer in enumerate(plan.buffers):
            if buffer.space not in ends:
                buffers.append(buffer)
                continue
            start = ends[buffer.space]
            size = -(-max(buffer.size_bytes, 1) // _PAGE) * _PAGE
            ends[buffer.space] = start + size + _PAGE
            room = _Room(start, size, f"buffer {index} of plan {number}")
            slack = (size - buffer.size_bytes) // _ALIGNMENT * _ALIGNMENT if at_end else 0
            buffers.append(replace(buffer, start=start + slack))
            if buffer.space is Space.ARENA:
                places.arena.append(room)
            else:
                places.weights.append(room)
                places.sources.append(buffer)
                places.moves.append(start + slack)
        places.plans.append(replace(plan, buffers=tuple(buffers)))
    return places


# ---- memory


@contextlib.contextmanager
def _guarded_memory(*, at_end: bool) -> Generator[None]:
    """Contexts that are created meanwhile allocate between guard pages, and copy no bindings."""

    def guarded(tracker: object = None) -> GuardedMemory:
        del tracker
        return GuardedMemory(at_end=at_end)

    with (
        mock.patch.object(_host_code, "CpuMemory", guarded),
        mock.patch.object(_staging, "STAGED_BYTES", 0),
    ):
        yield


def _guarded_array(
    shape: tuple[int, ...], dtype: np.dtype[Any], fill: int, *, at_end: bool
) -> Array:
    """An array between guard pages, full of one byte; it keeps its memory alive."""
    size = int(np.prod(shape, dtype=object)) * dtype.itemsize
    memory = GuardedMemory(at_end=at_end, align=1).allocate(size, "binding").bytes
    memory[:] = fill
    array: Array = memory.view(dtype).reshape(shape)
    return array
