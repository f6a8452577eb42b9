"""Trilu: the upper or lower triangle of matrices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.ir import Case, Op
from smelt.ops._index import integers
from smelt.ops._shape import (
    input_type,
    optional_type,
    require_inputs,
    require_rank,
    require_scalar,
)
from smelt.ops._shape_operands import optional_array, present, sample
from smelt.types import override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array, Operand
    from smelt.types import ValueType


@dataclass(frozen=True)
class Trilu(Op):
    """The upper (or lower) triangle of each matrix; other elements are 0.

    ``k`` shifts the diagonal to the right; a negative ``k`` shifts it to the left.

    Shapes: (data[…, rows, columns], k scalar?) -> data's.

    Dtypes: any; k is int64.

    Raises ShapeError: when data has fewer than two axes, or k is not one number.

    Source: ONNX Trilu-14.
    """

    name: ClassVar[str] = "trilu"

    upper: int = 1
    """Whether the upper triangle is kept."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_inputs(self, inputs, 1, 2)
        data = input_type(self, inputs, 0)
        require_rank(data, "input 0 of trilu", 2, 64)
        require_scalar(optional_type(self, inputs, 1), "k of trilu")
        return (data,)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        data, offset = present(inputs, 0), optional_array(inputs, 1)
        k = 0 if offset is None else int(offset.item())
        rows = integers(0, data.shape[-2])[:, None]
        columns = integers(0, data.shape[-1])[None, :]
        kept: Array = columns - rows >= k if self.upper else columns - rows <= k
        return (np.where(kept, data, np.zeros_like(data)),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        for upper in (0, 1):
            for k in (-1, 0, 2):
                label = f"upper {upper}, k {k}"
                arrays = (sample(2, 4, 5), np.array(k))
                yield Case(label, cls(upper), arrays, constants=frozenset({1}))
        yield Case("k absent", cls(), (sample(5, 3),))
        yield Case("no elements", cls(), (sample(0, 3),))
        for dtype in ("float16", "int64", "bool"):
            yield Case(dtype, cls(0), (sample(3, 3, dtype=dtype),))
