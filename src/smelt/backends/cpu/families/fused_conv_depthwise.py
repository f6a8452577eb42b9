"""A convolution and the depthwise one behind it, a panel of channels at a time.

A chunk is some rows of results of one panel. The first convolution writes the rows that these
results need into the worker's scratch memory, which stays in the second cache, and the depthwise
one reads them there: what is between the two is never stored. Rows that two chunks need are
computed by both, in the same way.

The first convolution is the kernel of `_panels` as it is, called for the rows of one panel.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from smelt.backends import (
    Family,
    Operands,
    Refusal,
    Tactic,
    root_as,
)
from smelt.backends._launch_scalars import LaunchScalars
from smelt.backends._node_operands import input_view
from smelt.backends._pair_nodes import pair_nodes_of
from smelt.backends.cpu._emit import Emitter, Int, Reg
from smelt.backends.cpu._target import CpuTarget
from smelt.backends.cpu.families._implicit_gemm import prefetch_bytes
from smelt.backends.cpu.families._microkernel import write_microkernel
from smelt.backends.cpu.families._microkernel_spec import MicrokernelSpec
from smelt.backends.cpu.families._operand_packing import (
    pack_epilogue_constants,
    reduced_precision_products,
)
from smelt.backends.cpu.families._pixel_loops import (
    CHANNEL_AXIS,
    PixelLoopSpec,
    PixelLoopWriter,
    PixelStrides,
    pixel_loop_of,
)
from smelt.backends.cpu.families._tiling import (
    MEMORY_BYTES_PER_SECOND,
    TilingProblem,
    choose_tile,
    estimate_seconds,
    register_tiles,
)
from smelt.backends.cpu.families._vectors import unravel
from smelt.backends.cpu.families.conv import ConvFamily, bias_of, implicit_gemm_of, problem_of
from smelt.backends.cpu.families.depthwise import DepthwiseFamily, RowWriter
from smelt.backends.cpu.families.sequential_pair import conv_depthwise_pair
from smelt.engine import KernelSpec, Launch, Options, View, as_json, parameters
from smelt.ops.conv import Conv
from smelt.types import DType, fixed_extent, fixed_shape, override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.backends._pair_nodes import PairNodes
    from smelt.backends.cpu.families._implicit_gemm import ImplicitGemm
    from smelt.engine import Json, Parameters, Step
    from smelt.ir import Constant, Node

_FLOAT_BYTES: Final = 4
_SCRATCH_BYTES: Final = 512 << 10
"""What a worker may keep in its second level of cache: half of what processors have today."""
_KEPT: Final = 6
_MAX_HALVES: Final = 12
_FIRST, _SECOND = ConvFamily(), DepthwiseFamily()


class FusedConvDepthwiseFamily(Family[CpuTarget]):
    """Both convolutions of a chain in one kernel."""

    name: ClassVar[str] = "fused_conv_depthwise"

    @override
    def tactics(self, node: Node, target: CpuTarget) -> Iterator[Tactic | Refusal]:
        pair_nodes = conv_depthwise_pair(node)
        if pair_nodes is None:
            return
        first = list(_FIRST.tactics(pair_nodes.first, target))
        second = list(_SECOND.tactics(pair_nodes.second, target))
        refused = [a for a in (*first, *second) if isinstance(a, Refusal)]
        if refused or not _is_known(pair_nodes):
            reason = (
                refused[0].reason
                if refused
                else "the image's height and width are not known at build time"
            )
            yield Refusal(self.name, reason)
            return
        b = cast("Tactic", second[0])
        ways = {a.inputs: a for a in reversed(cast("list[Tactic]", first))}
        for options, seconds in _candidates(pair_nodes, target):
            for a in ways.values():
                halos = (*(a.halos or ((),) * len(a.inputs)), *((),) * (len(b.inputs) - 1))
                yield Tactic(
                    self.name,
                    options,
                    (*a.inputs, *b.inputs[1:]),
                    b.outputs,
                    halos if any(map(any, halos)) else (),
                    cost_hint=seconds,
                )

    @override
    def reduced_precision_tactics(
        self, node: Node, tactic: Tactic, dtype: DType, target: CpuTarget
    ) -> tuple[Tactic, ...]:
        """Narrow on both sides; what is between stays float32, which the second reads faster."""
        return reduced_precision_products(node, tactic, dtype, target)

    @override
    def pack(self, node: Node, tactic: Tactic) -> tuple[Constant, ...]:
        pair_nodes = pair_nodes_of(node)
        return (*_FIRST.pack(pair_nodes.first, tactic), *_SECOND.pack(pair_nodes.second, tactic))

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        return (_Lowering(pair_nodes_of(node), tactic, operands).launch(),)

    @override
    def generate(self, kernel: KernelSpec, target: CpuTarget) -> str:
        del target
        return _Writer(kernel).write()


def _is_known(pair_nodes: PairNodes) -> bool:
    shape = (*pair_nodes.first.output.tensor.shape[2:], *pair_nodes.second.output.tensor.shape[2:])
    return all(isinstance(extent, int) and extent > 0 for extent in shape)


# ---- tactics


@dataclass(frozen=True, slots=True)
class _Geometry:
    """Extents of what is between the two, and how the second's window walks over it."""

    height: int
    width: int
    rows: int
    """Rows of the results."""
    columns: int
    channels: int
    window: tuple[int, int]
    steps: tuple[int, int]
    dilations: tuple[int, int]
    before: tuple[int, int]
    """Zeros above and to the left."""

    @staticmethod
    def of(pair_nodes: PairNodes) -> _Geometry:
        root = root_as(Conv, pair_nodes.second)
        _, channels, height, width = (fixed_extent(e) for e in _shape(pair_nodes.first))
        rows, columns = fixed_shape(pair_nodes.second.output.tensor.shape[2:])
        before = tuple(pair[0] for pair in root.pad_pairs)
        pairs = (root.kernel_shape, root.strides, root.dilations, before)
        return _Geometry(height, width, rows, columns, channels, *(cast("Any", p) for p in pairs))

    def rows_under(self, count: int) -> int:
        """Rows of the middle, zeros included, under so many rows of results."""
        return (count - 1) * self.steps[0] + (self.window[0] - 1) * self.dilations[0] + 1

    @property
    def line(self) -> int:
        """Pixels of a row in the scratch memory: zeros, image, zeros."""
        reach = (self.columns - 1) * self.steps[1] + (self.window[1] - 1) * self.dilations[1] + 1
        return max(reach, self.before[1] + self.width)

    def scratch_bytes(self, count: int, width: int) -> int:
        """Memory of a panel of ``width`` channels under so many rows of results."""
        return self.rows_under(count) * self.line * width * _FLOAT_BYTES


def _shape(node: Node) -> tuple[Any, ...]:
    images, *rest = node.output.tensor.shape
    return (images if isinstance(images, int) else 1, *rest)


def _candidates(pair_nodes: PairNodes, target: CpuTarget) -> Iterator[tuple[Parameters, float]]:
    lanes, found = target.vector_bits // 32, _Geometry.of(pair_nodes)
    problem = problem_of(pair_nodes.first, root_as(Conv, pair_nodes.first))
    second = min(
        t.cost_hint for t in _SECOND.tactics(pair_nodes.second, target) if isinstance(t, Tactic)
    )
    # Each counts what is between the two as something that goes through memory.
    stored = 4 * found.height * found.width * found.channels * (problem.images or 1)
    saved = 2 * stored / MEMORY_BYTES_PER_SECOND
    ranked: list[tuple[float, Parameters]] = []
    for budget, vectors in register_tiles(target):
        if (vectors - 1) * lanes >= problem.filters or (vectors == 1 and problem.filters > lanes):
            continue
        tile = _tile(problem, budget, vectors)
        seconds = estimate_seconds(problem, tile, vectors, target)
        panels = -(-found.channels // (vectors * lanes)) * (problem.images or 1)
        for rows in _row_counts(found, vectors * lanes):
            down = -(-found.rows // rows)
            again = seconds * (down * found.rows_under(rows) / found.rows_under(found.rows) - 1)
            cost = max(seconds + second - saved, 0.0) + again
            columns = _even(found.columns, budget)
            options = parameters(
                lanes=lanes, vectors=vectors, pixels=budget, rows=rows, columns=columns
            )
            # A worker may be left with a chunk while the others have none.
            ranked.append((cost * (1 + 0.5 / (down * panels)), options))
    for seconds, options in sorted(ranked, key=lambda r: r[0])[:_KEPT]:
        yield options, seconds


def _tile(problem: TilingProblem, budget: int, vectors: int) -> tuple[int, int]:
    """A tile of one row: calls are for any rows."""
    return choose_tile(dataclasses.replace(problem, height=None), budget, vectors)


def _row_counts(found: _Geometry, width: int) -> list[int]:
    """Rows of results of a chunk: all of them, half of them …, as long as they fit the cache."""
    counts = [found.rows]
    while counts[-1] > 1 and len(counts) < _MAX_HALVES:
        counts.append(-(-counts[-1] // 2))
    small = [c for c in counts if found.scratch_bytes(c, width) <= _SCRATCH_BYTES]
    return small[:_KEPT] or [1]


def _even(extent: int, size: int) -> int:
    return -(-extent // -(-extent // size))


# ---- lowering


@dataclass(frozen=True, slots=True)
class _Lowering:
    pair_nodes: PairNodes
    tactic: Tactic
    operands: Operands
    scalars: LaunchScalars = dataclasses.field(default_factory=LaunchScalars)

    @property
    def options(self) -> Options:
        """The tactic's."""
        return self.tactic.options

    @property
    def width(self) -> int:
        """Channels of a panel."""
        return self.options.integer("lanes") * self.options.integer("vectors")

    def launch(self) -> Launch:
        pair_nodes, found, rows = (
            self.pair_nodes,
            _Geometry.of(self.pair_nodes),
            self.options.integer("rows"),
        )
        packed = len(_FIRST.pack(pair_nodes.first, self.tactic))
        first, images, views = self.first(found, packed)
        pixels, others = self.second(packed)
        blocks = -(-found.rows // rows)
        pixels = dataclasses.replace(pixels, rows=rows, blocks=blocks)
        kernel = KernelSpec(
            FusedConvDepthwiseFamily.name,
            parameters(
                first=first.parameters,
                images=images,
                pixels=pixels.as_json(),
                geometry=as_json(dataclasses.astuple(found)),
                window=found.window,
                steps=found.steps,
                dilations=found.dilations,
                bias=bias_of(pair_nodes.second) is not None,
                columns=self.options["columns"],
                scalars=len(self.scalars.values),
            ),
        )
        views = (*views, *others, self.operands.outputs[0])
        count = pair_nodes.second.output.tensor.shape[0]
        return Launch(
            kernel,
            views,
            (len(views) - 1,),
            self.scalars.values,
            count * blocks * -(-found.channels // self.width),
            scratch_bytes=found.scratch_bytes(rows, self.width),
        )

    def first(
        self, found: _Geometry, packed: int
    ) -> tuple[KernelSpec, tuple[Json, ...], tuple[View, ...]]:
        """The first's kernel, its operands' bytes along images, and these operands."""
        node = self.pair_nodes.first
        kind, count = node.output.tensor, len(node.inputs)
        strides = (0, 1, found.line * self.width, self.width)
        intermediate = View(0, 0, kind.dtype, kind.shape, strides)
        operands = Operands(
            self.operands.inputs[:count], (intermediate,), self.operands.packed[:packed]
        )
        own = packed - len(pack_epilogue_constants(node, CHANNEL_AXIS))
        product, extras = implicit_gemm_of(node, self.tactic, operands, own)
        views = (input_view(operands, 0), *operands.packed[:own], *extras)
        panels = _row_panels(product, self.options, (*views, intermediate), self.scalars)
        walked = [product.a.images[0], *[0] * own, *(w.images[0] for w in product.extras)]
        images = [s * v.dtype.size_bytes for s, v in zip(walked, views, strict=True)]
        return panels.spec(ConvFamily.name), self.scalars.all_json(images), views

    def second(self, packed: int) -> tuple[PixelLoopSpec, tuple[View, ...]]:
        """The results' pixels, and the second's operands beside its image."""
        node, options = self.pair_nodes.second, self.options
        inputs = (None, *self.operands.inputs[len(self.pair_nodes.first.inputs) :])
        operands = Operands(inputs, self.operands.outputs, self.operands.packed[packed:])
        own = 1 + (bias_of(node) is not None)
        pixels, extras = pixel_loop_of(
            node, operands, operands.packed[own:], self.scalars, options.integer("lanes"), 1
        )
        return pixels, (*operands.packed[:own], *extras)


def _row_panels(
    product: ImplicitGemm, options: Options, views: Sequence[View], scalars: LaunchScalars
) -> MicrokernelSpec:
    """The first's kernel: a chunk is one row of one panel of one image."""
    image = dataclasses.replace(product, images=(), b_images=())
    image = image.map_strides(lambda w: dataclasses.replace(w, images=()))
    made = image.panels(Options({**options, "parallel_split": "rows"}), views, scalars)
    tile = _tile(product.problem, options.integer("pixels"), made.vectors)
    height, width = cast("int", made.height), cast("int", made.width)
    across, panels = -(-width // tile[1]), -(-cast("int", made.filters) // made.panel_width)
    made = dataclasses.replace(
        made,
        tile=tile,
        across=across,
        blocks=(1, across, 1),
        counts=(panels, height, 1),
        reduction_passes=1,
    )
    return dataclasses.replace(made, prefetch=prefetch_bytes(made))


# ---- code


class _Writer:
    """Writes one kernel. Operands: the first's without its result, taps, bias, extras, result."""

    def __init__(self, kernel: KernelSpec) -> None:
        self.k = kernel
        self.found = _Geometry(*cast("Any", as_json(kernel["geometry"])))
        self.spec = KernelSpec(ConvFamily.name, cast("Any", as_json(kernel["first"])))
        self.panels = MicrokernelSpec.from_spec(self.spec)
        pixels = PixelLoopSpec.from_spec(kernel)
        self.own = len(kernel["images"])
        first = self.own + 1 + kernel["bias"]
        e = self.e = Emitter(kernel.symbol, first + len(pixels.extras) + 1)
        e.include(write_microkernel(self.spec))
        self.w = PixelLoopWriter(e, pixels, first)
        words = self.own + 1 + kernel["scalars"]
        self.arguments = e.emit("ptr", f"alloca [{words} x i64], align 64")

    def write(self) -> str:
        """Chunk by chunk: some rows of one panel of one image."""
        e, p = self.e, self.w.p
        with e.loop(e.begin, e.end) as chunk:
            extents = (p.images, p.blocks, self.panels.counts[0])
            image, block, panel = unravel(e, chunk.index, extents)
            top = e.mul(block, p.rows)
            rows = (top, e.minimum(e.add(top, p.rows), e.extent(p.height)))
            above = e.sub(e.mul(top, self.found.steps[0]), self.found.before[0])
            self.clear(rows, above)
            self.give_arguments(image, panel, above)
            self.panel((image, *rows), panel, above)
        return e.module()

    # ---- the first

    @property
    def line_bytes(self) -> int:
        """A row of the scratch memory."""
        return self.found.line * self.panels.panel_width * _FLOAT_BYTES

    def clear(self, rows: tuple[Int, Int], above: Int) -> None:
        """Zeros around the image, as far as it borders on these rows of results."""
        e, found, pixel = self.e, self.found, self.panels.panel_width * _FLOAT_BYTES
        begin, end = self.image_rows(rows, above)
        bottom = e.add(above, found.rows_under(self.w.p.rows))
        for first, last in ((above, begin), (end, bottom)):
            with e.loop(first, last) as row:
                at = e.at(e.scratch, e.mul(e.sub(row.index, above), self.line_bytes))
                self.zero(at, found.line * pixel)
        left, right = found.before[1], found.line - found.before[1] - found.width
        if left or right:
            with e.loop(begin, end) as row:
                at = e.at(e.scratch, e.mul(e.sub(row.index, above), self.line_bytes))
                self.zero(at, left * pixel)
                self.zero(e.at(at, (left + found.width) * pixel), right * pixel)

    def zero(self, at: Reg, size: int) -> None:
        """Zero whole vectors."""
        e, zero = self.e, self.e.constant(0.0, self.w.kind)
        with e.loop(0, size, self.w.p.lanes * _FLOAT_BYTES) as position:
            e.store(zero, e.at(at, position.index))

    def image_rows(self, rows: tuple[Int, Int], above: Int) -> tuple[Int, Int]:
        """Rows of the middle's image that lie under rows of results; ``above`` is the first.

        They lie in the scratch memory, none of them where a window sees the padding alone.
        """
        e, found = self.e, self.found
        reach = (found.window[0] - 1) * found.dilations[0] + 1 - found.before[0]
        last = e.add(e.mul(e.sub(rows[1], 1), found.steps[0]), reach)
        bottom = e.add(above, found.rows_under(self.w.p.rows))
        begin = e.minimum(e.maximum(above, 0), bottom)
        return begin, e.maximum(e.minimum(last, found.height), begin)

    def give_arguments(self, image: Int, panel: Int, above: Int) -> None:
        """What the first's kernel is called with: it writes a panel's rows into the scratch."""
        e, pixel = self.e, self.panels.panel_width * _FLOAT_BYTES
        words: list[Reg] = []
        for operand, stride in enumerate(cast("Any", as_json(self.k["images"]))):
            ahead = e.mul(image, e.extent(stride))
            words.append(e.at(e.pointer(operand), ahead))
        start = e.sub(self.found.before[1] * pixel, e.mul(above, self.line_bytes))
        words.append(e.at(e.scratch, e.sub(start, e.mul(panel, pixel))))
        words += [e.i64(e.extent(("arg", k))) for k in range(self.k["scalars"])]
        for number, word in enumerate(words):
            e.store(word, e.at(self.arguments, number * 8), align=8)

    def expand(self, panel: Int, begin: Int, end: Int) -> None:
        """Call the first's kernel for some rows of a panel."""
        e = self.e
        base = e.mul(panel, self.found.height)
        first, last = e.i64(e.add(base, begin)), e.i64(e.add(base, end))
        e.do(f"call void @{self.spec.symbol}({self.arguments}, {first}, {last}, {e.scratch})")

    # ---- both

    def panel(self, rows: tuple[Int, Int, Int], panel: Int, above: Int) -> None:
        """A panel of some rows of results of one image."""
        e, p, width = self.e, self.w.p, self.panels.panel_width
        image, top, bottom = rows
        self.expand(panel, *self.image_rows((top, bottom), above))
        first = e.mul(panel, width)
        whole = p.channels // p.lanes * p.lanes
        a = PixelStrides(0, self.found.line * width, width, 1, DType.FLOAT32.value)
        # So that rows of results and channels can be counted from 0, here and in every operand.
        start = e.mul(e.mul(top, self.found.steps[0]), self.line_bytes)
        at = e.at(e.scratch, e.sub(0, e.add(start, e.mul(first, _FLOAT_BYTES))))
        bias = e.pointer(self.own + 1) if self.k["bias"] else None
        writer = RowWriter(self.w, self.k, a, (at, e.pointer(self.own), bias))
        last = e.minimum(e.add(first, width), whole)
        with e.loop(top, bottom) as row:
            writer.row((image, row.index), (first, last), None)
            if p.channels > whole:
                with e.when(e.compare("eq", panel, (p.channels - 1) // width)):
                    mask = e.tail_mask(p.channels - whole, p.lanes)
                    writer.row((image, row.index), (whole, p.channels), mask)
