"""RoundMantissa: float32 rounded to fewer bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np

from smelt.errors import ShapeError
from smelt.ir import Case
from smelt.ops._conformance_data import floats
from smelt.ops._unary import Unary
from smelt.types import DType, override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array, Operand
    from smelt.types import ValueType

_ALL_BITS: Final = 23
"""Of a float32's mantissa, behind the first."""


@dataclass(frozen=True)
class RoundMantissa(Unary):
    """The nearest number with so many bits behind the first; of two the one further from zero.

    With ten of them: what tensor cores multiply when they are given float32.

    Shapes: the input's.

    Dtypes: float32.

    Raises ShapeError: when there is not one float32 input, or it has not so many bits.

    Source: PTX ISA, cvt.rna.tf32.f32.
    """

    name: ClassVar[str] = "round_mantissa"
    allowed: ClassVar[frozenset[DType]] = frozenset({DType.FLOAT32})

    bits: int = 10

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        if not 0 < self.bits < _ALL_BITS:
            raise ShapeError(f"float32 cannot be rounded to {self.bits} mantissa bits")
        return super().infer(inputs)

    @override
    def _apply(self, x: Array, /) -> Any:
        half = np.uint32(1 << (_ALL_BITS - 1 - self.bits))
        bits = np.ascontiguousarray(x).view(np.uint32) + half
        rounded = (bits & ~(2 * half - np.uint32(1))).view(np.float32).reshape(x.shape)
        return np.where(np.isfinite(x), rounded, x)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        largest = np.finfo(np.float32).max
        edges = [np.inf, -np.inf, np.nan, largest, -largest, 0.0, -0.0, 1e-40, 1 + 2**-11]
        yield Case("ten_bits", cls(), (floats(17, 33, low=-4.0, high=4.0),))
        yield Case("one_bit", cls(1), (floats(5, 7, low=-4.0, high=4.0, seed=1),))
        yield Case("edges", cls(), (np.array(edges, np.float32),))
