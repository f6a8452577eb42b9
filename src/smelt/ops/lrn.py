"""LRN: local response normalisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.errors import ShapeError
from smelt.ir import Case, Op, Operand
from smelt.ops._conformance_data import HALF_TOLERANCE, floats
from smelt.ops._reference_numerics import narrow, widen
from smelt.ops._shape import FLOATS, input_type, require_dtype, require_inputs, require_rank
from smelt.ops._shape_operands import present
from smelt.types import Limit, element_count, override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array
    from smelt.types import Dim, ValueType


@dataclass(frozen=True)
class LRN(Op):
    """``x / (bias + alpha / count * sum(neighbour ** 2)) ** beta``.

    The neighbours are ``size`` channels of one pixel (region "across_channels", count ``size``) or,
    for Caffe, a square of ``size`` by ``size`` pixels of one channel (region "within_channel",
    count ``size ** 2``). Elements outside the input are 0.

    Shapes: ``[N, C, *spatial]``, within a channel ``[N, C, H, W]``; the result's is the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when the rank or the size does not match the region.

    Source: ONNX LRN-13; Caffe LRNLayer, WITHIN_CHANNEL.
    """

    name: ClassVar[str] = "lrn"

    size: int
    """Extent of the neighbourhood."""
    alpha: float = 0.0001
    """Factor of the mean of squares."""
    beta: float = 0.75
    """Exponent."""
    bias: float = 1.0
    """Number that is added to the weighted mean of squares."""
    region: str = "across_channels"
    """Neighbourhood: "across_channels" or "within_channel"."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_inputs(self, inputs, 1)
        x = input_type(self, inputs, 0)
        require_dtype(x, FLOATS, "the input of lrn")
        if self.region not in {"across_channels", "within_channel"}:
            raise ShapeError(
                f"region is {self.region!r}; it must be across_channels or within_channel"
            )
        within = self.region == "within_channel"
        require_rank(x, "the input of lrn", 4 if within else 2, 4 if within else 99)
        if self.size > Limit.MAX_WINDOW.most:
            raise ShapeError(f"a window of lrn has {Limit.MAX_WINDOW.excess(self.size)}")
        if self.size < 1 or (within and self.size % 2 == 0):
            raise ShapeError(
                f"size is {self.size}; it must be positive, and odd for within_channel"
            )
        return (x,)

    @override
    def count_work(self, inputs: Sequence[Operand | None], results: Sequence[ValueType], /) -> Dim:
        return 2 * self.size * element_count(input_type(self, inputs, 0).shape)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        array = present(inputs, 0)
        x = widen(array)
        within = self.region == "within_channel"
        energy, count = np.square(x), self.size**2 if within else self.size
        for axis in (2, 3) if within else (1,):
            energy = self._sum_neighbours(energy, axis)
        base = x.dtype.type(self.bias) + x.dtype.type(self.alpha / count) * energy
        return (narrow(x * base ** x.dtype.type(-self.beta), array.dtype),)

    def _sum_neighbours(self, x: Array, axis: int) -> Array:
        """Return the sum of ``size`` neighbours of each element along an axis."""
        before = (self.size - 1) // 2
        widths = [(0, 0)] * x.ndim
        widths[axis] = (before, self.size - 1 - before)
        padded = np.moveaxis(np.pad(x, widths), axis, 0)
        total = np.zeros_like(np.moveaxis(x, axis, 0))
        for shift in range(self.size):
            total += padded[shift : shift + x.shape[axis]]
        return np.moveaxis(total, 0, axis)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield Case("across", cls(5, 0.9, 0.75), (floats(2, 17, 5, 7, high=3.0),))
        yield Case("across_even", cls(4, 0.5, 0.6, 2.0), (floats(1, 33, 3, 4, high=3.0),))
        yield Case("across_few_channels", cls(5, 1.0), (floats(1, 3, 4, 4, high=3.0),))
        yield Case("across_series", cls(3, 1.0), (floats(2, 9, 11, high=3.0),))
        op = cls(3, 5.0, 0.75, region="within_channel")
        yield Case("within", op, (floats(2, 17, 7, 5, high=3.0),))
        op = cls(7, 5.0, 0.5, 2.0, region="within_channel")
        yield Case("within_larger_than_image", op, (floats(1, 3, 5, 4, high=3.0),))
        yield Case("empty_batch", cls(5), (floats(0, 3, 4, 4),))
        x = floats(1, 9, 5, 5, dtype=np.float16)
        yield Case("float16", cls(5, 0.9), (x,), HALF_TOLERANCE)
