"""Range: equally spaced numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.errors import ShapeError
from smelt.ir import Case, Op
from smelt.ops._shape import (
    NUMBERS,
    input_type,
    require_dtype,
    require_inputs,
    require_same_dtype,
    require_scalar,
)
from smelt.ops._shape_operands import MAXIMUM_DIMS, known_dims, number_at, present
from smelt.types import TensorType, ceil_div, is_never_negative, override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array, Operand
    from smelt.types import Dim, ValueType


@dataclass(frozen=True)
class Range(Op):
    """Numbers from ``start`` to ``limit``, exclusive, with a step of ``delta``.

    Shapes: (start scalar, limit scalar, delta scalar) -> [count].

    Dtypes: numbers, all the same.

    Raises ShapeError: when an input is not known, or ``delta`` is zero or symbolic.

    Source: ONNX Range-11.
    """

    name: ClassVar[str] = "range"

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_inputs(self, inputs, 3)
        kinds = [input_type(self, inputs, i) for i in range(3)]
        require_dtype(kinds[0], NUMBERS, "start of range")
        require_same_dtype(*kinds)
        for kind in kinds:
            require_scalar(kind, "a bound of range")
        return (TensorType(kinds[0].dtype, (self._count(inputs),)),)

    def _count(self, inputs: Sequence[Operand | None]) -> Dim:
        """Return the number of elements, which may be symbolic. Raises ShapeError."""
        values = [o.value for o in inputs if o is not None]
        arrays = [v for v in values if v is not None]
        if len(arrays) == 3:
            return _count_steps(*(a.item() for a in arrays))
        start, limit, delta = (number_at(self, inputs, i, "each bound") for i in range(3))
        if not isinstance(delta, int) or delta == 0:
            raise ShapeError(f"the step of range must be a constant and not zero; it is {delta}")
        gap = limit - start if delta > 0 else start - limit
        count = ceil_div(gap, abs(delta))
        # If ``start`` is beyond ``limit`` for all symbol values, there are no elements.
        return 0 if is_never_negative(-count) else count

    @override
    def infer_dims(self, inputs: Sequence[Operand | None], /) -> tuple[Dim, ...] | None:
        bounds = [known_dims(inputs, i) for i in range(3)]
        count = self._count(inputs)
        start, _, delta = (b[0] if b else None for b in bounds)
        if start is None or delta is None or not isinstance(count, int) or count > MAXIMUM_DIMS:
            return None
        return tuple(start + delta * i for i in range(count))

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        start, limit, delta = (present(inputs, i) for i in range(3))
        count = _count_steps(start.item(), limit.item(), delta.item())
        steps = np.arange(count).astype(start.dtype)
        return ((start + steps * delta).astype(start.dtype).reshape(count),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        rows = {
            "int64": (0, 5, 1),
            "int32": (10, 4, -2),
            "float32": (1.0, 2.0, 0.25),
            "float64": (0.0, -1.0, -0.3),
            "int16": (3, 3, 1),
        }
        for dtype, row in rows.items():
            arrays = tuple(np.array(x, dtype) for x in row)
            yield Case(dtype, cls(), arrays, constants=frozenset({0, 1, 2}))
        backwards = tuple(np.array(x, np.int64) for x in (5, 0, 1))
        yield Case("nothing", cls(), backwards, constants=frozenset({0, 1, 2}))


def _count_steps(start: float, limit: float, delta: float) -> int:
    """Return the number of elements. Raises ShapeError when it is not finite."""
    if not delta or not all(math.isfinite(x) for x in (start, limit, delta)):
        raise ShapeError(
            f"the number of elements of range from {start} to {limit} with step {delta} is not "
            "finite"
        )
    if all(isinstance(x, int) for x in (start, limit, delta)):
        return max(-int((start - limit) // delta), 0)
    return max(math.ceil((limit - start) / delta), 0)
