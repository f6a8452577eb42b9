"""Split: consecutive parts of a tensor along an axis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.errors import ShapeError
from smelt.ir import Case, Op
from smelt.ops._shape import input_type, normalize_axis, require_inputs, shape_text
from smelt.ops._shape_operands import dims_at, known_dims, optional_array, present, sample
from smelt.types import TensorType, assume_divides, assume_equal, ceil_div, override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array, Operand
    from smelt.types import Dim, ValueType


@dataclass(frozen=True)
class Split(Op):
    """Consecutive parts of a tensor along an axis.

    Input 1 has the lengths of the parts. Without it the axis is split into ``num_outputs`` equal
    parts, and the last one is shorter if the extent is not divisible. With ``even`` such an extent
    is refused, as in ONNX before opset 18.

    Shapes: (data, split[parts]?) -> one result for each part.

    Dtypes: any; the lengths are int64.

    Raises ShapeError: when the lengths are not known, or do not add up to the extent of the axis.

    Source: ONNX Split-18.
    """

    name: ClassVar[str] = "split"

    axis: int = 0
    num_outputs: int = 0
    """Number of equal parts; 0 if input 1 has the lengths."""
    even: bool = False
    """Whether the extent must be divisible into equal parts."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_inputs(self, inputs, 1, 2)
        data = input_type(self, inputs, 0)
        axis = normalize_axis(self.axis, data.rank)
        lengths = dims_at(self, inputs, 1, "the lengths of the parts")
        if lengths is None:
            lengths = self._equal_lengths(data.shape[axis])
        total: Dim = 0
        for length in lengths:
            if isinstance(length, int) and length < 0:
                raise ShapeError(f"a part of split has {length} elements; it must be at least 0")
            total = total + length
        if not assume_equal(data.shape[axis], total, f"axis {axis} of input 0 and its parts"):
            raise ShapeError(
                f"the parts {shape_text(lengths)} do not add up to {data.shape[axis]} elements"
            )
        shapes = ((*data.shape[:axis], n, *data.shape[axis + 1 :]) for n in lengths)
        return tuple(TensorType(data.dtype, s) for s in shapes)

    def _equal_lengths(self, extent: Dim) -> tuple[Dim, ...]:
        """Return the lengths of ``num_outputs`` equal parts. Raises ShapeError."""
        parts = self.num_outputs
        if not 1 <= parts <= 1 << 16:
            raise ShapeError(
                f"split must have the lengths of its parts, or num_outputs from 1 to 65536, not "
                f"{parts}"
            )
        if self.even and not assume_divides(parts, extent, f"the {parts} equal parts of a split"):
            raise ShapeError(f"{extent} elements cannot be split into {parts} equal parts")
        length = ceil_div(extent, parts)
        if isinstance(length, int) and isinstance(extent, int):
            last = extent - length * (parts - 1)
            if last < 0:
                raise ShapeError(f"{extent} elements cannot be split into {parts} equal parts")
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
        data, part_lengths = present(inputs, 0), optional_array(inputs, 1)
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
