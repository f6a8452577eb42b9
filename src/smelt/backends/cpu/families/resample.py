"""Resize: one pass per resized axis, with tables of indices and weights from build time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from smelt.backends import (
    Family,
    LaunchScalars,
    NodeRefusedError,
    Operands,
    Tactic,
    contiguous_strides,
)
from smelt.backends._fused_programs import layouts_of
from smelt.backends._iteration_space import Axis, coalesce_axes, sort_axes
from smelt.backends._node_operands import input_view, required_input, workspace_of
from smelt.backends._resize_tables import ResizeTable, resize_tables, table_constants, tables_of
from smelt.backends.cpu import _math as m
from smelt.backends.cpu._emit import Emitter, Int, Reg, vector_type
from smelt.backends.cpu._loop_nest import LoopNest, write_loop_nest
from smelt.backends.cpu._refusals import check_dtype
from smelt.backends.cpu.families._vectors import ElementConversion, load, store
from smelt.engine import View
from smelt.errors import InternalError
from smelt.ops import Resize
from smelt.types import Dim, DType, Layout, TensorFormat, TensorType, element_count, override

if TYPE_CHECKING:
    from smelt.backends.cpu._target import CpuTarget
    from smelt.engine import KernelSpec, Launch, Step
    from smelt.ir import Constant, Node


class ResampleFamily(Family["CpuTarget"]):
    """Resize: nearest for any element type; weighted interpolation (linear, cubic) for float32."""

    name: ClassVar[str] = "resample"
    supports_reduced_precision: ClassVar[bool] = True

    @override
    def tactics(self, node: Node, target: CpuTarget) -> Iterator[Tactic]:
        if not isinstance(node.op, Resize):
            return
        tables = resize_tables(node, node.op)
        if isinstance(tables, str):
            raise NodeRefusedError(tables)
        if any(table.is_weighted for table in tables):
            source = required_input(node, 0).tensor
            check_dtype("the interpolated input", source.dtype, DType.FLOAT32)
        kind = node.output.tensor
        size = kind.dtype.size_bytes
        workspace: Dim = 0
        for shape in _shapes(node, tables)[:-1]:
            workspace = workspace + element_count(shape) * size
        absent = (None,) * (len(node.inputs) - 1)
        for layout in layouts_of(kind.rank):
            form = TensorFormat(kind.dtype, layout)
            seconds = 1e-5 if layout is Layout.CHANNELS_LAST else 2e-5
            inputs = (form, *absent)
            tactic = Tactic(self.name, (), inputs, (form,), estimated_seconds=seconds)
            yield replace(tactic, workspace_bytes=workspace)

    @override
    def pack(self, node: Node, tactic: Tactic) -> tuple[Constant, ...]:
        return table_constants(node)

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        source, result = input_view(operands, 0), operands.outputs[0]
        tables, dtype = tables_of(node), result.dtype
        launches: list[Step] = []
        offset: Dim = 0
        for number, (table, shape) in enumerate(zip(tables, _shapes(node, tables), strict=True)):
            destination = result
            if number < len(tables) - 1:
                workspace = workspace_of(node, operands)
                kind, layout = TensorType(dtype, shape), tactic.output_formats[0].layout
                strides, start = contiguous_strides(kind, layout), workspace.offset + offset
                destination = View(workspace.buffer, start, dtype, shape, strides)
                offset = offset + element_count(shape) * dtype.size_bytes
            table_views = operands.packed[2 * number : 2 * number + 2]
            launches.append(_launch(table, source, table_views, destination))
            source = destination
        return tuple(launches)

    @override
    def generate(self, kernel: KernelSpec, target: CpuTarget) -> str:
        conversion, taps = ElementConversion.from_json(kernel["conversion"]), kernel["taps"]
        e = Emitter(kernel.symbol, 4)
        size, result_size = conversion.sizes
        sizes = (size, 4, 4, result_size)
        lanes = target.vector_bits // (32 if kernel["weighted"] else 8 * conversion.widest)
        taps_writer = _TapSumWriter(
            e, conversion, taps, kernel["weighted"], e.extent(kernel["extent"])
        )
        along = e.mul(e.extent(kernel["stride"]), size)

        def row(starts: Sequence[Reg], first: Int, last: Int, strides: tuple[Int, ...]) -> None:
            if strides[1] == 0:
                picked = taps_writer.picked(starts, along)
                is_contiguous = strides[0] == 1 and strides[3] == 1
                for index, width in e.vector_steps(first, last, lanes if is_contiguous else 1):
                    taps_writer.store(picked, starts[3], strides, index, width)
                return
            with e.loop(first, last) as steps:
                addresses = e.advanced(starts, steps.index, strides, sizes)
                picked = taps_writer.picked(addresses, along)
                taps_writer.store(picked, addresses[3], strides, e.constant(0, "i64"), 1)

        return write_loop_nest(e, kernel["loop_nest"], sizes, row)


@dataclass(frozen=True, slots=True)
class _TapSumWriter:
    """Writes the weighted sum of the taps of one output position."""

    e: Emitter
    conversion: ElementConversion
    taps: int
    weighted: bool
    extent: Int
    """Extent of the source's axis; indices are clamped to it."""

    def picked(self, starts: Sequence[Reg], along: Int) -> list[tuple[Reg, Reg]]:
        """Return address and weight of each tap of the position at the tables' addresses."""
        e = self.e
        tap_operands: list[tuple[Reg, Reg]] = []
        for tap in range(self.taps):
            index = e.convert("zext", e.load("i32", e.at(starts[1], 4 * tap)), "i64")
            clamped_index = e.call("i64", "llvm.umin.i64", index, e.i64(e.sub(self.extent, 1)))
            offset = e.mul(clamped_index, along)
            weight = e.load("float", e.at(starts[2], 4 * tap)) if self.weighted else starts[2]
            tap_operands.append((e.at(starts[0], offset), weight))
        return tap_operands

    def store(
        self,
        picked: Sequence[tuple[Reg, Reg]],
        result: Reg,
        strides: tuple[Int, ...],
        index: Reg,
        lanes: int,
    ) -> None:
        """Write ``lanes`` adjacent elements of the result."""
        e, (size, result_size) = self.e, self.conversion.sizes
        kind = vector_type("float", lanes)
        at = e.mul(index, e.mul(strides[0], size))
        target = e.at(result, e.mul(index, e.mul(strides[3], result_size)))
        if not self.weighted:
            e.store(self.conversion.load(e, e.at(picked[-1][0], at), lanes), target)
            return
        total: Reg | None = None
        for address, weight in picked:
            value = load(e, kind, e.at(address, at), None, self.conversion.source)
            if total is None:
                total = e.binary("fmul", value, e.splat(weight, lanes))
            else:
                total = m.multiply_add(e, value, e.splat(weight, lanes), total)
        if total is None:
            raise InternalError("an output position of a resized axis has no taps")
        store(e, total, target, None, self.conversion.destination)


def _launch(table: ResizeTable, source: View, table_views: Sequence[View], result: View) -> Launch:
    """Return the launch of the pass along one axis."""
    axes = [
        Axis(extent, (0, table.taps, table.taps, stride))
        if axis == table.axis
        else Axis(extent, (source.strides[axis], 0, 0, stride))
        for axis, (extent, stride) in enumerate(zip(result.shape, result.strides, strict=True))
        if extent != 1 or axis == table.axis
    ]
    scalars = LaunchScalars()
    loop_nest = LoopNest.over(coalesce_axes(sort_axes(axes, 3)), 4)
    weighted = table.is_weighted
    conversion = ElementConversion.between(source.dtype, result.dtype)
    if weighted:
        conversion = ElementConversion(source.dtype, result.dtype)
    return loop_nest.launch(
        ResampleFamily.name,
        (source, *table_views, result),
        scalars,
        conversion=conversion.as_json(),
        taps=table.taps,
        weighted=weighted,
        extent=scalars.json(source.shape[table.axis]),
        stride=scalars.json(source.strides[table.axis]),
    )


def _shapes(node: Node, tables: Sequence[ResizeTable]) -> list[tuple[Dim, ...]]:
    """Return the shape after each pass."""
    shape = list(required_input(node, 0).tensor.shape)
    shapes: list[tuple[Dim, ...]] = []
    for table in tables:
        shape[table.axis] = len(table.indices)
        shapes.append(tuple(shape))
    return shapes
