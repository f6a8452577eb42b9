"""Gather and scatter: elements read or written by indices that are data.

Kernels clamp indices to the axis and report those that are out of range. Gather and GatherElements
read along one axis, with run-time or constant indices; ScatterElements, ScatterND and GatherND move
elements and slices by vectors of indices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from smelt.backends import (
    Family,
    LaunchScalars,
    Operands,
    Tactic,
    linear_format,
    with_storage_dtype,
)
from smelt.backends._iteration_space import (
    coalesce_axes,
    gather_axes,
    gather_elements_axes,
    sort_axes,
)
from smelt.backends._node_operands import error_words_of, input_view, required_input
from smelt.backends.cpu._emit import LLVM_TYPES, Emitter, Int, Reg, vector_type
from smelt.backends.cpu._kernel_spec import kernel_spec
from smelt.backends.cpu._loop_nest import LoopNest, write_loop_nest
from smelt.backends.cpu._refusals import check_dtype, check_indices
from smelt.backends.cpu.families.reduce import combine
from smelt.backends.cpu.families.reformat import copy_launch
from smelt.engine import Json, KernelSpec, Launch, Step, View
from smelt.errors import InternalError
from smelt.ops import Gather, GatherElements, GatherND, ScatterElements, ScatterND
from smelt.types import Dim, DType, override

if TYPE_CHECKING:
    from smelt.backends.cpu._target import CpuTarget
    from smelt.ir import Node


@dataclass(frozen=True, slots=True)
class IndexReader:
    """Reads indices along one or several axes and reports those that are out of range."""

    e: Emitter
    index_bytes: int
    errors: Reg
    """Address of the node's error words: the index, then -1 minus the extent."""

    def position(self, index: Reg, extent: Int) -> Reg:
        """Return the position that the index at an address selects.

        Negative indices count from the end. An index out of range is reported, and the position is
        0.
        """
        e, value = self.e, self._load(index)
        wrapped = e.select(e.compare("slt", value, 0), e.i64(e.add(value, extent)), value)
        with e.when(e.compare("uge", wrapped, extent)):
            self._report(value, extent)
        return e.select(e.compare("ult", wrapped, extent), wrapped, e.constant(0, "i64"))

    def end(self, first: Int, last: Int, index: Reg, extent: Int) -> Int:
        """Return the end of a loop over elements from ``first`` to ``last``.

        If the axis is empty, the loop must not run: the index is reported, and the end is
        ``first``.
        """
        e = self.e
        if isinstance(extent, int) and extent > 0:
            return last
        is_empty = e.compare("eq", extent, 0)
        with e.when(is_empty):
            self._report(self._load(index), extent)
        return e.select(is_empty, e.i64(first), e.i64(last))

    def _load(self, index: Reg) -> Reg:
        """Load an index as i64."""
        value = self.e.load(f"i{8 * self.index_bytes}", index)
        return value if value.type == "i64" else self.e.convert("sext", value, "i64")

    def _report(self, index: Reg, extent: Int) -> None:
        """Store an index and the extent of its axis in the error words."""
        e = self.e
        e.store(index, self.errors)
        e.store(e.i64(e.sub(-1, extent)), e.at(self.errors, 8))


class GatherFamily(Family["CpuTarget"]):
    """Gather and GatherElements for any element type.

    An index out of range is reported in the error buffer and never accesses memory outside the
    tensor.
    """

    name: ClassVar[str] = "gather"

    @override
    def tactics(self, node: Node, target: CpuTarget) -> Iterator[Tactic]:
        if not isinstance(node.op, Gather | GatherElements):
            return
        check_indices(required_input(node, 1))
        data, indices = (linear_format(required_input(node, k)) for k in (0, 1))
        yield Tactic(self.name, (), (data, indices), (data,), estimated_seconds=5e-6)

    @override
    def reduced_precision_tactics(
        self, node: Node, tactic: Tactic, dtype: DType, target: CpuTarget
    ) -> tuple[Tactic, ...]:
        return (
            with_storage_dtype(
                dtype, node, tactic, narrows_constants=True, narrows_all_outputs=True
            ),
        )

    @override
    def reports_index_errors(self, node: Node) -> bool:
        return True

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        data, indices = (input_view(operands, k) for k in (0, 1))
        (result,), errors = operands.outputs, error_words_of(node, operands)
        if not isinstance(node.op, Gather | GatherElements):
            raise InternalError(f"{node} is not a gather")
        axis = node.op.axis % len(data.shape)
        make = gather_elements_axes if isinstance(node.op, GatherElements) else gather_axes
        axes = make(data, indices, result, axis)
        scalars = LaunchScalars()
        loop_nest = LoopNest.over(
            coalesce_axes(sort_axes([a for a in axes if a.extent != 1], 2)), 3
        )
        launch = loop_nest.launch(
            self.name,
            (data, indices, result, errors),
            scalars,
            (2, 3),
            size=data.dtype.size_bytes,
            index_size=indices.dtype.size_bytes,
            extent=scalars.json(data.shape[axis]),
            stride=scalars.json(data.strides[axis]),
        )
        return (launch,)

    @override
    def generate(self, kernel: KernelSpec, target: CpuTarget) -> str:
        e = Emitter(kernel.symbol, 4)
        size, index_size, extent = kernel["size"], kernel["index_size"], e.extent(kernel["extent"])
        reader = IndexReader(e, index_size, e.pointer(3))
        along = e.mul(e.extent(kernel["stride"]), size)
        lanes = target.vector_bits // (8 * size)

        def row(starts: Sequence[Reg], first: Int, last: Int, strides: tuple[Int, ...]) -> None:
            data, indices, result = starts
            element = f"i{8 * size}"
            index = e.at(indices, e.mul(first, e.mul(strides[1], index_size)))
            last = reader.end(first, last, index, extent)
            if strides[1] == 0:  # one index selects the whole row
                picked = e.at(data, e.mul(reader.position(index, extent), along))
                is_contiguous = strides[0] == 1 and strides[2] == 1
                for step, width in e.vector_steps(first, last, lanes if is_contiguous else 1):
                    read = e.mul(step, e.mul(strides[0], size))
                    value = e.load(vector_type(element, width), e.at(picked, read))
                    written = read if width > 1 else e.mul(step, e.mul(strides[2], size))
                    e.store(value, e.at(result, written))
                return
            with e.loop(first, last) as steps:
                position = e.at(indices, e.mul(steps.index, e.mul(strides[1], index_size)))
                picked = e.at(data, e.mul(reader.position(position, extent), along))
                value = e.load(element, e.at(picked, e.mul(steps.index, e.mul(strides[0], size))))
                e.store(value, e.at(result, e.mul(steps.index, e.mul(strides[2], size))))

        return write_loop_nest(e, kernel["loop_nest"], [size, index_size, size], row)


_REDUCIBLE: Final = (DType.FLOAT32, DType.FLOAT64, DType.INT32, DType.INT64)
"""Element types for which reductions of updates are supported."""
_COMBINE: Final = {
    "add": "reduce_sum",
    "mul": "reduce_prod",
    "max": "reduce_max",
    "min": "reduce_min",
}
"""Reduction of `combine` for each ONNX reduction."""

_Axes = list[tuple["Dim", ...]]
"""Axes as tuples of an extent and strides; the strides depend on the use."""


class ScatterFamily(Family["CpuTarget"]):
    """ScatterElements, ScatterND and GatherND on one worker, in order.

    If several updates have the same index, the last one is kept. An index out of range is reported
    in the error buffer and never accesses memory outside the tensor.
    """

    name: ClassVar[str] = "scatter"

    @override
    def tactics(self, node: Node, target: CpuTarget) -> Iterator[Tactic]:
        if not isinstance(node.op, ScatterElements | ScatterND | GatherND):
            return
        result = linear_format(node.output)
        if (reduction := _reduction(node)) != "none":
            check_dtype(f"the result of the reduction {reduction!r}", result.dtype, *_REDUCIBLE)
        inputs = tuple(None if v is None else linear_format(v) for v in node.inputs)
        yield Tactic(self.name, (), inputs, (result,), estimated_seconds=2e-5)

    @override
    def reports_index_errors(self, node: Node) -> bool:
        return True

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        data, indices, *updates = (v for v in operands.inputs if v is not None)
        (result,), errors = operands.outputs, error_words_of(node, operands)
        if isinstance(node.op, GatherND):
            return (_launch(node, (indices, result, data, errors), node.op.batch_dims),)
        return (copy_launch(data, result), _launch(node, (indices, updates[0], result, errors), 0))

    @override
    def generate(self, kernel: KernelSpec, target: CpuTarget) -> str:
        e = Emitter(kernel.symbol, 4)
        starts = tuple(e.pointer(k) for k in range(3))
        sizes = (kernel["index_size"], *[DType(kernel["dtype"]).size_bytes] * 2)
        axes = [tuple(e.extent(x) for x in axis) for axis in kernel["items"]]
        _nest(e, axes, starts, sizes, lambda positions: _item(e, kernel, positions))
        return e.module()


def _reduction(node: Node) -> str:
    """Return the ONNX reduction of a node's updates."""
    return "none" if isinstance(node.op, GatherND) else str(getattr(node.op, "reduction", "none"))


def _launch(node: Node, views: tuple[View, View, View, View], batch: int) -> Launch:
    """Return the launch that moves elements between two tensors.

    The views are the indices, the tensor that is read or written in order beside them, the tensor
    at whose elements they point, and the error words.
    """
    indices, flat, pointed, _ = views
    parts: _Axes
    inner: _Axes
    if isinstance(node.op, ScatterElements):
        axis = node.op.axis % len(pointed.shape)
        kept = [0 if a == axis else s for a, s in enumerate(pointed.strides)]
        items = list(zip(indices.shape, indices.strides, flat.strides, kept, strict=True))
        parts, inner = [(pointed.shape[axis], 0, pointed.strides[axis])], []
    else:
        rank, length = len(indices.shape) - 1, indices.shape[-1]
        if not isinstance(length, int):
            raise InternalError(f"{node}: the index vectors have the symbolic length {length}")
        outer = [*pointed.strides[:batch], *[0] * (rank - batch)]
        items = list(
            zip(indices.shape[:-1], indices.strides[:-1], flat.strides[:rank], outer, strict=True)
        )
        parts = [
            (pointed.shape[batch + k], k * indices.strides[-1], pointed.strides[batch + k])
            for k in range(length)
        ]
        first = batch + length
        inner = list(
            zip(pointed.shape[first:], flat.strides[rank:], pointed.strides[first:], strict=True)
        )
    scalars = LaunchScalars()
    spec = kernel_spec(
        ScatterFamily.name,
        dtype=flat.dtype.value,
        index_size=indices.dtype.size_bytes,
        reads=isinstance(node.op, GatherND),
        reduction=_reduction(node),
        items=_json(items, scalars),
        parts=_json(parts, scalars),
        inner=_json(inner, scalars),
    )
    written = 1 if isinstance(node.op, GatherND) else 2
    return Launch(spec, views, (written, 3), scalars.values)


def _json(axes: Sequence[tuple[Dim, ...]], scalars: LaunchScalars) -> Json:
    """Return axes as a JSON value."""
    return tuple(scalars.all_json(axis) for axis in axes)


def _nest(
    e: Emitter,
    axes: Sequence[tuple[Int, ...]],
    positions: Sequence[Reg],
    sizes: Sequence[int],
    body: Callable[[Sequence[Reg]], None],
) -> None:
    """Write loops over axes that advance several addresses together."""
    if not axes:
        body(positions)
        return
    extent, *strides = axes[0]
    with e.loop(0, extent) as steps:
        inner_positions = e.advanced(positions, steps.index, strides, sizes)
        _nest(e, axes[1:], inner_positions, sizes, body)


def _item(e: Emitter, kernel: KernelSpec, positions: Sequence[Reg]) -> None:
    """Write one vector of indices: compute the address that it points at, then move the slice."""
    indices, flat, pointed = positions
    size, index_size = DType(kernel["dtype"]).size_bytes, kernel["index_size"]
    reader = IndexReader(e, index_size, e.pointer(3))
    is_nonempty = e.constant(1, "i1")
    for part in kernel["parts"]:
        extent, offset, stride = (e.extent(x) for x in part)
        index = e.at(indices, e.mul(offset, index_size))
        pointed = e.at(pointed, e.mul(reader.position(index, extent), e.mul(stride, size)))
        is_nonempty = e.binary("and", is_nonempty, e.compare("sgt", extent, 0))
    axes = [tuple(e.extent(x) for x in axis) for axis in kernel["inner"]]
    with e.when(is_nonempty):  # an empty axis has no elements to move
        _nest(e, axes, (flat, pointed), (size, size), lambda pair: _move(e, kernel, *pair))


def _move(e: Emitter, kernel: KernelSpec, flat: Reg, pointed: Reg) -> None:
    """Write the move, or the reduction, of one element."""
    dtype = DType(kernel["dtype"])
    if kernel["reads"]:
        e.store(e.load(f"i{8 * dtype.size_bytes}", pointed), flat)
    elif kernel["reduction"] == "none":
        e.store(e.load(f"i{8 * dtype.size_bytes}", flat), pointed)
    else:
        kind = LLVM_TYPES[dtype]
        values = e.load(kind, pointed), e.load(kind, flat)
        e.store(combine(e, _COMBINE[kernel["reduction"]], *values), pointed)
