"""Resize: one pass for each resized axis, by tables of indices and weights made at build."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np

from smelt.backends import Family, Operands, Refusal, Tactic, contiguous_strides
from smelt.backends._axes import Axis, join_axes, sort_axes
from smelt.backends._scalars import Scalars
from smelt.backends.cpu._emit import Emitter, Reg, emitter_for, vector_type
from smelt.backends.cpu._rows import Walk, walk_rows
from smelt.backends.cpu.families._vectors import Moved, load, store
from smelt.backends.cpu.families.move import constant_input
from smelt.engine import KernelSpec, Launch, parameters
from smelt.errors import InternalError
from smelt.ir import Constant
from smelt.ops import Resize
from smelt.types import DType, Layout, TensorFormat, TensorType, element_count, override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.backends.cpu._emit import Int
    from smelt.backends.cpu._target import CpuTarget
    from smelt.engine import Step, View
    from smelt.ir import Array, Node
    from smelt.types import Dim

_MOST_TABLE: Final = 1 << 24
"""Elements of an axis' square of weights that are worth being looked at."""
_MOST_TAPS: Final = 64


@dataclass(frozen=True, slots=True)
class _Table:
    """How each place of one axis of the result follows from places of the input's."""

    axis: int
    indices: Array
    """[extent, taps], int32."""
    weights: Array
    """[extent, taps], float32."""

    @property
    def taps(self) -> int:
        return int(self.indices.shape[1])


class ResampleFamily(Family["CpuTarget"]):
    """Nearest of any element type; linear, cubic and free of aliases of float32."""

    name: ClassVar[str] = "resample"
    narrow: ClassVar[bool] = True

    @override
    def tactics(self, node: Node, target: CpuTarget) -> Iterator[Tactic | Refusal]:
        if not isinstance(node.op, Resize):
            return
        tables = _tables(node, node.op)
        if isinstance(tables, str):
            yield Refusal(self.name, tables)
            return
        kind = node.output.tensor
        size = kind.dtype.size_bytes
        workspace: Dim = 0
        for shape in _shapes(node, tables)[:-1]:
            workspace = workspace + element_count(shape) * size
        absent = (None,) * (len(node.inputs) - 1)
        for layout in (Layout.CHANNELS_LAST, Layout.LINEAR) if kind.rank >= 3 else (Layout.LINEAR,):
            form = TensorFormat(kind.dtype, layout)
            yield Tactic(
                self.name,
                (),
                (form, *absent),
                (form,),
                workspace_bytes=workspace,
                cost_hint=1e-5 if layout is Layout.CHANNELS_LAST else 2e-5,
            )

    @override
    def pack(self, node: Node, tactic: Tactic) -> tuple[Constant, ...]:
        packed: list[Constant] = []
        for table in _tables_of(node):
            packed.append(Constant(f"{node.name} indices of axis {table.axis}", table.indices))
            packed.append(Constant(f"{node.name} weights of axis {table.axis}", table.weights))
        return tuple(packed)

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        source, result = operands.inputs[0], operands.outputs[0]
        if source is None:
            raise InternalError(f"{node} has no input")
        tables = _tables_of(node)
        launches: list[Step] = []
        offset: Dim = 0
        for number, (table, shape) in enumerate(zip(tables, _shapes(node, tables), strict=True)):
            destination = result
            if number < len(tables) - 1:
                if operands.workspace is None:
                    raise InternalError(f"{node} has no workspace")
                strides = contiguous_strides(
                    TensorType(result.dtype, shape), tactic.outputs[0].layout
                )
                destination = replace(
                    operands.workspace,
                    offset=operands.workspace.offset + offset,
                    dtype=result.dtype,
                    shape=shape,
                    strides=strides,
                )
                offset = offset + element_count(shape) * result.dtype.size_bytes
            own = operands.packed[2 * number : 2 * number + 2]
            launches.append(_launch(table, source, own, destination))
            source = destination
        return tuple(launches)

    @override
    def generate(self, kernel: KernelSpec, target: CpuTarget) -> str:
        moved, taps = Moved.from_json(kernel["moved"]), kernel["taps"]
        e = emitter_for(kernel, 4)
        size, made = moved.sizes
        lanes = target.vector_bits // (8 * moved.widest)
        if kernel["weighted"]:
            lanes = target.vector_bits // 32
        line = _Taps(e, moved, taps, weighted=kernel["weighted"])
        along = e.mul(e.extent(kernel["stride"]), size)

        def row(starts: Sequence[Reg], first: Int, last: Int, strides: tuple[Int, ...]) -> None:
            whole = first
            if strides[1] == 0:
                picked = line.picked(starts, along)
                if strides[0] == 1 and strides[3] == 1:
                    whole = e.add(first, e.mul(e.div(e.sub(last, first), lanes), lanes))
                    with e.loop(first, whole, lanes) as steps:
                        line.store(picked, starts[3], strides, steps.index, lanes)
                with e.loop(whole, last) as steps:
                    line.store(picked, starts[3], strides, steps.index, 1)
                return
            with e.loop(first, last) as steps:
                here = [
                    e.at(start, e.mul(steps.index, e.mul(stride, width)))
                    for start, stride, width in zip(
                        starts, strides, (size, 4, 4, made), strict=True
                    )
                ]
                line.store(line.picked(here, along), here[3], strides, e.constant(0, "i64"), 1)

        walk_rows(e, kernel["walk"], [e.pointer(k) for k in range(4)], [size, 4, 4, made], row)
        return e.module()


@dataclass(frozen=True, slots=True)
class _Taps:
    """Writes the sum over one place's taps."""

    e: Emitter
    moved: Moved
    taps: int
    weighted: bool

    def picked(self, starts: Sequence[Reg], along: Int) -> list[tuple[Reg, Reg]]:
        """Address and weight of each tap of the place that the tables' addresses are of."""
        e = self.e
        found: list[tuple[Reg, Reg]] = []
        for tap in range(self.taps):
            index = e.load("i32", e.at(starts[1], 4 * tap))
            offset = e.mul(e.convert("sext", index, "i64"), along)
            weight = e.load("float", e.at(starts[2], 4 * tap)) if self.weighted else starts[2]
            found.append((e.at(starts[0], offset), weight))
        return found

    def store(
        self,
        picked: Sequence[tuple[Reg, Reg]],
        result: Reg,
        strides: tuple[Int, ...],
        index: Reg,
        lanes: int,
    ) -> None:
        """One element of the result, or ``lanes`` of them."""
        e, (size, made) = self.e, self.moved.sizes
        kind = vector_type("float", lanes)
        at = e.mul(index, e.mul(strides[0], size))
        to = e.at(result, e.mul(index, e.mul(strides[3], made)))
        if not self.weighted:
            e.store(self.moved.load(e, e.at(picked[-1][0], at), lanes), to)
            return
        total: Reg | None = None
        for address, weight in picked:
            value = load(e, kind, e.at(address, at), None, self.moved.source)
            if total is None:
                total = e.binary("fmul", value, e.splat(weight, lanes))
            else:
                total = e.fma(value, e.splat(weight, lanes), total)
        if total is None:
            raise InternalError("a place of a resized axis follows from nothing")
        store(e, total, to, None, self.moved.destination)


def _launch(table: _Table, source: View, own: Sequence[View], result: View) -> Launch:
    axes = [
        Axis(extent, (0, table.taps, table.taps, stride))
        if axis == table.axis
        else Axis(extent, (source.strides[axis], 0, 0, stride))
        for axis, (extent, stride) in enumerate(zip(result.shape, result.strides, strict=True))
        if extent != 1 or axis == table.axis
    ]
    scalars = Scalars()
    walk = Walk.over(join_axes(sort_axes(axes, 3)), 4)
    weighted = bool(table.taps > 1 or (table.weights != 1).any())
    moved = Moved.between(source.dtype, result.dtype)
    if weighted:
        moved = Moved(source.dtype, result.dtype)
    spec = KernelSpec(
        ResampleFamily.name,
        parameters(
            moved=moved.as_json(),
            taps=table.taps,
            weighted=weighted,
            stride=scalars.json(source.strides[table.axis]),
            walk=walk.json(scalars),
        ),
    )
    return Launch(spec, (source, *own, result), (3,), scalars.values, walk.chunks)


def _shapes(node: Node, tables: Sequence[_Table]) -> list[tuple[Dim, ...]]:
    """What each pass makes."""
    source = node.inputs[0]
    if source is None:
        raise InternalError(f"{node} has no input")
    shape = list(source.tensor.shape)
    shapes: list[tuple[Dim, ...]] = []
    for table in tables:
        shape[table.axis] = len(table.indices)
        shapes.append(tuple(shape))
    return shapes


def _tables_of(node: Node) -> list[_Table]:
    tables = _tables(node, node.op) if isinstance(node.op, Resize) else "it is no Resize"
    if isinstance(tables, str):
        raise InternalError(f"{node}: {tables}")
    return tables


# ---- tables


def _tables(node: Node, op: Resize) -> list[_Table] | str:
    """A table for each axis that changes, those that shrink first; or why there are none."""
    source = node.inputs[0]
    if source is None:
        return "there is no input"
    axes = op.resized_axes(source.tensor.rank)
    given = _arguments(node, op, [source.tensor.shape[a] for a in axes])
    if isinstance(given, str):
        return given
    scales, region = given
    tables: list[_Table] = []
    for number, axis in enumerate(axes):
        window = None if region is None else region[[number, number + len(axes)]]
        before, after = source.tensor.shape[axis], node.output.tensor.shape[axis]
        made = _axis_weights(op, before, after, float(scales[number]), window)
        if isinstance(made, str):
            return f"axis {axis}: {made}"
        if made is not None:
            tables.append(_compressed(axis, made))
    if any(t.taps > _MOST_TAPS for t in tables):
        return f"more than {_MOST_TAPS} elements make one"
    weighted = [t for t in tables if t.taps > 1 or (t.weights != 1).any()]
    if weighted and source.tensor.dtype is not DType.FLOAT32:
        return f"sums of {source.tensor.dtype.value} are not generated"
    if not tables:
        return "no axis changes"
    return sorted(tables, key=lambda t: len(t.indices) / (t.indices.max() + 1))


def _arguments(node: Node, op: Resize, extents: Sequence[Dim]) -> tuple[Array, Array | None] | str:
    """The scale of each resized axis, and the region to which it is cut."""
    region, scales, sizes = (constant_input(node, i) for i in (1, 2, 3))
    for index, array in ((1, region), (2, scales), (3, sizes)):
        if array is None and index < len(node.inputs) and node.inputs[index] is not None:
            return "the region, scales or sizes are not constant"
    if sizes is not None and sizes.size:
        if not all(isinstance(e, int) and e > 0 for e in extents):
            return "a resized extent is symbolic or zero"
        ratios = np.array([int(s) / int(str(e)) for s, e in zip(sizes, extents, strict=True)])
        if op.keep_aspect_ratio_policy != "stretch":
            kept = ratios.min() if op.keep_aspect_ratio_policy == "not_larger" else ratios.max()
            ratios = np.full(len(extents), kept)
        return ratios, region if region is None or region.size else None
    if scales is None:
        return "there are neither scales nor sizes"
    return scales, region if region is None or region.size else None


def _axis_weights(
    op: Resize, before: Dim, after: Dim, scale: float, region: Array | None
) -> Array | str | None:
    """One row for each place: the weight of every element; None where the axis stays as it is."""
    cut = op.coordinate_transformation_mode == "tf_crop_and_resize"
    window = (0.0, 1.0) if region is None or not cut else (float(region[0]), float(region[1]))
    if scale == 1 and before == after and window == (0.0, 1.0):
        return None
    if not isinstance(before, int) or not isinstance(after, int):
        return "a resized extent is symbolic"
    if not 0 < before * max(before, after) <= _MOST_TABLE:
        return f"{before} elements made {after} are not worth a table"
    outside = _column(op, np.zeros((before, before)), scale, window, 1.0)
    if outside.shape[1] != after:
        return "the scale is not exact"
    if op.extrapolation_value and outside.any():
        return "elements beyond the region are not generated"
    return _column(op, np.eye(before), scale, window, 0.0).T


def _column(
    op: Resize, data: Array, scale: float, window: tuple[float, float], beyond: float
) -> Array:
    """What the op's own reference makes of the columns of a matrix."""
    alone = replace(op, axes=(1,), extrapolation_value=beyond, keep_aspect_ratio_policy="stretch")
    (made,) = alone.reference(data, np.array(window), np.array([scale]), None)
    return made


def _compressed(axis: int, weights: Array) -> _Table:
    """The nonzero weights of each row, as many for every row as the fullest has."""
    used = weights != 0
    taps = max(1, int(used.sum(1).max(initial=0)))
    order = np.argsort(~used, 1, kind="stable")[:, :taps]
    chosen = np.take_along_axis(weights, order, 1)
    return _Table(axis, order.astype(np.int32), chosen.astype(np.float32))
