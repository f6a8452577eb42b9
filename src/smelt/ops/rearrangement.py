"""Elements in another order, repeated, or cleared by their position."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from smelt.errors import ShapeError
from smelt.ir import Array, Case, Operand
from smelt.ops._base import BuiltinOp
from smelt.ops._index import integers
from smelt.ops._shape import input_types, optional_type, require_rank, require_scalar, shape_text
from smelt.ops._shape_operands import bounded, dims_at, input_at, known_dims, present, sample
from smelt.types import Dim, TensorType, ValueType, assume_at_least, assume_divides, override


class Transpose(BuiltinOp):
    """The tensor with permuted axes: axis ``i`` of the result is axis ``perm[i]`` of the input.

    Shapes: the extents in the order of ``perm``; reversed when ``perm`` is None.

    Dtypes: any.

    Raises ShapeError: when ``perm`` is not a permutation of the axes.

    Source: ONNX Transpose-21.
    """

    is_recipe_step = True

    perm: tuple[int, ...] | None = None
    """The permutation; None reverses the axes."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        (data,) = input_types(self, inputs, 1)
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


class Tile(BuiltinOp):
    """The tensor repeated along each axis.

    Shapes: (data, repeats[rank]) -> data's extents times the repeats.

    Dtypes: any; the repeats are int64.

    Raises ShapeError: when the repeats are not known, negative, or not one number for each axis.

    Source: ONNX Tile-13.
    """

    is_recipe_step = True

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        data, _ = input_types(self, inputs, 2)
        repeats = dims_at(self, inputs, 1, "the repeats") or ()
        if len(repeats) != data.rank or not all(
            assume_at_least(count, 0, f"the repeats of axis {axis}")
            for axis, count in enumerate(repeats)
        ):
            raise ShapeError(
                f"the repeats of tile are {shape_text(repeats)} for the shape "
                f"{shape_text(data.shape)}; there must be one number of at least 0 for each axis"
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


class DepthToSpace(BuiltinOp):
    """Channels rearranged into blocks of pixels.

    The channels are in the order (block row, block column, depth) with ``mode`` DCR, and (depth,
    block row, block column) with CRD.

    Shapes: [n, c * b * b, h, w] -> [n, c, h * b, w * b].

    Dtypes: any.

    Raises ShapeError: when the channels are not a multiple of the pixels of a block.

    Source: ONNX DepthToSpace-13.
    """

    is_recipe_step = True

    blocksize: int
    """Height and width of a block in pixels."""
    mode: str = "DCR"
    """Order of the channels: "DCR" (block row, block column, depth) or "CRD" (depth first)."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        (data,) = input_types(self, inputs, 1)
        require_rank(data, "input 0 of depth_to_space", 4)
        block = self.blocksize
        if block < 1 or self.mode not in {"DCR", "CRD"}:
            raise ShapeError(
                f"depth_to_space has blocksize {block} and mode {self.mode!r}; blocksize must be "
                "positive and mode DCR or CRD"
            )
        n, c, h, w = data.shape
        if not assume_divides(block * block, c, "axis 1 of input 0"):
            raise ShapeError(
                f"the channel count is {c}; it must be a multiple of {block * block}, the square "
                "of blocksize"
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


class SpaceToDepth(BuiltinOp):
    """Blocks of pixels rearranged into channels, in the order (block row, block column, channel).

    Shapes: [n, c, h * b, w * b] -> [n, c * b * b, h, w].

    Dtypes: any.

    Raises ShapeError: when height or width is not a multiple of the block size.

    Source: ONNX SpaceToDepth-13.
    """

    is_recipe_step = True

    blocksize: int
    """Height and width of a block in pixels."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        (data,) = input_types(self, inputs, 1)
        require_rank(data, "input 0 of space_to_depth", 4)
        block = self.blocksize
        n, c, h, w = data.shape
        if block < 1 or not all(
            assume_divides(block, extent, f"axis {axis} of input 0")
            for axis, extent in ((2, h), (3, w))
        ):
            raise ShapeError(
                f"blocksize is {block}; it must be positive, and divide the height {h} and the "
                f"width {w}"
            )
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


class Trilu(BuiltinOp):
    """The upper (or lower) triangle of each matrix; other elements are 0.

    ``k`` shifts the diagonal to the right; a negative ``k`` shifts it to the left.

    Shapes: (data[…, rows, columns], k scalar?) -> data's.

    Dtypes: any; k is int64.

    Raises ShapeError: when data has fewer than two axes, or k is not one number.

    Source: ONNX Trilu-14.
    """

    is_recipe_step = True

    upper: int = 1
    """Whether the upper triangle is kept."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        (data,) = input_types(self, inputs, 1, 2)
        require_rank(data, "input 0 of trilu", 2, 64)
        require_scalar(optional_type(self, inputs, 1), "k of trilu")
        return (data,)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        data, offset = present(inputs, 0), input_at(inputs, 1)
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
