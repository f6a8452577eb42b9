"""Crop: a part of a tensor with the extents of another tensor (Caffe)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from smelt.errors import ShapeError
from smelt.ir import Case, Op, Operand
from smelt.ops._conformance_data import floats
from smelt.ops._shape import input_type, normalize_axis, require_inputs, require_rank
from smelt.ops._shape_operands import present
from smelt.types import TensorType, assume_at_least, override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array
    from smelt.types import ValueType


@dataclass(frozen=True)
class Crop(Op):
    """The part of x that has the extents of ``like`` from ``axis`` on. Inputs are x and like.

    Shapes: both inputs have the same rank; the result has the extents of x before ``axis`` and
    those of like from ``axis`` on.

    Dtypes: any; the result's is x's.

    Raises ShapeError: when the ranks differ, an offset is missing or the part extends beyond x.

    Source: Caffe CropLayer.
    """

    name: ClassVar[str] = "crop"

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
                f"offset is {self.offset}; it must be empty, or have one or {count} numbers of at "
                "least 0"
            )
        return (*[0] * axis, *numbers)

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_inputs(self, inputs, 2)
        x, like = input_type(self, inputs, 0), input_type(self, inputs, 1)
        require_rank(like, "the second input of crop", x.rank)
        first, offsets = normalize_axis(self.axis, x.rank), self.offsets(x.rank)
        for axis in range(first, x.rank):
            start, extent, available = offsets[axis], like.shape[axis], x.shape[axis]
            if not assume_at_least(available, start + extent, f"axis {axis} of inputs 0 and 1"):
                raise ShapeError(
                    f"{extent} elements from {start} on do not fit into an extent of {available}"
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
