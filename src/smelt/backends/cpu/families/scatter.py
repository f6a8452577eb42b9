"""ScatterElements, ScatterND and GatherND: elements and slices moved by vectors of indices."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from smelt.backends import Family, Operands, Refusal, Tactic
from smelt.backends._launch_scalars import LaunchScalars
from smelt.backends.cpu._emit import LLVM_TYPES, Emitter, Reg, emitter_for
from smelt.backends.cpu.families._index_reader import IndexReader
from smelt.backends.cpu.families.copy import copy_launch
from smelt.backends.cpu.families.reduce import combine
from smelt.engine import KernelSpec, Launch, parameters
from smelt.errors import InternalError
from smelt.ops import GatherND, ScatterElements, ScatterND
from smelt.types import DType, Layout, TensorFormat, override

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from smelt.backends.cpu._emit import Int
    from smelt.backends.cpu._target import CpuTarget
    from smelt.engine import Json, Step, View
    from smelt.ir import Node
    from smelt.types import Dim

_REDUCIBLE: Final = frozenset({DType.FLOAT32, DType.FLOAT64, DType.INT32, DType.INT64})
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
    def tactics(self, node: Node, target: CpuTarget) -> Iterator[Tactic | Refusal]:
        if not isinstance(node.op, ScatterElements | ScatterND | GatherND):
            return
        dtype = node.output.tensor.dtype
        if _reduction(node) != "none" and dtype not in _REDUCIBLE:
            yield Refusal(
                self.name, f"the reduction {_reduction(node)} is not supported for {dtype.value}"
            )
            return
        inputs = tuple(
            None if v is None else TensorFormat(v.tensor.dtype, Layout.LINEAR) for v in node.inputs
        )
        result = TensorFormat(dtype, Layout.LINEAR)
        yield Tactic(self.name, (), inputs, (result,), cost_hint=2e-5)

    @override
    def reports_index_errors(self, node: Node) -> bool:
        return True

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        data, indices, *updates = (v for v in operands.inputs if v is not None)
        (result,), errors = operands.outputs, operands.errors
        if errors is None:
            raise InternalError(f"{node} has no error buffer")
        if isinstance(node.op, GatherND):
            return (_launch(node, (indices, result, data, errors), node.op.batch_dims),)
        return (copy_launch(data, result), _launch(node, (indices, updates[0], result, errors), 0))

    @override
    def generate(self, kernel: KernelSpec, target: CpuTarget) -> str:
        e = emitter_for(kernel, 4)
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
            raise InternalError(f"{node}: index vectors of length {length} are not supported")
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
    spec = KernelSpec(
        ScatterFamily.name,
        parameters(
            dtype=flat.dtype.value,
            index_size=indices.dtype.size_bytes,
            reads=isinstance(node.op, GatherND),
            reduction=_reduction(node),
            items=_json(items, scalars),
            parts=_json(parts, scalars),
            inner=_json(inner, scalars),
        ),
    )
    written = 1 if isinstance(node.op, GatherND) else 2
    return Launch(spec, views, (written, 3), scalars.values)


def _json(axes: Sequence[tuple[Dim, ...]], scalars: LaunchScalars) -> Json:
    """Return axes as a JSON value."""
    return tuple(scalars.all_json(axis) for axis in axes)


def _nest(
    e: Emitter,
    axes: Sequence[tuple[Int, ...]],
    positions: tuple[Reg, ...],
    sizes: Sequence[int],
    body: Callable[[tuple[Reg, ...]], None],
) -> None:
    """Write loops over axes that advance several addresses together."""
    if not axes:
        body(positions)
        return
    extent, *strides = axes[0]
    with e.loop(0, extent) as steps:
        inner_positions = tuple(
            e.at(position, e.mul(steps.index, e.mul(stride, size)))
            for position, stride, size in zip(positions, strides, sizes, strict=True)
        )
        _nest(e, axes[1:], inner_positions, sizes, body)


def _item(e: Emitter, kernel: KernelSpec, positions: tuple[Reg, ...]) -> None:
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
