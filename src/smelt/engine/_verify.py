"""The plan verifier: nothing that a context will run touches memory that it must not.

It trusts no compiler. For the corners of the box of symbol values it evaluates every view and
checks that

* every footprint, halo included, lies inside its buffer, and every buffer inside its space;
* weights and inputs are never written;
* a launch's written operand shares no byte with another operand, unless both are one window;
* what a step reads was not overwritten since, through another buffer, and launches that may run at
  the same time write nothing that another one touches (through another buffer: windows of one
  buffer are one tensor's, and their writers' business);
* kernels, layers, symbols and counts exist and are in range.

What a kernel does inside its operands' footprints is not seen here: that is why machine code must
be signed, or generated anew.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from smelt.engine._plan import HostCall, Launch, Space
from smelt.errors import EngineFormatError, UnboundSymbolError
from smelt.types import evaluate_dim

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from smelt.engine._plan import Buffer, EngineHeader, Plan, Step, View
    from smelt.types import Dim

_MAX_CHUNKS: Final = (1 << 31) - 1
_MAX_BYTES: Final = 1 << 48
_MAX_EXTENT: Final = 1 << 40
_MAX_RANK: Final = 64
_MAX_CORNER_SYMBOLS: Final = 4
"""Every corner is tried up to so many symbols; beyond, the smallest and the largest."""
_MAX_EXACT_BYTES: Final = 1 << 26
"""Up to here, overlap of interleaved windows is found byte by byte; beyond, it is assumed."""

_Place = tuple[Space, int]
"""The arena, the weights, or one binding."""


def verify_plans(
    header: EngineHeader, *, weights_bytes: int, code_bytes: int, sources_bytes: int = 0
) -> None:
    """Verify every plan of an engine, and what the plans share.

    Raises:
        EngineFormatError: naming the plan, the step and what is wrong with it.
    """
    for name, offset in header.symbols:
        if not 0 <= offset < code_bytes:
            raise EngineFormatError(f"the kernel {name!r} lies outside the engine's code")
    names = [binding.name for binding in header.bindings]
    if len(set(names)) != len(names):
        raise EngineFormatError("two bindings have the same name")
    if not header.plans:
        raise EngineFormatError("the engine has no plan")
    for kind, weights, most in (
        ("weight", header.weights, weights_bytes),
        ("source", header.sources, sources_bytes),
    ):
        for weight in weights:
            size = int(np.prod([*weight.shape, weight.dtype.size_bytes], dtype=object))
            if min((0, *weight.shape)) < 0 or not 0 <= weight.offset <= most - size:
                raise EngineFormatError(f"the {kind} {weight.name!r} lies outside the {kind}s")
    kernels = frozenset(name for name, _ in header.symbols)
    for number, plan in enumerate(header.plans):
        verify_plan(header, plan, weights_bytes=weights_bytes, number=number, kernels=kernels)


def verify_plan(
    header: EngineHeader,
    plan: Plan,
    *,
    weights_bytes: int,
    number: int = 0,
    kernels: frozenset[str] | None = None,
) -> None:
    """Verify one plan; ``kernels`` are the symbols that its launches may name, None for any.

    Raises:
        EngineFormatError: naming the plan, the step and what is wrong with it.
    """
    try:
        _check_symbols(plan)
        for values in _corners(plan):
            _Verifier(header, plan, values, weights_bytes, kernels).run()
    except (EngineFormatError, UnboundSymbolError) as error:
        raise EngineFormatError(f"plan {number}: {error}") from error


def _check_symbols(plan: Plan) -> None:
    names = [name for name, _, _ in plan.symbols]
    if len(set(names)) != len(names):
        raise EngineFormatError("a symbol is declared twice")
    for name, low, high in plan.symbols:
        if not 0 <= low <= high <= _MAX_EXTENT:
            raise EngineFormatError(f"the range of the symbol {name!r}, {low} to {high}, is wrong")
    if not 0 <= plan.arena_bytes <= _MAX_BYTES or not 0 <= plan.scratch_bytes <= _MAX_BYTES:
        raise EngineFormatError(
            f"an arena of {plan.arena_bytes} bytes and scratch memory of {plan.scratch_bytes}: no "
            "machine has that; build for smaller shapes, or a smaller batch"
        )


def _corners(plan: Plan) -> Iterator[dict[str, int]]:
    names = [name for name, _, _ in plan.symbols]
    ranges = [(high, low) if low != high else (high,) for _, low, high in plan.symbols]
    if len(names) > _MAX_CORNER_SYMBOLS:
        yield {name: high for name, _, high in plan.symbols}
        yield {name: low for name, low, _ in plan.symbols}
        return
    for values in itertools.product(*ranges):
        yield dict(zip(names, values, strict=True))


@dataclass(frozen=True, slots=True)
class _Touch:
    """Bytes that a step may touch, in its place."""

    buffer: int
    place: _Place
    low: int
    high: int
    is_written: bool
    base: int
    """Where the buffer starts in its place."""


class _Ownership:
    """Through which buffer each byte of the arena was last written."""

    def __init__(self) -> None:
        self._starts: list[int] = [0]
        self._owners: list[int] = [-1]

    def owners(self, low: int, high: int) -> set[int]:
        first, last = bisect_right(self._starts, low) - 1, bisect_right(self._starts, high - 1)
        return set(self._owners[first:last])

    def write(self, low: int, high: int, owner: int) -> None:
        first, last = bisect_right(self._starts, low) - 1, bisect_right(self._starts, high) - 1
        starts, owners = [low, high], [owner, self._owners[last]]
        if self._starts[first] < low:
            starts.insert(0, self._starts[first])
            owners.insert(0, self._owners[first])
        self._starts[first : last + 1] = starts
        self._owners[first : last + 1] = owners


class _Verifier:
    """One plan at one set of symbol values."""

    def __init__(
        self,
        header: EngineHeader,
        plan: Plan,
        values: Mapping[str, int],
        weights_bytes: int,
        kernels: frozenset[str] | None,
    ) -> None:
        self.header, self.plan, self.values = header, plan, values
        self.weights_bytes, self.kernels = weights_bytes, kernels
        self.capacities = [self._capacity(i, b) for i, b in enumerate(plan.buffers)]

    def run(self) -> None:
        touches: list[list[_Touch]] = []
        for number, step in enumerate(self.plan.steps):
            try:
                touches.append(self._check_step(step))
            except EngineFormatError as error:
                raise EngineFormatError(
                    f"step {number} ({self._describe(step)}): {error}"
                ) from None
        self._check_concurrency(touches)
        self._check_order(touches)

    def _describe(self, step: Step) -> str:
        inside = 0 <= step.layer < len(self.header.layers)
        name = self.header.layers[step.layer].name if inside else "of no layer"
        return f"{step.kernel.family}, {name}" if isinstance(step, Launch) else f"host, {name}"

    # ---- one step

    def _capacity(self, index: int, buffer: Buffer) -> int:
        """How many bytes the buffer really has."""
        if not (0 <= buffer.start <= _MAX_BYTES and 0 <= buffer.size_bytes <= _MAX_BYTES):
            raise EngineFormatError(f"buffer {index} has a wrong start or size")
        if buffer.space in {Space.ARENA, Space.WEIGHTS}:
            is_arena = buffer.space is Space.ARENA
            room = self.plan.arena_bytes if is_arena else self.weights_bytes
            if buffer.start + buffer.size_bytes > room:
                raise EngineFormatError(f"buffer {index} ends beyond the {buffer.space.value}")
            return buffer.size_bytes
        bindings = self.header.bindings
        wants_input = buffer.space is Space.INPUT
        if buffer.start >= len(bindings) or bindings[buffer.start].is_input != wants_input:
            raise EngineFormatError(f"buffer {index} names no {buffer.space.value}")
        binding = bindings[buffer.start]
        size = binding.dtype.size_bytes
        for extent in self._evaluate(binding.shape):
            size *= extent
        return min(size, buffer.size_bytes)

    def _check_step(self, step: Step) -> list[_Touch]:
        if not 0 <= step.layer < len(self.header.layers):
            raise EngineFormatError(f"there is no layer {step.layer}")
        if isinstance(step, HostCall):
            return self._check_host_call(step)
        if self.kernels is not None and step.kernel.symbol not in self.kernels:
            raise EngineFormatError(f"the code has no kernel {step.kernel.symbol!r}")
        if not 0 <= step.scratch_bytes <= self.plan.scratch_bytes:
            raise EngineFormatError("it needs more scratch memory than the plan has")
        if not 0 <= self._value(step.chunks) <= _MAX_CHUNKS:
            raise EngineFormatError(f"{self._value(step.chunks)} chunks are not possible")
        for scalar in step.scalars:
            self._value(scalar)
        if any(not 0 <= position < len(step.operands) for position in step.writes):
            raise EngineFormatError("it writes an operand that it has not")
        touches = [self._touch(v, is_written=i in step.writes) for i, v in enumerate(step.operands)]
        self._check_operands(step.operands, touches)
        return touches

    def _check_host_call(self, step: HostCall) -> list[_Touch]:
        declared = {name for name, _, _ in self.plan.symbols}
        for name, output, axis in step.sizes:
            known = name in declared and 0 <= output < len(step.outputs)
            if not known or not 0 <= axis < len(step.outputs[output].shape):
                raise EngineFormatError(f"the size {name!r} names no symbol, output or axis")
        # A reference works on arrays of its own: its results may overwrite its operands.
        reads = [self._touch(view, is_written=False) for view in step.inputs if view is not None]
        return reads + [self._touch(view, is_written=True) for view in step.outputs]

    def _touch(self, view: View, *, is_written: bool) -> _Touch:
        if not 0 <= view.buffer < len(self.plan.buffers):
            raise EngineFormatError(f"there is no buffer {view.buffer}")
        rank = len(view.shape)
        if rank > _MAX_RANK or len(view.strides) != rank or len(view.halo) not in {0, rank}:
            raise EngineFormatError("a view's shape, strides and halo differ in length")
        if any(before < 0 or after < 0 for before, after in view.halo):
            raise EngineFormatError("a view's halo is negative")
        self._evaluate(view.shape)
        low, high = view.footprint(self.values)
        buffer, capacity = self.plan.buffers[view.buffer], self.capacities[view.buffer]
        if not 0 <= low <= high <= capacity:
            raise EngineFormatError(
                f"bytes {low} to {high} of buffer {view.buffer}, which has {capacity}, "
                f"at {_text(self.values)}"
            )
        if is_written and buffer.space in {Space.WEIGHTS, Space.INPUT}:
            raise EngineFormatError(f"it writes to the {buffer.space.value}")
        if buffer.space in {Space.ARENA, Space.WEIGHTS}:
            base, number = buffer.start, 0
        else:
            base, number = 0, buffer.start
        return _Touch(
            view.buffer, (buffer.space, number), base + low, base + high, is_written, base
        )

    def _check_operands(self, views: Sequence[View], touches: Sequence[_Touch]) -> None:
        for (i, a), (j, b) in itertools.combinations(enumerate(touches), 2):
            if not (a.is_written or b.is_written) or not _meet(a, b):
                continue
            if not _is_same_window(views[i], views[j]) and self._overlap(views[i], views[j], a, b):
                raise EngineFormatError(f"operands {i} and {j} overlap, and one is written")

    def _overlap(self, a: View, b: View, touched_a: _Touch, touched_b: _Touch) -> bool:
        """Whether two windows share a byte. Halos count only for a window that is read."""
        low = min(touched_a.low, touched_b.low)
        size = max(touched_a.high, touched_b.high) - low
        if size > _MAX_EXACT_BYTES:
            return True
        mask = np.zeros(size, np.bool_)
        first = self._window(a, touched_a, low, mask)
        second = self._window(b, touched_b, low, mask)
        if first is None or second is None:
            return True
        first[...] = True
        return bool(second.any())

    def _window(
        self,
        view: View,
        touched: _Touch,
        low: int,
        mask: NDArray[np.bool_],
    ) -> NDArray[np.bool_] | None:
        """The window's bytes in ``mask``, which starts at byte ``low``; None if it is too odd."""
        width = view.dtype.size_bytes
        halo = ((0, 0),) * len(view.shape)
        if view.halo and not touched.is_written:
            halo = view.halo
        offset = touched.base + self._value(view.offset) - low
        shape, strides, count = [width], [1], width
        rows = zip(self._evaluate(view.shape), map(self._value, view.strides), halo, strict=True)
        for extent, stride, (before, after) in rows:
            offset -= before * stride * width
            total = extent + before + after
            if stride == 0 or total == 1:
                continue
            shape.insert(0, total)
            strides.insert(0, stride * width)
            count *= total
        if count > mask.size or offset < 0:
            return None  # elements share bytes among themselves: no window of a tensor
        return np.lib.stride_tricks.as_strided(mask[offset:], shape, strides)

    # ---- steps among each other

    def _check_concurrency(self, touches: Sequence[Sequence[_Touch]]) -> None:
        running: list[tuple[int, _Touch]] = []
        after_host = False
        for number, (step, touched) in enumerate(zip(self.plan.steps, touches, strict=True)):
            if isinstance(step, HostCall) or step.waits or after_host:
                running.clear()
            after_host = isinstance(step, HostCall)
            for touch in touched:
                for earlier, other in running:
                    written = touch.is_written or other.is_written
                    if written and touch.buffer != other.buffer and _meet(touch, other):
                        raise EngineFormatError(
                            f"steps {earlier} and {number} may run at once, and one writes what "
                            "the other touches"
                        )
            running.extend((number, touch) for touch in touched)

    def _check_order(self, touches: Sequence[Sequence[_Touch]]) -> None:
        arena = _Ownership()
        # Twice: a second run must not find what the first one's later steps left.
        for _ in range(2):
            for number, touched in enumerate(touches):
                rows = [t for t in touched if t.place[0] is Space.ARENA and t.low < t.high]
                for touch in rows:
                    if touch.is_written:
                        continue
                    strangers = arena.owners(touch.low, touch.high) - {touch.buffer, -1}
                    if strangers:
                        raise EngineFormatError(
                            f"step {number} ({self._describe(self.plan.steps[number])}) reads "
                            f"buffer {touch.buffer} after buffer {min(strangers)} overwrote it"
                        )
                for touch in rows:
                    if touch.is_written:
                        arena.write(touch.low, touch.high, touch.buffer)

    # ---- dimensions

    def _value(self, dim: Dim) -> int:
        value = evaluate_dim(dim, self.values)
        if not -(1 << 63) <= value < 1 << 63:
            raise EngineFormatError(f"{dim} has no 64-bit value")
        return value

    def _evaluate(self, shape: Sequence[Dim]) -> list[int]:
        extents = [self._value(dim) for dim in shape]
        if any(not 0 <= extent <= _MAX_EXTENT for extent in extents):
            raise EngineFormatError(f"a shape of {extents} at {_text(self.values)}")
        return extents


def _meet(a: _Touch, b: _Touch) -> bool:
    return a.place == b.place and a.low < b.high and b.low < a.high


def _is_same_window(a: View, b: View) -> bool:
    """Whether an elementwise kernel may read one and write the other in place."""
    return (
        (a.buffer, a.offset, a.shape, a.strides) == (b.buffer, b.offset, b.shape, b.strides)
        and a.dtype.size_bytes == b.dtype.size_bytes
    )  # fmt: skip


def _text(values: Mapping[str, int]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in values.items()) or "no symbols"
