"""Cast: conversion of elements to another type."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from smelt.ir import Array, Case, Operand
from smelt.ops._base import Elementwise
from smelt.ops._reference_numerics import narrow, truncate
from smelt.ops._shape import input_type, require_inputs
from smelt.ops._shape_operands import known_dims, present
from smelt.types import Dim, DType, TensorType, ValueType, is_float_dtype, override


class Cast(Elementwise):
    """The elements converted to another type.

    Floats are rounded towards zero to integers; numbers out of range saturate, and NaN becomes 0.
    Integers wrap around when they are converted to narrower integers.

    Shapes: the input's.

    Dtypes: any to any; elements other than zero become True.

    Raises ShapeError: when there is not exactly one input.

    Source: ONNX Cast-21.
    """

    is_recipe_step = True

    to: DType
    """Element type of the result."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_inputs(self, inputs, 1)
        return (TensorType(self.to, input_type(self, inputs, 0).shape),)

    @override
    def infer_dims(self, inputs: Sequence[Operand | None], /) -> tuple[Dim, ...] | None:
        dims = known_dims(inputs, 0)
        wide = self.to in {DType.INT64, DType.INT32}
        limit = 1 << 31 if self.to is DType.INT32 else 1 << 63
        fits = dims is not None and all(not isinstance(d, int) or -limit <= d < limit for d in dims)
        return dims if wide and fits else None

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        array = present(inputs, 0)
        if self.to.is_integer and is_float_dtype(array.dtype):
            return (truncate(array, self.to.numpy),)
        return (narrow(array, self.to.numpy),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        numbers = np.array([[-2.7, -0.5, 0.0], [0.5, 2.7, 100.4]])
        names = ("float32", "float16", "float64", "int32", "int64", "int8", "uint8", "bool")
        for target in names:
            for source in ("float32", "int64"):
                if source != target:
                    array = np.abs(numbers) if target == "uint8" else numbers
                    yield Case(f"{source} to {target}", cls(DType(target)), (array.astype(source),))
        yield Case("bool to float32", cls(DType.FLOAT32), (np.array([True, False]),))
        yield Case("int32 wraps to int8", cls(DType.INT8), (np.array([127, 128, -129], np.int32),))
        special = np.array([np.nan, np.inf, -np.inf, 70000.0], np.float32)
        yield Case("NaN and infinity to float16", cls(DType.FLOAT16), (special,))
        beyond = np.array([-np.inf, -1e30, -3e9, -129.5, -0.9, 300, 7e4, 5e9, 1e30, np.inf, np.nan])
        for target in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"):
            for source in ("float32", "float64"):
                name = f"{source} beyond {target}"
                yield Case(name, cls(DType(target)), (beyond.astype(source),))
        yield Case("scalar", cls(DType.INT32), (np.array(3.9, np.float32),))
