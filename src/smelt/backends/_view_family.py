"""Family of ops that move no data: results are windows on inputs, or inputs on the result."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from smelt.backends._base import (
    Aliasing,
    Family,
    NodeRefusedError,
    Operands,
    Tactic,
    TargetT,
    with_storage_dtype,
)
from smelt.backends._fused_programs import layouts_of, root_of
from smelt.backends._node_operands import constant_input, required_input
from smelt.backends._storage import contiguous_strides
from smelt.errors import InternalError
from smelt.ops import (
    Cast,
    Concat,
    Flatten,
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

    from smelt.engine import Step, View
    from smelt.ir import Node, Value
    from smelt.types import Dim


class ViewFamily(Family[TargetT]):
    """Reshapes, transposes between layouts, slices, splits and concatenations without a copy."""

    name: ClassVar[str] = "view"

    @override
    def tactics(self, node: Node, target: TargetT) -> Iterator[Tactic]:
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

    def _reshapes(self, node: Node) -> Iterator[Tactic]:
        """Yield the pairs of layouts between which a reshape needs no copy."""
        source, result = required_input(node, 0).tensor, node.output.tensor
        for before in _layouts(source):
            for after in _layouts(result):
                if _keeps_strides(source, before, result, after) or (
                    before is after is Layout.LINEAR and _split_axes(source, result) is not None
                ):
                    yield self._tactic(node, before, after, Aliasing.SQUEEZE)
                elif _keeps_order(source, before) and _keeps_order(result, after):
                    yield self._tactic(node, before, after, Aliasing.RESHAPE)

    def _transposes(self, node: Node, op: Transpose) -> Iterator[Tactic]:
        """Yield the pairs of layouts between which a transpose needs no copy."""
        source, result = required_input(node, 0).tensor, node.output.tensor
        perm = _permutation(op, source.rank)
        has_layouts = False
        for before in _layouts(source):
            in_memory = [perm.index(axis) for axis in before.axis_order(source.rank)]
            for after in _layouts(result):
                if _without_units(in_memory, result) == _without_units(
                    after.axis_order(result.rank), result
                ):
                    has_layouts = True
                    yield self._tactic(node, before, after, Aliasing.VIEW)
        strided = list(self._strided_transposes(node, perm))
        yield from strided
        if not has_layouts and not strided:
            raise NodeRefusedError(
                f"a transpose by {perm} needs a copy: no memory layout has this order of axes"
            )

    def _strided_transposes(self, node: Node, perm: tuple[int, ...]) -> Iterator[Tactic]:
        """Yield tactics by which a MatMul reads a strided window or writes into one."""
        source = required_input(node, 0)
        if any(isinstance(root_of(user)[0], MatMul) for user in node.output.users):
            yield self._tactic(node, Layout.LINEAR, Layout.STRIDED, Aliasing.VIEW)
        producer = source.producer
        keeps_last_axis = perm[-1:] == (len(perm) - 1,)
        if keeps_last_axis and producer is not None and isinstance(root_of(producer)[0], MatMul):
            yield self._tactic(node, Layout.STRIDED, Layout.LINEAR, Aliasing.CONCAT)

    def _slices(self, node: Node) -> Iterator[Tactic]:
        """Yield a tactic for each layout if the slice is a view."""
        if _view_starts(node) is None:
            raise NodeRefusedError(
                "the starts, axes or steps are not constant, a step is not 1, or a start is "
                "negative on an axis of symbolic extent"
            )
        for layout in _layouts(required_input(node, 0).tensor):
            yield self._tactic(node, layout, layout, Aliasing.VIEW)

    def _single_index_gathers(self, node: Node, op: Gather) -> Iterator[Tactic]:
        """Yield the pairs of layouts in which a gather of one index is a view."""
        kind = required_input(node, 0).tensor
        if _gathered_index(node, op) is None:
            raise NodeRefusedError(
                "the index is not a constant scalar that is valid on an axis of known extent"
            )
        rest = [a for a in range(kind.rank) if a != op.axis % kind.rank]
        for before in _layouts(kind):
            order = before.axis_order(kind.rank)
            if order[-1] == op.axis % kind.rank:
                continue  # no axis of the result would have stride 1
            in_memory = [rest.index(a) for a in order if a in rest]
            for after in _layouts(node.output.tensor):
                if in_memory == list(after.axis_order(len(rest))):
                    yield self._tactic(node, before, after, Aliasing.VIEW)

    def _concats(self, node: Node) -> Iterator[Tactic]:
        """Yield a tactic for each layout of a concatenation."""
        for layout in _layouts(node.output.tensor):
            yield self._tactic(node, layout, layout, Aliasing.CONCAT)

    def _tactic(self, node: Node, before: Layout, after: Layout, aliasing: Aliasing) -> Tactic:
        """Return the tactic that reads layout ``before`` and writes layout ``after``."""
        reads = node.inputs if aliasing is Aliasing.CONCAT else node.inputs[:1]
        wanted = [TensorFormat(v.tensor.dtype, before) for v in reads if v is not None]
        absent = [None] * (len(node.inputs) - len(wanted))
        results = tuple(TensorFormat(v.tensor.dtype, after) for v in node.outputs)
        return Tactic(self.name, (), (*wanted, *absent), results, aliasing=aliasing)

    @override
    def storage_dtype_tactics(self, node: Node, storage: DType) -> Iterator[Tactic]:
        if not isinstance(node.op, Cast):
            return
        source, result = required_input(node, 0).tensor, node.output.tensor
        if {source.dtype, result.dtype} == {DType.FLOAT32, storage}:
            for layout in _layouts(source):
                narrow_format = TensorFormat(storage, layout)
                yield Tactic(
                    self.name, (), (narrow_format,), (narrow_format,), aliasing=Aliasing.SQUEEZE
                )

    @override
    def reduced_precision_tactics(
        self, node: Node, tactic: Tactic, dtype: DType, target: TargetT
    ) -> tuple[Tactic, ...]:
        """Return the tactic for the narrow type, and for float32 between ops that compute in it."""
        del target
        narrow = with_storage_dtype(
            dtype, node, tactic, narrows_constants=True, narrows_all_outputs=True
        )
        return (narrow,) if narrow == tactic else (narrow, tactic)

    @override
    def views(self, node: Node, tactic: Tactic, view: View) -> tuple[View, ...]:
        match node.op:
            case Transpose():
                perm = _permutation(node.op, len(view.shape))
                if tactic.aliasing is Aliasing.CONCAT:
                    perm = tuple(perm.index(axis) for axis in range(len(perm)))
                return (permute_axes(view, perm),)
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
                return (_with_units(node.output.tensor, tactic.output_formats[0].layout, view),)
            case _:
                kind = node.output.tensor
                strides = contiguous_strides(kind, tactic.output_formats[0].layout)
                return (replace(view, shape=kind.shape, strides=strides, halo=()),)

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        return ()


def window_along(view: View, axis: int, first: Dim, extent: Dim) -> View:
    """Return the part of a view along an axis; a halo allows it to exceed the view."""
    shape = (*view.shape[:axis], extent, *view.shape[axis + 1 :])
    offset = view.offset + view.strides[axis] * first * view.dtype.size_bytes
    return replace(view, offset=offset, shape=shape)


def permute_axes(view: View, perm: Sequence[int]) -> View:
    """Return a view with its axes in another order."""
    return replace(
        view,
        shape=tuple(view.shape[axis] for axis in perm),
        strides=tuple(view.strides[axis] for axis in perm),
        halo=tuple(view.halo[axis] for axis in perm) if view.halo else (),
    )


def _layouts(kind: TensorType) -> tuple[Layout, ...]:
    """Return the layouts that a tensor may have, the linear one first."""
    return layouts_of(kind.rank)[::-1]


def _keeps_order(kind: TensorType, layout: Layout) -> bool:
    """Return whether a layout has the bytes of the linear one, apart from axes of extent 1."""
    order = _without_units(layout.axis_order(kind.rank), kind)
    return order == sorted(order)


def _without_units(axes: Sequence[int], kind: TensorType) -> list[int]:
    """Return the axes whose extent is not 1."""
    return [axis for axis in axes if kind.shape[axis] != 1]


def _unit_axes(source: TensorType, result: TensorType) -> list[int | None] | None:
    """Return the source axis of each result axis (None for extent 1); None if others differ."""
    result_axes = _without_units(range(result.rank), result)
    source_axes = _without_units(range(source.rank), source)
    if [result.shape[a] for a in result_axes] != [source.shape[a] for a in source_axes]:
        return None
    pairs = dict(zip(result_axes, source_axes, strict=True))
    return [pairs.get(axis) for axis in range(result.rank)]


def _keeps_strides(source: TensorType, before: Layout, result: TensorType, after: Layout) -> bool:
    """Return whether any strided source is a strided result, apart from axes of extent 1."""
    axes = _unit_axes(source, result)
    if axes is None or not source.rank:
        return False
    order = list(before.axis_order(source.rank))
    if order[-1] not in axes and source.shape != result.shape:
        return False  # the axis of stride 1 would be lost
    source_order = [axes[a] for a in after.axis_order(result.rank) if axes[a] is not None]
    return source_order == _without_units(order, source)


def _split_axes(source: TensorType, result: TensorType) -> list[int] | None:
    """Return the source axis that each result axis is part of; None if axes are merged."""
    owners: list[int] = []
    axis = 0
    for source_axis, extent in enumerate(source.shape):
        product: Dim = 1
        while axis < result.rank and (product != extent or result.shape[axis] == 1):
            product = product * result.shape[axis]
            owners.append(source_axis)
            axis += 1
        if product != extent:
            return None
    ends_with_last_axis = bool(owners) and owners[-1] == source.rank - 1
    return owners if ends_with_last_axis and axis == result.rank else None


def _with_splits(kind: TensorType, owners: Sequence[int], view: View) -> View:
    """Return the view with its axes split into those of a type, by their source axes."""
    strides: list[Dim] = [0] * kind.rank
    next_strides: dict[int, Dim] = {}
    for axis in reversed(range(kind.rank)):
        step = next_strides.get(owners[axis], view.strides[owners[axis]])
        strides[axis] = step
        next_strides[owners[axis]] = step * kind.shape[axis]
    return replace(view, shape=kind.shape, strides=tuple(strides), halo=())


def _with_units(kind: TensorType, layout: Layout, view: View) -> View:
    """Return the view with axes of extent 1 added or removed, or with axes split."""
    source = TensorType(view.dtype, view.shape)
    axes = _unit_axes(source, kind)
    if axes is None:
        return _with_splits(kind, _split_axes(source, kind) or [], view)
    unit_strides = contiguous_strides(kind, layout)
    strides = tuple(
        s if a is None else view.strides[a] for a, s in zip(axes, unit_strides, strict=True)
    )
    return replace(view, shape=kind.shape, strides=strides, halo=())


def _gathered_index(node: Node, op: Gather) -> int | None:
    """Return the one index that a gather takes from its axis, not negative; None otherwise."""
    indices = node.inputs[1]
    extent = required_input(node, 0).tensor.shape[op.axis]
    if indices is None or indices.constant is None or indices.tensor.rank:
        return None
    if not isinstance(extent, int):
        return None
    picked_index = int(indices.constant.fix().item())
    return picked_index % extent if -extent <= picked_index < extent else None


def _without_axis(node: Node, op: Gather, view: View) -> View:
    """Return the view at the gathered index of an axis."""
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
    """Return the permutation of a transpose; by default it reverses the axes."""
    return op.perm or tuple(reversed(range(rank)))


def _view_starts(node: Node) -> list[tuple[Dim, ...]] | None:
    """Return the first index along each axis for each result; None if the node is not a view."""
    kind = required_input(node, 0).tensor
    if isinstance(node.op, Split):
        return _starts_along(node.op.axis % kind.rank, node.outputs)
    return _slice_starts(node, kind)


def _starts_along(axis: int, values: Sequence[Value]) -> list[tuple[Dim, ...]]:
    """Return the first index of each of several tensors that follow one another along an axis."""
    extents = (value.tensor.shape[axis] for value in values)
    positions = itertools.accumulate(extents, initial=0)
    return [
        tuple(position if a == axis else 0 for a in range(value.tensor.rank))
        for position, value in zip(positions, values, strict=False)
    ]


def _slice_starts(node: Node, kind: TensorType) -> list[tuple[Dim, ...]] | None:
    """Return the first index of a slice along each axis; None if the slice is not a view."""
    begins, axes, steps = (constant_input(node, i) for i in (1, 3, 4))
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
            # In range even if the slice is empty: an address must lie in its buffer.
            result[axis] = max(min(start + extent if start < 0 else start, extent - 1), 0)
        elif start >= 0:
            result[axis] = start
        else:
            return None
    return [tuple(result)]


def _offset_view(view: View, start: Sequence[Dim], shape: tuple[Dim, ...]) -> View:
    """Return the view of a shape that begins at an index along each axis."""
    offset = view.offset
    for begin, stride in zip(start, view.strides, strict=True):
        offset = offset + begin * stride * view.dtype.size_bytes
    return replace(view, offset=offset, shape=shape)


def _parts(node: Node, axis: int, view: View) -> tuple[View, ...]:
    """Return the inputs of a concatenation as windows on the result."""
    inputs = [value for value in node.inputs if value is not None]
    if len(inputs) < len(node.inputs):
        raise InternalError(f"{node}: an input of a concatenation is missing")
    starts = _starts_along(axis % len(view.shape), inputs)
    return tuple(
        _offset_view(view, start, value.tensor.shape)
        for start, value in zip(starts, inputs, strict=True)
    )
