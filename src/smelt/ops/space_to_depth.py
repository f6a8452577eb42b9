"""SpaceToDepth: blocks of pixels rearranged into channels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from smelt.errors import ShapeError
from smelt.ir import Case, Op
from smelt.ops._shape import input_type, require_inputs, require_rank
from smelt.ops._shape_operands import present, sample
from smelt.types import TensorType, assume_divides, override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array, Operand
    from smelt.types import ValueType


@dataclass(frozen=True)
class SpaceToDepth(Op):
    """Blocks of pixels rearranged into channels, in the order (block row, block column, channel).

    Shapes: [n, c, h * b, w * b] -> [n, c * b * b, h, w].

    Dtypes: any.

    Raises ShapeError: when height or width is not a multiple of the block size.

    Source: ONNX SpaceToDepth-13.
    """

    name: ClassVar[str] = "space_to_depth"

    blocksize: int

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_inputs(self, inputs, 1)
        data = input_type(self, inputs, 0)
        require_rank(data, "input 0 of space_to_depth", 4)
        block = self.blocksize
        n, c, h, w = data.shape
        if block < 1 or not all(
            assume_divides(block, extent, f"axis {axis} of input 0 and the block")
            for axis, extent in ((2, h), (3, w))
        ):
            raise ShapeError(f"{h} x {w} pixels are not divisible by the block size {block}")
        return (TensorType(data.dtype, (n, c * (block * block), h // block, w // block)),)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        data, b = present(inputs, 0), self.blocksize
        n, c, h, w = data.shape
        blocks = data.reshape(n, c, h // b, b, w // b, b).transpose(0, 3, 5, 1, 2, 4)
        return (blocks.reshape(n, c * b * b, h // b, w // b).copy(),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield Case("blocks of 2", cls(2), (sample(2, 3, 4, 6),))
        yield Case("blocks of 3", cls(3), (sample(1, 2, 3, 6),))
        yield Case("float16", cls(2), (sample(1, 2, 2, 4, dtype="float16"),))
        yield Case("float64", cls(2), (sample(1, 2, 2, 4, dtype="float64"),))
