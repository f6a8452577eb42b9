"""Elements and slices moved to or from where vectors of indices point."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from smelt.backends import Family, Operands, Refusal, Tactic
from smelt.backends._scalars import Scalars
from smelt.backends.cpu._emit import LLVM_TYPES, Emitter, Reg, emitter_for
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
_COMBINE: Final = {
    "add": "reduce_sum",
    "mul": "reduce_prod",
    "max": "reduce_max",
    "min": "reduce_min",
}

_Axes = list[tuple["Dim", ...]]
"""Extents, each with strides of its own kind."""


class ScatterFamily(Family["CpuTarget"]):
    """One worker, in order: of updates of one place the last stays. Indices are held inside."""

    name: ClassVar[str] = "scatter"

    @override
    def tactics(self, node: Node, target: CpuTarget) -> Iterator[Tactic | Refusal]:
        if not isinstance(node.op, ScatterElements | ScatterND | GatherND):
            return
        dtype = node.output.tensor.dtype
        if _reduction(node) != "none" and dtype not in _REDUCIBLE:
            yield Refusal(self.name, f"{_reduction(node)} of {dtype.value} is not generated")
            return
        inputs = tuple(
            None if v is None else TensorFormat(v.tensor.dtype, Layout.LINEAR) for v in node.inputs
        )
        result = TensorFormat(dtype, Layout.LINEAR)
        yield Tactic(self.name, (), inputs, (result,), cost_hint=2e-5)

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        data, indices, *updates = (v for v in operands.inputs if v is not None)
        (result,) = operands.outputs
        if isinstance(node.op, GatherND):
            return (_launch(node, indices, result, data, node.op.batch_dims),)
        return (copy_launch(data, result), _launch(node, indices, updates[0], result, 0))

    @override
    def generate(self, kernel: KernelSpec, target: CpuTarget) -> str:
        e = emitter_for(kernel, 3)
        starts = tuple(e.pointer(k) for k in range(3))
        sizes = (kernel["index_size"], *[DType(kernel["dtype"]).size_bytes] * 2)
        axes = [tuple(e.extent(x) for x in axis) for axis in kernel["items"]]
        somewhere = e.constant(1, "i1")
        for extent, _, _ in kernel["parts"]:
            somewhere = e.binary("and", somewhere, e.compare("sgt", e.extent(extent), 0))
        with e.when(somewhere):  # an index into nothing points nowhere
            _nest(e, axes, starts, sizes, lambda places: _item(e, kernel, places))
        return e.module()


def _reduction(node: Node) -> str:
    return "none" if isinstance(node.op, GatherND) else str(getattr(node.op, "reduction", "none"))


def _launch(node: Node, indices: View, flat: View, pointed: View, batch: int) -> Launch:
    """Between ``flat``, walked beside the indices, and the places of ``pointed`` they point at."""
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
            raise InternalError(f"{node}: vectors of {length} indices")
        own = [*pointed.strides[:batch], *[0] * (rank - batch)]
        items = list(
            zip(indices.shape[:-1], indices.strides[:-1], flat.strides[:rank], own, strict=True)
        )
        parts = [
            (pointed.shape[batch + k], k * indices.strides[-1], pointed.strides[batch + k])
            for k in range(length)
        ]
        first = batch + length
        inner = list(
            zip(pointed.shape[first:], flat.strides[rank:], pointed.strides[first:], strict=True)
        )
    scalars = Scalars()
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
    views = (indices, flat, pointed)
    written = 1 if isinstance(node.op, GatherND) else 2
    return Launch(spec, views, (written,), scalars.values)


def _json(axes: Sequence[tuple[Dim, ...]], scalars: Scalars) -> Json:
    return tuple(scalars.all_json(axis) for axis in axes)


def _nest(
    e: Emitter,
    axes: Sequence[tuple[Int, ...]],
    places: tuple[Reg, ...],
    sizes: Sequence[int],
    body: Callable[[tuple[Reg, ...]], None],
) -> None:
    """Loop over axes that move several places together."""
    if not axes:
        body(places)
        return
    extent, *strides = axes[0]
    with e.loop(0, extent) as steps:
        here = tuple(
            e.at(place, e.mul(steps.index, e.mul(stride, size)))
            for place, stride, size in zip(places, strides, sizes, strict=True)
        )
        _nest(e, axes[1:], here, sizes, body)


def _item(e: Emitter, kernel: KernelSpec, places: tuple[Reg, ...]) -> None:
    """One vector of indices: find the place, then move the slice."""
    indices, flat, pointed = places
    size, index_size = DType(kernel["dtype"]).size_bytes, kernel["index_size"]
    for part in kernel["parts"]:
        extent, offset, stride = (e.extent(x) for x in part)
        index = e.load(f"i{8 * index_size}", e.at(indices, e.mul(offset, index_size)))
        if index.type != "i64":
            index = e.convert("sext", index, "i64")
        wrapped = e.i64(e.add(index, extent))
        index = e.select(e.compare("slt", index, 0), wrapped, index)
        held = e.maximum(0, e.minimum(index, e.sub(extent, 1)))
        pointed = e.at(pointed, e.mul(held, e.mul(stride, size)))
    axes = [tuple(e.extent(x) for x in axis) for axis in kernel["inner"]]
    _nest(e, axes, (flat, pointed), (size, size), lambda pair: _move(e, kernel, pair[0], pair[1]))


def _move(e: Emitter, kernel: KernelSpec, flat: Reg, pointed: Reg) -> None:
    dtype = DType(kernel["dtype"])
    if kernel["reads"]:
        e.store(e.load(f"i{8 * dtype.size_bytes}", pointed), flat)
    elif kernel["reduction"] == "none":
        e.store(e.load(f"i{8 * dtype.size_bytes}", flat), pointed)
    else:
        kind = LLVM_TYPES[dtype]
        both = e.load(kind, pointed), e.load(kind, flat)
        e.store(combine(e, _COMBINE[kernel["reduction"]], *both), pointed)
