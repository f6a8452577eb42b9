"""Softmax, layer normalisation and RMS normalisation: passes over a line that stays in cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final

from smelt.backends import Family, LaunchScalars, NodeRefusedError, Operands, Tactic
from smelt.backends._iteration_space import broadcast_strides
from smelt.backends.cpu import _math as m
from smelt.backends.cpu._emit import Emitter, Int, Reg, vector_type
from smelt.backends.cpu._kernel_spec import kernel_spec
from smelt.backends.cpu._loop_nest import LoopNest, axes_along, write_loop_nest
from smelt.backends.cpu._refusals import check_float_values
from smelt.backends.cpu.families._operand_packing import LINEAR
from smelt.backends.cpu.families._vectors import balanced, load, store
from smelt.backends.cpu.families.reduce import combine, reduce_lanes
from smelt.engine import KernelSpec, Launch, Step
from smelt.ops import LayerNormalization, LogSoftmax, RMSNormalization, Softmax, is_same_for_rows
from smelt.types import DType, Layout, TensorFormat, element_count, override

if TYPE_CHECKING:
    from smelt.backends.cpu._target import CpuTarget
    from smelt.ir import Node

_SOFT: Final = (Softmax, LogSoftmax)
_NORMS: Final = (LayerNormalization, RMSNormalization)
_LARGEST: Final = "max_number"
"""Reduction that returns the larger number and ignores NaN."""


class NormalizeFamily(Family["CpuTarget"]):
    """Normalisation in float32, along one axis (softmax) or the trailing axes (the others).

    Lines that are adjacent in memory are computed side by side in the lanes of vectors; contiguous
    lines are computed one at a time, with vectors along the line.
    """

    name: ClassVar[str] = "normalize"
    supports_reduced_precision: ClassVar[bool] = True

    @override
    def tactics(self, node: Node, target: CpuTarget) -> Iterator[Tactic]:
        if not isinstance(node.op, _SOFT + _NORMS):
            return
        check_float_values(*node.inputs)
        rank = node.output.tensor.rank
        if len(node.outputs) > 1 or rank == 0:
            raise NodeRefusedError("the node has several outputs, or its result has rank 0")
        if isinstance(node.op, _NORMS) and not all(
            v is None or is_same_for_rows(v.tensor, node.output.tensor, node.op.axis)
            for v in node.inputs[1:]
        ):
            raise NodeRefusedError("the scale or the bias is not the same for all rows")
        layouts = [Layout.LINEAR]
        if isinstance(node.op, _SOFT) and rank >= 3:
            layouts.append(Layout.CHANNELS_LAST)
        for layout in layouts:
            fmt = TensorFormat(DType.FLOAT32, layout)
            inputs = (fmt, *(None if v is None else LINEAR for v in node.inputs[1:]))
            yield Tactic(self.name, (), inputs, (fmt,), estimated_seconds=5e-6)

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        views = [v for v in (*operands.inputs, *operands.outputs) if v is not None]
        source, result = views[0], views[-1]
        rank = len(source.shape)
        first = node.op.axis % rank if isinstance(node.op, _SOFT + _NORMS) else 0
        last = first + 1 if isinstance(node.op, _SOFT) else rank
        # Scale and bias have strides of their own, because they may be views.
        strides = [source.strides, result.strides]
        strides += [broadcast_strides(v, source.shape) for v in views[1:-1]]
        along = axes_along(source.shape, strides, range(first, last))
        outside = [a for a in range(rank) if not first <= a < last]
        others = axes_along(source.shape, strides[:2], outside)
        scalars = LaunchScalars()
        loop_nest = LoopNest.over(others, 2, element_count(tuple(a.extent for a in along)))
        epsilon = node.op.epsilon if isinstance(node.op, _NORMS) else 0.0
        spec = kernel_spec(
            self.name,
            op=node.op.name,
            loop_nest=loop_nest.json(scalars),
            along=tuple(a.json(scalars) for a in along),
            vectors=len(views) - 2,
            epsilon=epsilon,
            dtypes=tuple(v.dtype.value for v in (source, result, *views[1:-1])),
        )
        return (Launch(spec, tuple(views), (len(views) - 1,), scalars.values, loop_nest.chunks),)

    @override
    def generate(self, kernel: KernelSpec, target: CpuTarget) -> str:
        vectors = kernel["vectors"]
        e = Emitter(kernel.symbol, vectors + 2)
        lanes = target.vector_bits // 32
        along = [tuple(e.extent(x) for x in axis) for axis in kernel["along"]]
        emit = _EMITTERS[kernel["op"]]
        extras = tuple(e.pointer(1 + k) for k in range(vectors))
        dtypes = tuple(DType(d) for d in kernel["dtypes"])
        sizes = [d.size_bytes for d in dtypes[:2]]

        def row(starts: Sequence[Reg], first: Int, last: Int, strides: tuple[Int, ...]) -> None:
            is_contiguous = len(along) == 1 and all(s == 1 for s in along[0][1:])
            side_by_side = lanes if strides == (1, 1) and not is_contiguous else 1
            for index, lines in e.vector_steps(first, last, side_by_side):
                at = (*e.advanced(starts, index, strides, sizes), *extras)
                vector_width = lanes if is_contiguous else 1
                emit(_Line(e, along, at, dtypes, lines, vector_width, kernel["epsilon"]))

        ends = [e.pointer(0), e.pointer(vectors + 1)]
        return write_loop_nest(e, kernel["loop_nest"], sizes, row, ends)


@dataclass(frozen=True, slots=True)
class _Line:
    """Elements that are normalised together.

    They are ``lines`` lines side by side, or one line that is read ``vector_width`` elements at a
    time.
    """

    e: Emitter
    axes: Sequence[tuple[Int, ...]]
    """Extent and strides of each axis of the line."""
    addresses: tuple[Reg, ...]
    """Start of the line in the source, the result, and the scale and bias."""
    dtypes: tuple[DType, ...]
    """Element type of each of these operands in memory."""
    lines: int
    vector_width: int
    epsilon: float

    @property
    def count(self) -> Int:
        """Number of elements of the line."""
        return self.e.product(extent for extent, *_ in self.axes)

    @property
    def vectors_in_registers(self) -> int:
        """Vectors of the line if half of the registers hold all of them, else 0."""
        count = self.count
        if self.vector_width == 1 or not isinstance(count, int) or count % self.vector_width:
            return 0
        vectors = count // self.vector_width
        return vectors if vectors <= self.vector_width else 0

    def constant(self, value: float) -> Reg:
        """Return a literal of the type of a value per line."""
        return self.e.constant(value, vector_type("float", self.lines))

    def fold(self, op: str, first: float, value: Callable[[Reg, Reg, int], Reg]) -> Reg:
        """Reduce ``value(source, result, width)`` along the line."""
        wide = self.e.constant(first, vector_type("float", max(self.lines, self.vector_width)))
        narrow = self.e.constant(first, "float")

        def step(total: Reg, addresses: Sequence[Reg], width: int) -> Reg:
            return combine(self.e, op, total, value(addresses[0], addresses[1], width))

        total, rest = self._walk(step, wide, narrow)
        if self.vector_width == 1:
            return total
        return combine(self.e, op, reduce_lanes(self.e, op, total), rest)

    def each(self, store: Callable[[Sequence[Reg], int], None]) -> None:
        """Call ``store(addresses, width)`` for every step along the line."""

        def step(total: Reg, addresses: Sequence[Reg], width: int) -> Reg:
            store(addresses, width)
            return total

        zero = self.e.constant(0, "i64")
        self._walk(step, zero, zero)

    def _walk(
        self, step: Callable[[Reg, Sequence[Reg], int], Reg], wide: Reg, narrow: Reg
    ) -> tuple[Reg, Reg]:
        """Write the loops along the line, and return the carried values.

        The second value belongs to the elements beyond full vectors.
        """
        e = self.e
        if self.vector_width == 1:
            return self._nest(step, list(self.axes), self.addresses, wide), narrow
        extent = self.count
        full_end = e.mul(e.div(extent, self.vector_width), self.vector_width)
        totals: list[Reg] = []
        for low, high, width, total in (
            (0, full_end, self.vector_width, wide),
            (full_end, extent, 1, narrow),
        ):
            with e.loop(low, high, width, carried=(total,)) as steps:
                sizes = [d.size_bytes for d in self.dtypes]
                addresses = e.advanced(self.addresses, steps.index, [1] * len(sizes), sizes)
                steps.carry = (step(steps.values[0], addresses, width),)
            totals.append(steps.values[0])
        return totals[0], totals[1]

    def _nest(
        self,
        step: Callable[[Reg, Sequence[Reg], int], Reg],
        axes: list[tuple[Int, ...]],
        addresses: Sequence[Reg],
        total: Reg,
    ) -> Reg:
        """Write one loop per axis for lines side by side, and return the carried value."""
        if not axes:
            return step(total, addresses, self.lines)
        (extent, *strides), *inner = axes
        with self.e.loop(0, extent, carried=(total,)) as steps:
            sizes = [d.size_bytes for d in self.dtypes]
            inner_addresses = self.e.advanced(addresses, steps.index, strides, sizes)
            steps.carry = (self._nest(step, inner, inner_addresses, steps.values[0]),)
        return steps.values[0]

    def load(self, at: Reg, width: int, operand: int = 0) -> Reg:
        """Load ``width`` elements of operand number ``operand``."""
        return load(self.e, vector_type("float", width), at, None, self.dtypes[operand])

    def store(self, value: Reg, at: Reg) -> None:
        """Store elements of the result."""
        store(self.e, value, at, None, self.dtypes[1])

    def spread(self, value: Reg, width: int) -> Reg:
        """Return a value of the line broadcast to ``width`` elements."""
        return self.e.splat(value, width) if self.vector_width > 1 else value


def _softmax(line: _Line) -> None:
    """Write a softmax: the maximum, the sum of exponentials, and their quotients.

    A float32 result holds the exponentials between the passes. A narrow result would round them a
    second time, so they are computed twice.
    """
    e = line.e
    if vectors_in_registers := line.vectors_in_registers:
        _softmax_in_registers(line, vectors_in_registers)
        return
    top = _line_maximum(line)

    keeps_exponentials = line.dtypes[1] is DType.FLOAT32

    def exponential(source: Reg, result: Reg, width: int) -> Reg:
        x = line.load(source, width)
        power = m.scaled_exp(e, e.binary("fsub", x, line.spread(top, width)))
        if keeps_exponentials:
            line.store(power, result)
        return power

    total = line.fold("reduce_sum", 0.0, exponential)
    scale = e.binary("fdiv", line.constant(1.0), total)

    def write(addresses: Sequence[Reg], width: int) -> None:
        if keeps_exponentials:
            y = line.load(addresses[1], width, 1)
        else:  # see above: a narrow result does not hold the exponentials
            x = line.load(addresses[0], width)
            y = m.scaled_exp(e, e.binary("fsub", x, line.spread(top, width)))
        line.store(e.binary("fmul", y, line.spread(scale, width)), addresses[1])

    line.each(write)


def _softmax_in_registers(line: _Line, count: int) -> None:
    """Write a softmax in one pass over a line of ``count`` vectors that stay in registers."""
    e, width = line.e, line.vector_width
    source, result, *_ = line.addresses
    read, written = (d.size_bytes for d in line.dtypes[:2])
    lines = [line.load(e.at(source, k * width * read), width) for k in range(count)]
    top = line.spread(reduce_lanes(e, _LARGEST, _tree(e, _LARGEST, lines)), width)
    powers = [m.scaled_exp(e, e.binary("fsub", x, top)) for x in lines]
    total = reduce_lanes(e, "reduce_sum", _tree(e, "reduce_sum", powers))
    scale = line.spread(e.binary("fdiv", line.constant(1.0), total), width)
    for k, power in enumerate(powers):
        line.store(e.binary("fmul", power, scale), e.at(result, k * width * written))


def _tree(e: Emitter, op: str, vectors: Sequence[Reg]) -> Reg:
    """Return all vectors combined in a balanced tree."""
    return balanced(partial(combine, e, op), vectors)


def _log_softmax(line: _Line) -> None:
    """Write a log-softmax: the maximum, the sum of exponentials, and the differences."""
    e = line.e
    top = _line_maximum(line)

    def exponential(source: Reg, _result: Reg, width: int) -> Reg:
        x = line.load(source, width)
        return m.scaled_exp(e, e.binary("fsub", x, line.spread(top, width)))

    total = line.fold("reduce_sum", 0.0, exponential)
    shift = m.log(e, e.binary("fmul", total, e.constant(m.SCALED_EXP_INVERSE, total.type)))

    def write(addresses: Sequence[Reg], width: int) -> None:
        x = line.load(addresses[0], width)
        low = e.binary("fsub", x, line.spread(top, width))
        line.store(e.binary("fsub", low, line.spread(shift, width)), addresses[1])

    line.each(write)


def _line_maximum(line: _Line) -> Reg:
    """Return the maximum of the line."""
    # A NaN that is ignored here still makes the sum of exponentials NaN.
    return line.fold(_LARGEST, float("-inf"), lambda source, _, width: line.load(source, width))


def _normalization(*, centred: bool) -> Callable[[_Line], None]:
    """Return the writer of ``(x - mean) / sqrt(variance + epsilon) * scale + bias``.

    Without ``centred`` there is no mean: RMS normalisation.
    """

    def emit(line: _Line) -> None:
        e = line.e

        number = e.emit("float", f"sitofp {e.i64(line.count)} to float")
        count, mean = e.splat(number, line.lines), None
        if centred:
            total = line.fold("reduce_sum", 0.0, lambda source, _, width: line.load(source, width))
            mean = e.binary("fdiv", total, count)

        def centre(x: Reg, width: int) -> Reg:
            return x if mean is None else e.binary("fsub", x, line.spread(mean, width))

        def square(source: Reg, _result: Reg, width: int) -> Reg:
            low = centre(line.load(source, width), width)
            return e.binary("fmul", low, low)

        spread = e.binary("fdiv", line.fold("reduce_sum", 0.0, square), count)
        root = e.unary_intrinsic("sqrt", e.binary("fadd", spread, line.constant(line.epsilon)))
        factor = e.binary("fdiv", line.constant(1.0), root)

        def write(addresses: Sequence[Reg], width: int) -> None:
            source, result, *extras = addresses
            low = centre(line.load(source, width), width)
            y = e.binary("fmul", low, line.spread(factor, width))
            for number, extra in enumerate(extras):
                if line.vector_width > 1:
                    parameter = line.load(extra, width, 2 + number)
                else:
                    parameter = e.splat(line.load(extra, 1, 2 + number), width)
                y = e.binary("fadd" if number else "fmul", y, parameter)
            line.store(y, result)

        line.each(write)

    return emit


_EMITTERS: Final[dict[str, Callable[[_Line], None]]] = {
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "layer_normalization": _normalization(centred=True),
    "rms_normalization": _normalization(centred=False),
}
"""Writer of a line by op."""
