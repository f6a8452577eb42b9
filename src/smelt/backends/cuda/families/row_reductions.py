"""Row reductions: softmax, normalisations, reductions, and the index of an extreme element.

A program processes a few rows. Rows that fit in registers are read once; longer rows are read again
for each statistic. Sums have a fixed order. Tactics differ in the size of programs: few rows need
small ones to occupy the GPU.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from math import prod
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from smelt.backends._base import Operands, Tactic, refuse_if
from smelt.backends._fused_programs import root_of
from smelt.backends._iteration_space import Axis, broadcast_strides, coalesce_axes, sort_axes
from smelt.backends._node_operands import input_view, required_input
from smelt.backends.cuda._cost_model import LAUNCH_SECONDS, memory_seconds, tile_extent
from smelt.backends.cuda._elementwise import literal, write_stages
from smelt.backends.cuda._elementwise_kernel import fields_of
from smelt.backends.cuda._family import CudaFamily
from smelt.backends.cuda._index_limits import MAX_INT32
from smelt.backends.cuda._kernel_source import KernelWriter, kernel_launch
from smelt.backends.cuda.families._epilogue import FLOAT_NAMES, FLOATS, extra_views, plan_epilogue
from smelt.engine import parameters
from smelt.ops import (
    ArgMax,
    ArgMin,
    GlobalAveragePool,
    GlobalMaxPool,
    Hardmax,
    LayerNormalization,
    LogSoftmax,
    RMSNormalization,
    Softmax,
)
from smelt.types import Layout, TensorFormat, ceil_div, element_count, guessed_extent, override

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from smelt.backends.cuda._target import CudaTarget
    from smelt.engine import KernelSpec, Parameters, Step, View
    from smelt.ir import Node
    from smelt.types import Dim

_MAX_COLUMNS: Final = 4096
"""Maximum number of elements of a row that a program processes at once. Chosen without a
measurement."""
_SIZES: Final = ((512, 1), (1024, 2), (2048, 4), (2048, 8), (4096, 4), (4096, 8), (8192, 8))
"""(elements that a program holds in registers, warps). Layer normalisation of 128 rows takes 1.75
µs with one warp for each row and 1.96 with four on an H200; eight warps for four rows save 1.7 of
95.2 µs of MiniLM (docs/lab/other-kernels-on-gpus.md)."""
_MAX_CANDIDATES: Final = 4
"""Maximum number of tactics of a node. Chosen without a measurement."""
_ROW_OVERHEAD_SECONDS: Final = 1.2e-6
"""Time in seconds that 512 elements of rows cost per warp besides memory traffic: reductions across
lanes and warps, divisions. No measurement is recorded."""
_LINE_BYTES: Final = 128
"""Size of a cache line in bytes."""
_RESIDENT_WARPS: Final = 32
"""Number of warps that a multiprocessor is assumed to run at once. Chosen without a measurement:
half of the 64 warps that a multiprocessor of an H200 can hold."""
_GUESSED_COLUMNS: Final = 1024
"""Assumed length of rows whose extent is symbolic. Chosen without a measurement."""
_REDUCTIONS: Final = {
    "global_average_pool": ("sum", "{x}", "{t} / {n}"),
    "global_max_pool": ("max", "{x}", "{t}"),
    "reduce_l1": ("sum", "tl.abs({x})", "{t}"),
    "reduce_l2": ("sum", "{x} * {x}", "tl.sqrt_rn({t})"),
    "reduce_log_sum": ("sum", "{x}", "tl.log({t})"),
    "reduce_log_sum_exp": ("sum", "tl.exp({x} - most[:, None])", "tl.log({t}) + most"),
    "reduce_max": ("max", "{x}", "{t}"),
    "reduce_mean": ("sum", "{x}", "{t} / {n}"),
    "reduce_min": ("min", "{x}", "{t}"),
    "reduce_prod": ("prod", "{x}", "{t}"),
    "reduce_sum": ("sum", "{x}", "{t}"),
    "reduce_sum_square": ("sum", "{x} * {x}", "{t}"),
}
"""For each op: the reduction, the expression of an element, and the result of a total of ``n``.

``most`` is the largest element; subtracting it keeps exponentials finite.
"""
_SOFTMAXES: Final = (Softmax, LogSoftmax, Hardmax)
"""Ops that write a result for every element of a row, like softmax."""
_NORMALISATIONS: Final = (LayerNormalization, RMSNormalization)
"""Ops that normalise rows."""
_NEUTRAL: Final = {"sum": "0.0", "prod": "1.0", "max": "float('-inf')", "min": "float('inf')"}
"""Neutral element of each reduction."""
_NEUTRAL_INDEX: Final = {"min": str(1 << 62), "max": "-1"}
"""Neutral element of each reduction of indices."""
_REDUCTION_STEPS: Final = {
    "sum": "{a} + {b}",
    "prod": "{a} * {b}",
    "max": "tl.maximum({a}, {b}, propagate_nan=tl.PropagateNan.ALL)",
    "min": "tl.minimum({a}, {b}, propagate_nan=tl.PropagateNan.ALL)",
}
"""Expression of one step of each reduction."""


class _RowWriter(KernelWriter):
    """Writer of the kernel of a row reduction."""

    def __init__(self, kernel: KernelSpec) -> None:
        super().__init__(kernel)
        self.along: Any = kernel["along"]
        """Axes within a row: extent, then the stride of every operand."""
        self.others: Any = kernel["others"]
        """Axes across rows: extent, then the stride of every operand."""
        self.block, self.columns = kernel["tile"]
        self.num_affine_inputs: int = kernel["own"]
        """Number of affine inputs of a normalisation (scale, shift), which follow operand 0."""
        length = kernel["length"]
        self.fits = isinstance(length, int) and length <= self.columns
        """Whether a whole row is held in registers."""
        self.length = self.s.extent(length)
        strides = range(1, 2 + self.last if self.along else 1)
        self.needs_int64_offsets = any(map(self.row_needs_int64_offsets, strides))

    def row_needs_int64_offsets(self, stride: int) -> bool:
        """Return whether offsets within a row of an operand may exceed 32 bits.

        Symbolic extents and strides are 64-bit scalars, so products with them are 64-bit already.
        """
        reach = 0
        for axis in self.along:
            if isinstance(axis[0], int) and isinstance(axis[stride], int):
                reach += (axis[0] - 1) * abs(axis[stride])
        return reach > MAX_INT32

    @override
    def write(self) -> str:
        s, op = self.s, self.k["op"]
        s.line(f"row = tl.program_id(0).to(tl.int64) * {self.block} + tl.arange(0, {self.block})")
        s.line(f"row_ok = row < {s.extent(self.k['rows'])}")
        names = s.coordinates("row", self.others, "r")
        for operand in range(len(s.dtypes)):
            s.line(f"base{operand} = row * 0 + {s.offset(names, self.others, operand)}")
        if self.fits:
            self.step_to("0")
            for number, is_weight in enumerate(self.k["constants"]):
                if is_weight:
                    s.line(f"e{number} = {self.read(1 + number)}")
            s.wait()
            s.line(f"x = {self.read(0)}")
        else:
            s.wait()
        if op in _REDUCTIONS:
            self.reduce(*_REDUCTIONS[op])
        elif op in {"softmax", "log_softmax"}:
            self.write_softmax()
        elif op in {"hardmax", "arg_max", "arg_min"}:
            self.find(op)
        else:
            self.normalise()
        return s.text()

    # ---- traversal of rows

    def step_to(self, start: str) -> None:
        """Write the columns of a block of the rows, and their offsets in every operand."""
        s = self.s
        wide = ".to(tl.int64)" if self.needs_int64_offsets else ""
        s.line(f"j = {start} + tl.arange(0, {self.columns}){wide}")
        s.line(f"ok = row_ok[:, None] & (j < {self.length})[None, :]")
        names = s.coordinates("j", self.along, "j")
        for operand in range(len(s.dtypes)):
            along = s.offset(names, self.along, operand)
            if all(axis[1 + operand] == 0 for axis in self.along):
                along = "j * 0"
            s.line(f"at{operand} = base{operand}[:, None] + ({along})[None, :]")

    def read(self, operand: int) -> str:
        """Return an expression that loads the current block of an operand."""
        return self.s.load(operand, f"at{operand}", "ok", "0.0")

    def fold(self, name: str, fold: str, element: str) -> None:
        """Write the reduction of an expression of ``x`` over each row into a variable."""
        s = self.s
        self.fold_elements("part", fold, element, _NEUTRAL[fold], "tl.float32")
        if fold == "prod":
            s.line(f"{name} = tl.reduce(part, 1, tl.standard._prod_combine)")
            return
        # Triton's reductions ignore NaN, so NaN is detected separately.
        s.line(f"{name} = tl.{fold}(part, axis=1)")
        if fold != "sum":
            s.line("strange = tl.max((part != part).to(tl.int32), axis=1)")
            s.line(f"{name} = tl.where(strange > 0, float('nan'), {name})")

    def fold_elements(self, name: str, fold: str, element: str, neutral: str, kind: str) -> None:
        """Write the reduction of an expression over the blocks of a row, by column."""
        s = self.s
        if self.fits:
            s.line(f"{name} = tl.where(ok, {element}, {neutral})")
            return
        s.line(f"{name} = tl.full([{self.block}, {self.columns}], {neutral}, {kind})")
        with self.row_blocks():
            s.line(f"one = tl.where(ok, {element}, {neutral})")
            s.line(f"{name} = {_REDUCTION_STEPS[fold].format(a=name, b='one')}")

    def write_row(self, value: str) -> None:
        """Write the store of an expression of ``x`` for every element of each row."""
        s = self.s
        with nullcontext() if self.fits else self.row_blocks():
            for number, is_weight in enumerate(self.k["constants"]):
                if not (self.fits and is_weight):  # otherwise it is loaded before the wait
                    s.line(f"e{number} = {self.read(1 + number)}")
            self.store("at", value, "ok")

    def store(self, place: str, value: str, mask: str) -> None:
        """Write the epilogue of a result and its store; all operands are at ``place``."""
        s = self.s
        if self.k["stages"]:
            s.line(f"result = {value}")
            first = 1 + self.num_affine_inputs
            read = s.extra_reader(first, lambda operand: s.load(operand, f"{place}{operand}", mask))
            value = write_stages(s.line, self.k["stages"], read, ["result"])
        s.store(self.last, f"{place}{self.last}", value, mask)

    @contextmanager
    def row_blocks(self) -> Generator[None]:
        """Write a loop over blocks of the rows, each loaded as ``x``."""
        with self.s.block(f"for start in range(0, {self.length}, {self.columns}):"):
            self.step_to("start")
            self.s.line(f"x = {self.read(0)}")
            yield

    # ---- ops

    def reduce(self, fold: str, element: str, result: str) -> None:
        """Write a reduction of each row."""
        if self.k["op"] == "reduce_log_sum_exp":
            self.fold("most", "max", "x")
            self.s.line("most = tl.where(tl.abs(most) < float('inf'), most, 0.0)")
        self.fold("total", fold, element.format(x="x"))
        count = f"({self.length} * 1.0)"
        self.store("base", result.format(t="total", n=count), "row_ok")

    def find(self, op: str) -> None:
        """Write the index of each row's extreme element; NaN is more extreme than any number."""
        self.fold("most", "min" if op == "arg_min" else "max", "x")
        # If a row of Hardmax contains NaN, the reference subtracts NaN from every element, so all
        # become NaN and the first index wins.
        is_nan = "(most != most)[:, None]" if op == "hardmax" else "(x != x)"
        fold = "max" if self.k["last"] else "min"
        is_best = f"(x == most[:, None]) | {is_nan}"
        index = f"tl.where({is_best}, j.to(tl.int64)[None, :], {_NEUTRAL_INDEX[fold]})"
        self.fold_elements("places", fold, index, _NEUTRAL_INDEX[fold], "tl.int64")
        self.s.line(f"place = tl.{fold}(places, axis=1)")
        if op == "hardmax":
            self.write_row("tl.where(j[None, :] == place[:, None], 1.0, 0.0)")
        else:
            self.store("base", "place", "row_ok")

    def write_softmax(self) -> None:
        """Write a softmax or its logarithm."""
        s = self.s
        self.fold("most", "max", "x")
        s.line("most = tl.where(most == float('-inf'), 0.0, most)")
        self.fold("total", "sum", "tl.exp(x - most[:, None])")
        if self.k["op"] == "softmax":
            self.write_row("tl.exp(x - most[:, None]) / total[:, None]")
        else:
            self.write_row("x - most[:, None] - tl.log(total)[:, None]")

    def normalise(self) -> None:
        """Write a layer or RMS normalisation."""
        s = self.s
        epsilon = literal(self.k["epsilon"])
        count = f"({self.length} * 1.0)"
        if self.k["op"] == "layer_normalization":
            self.fold("total", "sum", "x")
            s.line(f"mean = total / {count}")
        else:
            s.line(f"mean = tl.zeros([{self.block}], tl.float32)")
        self.fold("energy", "sum", "(x - mean[:, None]) * (x - mean[:, None])")
        s.line(f"scale = 1.0 / tl.sqrt(energy / {count} + {epsilon})")
        value = "(x - mean[:, None]) * scale[:, None]"
        value += " * e0" if self.num_affine_inputs > 0 else ""
        value += " + e1" if self.num_affine_inputs > 1 else ""
        self.write_row(value)


class RowReductionsFamily(CudaFamily):
    """Family of row reductions, with one or several rows per program."""

    name: ClassVar[str] = "row_reductions"
    writer: ClassVar[type[KernelWriter]] = _RowWriter

    @override
    def tactics(self, node: Node, target: CudaTarget) -> Iterator[Tactic]:
        op, count = root_of(node)
        is_known = isinstance(op, (*_SOFTMAXES, *_NORMALISATIONS, ArgMax, ArgMin))
        if not is_known and op.name not in _REDUCTIONS:
            return
        kind, out = required_input(node, 0).tensor, node.output.tensor
        layouts = [Layout.LINEAR]
        if kind.rank >= 3 and not isinstance(op, _NORMALISATIONS):
            layouts.append(Layout.CHANNELS_LAST)
        refuse_if(_unsupported_reason(node))
        for layout in layouts:
            result_layout = layout if out.rank == kind.rank else Layout.LINEAR
            epilogue = plan_epilogue(node, result_layout)
            others = [
                None
                if v is None or op.name in _REDUCTIONS
                else TensorFormat(v.tensor.dtype, Layout.LINEAR)
                for v in node.inputs[1:count]
            ]
            inputs = (TensorFormat(kind.dtype, layout), *others, *epilogue.formats)
            output = TensorFormat(out.dtype, result_layout)
            for options, seconds in _options(node, layout, target):
                yield Tactic(self.name, options, inputs, (output,), estimated_seconds=seconds)

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        x, out = input_view(operands, 0), operands.outputs[0]
        op = root_of(node)[0]
        affine_views, constants = _affine_inputs(node, operands)
        extras = extra_views(node, operands)
        views = [x, *affine_views, *(view for view, _ in extras), out]
        inner = _inner_axes(node)
        strides = [broadcast_strides(v, x.shape) for v in affine_views]
        results = [_result_strides(node, extra_strides, inner) for _, extra_strides in extras]
        strides = [x.strides, *strides, *results, _result_strides(node, out.strides, inner)]
        outer = [a for a in range(len(x.shape)) if a not in inner]
        length = element_count(tuple(x.shape[a] for a in inner))
        rows = element_count(tuple(x.shape[a] for a in outer))
        options = tactic.options
        columns = _columns(length)
        block = max(1, options.integer("elements") // columns)
        launch = kernel_launch(
            self.name,
            views,
            ceil_div(rows, block),
            op=op.name,
            own=len(affine_views),
            constants=constants,
            along=_axes(x.shape, strides, inner),
            others=_axes(x.shape, strides, outer),
            length=length,
            rows=rows,
            tile=(block, columns),
            epsilon=float(getattr(op, "epsilon", 0.0)),
            last=bool(getattr(op, "select_last_index", 0)),
            stages=plan_epilogue(node, tactic.output_formats[0].layout).stages,
            num_warps=options["num_warps"],
        )
        return (launch,)


def _affine_inputs(node: Node, operands: Operands) -> tuple[list[View], tuple[bool, ...]]:
    """Return the scale and shift inputs of a normalisation, and whether each is a weight."""
    count = root_of(node)[1]
    inputs = zip(node.inputs[1:count], operands.inputs[1:count], strict=True)
    present = [(view, value) for value, view in inputs if value is not None and view is not None]
    return [view for view, _ in present], tuple(v.constant is not None for _, v in present)


def _options(node: Node, layout: Layout, target: CudaTarget) -> list[tuple[Parameters, float]]:
    """Return the most promising program sizes with their estimated seconds, best first."""
    shape = required_input(node, 0).tensor.shape
    length = prod(guessed_extent(shape[a]) for a in _inner_axes(node))
    rows = prod(guessed_extent(extent) for extent in shape) // max(1, length)
    columns = _columns(length)
    # Neighbours in memory may belong to different rows.
    is_strided = layout.axis_order(len(shape))[-1] not in _inner_axes(node)
    element_bytes = required_input(node, 0).tensor.dtype.size_bytes
    sizes: dict[tuple[int, int], tuple[Parameters, float]] = {}
    for elements, num_warps in _SIZES:
        block = max(1, elements // columns)
        if block * columns > 2 * elements and length > columns:
            continue
        programs = -(-rows // block)
        waves = -(-programs * num_warps // (_RESIDENT_WARPS * target.multiprocessors))
        passes = -(-length // columns)
        program_seconds = _ROW_OVERHEAD_SECONDS * passes * block * columns / (num_warps * 512)
        used_bytes = block * element_bytes if is_strided else _LINE_BYTES
        traffic_seconds = memory_seconds(node, target) * max(1.0, _LINE_BYTES / used_bytes)
        seconds = max(traffic_seconds, LAUNCH_SECONDS + waves * program_seconds)
        options = parameters(elements=elements, num_warps=num_warps)
        sizes.setdefault((block, num_warps), (options, seconds * (1 + 0.01 * len(sizes))))
    return sorted(sizes.values(), key=itemgetter(1))[:_MAX_CANDIDATES]


def _columns(length: Dim) -> int:
    """Return how many elements of a row a program processes at once."""
    known = length if isinstance(length, int) else _GUESSED_COLUMNS
    return min(_MAX_COLUMNS, tile_extent(known))


def _unsupported_reason(node: Node) -> str | None:
    """Return why the family cannot run a node, or None."""
    op, count = root_of(node)
    kind = required_input(node, 0).tensor
    if kind.dtype not in FLOATS:
        return f"the input is {kind.dtype.value}; only {FLOAT_NAMES} are supported"
    if kind.rank == 0 or len(node.outputs) > 1:
        return "the node has several outputs, or its input has rank 0"
    listed = node.inputs[1] if op.name in _REDUCTIONS and count > 1 else None
    if listed is not None and listed.constant is None:
        return f"the axes {listed.name!r} are not constant"
    return None


def _inner_axes(node: Node) -> tuple[int, ...]:
    """Return the axes that a row consists of."""
    (op, count), rank = root_of(node), required_input(node, 0).tensor.rank
    if isinstance(op, (*_SOFTMAXES, ArgMax, ArgMin)):
        return (op.axis % rank,)
    if isinstance(op, _NORMALISATIONS):
        return tuple(range(op.axis % rank, rank))
    if isinstance(op, GlobalAveragePool | GlobalMaxPool):
        return tuple(range(2, rank))
    axes_input = node.inputs[1] if count > 1 else None
    constant = None if axes_input is None else axes_input.constant
    axes = None if constant is None else tuple(int(a) for a in constant.fix())
    # Every reduction op has this method.
    inner_axes: tuple[int, ...] = cast("Any", op).axes(rank, axes)
    return inner_axes


def _result_strides(node: Node, strides: tuple[Dim, ...], inner: Sequence[int]) -> tuple[Dim, ...]:
    """Return a result's strides along the input's axes; 0 along the reduced axes."""
    op, rank = root_of(node)[0], required_input(node, 0).tensor.rank
    if isinstance(op, (*_SOFTMAXES, *_NORMALISATIONS)):
        return strides
    if len(strides) == rank:
        return tuple(0 if a in inner else s for a, s in enumerate(strides))
    remaining = iter(strides)
    return tuple(0 if a in inner else next(remaining) for a in range(rank))


def _axes(
    shape: tuple[Dim, ...], strides: Sequence[tuple[Dim, ...]], chosen: Sequence[int]
) -> tuple[tuple[Dim, ...], ...]:
    """Return the coalesced iteration axes of some of the input's axes, as fields of a kernel."""
    axes = [Axis(shape[a], tuple(s[a] for s in strides)) for a in chosen if shape[a] != 1]
    return fields_of(coalesce_axes(sort_axes(axes, 0)))
