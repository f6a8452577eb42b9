"""Family of Resize in one launch, by tables of indices and weights that are built at build time."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Final

from smelt.backends._base import NodeRefusedError, Operands, Tactic
from smelt.backends._fused_programs import layouts_of
from smelt.backends._node_operands import input_view
from smelt.backends._resize_tables import resize_tables, table_constants, tables_of
from smelt.backends.cuda._cost_model import memory_seconds
from smelt.backends.cuda._elementwise_kernel import element_launch, write_element_offsets
from smelt.backends.cuda._family import CudaFamily
from smelt.backends.cuda._kernel_source import KernelWriter
from smelt.backends.cuda.families._epilogue import FLOATS
from smelt.ops import Resize
from smelt.types import TensorFormat, override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.backends.cuda._target import CudaTarget
    from smelt.engine import Step
    from smelt.ir import Constant, Node

_MAX_TAPS: Final = 256
"""Maximum number of input elements per output element, over all axes. Chosen without a
measurement."""
_UNROLLED_TAPS: Final = 16
"""Maximum number of taps for which the loop is unrolled. Chosen without a measurement."""


class _ResampleWriter(KernelWriter):
    """Writer of a Resize."""

    @override
    def write(self) -> str:
        s, axes, tile = self.s, self.k["axes"], self.k["tile"]
        is_sum = any(self.k["weighted"])
        places = write_element_offsets(s, axes, tile, self.k["places"])
        if is_sum:
            s.line(f"acc = tl.zeros([{tile[0]}, {tile[1]}], tl.float32)")
        count = prod(self.k["taps"])
        loop = "tl.static_range" if count <= _UNROLLED_TAPS else "range"
        with s.block(f"for tap in {loop}(0, {count}):"):
            offset, weight, is_used = self.take_tap(places)
            x = f"tl.load(p0 + ({offset}), mask={is_used}, other=0)"
            if is_sum:
                s.line(f"acc += {x}.to(tl.float32)" + (f" * {weight}" if weight else ""))
            else:
                s.line(f"acc = {x}")
        s.store(self.last, s.offset(places, axes, 1), "acc", "m")
        return s.text()

    def take_tap(self, places: Sequence[str]) -> tuple[str, str, str]:
        """Return the offset of a tap's element, its weight, and the mask of taps that count.

        ``places`` are the coordinates of the result, broadcast over the tile.
        """
        s, axes = self.s, self.k["axes"]
        s.unravel("tap", self.k["taps"], [f"t{n}" for n in range(len(self.k["taps"]))])
        terms: list[tuple[str, Any]] = []
        weights: list[str] = []
        conditions = ["m"]
        for a, (place, (_, stride, _, number)) in enumerate(zip(places, axes, strict=True)):
            if number < 0:
                terms.append((place, stride))
                continue
            name = f"c{a}"
            spread = place.removeprefix(name)
            ok = "i_ok" if a < len(axes) - 1 else f"{name}_ok"
            entry = f"{name} * {self.k['taps'][number]} + t{number}"
            last = f"{s.extent(self.k['extents'][number])} - 1"
            s.line(f"at{a} = tl.load(p{1 + 2 * number} + ({entry}), mask={ok}, other=0)")
            # It stays in range even if a refitted table is wrong.
            s.line(f"at{a} = tl.minimum(tl.maximum(at{a}, 0), {last})")
            terms.append((f"at{a}.to(tl.int64){spread}", stride))
            if self.k["weighted"][number]:
                s.line(f"w{a} = tl.load(p{2 + 2 * number} + ({entry}), mask={ok}, other=0.0)")
                weights.append(f"w{a}{spread}")
                conditions.append(f"({weights[-1]} != 0)")
        return s.sum_of(*terms), " * ".join(weights), " & ".join(conditions)


class ResampleFamily(CudaFamily):
    """Family of Resize; outputs sum the taps of all tables. Operands: input, tables, result."""

    name: ClassVar[str] = "resample"
    writer: ClassVar[type[KernelWriter]] = _ResampleWriter

    @override
    def tactics(self, node: Node, target: CudaTarget) -> Iterator[Tactic]:
        if not isinstance(node.op, Resize):
            return
        tables = resize_tables(node, node.op)
        kind = node.output.tensor
        if isinstance(tables, str):
            raise NodeRefusedError(tables)
        weighted = any(table.is_weighted for table in tables)
        if weighted and kind.dtype not in FLOATS:
            raise NodeRefusedError(f"interpolation of {kind.dtype.value} is not supported")
        if prod(table.taps for table in tables) > _MAX_TAPS:
            raise NodeRefusedError(
                f"more than {_MAX_TAPS} input elements per output element are not supported"
            )
        absent = (None,) * (len(node.inputs) - 1)
        for layout in layouts_of(kind.rank):
            fmt = TensorFormat(kind.dtype, layout)
            seconds = memory_seconds(node, target)
            yield Tactic(self.name, (), (fmt, *absent), (fmt,), estimated_seconds=seconds)

    @override
    def pack(self, node: Node, tactic: Tactic) -> tuple[Constant, ...]:
        return table_constants(node)

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        x, out, tables = input_view(operands, 0), operands.outputs[0], tables_of(node)
        numbers = {table.axis: number for number, table in enumerate(tables)}
        launch = element_launch(
            tactic,
            [x, *operands.packed, out],
            [numbers.get(axis, -1) for axis in range(len(out.shape))],
            extents=tuple(x.shape[table.axis] for table in tables),
            taps=tuple(table.taps for table in tables),
            weighted=tuple(table.is_weighted for table in tables),
        )
        return (launch,)
