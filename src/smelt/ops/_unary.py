"""Base class of the elementwise ops of one tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from smelt.ir import Case, Op, Operand
from smelt.ops._conformance_data import HALF_TOLERANCE, corner_cases, floats
from smelt.ops._reference_numerics import narrow, widen
from smelt.ops._shape import FLOATS, input_type, require_dtype, require_inputs
from smelt.ops._shape_operands import present
from smelt.types import DType, TensorType, override

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Self

    from smelt.ir import Array
    from smelt.types import ValueType


@dataclass(frozen=True)
class Unary(Op):
    """Elementwise op of one tensor."""

    allowed: ClassVar[frozenset[DType]] = FLOATS
    """Element types of the input."""
    result_dtype: ClassVar[DType | None] = None
    """Element type of the result; None for that of the input."""
    domain: ClassVar[tuple[float, float]] = (-4.0, 4.0)
    """Range of the inputs in the cases."""

    _function: ClassVar[Any]  # annotations of ops are evaluated, and Array is for type checkers

    def __init_subclass__(cls, *, function: Callable[[Array], Any] | None = None) -> None:
        """Set ``function``, which computes an op without attributes; others override ``_apply``."""
        super().__init_subclass__()
        if function is not None:
            cls._function = staticmethod(function)

    def _apply(self, x: Array, /) -> Any:
        """Compute the op on an array; float16 and bfloat16 inputs are passed as float32."""
        return type(self)._function(x)

    @classmethod
    def _variants(cls) -> Iterator[Self]:
        """Yield the ops with the attributes that the cases use."""
        yield cls()

    @property
    @override
    def elementwise(self) -> bool:
        return True

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_inputs(self, inputs, 1)
        x = input_type(self, inputs, 0)
        require_dtype(x, self.allowed, f"the input of {self.name}")
        return (TensorType(self.result_dtype or x.dtype, x.shape),)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x = present(inputs, 0)
        with np.errstate(all="ignore"):
            y = self._apply(widen(x))
        return (narrow(np.asarray(y), self.result_dtype.numpy if self.result_dtype else x.dtype),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        low, high = cls.domain
        for number, op in enumerate(cls._variants()):
            name = f"variant{number}_" if number else ""
            if DType.FLOAT32 in cls.allowed:
                x = floats(2, 3, 5, 7, low=low, high=high)
                yield Case(f"{name}rank_4", op, (x,))
                x = floats(17, 33, low=low, high=high, dtype=np.float16, seed=1)
                yield Case(f"{name}float16", op, (x,), tolerance=HALF_TOLERANCE)
                yield Case(f"{name}scalar", op, (floats(low=low, high=high, seed=2),))
        if DType.FLOAT32 in cls.allowed:
            yield Case("empty", cls(), (floats(0, 3),))
            yield Case("line", cls(), (floats(1021, low=low, high=high, seed=3),))
        yield from corner_cases(cls(), cls.allowed)
