"""Base class and test cases of the reductions."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.ir import Case, Op
from smelt.ops._reference_numerics import narrow, widen
from smelt.ops._shape import NUMBERS, input_type, normalize_axis, require_dtype, require_inputs
from smelt.ops._shape_operands import (
    bounded,
    ints_at,
    known_dims,
    optional_array,
    present,
    sample,
)
from smelt.types import DType, TensorType, override

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from smelt.ir import Array, Operand
    from smelt.types import Dim, ValueType


@dataclass(frozen=True)
class Reduction(Op):
    """Reduction of the elements along some axes to one number.

    The axes are input 1. If it is absent or empty, all axes are reduced, or with
    ``noop_with_empty_axes`` none: each element is then reduced by itself.
    """

    dtypes: ClassVar[frozenset[DType]] = NUMBERS
    """Element types of the input."""

    keepdims: int = 1
    noop_with_empty_axes: int = 0

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_inputs(self, inputs, 1, 2)
        data = input_type(self, inputs, 0)
        require_dtype(data, self.dtypes, f"input 0 of {self.name}")
        axes = self.axes(data.rank, ints_at(self, inputs, 1, "the axes"))
        kept = (1,) if self.keepdims else ()
        parts = (kept if i in axes else (d,) for i, d in enumerate(data.shape))
        return (TensorType(data.dtype, tuple(d for part in parts for d in part)),)

    def axes(self, rank: int, listed: tuple[int, ...] | None) -> tuple[int, ...]:
        """Return the reduced axes of a tensor of ``rank``, all non-negative. Raises ShapeError."""
        if not listed:
            return () if self.noop_with_empty_axes else tuple(range(rank))
        return tuple(sorted({normalize_axis(a, rank) for a in listed}))

    @override
    def infer_dims(self, inputs: Sequence[Operand | None], /) -> tuple[Dim, ...] | None:
        dims = known_dims(inputs, 0)
        if dims is None or not self.axes(1, ints_at(self, inputs, 1, "the axes")):
            return dims
        reduced = self.reduce_dims(dims)
        return None if reduced is None else (bounded(reduced),)

    def reduce_dims(self, dims: Sequence[Dim]) -> Dim | None:
        """Return the op on all elements of a vector; None if the result is not a dimension."""
        del dims
        return None

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        data, axes_input = present(inputs, 0), optional_array(inputs, 1)
        listed = None if axes_input is None else tuple(int(a) for a in axes_input)
        axes = self.axes(data.ndim, listed)
        with np.errstate(all="ignore"):
            result = narrow(self.compute(widen(data), axes), data.dtype)
        return (result if self.keepdims else np.asarray(result.squeeze(axes)),)

    @abstractmethod
    def compute(self, data: Array, axes: tuple[int, ...]) -> Array:
        """Compute the op along the axes, which the result keeps with extent one."""


def reduce_cases(
    make: Callable[..., Reduction], *dtypes: str, low: int = -9, empty: bool = True
) -> Iterator[Case]:
    """Yield the cases of a reduction for float32 and for ``dtypes``."""
    one = frozenset({1})
    rows: dict[str, tuple[int, list[int]]] = {
        "last axis": (1, [-1]),
        "inner axis": (1, [1]),
        "two axes": (0, [0, 2]),
        "space": (1, [2, 3]),
        "negative axes without extents": (0, [-2, -1]),
        "empty axes": (1, []),
    }
    for label, (keepdims, axes) in rows.items():
        arrays = (sample(2, 3, 4, 5, low=low), np.array(axes, np.int64))
        yield Case(label, make(keepdims), arrays, constants=one)
    yield Case("all axes", make(), (sample(3, 17, low=low),))
    yield Case("to a scalar", make(0), (sample(3, 2, low=low),))
    nothing = (sample(2, 3, low=low), np.array([], np.int64))
    yield Case("empty axes that mean none", make(1, 1), nothing, constants=one)
    yield Case("scalar", make(), (sample(low=low),))
    if empty:
        yield Case("of nothing", make(0), (sample(2, 0), np.array([1])), constants=one)
    for dtype in dtypes:
        arrays = (sample(3, 9, dtype=dtype, low=low), np.array([1]))
        tolerance = 3e-3 if dtype == "float16" else 1e-4
        yield Case(dtype, make(0), arrays, tolerance, constants=one)
