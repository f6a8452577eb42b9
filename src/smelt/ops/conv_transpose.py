"""ConvTranspose: transposed convolution (deconvolution), optionally in groups."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import prod
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.errors import ShapeError
from smelt.ir import Case, Operand
from smelt.ops._conformance_data import HALF_TOLERANCE, floats
from smelt.ops._reference_numerics import narrow, widen
from smelt.ops._shape import (
    FLOATS,
    input_type,
    known,
    optional_type,
    require_dtype,
    require_inputs,
    require_rank,
    require_same_dtype,
    require_shape,
    require_static,
)
from smelt.ops._shape_operands import optional_array, present
from smelt.ops._window import Windowed
from smelt.types import TensorType, assume_at_least, assume_divides, assume_equal, counted, override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array
    from smelt.types import Dim, Shape, ValueType


@dataclass(frozen=True)
class ConvTranspose(Windowed):
    """Transposed convolution: each input element adds its filters to a window of the output.

    Inputs are x, weights, and optionally a bias.

    Shapes: input ``[N, C, *spatial]``, weights ``[C, M / group, *kernel_shape]``, bias ``[M]``; an
    output extent is ``stride * (input - 1) + output_padding + (kernel - 1) * dilation + 1 - pads``.

    Dtypes: floating-point, one for all.

    Raises ShapeError: when channels, groups, kernel or ranks do not match, or the output is empty.

    Source: ONNX ConvTranspose-22; importers convert output_shape and auto_pad to pads.
    """

    name: ClassVar[str] = "conv_transpose"

    group: int = 1
    """Number of groups into which input and output channels are divided."""
    output_padding: tuple[int, ...] = ()
    """Number of elements that are added at the end of each spatial axis of the output."""

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        extra = self._numbers("output_padding", 0, len(self.kernel_shape))
        object.__setattr__(self, "output_padding", extra)

    def _extents(self, spatial: Shape) -> Shape:
        """Return the spatial extents of the output. Raises ShapeError when one is not positive."""
        extents: list[Dim] = []
        for axis, extent in enumerate(spatial):
            reach = (self.kernel_shape[axis] - 1) * self.dilations[axis] + 1
            constant = reach + self.output_padding[axis] - sum(self.pad_pairs[axis])
            if not assume_at_least(extent, 1, f"axis {axis + 2} of input 0"):
                raise ShapeError(f"axis {axis + 2} of the input has no elements")
            result = (extent - 1) * self.strides[axis] + constant
            if not assume_at_least(result, 1, f"axis {axis + 2} of the result"):
                raise ShapeError(
                    f"pads {self.pads} leave {result} elements on axis {axis + 2} of the output"
                )
            extents.append(result)
        return tuple(extents)

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_inputs(self, inputs, 2, 3)
        x, w = input_type(self, inputs, 0), input_type(self, inputs, 1)
        bias = optional_type(self, inputs, 2)
        require_dtype(x, FLOATS, "the input of conv_transpose")
        require_same_dtype(x, w, bias)
        require_rank(x, "the input of conv_transpose", len(self.kernel_shape) + 2)
        require_rank(w, "the weight tensor of conv_transpose", x.rank)
        channels, depth, *_ = w.shape
        require_shape(w, (channels, depth, *self.kernel_shape), "the weight tensor")
        if not assume_equal(x.shape[1], channels, "axis 1 of input 0 and axis 0 of input 1"):
            has = counted(x.shape[1], "channel")
            raise ShapeError(f"the input has {has}, the weights have {channels}")
        shared = known(x.shape[1], channels)
        if self.group < 1 or not assume_divides(
            self.group, shared, "axis 1 of input 0 and the groups"
        ):
            raise ShapeError(f"{shared} channels are not divisible by {self.group} groups")
        filters = depth * self.group
        require_shape(bias, (filters,), "the bias of conv_transpose")
        return (TensorType(x.dtype, (x.shape[0], filters, *self._extents(x.shape[2:]))),)

    @override
    def count_flop(self, inputs: Sequence[Operand | None], /) -> Dim:
        return self._tap_flop(inputs, input_type(self, inputs, 0).shape)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, w = widen(present(inputs, 0)), widen(present(inputs, 1))
        bias = optional_array(inputs, 2)
        batch, channels, *spatial = x.shape
        groups, filters, axes = self.group, w.shape[1] * self.group, len(spatial)
        grouped = np.moveaxis(x.reshape(batch, groups, channels // groups, prod(spatial)), 1, 0)
        weights = w.reshape(groups, channels // groups, w.shape[1], prod(self.kernel_shape))
        extents = require_static(self._extents(x.shape[2:]), "the extents")
        reach = [a + sum(p) for a, p in zip(extents, self.pad_pairs, strict=True)]
        full = np.zeros((batch, filters, *reach), x.dtype)
        for number, tap in enumerate(product(*map(range, self.kernel_shape))):
            taps = weights[..., number].transpose(0, 2, 1)[:, None]
            part = np.moveaxis(np.matmul(taps, grouped), 0, 1).reshape(batch, filters, *spatial)
            where = tuple(
                slice(k * d, k * d + n * s, s)
                for k, d, s, n in zip(tap, self.dilations, self.strides, spatial, strict=True)
            )
            full[(slice(None), slice(None), *where)] += part
        kept = tuple(slice(p[0], p[0] + e) for p, e in zip(self.pad_pairs, extents, strict=True))
        y = full[(slice(None), slice(None), *kept)]
        if bias is not None:
            y = y + widen(bias).reshape(-1, *[1] * axes)
        return (narrow(y, present(inputs, 0).dtype),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        def case(name: str, op: ConvTranspose, x: tuple[int, ...], filters: int, seed: int) -> Case:
            weights = floats(x[1], filters // op.group, *op.kernel_shape, seed=seed)
            offsets = floats(filters, seed=seed + 1) if seed % 2 else None
            return Case(name, op, (floats(*x), weights, offsets), constants=frozenset({1, 2}))

        yield case("2x2_stride", cls((2, 2), (2, 2)), (1, 3, 5, 7), 17, 1)
        yield case("4x4_bilinear", cls((4, 4), (2, 2), (1, 1, 1, 1)), (2, 17, 4, 3), 3, 2)
        yield case("3x3_unit_stride", cls((3, 3), (1, 1), (1, 0, 0, 1)), (1, 33, 5, 5), 4, 3)
        grown = cls((3, 3), (2, 3), (1, 1, 1, 1), output_padding=(1, 2))
        yield case("output_padding", grown, (1, 5, 4, 6), 6, 5)
        yield case("dilated", cls((3, 2), (2, 1), (0, 1, 1, 0), (2, 3)), (1, 4, 5, 4), 4, 4)
        yield case("two_groups", cls((3, 3), (2, 2), group=2), (1, 6, 4, 5), 10, 7)
        yield case("depthwise", cls((4, 4), (2, 2), (1, 1, 1, 1), group=9), (1, 9, 5, 5), 9, 6)
        yield case("one_axis", cls((3,), (2,), (1, 0)), (2, 3, 7), 5, 9)
        yield case("three_axes", cls((2, 2, 3), (2, 1, 2)), (1, 2, 3, 4, 3), 3, 8)
        half = np.float16
        arrays = (floats(1, 9, 4, 4, dtype=half), floats(9, 5, 3, 3, dtype=half, seed=1))
        yield Case("float16", cls((3, 3)), arrays, HALF_TOLERANCE, frozenset({1}))
