"""ConvInteger: convolution of int8 or uint8 tensors with int32 sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.ir import Case, Operand
from smelt.ops._conformance_data import integers
from smelt.ops._quantized import check_zero_point, subtract_zero_point, wrap_to_int32
from smelt.ops._shape import (
    input_type,
    optional_type,
    require_dtype,
    require_inputs,
    require_shape,
    result_shape,
)
from smelt.ops._shape_operands import optional_array, present
from smelt.ops._window import Windowed
from smelt.ops.conv import Conv
from smelt.types import DType, TensorType, override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array
    from smelt.types import Dim, ValueType

_INT8_TYPES = frozenset({DType.INT8, DType.UINT8})


@dataclass(frozen=True)
class ConvInteger(Windowed):
    """Exact correlation of ``x - x_zero_point`` with the filters ``w - w_zero_point``.

    Inputs are x, weights, and optionally x_zero_point, w_zero_point and a bias (an extension of
    ONNX). Padding has the value of the zero point, so it adds nothing. Sums wrap around in int32.

    Shapes: input ``[N, C, *spatial]``, weights ``[M, C / group, *kernel_shape]``; x_zero_point is
    one number, w_zero_point one or ``[M]``; bias ``[M]``; result ``[N, M, *windows]``.

    Dtypes: int8 or uint8, each zero point like its tensor; bias and result int32.

    Raises ShapeError: when channels, groups, kernel or ranks do not match, or no window fits.

    Source: ONNX ConvInteger-10, with a bias.
    """

    name: ClassVar[str] = "conv_integer"

    group: int = 1
    """Number of groups into which input and output channels are divided."""

    @property
    def real(self) -> Conv:
        """The same convolution for floating-point numbers."""
        return Conv(self.kernel_shape, self.strides, self.pads, self.dilations, self.group)

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_inputs(self, inputs, 2, 5)
        x, w = input_type(self, inputs, 0), input_type(self, inputs, 1)
        bias = optional_type(self, inputs, 4)
        for kind, what in ((x, "the input"), (w, "the weight tensor")):
            require_dtype(kind, _INT8_TYPES, f"{what} of {self.name}")
        check_zero_point(x, optional_type(self, inputs, 2), (), "x_zero_point")
        check_zero_point(w, optional_type(self, inputs, 3), w.shape[:1], "w_zero_point")
        if bias is not None:
            require_dtype(bias, {DType.INT32}, f"the bias of {self.name}")
            require_shape(bias, w.shape[:1], f"the bias of {self.name}")
        like = [Operand(TensorType(DType.FLOAT64, kind.shape)) for kind in (x, w)]
        (result,) = self.real.infer(like)
        shape = result.shape if isinstance(result, TensorType) else ()
        return (TensorType(DType.INT32, shape),)

    @override
    def count_flop(self, inputs: Sequence[Operand | None], /) -> Dim:
        return self._tap_flop(inputs, result_shape(self, inputs))

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x = subtract_zero_point(present(inputs, 0), optional_array(inputs, 2), None)
        w = subtract_zero_point(present(inputs, 1), optional_array(inputs, 3), 0)
        (total,) = self.real.reference(x, w)
        bias = optional_array(inputs, 4)
        if bias is not None:
            total = total + bias.reshape(-1, *[1] * (x.ndim - 2))
        return (wrap_to_int32(total),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        for kind in (np.uint8, np.int8):
            yield from _cases(cls, np.dtype(kind))
        x, w = _bytes(1, 5, 6, 6), _bytes(7, 5, 3, 3, dtype="uint8", seed=1)
        zeros = integers(7, dtype=np.uint8, high=256, seed=2)
        arrays = (x, w, np.array(9, np.uint8), zeros)
        yield Case("weights_with_zero_points", cls((3, 3)), arrays, constants=frozenset({1, 2, 3}))
        yield Case("varying_weights", cls((3, 3)), (x, w.astype(np.int8)))
        yield Case("varying_zero_point", cls((3, 3)), arrays[:3], constants=frozenset({1}))


def _bytes(*shape: int, dtype: str = "uint8", seed: int = 0) -> Array:
    """Return random int8 or uint8 numbers of the full range."""
    limits = np.iinfo(dtype)
    return integers(*shape, dtype=dtype, low=limits.min, high=limits.max + 1, seed=seed)


def _cases(op: type[ConvInteger], kind: np.dtype[np.uint8 | np.int8]) -> Iterator[Case]:
    """Yield the cases of one dtype."""

    def case(
        name: str, op: ConvInteger, x: tuple[int, ...], filters: int, *, bias: bool = True
    ) -> Case:
        weights = _bytes(filters, x[1] // op.group, *op.kernel_shape, dtype="int8", seed=1)
        offsets = integers(filters, low=-9999, high=9999, seed=2) if bias else None
        zero = np.array(113 if kind == np.uint8 else -17, kind)
        arrays = (_bytes(*x, dtype=kind.name), weights, zero, None, offsets)
        return Case(f"{name}_{kind.name}", op, arrays, constants=frozenset(range(1, 5)))

    same = (1, 1, 1, 1)
    yield case("1x1", op((1, 1)), (1, 3, 5, 7), 17)
    yield case("1x1_deep", op((1, 1)), (1, 64, 7, 7), 33)
    yield case("1x1_stride", op((1, 1), (2, 2)), (2, 34, 7, 9), 5)
    yield case("3x3_same", op((3, 3), pads=same), (1, 18, 9, 11), 33)
    yield case("3x3_no_bias", op((3, 3)), (1, 3, 5, 5), 1, bias=False)
    yield case("7x7_stride", op((7, 7), (2, 2), (3, 3, 3, 3)), (1, 3, 31, 29), 16)
    yield case("asymmetric_pads", op((3, 2), (2, 1), (0, 1, 2, 0)), (2, 4, 8, 7), 6)
    yield case("dilated", op((3, 3), (1, 1), (2, 2, 2, 2), (2, 2)), (1, 8, 9, 9), 8)
    yield case("two_groups", op((3, 3), pads=same, group=2), (1, 6, 7, 7), 34)
    yield case("depthwise", op((3, 3), (1, 1), same, group=17), (1, 17, 8, 9), 17)
    yield case("depthwise_point", op((1, 1), group=70), (1, 70, 5, 7), 70)
    yield case("depthwise_wide", op((3, 3), (1, 1), same, group=96), (1, 96, 9, 8), 96)
    yield case("depthwise_stride", op((5, 5), (2, 2), (2, 2, 2, 2), group=33), (2, 33, 9, 9), 33)
    yield case("depthwise_3_2", op((3, 3), (2, 2), same, group=70), (1, 70, 11, 10), 70)
    yield case("one_axis", op((3,), (2,), (1, 1)), (2, 3, 13), 5)
    yield case("three_axes", op((2, 2, 2)), (1, 2, 4, 5, 3), 3)
    yield case("empty_batch", op((3, 3)), (0, 3, 5, 5), 4)
