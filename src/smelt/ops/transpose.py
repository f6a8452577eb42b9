"""Transpose: permutation of axes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.errors import ShapeError
from smelt.ir import Case, Op
from smelt.ops._shape import input_type, require_inputs, shape_text
from smelt.ops._shape_operands import known_dims, present, sample
from smelt.types import TensorType, override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array, Operand
    from smelt.types import Dim, ValueType


@dataclass(frozen=True)
class Transpose(Op):
    """The tensor with permuted axes: axis ``i`` of the result is axis ``perm[i]`` of the input.

    Shapes: the extents in the order of ``perm``; reversed when ``perm`` is None.

    Dtypes: any.

    Raises ShapeError: when ``perm`` is not a permutation of the axes.

    Source: ONNX Transpose-21.
    """

    name: ClassVar[str] = "transpose"

    perm: tuple[int, ...] | None = None
    """The permutation; None reverses the axes."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_inputs(self, inputs, 1)
        data = input_type(self, inputs, 0)
        order = self.order(data.rank)
        if sorted(order) != list(range(data.rank)):
            raise ShapeError(
                f"perm {order} is not a permutation of the axes of {shape_text(data.shape)}"
            )
        return (TensorType(data.dtype, tuple(data.shape[a] for a in order)),)

    def order(self, rank: int) -> tuple[int, ...]:
        """Return the permutation for a tensor of ``rank``."""
        return tuple(reversed(range(rank))) if self.perm is None else self.perm

    @override
    def infer_dims(self, inputs: Sequence[Operand | None], /) -> tuple[Dim, ...] | None:
        return known_dims(inputs, 0)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        return (np.array(np.transpose(present(inputs, 0), self.perm), order="C"),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield Case("reversed", cls(), (sample(2, 3, 4),))
        yield Case("channels last", cls((0, 2, 3, 1)), (sample(2, 3, 4, 5),))
        yield Case("channels first", cls((0, 3, 1, 2)), (sample(1, 4, 5, 3),))
        yield Case("rotated", cls((1, 2, 0)), (sample(2, 3, 4),))
        yield Case("five axes", cls((0, 2, 1, 4, 3)), (sample(2, 3, 2, 4, 3),))
        yield Case("scalar", cls(), (sample(),))
        yield Case("no elements", cls((1, 0)), (sample(0, 3),))
        for dtype in ("float16", "int64", "int8", "bool"):
            yield Case(dtype, cls((1, 0)), (sample(17, 5, dtype=dtype),))
