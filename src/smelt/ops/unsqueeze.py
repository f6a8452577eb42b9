"""Unsqueeze: insertion of axes of extent 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.errors import ShapeError
from smelt.ir import Case, Op
from smelt.ops._shape import input_type, normalize_axis, require_inputs
from smelt.ops._shape_operands import ints_at, known_dims, present, sample
from smelt.types import TensorType, override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array, Operand
    from smelt.types import Dim, ValueType


@dataclass(frozen=True)
class Unsqueeze(Op):
    """The tensor with axes of extent 1 inserted.

    Shapes: (data, axes[k]) -> data's with those axes, which are positions in the result.

    Dtypes: any; the axes are int64.

    Raises ShapeError: when the axes are not known, have duplicates, or are out of range for the
    result.

    Source: ONNX Unsqueeze-21.
    """

    name: ClassVar[str] = "unsqueeze"

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_inputs(self, inputs, 2)
        data = input_type(self, inputs, 0)
        axes = ints_at(self, inputs, 1, "the axes", scalar=True) or ()
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
