"""Rewrite integer products with arbitrary zero points for the byte kernels.

These kernels take constant int8 weights with zero point 0, and activations with a constant zero
point. With x - a and w - b multiplied out, sum((x - a)(w - b)) is sum((x - a) w) - b sum(x - a). If
``a`` is only known at run time, sum((x - a) w) is sum(x w) - a sum(w). Everything is exact integer
arithmetic. Both zero points may be computed at run time, but the weights must be constant.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from smelt import ops
from smelt.ir import FreshNames, Graph, Node, Value, fix_numbers
from smelt.passes._base import NodePass, Note
from smelt.passes._node_emitter import NodeEmitter
from smelt.passes._patterns import input_at, required_input
from smelt.passes._quant_params import elements
from smelt.types import Dim, DType, fixed_shape, override

if TYPE_CHECKING:
    Integers = ops.ConvInteger | ops.MatMulInteger

_UINT8_MIDDLE = 128
"""Difference between a uint8 and the int8 that represents it."""
_MAX_EXACT_PRODUCTS = (1 << 24) // 255**2
"""Largest number of products of two bytes less their zero points whose sum float32 represents
exactly.
"""
_BIAS = 4
"""Index of the bias among the inputs; a product with a bias is already in its final form."""


@dataclass(frozen=True)
class FoldZeroPoints(NodePass):
    """Remove zero points from integer products."""

    kernels: bool = True
    """Whether the backend has byte kernels. If not, sums short enough to be exact use float32."""

    @override
    def rewrite(self, graph: Graph, node: Node, names: FreshNames) -> Note | None:
        if not isinstance(node.op, ops.ConvInteger | ops.MatMulInteger):
            return None
        layers = node.layers
        product = _IntegerProduct(NodeEmitter(graph, node, names), node, node.op)
        if len(node.inputs) > _BIAS or (self.kernels and product.is_simple):
            return None
        result = product.in_integers() if self.kernels else None
        how = "in float32" if result is None else "with separate zero points"
        result = product.in_floats() if result is None else result
        if result is None:
            reason = (
                "its weights are not constant, and its sums are too long to be exact in float32"
            )
            return Note.refusal(layers, reason)
        product.emit.finish(result)
        return Note(layers, layers, f"multiplies integers {how}")


@dataclass(frozen=True, slots=True)
class _IntegerProduct:
    """One integer product and the rules that rewrite it."""

    emit: NodeEmitter
    node: Node
    op: Integers

    @property
    def x(self) -> Value:
        return required_input(self.node, 0)

    @property
    def weights(self) -> Value:
        return required_input(self.node, 1)

    def _zero(self, index: int) -> Value | None:
        """Return the zero point at input ``index``, or None if it is absent or zero."""
        value = input_at(self.node, index)
        if value is None or any(elements(value)) or not elements(value):
            return value
        fix_numbers(value)
        return None

    @property
    def is_simple(self) -> bool:
        """Whether the kernels support the product as it is."""
        x_zero = input_at(self.node, 2)  # also if it is a constant 0
        signed = self.weights.tensor.dtype is DType.INT8
        constant = x_zero is None or len(elements(x_zero)) == 1
        return self.weights.constant is not None and signed and constant and not self._zero(3)

    def in_integers(self) -> Value | None:
        """Return the product in terms of int8 weights and corrections, or None.

        None means that the weights are not constant, or that a correction cannot be computed.
        """
        if self.weights.constant is None:
            return None
        if isinstance(self.op, ops.MatMulInteger) and self.weights.tensor.rank != 2:
            return None
        weights, offset = self._signed(self._zero(3))
        total = self._sums(self.op, weights)
        if total is None or offset is None:
            return total
        input_sums = self._input_sums(weights)
        if input_sums is None:
            return None
        trailing_axes = 0 if isinstance(self.op, ops.MatMulInteger) else weights.tensor.rank - 2
        spread = self._spread(offset, trailing_axes)
        correction = self.emit.op(ops.Mul(), input_sums, spread, hint="offset")
        return self.emit.op(ops.Sub(), total, correction, hint="sums")

    def _signed(self, zero: Value | None) -> tuple[Value, Value | None]:
        """Return the weights as int8, and their zero point as int32 (None if it is 0)."""
        emit = self.emit
        offset = None if zero is None else emit.op(ops.Cast(DType.INT32), zero, hint="zero")
        if self.weights.tensor.dtype is DType.INT8:
            return self.weights, offset
        middle = emit.array(np.array(_UINT8_MIDDLE, np.int32), "middle")
        shifted = emit.op(ops.Sub(), emit.op(ops.Cast(DType.INT32), self.weights), middle)
        zero_constant = emit.array(np.array(0, np.int32), "zero")
        start = zero_constant if offset is None else offset
        offset = emit.op(ops.Sub(), start, middle, hint="zero")
        weights = emit.op(ops.Cast(DType.INT8), shifted, hint="weights")
        if offset.constant is None or any(elements(offset)):
            return weights, offset
        fix_numbers(offset)
        return weights, None

    def _sums(self, op: Integers, weights: Value) -> Value | None:
        """Return the sums of (input - zero point) times int8 weights.

        A zero point that is only known at run time is applied to the sums of the weights.
        """
        emit, zero = self.emit, self._zero(2)
        if zero is None or len(elements(zero)) == 1:
            return emit.op(op, self.x, weights, zero, hint="sums")
        ones = self._ones(weights)
        if ones is None:
            return None
        weight_sums = emit.op(op, ones, weights, hint="weights")
        total = emit.op(op, self.x, weights, hint="sums")
        zero = self._spread(emit.op(ops.Cast(DType.INT32), zero, hint="zero"), 1)
        shift = emit.op(ops.Mul(), weight_sums, zero, hint="shift")
        return emit.op(ops.Sub(), total, shift, hint="sums")

    def _ones(self, weights: Value) -> Value | None:
        """Return an input of ones with which ``op`` computes the sums of the weights.

        A convolution with padding needs the full spatial extents, because windows at the borders
        sum fewer weights. Returns None if an extent is symbolic.
        """
        extents: tuple[Dim, ...] = self.x.tensor.shape[1:]
        if isinstance(self.op, ops.MatMulInteger):
            extents = weights.tensor.shape[:1]
        elif not any(self.op.pads):
            pairs = zip(self.op.kernel_shape, self.op.dilations, strict=True)
            extents = (extents[0], *((k - 1) * d + 1 for k, d in pairs))
        if not all(isinstance(extent, int) for extent in extents):
            return None
        rows = () if self.x.tensor.rank == 1 else (1,)
        ones = np.ones((*rows, *fixed_shape(extents)), np.uint8)
        return self.emit.array(ones, "ones")

    def _input_sums(self, weights: Value) -> Value | None:
        """Return the sums of (input - zero point) over each window or row."""
        op, shape = self.op, fixed_shape(weights.tensor.shape)
        if isinstance(op, ops.MatMulInteger):
            return self._sums(op, self.emit.array(np.ones((shape[0], 1), np.int8), "ones"))
        if op.group not in {1, shape[0]}:
            return None  # each group's sum would have to be repeated per filter
        return self._sums(op, self.emit.array(np.ones((op.group, *shape[1:]), np.int8), "ones"))

    def _spread(self, zero: Value, trailing_axes: int) -> Value:
        """Append axes of extent 1 to zero points, unless there is only one."""
        is_single = zero.tensor.shape in ((), (1,))
        return zero if is_single else self.emit.spread(zero, trailing_axes)

    def in_floats(self) -> Value | None:
        """Return the product in float32, or None if its sums may be too long to be exact."""
        shape = self.weights.tensor.shape
        convolves = isinstance(self.op, ops.ConvInteger)
        extents = shape[1:] if convolves else shape[-2:-1] or shape
        if not all(isinstance(extent, int) for extent in extents):
            return None
        if prod(fixed_shape(extents)) > _MAX_EXACT_PRODUCTS:
            return None
        x, weights = self._real(0), self._real(1)
        op = self.op.real if isinstance(self.op, ops.ConvInteger) else ops.MatMul()
        return self.emit.op(ops.Cast(DType.INT32), self.emit.op(op, x, weights, hint="sums"))

    def _real(self, index: int) -> Value:
        """Return input ``index`` minus its zero point, in float32."""
        emit = self.emit
        value = emit.op(ops.Cast(DType.FLOAT32), required_input(self.node, index))
        zero = self._zero(2 + index)
        if zero is None:
            return value
        is_product = isinstance(self.op, ops.MatMulInteger)
        trailing_axes = 1 - index if is_product else value.tensor.rank - 1
        zero = self._spread(emit.op(ops.Cast(DType.FLOAT32), zero), trailing_axes)
        return emit.op(ops.Sub(), value, zero)
