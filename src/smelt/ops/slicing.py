"""Parts of tensors taken, joined and padded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from smelt.errors import ShapeError
from smelt.ir import Array, Case, Operand
from smelt.ops._base import BuiltinOp
from smelt.ops._conformance_data import floats
from smelt.ops._index import integers
from smelt.ops._shape import (
    all_input_types,
    input_type,
    input_types,
    known,
    normalize_axis,
    optional_type,
    require_choice,
    require_rank,
    require_same_dtype,
    require_scalar,
    require_static,
    shape_text,
)
from smelt.ops._shape_operands import (
    MAXIMUM_DIMS,
    dims_at,
    input_at,
    ints_at,
    known_dims,
    present,
    sample,
)
from smelt.types import (
    DType,
    Limit,
    TensorType,
    assume_at_least,
    assume_divides,
    assume_equal,
    ceil_div,
    counted,
    is_never_negative,
    override,
    symbols_of,
)

if TYPE_CHECKING:
    from smelt.types import Dim, Shape, ValueType


_LONGEST: Final = Limit.MAX_TENSOR_BYTES.most
"""Upper bound of the extent of an axis: a tensor has at most as many bytes."""


class Slice(BuiltinOp):
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

    is_recipe_step = True

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        data, _, _ = input_types(self, inputs, 3, 5)
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
        lengths = [len(starts), len(ends), len(axes), len(steps)]
        if len(set(lengths)) > 1:
            texts = ", ".join(map(str, lengths))
            raise ShapeError(
                f"starts, ends, axes and steps of slice have the lengths {texts}; all must be equal"
            )
        bounds: dict[int, tuple[Dim, Dim, int]] = {}
        for start, end, listed_axis, listed_step in zip(starts, ends, axes, steps, strict=True):
            axis = normalize_axis(listed_axis, data.rank)
            if axis in bounds:
                raise ShapeError(f"axis {axis} is listed twice in the axes of slice")
            if listed_step == 0:
                raise ShapeError(f"the step of slice on axis {axis} must not be 0")
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
        axes, steps = input_at(inputs, 3), input_at(inputs, 4)
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
            "backwards from before the start": ([-9], [-(2**63)], [1], [-1]),
            "nothing": ([3], [1], [1], [1]),
            "steps larger than every extent": ([0, -1], [5, -9], [0, 2], [2**63 - 1, -(2**63)]),
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
    first = _clamp_bound(start, (0, high), extent, f"the start of the slice on axis {axis}")
    last = _clamp_bound(end, (low, high), extent, f"the end of the slice on axis {axis}")
    if step > 0 and isinstance(last, int) and not isinstance(first, int):
        raise ShapeError(
            f"the length of the slice from {first} to {last} on axis {axis} depends on symbols: "
            f"fix the value of {', '.join(sorted(symbols_of(first)))} in the model"
        )
    return first, last


def _clamp_bound(bound: Dim, limits: tuple[int, Dim], extent: Dim, what: str) -> Dim:
    """Return a bound clamped to ``limits`` and counted from the start of the axis.

    If symbols decide whether it is clamped, a guard assumes that it is not.
    """
    low, high = limits
    if isinstance(bound, int) and isinstance(extent, int) and isinstance(high, int):
        return min(max(bound + extent if bound < 0 else bound, low), high)
    # INT_MAX stands for the end, as does INT64_MAX, which no extent reaches.
    far = abs(bound) if isinstance(bound, int) else 0
    if far >= 1 << 62 or (far >= (1 << 31) - 1 and assume_at_least(far, extent, what)):
        return high if bound == far else low
    if is_never_negative(bound, least=1):
        assume_at_least(bound, 0, what)
    elif is_never_negative(-bound - 1, least=1):
        assume_at_least(-1, bound, f"{what}, which must be negative")
        bound = bound + extent
        if not is_never_negative(bound - low, least=1):
            raise _undecided(bound, low)
        assume_at_least(bound, low, what)
    else:
        raise ShapeError(
            f"the bound {bound} of slice is negative for some symbol values only: fix the value of "
            f"{', '.join(sorted(symbols_of(bound)))} in the model"
        )
    if not is_never_negative(high - bound, least=1) and not isinstance(extent, int):
        # For some symbol values only, the bound would be beyond the end and be clamped.
        raise _undecided(bound, high)
    return bound if assume_at_least(high, bound, f"the upper limit of {what}") else high


def _undecided(bound: Dim, limit: Dim) -> ShapeError:
    symbols = ", ".join(sorted(symbols_of(bound, limit)))
    return ShapeError(
        f"the bound {bound} of slice exceeds {limit} for some symbol values only: fix the value of "
        f"{symbols} in the model"
    )


class Split(BuiltinOp):
    """Consecutive parts of a tensor along an axis.

    Input 1 has the lengths of the parts. Without it the axis is split into ``num_outputs`` equal
    parts, and the last one is shorter if the extent is not divisible. With ``even`` such an extent
    is refused, as in ONNX before opset 18.

    Shapes: (data, split[parts]?) -> one result for each part.

    Dtypes: any; the lengths are int64.

    Raises ShapeError: when the lengths are not known, or do not add up to the extent of the axis.

    Source: ONNX Split-18.
    """

    is_recipe_step = True

    axis: int = 0
    """Axis that is split; a negative one counts from the end."""
    num_outputs: int = 0
    """Number of equal parts; 0 if input 1 has the lengths."""
    even: bool = False
    """Whether the extent must be divisible into equal parts."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        (data,) = input_types(self, inputs, 1, 2)
        axis = normalize_axis(self.axis, data.rank)
        lengths = dims_at(self, inputs, 1, "the lengths of the parts")
        if lengths is None:
            lengths = self._equal_lengths(data.shape[axis])
        total: Dim = 0
        for length in lengths:
            if isinstance(length, int) and length < 0:
                raise ShapeError(
                    f"the length of a part of split is {length}; it must be at least 0"
                )
            total = total + length
        if not assume_equal(
            data.shape[axis],
            total,
            f"axis {axis} of input 0, and the sum of the lengths of its parts",
        ):
            raise ShapeError(
                f"the lengths {shape_text(lengths)} of the parts of split do not add up to the "
                f"extent {data.shape[axis]}"
            )
        shapes = ((*data.shape[:axis], n, *data.shape[axis + 1 :]) for n in lengths)
        return tuple(TensorType(data.dtype, s) for s in shapes)

    def _equal_lengths(self, extent: Dim) -> tuple[Dim, ...]:
        """Return the lengths of ``num_outputs`` equal parts. Raises ShapeError."""
        parts = self.num_outputs
        if not 1 <= parts <= 1 << 16:
            raise ShapeError(
                f"num_outputs of split is {parts}; without the lengths of the parts it must be "
                "from 1 to 65536"
            )
        if self.even and not assume_divides(parts, extent, "the extent of the axis of split"):
            raise ShapeError(
                f"the extent of the axis of split is {extent}; it must be a multiple of the number "
                f"of parts, {parts}"
            )
        length = ceil_div(extent, parts)
        if isinstance(length, int) and isinstance(extent, int):
            last = extent - length * (parts - 1)
            if last < 0:
                raise ShapeError(
                    f"the extent of the axis of split is {extent}; it is too small for {parts} "
                    f"parts of length {length}, even if the last part is shorter"
                )
            return (*(length,) * (parts - 1), last)
        exact = extent // parts
        if exact * parts == extent:
            return (exact,) * parts
        return (*(length,) * (parts - 1), extent - length * (parts - 1))

    @override
    def infer_dims(self, inputs: Sequence[Operand | None], /) -> tuple[Dim, ...] | None:
        dims, lengths = known_dims(inputs, 0), known_dims(inputs, 1)
        if dims is None:
            return None
        first = (lengths or self._equal_lengths(len(dims)))[0]
        return dims[:first] if isinstance(first, int) else None

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        data, part_lengths = present(inputs, 0), input_at(inputs, 1)
        if part_lengths is None:
            dims = self._equal_lengths(data.shape[self.axis])
            part_lengths = np.array(dims, np.int64)
        ends = np.cumsum(part_lengths)[:-1]
        return tuple(p.copy() for p in np.split(data, ends, self.axis))

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        lengths = np.array([1, 4, 2], np.int64)
        one = frozenset({1})
        yield Case("lengths", cls(1), (sample(2, 7, 3), lengths), constants=one)
        yield Case("lengths, last axis", cls(-1), (sample(3, 7), lengths), constants=one)
        yield Case("equal parts", cls(1, 3), (sample(2, 6),))
        yield Case("a shorter last part", cls(0, 3), (sample(7, 2),))
        yield Case("even parts", cls(1, 3, even=True), (sample(2, 6),))
        yield Case("an empty part", cls(0), (sample(3), np.array([3, 0])), constants=one)
        yield Case("int64", cls(0, 2), (sample(4, dtype="int64"),))
        yield Case("float16", cls(2, 2), (sample(1, 2, 4, dtype="float16"),))


class Crop(BuiltinOp):
    """The part of x that has the extents of ``like`` from ``axis`` on. Inputs are x and like.

    Shapes: both inputs have the same rank; the result has the extents of x before ``axis`` and
    those of like from ``axis`` on.

    Dtypes: any; the result's is x's.

    Raises ShapeError: when the ranks differ, an offset is missing or the part extends beyond x.

    Source: Caffe CropLayer.
    """

    axis: int = 2
    """First axis that is cropped."""
    offset: tuple[int, ...] = ()
    """Start of the part: empty for 0, one number for all axes, or one for each cropped axis."""

    def offsets(self, rank: int) -> tuple[int, ...]:
        """Return the start of the part on each axis of a tensor of ``rank``. Raises ShapeError."""
        axis = normalize_axis(self.axis, rank)
        count = rank - axis
        numbers = self.offset or (0,)
        numbers = numbers * count if len(numbers) == 1 else numbers
        if len(numbers) != count or min(numbers) < 0:
            raise ShapeError(
                f"offset is {self.offset}; it must be empty, one number for all cropped axes, or "
                f"one for each of them ({count}), and none may be negative"
            )
        return (*[0] * axis, *numbers)

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        x, like = input_types(self, inputs, 2)
        require_rank(like, "the second input of crop", x.rank)
        first, offsets = normalize_axis(self.axis, x.rank), self.offsets(x.rank)
        for axis in range(first, x.rank):
            start, extent, available = offsets[axis], like.shape[axis], x.shape[axis]
            if not assume_at_least(available, start + extent, f"axis {axis} of inputs 0 and 1"):
                raise ShapeError(
                    f"axis {axis} of input 0 has {counted(available, 'element')}; a crop of "
                    f"{counted(extent, 'element')} from offset {start} does not fit"
                )
        return (TensorType(x.dtype, (*x.shape[:first], *like.shape[first:])),)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, like = present(inputs, 0), present(inputs, 1)
        first = self.axis % x.ndim
        parts = [slice(None)] * first
        for start, extent in zip(self.offsets(x.ndim)[first:], like.shape[first:], strict=True):
            parts.append(slice(start, start + extent))
        return (x[tuple(parts)].copy(),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        x = floats(2, 5, 9, 11)
        yield Case("spatial", cls(), (x, floats(2, 3, 7, 6)))
        yield Case("one_offset", cls(offset=(2,)), (x, floats(2, 3, 7, 6)))
        yield Case("offsets", cls(offset=(1, 4)), (x, floats(2, 3, 7, 6)))
        yield Case("channels_too", cls(axis=1, offset=(2, 0, 3)), (x, floats(2, 3, 9, 5)))
        yield Case("last_axis", cls(axis=-1, offset=(3,)), (x, floats(1, 1, 1, 8)))
        yield Case("everything", cls(axis=0), (x, x))


class Concat(BuiltinOp):
    """The inputs concatenated along an axis.

    Shapes: equal except for ``axis``, along which the result has the sum of the extents.

    Dtypes: any, the same for all.

    Raises ShapeError: when an input is absent, an extent of another axis differs, or ``axis`` is
    out of range.

    Source: ONNX Concat-13.
    """

    is_recipe_step = True

    axis: int
    """Axis along which the inputs are joined; a negative one counts from the end."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        kinds = all_input_types(self, inputs, 1 << 16, frozenset(DType))
        first = kinds[0]
        axis = normalize_axis(self.axis, first.rank)
        shape = list(first.shape)
        for index, kind in enumerate(kinds[1:], 1):
            require_rank(kind, f"input {index} of concat", first.rank)
            for position, extent in enumerate(kind.shape):
                if position == axis:
                    shape[axis] = shape[axis] + extent
                elif not assume_equal(
                    shape[position], extent, f"axis {position} of inputs 0 and {index}"
                ):
                    texts = f"{shape_text(first.shape)} and {shape_text(kind.shape)}"
                    raise ShapeError(
                        f"shapes {texts} differ on an axis other than the concatenated axis {axis}"
                    )
                else:
                    shape[position] = known(shape[position], extent)
        return (TensorType(first.dtype, tuple(shape)),)

    @override
    def infer_dims(self, inputs: Sequence[Operand | None], /) -> tuple[Dim, ...] | None:
        parts = [known_dims(inputs, i) for i in range(len(inputs))]
        known_parts = [p for p in parts if p is not None]
        if len(known_parts) < len(parts) or sum(map(len, known_parts)) > MAXIMUM_DIMS:
            return None
        return tuple(d for p in known_parts for d in p)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        arrays = [present(inputs, i) for i in range(len(inputs))]
        return (np.concatenate(arrays, self.axis),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield Case("channels", cls(1), (sample(2, 3, 4, 4), sample(2, 5, 4, 4), sample(2, 1, 4, 4)))
        yield Case("last axis", cls(-1), (sample(3, 2), sample(3, 7)))
        yield Case("first axis", cls(0), (sample(1, 4), sample(2, 4)))
        yield Case("one input", cls(0), (sample(3),))
        yield Case("an empty part", cls(0), (sample(0, 2), sample(3, 2)))
        for dtype in ("float16", "int64", "bool", "uint8"):
            yield Case(dtype, cls(1), (sample(2, 2, dtype=dtype), sample(2, 3, dtype=dtype)))


class Pad(BuiltinOp):
    """The tensor with elements added at both ends of axes; negative pads remove elements.

    ``mode`` selects the added elements: ``constant`` adds the value of input 2 (0 if absent),
    ``edge`` repeats the outermost element, ``reflect`` mirrors the axis without the outermost
    element, ``wrap`` continues at the other end.

    Shapes: (data, pads[2k], value scalar?, axes[k]?) -> data's extents plus pads; the pads are
    those at the start of all axes, then those at the end; k is the rank if ``axes`` is absent.

    Dtypes: any; the value has data's type, pads and axes are integers.

    Raises ShapeError: when the pads are not known or not two for each axis, an extent of the
    result is negative, or an axis has no elements to repeat.

    Source: ONNX Pad-24.
    """

    is_recipe_step = True

    mode: str = "constant"
    """constant, edge, reflect or wrap."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        data, _ = input_types(self, inputs, 2, 4)
        require_choice(self.mode, ("constant", "edge", "reflect", "wrap"), "pad mode")
        value = optional_type(self, inputs, 2)
        require_same_dtype(data, value)
        require_scalar(value, "the value of pad")
        pads = dims_at(self, inputs, 1, "the pads") or ()
        axes = ints_at(self, inputs, 3, "the axes")
        pairs = pair_pads(data.rank, pads, axes)
        shape = [d + before + after for d, (before, after) in zip(data.shape, pairs, strict=True)]
        for axis, (start, end) in enumerate(pairs):
            before, extent = data.shape[axis], shape[axis]
            what = f"axis {axis} of input 0, whose elements are repeated"
            if isinstance(extent, int) and extent < 0:
                raise ShapeError(
                    f"negative pads {shape_text(pads)} remove more elements than {data} has"
                )
            repeats = self.mode != "constant" and extent != 0 and (start, end) != (0, 0)
            if repeats and not assume_at_least(before, 1, what):
                raise ShapeError(f"pad mode {self.mode} has no elements to repeat in {data}")
        return (TensorType(data.dtype, tuple(shape)),)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        data, axes = present(inputs, 0), input_at(inputs, 3)
        pads = tuple(int(p) for p in present(inputs, 1))
        listed = None if axes is None else tuple(int(a) for a in axes)
        for axis, pair in enumerate(pair_pads(data.ndim, pads, listed)):
            before, after = require_static(pair, "pads")
            data = self._pad_axis(data, axis, before, after, input_at(inputs, 2))
        return (data.copy(),)

    def _pad_axis(
        self, data: Array, axis: int, before: int, after: int, value: Array | None
    ) -> Array:
        """Return data padded along one axis."""
        if self.mode == "wrap" and min(before, after) < 0:
            # Elements are removed before the axis is continued, as in ONNX Runtime.
            remaining = range(max(0, -before), data.shape[axis] - max(0, -after))
            data, before, after = np.take(data, remaining, axis), max(before, 0), max(after, 0)
        extent = data.shape[axis]
        positions = integers(-before, extent + after)
        if self.mode == "constant":
            inside = (positions >= 0) & (positions < extent)
            shape = (*data.shape[:axis], len(positions), *data.shape[axis + 1 :])
            fill = data.dtype.type(0) if value is None else value.reshape(())
            padded = np.full(shape, fill, data.dtype)
            kept = np.flatnonzero(inside)
            np.moveaxis(padded, axis, 0)[kept] = np.moveaxis(data, axis, 0)[positions[kept]]
            return padded
        if self.mode == "edge":
            positions = np.clip(positions, 0, extent - 1)
        elif self.mode == "wrap":
            positions = positions % extent
        else:
            period = max(2 * (extent - 1), 1)
            folded: Array = positions % period
            positions = np.minimum(folded, period - folded) if extent > 1 else folded * 0
        return np.take(data, positions, axis)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        one = frozenset({1})
        frame = np.array([0, 0, 1, 2, 0, 0, 3, 1], np.int64)
        for mode in ("constant", "edge", "reflect", "wrap"):
            yield Case(mode, cls(mode), (sample(1, 2, 4, 5), frame), constants=one)
        value = np.array(-2.5, np.float32)
        yield Case("value", cls(), (sample(2, 3), np.array([1, 0, 0, 2]), value), constants=one)
        negative = np.array([-1, 2, 0, -2], np.int64)
        yield Case("negative pads", cls(), (sample(3, 5), negative), constants=one)
        listed = (sample(2, 3, 4), np.array([1, 2, 0, 1]), None, np.array([-1, 0]))
        yield Case("axes", cls(), listed, constants=frozenset({1, 3}))
        yield Case("from nothing", cls(), (sample(0, 2), np.array([2, 0, 1, 1])), constants=one)
        for dtype in ("float16", "int64", "int8", "bool"):
            array = sample(3, 4, dtype=dtype)
            yield Case(dtype, cls(), (array, np.array([0, 1, 2, 0])), constants=one)


def pair_pads(rank: int, pads: Shape, axes: tuple[int, ...] | None) -> list[tuple[Dim, Dim]]:
    """Return the pads before and after each axis. Raises ShapeError."""
    listed = tuple(range(rank)) if axes is None else tuple(normalize_axis(a, rank) for a in axes)
    if len(pads) != 2 * len(listed) or len(set(listed)) < len(listed):
        raise ShapeError(
            f"pads {shape_text(pads)} must have two numbers for each of the axes {listed}, and no "
            "axis may occur twice"
        )
    pairs: list[tuple[Dim, Dim]] = [(0, 0)] * rank
    for index, axis in enumerate(listed):
        pairs[axis] = (pads[index], pads[index + len(listed)])
    return pairs
