"""Identity: the input itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from smelt.ir import Case, Op
from smelt.ops._shape import input_type, require_inputs
from smelt.ops._shape_operands import known_dims, operand_at, present, sample
from smelt.types import override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array, Operand
    from smelt.types import Dim, ValueType


@dataclass(frozen=True)
class Identity(Op):
    """The input itself.

    Shapes: the input's.

    Dtypes: any.

    Raises ShapeError: when there is not exactly one input.

    Source: ONNX Identity-21.
    """

    name: ClassVar[str] = "identity"

    @property
    @override
    def elementwise(self) -> bool:
        return True

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_inputs(self, inputs, 1)
        operand = operand_at(inputs, 0)
        return (operand.type if operand else input_type(self, inputs, 0),)

    @override
    def infer_dims(self, inputs: Sequence[Operand | None], /) -> tuple[Dim, ...] | None:
        return known_dims(inputs, 0)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        return (present(inputs, 0).copy(),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        for dtype in ("float32", "float16", "int64", "bool"):
            yield Case(dtype, cls(), (sample(2, 3, 5, dtype=dtype),))
        yield Case("scalar", cls(), (sample(),))
        yield Case("no elements", cls(), (sample(2, 0),))
