"""Attention in one kernel: scores and their softmax stay in registers.

A program does a block of queries of one head. It walks the keys in blocks, keeps the largest score
and the sum of exponentials of each query so far, and scales what it has when a larger one comes
(Dao, "FlashAttention-2", 2023, algorithm 1). Powers are of two, with the scale taken into the
scores once.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, Final

from smelt.backends import op_as
from smelt.backends._base import Family, Operands, Refusal, Tactic
from smelt.backends._iteration_space import broadcast_strides
from smelt.backends._launch_scalars import LaunchScalars
from smelt.backends._node_operands import input_view, required_input
from smelt.backends.cuda._cost_model import (
    WARP_LANES,
    LaunchWorkload,
    count_of,
    gpu_spec_of,
    guessed_extent,
    product_seconds,
    seconds_of,
    tile_extent,
)
from smelt.backends.cuda._elementwise import literal
from smelt.backends.cuda._kernel_source import LANGUAGE_TYPES, Source, operand_parameters
from smelt.backends.cuda._target import CudaTarget
from smelt.backends.cuda.families._epilogue import FLOATS
from smelt.backends.cuda.families._gemm_operands import format_of_factor
from smelt.engine import KernelSpec, Launch, Options, parameters
from smelt.ops import Attention
from smelt.types import DType, Layout, TensorFormat, ceil_div, override

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.engine import Json, Step, View
    from smelt.ir import Node
    from smelt.types import Dim

_BLOCKS: Final = (
    (16, 128, 4), (16, 64, 4), (16, 32, 4), (32, 128, 4), (64, 128, 4), (64, 64, 4), (128, 128, 8),
    (128, 64, 8), (128, 64, 4), (64, 32, 4),
)  # fmt: skip
"""Queries and keys of a block, and warps; the least do for as few as there may be."""
_MAX_CANDIDATES: Final = 6
_WIDEST_HEAD: Final = 256
_MAX_PREFETCHED_VALUES: Final = 64 * WARP_LANES
"""Values that a warp may hold while keys are scored."""
_DEPENDENCY_SECONDS: Final = 3.0e-7
"""Of a block of keys: its scores' largest must be known before its powers."""
_ROW_SECONDS: Final = 3.0e-9
"""Of a multiprocessor, for each query and block of keys: what was summed becomes smaller."""
_SCORE_SECONDS: Final = 4.0e-11
"""The same for each score: its power, and being converted."""
_LOG2_E: Final = math.log2(math.e)


class AttentionFamily(Family[CudaTarget]):
    """Any number of keys; heads of up to 256 elements."""

    name: ClassVar[str] = "attention"
    supports_reduced_precision: ClassVar[bool] = True

    @override
    def tactics(self, node: Node, target: CudaTarget) -> Iterator[Tactic | Refusal]:
        op = node.op
        if not isinstance(op, Attention):
            return
        if reason := _unsupported_reason(node, op):
            yield Refusal(self.name, reason)
            return
        inputs = tuple(None if v is None else format_of_factor(v) for v in node.inputs)
        result = TensorFormat(node.output.tensor.dtype, Layout.LINEAR)
        for options, seconds in _options(node, op, target):
            yield Tactic(self.name, options, inputs, (result,), cost_hint=seconds)

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        op = op_as(Attention, node)
        options = tactic.options
        q, k, v = (input_view(operands, index) for index in range(3))
        out = operands.outputs[0]
        mask = operands.inputs[3] if len(operands.inputs) > 3 else None
        batch, heads, queries, width = op.split(q.shape)
        _, _, keys, result_width = op.split(v.shape)
        scalars = LaunchScalars()
        views = [q, k, v, *([] if mask is None else [mask]), out]
        strides = [_strides(op, view) for view in (q, k, v)]
        if mask is not None:
            strides.append(broadcast_strides(mask, (batch, heads, queries, keys)))
        strides.append(_strides(op, out))
        spec = KernelSpec(
            self.name,
            parameters(
                block=options["block"],
                extents=scalars.all_json((heads, queries, keys, width, result_width)),
                strides=tuple(map(scalars.all_json, strides)),
                scale=op.scale,
                precision=options["precision"],
                num_warps=options["num_warps"],
                num_stages=options["num_stages"],
                **operand_parameters(views, len(scalars.values)),
            ),
        )
        chunks = batch * heads * ceil_div(queries, options.integers("block")[0])
        return (Launch(spec, tuple(views), (len(views) - 1,), scalars.values, chunks),)

    @override
    def generate(self, kernel: KernelSpec, target: CudaTarget) -> str:
        del target
        return _AttentionWriter(kernel).write()


def _unsupported_reason(node: Node, op: Attention) -> str | None:
    kind = required_input(node, 0).tensor
    if kind.dtype not in FLOATS:
        return f"supports floating-point types only, not {kind.dtype.value}"
    for index in (0, 2):
        width = op.split(required_input(node, index).tensor.shape)[3]
        if not isinstance(width, int) or not 0 < width <= _WIDEST_HEAD:
            return f"the head size is {width}; at most {_WIDEST_HEAD} is supported"
    keys = op.split(required_input(node, 1).tensor.shape)[2]
    return "there are no keys" if keys == 0 else None


def _options(
    node: Node, op: Attention, target: CudaTarget
) -> list[tuple[tuple[tuple[str, Json], ...], float]]:
    """The most promising blocks, with estimated seconds, best first."""
    q, v = required_input(node, 0).tensor, required_input(node, 2).tensor
    stored = target.operand_dtype(q.dtype)
    _, _, queries, width = map(guessed_extent, op.split(q.shape))
    keys, result_width = map(guessed_extent, op.split(v.shape)[2:])
    found: list[tuple[float, tuple[tuple[str, Json], ...]]] = []
    for rows, columns, num_warps in _BLOCKS:
        elements = (rows + columns) * tile_extent(width) + columns * tile_extent(result_width)
        num_stages = 1 if keys <= columns else 2
        if elements * num_stages * stored.size_bytes > target.shared_bytes * 3 // 4:
            continue
        if columns > 2 * tile_extent(keys) or rows > 2 * tile_extent(queries):
            continue
        for precision in _precisions(stored):
            options = parameters(
                block=(rows, columns),
                num_stages=num_stages,
                precision=precision,
                num_warps=num_warps,
            )
            work = _work(node, op, Options(options), target)
            found.append((seconds_of(work, gpu_spec_of(target)), options))
    return [
        (options, s) for s, options in sorted(found, key=lambda pair: pair[0])[:_MAX_CANDIDATES]
    ]


def _work(node: Node, op: Attention, options: Options, target: CudaTarget) -> LaunchWorkload:
    """What the programs of a size of blocks do."""
    q, v = required_input(node, 0).tensor, required_input(node, 2).tensor
    batch, heads, queries, width = map(guessed_extent, op.split(q.shape))
    keys, result_width = map(guessed_extent, op.split(v.shape)[2:])
    stored = target.operand_dtype(q.dtype)
    (rows, columns), size = options.integers("block"), stored.size_bytes
    num_warps, num_stages = options.integer("num_warps"), options.integer("num_stages")
    how = (num_warps, stored, options.text("precision"), gpu_spec_of(target))
    scores = product_seconds((rows, columns, tile_extent(width)), *how)
    accumulators = product_seconds((rows, tile_extent(result_width), columns), *how)
    programs = batch * heads * -(-queries // rows)
    steps, threads = -(-keys // columns), num_warps * WARP_LANES
    step_bytes = size * columns * (width + result_width)
    ends = size * rows * (width + result_width)
    moved = sum(count_of(x) for x in (*node.inputs, node.output) if x is not None)
    return LaunchWorkload(
        programs=programs,
        num_warps=num_warps,
        registers=28 + 1.15 * rows * (columns + result_width) / threads,
        shared_bytes=num_stages * step_bytes,
        steps=steps,
        num_stages=num_stages,
        step_seconds=scores + accumulators + _SCORE_SECONDS * rows * columns,
        step_overhead_seconds=_ROW_SECONDS * rows,
        dependency_seconds=_DEPENDENCY_SECONDS,
        step_bytes=step_bytes,
        epilogue_bytes=ends,
        accumulators=rows * result_width / threads,
        l2_read_bytes=float(programs) * (steps * step_bytes + ends),
        source_bytes=size * (count_of(required_input(node, 1)) + count_of(required_input(node, 2))),
        moved_bytes=size * moved,
    )


def _precisions(dtype: DType) -> tuple[str, ...]:
    """How float32 is multiplied: in three products of tensor cores, or without them."""
    return ("tf32x3", "ieee") if dtype is DType.FLOAT32 else ("ieee",)


def _strides(op: Attention, view: View) -> tuple[Dim, ...]:
    """Of batch, head, place and element."""
    if not op.heads:
        return view.strides
    batch, place, element = view.strides
    whole = view.shape[2]
    assert isinstance(whole, int)  # noqa: S101  (inference found that heads share it)
    return (batch, whole // op.heads * element, place, element)


class _AttentionWriter:
    def __init__(self, kernel: KernelSpec) -> None:
        self.k = kernel
        self.s = Source(kernel)
        self.rows, self.columns = kernel["block"]
        self.heads, self.queries, self.keys, self.width, self.result_width = kernel["extents"]
        self.sanitize_name = len(self.s.dtypes) > 4
        self.last = len(self.s.dtypes) - 1
        self.whole_rows = isinstance(self.queries, int) and self.queries % self.rows == 0
        self.whole_columns = isinstance(self.keys, int) and self.keys % self.columns == 0
        self.factor = f" * {literal(kernel['scale'] * _LOG2_E)}"
        # Scaling where powers are taken is one multiplication and subtraction in one; the largest
        # score stays the largest only if the factor is positive, and masks are added after it.
        self.times = "" if self.sanitize_name or kernel["scale"] <= 0 else self.factor
        self.at_once = isinstance(self.keys, int) and self.keys <= self.columns

    def write(self) -> str:
        s = self.s
        blocks = f"(({s.extent(self.queries)} + {self.rows - 1}) // {self.rows})"
        s.line("program = tl.program_id(0).to(tl.int64)")
        s.line(f"head = (program // {blocks}) % {s.extent(self.heads)}")
        s.line(f"item = program // ({blocks} * {s.extent(self.heads)})")
        s.line(f"row = (program % {blocks}) * {self.rows} + tl.arange(0, {self.rows})")
        s.line(f"d = tl.arange(0, {tile_extent(self.width)})")
        s.line(f"e = tl.arange(0, {tile_extent(self.result_width)})")
        s.line(f"row_ok = row < {s.extent(self.queries)}")
        for operand in range(len(s.dtypes)):
            batch, head, *_ = self.k["strides"][operand]
            s.line(f"base{operand} = p{operand} + ({s.sum_of(('item', batch), ('head', head))})")
        row_ok = "" if self.whole_rows else "row_ok[:, None]"
        s.wait()
        q_ok = self.inside(row_ok, "d[None, :]", self.width)
        s.line(f"q = tl.load({self.place(0, 'row[:, None]', 'd[None, :]')}{q_ok})")
        s.line(f"acc = tl.zeros([{self.rows}, {tile_extent(self.result_width)}], tl.float32)")
        if self.at_once:
            self.find_keys("0")
            has_room = (
                self.columns * tile_extent(self.result_width)
                <= _MAX_PREFETCHED_VALUES * self.k["num_warps"]
            )
            if has_room:
                self.load_values()
            self.score()
            s.line(f"most = tl.max(scores, 1){self.times}")
            s.line(f"power = tl.exp2(scores{self.times} - most[:, None])")
            s.line("total = tl.sum(power, 1)")
            if not has_room:
                self.load_values()
            self.add_values()
        else:
            self.walk()
        s.line("acc = acc / total[:, None]")
        ok = self.inside(row_ok, "e[None, :]", self.result_width, other=False)
        place = self.place(self.last, "row[:, None]", "e[None, :]")
        s.line(f"tl.store({place}, acc.to({LANGUAGE_TYPES[s.dtypes[self.last]]}){ok})")
        return s.text()

    def walk(self) -> None:
        s = self.s
        s.line(f"most = tl.full([{self.rows}], float('-inf'), tl.float32)")
        s.line(f"total = tl.zeros([{self.rows}], tl.float32)")
        with s.block(f"for start in range(0, {s.extent(self.keys)}, {self.columns}):"):
            self.find_keys("start")
            self.score()
            s.line(f"larger = tl.maximum(most, tl.max(scores, 1){self.times})")
            # Until a key counts there is nothing to scale, and infinities have no difference.
            s.line("origin = tl.where(larger == float('-inf'), 0.0, larger)")
            s.line(f"power = tl.exp2(scores{self.times} - origin[:, None])")
            s.line("shrink = tl.exp2(most - origin)")
            s.line("total = total * shrink + tl.sum(power, 1)")
            s.line("acc = acc * shrink[:, None]")
            self.load_values()
            self.add_values()
            s.line("most = larger")

    def find_keys(self, start: str) -> None:
        s = self.s
        s.line(f"column = {start} + tl.arange(0, {self.columns})")
        s.line(f"column_ok = column < {s.extent(self.keys)}")

    def score(self) -> None:
        s = self.s
        column_ok = "" if self.whole_columns else "column_ok[None, :]"
        ok = self.inside(column_ok, "d[:, None]", self.width)
        s.line(f"k = tl.load({self.place(1, 'column[None, :]', 'd[:, None]')}{ok})")
        s.line(f"scores = tl.dot(q, k{self.how()})" + ("" if self.times else self.factor))
        if self.sanitize_name:
            both = "row_ok[:, None] & column_ok[None, :]"
            place = self.place(3, "row[:, None]", "column[None, :]")
            s.line(f"mask = tl.load({place}, mask={both}, other=0.0).to(tl.float32)")
            s.line(f"scores = scores + mask * {_LOG2_E!r}")
        if not self.whole_columns:
            s.line("scores = tl.where(column_ok[None, :], scores, float('-inf'))")

    def load_values(self) -> None:
        s = self.s
        column_ok = "" if self.whole_columns else "column_ok[:, None]"
        ok = self.inside(column_ok, "e[None, :]", self.result_width)
        s.line(f"v = tl.load({self.place(2, 'column[:, None]', 'e[None, :]')}{ok})")

    def add_values(self) -> None:
        self.s.line(f"acc = tl.dot(power.to(v.dtype), v, acc{self.how()})")

    def how(self) -> str:
        is_single = self.s.dtypes[0] is DType.FLOAT32
        return f', input_precision="{self.k["precision"]}"' if is_single else ""

    def place(self, operand: int, along: str, across: str) -> str:
        _, _, place, element = self.k["strides"][operand]
        return f"base{operand} + ({self.s.sum_of((along, place), (across, element))})"

    def inside(self, places: str, elements: str, width: int, *, other: bool = True) -> str:
        """The keywords of a load or store: which places and elements of a head are there."""
        full = width == tile_extent(width)
        mask = " & ".join(c for c in (places, "" if full else f"({elements} < {width})") if c)
        return f", mask={mask}" + (", other=0.0" if other else "") if mask else ""
