"""The same elements in another shape."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from smelt.errors import ShapeError
from smelt.ir import Array, Case, Operand
from smelt.ops._base import BuiltinOp, Elementwise
from smelt.ops._shape import (
    broadcast_shapes,
    input_type,
    input_types,
    normalize_axis,
    require_inputs,
    require_static,
    shape_text,
)
from smelt.ops._shape_operands import (
    MAXIMUM_DIMS,
    count_elements,
    dims_at,
    divide_dims,
    input_at,
    ints_at,
    known_dims,
    present,
    sample,
)
from smelt.types import TensorType, assume_at_least, assume_equal, is_never_negative, override

if TYPE_CHECKING:
    from smelt.types import Dim, Shape, ValueType


class Identity(Elementwise):
    """The input itself.

    Shapes: the input's.

    Dtypes: any.

    Raises ShapeError: when there is not exactly one input.

    Source: ONNX Identity-21.
    """

    is_recipe_step = True

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_inputs(self, inputs, 1)
        operand = input_at(inputs, 0)
        return (operand.type if operand else input_type(self, inputs, 0),)

    @override
    def infer_dims(self, inputs: Sequence[Operand | None], /) -> tuple[Dim, ...] | None:
        return known_dims(inputs, 0)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        return (present(inputs, 0).copy(),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        for dtype in ("float32", "float16", "int64", "bool"):
            yield Case(dtype, cls(), (sample(2, 3, 5, dtype=dtype),))
        yield Case("scalar", cls(), (sample(),))
        yield Case("no elements", cls(), (sample(2, 0),))


class Reshape(BuiltinOp):
    """The same elements, in order, in another shape.

    In the shape, -1 is inferred from the number of elements, and 0 copies the extent of that axis
    of data, unless ``allowzero`` is set.

    Shapes: (data, shape[rank]) -> shape.

    Dtypes: any; the shape is int64.

    Raises ShapeError: when the shape is not known, has more than one -1, or has a different number
    of elements.

    Source: ONNX Reshape-21.
    """

    is_recipe_step = True

    allowzero: int = 0
    """Whether a 0 in the shape means an extent of 0."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        data, _ = input_types(self, inputs, 2)
        wanted = dims_at(self, inputs, 1, "the shape") or ()
        return (TensorType(data.dtype, self.resolve(data.shape, wanted)),)

    def resolve(self, shape: Shape, wanted: Shape) -> Shape:
        """Return ``wanted`` with 0 and -1 resolved for data of ``shape``. Raises ShapeError."""
        resolved = list(wanted)
        for axis, extent in enumerate(wanted):
            if extent == 0 and not self.allowzero:
                if axis >= len(shape):
                    raise ShapeError(
                        f"element {axis} of the shape {shape_text(wanted)} is 0, which copies axis "
                        f"{axis}, but the input {shape_text(shape)} has no such axis"
                    )
                resolved[axis] = shape[axis]
            if isinstance(extent, int) and extent < -1:
                raise ShapeError(f"reshape to {shape_text(wanted)} has an extent below -1")
        if wanted.count(-1) > 1:
            raise ShapeError(f"reshape to {shape_text(wanted)} has more than one -1")
        self._assume_positive(shape, wanted)
        if -1 in wanted:
            unknown = wanted.index(-1)
            resolved[unknown] = self._remainder(shape, resolved, unknown)
        elif not _may_be_equal(count_elements(tuple(resolved)), count_elements(shape)):
            raise self._misfit(shape, wanted)
        return tuple(resolved)

    def _assume_positive(self, shape: Shape, wanted: Shape) -> None:
        """Record guards that symbolic extents are not 0 at run time, which would copy an axis.

        No guard is needed if the copied axis is 0 at the same time. Raises ShapeError when an
        extent is known not to be positive.
        """
        for axis, extent in enumerate(wanted):
            if isinstance(extent, int) or self.allowzero:
                continue
            copied = shape[axis] if axis < len(shape) else 0
            if isinstance(divide_dims(extent, copied), int):
                continue
            if not assume_at_least(
                extent, 1, f"element {axis} of the shape (0 would copy an extent of the input)"
            ):
                raise ShapeError(
                    f"reshape to {shape_text(wanted)} has the extent {extent}; it must be at least "
                    "1"
                )

    def _remainder(self, shape: Shape, resolved: list[Dim], unknown: int) -> Dim:
        """Return the extent that -1 at position ``unknown`` stands for. Raises ShapeError."""
        # Extents that occur in both shapes cancel, also when they are symbolic.
        kept = list(shape)
        others: list[Dim] = []
        for extent in (*resolved[:unknown], *resolved[unknown + 1 :]):
            if extent in kept:
                kept.remove(extent)
            else:
                others.append(extent)
        total, known = count_elements(tuple(kept)), count_elements(tuple(others))
        quotient = divide_dims(total, known)
        if quotient is None and not (isinstance(total, int) and isinstance(known, int)):
            raise ShapeError(
                f"the -1 of {shape_text(tuple(resolved))} cannot be inferred for "
                f"{shape_text(shape)}: the number of elements, {total}, is not known to be a "
                f"multiple of {known}; give every extent of the shape, or fix the values of the "
                "symbols"
            )
        what = "the element counts of input 0 and of the result"
        if quotient is None or not (
            assume_at_least(known, 1, "the product of the extents other than -1")
            and assume_equal(total, quotient * known, what)
        ):
            raise self._misfit(shape, tuple(resolved))
        return quotient

    @staticmethod
    def _misfit(shape: Shape, wanted: Shape) -> ShapeError:
        return ShapeError(
            f"shape {shape_text(shape)} cannot be reshaped to {shape_text(wanted)}: the numbers of "
            "elements do not match"
        )

    @override
    def infer_dims(self, inputs: Sequence[Operand | None], /) -> tuple[Dim, ...] | None:
        wanted = known_dims(inputs, 1)
        return known_dims(inputs, 0) if wanted is not None and len(wanted) <= 1 else None

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        data = present(inputs, 0)
        shape = self.resolve(data.shape, tuple(int(x) for x in present(inputs, 1)))
        return (data.reshape(require_static(shape, "the shape")).copy(),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        shapes = {
            "flat": [24],
            "more axes": [2, 2, 3, 2],
            "an unknown extent": [4, -1],
            "a copied extent": [0, -1],
            "copied extents": [0, 0, 2, 2],
        }
        one = frozenset({1})
        for label, shape in shapes.items():
            yield Case(label, cls(), (sample(2, 3, 4), np.array(shape, np.int64)), constants=one)
        to_scalar = (sample(1, 1), np.array([], np.int64))
        yield Case("to a scalar", cls(), to_scalar, constants=one)
        yield Case("from a scalar", cls(), (sample(), np.array([1, 1])), constants=one)
        empty = (sample(0, 3, 4), np.array([3, 4, 0]))
        yield Case("zero is zero", cls(allowzero=1), empty, constants=one)
        yield Case("no elements, copied", cls(), (sample(0, 3), np.array([0, 1, 3])), constants=one)
        for dtype in ("float16", "int64", "bool"):
            array = sample(2, 6, dtype=dtype)
            yield Case(dtype, cls(), (array, np.array([3, -1])), constants=one)


def _may_be_equal(a: Dim, b: Dim) -> bool:
    """Return whether two counts are equal for some positive symbol values; record a guard."""
    gap = a - b
    if is_never_negative(gap - 1, least=1) or is_never_negative(-gap - 1, least=1):
        return False
    return assume_equal(b, a, "the element counts of input 0 and of the result")


class Flatten(BuiltinOp):
    """The tensor as a matrix: axes before ``axis`` become rows, the other axes columns.

    Shapes: (data) -> [product of the extents before ``axis``, product of the others].

    Dtypes: any.

    Raises ShapeError: when ``axis`` is outside the rank.

    Source: ONNX Flatten-21.
    """

    is_recipe_step = True

    axis: int = 1
    """First axis of the columns, from 0 to the rank; a negative one counts from the end."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        (data,) = input_types(self, inputs, 1)
        if not -data.rank <= self.axis <= data.rank:
            raise ShapeError(
                f"axis is {self.axis}; for an input of rank {data.rank} it must be from "
                f"{-data.rank} to {data.rank}"
            )
        split = self.axis + data.rank if self.axis < 0 else self.axis
        rows, columns = data.shape[:split], data.shape[split:]
        return (TensorType(data.dtype, (count_elements(rows), count_elements(columns))),)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        data = present(inputs, 0)
        split = self.axis + data.ndim if self.axis < 0 else self.axis
        rows = int(np.prod(data.shape[:split], dtype=np.int64))
        columns = int(np.prod(data.shape[split:], dtype=np.int64))
        return (data.reshape(rows, columns).copy(),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        for axis in (0, 1, 2, 4, -1, -4):
            yield Case(f"axis {axis}", cls(axis), (sample(2, 3, 2, 5),))
        yield Case("vector", cls(), (sample(5),))
        yield Case("scalar", cls(0), (sample(),))
        yield Case("no elements", cls(), (sample(0, 3, 4),))
        yield Case("float16", cls(), (sample(2, 3, 2, dtype="float16"),))
        yield Case("int64", cls(), (sample(2, 3, 2, dtype="int64"),))


class Squeeze(BuiltinOp):
    """The tensor without some axes of extent 1.

    Shapes: (data, axes[k]?) -> data's without those axes, or without all axes of extent 1 if
    ``axes`` is absent. An axis may be listed twice.

    Dtypes: any; the axes are int64.

    Raises ShapeError: when an axis does not have extent 1, or the axes are not known.

    Source: ONNX Squeeze-21.
    """

    is_recipe_step = True

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        (data,) = input_types(self, inputs, 1, 2)
        axes = ints_at(self, inputs, 1, "the axes")
        if axes is None:
            return (TensorType(data.dtype, _without_ones(data.shape)),)
        removed = {normalize_axis(a, data.rank) for a in axes}
        for axis in removed:
            if not assume_equal(data.shape[axis], 1, f"the removed axis {axis} of input 0"):
                raise ShapeError(
                    f"squeeze cannot remove axis {axis} of {shape_text(data.shape)}: its extent is "
                    "not 1"
                )
        kept = tuple(d for i, d in enumerate(data.shape) if i not in removed)
        return (TensorType(data.dtype, kept),)

    @override
    def infer_dims(self, inputs: Sequence[Operand | None], /) -> tuple[Dim, ...] | None:
        return known_dims(inputs, 0)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        data, axes = present(inputs, 0), input_at(inputs, 1)
        removed = None if axes is None else tuple({int(a) % data.ndim for a in axes})
        return (np.squeeze(data, removed).copy(),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        one = frozenset({1})
        yield Case("every axis of extent 1", cls(), (sample(1, 3, 1, 2),))
        yield Case("one axis", cls(), (sample(1, 3, 1), np.array([0])), constants=one)
        yield Case("negative axis", cls(), (sample(1, 3, 1), np.array([-1])), constants=one)
        yield Case("two axes", cls(), (sample(1, 3, 1), np.array([2, 0])), constants=one)
        yield Case("an axis twice", cls(), (sample(1, 3, 1), np.array([2, -1])), constants=one)
        yield Case("to a scalar", cls(), (sample(1, dtype="int64"), np.array([0])), constants=one)
        half = sample(2, 1, dtype="float16")
        yield Case("float16", cls(), (half, np.array([1])), constants=one)


def _without_ones(shape: Shape) -> Shape:
    """Return the extents other than 1; guards require that symbolic extents are not 1."""
    for axis, extent in enumerate(shape):
        if not isinstance(extent, int):
            assume_at_least(extent, 2, f"axis {axis} of input 0, which squeeze without axes keeps")
    return tuple(extent for extent in shape if extent != 1)


class Unsqueeze(BuiltinOp):
    """The tensor with axes of extent 1 inserted.

    Shapes: (data, axes[k]) -> data's with those axes, which are positions in the result.

    Dtypes: any; the axes are int64.

    Raises ShapeError: when the axes are not known, have duplicates, or are out of range for the
    result.

    Source: ONNX Unsqueeze-21.
    """

    is_recipe_step = True

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        data, _ = input_types(self, inputs, 2)
        axes = ints_at(self, inputs, 1, "the axes", allows_scalar=True) or ()
        rank = data.rank + len(axes)
        inserted = {normalize_axis(a, rank) for a in axes}
        if len(inserted) < len(axes):
            raise ShapeError(f"the axes of unsqueeze have duplicates: {axes}")
        extents = iter(data.shape)
        shape = tuple(1 if i in inserted else next(extents) for i in range(rank))
        return (TensorType(data.dtype, shape),)

    @override
    def infer_dims(self, inputs: Sequence[Operand | None], /) -> tuple[Dim, ...] | None:
        axes = known_dims(inputs, 1)
        one_axis = axes is not None and input_type(self, inputs, 0).rank + len(axes) <= 1
        return known_dims(inputs, 0) if one_axis else None

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        axes = tuple(int(a) for a in np.ravel(present(inputs, 1)))
        return (np.expand_dims(present(inputs, 0), axes).copy(),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        one = frozenset({1})
        rows = {"first": [0], "last": [-1], "two": [2, 0], "negative pair": [-1, -3], "none": []}
        for label, axes in rows.items():
            yield Case(label, cls(), (sample(3, 4), np.array(axes, np.int64)), constants=one)
        yield Case("scalar", cls(), (sample(dtype="int64"), np.array([0])), constants=one)
        half = sample(3, dtype="float16")
        yield Case("float16", cls(), (half, np.array([0, 1])), constants=one)
        yield Case("no elements", cls(), (sample(0, dtype="bool"), np.array([1])), constants=one)


class Expand(BuiltinOp):
    """The tensor broadcast with a shape; an extent of 1 in the shape keeps that of data.

    Shapes: (data, shape[k]) -> the shape to which both broadcast.

    Dtypes: any; the shape is int64.

    Raises ShapeError: when the shape is not known or does not broadcast with data's.

    Source: ONNX Expand-13.
    """

    is_recipe_step = True

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        data, _ = input_types(self, inputs, 2)
        shape = dims_at(self, inputs, 1, "the shape") or ()
        for extent in shape:
            if isinstance(extent, int) and extent < 0:
                raise ShapeError(f"the shape {shape_text(shape)} of expand has a negative extent")
        return (TensorType(data.dtype, broadcast_shapes(data.shape, shape)),)

    @override
    def infer_dims(self, inputs: Sequence[Operand | None], /) -> tuple[Dim, ...] | None:
        dims, shape = known_dims(inputs, 0), known_dims(inputs, 1)
        if dims is None or shape is None or len(shape) > 1:
            return None
        count = shape[0] if shape else 1
        if not isinstance(count, int) or count > MAXIMUM_DIMS:
            return None
        return dims * count if len(dims) == 1 else dims

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        data = present(inputs, 0)
        wanted = tuple(int(x) for x in present(inputs, 1))
        shape = np.broadcast_shapes(data.shape, wanted)
        return (np.array(np.broadcast_to(data, shape), order="C"),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        one = frozenset({1})
        yield Case("one axis", cls(), (sample(3, 1), np.array([3, 4])), constants=one)
        yield Case("more axes", cls(), (sample(3, 1), np.array([2, 1, 6])), constants=one)
        yield Case("fewer axes", cls(), (sample(2, 1, 4), np.array([3, 1])), constants=one)
        yield Case("scalar", cls(), (sample(), np.array([2, 3])), constants=one)
        none = np.array([], np.int64)
        yield Case("scalar to a scalar", cls(), (sample(), none), constants=one)
        yield Case("to nothing", cls(), (sample(1, 3), np.array([0, 3])), constants=one)
        for dtype in ("float16", "int64", "bool"):
            array = sample(1, 5, dtype=dtype)
            yield Case(dtype, cls(), (array, np.array([4, 1])), constants=one)
