"""Ops that move no data: results are windows on inputs, or inputs windows on the result."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from smelt.backends._base import (
    Aliasing,
    Family,
    Operands,
    Refusal,
    Tactic,
    TargetT,
    with_storage_dtype,
)
from smelt.backends._storage import contiguous_strides
from smelt.errors import InternalError
from smelt.ops import (
    Cast,
    Concat,
    Flatten,
    Fused,
    Gather,
    Identity,
    MatMul,
    Reshape,
    Slice,
    Split,
    Squeeze,
    Transpose,
    Unsqueeze,
)
from smelt.types import DType, Layout, TensorFormat, TensorType, override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.engine import KernelSpec, Step, View
    from smelt.ir import Node, Op, Value
    from smelt.types import Dim

_LAYOUTS = (Layout.LINEAR, Layout.CHANNELS_LAST)


class ViewFamily(Family[TargetT]):
    """Reshapes, transposes between layouts, slices, splits and concatenations that cost nothing."""

    name: ClassVar[str] = "view"

    @override
    def tactics(self, node: Node, target: TargetT) -> Iterator[Tactic | Refusal]:
        match node.op:
            case Reshape() | Flatten() | Squeeze() | Unsqueeze() | Identity():
                yield from self._reshapes(node)
            case Transpose():
                yield from self._transposes(node, node.op)
            case Slice() | Split():
                yield from self._slices(node)
            case Gather():
                yield from self._single_index_gathers(node, node.op)
            case Concat():
                yield from self._concats(node)
            case _:
                return

    def _reshapes(self, node: Node) -> Iterator[Tactic | Refusal]:
        source, result = _first(node).tensor, node.output.tensor
        for before in _layouts(source):
            for after in _layouts(result):
                if _keeps_strides(source, before, result, after) or (
                    before is after is Layout.LINEAR and _split_axes(source, result) is not None
                ):
                    yield self._tactic(node, before, after, Aliasing.SQUEEZE)
                elif _keeps_order(source, before) and _keeps_order(result, after):
                    yield self._tactic(node, before, after, Aliasing.RESHAPE)

    def _transposes(self, node: Node, op: Transpose) -> Iterator[Tactic | Refusal]:
        source, result = _first(node).tensor, node.output.tensor
        perm = _permutation(op, source.rank)
        found = False
        for before in _layouts(source):
            in_memory = [perm.index(axis) for axis in before.axis_order(source.rank)]
            for after in _layouts(result):
                if _without_units(in_memory, result) == _without_units(
                    after.axis_order(result.rank), result
                ):
                    found = True
                    yield self._tactic(node, before, after, Aliasing.VIEW)
        strided = list(self._strided_transposes(node, perm))
        yield from strided
        if not found and not strided:
            yield Refusal(self.name, f"axes {perm} do not turn one memory layout into another")

    def _strided_transposes(self, node: Node, perm: tuple[int, ...]) -> Iterator[Tactic]:
        """A window for products that read any strides; or memory that a product writes in."""
        source = _first(node)
        if any(isinstance(_root(user), MatMul) for user in node.output.users):
            yield self._tactic(node, Layout.LINEAR, Layout.STRIDED, Aliasing.VIEW)
        made = source.producer
        lasts = perm[-1:] == (len(perm) - 1,)
        if lasts and made is not None and isinstance(_root(made), MatMul):
            yield self._tactic(node, Layout.STRIDED, Layout.LINEAR, Aliasing.CONCAT)

    def _slices(self, node: Node) -> Iterator[Tactic | Refusal]:
        if _view_starts(node) is None:
            yield Refusal(self.name, "only slices with constant starts and steps of 1 are views")
            return
        for layout in _layouts(_first(node).tensor):
            yield self._tactic(node, layout, layout, Aliasing.VIEW)

    def _single_index_gathers(self, node: Node, op: Gather) -> Iterator[Tactic | Refusal]:
        kind = _first(node).tensor
        if _gathered_index(node, op) is None:
            yield Refusal(
                self.name,
                "only a gather of one constant index along an axis of known extent is a view",
            )
            return
        rest = [a for a in range(kind.rank) if a != op.axis % kind.rank]
        for before in _layouts(kind):
            order = before.axis_order(kind.rank)
            if order[-1] == op.axis % kind.rank:
                continue  # no axis of the result would run on in memory
            in_memory = [rest.index(a) for a in order if a in rest]
            for after in _layouts(node.output.tensor):
                if in_memory == list(after.axis_order(len(rest))):
                    yield self._tactic(node, before, after, Aliasing.VIEW)

    def _concats(self, node: Node) -> Iterator[Tactic | Refusal]:
        for layout in _layouts(node.output.tensor):
            yield self._tactic(node, layout, layout, Aliasing.CONCAT)

    def _tactic(self, node: Node, before: Layout, after: Layout, aliasing: Aliasing) -> Tactic:
        reads = node.inputs if aliasing is Aliasing.CONCAT else node.inputs[:1]
        wanted = [TensorFormat(v.tensor.dtype, before) for v in reads if v is not None]
        absent = [None] * (len(node.inputs) - len(wanted))
        results = tuple(TensorFormat(v.tensor.dtype, after) for v in node.outputs)
        return Tactic(self.name, (), (*wanted, *absent), results, aliasing=aliasing)

    @override
    def storage_dtype_tactics(self, node: Node, storage: DType) -> Iterator[Tactic]:
        if not isinstance(node.op, Cast):
            return
        source, result = _first(node).tensor, node.output.tensor
        if {source.dtype, result.dtype} == {DType.FLOAT32, storage}:
            for layout in _layouts(source):
                alike = TensorFormat(storage, layout)
                yield Tactic(self.name, (), (alike,), (alike,), aliasing=Aliasing.SQUEEZE)

    @override
    def reduced_precision_tactics(
        self, node: Node, tactic: Tactic, dtype: DType, target: TargetT
    ) -> tuple[Tactic, ...]:
        """Windows are of what there is: wide ones too, between ops that compute in float32."""
        del target
        narrow = with_storage_dtype(dtype, node, tactic, constants=True, outputs=True)
        return (narrow,) if narrow == tactic else (narrow, tactic)

    @override
    def views(self, node: Node, tactic: Tactic, view: View) -> tuple[View, ...]:
        match node.op:
            case Transpose():
                perm = _permutation(node.op, len(view.shape))
                if tactic.aliasing is Aliasing.CONCAT:
                    perm = tuple(perm.index(axis) for axis in range(len(perm)))
                return (_permuted(view, perm),)
            case Slice() | Split():
                starts = _view_starts(node)
                if starts is None:
                    raise InternalError(f"{node} is not a view")
                shapes = [v.tensor.shape for v in node.outputs]
                return tuple(
                    _offset_view(view, start, shape)
                    for start, shape in zip(starts, shapes, strict=True)
                )
            case Concat():
                return _parts(node, node.op.axis, view)
            case Gather():
                return (_without_axis(node, node.op, view),)
            case _ if tactic.aliasing is Aliasing.SQUEEZE:
                return (_with_units(node.output.tensor, tactic.outputs[0].layout, view),)
            case _:
                kind = node.output.tensor
                strides = contiguous_strides(kind, tactic.outputs[0].layout)
                return (replace(view, shape=kind.shape, strides=strides, halo=()),)

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        return ()

    @override
    def generate(self, kernel: KernelSpec, target: TargetT) -> str:
        raise InternalError("a view has no kernel")


def _root(node: Node) -> Op:
    return node.op.root if isinstance(node.op, Fused) else node.op


def _permuted(view: View, perm: tuple[int, ...]) -> View:
    return replace(
        view,
        shape=tuple(view.shape[axis] for axis in perm),
        strides=tuple(view.strides[axis] for axis in perm),
        halo=tuple(view.halo[axis] for axis in perm) if view.halo else (),
    )


def _first(node: Node) -> Value:
    value = node.inputs[0]
    if value is None:
        raise InternalError(f"the first input of {node} is missing")
    return value


def _layouts(kind: TensorType) -> tuple[Layout, ...]:
    return _LAYOUTS if kind.rank >= 3 else (Layout.LINEAR,)


def _keeps_order(kind: TensorType, layout: Layout) -> bool:
    """Whether the layout has the bytes of the linear one: only axes of extent 1 lie elsewhere."""
    order = _without_units(layout.axis_order(kind.rank), kind)
    return order == sorted(order)


def _without_units(axes: Sequence[int], kind: TensorType) -> list[int]:
    return [axis for axis in axes if kind.shape[axis] != 1]


def _unit_axes(source: TensorType, result: TensorType) -> list[int | None] | None:
    """For each axis of the result the source's (None for a unit); None where more differs."""
    mine = _without_units(range(result.rank), result)
    theirs = _without_units(range(source.rank), source)
    if [result.shape[a] for a in mine] != [source.shape[a] for a in theirs]:
        return None
    pairs = dict(zip(mine, theirs, strict=True))
    return [pairs.get(axis) for axis in range(result.rank)]


def _keeps_strides(source: TensorType, before: Layout, result: TensorType, after: Layout) -> bool:
    """Whether any window of the source, in memory order, is one of the result but for unit axes."""
    axes = _unit_axes(source, result)
    if axes is None or not source.rank:
        return False
    order = list(before.axis_order(source.rank))
    if order[-1] not in axes and source.shape != result.shape:
        return False  # the axis that runs on in memory would be lost
    mine = [axes[a] for a in after.axis_order(result.rank) if axes[a] is not None]
    return mine == _without_units(order, source)


def _split_axes(source: TensorType, result: TensorType) -> list[int] | None:
    """For each axis of the result the source's of which it is a part; None where axes merge."""
    owners: list[int] = []
    axis = 0
    for own, extent in enumerate(source.shape):
        product: Dim = 1
        while axis < result.rank and (product != extent or result.shape[axis] == 1):
            product = product * result.shape[axis]
            owners.append(own)
            axis += 1
        if product != extent:
            return None
    runs_on = bool(owners) and owners[-1] == source.rank - 1
    return owners if runs_on and axis == result.rank else None


def _with_splits(kind: TensorType, owners: Sequence[int], view: View) -> View:
    strides: list[Dim] = [0] * kind.rank
    inside: dict[int, Dim] = {}
    for axis in reversed(range(kind.rank)):
        step = inside.get(owners[axis], view.strides[owners[axis]])
        strides[axis] = step
        inside[owners[axis]] = step * kind.shape[axis]
    return replace(view, shape=kind.shape, strides=tuple(strides), halo=())


def _with_units(kind: TensorType, layout: Layout, view: View) -> View:
    source = TensorType(view.dtype, view.shape)
    axes = _unit_axes(source, kind)
    if axes is None:
        return _with_splits(kind, _split_axes(source, kind) or [], view)
    own = contiguous_strides(kind, layout)
    strides = tuple(s if a is None else view.strides[a] for a, s in zip(axes, own, strict=True))
    return replace(view, shape=kind.shape, strides=strides, halo=())


def _gathered_index(node: Node, op: Gather) -> int | None:
    """The one place that a gather takes from its axis, counted from the front."""
    indices = node.inputs[1]
    extent = _first(node).tensor.shape[op.axis]
    if indices is None or indices.constant is None or indices.tensor.rank:
        return None
    if not isinstance(extent, int):
        return None
    picked_index = int(indices.constant.array.item())
    return picked_index % extent if -extent <= picked_index < extent else None


def _without_axis(node: Node, op: Gather, view: View) -> View:
    axis, picked_index = op.axis % len(view.shape), _gathered_index(node, op)
    if picked_index is None:
        raise InternalError(f"{node} is not a view")
    rest = [a for a in range(len(view.shape)) if a != axis]
    return replace(
        view,
        offset=view.offset + view.strides[axis] * picked_index * view.dtype.size_bytes,
        shape=tuple(view.shape[a] for a in rest),
        strides=tuple(view.strides[a] for a in rest),
        halo=(),
    )


def _permutation(op: Transpose, rank: int) -> tuple[int, ...]:
    return op.perm or tuple(reversed(range(rank)))


def _view_starts(node: Node) -> list[tuple[Dim, ...]] | None:
    """First index along each axis, for each result; None where this is not a view."""
    kind = _first(node).tensor
    if isinstance(node.op, Split):
        axis = node.op.axis % kind.rank
        position: Dim = 0
        starts: list[tuple[Dim, ...]] = []
        for value in node.outputs:
            starts.append(tuple(position if a == axis else 0 for a in range(kind.rank)))
            position = position + value.tensor.shape[axis]
        return starts
    return _slice_starts(node, kind)


def _slice_starts(node: Node, kind: TensorType) -> list[tuple[Dim, ...]] | None:
    arrays = [
        None if v is None or v.constant is None else v.constant.array for v in node.inputs[1:]
    ]
    arrays += [None] * (4 - len(arrays))
    begins, _, axes, steps = arrays
    absent = [v is None for v in node.inputs[1:]] + [True] * (5 - len(node.inputs))
    if begins is None or (axes is None and not absent[2]) or (steps is None and not absent[3]):
        return None
    if steps is not None and any(int(s) != 1 for s in steps):
        return None
    chosen = range(kind.rank) if axes is None else [int(a) % kind.rank for a in axes]
    result: list[Dim] = [0] * kind.rank
    for axis, begin in zip(chosen, begins, strict=False):
        extent, start = kind.shape[axis], int(begin)
        if isinstance(extent, int):
            # Inside, even where nothing is taken: an address must lie in its buffer.
            result[axis] = max(min(start + extent if start < 0 else start, extent - 1), 0)
        elif start >= 0:
            result[axis] = start
        else:
            return None
    return [tuple(result)]


def _offset_view(view: View, start: Sequence[Dim], shape: tuple[Dim, ...]) -> View:
    offset = view.offset
    for begin, stride in zip(start, view.strides, strict=True):
        offset = offset + begin * stride * view.dtype.size_bytes
    return replace(view, offset=offset, shape=shape)


def _parts(node: Node, axis: int, view: View) -> tuple[View, ...]:
    axis %= len(view.shape)
    position: Dim = 0
    parts: list[View] = []
    for value in node.inputs:
        if value is None:
            raise InternalError(f"{node}: an input of a concatenation is missing")
        start = [position if a == axis else 0 for a in range(len(view.shape))]
        parts.append(_offset_view(view, start, value.tensor.shape))
        position = position + value.tensor.shape[axis]
    return tuple(parts)
