"""Softmax, LogSoftmax and Hardmax: rows normalised by their largest element."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence

import numpy as np

from smelt.ir import Array, Case, Operand
from smelt.ops._base import BuiltinOp
from smelt.ops._conformance_data import HALF_TOLERANCE, floats
from smelt.ops._reference_numerics import narrow, widen
from smelt.ops._shape import FLOATS, input_types, normalize_axis
from smelt.ops._shape_operands import present
from smelt.types import ValueType, override


class SoftmaxLike(BuiltinOp):
    """Normalisation of each line along an axis, independent of the other lines."""

    is_recipe_step = True

    axis: int = -1
    """Axis along which elements are normalised."""

    @abstractmethod
    def _normalize_rows(self, shifted: Array, /) -> Array:
        """Return the result; the largest element of each line of ``shifted`` is 0."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        (x,) = input_types(self, inputs, 1, dtypes=FLOATS)
        normalize_axis(self.axis, x.rank)
        return (x,)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        array = present(inputs, 0)
        if not array.size:
            return (array,)
        x = widen(array)
        shifted = x - x.max(axis=self.axis, keepdims=True)
        return (narrow(self._normalize_rows(shifted), array.dtype),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield Case("rows", cls(), (floats(5, 33, low=-9, high=9),))
        yield Case("one_row", cls(), (floats(1000, low=-9, high=9),))
        yield Case("channels", cls(axis=1), (floats(2, 17, 4, 5, low=-9, high=9),))
        yield Case("first_axis", cls(axis=0), (floats(7, 3, low=-9, high=9),))
        yield Case("one_element", cls(), (floats(4, 1),))
        yield Case("large_values", cls(), (floats(3, 9, low=500, high=600),))
        yield Case("empty_batch", cls(), (floats(0, 9),))
        x = floats(5, 65, dtype=np.float16, low=-9, high=9)
        yield Case("float16", cls(), (x,), HALF_TOLERANCE)


class Softmax(SoftmaxLike):
    """``exp(x) / sum(exp(x))`` along an axis, computed without overflow.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when the axis is out of range.

    Source: ONNX Softmax-13.
    """

    @override
    def _normalize_rows(self, shifted: Array, /) -> Array:
        powers = np.exp(shifted)
        return np.asarray(powers / powers.sum(axis=self.axis, keepdims=True))


class LogSoftmax(SoftmaxLike):
    """``x - log(sum(exp(x)))`` along an axis, computed without overflow.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when the axis is out of range.

    Source: ONNX LogSoftmax-13.
    """

    @override
    def _normalize_rows(self, shifted: Array, /) -> Array:
        return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=self.axis, keepdims=True)))


class Hardmax(SoftmaxLike):
    """1 at the first largest element along an axis, 0 elsewhere.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when the axis is out of range.

    Source: ONNX Hardmax-13.
    """

    @override
    def _normalize_rows(self, shifted: Array, /) -> Array:
        first = np.expand_dims(shifted.argmax(axis=self.axis), self.axis)
        y = np.zeros_like(shifted)
        np.put_along_axis(y, first, 1, axis=self.axis)
        return y
