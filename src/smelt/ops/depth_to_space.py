"""DepthToSpace: channels rearranged into blocks of pixels."""

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
class DepthToSpace(Op):
    """Channels rearranged into blocks of pixels.

    The channels are in the order (block row, block column, depth) with ``mode`` DCR, and (depth,
    block row, block column) with CRD.

    Shapes: [n, c * b * b, h, w] -> [n, c, h * b, w * b].

    Dtypes: any.

    Raises ShapeError: when the channels are not a multiple of the pixels of a block.

    Source: ONNX DepthToSpace-13.
    """

    name: ClassVar[str] = "depth_to_space"

    blocksize: int
    mode: str = "DCR"

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_inputs(self, inputs, 1)
        data = input_type(self, inputs, 0)
        require_rank(data, "input 0 of depth_to_space", 4)
        block = self.blocksize
        if block < 1 or self.mode not in {"DCR", "CRD"}:
            raise ShapeError(
                f"depth_to_space has blocksize {block} and mode {self.mode!r}; blocksize must be "
                "positive and mode DCR or CRD"
            )
        n, c, h, w = data.shape
        if not assume_divides(block * block, c, "axis 1 of input 0 and the pixels of a block"):
            raise ShapeError(
                f"{c} channels are not a multiple of the {block * block} pixels of a block"
            )
        return (TensorType(data.dtype, (n, c // (block * block), h * block, w * block)),)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        data, b = present(inputs, 0), self.blocksize
        n, c, h, w = data.shape
        depth = c // (b * b)
        if self.mode == "DCR":
            pixels = data.reshape(n, b, b, depth, h, w).transpose(0, 3, 4, 1, 5, 2)
        else:
            pixels = data.reshape(n, depth, b, b, h, w).transpose(0, 1, 4, 2, 5, 3)
        return (pixels.reshape(n, depth, h * b, w * b).copy(),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        for mode in ("DCR", "CRD"):
            yield Case(mode, cls(2, mode), (sample(2, 12, 2, 3),))
        yield Case("blocks of 3", cls(3), (sample(1, 9, 1, 2),))
        yield Case("float16", cls(2), (sample(1, 4, 2, 2, dtype="float16"),))
        yield Case("int8", cls(2, "CRD"), (sample(1, 8, 2, 2, dtype="int8"),))
