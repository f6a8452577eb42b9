"""Ops that scan one axis element by element: ArgMax, ArgMin, CumSum and TopK."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

from smelt.backends import Family, Operands, Refusal, Tactic
from smelt.backends._fused_programs import layouts_of
from smelt.backends._iteration_space import Axis, coalesce_axes, sort_axes
from smelt.backends._launch_scalars import LaunchScalars
from smelt.backends._node_operands import constant_input
from smelt.backends.cpu._elementwise import register_type, to_compute_type, to_storage_type
from smelt.backends.cpu._emit import (
    LLVM_TYPES,
    Emitter,
    Reg,
    element_type,
    emitter_for,
    vector_type,
)
from smelt.backends.cpu._loop_nest import LoopNest, emit_loop_nest
from smelt.engine import KernelSpec, Launch, parameters
from smelt.errors import InternalError
from smelt.ops import ArgMax, ArgMin, CumSum, TopK
from smelt.types import DType, Layout, TensorFormat, override

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from smelt.backends.cpu._emit import Int
    from smelt.backends.cpu._target import CpuTarget
    from smelt.engine import Step, View
    from smelt.ir import Node

_MAX_TOP_K: Final = 128
"""Largest k of TopK. Its elements are kept sorted by insertion, which is slow for more. Chosen
without a measurement."""
_EXTREMES: Final = (ArgMax, ArgMin)


class AxisScanFamily(Family["CpuTarget"]):
    """Scans along one axis; each line is one work item.

    Lines that are adjacent in memory are scanned side by side in the lanes of vectors, except by
    TopK.
    """

    name: ClassVar[str] = "axis_scan"

    @override
    def tactics(self, node: Node, target: CpuTarget) -> Iterator[Tactic | Refusal]:
        if not isinstance(node.op, (*_EXTREMES, CumSum, TopK)):
            return
        if reason := _unsupported_reason(node):
            yield Refusal(self.name, reason)
            return
        source = node.inputs[0]
        if source is None:
            raise InternalError(f"{node} has no input")
        rank = source.tensor.rank
        keeps_rank = all(v.tensor.rank == rank for v in node.outputs)
        for layout in reversed(layouts_of(rank)):
            inputs = (TensorFormat(source.tensor.dtype, layout), *(None for _ in node.inputs[1:]))
            result_layout = layout if keeps_rank else Layout.LINEAR
            results = tuple(TensorFormat(v.tensor.dtype, result_layout) for v in node.outputs)
            yield Tactic(self.name, (), inputs, results, cost_hint=5e-6)

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        source = operands.inputs[0]
        if source is None:
            raise InternalError(f"{node} has no input")
        axis = _axis(node) % len(source.shape)
        results = [_with_axis(v, axis, len(source.shape)) for v in operands.outputs]
        views = (source, *operands.outputs)
        strides = [source.strides, *results]
        axes = [
            Axis(extent, tuple(s[a] for s in strides))
            for a, extent in enumerate(source.shape)
            if a != axis and extent != 1
        ]
        loop_nest = LoopNest.over(coalesce_axes(sort_axes(axes, 0)), len(views))
        scalars = LaunchScalars()
        along = Axis(source.shape[axis], tuple(s[axis] for s in strides))
        top_k = operands.outputs[0].shape[axis] if isinstance(node.op, TopK) else 0
        spec = KernelSpec(
            self.name,
            parameters(
                op=node.op.name,
                options=_options(node),
                dtype=source.dtype.value,
                along=along.json(scalars),
                top_k=scalars.json(top_k),
                loop_nest=loop_nest.json(scalars),
            ),
        )
        writes = tuple(range(1, len(views)))
        return (Launch(spec, views, writes, scalars.values, loop_nest.chunks),)

    @override
    def generate(self, kernel: KernelSpec, target: CpuTarget) -> str:
        dtype = DType(kernel["dtype"])
        line = _EMITTERS[kernel["op"]]
        lanes = target.vector_bits // 64 if kernel["op"] != TopK.name else 1
        sizes = [dtype.size_bytes, *([8] if kernel["op"] != CumSum.name else [dtype.size_bytes])]
        if kernel["op"] == TopK.name:
            sizes = [dtype.size_bytes, dtype.size_bytes, 8]
        e = emitter_for(kernel, len(sizes))

        def row(starts: Sequence[Reg], first: Int, last: Int, strides: tuple[Int, ...]) -> None:
            full_end = first
            ranges = [(full_end, last, 1)]
            if lanes > 1 and all(s == 1 for s in strides):
                full_end = e.add(first, e.mul(e.div(e.sub(last, first), lanes), lanes))
                ranges = [(first, full_end, lanes), (full_end, last, 1)]
            for low, high, width in ranges:
                with e.loop(low, high, width) as steps:
                    addresses = [
                        e.at(start, e.mul(steps.index, e.mul(stride, size)))
                        for start, stride, size in zip(starts, strides, sizes, strict=True)
                    ]
                    line(e, kernel, dtype, addresses, width)

        emit_loop_nest(
            e, kernel["loop_nest"], [e.pointer(k) for k in range(len(sizes))], sizes, row
        )
        return e.module()


def _unsupported_reason(node: Node) -> str | None:
    """Return why the family does not support a node, or None if it does."""
    source = node.inputs[0]
    if source is None or source.tensor.dtype not in LLVM_TYPES or source.tensor.rank == 0:
        return "only tensors of numeric types and rank 1 or more are supported"
    if source.tensor.dtype is DType.BOOL:
        return "bools are not supported"
    if isinstance(node.op, CumSum):
        if constant_input(node, 1) is None:
            return "the axis is not constant"
        if source.tensor.dtype in (DType.FLOAT16, DType.BFLOAT16):
            return "cumulative sums of float16 and bfloat16 are not supported"
    if isinstance(node.op, TopK):
        count = node.outputs[0].tensor.shape[node.op.axis]
        if not isinstance(count, int) or count > _MAX_TOP_K:
            return f"only up to {_MAX_TOP_K} elements are supported, and k must be constant"
    return None


def _axis(node: Node) -> int:
    """Return the axis that a node scans."""
    if isinstance(node.op, (*_EXTREMES, TopK)):
        return node.op.axis
    axis = constant_input(node, 1)
    if axis is None:
        raise InternalError(f"{node}: the axis is not constant")
    return int(axis.item())


def _options(node: Node) -> tuple[int, ...]:
    """Return the attributes of a node that change its code."""
    match node.op:
        case CumSum():
            return (node.op.exclusive, node.op.reverse)
        case TopK():
            return (node.op.largest,)
        case ArgMax() | ArgMin():
            return (node.op.select_last_index,)
        case _:
            raise InternalError(f"{node} has no axis to scan")


def _with_axis(view: View, axis: int, rank: int) -> tuple[Any, ...]:
    """Return the view's strides, with a stride of 0 for the axis if the op removed it."""
    if len(view.strides) == rank:
        return view.strides
    return (*view.strides[:axis], 0, *view.strides[axis:])


def _load(e: Emitter, dtype: DType, at: Reg, width: int) -> Reg:
    """Load elements as the type in which they are compared and summed."""
    return to_compute_type(e, e.load(vector_type(LLVM_TYPES[dtype], width), at), dtype)


def _precedes(e: Emitter, dtype: DType, a: Reg, b: Reg, *, larger: bool, ties: bool) -> Reg:
    """Return whether ``a`` comes before ``b``.

    Comparisons with NaN are false here; callers order NaN separately.
    """
    order = ("g" if larger else "l") + ("e" if ties else "t")
    kind = vector_type("i1", 1 if not a.type.startswith("<") else int(a.type[1:].split(" ")[0]))
    if element_type(a.type) not in ("float", "double"):
        sign = "u" if dtype.value.startswith("u") else "s"
        return e.emit(kind, f"icmp {sign}{order} {a}, {b.text}")
    return e.compare_float(f"o{order}", a, b)


def _is_number(e: Emitter, value: Reg) -> Reg:
    """Return whether a value is not NaN."""
    return e.compare_float("ord", value, value)


def _emit_extreme(
    e: Emitter, kernel: KernelSpec, dtype: DType, addresses: Sequence[Reg], width: int
) -> None:
    """Write the index of the largest or smallest element.

    NaN counts as extreme: the first NaN is chosen, or the last one if the last index is selected.
    """
    source, result = addresses
    extent, stride, _ = (e.extent(x) for x in kernel["along"])
    (last,) = kernel["options"]
    larger = kernel["op"] == ArgMax.name
    best = _load(e, dtype, source, width)
    index = e.constant(0, vector_type("i64", width))
    with e.loop(1, extent, carried=(best, index)) as steps:
        value = _load(
            e, dtype, e.at(source, e.mul(steps.index, e.mul(stride, dtype.size_bytes))), width
        )
        best, index = steps.values
        better = _precedes(e, dtype, value, best, larger=larger, ties=bool(last))
        if element_type(value.type) in ("float", "double"):
            ones = e.constant(1, better.type)
            is_nan = e.binary("xor", _is_number(e, value), ones)
            if last:
                better = e.binary("or", better, is_nan)
            else:
                better = e.binary("or", better, e.binary("and", is_nan, _is_number(e, best)))
        steps.carry = (
            e.select(better, value, best),
            e.select(better, e.splat(steps.index, width), index),
        )
    e.store(steps.values[1], result)


def _emit_sums(
    e: Emitter, kernel: KernelSpec, dtype: DType, addresses: Sequence[Reg], width: int
) -> None:
    """Write the cumulative sum of a line."""
    source, result = addresses
    extent, stride, result_stride = (e.extent(x) for x in kernel["along"])
    exclusive, reverse = kernel["options"]
    size = dtype.size_bytes
    kind = register_type(dtype, width)
    with e.loop(0, extent, carried=(e.constant(0, kind),)) as steps:
        at = e.sub(e.sub(extent, 1), steps.index) if reverse else steps.index
        value = _load(e, dtype, e.at(source, e.mul(at, e.mul(stride, size))), width)
        total = e.binary("fadd" if dtype.is_float else "add", steps.values[0], value)
        written = steps.values[0] if exclusive else total
        e.store(written, e.at(result, e.mul(at, e.mul(result_stride, size))))
        steps.carry = (total,)


def _emit_top(
    e: Emitter, kernel: KernelSpec, dtype: DType, addresses: Sequence[Reg], width: int
) -> None:
    """Write the k first elements of a line in order.

    Each element is inserted into the sorted ones. One pass carries the displaced element on.
    """
    del width
    source, values, indices = addresses
    extent, stride, to_value, to_index = (e.extent(x) for x in kernel["along"])
    top_k = e.extent(kernel["top_k"])
    size = dtype.size_bytes

    def slot(slot_index: Int) -> tuple[Reg, Reg]:
        """Return the addresses of a value and of its index among the sorted ones."""
        return (
            e.at(values, e.mul(slot_index, e.mul(to_value, size))),
            e.at(indices, e.mul(slot_index, e.mul(to_index, 8))),
        )

    with e.loop(0, extent) as elements:
        index = elements.index
        value = _load(e, dtype, e.at(source, e.mul(index, e.mul(stride, size))), 1)
        count = e.i64(e.minimum(index, top_k))
        carried = (value, index, e.constant(0, "i1"))
        with e.loop(0, count, carried=carried) as slots:
            candidate, number, moving = slots.values
            at_value, at_index = slot(slots.index)
            current, current_index = _load(e, dtype, at_value, 1), e.load("i64", at_index)
            moving = e.binary("or", moving, _comes_first(e, kernel, dtype, candidate, current))
            e.store(to_storage_type(e, e.select(moving, candidate, current), dtype), at_value)
            e.store(e.select(moving, number, current_index), at_index)
            slots.carry = (
                e.select(moving, current, candidate),
                e.select(moving, current_index, number),
                moving,
            )
        with e.when(e.compare("slt", count, top_k)):
            at_value, at_index = slot(count)
            e.store(to_storage_type(e, slots.values[0], dtype), at_value)
            e.store(slots.values[1], at_index)


def _comes_first(e: Emitter, kernel: KernelSpec, dtype: DType, candidate: Reg, current: Reg) -> Reg:
    """Return whether ``candidate`` comes before ``current`` in TopK's order."""
    larger = bool(kernel["options"][0])
    first = _precedes(e, dtype, candidate, current, larger=larger, ties=False)
    if element_type(candidate.type) not in ("float", "double"):
        return first
    # NaN counts as the largest value.
    high, low = (candidate, current) if larger else (current, candidate)
    is_nan = e.binary("xor", _is_number(e, high), e.constant(1, "i1"))
    return e.binary("or", first, e.binary("and", is_nan, _is_number(e, low)))


_EMITTERS: Final[dict[str, Callable[[Emitter, KernelSpec, DType, Sequence[Reg], int], None]]] = {
    ArgMax.name: _emit_extreme,
    ArgMin.name: _emit_extreme,
    CumSum.name: _emit_sums,
    TopK.name: _emit_top,
}
"""Writer of one line, or of several side by side, by op."""
