"""Slice: strided ranges of elements along axes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np

from smelt.errors import ShapeError
from smelt.ir import Case, Op
from smelt.ops._shape import input_type, normalize_axis, require_inputs
from smelt.ops._shape_operands import (
    dims_at,
    ints_at,
    known_dims,
    optional_array,
    present,
    sample,
)
from smelt.types import (
    Limit,
    TensorType,
    assume_at_least,
    ceil_div,
    is_never_negative,
    override,
    symbols_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array, Operand
    from smelt.types import Dim, ValueType

_LONGEST: Final = Limit.MAX_TENSOR_BYTES.most
"""Upper bound of the extent of an axis: a tensor has at most as many bytes."""


@dataclass(frozen=True)
class Slice(Op):
    """The elements from ``starts`` to ``ends``, exclusive, with strides ``steps`` along ``axes``.

    Negative bounds count from the end; bounds are clamped to the axis. On an axis of symbolic
    extent, a bound must be inside the axis for all symbol values of at least 1; otherwise the error
    asks to fix the symbol. On an axis of known extent, a symbolic bound is assumed to be inside,
    and a guard refuses a build or run with a larger value. (A typical case is a table of positions,
    which is as long as the longest sequence.)

    Shapes: (data, starts[k], ends[k], axes[k]?, steps[k]?) -> data's with other extents; without
    ``axes`` the bounds are those of the first axes, without ``steps`` all steps are 1.

    Dtypes: any; the other inputs are int32 or int64.

    Raises ShapeError: when a bound is not known, a step is 0, an axis is listed twice, or clamping
    depends on a symbol.

    Source: ONNX Slice-13.
    """

    name: ClassVar[str] = "slice"

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_inputs(self, inputs, 3, 5)
        data = input_type(self, inputs, 0)
        shape = list(data.shape)
        for axis, (start, end, step) in self.bounds(inputs).items():
            extent = end - start if step > 0 else start - end
            count = ceil_div(extent, abs(step))
            shape[axis] = max(count, 0) if isinstance(count, int) else count
        return (TensorType(data.dtype, tuple(shape)),)

    def bounds(self, inputs: Sequence[Operand | None]) -> dict[int, tuple[Dim, Dim, int]]:
        """Return first index, end and step by axis, counted from the start. Raises ShapeError."""
        data = input_type(self, inputs, 0)
        starts = dims_at(self, inputs, 1, "starts") or ()
        ends = dims_at(self, inputs, 2, "ends") or ()
        axes = ints_at(self, inputs, 3, "axes")
        axes = tuple(range(len(starts))) if axes is None else axes
        steps = ints_at(self, inputs, 4, "steps")
        steps = (1,) * len(starts) if steps is None else steps
        if len({len(starts), len(ends), len(axes), len(steps)}) > 1:
            raise ShapeError("starts, ends, axes and steps of slice have different lengths")
        bounds: dict[int, tuple[Dim, Dim, int]] = {}
        for start, end, listed_axis, listed_step in zip(starts, ends, axes, steps, strict=True):
            axis = normalize_axis(listed_axis, data.rank)
            if axis in bounds or listed_step == 0:
                raise ShapeError(f"slice has axis {axis} twice or a step of 0 on it")
            # No axis is longer than this step, so it selects one element, as any larger step does.
            step = max(-_LONGEST, min(listed_step, _LONGEST))
            bounds[axis] = (*_clamp(start, end, step, data.shape[axis], axis), step)
        return bounds

    @override
    def infer_dims(self, inputs: Sequence[Operand | None], /) -> tuple[Dim, ...] | None:
        dims = known_dims(inputs, 0)
        kind = input_type(self, inputs, 0)
        if dims is None or kind.rank != 1:
            return None
        start, end, step = self.bounds(inputs).get(0, (0, len(dims), 1))
        if not isinstance(start, int) or not isinstance(end, int):
            return None
        return dims[slice(start, None if end < 0 else end, step)]

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        data, starts, ends = (present(inputs, i) for i in range(3))
        axes, steps = optional_array(inputs, 3), optional_array(inputs, 4)
        axes = np.arange(len(starts)) if axes is None else axes
        steps = np.ones(len(starts), np.int64) if steps is None else steps
        index = [slice(None)] * data.ndim
        for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
            first, last = _clamp(int(start), int(end), int(step), data.shape[axis], int(axis))
            stop = None if isinstance(last, int) and last < 0 else last
            index[axis] = slice(first, stop, int(step))
        return (data[tuple(index)].copy(),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        rows: dict[str, tuple[list[int], list[int], list[int] | None, list[int] | None]] = {
            "two axes": ([0, 1], [3, 4], [0, 1], [1, 2]),
            "axes and steps absent": ([1, 0, 2], [4, 3, 5], None, None),
            "negative bounds": ([-3], [-1], [-1], [1]),
            "to the end": ([2], [2**63 - 1], [2], [1]),
            "backwards": ([-1], [-(2**63)], [1], [-1]),
            "backwards in steps": ([20, 3], [-9, 0], [2, 1], [-2, -3]),
            "beyond the extents": ([-100], [100], [0], [3]),
            "backwards from before the front": ([-9], [-(2**63)], [1], [-1]),
            "nothing": ([3], [1], [1], [1]),
            "in steps beyond every extent": ([0, -1], [5, -9], [0, 2], [2**63 - 1, -(2**63)]),
        }
        for label, (starts, ends, axes, steps) in rows.items():
            lists = (starts, ends, axes, steps)
            arrays = tuple(None if x is None else np.array(x, np.int64) for x in lists)
            while arrays[-1] is None:
                arrays = arrays[:-1]
            constants = frozenset(range(1, len(arrays) + 1))
            yield Case(label, cls(), (sample(5, 4, 6), *arrays), constants=constants)
        one = (np.array([1]), np.array([4]))
        for dtype in ("float16", "int64", "bool"):
            yield Case(dtype, cls(), (sample(5, dtype=dtype), *one), constants=frozenset({1, 2}))


def _clamp(start: Dim, end: Dim, step: int, extent: Dim, axis: int) -> tuple[Dim, Dim]:
    """Return both bounds clamped to the axis and counted from the start; an end may be -1."""
    low, high = (0, extent) if step > 0 else (-1, extent - 1)
    first = _clamp_bound(start, (0, high), extent, f"the start of axis {axis}")
    last = _clamp_bound(end, (low, high), extent, f"the end of axis {axis}")
    if step > 0 and isinstance(last, int) and not isinstance(first, int):
        raise ShapeError(f"the slice from {first} to {last} depends on a symbol: fix its value")
    return first, last


def _clamp_bound(bound: Dim, limits: tuple[int, Dim], extent: Dim, what: str) -> Dim:
    """Return a bound clamped to ``limits`` and counted from the start of the axis.

    If symbols decide whether it is clamped, a guard assumes that it is not.
    """
    low, high = limits
    if isinstance(bound, int) and isinstance(extent, int) and isinstance(high, int):
        return min(max(bound + extent if bound < 0 else bound, low), high)
    if isinstance(bound, int) and abs(bound) >= (1 << 31) - 1:
        return high if bound > 0 else low
    if is_never_negative(bound, least=1):
        assume_at_least(bound, 0, what)
    elif is_never_negative(-bound - 1, least=1):
        assume_at_least(-1, bound, what)
        bound = bound + extent
        if not is_never_negative(bound - low, least=1):
            raise _undecided(bound, low)
        assume_at_least(bound, low, what)
    else:
        raise ShapeError(
            f"whether the bound {bound} is negative depends on a symbol: fix its value"
        )
    if not is_never_negative(high - bound, least=1) and not isinstance(extent, int):
        # For some symbol values only, the bound would be beyond the end and be clamped.
        raise _undecided(bound, high)
    return bound if assume_at_least(high, bound, what) else high


def _undecided(bound: Dim, limit: Dim) -> ShapeError:
    symbols = ", ".join(sorted(symbols_of(bound, limit)))
    return ShapeError(
        f"whether the bound {bound} of slice exceeds {limit} depends on {symbols}: fix its value"
    )
