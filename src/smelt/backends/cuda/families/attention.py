"""Family of attention in one kernel; scores and their softmax stay in registers.

A program processes a block of queries of one head. It walks the keys in blocks, keeps the largest
score and the sum of exponentials of each query so far, and rescales the accumulators when a larger
score occurs (Dao, "FlashAttention-2", 2023, algorithm 1). Exponentials are powers of two, with the
change of base folded into the scale.
"""

from __future__ import annotations

import math
from operator import itemgetter
from typing import TYPE_CHECKING, ClassVar, Final

from smelt.backends import op_as
from smelt.backends._base import Operands, Tactic, refuse_if
from smelt.backends._iteration_space import broadcast_strides
from smelt.backends._node_operands import input_view, required_input
from smelt.backends.cuda._cost_model import (
    WARP_LANES,
    LaunchWorkload,
    count_of,
    gpu_spec_of,
    product_seconds,
    seconds_of,
    tile_extent,
)
from smelt.backends.cuda._elementwise import literal
from smelt.backends.cuda._family import CudaFamily
from smelt.backends.cuda._kernel_source import LANGUAGE_TYPES, KernelWriter, kernel_launch
from smelt.backends.cuda._tile_configs import TileConfig
from smelt.backends.cuda.families._epilogue import FLOAT_NAMES, FLOATS
from smelt.backends.cuda.families._product_operands import format_of_factor
from smelt.engine import parameters
from smelt.ops import Attention
from smelt.types import DType, Layout, TensorFormat, ceil_div, guessed_extent, override

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.backends.cuda._target import CudaTarget
    from smelt.engine import KernelSpec, Parameters, Step, View
    from smelt.ir import Node
    from smelt.types import Dim

_BLOCKS: Final = (
    (16, 128, 4), (16, 64, 4), (16, 32, 4), (32, 128, 4), (64, 128, 4), (64, 64, 4), (128, 128, 8),
    (128, 64, 8), (128, 64, 4), (64, 32, 4),
)  # fmt: skip
"""(queries, keys, warps) of blocks; the smallest ones are for few queries or keys. Chosen without a
measurement."""
_MAX_CANDIDATES: Final = 6
"""Maximum number of tactics of a node. Chosen without a measurement."""
_WIDEST_HEAD: Final = 256
"""Maximum head size in elements. Chosen without a measurement."""
_MAX_PREFETCHED_VALUES: Final = 64 * WARP_LANES
"""Maximum number of elements of V per warp that are loaded while keys are scored. Chosen without a
measurement."""
_DEPENDENCY_SECONDS: Final = 3.0e-7
"""Latency of a block of keys in seconds: the maximum score is needed before the exponentials. With
it the first choice is the best in four of five cases on an H200 (docs/lab/estimates-on-gpus.md)."""
_ROW_SECONDS: Final = 3.0e-9
"""Time that rescaling keeps a multiprocessor busy, per query and block of keys, in seconds. With it
the first choice is the best in four of five cases on an H200 (docs/lab/estimates-on-gpus.md)."""
_SCORE_SECONDS: Final = 4.0e-11
"""Time that a score's exponential and conversion keep a multiprocessor busy, in seconds. With it
the first choice is the best in four of five cases on an H200 (docs/lab/estimates-on-gpus.md)."""
_LOG2_E: Final = math.log2(math.e)
"""Factor from natural exponents to powers of two."""


class _AttentionWriter(KernelWriter):
    """Writer of an attention."""

    def __init__(self, kernel: KernelSpec) -> None:
        super().__init__(kernel)
        self.rows, self.columns = kernel["block"]
        self.heads, self.queries, self.keys, self.width, self.result_width = kernel["extents"]
        self.has_mask = len(self.s.dtypes) > 4
        self.fills_rows = isinstance(self.queries, int) and self.queries % self.rows == 0
        self.fills_columns = isinstance(self.keys, int) and self.keys % self.columns == 0
        self.factor = f" * {literal(kernel['scale'] * _LOG2_E)}"
        # Scaling the argument of an exponential is part of a fused multiply-subtract. It requires a
        # positive factor, so that the largest score stays the largest, and no mask, which is added
        # after scaling.
        self.deferred_factor = "" if self.has_mask or kernel["scale"] <= 0 else self.factor
        self.is_single_block = isinstance(self.keys, int) and self.keys <= self.columns

    @override
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
        row_ok = "" if self.fills_rows else "row_ok[:, None]"
        s.wait()
        q_ok = self.inside(row_ok, "d[None, :]", self.width)
        s.line(f"q = tl.load({self.place(0, 'row[:, None]', 'd[None, :]')}{q_ok})")
        s.line(f"acc = tl.zeros([{self.rows}, {tile_extent(self.result_width)}], tl.float32)")
        if self.is_single_block:
            self.find_keys("0")
            values = self.columns * tile_extent(self.result_width)
            has_room = values <= _MAX_PREFETCHED_VALUES * self.k["num_warps"]
            if has_room:
                self.load_values()
            self.score()
            s.line(f"most = tl.max(scores, 1){self.deferred_factor}")
            s.line(f"power = tl.exp2(scores{self.deferred_factor} - most[:, None])")
            s.line("total = tl.sum(power, 1)")
            if not has_room:
                self.load_values()
            self.add_values()
        else:
            self.walk()
        s.line("acc = acc / total[:, None]")
        ok = self.inside(row_ok, "e[None, :]", self.result_width, is_load=False)
        place = self.place(self.last, "row[:, None]", "e[None, :]")
        s.line(f"tl.store({place}, acc.to({LANGUAGE_TYPES[s.dtypes[self.last]]}){ok})")
        return s.text()

    def walk(self) -> None:
        """Write the loop over blocks of keys."""
        s = self.s
        s.line(f"most = tl.full([{self.rows}], float('-inf'), tl.float32)")
        s.line(f"total = tl.zeros([{self.rows}], tl.float32)")
        with s.block(f"for start in range(0, {s.extent(self.keys)}, {self.columns}):"):
            self.find_keys("start")
            self.score()
            s.line(f"larger = tl.maximum(most, tl.max(scores, 1){self.deferred_factor})")
            # Until a key is unmasked, the maximum is -inf, and a difference of infinities is NaN.
            s.line("origin = tl.where(larger == float('-inf'), 0.0, larger)")
            s.line(f"power = tl.exp2(scores{self.deferred_factor} - origin[:, None])")
            s.line("shrink = tl.exp2(most - origin)")
            s.line("total = total * shrink + tl.sum(power, 1)")
            s.line("acc = acc * shrink[:, None]")
            self.load_values()
            self.add_values()
            s.line("most = larger")

    def find_keys(self, start: str) -> None:
        """Write the numbers of a block's keys."""
        s = self.s
        s.line(f"column = {start} + tl.arange(0, {self.columns})")
        s.line(f"column_ok = column < {s.extent(self.keys)}")

    def score(self) -> None:
        """Write the scores of a block of keys."""
        s = self.s
        column_ok = "" if self.fills_columns else "column_ok[None, :]"
        ok = self.inside(column_ok, "d[:, None]", self.width)
        s.line(f"k = tl.load({self.place(1, 'column[None, :]', 'd[:, None]')}{ok})")
        factor = "" if self.deferred_factor else self.factor
        s.line(f"scores = tl.dot(q, k{self.precision_argument()}){factor}")
        if self.has_mask:
            score_mask = "row_ok[:, None] & column_ok[None, :]"
            place = self.place(3, "row[:, None]", "column[None, :]")
            s.line(f"mask = tl.load({place}, mask={score_mask}, other=0.0).to(tl.float32)")
            s.line(f"scores = scores + mask * {_LOG2_E!r}")
        if not self.fills_columns:
            s.line("scores = tl.where(column_ok[None, :], scores, float('-inf'))")

    def load_values(self) -> None:
        """Write the load of a block of values."""
        s = self.s
        column_ok = "" if self.fills_columns else "column_ok[:, None]"
        ok = self.inside(column_ok, "e[None, :]", self.result_width)
        s.line(f"v = tl.load({self.place(2, 'column[:, None]', 'e[None, :]')}{ok})")

    def add_values(self) -> None:
        """Write the sum of a block's values, weighted by the exponentials."""
        self.s.line(f"acc = tl.dot(power.to(v.dtype), v, acc{self.precision_argument()})")

    def precision_argument(self) -> str:
        """Return the precision argument of a product."""
        is_single = self.s.dtypes[0] is DType.FLOAT32
        return f', input_precision="{self.k["input_precision"]}"' if is_single else ""

    def place(self, operand: int, position_index: str, element_index: str) -> str:
        """Return the addresses of an operand's elements."""
        _, _, position, element = self.k["strides"][operand]
        offset = self.s.sum_of((position_index, position), (element_index, element))
        return f"base{operand} + ({offset})"

    def inside(self, positions: str, elements: str, width: int, *, is_load: bool = True) -> str:
        """Return the mask arguments of a load or store, by positions and elements of a head."""
        in_head = "" if width == tile_extent(width) else f"({elements} < {width})"
        mask = " & ".join(filter(None, (positions, in_head)))
        return f", mask={mask}" + (", other=0.0" if is_load else "") if mask else ""


class AttentionFamily(CudaFamily):
    """Family of attention with any number of keys and heads of up to 256 elements."""

    name: ClassVar[str] = "attention"
    writer: ClassVar[type[KernelWriter]] = _AttentionWriter
    uses_int32_offsets: ClassVar[bool] = True

    @override
    def tactics(self, node: Node, target: CudaTarget) -> Iterator[Tactic]:
        op = node.op
        if not isinstance(op, Attention):
            return
        refuse_if(_unsupported_reason(node, op))
        inputs = tuple(None if v is None else format_of_factor(v) for v in node.inputs)
        result = TensorFormat(node.output.tensor.dtype, Layout.LINEAR)
        for options, seconds in _options(node, op, target):
            yield Tactic(self.name, options, inputs, (result,), estimated_seconds=seconds)

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        op = op_as(Attention, node)
        q, k, v = (input_view(operands, index) for index in range(3))
        out = operands.outputs[0]
        mask = operands.inputs[3] if len(operands.inputs) > 3 else None
        batch, heads, queries, width = op.split(q.shape)
        _, _, keys, result_width = op.split(v.shape)
        views = [q, k, v, *([] if mask is None else [mask]), out]
        strides = [_strides(op, view) for view in (q, k, v)]
        if mask is not None:
            strides.append(broadcast_strides(mask, (batch, heads, queries, keys)))
        strides.append(_strides(op, out))
        launch = kernel_launch(
            self.name,
            views,
            batch * heads * ceil_div(queries, tactic.options.integers("block")[0]),
            extents=(heads, queries, keys, width, result_width),
            strides=tuple(strides),
            scale=op.scale,
            **tactic.options,
        )
        return (launch,)


def _unsupported_reason(node: Node, op: Attention) -> str | None:
    """Return why the family cannot run a node, or None."""
    kind = required_input(node, 0).tensor
    if kind.dtype not in FLOATS:
        return f"the input is {kind.dtype.value}; only {FLOAT_NAMES} are supported"
    for index in (0, 2):
        width = op.split(required_input(node, index).tensor.shape)[3]
        if not isinstance(width, int) or not 0 < width <= _WIDEST_HEAD:
            return (
                f"the head size is {width}; only constant sizes from 1 to {_WIDEST_HEAD} are "
                "supported"
            )
    keys = op.split(required_input(node, 1).tensor.shape)[2]
    return "the number of keys is 0" if keys == 0 else None


def _options(node: Node, op: Attention, target: CudaTarget) -> list[tuple[Parameters, float]]:
    """Return the most promising blocks with their estimated seconds, best first."""
    q, v = required_input(node, 0).tensor, required_input(node, 2).tensor
    stored = target.operand_dtype(q.dtype)
    _, _, queries, width = map(guessed_extent, op.split(q.shape))
    keys, result_width = map(guessed_extent, op.split(v.shape)[2:])
    # Float32 products are three TF32 products, or avoid tensor cores.
    precisions = ("tf32x3", "ieee") if stored is DType.FLOAT32 else ("ieee",)
    ranked: list[tuple[Parameters, float]] = []
    for rows, columns, num_warps in _BLOCKS:
        elements = (rows + columns) * tile_extent(width) + columns * tile_extent(result_width)
        num_stages = 1 if keys <= columns else 2
        if elements * num_stages * stored.size_bytes > target.shared_bytes * 3 // 4:
            continue
        if columns > 2 * tile_extent(keys) or rows > 2 * tile_extent(queries):
            continue
        for precision in precisions:
            options = parameters(
                block=(rows, columns),
                num_stages=num_stages,
                input_precision=precision,
                num_warps=num_warps,
            )
            config = TileConfig((rows, columns, width), num_warps, num_stages, precision)
            work = _work(node, op, config, target)
            ranked.append((options, seconds_of(work, gpu_spec_of(target))))
    return sorted(ranked, key=itemgetter(1))[:_MAX_CANDIDATES]


def _work(node: Node, op: Attention, config: TileConfig, target: CudaTarget) -> LaunchWorkload:
    """Return the workload of the programs for a size of blocks."""
    q, v = required_input(node, 0).tensor, required_input(node, 2).tensor
    batch, heads, queries, width = map(guessed_extent, op.split(q.shape))
    keys, result_width = map(guessed_extent, op.split(v.shape)[2:])
    stored = target.operand_dtype(q.dtype)
    (rows, columns, _), num_stages, size = config.tile, config.num_stages, stored.size_bytes
    how = (config.num_warps, stored, config.input_precision, gpu_spec_of(target))
    scores = product_seconds((rows, columns, tile_extent(width)), *how)
    accumulators = product_seconds((rows, tile_extent(result_width), columns), *how)
    programs = batch * heads * -(-queries // rows)
    steps = -(-keys // columns)
    step_bytes = size * columns * (width + result_width)
    epilogue_bytes = size * rows * (width + result_width)
    moved_elements = sum(count_of(x) for x in (*node.inputs, node.output) if x is not None)
    return LaunchWorkload(
        programs=programs,
        num_warps=config.num_warps,
        registers=28 + 1.15 * rows * (columns + result_width) / config.threads,
        shared_bytes=num_stages * step_bytes,
        steps=steps,
        num_stages=num_stages,
        step_seconds=scores + accumulators + _SCORE_SECONDS * rows * columns,
        step_overhead_seconds=_ROW_SECONDS * rows,
        dependency_seconds=_DEPENDENCY_SECONDS,
        step_bytes=step_bytes,
        epilogue_bytes=epilogue_bytes,
        accumulators=rows * result_width / config.threads,
        l2_read_bytes=float(programs) * (steps * step_bytes + epilogue_bytes),
        source_bytes=size * (count_of(required_input(node, 1)) + count_of(required_input(node, 2))),
        moved_bytes=size * moved_elements,
    )


def _strides(op: Attention, view: View) -> tuple[Dim, ...]:
    """Return the strides of batch, head, position and element."""
    if not op.heads:
        return view.strides
    batch, position, element = view.strides
    width = view.shape[2]
    assert isinstance(width, int)  # noqa: S101  (inference requires it)
    return (batch, width // op.heads * element, position, element)
