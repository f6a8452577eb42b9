"""LpPool: the p-norm of each window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.errors import ShapeError
from smelt.ir import Case, Operand
from smelt.ops._conformance_data import HALF_TOLERANCE, floats
from smelt.ops._reference_numerics import narrow, widen
from smelt.ops._shape import FLOATS, input_type, require_dtype, require_inputs
from smelt.ops._shape_operands import present
from smelt.ops._window import Windowed
from smelt.types import TensorType, override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array
    from smelt.types import ValueType


@dataclass(frozen=True)
class LpPool(Windowed):
    """``sum(|x| ** p) ** (1 / p)`` of each window; padding counts as 0.

    Shapes: ``[N, C, *spatial]`` gives ``[N, C, *windows]``.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when the rank does not match the kernel, no window fits or p is not positive.

    Source: ONNX LpPool-22.
    """

    name: ClassVar[str] = "lp_pool"

    ceil_mode: bool = False
    """Whether the number of windows is rounded up."""
    p: int = 2
    """Exponent of the norm."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_inputs(self, inputs, 1)
        x = input_type(self, inputs, 0)
        require_dtype(x, FLOATS, "the input of lp_pool")
        if self.p < 1:
            raise ShapeError(f"p of lp_pool is {self.p}; it must be positive")
        counts = self._window_counts(x, ceil_mode=self.ceil_mode)
        return (TensorType(x.dtype, (*x.shape[:2], *counts)),)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x = widen(present(inputs, 0))
        counts = self._counts_on(x, ceil_mode=self.ceil_mode)
        powers = self._windows(np.abs(x) ** self.p, counts, 0)
        total = powers.sum(axis=tuple(range(-len(counts), 0)))
        return (narrow(total ** x.dtype.type(1 / self.p), present(inputs, 0).dtype),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield Case("2x2", cls((2, 2), (2, 2)), (floats(1, 3, 6, 8),))
        yield Case("pads", cls((3, 3), (2, 2), (1, 1, 1, 1)), (floats(2, 17, 7, 9),))
        yield Case("p_3", cls((3, 2), (1, 2), p=3), (floats(1, 5, 7, 7),))
        yield Case("p_1", cls((3,), (2,), p=1), (floats(2, 3, 11),))
        x = floats(1, 9, 6, 6, dtype=np.float16)
        yield Case("float16", cls((3, 3)), (x,), HALF_TOLERANCE)
