"""Plan verifier at one set of symbol values: it evaluates every byte range that a step may access.

The verifier trusts no compiler and evaluates every view separately. Loading runs it for plans of
fixed shapes, tests compare it with the runtime checks, and it produces the error message if a
runtime check fails.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from smelt.engine._concurrency_verifier import Span, find_conflict
from smelt.engine._lifetime_verifier import completed_before
from smelt.engine._plan import ERROR_BYTES, HostCall, HostStep, Launch, Space, accesses_of
from smelt.errors import EngineFormatError
from smelt.types import Limit, counted, evaluate_dim

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from smelt.engine._plan import Buffer, EngineHeader, Plan, Step, View
    from smelt.types import Dim

MAX_CHUNKS: Final = Limit.MAX_CHUNKS.most
MAX_EXTENT: Final = Limit.MAX_EXTENT.most
MAX_BYTES: Final = Limit.MAX_PLAN_BYTES.most
_MAX_EXACT_BYTES: Final = 1 << 26
"""Size up to which the overlap of interleaved windows is determined byte by byte; larger ones
overlap."""
_MAX_ALL_EXACT_BYTES: Final = 1 << 32
"""The same limit for all windows of a plan together: seconds instead of hours for a hostile
plan."""

_MAX_AXES: Final = 8
"""Maximum number of axes of two windows together; the ways to split their distance double with
each."""


def verify_plan_at(
    header: EngineHeader,
    plan: Plan,
    values: Mapping[str, int],
    *,
    weights_bytes: int = MAX_BYTES,
    kernels: frozenset[str] | None = None,
    num_steps: int | None = None,
) -> None:
    """Verify a plan at one set of symbol values.

    Args:
        header: engine of the plan.
        plan: plan to verify.
        values: value of every symbol.
        weights_bytes: size of the weights in bytes.
        kernels: symbols that launches may name; None allows any symbol.
        num_steps: number of steps to verify, from the first; None verifies all.

    Raises:
        EngineFormatError: a step is invalid; the message names the step and the reason.
        UnboundSymbolError: a dimension has a symbol without a value.
    """
    _Verifier(header, plan, values, weights_bytes, kernels).run(plan.steps[:num_steps])


@dataclass(eq=False)
class _Verifier:
    """Verifier of one plan at one set of symbol values."""

    header: EngineHeader
    plan: Plan
    values: Mapping[str, int]
    weights_bytes: int
    kernels: frozenset[str] | None

    def __post_init__(self) -> None:
        self.max_shapes = self.plan.max_shapes(self.header.bindings)
        self.overlap_budget = ExactOverlapBudget()
        self.capacities = [self._capacity(i, b) for i, b in enumerate(self.plan.buffers)]

    def run(self, steps: Sequence[Step]) -> None:
        touches: list[list[Span]] = []
        for number, step in enumerate(steps):
            try:
                touches.append(self._check_step(number, step))
            except EngineFormatError as error:
                raise EngineFormatError(
                    f"step {number} ({self._describe(step)}): {error}"
                ) from None
        self._check_concurrency(steps, touches)

    def _describe(self, step: Step) -> str:
        inside = 0 <= step.layer < len(self.header.layers)
        name = self.header.layers[step.layer].name if inside else "unknown layer"
        return f"{step.kernel.family}, {name}" if isinstance(step, Launch) else f"host, {name}"

    # ---- one step

    def _capacity(self, index: int, buffer: Buffer) -> int:
        """Return the actual size of a buffer in bytes."""
        if not (0 <= buffer.start <= MAX_BYTES and 0 <= buffer.size_bytes <= MAX_BYTES):
            raise EngineFormatError(
                f"the offset {buffer.start} and the size {buffer.size_bytes} of buffer {index} "
                f"must be from 0 to {MAX_BYTES:,} bytes ({Limit.MAX_PLAN_BYTES.name})"
            )
        space, end = buffer.space, buffer.start + buffer.size_bytes
        if space in {Space.ARENA, Space.WEIGHTS}:
            is_arena = space is Space.ARENA
            room = self.plan.arena_bytes if is_arena else self.weights_bytes
            if end > room:
                raise EngineFormatError(
                    f"buffer {index} extends beyond the end of the {space.value}"
                )
            return buffer.size_bytes
        if space is Space.ERRORS:
            room = len(self.header.layers) * ERROR_BYTES
            if buffer.start % ERROR_BYTES or end > room:
                raise EngineFormatError(
                    f"buffer {index} is not within the index error records of the layers"
                )
            return buffer.size_bytes
        bindings = self.header.bindings
        wants_input = space is Space.INPUT
        if buffer.start >= len(bindings) or bindings[buffer.start].is_input != wants_input:
            raise EngineFormatError(
                f"buffer {index} refers to binding {buffer.start}, which is not an "
                f"{buffer.space.value}"
            )
        binding = bindings[buffer.start]
        size = binding.dtype.size_bytes
        for extent in self.max_shapes[buffer.start]:
            # The largest extent is negative where every count is refused: a run that finds one.
            size *= max(self._value(extent), 0)
        return min(size, buffer.size_bytes)

    def _check_step(self, number: int, step: Step) -> list[Span]:
        if not 0 <= step.layer < len(self.header.layers):
            raise EngineFormatError(f"the step refers to layer {step.layer}, which does not exist")
        if isinstance(step, HostStep):
            return self._check_host_step(number, step)
        if self.kernels is not None and step.kernel.symbol not in self.kernels:
            raise EngineFormatError(f"the code has no kernel {step.kernel.symbol!r}")
        if not 0 <= step.scratch_bytes <= self.plan.scratch_bytes:
            raise EngineFormatError(
                f"scratch_bytes of the launch is {step.scratch_bytes}; it must be from 0 to "
                f"{self.plan.scratch_bytes}, the scratch memory of the plan"
            )
        if not 0 <= self._value(step.chunks) <= MAX_CHUNKS:
            detail = Limit.MAX_CHUNKS.excess(self._value(step.chunks))
            raise EngineFormatError(f"the launch has {detail}")
        for scalar in step.scalars:
            self._value(scalar)
        if any(not 0 <= position < len(step.operands) for position in step.writes):
            raise EngineFormatError("the launch writes an operand that does not exist")
        touches = [self._span(number, v, is_written=w) for v, w in accesses_of(step)]
        self._check_operands(step, touches)
        return touches

    def _check_host_step(self, number: int, step: HostStep) -> list[Span]:
        declared = {name for name, _, _ in self.plan.symbols}
        for name, output, axis in step.sizes if isinstance(step, HostCall) else ():
            known = name in declared and 0 <= output < len(step.outputs)
            if not known or not 0 <= axis < len(step.outputs[output].shape):
                raise EngineFormatError(
                    f"the size {name!r} refers to an unknown symbol, output or axis"
                )
        # A reference computes on its own arrays, so its results may overwrite its operands. Those
        # of a partition are in buffers of their own, which the partition verifier checks.
        touches = [self._span(number, v, is_written=w) for v, w in accesses_of(step)]
        if any(self.plan.buffers[touch.buffer].space is Space.ERRORS for touch in touches):
            raise EngineFormatError(
                "a host step writes an index error record, which only launches may write"
            )
        return touches

    def _span(self, step: int, view: View, *, is_written: bool) -> Span:
        if not 0 <= view.buffer < len(self.plan.buffers):
            raise EngineFormatError(f"a view refers to buffer {view.buffer}, which does not exist")
        rank = len(view.shape)
        if rank > Limit.MAX_VIEW_AXES.most:
            raise EngineFormatError(f"a view has {Limit.MAX_VIEW_AXES.excess(rank)}")
        if len(view.strides) != rank:
            raise EngineFormatError(
                f"a view of rank {rank} has {counted(len(view.strides), 'stride')}"
            )
        if len(view.halo) not in {0, rank}:
            raise EngineFormatError(f"a view of rank {rank} has a halo of rank {len(view.halo)}")
        if any(before < 0 or after < 0 for before, after in view.halo):
            raise EngineFormatError("a view's halo is negative")
        self._evaluate(view.shape)
        low, high = view.footprint(self.values)
        buffer, capacity = self.plan.buffers[view.buffer], self.capacities[view.buffer]
        if low != high and not 0 <= low < high <= capacity:
            raise EngineFormatError(
                f"the step accesses bytes {low} to {high} of buffer {view.buffer}, which has "
                f"{counted(capacity, 'byte')}{_text(self.values)}"
            )
        if is_written and buffer.space in {Space.WEIGHTS, Space.INPUT}:
            raise EngineFormatError(
                f"the step writes to the {buffer.space.value}, which steps may only read"
            )
        if not is_written and buffer.space is Space.ERRORS:
            raise EngineFormatError("the step reads an index error record, which no step may read")
        if buffer.space in {Space.ARENA, Space.WEIGHTS, Space.ERRORS}:
            base, number = buffer.start, 0
        else:
            base, number = 0, buffer.start
        key = buffer.space, number
        return Span(key, base + low, base + high, view.buffer, step, is_written, base)

    def _check_operands(self, step: Launch, touches: Sequence[Span]) -> None:
        views = step.operands
        for (i, a), (j, b) in itertools.combinations(enumerate(touches), 2):
            if not (a.is_written or b.is_written) or not _meet(a, b):
                continue
            bases = (a.base, b.base) if a.buffer != b.buffer else (0, 0)
            if not is_same_view(views[i], views[j]) and views_overlap(
                (views[i], a.is_written, bases[0]),
                (views[j], b.is_written, bases[1]),
                self.values,
                self.overlap_budget,
            ):
                raise EngineFormatError(
                    f"operands {i} and {j} overlap, and the step writes one of them"
                )

    # ---- steps among each other

    def _check_concurrency(self, steps: Sequence[Step], touches: Sequence[Sequence[Span]]) -> None:
        before = completed_before(steps)
        for _, group in itertools.groupby(range(len(before)), key=before.__getitem__):
            spans = itertools.chain.from_iterable(touches[number] for number in group)
            if (found := find_conflict(spans)) is not None:
                earlier, later = sorted(span.step for span in found)
                raise EngineFormatError(
                    f"steps {earlier} and {later} may run at once, and one writes memory that the "
                    "other accesses"
                )

    # ---- dimensions

    def _value(self, dim: Dim) -> int:
        value = evaluate_dim(dim, self.values)
        if not -(1 << 63) <= value < 1 << 63:
            raise EngineFormatError(f"the value of {dim} does not fit into 64 bits")
        return value

    def _evaluate(self, shape: Sequence[Dim]) -> list[int]:
        extents = [self._value(dim) for dim in shape]
        if any(not 0 <= extent <= MAX_EXTENT for extent in extents):
            raise EngineFormatError(
                f"the extents {extents} of a view must be from 0 to {MAX_EXTENT:,} "
                f"({Limit.MAX_EXTENT.name}){_text(self.values)}"
            )
        return extents


def _meet(a: Span, b: Span) -> bool:
    return a.memory_space_key == b.memory_space_key and a.low < b.high and b.low < a.high


def is_same_view(a: View, b: View) -> bool:
    """Return whether an elementwise kernel may read one view and write the other in place."""
    return (
        (a.buffer, a.offset, a.shape, a.strides) == (b.buffer, b.offset, b.shape, b.strides)
        and a.dtype.size_bytes == b.dtype.size_bytes
    )  # fmt: skip


def _text(values: Mapping[str, int]) -> str:
    """Return the end of a message: the values of the symbols, if there are any."""
    symbols = ", ".join(f"{name} = {value}" for name, value in values.items())
    return f", where {symbols}" if symbols else ""


# ---- two windows of one operand list

Operand = tuple["View", bool, int]
"""A view, whether it is written, and the start of its buffer."""


class ExactOverlapBudget:
    """Number of bytes of windows that may still be compared byte by byte."""

    def __init__(self) -> None:
        self._left = _MAX_ALL_EXACT_BYTES

    def take(self, size_bytes: int) -> bool:
        """Return whether two windows that span ``size_bytes`` may be compared byte by byte."""
        if size_bytes > min(_MAX_EXACT_BYTES, self._left):
            return False
        self._left -= size_bytes
        return True


def views_overlap(
    a: Operand, b: Operand, values: Mapping[str, int], budget: ExactOverlapBudget | None = None
) -> bool:
    """Return whether two windows share a byte, or are too irregular or too large to decide.

    The halo counts only for a window that is read: writing a window leaves its halo unchanged.
    """
    first, second = (_ByteExtent.of(operand, values) for operand in (a, b))
    if first.is_empty or second.is_empty:
        return False
    if first.end <= second.start or second.end <= first.start:
        return False
    if _are_disjoint_boxes(first, second):
        return False
    low = min(first.start, second.start)
    size = max(first.end, second.end) - low
    if not (budget or ExactOverlapBudget()).take(size):
        return True
    mask = np.zeros(size, np.bool_)
    windows = [extent.on(mask, low) for extent in (first, second)]
    if windows[0] is None or windows[1] is None:
        return True
    windows[0][...] = True
    return bool(windows[1].any())


@dataclass(frozen=True, slots=True)
class _ByteExtent:
    """Extent of a window at one set of values, including its halo if the halo counts."""

    start: int
    """Lowest byte of the window."""
    width: int
    """Size of an element in bytes."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """Strides in bytes, not negative; 0 for axes with one element."""

    @staticmethod
    def of(operand: Operand, values: Mapping[str, int]) -> _ByteExtent:
        view, is_written, base = operand
        width = view.dtype.size_bytes
        halo = view.halo if view.halo and not is_written else ((0, 0),) * len(view.shape)
        start = base + evaluate_dim(view.offset, values)
        shape: list[int] = []
        strides: list[int] = []
        is_empty = False
        for dim, step, (before, after) in zip(view.shape, view.strides, halo, strict=True):
            extent, stride = evaluate_dim(dim, values), evaluate_dim(step, values) * width
            total = extent + before + after
            is_empty = is_empty or total == 0
            # An axis with a negative stride covers the same bytes as with a positive one.
            start += min(-before * stride, (extent - 1 + after) * stride)
            shape.append(total)
            strides.append(0 if total == 1 else abs(stride))
        return _ByteExtent(start, width, (0,) if is_empty else tuple(shape), tuple(strides))

    @property
    def is_empty(self) -> bool:
        return 0 in self.shape

    @property
    def end(self) -> int:
        """Offset after the last byte."""
        pairs = zip(self.shape, self.strides, strict=True)
        return self.start + self.width + sum((extent - 1) * stride for extent, stride in pairs)

    def on(self, mask: NDArray[np.bool_], low: int) -> NDArray[np.bool_] | None:
        """Return the window in ``mask`` (from byte ``low``); None if it is too irregular."""
        kept = [(e, s) for e, s in zip(self.shape, self.strides, strict=True) if s]
        count = self.width * int(np.prod([e for e, _ in kept], dtype=object))
        if count > mask.size:
            return None  # elements overlap: not a window of a tensor
        shape = [*(e for e, _ in kept), self.width]
        strides = [*(s for _, s in kept), 1]
        return np.lib.stride_tricks.as_strided(mask[self.start - low :], shape, strides)


def _are_disjoint_boxes(a: _ByteExtent, b: _ByteExtent) -> bool:
    """Return whether two windows are boxes of one tensor that share no element.

    This is the case for the inputs of a concatenation in its result, and for an image and the
    padding next to it. True is a proof: the distance between the two windows is a distance along
    the axes of a larger window, no two elements of which share a byte, and the boxes do not
    intersect along one of these axes.
    """
    width = max(a.width, b.width)
    # The width itself: adjacent columns differ by it, and neither window has an axis along it.
    steps = sorted({width, *(s for e in (a, b) for s in e.strides if s)}, reverse=True)
    first, second = _box(a, steps), _box(b, steps)
    if len(steps) > _MAX_AXES or first is None or second is None:
        return False
    for gaps in _distances(b.start - a.start, steps):
        axes = list(zip(gaps, first, second, strict=True))
        together = [max(one, gap + other) - min(0, gap) for gap, one, other in axes]
        if any(gap >= one or gap + other <= 0 for gap, one, other in axes) and (
            _is_injective(together, steps, width)
        ):
            return True
    return False


def _box(extent: _ByteExtent, steps: Sequence[int]) -> list[int] | None:
    """Return the extents of a window along axes of descending strides; None if its axes differ.

    Axes that a view has merged are split if a stride of the other window requires it.
    """
    found = dict.fromkeys(steps, 1)
    for stride, count in zip(extent.strides, extent.shape, strict=True):
        if stride and found[stride] != 1:
            return None
        if stride:
            found[stride] = count
    for inner, outer in itertools.pairwise(reversed(steps)):
        rows, rest = divmod(found[inner] * inner, outer)
        if rows > 1 and not rest and not outer % inner and found[outer] == 1:
            found |= {outer: rows, inner: outer // inner}
    return list(found.values())


def _distances(gap: int, steps: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield the ways to divide a distance into steps of descending lengths."""
    if not steps:
        if not gap:
            yield ()
        return
    down, rest = divmod(gap, steps[0])
    for number, left in ((down, rest), (down + 1, rest - steps[0])):
        for inner in _distances(left, steps[1:]):
            yield number, *inner


def _is_injective(shape: Sequence[int], strides: Sequence[int], width: int) -> bool:
    """Return whether no two elements of a window share a byte, as far as nested strides show it."""
    reach = width
    for stride, extent in sorted((s, e) for s, e in zip(strides, shape, strict=True) if e > 1):
        if stride < reach:
            return False
        reach = stride * (extent - 1) + reach
    return True
