"""Squeeze: removal of axes of extent 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.errors import ShapeError
from smelt.ir import Case, Op
from smelt.ops._shape import input_type, normalize_axis, require_inputs, shape_text
from smelt.ops._shape_operands import ints_at, known_dims, optional_array, present, sample
from smelt.types import TensorType, assume_at_least, assume_equal, override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array, Operand
    from smelt.types import Dim, Shape, ValueType


@dataclass(frozen=True)
class Squeeze(Op):
    """The tensor without some axes of extent 1.

    Shapes: (data, axes[k]?) -> data's without those axes, or without all axes of extent 1 if
    ``axes`` is absent. An axis may be listed twice.

    Dtypes: any; the axes are int64.

    Raises ShapeError: when an axis does not have extent 1, or the axes are not known.

    Source: ONNX Squeeze-21.
    """

    name: ClassVar[str] = "squeeze"

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_inputs(self, inputs, 1, 2)
        data = input_type(self, inputs, 0)
        axes = ints_at(self, inputs, 1, "the axes")
        if axes is None:
            return (TensorType(data.dtype, _without_ones(data.shape)),)
        removed = {normalize_axis(a, data.rank) for a in axes}
        for axis in removed:
            if not assume_equal(data.shape[axis], 1, f"axis {axis} of input 0, which is removed"):
                raise ShapeError(f"axis {axis} of {shape_text(data.shape)} does not have extent 1")
        kept = tuple(d for i, d in enumerate(data.shape) if i not in removed)
        return (TensorType(data.dtype, kept),)

    @override
    def infer_dims(self, inputs: Sequence[Operand | None], /) -> tuple[Dim, ...] | None:
        return known_dims(inputs, 0)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        data, axes = present(inputs, 0), optional_array(inputs, 1)
        removed = None if axes is None else tuple({int(a) % data.ndim for a in axes})
        return (np.squeeze(data, removed).copy(),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        one = frozenset({1})
        yield Case("every axis of one", cls(), (sample(1, 3, 1, 2),))
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
            assume_at_least(extent, 2, f"axis {axis} of input 0, which stays where it is not 1")
    return tuple(extent for extent in shape if extent != 1)
