"""Reshape: the same elements in another shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.errors import ShapeError
from smelt.ir import Case, Op
from smelt.ops._shape import input_type, require_inputs, require_static, shape_text
from smelt.ops._shape_operands import (
    count_elements,
    dims_at,
    divide_dims,
    known_dims,
    present,
    sample,
)
from smelt.types import TensorType, assume_at_least, assume_equal, is_never_negative, override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array, Operand
    from smelt.types import Dim, Shape, ValueType


@dataclass(frozen=True)
class Reshape(Op):
    """The same elements, in order, in another shape.

    In the shape, -1 is inferred from the number of elements, and 0 copies the extent of that axis
    of data, unless ``allowzero`` is set.

    Shapes: (data, shape[rank]) -> shape.

    Dtypes: any; the shape is int64.

    Raises ShapeError: when the shape is not known, has more than one -1, or has a different number
    of elements.

    Source: ONNX Reshape-21.
    """

    name: ClassVar[str] = "reshape"

    allowzero: int = 0
    """Whether a 0 in the shape means an extent of 0."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_inputs(self, inputs, 2)
        data = input_type(self, inputs, 0)
        wanted = dims_at(self, inputs, 1, "the shape") or ()
        return (TensorType(data.dtype, self.resolve(data.shape, wanted)),)

    def resolve(self, shape: Shape, wanted: Shape) -> Shape:
        """Return ``wanted`` with 0 and -1 resolved for data of ``shape``. Raises ShapeError."""
        resolved = list(wanted)
        for axis, extent in enumerate(wanted):
            if extent == 0 and not self.allowzero:
                if axis >= len(shape):
                    raise ShapeError(
                        f"axis {axis} of {shape_text(wanted)} is 0, which copies an input axis "
                        "that does not exist"
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
            if not assume_at_least(extent, 1, f"element {axis} of the shape"):
                raise ShapeError(f"reshape to {shape_text(wanted)} has the invalid extent {extent}")

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
                f"{shape_text(shape)}: {total} elements are not known to be a multiple of "
                f"{known}; give every extent of the shape, or fix the symbols"
            )
        what = "elements of input 0 and of the result"
        if quotient is None or not (
            assume_at_least(known, 1, f"the known {what}")
            and assume_equal(total, quotient * known, what)
        ):
            raise self._misfit(shape, tuple(resolved))
        return quotient

    @staticmethod
    def _misfit(shape: Shape, wanted: Shape) -> ShapeError:
        return ShapeError(
            f"{shape_text(shape)} and {shape_text(wanted)} have different numbers of elements"
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
    return assume_equal(b, a, "elements of input 0 and of the result")
