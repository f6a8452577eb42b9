"""Tile: a tensor repeated along its axes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.errors import ShapeError
from smelt.ir import Case, Op
from smelt.ops._shape import input_type, require_inputs, shape_text
from smelt.ops._shape_operands import bounded, dims_at, present, sample
from smelt.types import TensorType, assume_at_least, override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array, Operand
    from smelt.types import ValueType


@dataclass(frozen=True)
class Tile(Op):
    """The tensor repeated along each axis.

    Shapes: (data, repeats[rank]) -> data's extents times the repeats.

    Dtypes: any; the repeats are int64.

    Raises ShapeError: when the repeats are not known, negative, or not one number for each axis.

    Source: ONNX Tile-13.
    """

    name: ClassVar[str] = "tile"

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_inputs(self, inputs, 2)
        data = input_type(self, inputs, 0)
        repeats = dims_at(self, inputs, 1, "the repeats") or ()
        if len(repeats) != data.rank or not all(
            assume_at_least(count, 0, f"the repeats of axis {axis}")
            for axis, count in enumerate(repeats)
        ):
            texts = f"{shape_text(repeats)} for {shape_text(data.shape)}"
            raise ShapeError(
                f"repeats of tile must be one number of at least 0 for each axis, not {texts}"
            )
        shape = tuple(bounded(d * r) for d, r in zip(data.shape, repeats, strict=True))
        return (TensorType(data.dtype, shape),)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        return (np.tile(present(inputs, 0), tuple(int(r) for r in present(inputs, 1))),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        one = frozenset({1})
        yield Case("two axes", cls(), (sample(2, 3), np.array([3, 2])), constants=one)
        yield Case("inner axis", cls(), (sample(2, 3, 4), np.array([1, 2, 1])), constants=one)
        yield Case("nothing", cls(), (sample(2, 3), np.array([0, 2])), constants=one)
        for dtype in ("float16", "int64", "bool"):
            yield Case(dtype, cls(), (sample(5, dtype=dtype), np.array([3])), constants=one)
