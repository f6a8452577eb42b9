"""Reductions over any axes, in any layout, in a fixed order of additions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from smelt.backends import Family, LaunchScalars, NodeRefusedError, Operands, Tactic
from smelt.backends._node_operands import constant_input, input_view, required_input
from smelt.backends.cpu import _math as m
from smelt.backends.cpu._elementwise import to_compute_type, to_storage_type
from smelt.backends.cpu._emit import (
    LLVM_TYPES,
    Emitter,
    Reg,
    element_type,
    lane_count,
    type_suffix,
    vector_type,
)
from smelt.backends.cpu._kernel_spec import kernel_spec
from smelt.backends.cpu._loop_nest import LoopNest, axes_along, write_loop_nest
from smelt.backends.cpu._refusals import check_dtype
from smelt.engine import KernelSpec, Launch, Step, View
from smelt.ops import (
    GlobalAveragePool,
    GlobalMaxPool,
    ReduceMax,
    ReduceMean,
    ReduceMin,
    ReduceProd,
    ReduceSum,
)
from smelt.types import DType, Layout, TensorFormat, element_count, override

if TYPE_CHECKING:
    from smelt.backends._iteration_space import Axis
    from smelt.backends.cpu._emit import Int
    from smelt.backends.cpu._target import CpuTarget
    from smelt.ir import Node

_OPS: Final = (ReduceSum, ReduceMean, ReduceMax, ReduceMin, ReduceProd)
_POOLS: Final[dict[type, str]] = {GlobalAveragePool: ReduceMean.name, GlobalMaxPool: ReduceMax.name}
"""Global pools as reductions over the spatial axes, for linear layouts, where these are
contiguous."""
_INDEPENDENT_SUMS: Final = 4
"""Number of accumulators of a contiguous line, so that additions do not wait for each other. Four
sums reduce the global mean of 2048x7x7 from 41.5 to 5.4 µs, the saved copy included
(docs/lab/pooling.md)."""
_FIRST: Final = {
    "reduce_sum": 0.0,
    "reduce_mean": 0.0,
    "reduce_prod": 1.0,
    "reduce_max": float("-inf"),
    "reduce_min": float("inf"),
}
"""Neutral element of each reduction in floating point."""
_TYPES: Final = {
    DType.FLOAT32: "float",
    DType.FLOAT64: "double",
    DType.FLOAT16: "float",
    DType.BFLOAT16: "float",
    DType.INT32: "i32",
    DType.INT64: "i64",
    DType.INT8: "i32",
    DType.UINT8: "i32",
    DType.BOOL: "i32",
}
"""LLVM type in which elements are accumulated."""
_BYTES: Final = {
    DType.INT8: ("sext", -128, 127),
    DType.UINT8: ("zext", 0, 255),
    DType.BOOL: ("zext", 0, 1),
}
"""For each 8-bit type, how it is widened, and its smallest and largest value."""
_BOUNDED: Final = ("reduce_max", "reduce_min")
"""Reductions whose neutral element depends on the element type."""


class ReduceFamily(Family["CpuTarget"]):
    """Sum, mean, maximum, minimum and product over any axes.

    float16 and bfloat16 are accumulated in float32.
    """

    name: ClassVar[str] = "reduce"
    supports_reduced_precision: ClassVar[bool] = True

    @override
    def tactics(self, node: Node, target: CpuTarget) -> Iterator[Tactic]:
        is_pool = type(node.op) in _POOLS
        if not isinstance(node.op, _OPS) and not is_pool:
            return
        source = required_input(node, 0)
        dtype = source.tensor.dtype
        check_dtype("the input", dtype, *_TYPES)
        if dtype in _BYTES and not isinstance(node.op, ReduceMax | ReduceMin | GlobalMaxPool):
            raise NodeRefusedError(
                f"{node.op.name} of {dtype.value} would overflow and is not supported"
            )
        reduced_axes(node)
        absent = (None,) * (len(node.inputs) - 1)
        layouts: tuple[Layout, ...] = (Layout.LINEAR,)
        if source.tensor.rank >= 3 and not is_pool:
            layouts = (Layout.CHANNELS_LAST, Layout.LINEAR)
        for layout in layouts:
            for result_layout in (
                layouts if node.output.tensor.rank == source.tensor.rank else (Layout.LINEAR,)
            ):
                if result_layout in (layout, Layout.LINEAR):
                    formats = (TensorFormat(dtype, layout), *absent)
                    result = (TensorFormat(dtype, result_layout),)
                    yield Tactic(self.name, (), formats, result, estimated_seconds=5e-6)

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        source, result = input_view(operands, 0), operands.outputs[0]
        kept, reduced = _part(source, result, reduced_axes(node))
        scalars = LaunchScalars()
        loop_nest = LoopNest.over(kept, 2, element_count(tuple(a.extent for a in reduced)))
        spec = kernel_spec(
            self.name,
            op=_POOLS.get(type(node.op), node.op.name),
            dtypes=(source.dtype.value, result.dtype.value),
            loop_nest=loop_nest.json(scalars),
            reduced=tuple(a.json(scalars) for a in reduced),
        )
        return (Launch(spec, (source, result), (1,), scalars.values, loop_nest.chunks),)

    @override
    def generate(self, kernel: KernelSpec, target: CpuTarget) -> str:
        e = Emitter(kernel.symbol, 2)
        dtype, result_dtype = (DType(d) for d in kernel["dtypes"])
        lanes = target.vector_bits // 8 // max(4, dtype.size_bytes)
        reduced = [tuple(e.extent(x) for x in axis) for axis in kernel["reduced"]]
        reduction = _ReductionWriter(e, kernel["op"], dtype, result_dtype, reduced)

        def row(starts: Sequence[Reg], first: Int, last: Int, strides: tuple[Int, ...]) -> None:
            across = lanes if reduced and reduced[-1][1] == 1 else 1
            for index, width in e.vector_steps(first, last, lanes if strides == (1, 1) else 1):
                reduction.column(starts, strides, index, width, across if width == 1 else 1)

        sizes = [dtype.size_bytes, result_dtype.size_bytes]
        return write_loop_nest(e, kernel["loop_nest"], sizes, row)


def reduced_axes(node: Node) -> tuple[int, ...]:
    """Return the axes that a reduction removes, counted from 0.

    Raises:
        NodeRefusedError: they are not constant.
    """
    rank = required_input(node, 0).tensor.rank
    if not isinstance(node.op, _OPS):
        return tuple(range(2, rank))
    if len(node.inputs) < 2 or node.inputs[1] is None:
        return node.op.axes(rank, None)
    axes = constant_input(node, 1)
    if axes is None:
        raise NodeRefusedError("the axes are not constant")
    return node.op.axes(rank, tuple(int(a) for a in axes.reshape(-1)))


def _part(source: View, result: View, axes: tuple[int, ...]) -> tuple[list[Axis], list[Axis]]:
    """Return the axes that remain, with their strides in input and output, and the reduced ones.

    The axes are without those of extent 1, and merged where contiguous.
    """
    keeps_rank = len(result.shape) == len(source.shape)
    strides_out = iter(s for a, s in enumerate(result.strides) if not (keeps_rank and a in axes))
    rank = len(source.shape)
    written = tuple(0 if a in axes else next(strides_out) for a in range(rank))
    kept = [a for a in range(rank) if a not in axes]
    return (
        axes_along(source.shape, [source.strides, written], kept),
        axes_along(source.shape, [source.strides], axes),
    )


@dataclass(frozen=True, slots=True)
class _ReductionWriter:
    """Writes the reduction of one output, or of several side by side."""

    e: Emitter
    op: str
    dtype: DType
    """Element type of the input."""
    result_dtype: DType
    """Element type of the result."""
    reduced: Sequence[tuple[Int, ...]]
    """Extent and stride of each reduced axis."""

    def column(
        self, starts: Sequence[Reg], strides: tuple[Int, ...], index: Reg, lanes: int, across: int
    ) -> None:
        """Reduce ``lanes`` outputs side by side, or one with ``across`` lanes along its axis."""
        e, size = self.e, self.dtype.size_bytes
        pointer = e.at(starts[0], e.mul(index, e.mul(strides[0], size)))
        width = max(lanes, across)
        start, single = (self.first(w) for w in (width, 1))
        total, rest = self._nest(self.reduced, pointer, (start, single), width, across)
        if across > 1:
            total = combine(e, self.op, reduce_lanes(e, self.op, total), rest)
        if self.op == "reduce_mean":
            total = self._divided(total, lanes)
        if self.dtype in _BYTES:
            result = e.convert("trunc", total, LLVM_TYPES[self.dtype])
        else:
            result = to_storage_type(e, total, self.result_dtype)
        target = e.at(starts[1], e.mul(index, e.mul(strides[1], self.result_dtype.size_bytes)))
        e.store(result, target)

    def first(self, lanes: int) -> Reg:
        """Return the neutral element of the reduction."""
        kind = _TYPES[self.dtype]
        value = _FIRST[self.op]
        if kind.startswith("i") and self.op in _BOUNDED:
            bits = 8 * self.dtype.size_bytes - 1
            limits = (-(1 << bits), (1 << bits) - 1)
            if self.dtype in _BYTES:
                limits = _BYTES[self.dtype][1:]
            value = limits[self.op == "reduce_min"]
        return self.e.constant(value, vector_type(kind, lanes))

    def _load(self, at: Reg, lanes: int) -> Reg:
        """Load elements as the type in which they are accumulated."""
        kind = vector_type(LLVM_TYPES[self.dtype], lanes)
        stored = self.e.load(kind, at)
        if self.dtype in _BYTES:
            return self.e.convert(_BYTES[self.dtype][0], stored, _TYPES[self.dtype])
        return to_compute_type(self.e, stored, self.dtype)

    def _divided(self, total: Reg, lanes: int) -> Reg:
        """Return the total divided by the number of reduced elements."""
        e, kind = self.e, _TYPES[self.dtype]
        count = e.product(extent for extent, _ in self.reduced)
        if kind.startswith("i"):
            count = e.maximum(count, 1)  # integer division by zero would raise a signal
            number = e.i64(count) if kind == "i64" else e.convert("trunc", e.i64(count), kind)
            return e.binary("sdiv", total, e.splat(number, lanes))
        number = e.emit(kind, f"sitofp {e.i64(count)} to {kind}")
        return e.binary("fdiv", total, e.splat(number, lanes))

    def _nest(
        self,
        reduced: Sequence[tuple[Int, ...]],
        pointer: Reg,
        totals: tuple[Reg, Reg],
        lanes: int,
        across: int,
    ) -> tuple[Reg, Reg]:
        """Write the loops over the reduced axes, and return two totals.

        The first total covers full vectors, the second the elements beyond them.
        """
        e, op, size = self.e, self.op, self.dtype.size_bytes
        if not reduced:
            return combine(e, op, totals[0], self._load(pointer, lanes)), totals[1]
        (extent, stride), *inner = reduced
        if inner or across == 1:
            with e.loop(0, extent, carried=totals) as steps:
                at = e.at(pointer, e.mul(steps.index, e.mul(stride, size)))
                carried = (steps.values[0], steps.values[1])
                steps.carry = self._nest(inner, at, carried, lanes, across)
            return steps.values[0], steps.values[1]
        unrolled_total, unrolled_end = self._reduce_vectors(extent, pointer, totals[0], lanes)
        full_end = e.mul(e.div(extent, across), across)
        with e.loop(unrolled_end, full_end, across, carried=(unrolled_total,)) as steps:
            at = e.at(pointer, e.mul(steps.index, size))
            steps.carry = (combine(e, op, steps.values[0], self._load(at, lanes)),)
        with e.loop(full_end, extent, carried=totals[1:]) as singles:
            at = e.at(pointer, e.mul(singles.index, size))
            singles.carry = (combine(e, op, singles.values[0], self._load(at, 1)),)
        return steps.values[0], singles.values[0]

    def _reduce_vectors(self, extent: Int, pointer: Reg, total: Reg, lanes: int) -> tuple[Reg, Int]:
        """Reduce several vectors per iteration into independent accumulators.

        Return the combined total and the number of elements that it covers.
        """
        e, op, size = self.e, self.op, self.dtype.size_bytes
        step = _INDEPENDENT_SUMS * lanes
        if isinstance(extent, int) and extent < step:
            return total, 0
        unrolled_end = e.mul(e.div(extent, step), step)
        totals = [total, *[self.first(lanes)] * (_INDEPENDENT_SUMS - 1)]
        with e.loop(0, unrolled_end, step, carried=totals) as steps:
            at = e.at(pointer, e.mul(steps.index, size))
            loads = [
                self._load(e.at(at, k * lanes * size), lanes) for k in range(_INDEPENDENT_SUMS)
            ]
            pairs = zip(steps.values, loads, strict=True)
            steps.carry = [combine(e, op, before, x) for before, x in pairs]
        a, b, c, d = steps.values
        return combine(e, op, combine(e, op, a, b), combine(e, op, c, d)), unrolled_end


def combine(e: Emitter, op: str, a: Reg, b: Reg) -> Reg:
    """Return one step of a reduction: ``a`` combined with ``b``."""
    if element_type(a.type).startswith("i"):
        return _combine_integers(e, op, a, b)
    selections: dict[str, Callable[[Emitter, Reg, Reg], Reg]] = {
        "reduce_max": m.larger,
        "reduce_min": m.smaller,
        "max_number": m.max_number,
    }
    if op in selections:
        return selections[op](e, a, b)
    return e.binary("fmul" if op == "reduce_prod" else "fadd", a, b)


def _combine_integers(e: Emitter, op: str, a: Reg, b: Reg) -> Reg:
    """Return one step of an integer reduction."""
    if op in ("reduce_max", "reduce_min"):
        name = "smax" if op == "reduce_max" else "smin"
        return e.call(a.type, f"llvm.{name}.{type_suffix(a.type)}", a, b)
    return e.binary("mul" if op == "reduce_prod" else "add", a, b)


def reduce_lanes(e: Emitter, op: str, vector: Reg) -> Reg:
    """Reduce a vector to a scalar in a balanced tree.

    The order of operations is fixed, so the result does not depend on the target's instructions.
    """
    lanes = lane_count(vector.type)
    while lanes > 1:
        lanes //= 2
        low, high = (_half(e, vector, start, lanes) for start in (0, lanes))
        vector = combine(e, op, low, high)
    return vector


def _half(e: Emitter, vector: Reg, start: int, lanes: int) -> Reg:
    """Return ``lanes`` lanes of a vector from ``start`` on."""
    if lanes == 1:
        return e.emit(element_type(vector.type), f"extractelement {vector}, i64 {start}")
    return e.shuffle(vector, Reg("poison", vector.type), range(start, start + lanes))
