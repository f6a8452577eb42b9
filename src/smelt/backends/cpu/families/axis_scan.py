"""Ops that scan one axis element by element: ArgMax, ArgMin, CumSum and TopK."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from smelt.backends import Family, LaunchScalars, NodeRefusedError, Operands, Tactic
from smelt.backends._fused_programs import layouts_of
from smelt.backends._iteration_space import Axis
from smelt.backends._node_operands import constant_input, input_view, required_input
from smelt.backends.cpu._elementwise import register_type, to_compute_type, to_storage_type
from smelt.backends.cpu._emit import LLVM_TYPES, Emitter, Reg, element_type, vector_type
from smelt.backends.cpu._loop_nest import LoopNest, axes_along, write_loop_nest
from smelt.backends.cpu._refusals import check_dtype
from smelt.engine import KernelSpec, Step, View
from smelt.ops import ArgMax, ArgMin, CumSum, TopK
from smelt.types import DType, Layout, TensorFormat, override

if TYPE_CHECKING:
    from smelt.backends.cpu._emit import Int
    from smelt.backends.cpu._target import CpuTarget
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
    def tactics(self, node: Node, target: CpuTarget) -> Iterator[Tactic]:
        if not isinstance(node.op, (*_EXTREMES, CumSum, TopK)):
            return
        _check(node)
        source = required_input(node, 0)
        rank = source.tensor.rank
        keeps_rank = all(v.tensor.rank == rank for v in node.outputs)
        for layout in reversed(layouts_of(rank)):
            inputs = (TensorFormat(source.tensor.dtype, layout), *(None for _ in node.inputs[1:]))
            result_layout = layout if keeps_rank else Layout.LINEAR
            results = tuple(TensorFormat(v.tensor.dtype, result_layout) for v in node.outputs)
            yield Tactic(self.name, (), inputs, results, estimated_seconds=5e-6)

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        source = input_view(operands, 0)
        axis = _axis(node) % len(source.shape)
        results = [_with_axis(v, axis, len(source.shape)) for v in operands.outputs]
        views = (source, *operands.outputs)
        strides = [source.strides, *results]
        others = [a for a in range(len(source.shape)) if a != axis]
        loop_nest = LoopNest.over(axes_along(source.shape, strides, others), len(views))
        scalars = LaunchScalars()
        along = Axis(source.shape[axis], tuple(s[axis] for s in strides))
        top_k = operands.outputs[0].shape[axis] if isinstance(node.op, TopK) else 0
        launch = loop_nest.launch(
            self.name,
            views,
            scalars,
            tuple(range(1, len(views))),
            op=node.op.name,
            options=tuple(getattr(node.op, name) for name in _LINES[node.op.name][1]),
            dtypes=tuple(v.dtype.value for v in views),
            along=along.json(scalars),
            top_k=scalars.json(top_k),
        )
        return (launch,)

    @override
    def generate(self, kernel: KernelSpec, target: CpuTarget) -> str:
        dtype, *_ = dtypes = [DType(d) for d in kernel["dtypes"]]
        sizes = [d.size_bytes for d in dtypes]
        line, _ = _LINES[kernel["op"]]
        lanes = target.vector_bits // 64 if kernel["op"] != TopK.name else 1
        e = Emitter(kernel.symbol, len(sizes))

        def row(starts: Sequence[Reg], first: Int, last: Int, strides: tuple[Int, ...]) -> None:
            side_by_side = lanes if all(s == 1 for s in strides) else 1
            for index, width in e.vector_steps(first, last, side_by_side):
                line(e, kernel, dtype, e.advanced(starts, index, strides, sizes), width)

        return write_loop_nest(e, kernel["loop_nest"], sizes, row)


def _check(node: Node) -> None:
    """Check that the family supports a node."""
    source = required_input(node, 0).tensor
    if source.rank == 0:
        raise NodeRefusedError("the input has rank 0")
    check_dtype("the input", source.dtype, *(d for d in LLVM_TYPES if d is not DType.BOOL))
    _axis(node)
    if isinstance(node.op, CumSum) and source.dtype in (DType.FLOAT16, DType.BFLOAT16):
        raise NodeRefusedError(f"cumulative sums of {source.dtype.value} are not supported")
    if isinstance(node.op, TopK):
        count = node.outputs[0].tensor.shape[node.op.axis]
        if not isinstance(count, int) or count > _MAX_TOP_K:
            raise NodeRefusedError(
                f"k is {count}; only a constant k of at most {_MAX_TOP_K} is supported"
            )


def _axis(node: Node) -> int:
    """Return the axis that a node scans.

    Raises:
        NodeRefusedError: it is not constant.
    """
    if isinstance(node.op, (*_EXTREMES, TopK)):
        return node.op.axis
    axis = constant_input(node, 1)
    if axis is None:
        raise NodeRefusedError("the axis is not constant")
    return int(axis.item())


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
    if element_type(a.type) not in ("float", "double"):
        sign = "u" if dtype.value.startswith("u") else "s"
        return e.compare_integers(sign + order, a, b)
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


_WriteLine = Callable[[Emitter, KernelSpec, DType, Sequence[Reg], int], None]
_LINES: Final[dict[str, tuple[_WriteLine, tuple[str, ...]]]] = {
    ArgMax.name: (_emit_extreme, ("select_last_index",)),
    ArgMin.name: (_emit_extreme, ("select_last_index",)),
    CumSum.name: (_emit_sums, ("exclusive", "reverse")),
    TopK.name: (_emit_top, ("largest",)),
}
"""By op: writer of one line, or of several side by side, and attributes that change its code."""
