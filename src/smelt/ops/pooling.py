"""Pooling: over windows, and over all elements of a channel."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np

from smelt.errors import ShapeError
from smelt.ir import Array, Case, Operand
from smelt.ops._base import BuiltinOp
from smelt.ops._conformance_data import HALF_TOLERANCE, floats, integers
from smelt.ops._reference_numerics import lowest, mean, narrow, widen
from smelt.ops._shape import FLOATS, SHORT_INTEGERS, input_types, require_rank
from smelt.ops._shape_operands import present
from smelt.ops._window import Windowed
from smelt.types import DType, TensorType, ValueType, assume_at_least, is_float_dtype, override


class Pool(Windowed):
    """Reduction of each window to one element."""

    allowed: ClassVar[frozenset[DType]] = FLOATS | SHORT_INTEGERS
    """Element types of the input."""
    gives_mean: ClassVar[bool] = False
    """Whether the result is a mean."""

    ceil_mode: bool = False
    """Whether the number of windows is rounded up."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        (x,) = input_types(self, inputs, 1, dtypes=self.allowed)
        counts = self._window_counts(x, ceil_mode=self.ceil_mode)
        return (TensorType(_result_dtype(self, x.dtype), (*x.shape[:2], *counts)),)


def _result_dtype(op: Pool | GlobalPool, dtype: DType) -> DType:
    """Return the element type of the result; the mean of integers is float32."""
    return DType.FLOAT32 if op.gives_mean and not dtype.is_float else dtype


def _case(name: str, op: Pool, *shape: int) -> Case:
    """Return a case on floats of a shape."""
    return Case(name, op, (floats(*shape),))


class AveragePool(Pool):
    """The sum of each window, divided by the number of its elements.

    The number includes elements inside the input or, with ``count_include_pad``, inside the padded
    input. The part of a last window that ``ceil_mode`` extends beyond the padding is never
    included. Caffe's average is ``ceil_mode`` with ``count_include_pad``.

    Shapes: ``[N, C, *spatial]`` gives ``[N, C, *windows]``.

    Dtypes: floating-point, and the result's is the input's; or int8 and uint8, whose mean is
    float32.

    Raises ShapeError: when the rank does not match the kernel or no window fits.

    Source: ONNX AveragePool-22; integer inputs are an extension.
    """

    gives_mean: ClassVar[bool] = True

    count_include_pad: bool = False
    """Whether the divisor includes padding."""

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        array = present(inputs, 0)
        x = widen(array) if is_float_dtype(array.dtype) else array.astype(np.float64)
        counts = self._counts_on(x, ceil_mode=self.ceil_mode)
        total = self._windows(x, counts, 0).sum(axis=tuple(range(-len(counts), 0)))
        sizes = self._window_sizes(x, counts, padded=self.count_include_pad)
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = total / sizes.astype(x.dtype)
        return (narrow(mean, _result_dtype(self, DType.from_numpy(array.dtype)).numpy),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        pads = (1, 1, 1, 1)
        yield _case("2x2", cls((2, 2), (2, 2)), 1, 3, 6, 8)
        yield _case("narrower_than_padding", cls((1, 5), pads=(0, 2, 0, 2)), 1, 17, 9, 1)
        yield _case("exclude_pad", cls((3, 3), (2, 2), pads), 2, 17, 7, 9)
        yield _case("include_pad", cls((3, 3), (2, 2), pads, count_include_pad=True), 2, 33, 7, 9)
        yield _case("ceil", cls((3, 3), (2, 2), ceil_mode=True), 1, 3, 8, 10)
        op = cls((3, 3), (2, 2), pads, ceil_mode=True, count_include_pad=True)
        yield _case("ceil_include_pad", op, 1, 3, 8, 10)
        op = cls((3, 2), (3, 2), (1, 0, 1, 1), ceil_mode=True, count_include_pad=True)
        yield _case("ceil_drops_window_in_padding", op, 1, 3, 6, 7)
        yield _case("asymmetric_pads", cls((3, 2), (1, 2), (0, 1, 2, 0)), 1, 4, 7, 7)
        yield _case("dilated", cls((2, 3), (1, 1), pads, (3, 2)), 1, 4, 8, 9)
        yield _case("one_axis", cls((3,), (2,)), 2, 3, 11)
        yield _case("three_axes", cls((2, 2, 2), (1, 2, 1)), 1, 2, 4, 6, 3)
        yield _case("empty_batch", cls((2, 2)), 0, 3, 4, 4)
        x = floats(1, 9, 6, 6, dtype=np.float16)
        yield Case("float16", cls((3, 3)), (x,), HALF_TOLERANCE)
        for kind in (np.int8, np.uint8):
            x = integers(1, 70, 6, 7, dtype=kind, low=np.iinfo(kind).min, high=127)
            yield Case(np.dtype(kind).name, cls((3, 3), (2, 2), pads), (x,))


class MaxPool(Pool):
    """The largest element of each window; padding is never the largest.

    With ``ceil_mode`` a shorter last window is kept unless it would start after the elements and
    the padding before them, as in Caffe.

    Shapes: ``[N, C, *spatial]`` gives ``[N, C, *windows]``.

    Dtypes: floating-point, int8, uint8; the result's is the input's.

    Raises ShapeError: when the rank does not match the kernel or no window fits.

    Source: ONNX MaxPool-22, first result.
    """

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x = present(inputs, 0)
        counts = self._counts_on(x, ceil_mode=self.ceil_mode)
        view = self._windows(x, counts, lowest(x.dtype))
        return (np.asarray(view.max(axis=tuple(range(-len(counts), 0)))),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        pads = (1, 1, 1, 1)
        yield _case("2x2", cls((2, 2), (2, 2)), 1, 3, 6, 8)
        yield _case("3x3_stride_pads", cls((3, 3), (2, 2), pads), 2, 17, 13, 11)
        yield Case("negative", cls((3, 3), (1, 1), pads), (floats(1, 33, 5, 5, high=-0.5),))
        yield _case("ceil", cls((3, 3), (2, 2), ceil_mode=True), 1, 3, 12, 14)
        dropping = cls((2, 2), (2, 2), pads, ceil_mode=True)
        yield _case("ceil_drops_window_in_padding", dropping, 1, 3, 5, 6)
        yield _case("asymmetric_pads", cls((3, 2), (1, 2), (0, 1, 2, 0)), 1, 4, 7, 7)
        yield _case("dilated", cls((2, 3), (1, 1), (), (3, 2)), 1, 4, 8, 9)
        yield _case("one_axis", cls((3,), (2,)), 2, 3, 11)
        yield _case("three_axes", cls((2, 2, 2), (1, 2, 1)), 1, 2, 4, 6, 3)
        yield _case("narrower_than_padding", cls((1, 5), pads=(0, 2, 0, 2)), 1, 17, 9, 1)
        yield _case("empty_batch", cls((2, 2)), 0, 3, 4, 4)
        yield Case("float16", cls((3, 3)), (floats(1, 9, 6, 6, dtype=np.float16),))
        yield Case("uint8", cls((2, 2), (2, 2)), (integers(1, 3, 6, 6, dtype=np.uint8, high=256),))


class LpPool(Pool):
    """``sum(|x| ** p) ** (1 / p)`` of each window; padding counts as 0.

    Shapes: ``[N, C, *spatial]`` gives ``[N, C, *windows]``.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when the rank does not match the kernel, no window fits or p is not positive.

    Source: ONNX LpPool-22.
    """

    allowed: ClassVar[frozenset[DType]] = FLOATS

    p: int = 2
    """Exponent of the norm."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        if self.p < 1:
            raise ShapeError(f"p of lp_pool is {self.p}; it must be positive")
        return super().infer(inputs)

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


class GlobalPool(BuiltinOp):
    """Reduction over all spatial axes of a channel."""

    gives_mean: ClassVar[bool] = False
    """Whether the result is a mean."""

    @abstractmethod
    def _pool(self, x: Array, axes: tuple[int, ...], /) -> Array:
        """Return the result with the pooled axes kept with extent 1."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        (x,) = input_types(self, inputs, 1, dtypes=FLOATS | SHORT_INTEGERS)
        require_rank(x, f"the input of {self.name}", 2, 99)
        for axis, extent in enumerate(x.shape[2:], 2):
            if not assume_at_least(extent, 1, f"axis {axis} of input 0"):
                raise ShapeError(f"the channels of {x} have no elements to pool")
        return (TensorType(_result_dtype(self, x.dtype), (*x.shape[:2], *[1] * (x.rank - 2))),)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x = present(inputs, 0)
        y = self._pool(widen(x), tuple(range(2, x.ndim)))
        dtype = _result_dtype(self, DType.from_numpy(x.dtype))
        return (narrow(np.asarray(y), dtype.numpy),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield Case("7x7", cls(), (floats(1, 33, 7, 7),))
        yield Case("batch", cls(), (floats(3, 17, 5, 9),))
        yield Case("one_axis", cls(), (floats(2, 3, 13),))
        yield Case("three_axes", cls(), (floats(1, 3, 2, 3, 5, low=-2.0, high=-1.0),))
        yield Case("empty_batch", cls(), (floats(0, 3, 4, 4),))
        yield Case("float16", cls(), (floats(1, 9, 6, 6, dtype=np.float16),), HALF_TOLERANCE)
        yield Case("uint8", cls(), (integers(2, 70, 7, 7, dtype=np.uint8, high=256),))
        signed = integers(1, 33, 5, 6, dtype=np.int8, low=-128, high=128)
        yield Case("int8", cls(), (signed,))


class GlobalAveragePool(GlobalPool):
    """The mean over all spatial axes.

    Shapes: ``[N, C, *spatial]`` gives ``[N, C, 1, ...]``.

    Dtypes: floating-point, and the result's is the input's; or int8 and uint8, whose mean is
    float32.

    Raises ShapeError: when there is not one input of such a type and of rank 2 or more, or its
    channels have no elements.

    Source: ONNX GlobalAveragePool-22; integer inputs are an extension.
    """

    gives_mean: ClassVar[bool] = True

    @override
    def _pool(self, x: Array, axes: tuple[int, ...], /) -> Array:
        return mean(x if x.dtype.kind == "f" else x.astype(np.float64), axes)


class GlobalMaxPool(GlobalPool):
    """The largest element over all spatial axes.

    Shapes: ``[N, C, *spatial]`` gives ``[N, C, 1, ...]``.

    Dtypes: floating-point, int8, uint8; the result's is the input's.

    Raises ShapeError: when there is not one input of such a type and of rank 2 or more, or its
    channels have no elements.

    Source: ONNX GlobalMaxPool-22; integer inputs are an extension.
    """

    @override
    def _pool(self, x: Array, axes: tuple[int, ...], /) -> Array:
        return np.asarray(x.max(axis=axes, keepdims=True, initial=lowest(x.dtype)))
