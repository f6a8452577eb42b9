"""Products of integers with any zero points become products that kernels of bytes know.

Those take signed constant weights without a zero point, and activations with a constant one. The
rest follows from multiplying out: sum((x - a)(w - b)) is sum((x - a) w) - b sum(x - a); and an
``a`` that only a run finds out leaves the sum as a sum(w). All of it is exact, in integers; both
zero points may be what only a run finds out, but not the weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt import ops
from smelt.ir import FreshNames
from smelt.passes._base import Note, Pass, PassResult
from smelt.passes._node_emitter import Emitter
from smelt.passes._patterns import required_input
from smelt.passes._quant_params import elements
from smelt.types import DType, fixed_shape, override

if TYPE_CHECKING:
    from smelt.ir import Graph, Node, Value
    from smelt.types import Dim

    Integers = ops.ConvInteger | ops.MatMulInteger

_MIDDLE = 128
_LONGEST_EXACT = (1 << 24) // 255**2
"""So many products of two bytes less their zero points have a sum that float32 holds."""
_BIAS = 4


@dataclass(frozen=True)
class FoldZeroPoints(Pass):
    """Take zero points out of products of integers."""

    name: ClassVar[str] = "fold-zero-points"

    kernels: bool = True
    """Whether the backend multiplies bytes; else short sums are left to float32."""

    @override
    def apply(self, graph: Graph) -> PassResult:
        notes: list[Note] = []
        names = FreshNames(graph)
        for node in list(graph.nodes):
            if not isinstance(node.op, ops.ConvInteger | ops.MatMulInteger):
                continue
            layers, product = node.layers, _Product(Emitter(graph, node, names), node, node.op)
            if len(node.inputs) > _BIAS or (self.kernels and product.is_simple):
                continue
            made = product.in_integers() if self.kernels else None
            how = "in float32" if made is None else "with separate zero points"
            made = product.in_floats() if made is None else made
            if made is None:
                notes.append(
                    Note.refusal(layers, "its weights are not constant, and its sums are long")
                )
            else:
                product.emit.finish(made)
                notes.append(Note(layers, layers, f"multiplies integers {how}"))
        return PassResult.of(notes)


@dataclass(frozen=True, slots=True)
class _Product:
    """One product, and what takes its place."""

    emit: Emitter
    node: Node
    op: Integers

    @property
    def x(self) -> Value:
        return required_input(self.node, 0)

    @property
    def weights(self) -> Value:
        return required_input(self.node, 1)

    def _zero(self, index: int) -> Value | None:
        """The zero point that is input ``index``; None where it is nothing."""
        value = self.node.inputs[index] if index < len(self.node.inputs) else None
        return value if value is None or any(elements(value)) or not elements(value) else None

    @property
    def is_simple(self) -> bool:
        """Whether the kernels take it as it is."""
        x_zero = self.node.inputs[2] if len(self.node.inputs) > 2 else None  # even if it is nothing
        signed = self.weights.tensor.dtype is DType.INT8
        constant = x_zero is None or len(elements(x_zero)) == 1
        return self.weights.constant is not None and signed and constant and not self._zero(3)

    def in_integers(self) -> Value | None:
        """Products of signed weights, and what is to be taken off; None where they vary."""
        if self.weights.constant is None:
            return None
        if isinstance(self.op, ops.MatMulInteger) and self.weights.tensor.rank != 2:
            return None
        weights, offset = self._signed(self._zero(3))
        total = self._sums(self.op, weights)
        if total is None or offset is None:
            return total
        plain = self._plain_sums(weights)
        if plain is None:
            return None
        behind = 0 if isinstance(self.op, ops.MatMulInteger) else weights.tensor.rank - 2
        taken = self.emit.op(ops.Mul(), plain, self._spread(offset, behind), hint="offset")
        return self.emit.op(ops.Sub(), total, taken, hint="sums")

    def _signed(self, zero: Value | None) -> tuple[Value, Value | None]:
        """The weights as int8, and their zero point as int32."""
        emit = self.emit
        offset = None if zero is None else emit.op(ops.Cast(DType.INT32), zero, hint="zero")
        if self.weights.tensor.dtype is DType.INT8:
            return self.weights, offset
        middle = emit.array(np.array(_MIDDLE, np.int32), "middle")
        moved = emit.op(ops.Sub(), emit.op(ops.Cast(DType.INT32), self.weights), middle)
        none = emit.array(np.array(0, np.int32), "zero")
        offset = emit.op(ops.Sub(), none if offset is None else offset, middle, hint="zero")
        weights = emit.op(ops.Cast(DType.INT8), moved, hint="weights")
        nothing = offset.constant is not None and not any(elements(offset))
        return weights, None if nothing else offset

    def _sums(self, op: Integers, weights: Value) -> Value | None:
        """The sums of what lies above the input's zero point, times signed weights."""
        emit, zero = self.emit, self._zero(2)
        if zero is None or len(elements(zero)) == 1:
            return emit.op(op, self.x, weights, zero, hint="sums")
        ones = self._ones(weights)
        if ones is None:
            return None
        each = emit.op(op, ones, weights, hint="weights")
        total = emit.op(op, self.x, weights, hint="sums")
        zero = self._spread(emit.op(ops.Cast(DType.INT32), zero, hint="zero"), 1)
        return emit.op(ops.Sub(), total, emit.op(ops.Mul(), each, zero, hint="shift"), hint="sums")

    def _ones(self, weights: Value) -> Value | None:
        """An input of ones, as large as it must be for each sum of weights to be in the result."""
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

    def _plain_sums(self, weights: Value) -> Value | None:
        """The sums of what lies above the input's zero point."""
        op, shape = self.op, fixed_shape(weights.tensor.shape)
        if isinstance(op, ops.MatMulInteger):
            return self._sums(op, self.emit.array(np.ones((shape[0], 1), np.int8), "ones"))
        if op.group not in {1, shape[0]}:
            return None  # each group's sum would have to be repeated
        return self._sums(op, self.emit.array(np.ones((op.group, *shape[1:]), np.int8), "ones"))

    def _spread(self, zero: Value, behind: int) -> Value:
        """Zero points with so many axes behind, unless one is for all."""
        if not behind or zero.tensor.rank == 0 or zero.tensor.shape == (1,):
            return zero
        return self.emit.op(ops.Reshape(), zero, self.emit.integers(-1, *[1] * behind))

    def in_floats(self) -> Value | None:
        """The same with real numbers, if their sums are short enough to be exact."""
        shape = self.weights.tensor.shape
        convolves = isinstance(self.op, ops.ConvInteger)
        extents = shape[1:] if convolves else shape[-2:-1] or shape
        if not all(isinstance(extent, int) for extent in extents):
            return None
        if prod(fixed_shape(extents)) > _LONGEST_EXACT:
            return None
        x, weights = self._real(0), self._real(1)
        op = self.op.real if isinstance(self.op, ops.ConvInteger) else ops.MatMul()
        return self.emit.op(ops.Cast(DType.INT32), self.emit.op(op, x, weights, hint="sums"))

    def _real(self, index: int) -> Value:
        """Input ``index`` above its zero point, in float32."""
        emit = self.emit
        value = emit.op(ops.Cast(DType.FLOAT32), required_input(self.node, index))
        zero = self._zero(2 + index)
        if zero is None:
            return value
        behind = 1 - index if isinstance(self.op, ops.MatMulInteger) else value.tensor.rank - 1
        zero = self._spread(emit.op(ops.Cast(DType.FLOAT32), zero), behind)
        return emit.op(ops.Sub(), value, zero)
