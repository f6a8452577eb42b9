"""Family of Resize in one launch, by tables of indices and weights that are built at build time."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Final

from smelt.backends._base import Family, Operands, Refusal, Tactic
from smelt.backends._fused_programs import layouts_of
from smelt.backends._launch_scalars import LaunchScalars
from smelt.backends._node_operands import input_view
from smelt.backends._resize_tables import resize_tables, table_constants, tables_of
from smelt.backends.cuda._cost_model import guessed_extent, memory_seconds
from smelt.backends.cuda._kernel_source import Source, operand_parameters
from smelt.backends.cuda._pointwise import tile_side, write_element_offsets
from smelt.backends.cuda._target import CudaTarget
from smelt.backends.cuda.families._epilogue import FLOATS
from smelt.engine import KernelSpec, Launch, parameters
from smelt.ops import Resize
from smelt.types import TensorFormat, ceil_div, element_count, override

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.engine import Step
    from smelt.ir import Constant, Node

_ELEMENTS: Final = 1024
"""Elements of the result per program. Chosen without a measurement."""
_MAX_TAPS: Final = 256
"""Maximum number of input elements per output element, over all axes. Chosen without a
measurement."""
_UNROLLED_TAPS: Final = 16
"""Maximum number of taps for which the loop is unrolled. Chosen without a measurement."""


class ResampleFamily(Family[CudaTarget]):
    """Family of Resize; outputs sum the taps of all tables. Operands: input, tables, result."""

    name: ClassVar[str] = "resample"
    supports_reduced_precision: ClassVar[bool] = True

    @override
    def tactics(self, node: Node, target: CudaTarget) -> Iterator[Tactic | Refusal]:
        if not isinstance(node.op, Resize):
            return
        tables = resize_tables(node, node.op)
        kind = node.output.tensor
        if isinstance(tables, str):
            yield Refusal(self.name, tables)
            return
        weighted = any(table.is_weighted for table in tables)
        if weighted and kind.dtype not in FLOATS:
            yield Refusal(self.name, f"sums of {kind.dtype.value} are not supported")
            return
        if prod(table.taps for table in tables) > _MAX_TAPS:
            yield Refusal(
                self.name, f"more than {_MAX_TAPS} input elements contribute to one output element"
            )
            return
        absent = (None,) * (len(node.inputs) - 1)
        for layout in layouts_of(kind.rank):
            fmt = TensorFormat(kind.dtype, layout)
            seconds = memory_seconds(node, target)
            yield Tactic(self.name, (), (fmt, *absent), (fmt,), cost_hint=seconds)

    @override
    def pack(self, node: Node, tactic: Tactic) -> tuple[Constant, ...]:
        return table_constants(node)

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        x, out = input_view(operands, 0), operands.outputs[0]
        views = [x, *operands.packed, out]
        scalars = LaunchScalars()
        order = tactic.outputs[0].layout.axis_order(len(out.shape))
        tables = {table.axis: number for number, table in enumerate(tables_of(node))}
        taps = [table.taps for table in tables_of(node)]
        column_tile = tile_side(guessed_extent(out.shape[order[-1]]), _ELEMENTS)
        row_tile = _ELEMENTS // column_tile
        places = element_count(tuple(out.shape[a] for a in order[:-1]))
        axes = tuple(
            (
                *scalars.all_json((out.shape[a], x.strides[a], out.strides[a])),
                tables.get(a, -1),
            )
            for a in order
        )
        spec = KernelSpec(
            self.name,
            parameters(
                axes=axes,
                extents=scalars.all_json(x.shape[table.axis] for table in tables_of(node)),
                taps=tuple(taps),
                weighted=tuple(table.is_weighted for table in tables_of(node)),
                places=scalars.json(places),
                tile=(row_tile, column_tile),
                num_warps=4,
                num_stages=1,
                **operand_parameters(views, len(scalars.values)),
            ),
        )
        chunks = ceil_div(places, row_tile) * ceil_div(out.shape[order[-1]], column_tile)
        return (Launch(spec, tuple(views), (len(views) - 1,), scalars.values, chunks),)

    @override
    def generate(self, kernel: KernelSpec, target: CudaTarget) -> str:
        del target
        return _ResampleWriter(kernel).write()


class _ResampleWriter:
    """Writer of the kernel of one spec."""

    def __init__(self, kernel: KernelSpec) -> None:
        self.k = kernel
        self.s = Source(kernel)
        self.axes: Any = kernel["axes"]
        self.row_tile, self.column_tile = kernel["tile"]
        self.names = [f"c{a}" for a in range(len(self.axes))]

    def write(self) -> str:
        """Return the text of the kernel."""
        s = self.s
        last = len(s.dtypes) - 1
        is_sum = any(self.k["weighted"])
        write_element_offsets(s, self.axes, (self.row_tile, self.column_tile), self.k["places"])
        if is_sum:
            s.line(f"acc = tl.zeros([{self.row_tile}, {self.column_tile}], tl.float32)")
        count = prod(self.k["taps"])
        loop = "tl.static_range" if count <= _UNROLLED_TAPS else "range"
        with s.block(f"for tap in {loop}(0, {count}):"):
            offset, weight, is_used = self.take_tap()
            x = f"tl.load(p0 + ({offset}), mask={is_used}, other=0)"
            if is_sum:
                s.line(f"acc += {x}.to(tl.float32)" + (f" * {weight}" if weight else ""))
            else:
                s.line(f"acc = {x}")
        terms = [
            (self.spread(name, a), axis[2])
            for a, (name, axis) in enumerate(zip(self.names, self.axes, strict=True))
        ]
        s.store(last, s.sum_of(*terms), "acc", "m")
        return s.text()

    def take_tap(self) -> tuple[str, str, str]:
        """Return the offset of a tap's element, its weight, and the mask of taps that count."""
        s = self.s
        s.unravel("tap", self.k["taps"], [f"t{n}" for n in range(len(self.k["taps"]))])
        terms: list[tuple[str, Any]] = []
        weights: list[str] = []
        conditions = ["m"]
        for a, (name, axis) in enumerate(zip(self.names, self.axes, strict=True)):
            _, stride, _, number = axis
            if number < 0:
                terms.append((self.spread(name, a), stride))
                continue
            ok = "i_ok" if a < len(self.axes) - 1 else f"{name}_ok"
            entry = f"{name} * {self.k['taps'][number]} + t{number}"
            last = f"{s.extent(self.k['extents'][number])} - 1"
            s.line(f"at{a} = tl.load(p{1 + 2 * number} + ({entry}), mask={ok}, other=0)")
            s.line(
                f"at{a} = tl.minimum(tl.maximum(at{a}, 0), {last})"
            )  # stays in range even if a refitted table is wrong
            terms.append((self.spread(f"at{a}.to(tl.int64)", a), stride))
            if self.k["weighted"][number]:
                s.line(f"w{a} = tl.load(p{2 + 2 * number} + ({entry}), mask={ok}, other=0.0)")
                weights.append(self.spread(f"w{a}", a))
                conditions.append(f"({weights[-1]} != 0)")
        return s.sum_of(*terms), " * ".join(weights), " & ".join(conditions)

    def spread(self, vector: str, axis: int) -> str:
        """Return a vector along one axis, broadcast over the tile."""
        return f"{vector}[:, None]" if axis < len(self.axes) - 1 else f"{vector}[None, :]"
