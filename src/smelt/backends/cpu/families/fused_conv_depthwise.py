"""A convolution and the depthwise convolution behind it in one kernel, panel by panel.

A chunk is some rows of results of one panel of channels. The first convolution writes the rows that
these results need into the worker's scratch memory, which stays in L2, and the depthwise
convolution reads them there. The intermediate tensor is never stored. Rows that two chunks need are
computed by both, with the same code and therefore the same values.

The first convolution is the microkernel (`write_microkernel`), called for the rows of one panel.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from smelt.backends import Family, LaunchScalars, NodeRefusedError, Operands, Tactic, root_as
from smelt.backends._node_operands import input_view
from smelt.backends._pair_nodes import PairNodes, pair_nodes_of
from smelt.backends.cpu._emit import FLOAT_BYTES, Int, Reg
from smelt.backends.cpu._kernel_spec import kernel_spec
from smelt.backends.cpu._target import CpuTarget
from smelt.backends.cpu.families._implicit_gemm import ImplicitGemm, prefetch_bytes
from smelt.backends.cpu.families._microkernel import write_microkernel
from smelt.backends.cpu.families._microkernel_spec import MicrokernelSpec
from smelt.backends.cpu.families._operand_packing import (
    pack_epilogue_constants,
    reduced_precision_products,
)
from smelt.backends.cpu.families._pixel_loops import (
    CHANNEL_AXIS,
    PixelKernelWriter,
    PixelLoopSpec,
    PixelStrides,
    pixel_loop_of,
)
from smelt.backends.cpu.families._tiling import (
    MEMORY_BYTES_PER_SECOND,
    TilingProblem,
    choose_tile,
    estimate_seconds,
    even_size,
    fitting_tiles,
)
from smelt.backends.cpu.families._vectors import unravel
from smelt.backends.cpu.families.conv import ConvFamily, bias_of, implicit_gemm_of, problem_of
from smelt.backends.cpu.families.depthwise import DepthwiseFamily, RowWriter
from smelt.backends.cpu.families.unfused_conv_depthwise import conv_depthwise_pair, joined_tactic
from smelt.engine import KernelSpec, Launch, TypedParameters, View, as_json, parameters
from smelt.ops import Conv
from smelt.types import DType, fixed_shape, override

if TYPE_CHECKING:
    from smelt.engine import Json, Parameters, Step
    from smelt.ir import Constant, Node

_SCRATCH_BYTES: Final = 512 << 10
"""L2 bytes that a worker's scratch memory may occupy: half of the 1 MiB that current cores have."""
_KEPT: Final = 6
"""Number of tactics, and of row counts per register tile, that are offered. Chosen without a
measurement."""
_MAX_HALVES: Final = 12
"""Largest number of row counts that are considered, each half of the one before. Chosen without a
measurement."""
_FIRST, _SECOND = ConvFamily(), DepthwiseFamily()


class FusedConvDepthwiseFamily(Family[CpuTarget]):
    """Both convolutions of a fused pair in one kernel."""

    name: ClassVar[str] = "fused_conv_depthwise"

    @override
    def tactics(self, node: Node, target: CpuTarget) -> Iterator[Tactic]:
        pair_nodes = conv_depthwise_pair(node)
        if pair_nodes is None:
            return
        first = list(_FIRST.tactics(pair_nodes.first, target))
        b, *_ = _SECOND.tactics(pair_nodes.second, target)
        if not _is_known(pair_nodes):
            raise NodeRefusedError("the image's height or width is not known at build time")
        by_formats = {a.input_formats: a for a in reversed(first)}
        for options, seconds in _candidates(pair_nodes, target):
            for a in by_formats.values():
                yield joined_tactic(self.name, options, a, b, seconds)

    @override
    def reduced_precision_tactics(
        self, node: Node, tactic: Tactic, dtype: DType, target: CpuTarget
    ) -> tuple[Tactic, ...]:
        """Return the tactic with narrow input and result.

        The intermediate stays float32, which the depthwise convolution reads without conversion.
        """
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
        return _Writer(kernel).write()


def _is_known(pair_nodes: PairNodes) -> bool:
    """Return whether heights and widths of both results are known and positive."""
    shape = (*pair_nodes.first.output.tensor.shape[2:], *pair_nodes.second.output.tensor.shape[2:])
    return all(isinstance(extent, int) and extent > 0 for extent in shape)


# ---- tactics


@dataclass(frozen=True, slots=True)
class _Geometry:
    """Extents of the intermediate image, and how the depthwise window moves over it."""

    height: int
    """Rows of the intermediate image."""
    width: int
    """Columns of the intermediate image."""
    rows: int
    """Rows of the result."""
    columns: int
    """Columns of the result."""
    channels: int
    window: tuple[int, int]
    steps: tuple[int, int]
    dilations: tuple[int, int]
    before: tuple[int, int]
    """Rows of zeros above the intermediate image, and columns of zeros to its left."""

    @staticmethod
    def of(pair_nodes: PairNodes) -> _Geometry:
        """Return the geometry of a fused pair."""
        root = root_as(Conv, pair_nodes.second)
        channels, height, width = fixed_shape(pair_nodes.first.output.tensor.shape[1:])
        rows, columns = fixed_shape(pair_nodes.second.output.tensor.shape[2:])
        before = tuple(pair[0] for pair in root.pad_pairs)
        pairs = (root.kernel_shape, root.strides, root.dilations, before)
        return _Geometry(height, width, rows, columns, channels, *(cast("Any", p) for p in pairs))

    def rows_under(self, count: int) -> int:
        """Return the intermediate rows, padding included, under ``count`` rows of results."""
        return (count - 1) * self.steps[0] + (self.window[0] - 1) * self.dilations[0] + 1

    @property
    def line(self) -> int:
        """Pixels per row in scratch memory: zeros, image, zeros."""
        reach = (self.columns - 1) * self.steps[1] + (self.window[1] - 1) * self.dilations[1] + 1
        return max(reach, self.before[1] + self.width)

    def scratch_bytes(self, count: int, width: int) -> int:
        """Return the scratch bytes of ``width`` channels under ``count`` rows of results."""
        return self.rows_under(count) * self.line * width * FLOAT_BYTES


def _candidates(pair_nodes: PairNodes, target: CpuTarget) -> Iterator[tuple[Parameters, float]]:
    """Yield the options and estimated seconds of the `_KEPT` best tilings."""
    lanes, geometry = target.vector_bits // 32, _Geometry.of(pair_nodes)
    problem = problem_of(pair_nodes.first, root_as(Conv, pair_nodes.first))
    second = min(t.estimated_seconds for t in _SECOND.tactics(pair_nodes.second, target))
    # Both estimates include the traffic of the intermediate tensor, which is not stored here.
    stored = 4 * geometry.height * geometry.width * geometry.channels * (problem.images or 1)
    saved = 2 * stored / MEMORY_BYTES_PER_SECOND
    ranked: list[tuple[float, Parameters]] = []
    for budget, vectors in fitting_tiles(problem, target):
        tile = _tile(problem, budget, vectors)
        seconds = estimate_seconds(problem, tile, vectors, target)
        panels = -(-geometry.channels // (vectors * lanes)) * (problem.images or 1)
        for rows in _row_counts(geometry, vectors * lanes):
            down = -(-geometry.rows // rows)
            recomputation = seconds * (
                down * geometry.rows_under(rows) / geometry.rows_under(geometry.rows) - 1
            )
            cost = max(seconds + second - saved, 0.0) + recomputation
            columns = even_size(geometry.columns, budget)
            options = parameters(
                lanes=lanes, vectors=vectors, pixels=budget, rows=rows, columns=columns
            )
            # The last chunk may keep one worker busy while the others wait.
            ranked.append((cost * (1 + 0.5 / (down * panels)), options))
    for seconds, options in sorted(ranked, key=lambda r: r[0])[:_KEPT]:
        yield options, seconds


def _tile(problem: TilingProblem, budget: int, vectors: int) -> tuple[int, int]:
    """Return a register tile of one row, since the kernel is called for any number of rows."""
    return choose_tile(dataclasses.replace(problem, height=None), budget, vectors)


def _row_counts(geometry: _Geometry, width: int) -> list[int]:
    """Return numbers of result rows per chunk: all, half of them, ..., as far as L2 holds them."""
    counts = [geometry.rows]
    while counts[-1] > 1 and len(counts) < _MAX_HALVES:
        counts.append(-(-counts[-1] // 2))
    fitting = [c for c in counts if geometry.scratch_bytes(c, width) <= _SCRATCH_BYTES]
    return fitting[:_KEPT] or [1]


# ---- lowering


@dataclass(frozen=True, slots=True)
class _Lowering:
    """Lowers one fused pair to a launch."""

    pair_nodes: PairNodes
    tactic: Tactic
    operands: Operands
    scalars: LaunchScalars = dataclasses.field(default_factory=LaunchScalars)

    @property
    def options(self) -> TypedParameters:
        """Options of the tactic."""
        return self.tactic.options

    @property
    def width(self) -> int:
        """Channels per panel."""
        return self.options.integer("lanes") * self.options.integer("vectors")

    def launch(self) -> Launch:
        """Return the launch of the fused kernel."""
        pair_nodes, rows = self.pair_nodes, self.options.integer("rows")
        geometry = _Geometry.of(pair_nodes)
        packed = len(_FIRST.pack(pair_nodes.first, self.tactic))
        first, images, views = self.first(geometry, packed)
        pixels, others = self.second(packed)
        blocks = -(-geometry.rows // rows)
        pixels = dataclasses.replace(pixels, rows=rows, blocks=blocks)
        kernel = kernel_spec(
            FusedConvDepthwiseFamily.name,
            first=first.parameters,
            images=images,
            pixels=pixels.as_json(),
            geometry=as_json(dataclasses.astuple(geometry)),
            window=geometry.window,
            steps=geometry.steps,
            dilations=geometry.dilations,
            bias=bias_of(pair_nodes.second) is not None,
            columns=self.options["columns"],
            scalars=len(self.scalars.values),
        )
        views = (*views, *others, self.operands.outputs[0])
        panels = -(-geometry.channels // self.width)
        chunks = pair_nodes.second.output.tensor.shape[0] * blocks * panels
        scratch = geometry.scratch_bytes(rows, self.width)
        return Launch(kernel, views, (len(views) - 1,), self.scalars.values, chunks, scratch)

    def first(
        self, geometry: _Geometry, packed: int
    ) -> tuple[KernelSpec, tuple[Json, ...], tuple[View, ...]]:
        """Return the first convolution's kernel, its operands' bytes per image, and these operands.

        Its result is a view of scratch memory: one panel wide, with the row length of
        `_Geometry.line`.
        """
        node = self.pair_nodes.first
        kind, count = node.output.tensor, len(node.inputs)
        strides = (0, 1, geometry.line * self.width, self.width)
        intermediate = View(0, 0, kind.dtype, kind.shape, strides)
        operands = Operands(
            self.operands.inputs[:count], (intermediate,), self.operands.packed[:packed]
        )
        weight_count = packed - len(pack_epilogue_constants(node, CHANNEL_AXIS))
        product, extras = implicit_gemm_of(node, self.tactic, operands, weight_count)
        views = (input_view(operands, 0), *operands.packed[:weight_count], *extras)
        panels = _row_panels(product, self.options, (*views, intermediate), self.scalars)
        extra_strides = (w.images[0] for w in product.extras)
        image_strides = [product.a.images[0], *[0] * weight_count, *extra_strides]
        images = [s * v.dtype.size_bytes for s, v in zip(image_strides, views, strict=True)]
        return panels.spec(ConvFamily.name), self.scalars.all_json(images), views

    def second(self, packed: int) -> tuple[PixelLoopSpec, tuple[View, ...]]:
        """Return the loops over the result's pixels, and the depthwise operands but the image."""
        node, lanes = self.pair_nodes.second, self.options.integer("lanes")
        inputs = (None, *self.operands.inputs[len(self.pair_nodes.first.inputs) :])
        operands = Operands(inputs, self.operands.outputs, self.operands.packed[packed:])
        weight_count = 1 + (bias_of(node) is not None)
        weights, constants = operands.packed[:weight_count], operands.packed[weight_count:]
        pixels, extras = pixel_loop_of(node, operands, constants, self.scalars, lanes, 1)
        return pixels, (*weights, *extras)


def _row_panels(
    product: ImplicitGemm, options: TypedParameters, views: Sequence[View], scalars: LaunchScalars
) -> MicrokernelSpec:
    """Return the first convolution's microkernel; a chunk is one row of one panel of one image."""
    image = dataclasses.replace(product, images=(), b_images=())
    image = image.map_strides(lambda w: dataclasses.replace(w, images=()))
    row_options = TypedParameters({**options, "parallel_split": "rows"})
    panels_spec = image.panels(row_options, views, scalars)
    tile = _tile(product.problem, options.integer("pixels"), panels_spec.vectors)
    height, width = cast("int", panels_spec.height), cast("int", panels_spec.width)
    across = -(-width // tile[1])
    panels = -(-cast("int", panels_spec.filters) // panels_spec.panel_width)
    panels_spec = dataclasses.replace(
        panels_spec,
        tile=tile,
        across=across,
        blocks=(1, across, 1),
        counts=(panels, height, 1),
        reduction_passes=1,
    )
    return dataclasses.replace(panels_spec, prefetch=prefetch_bytes(panels_spec))


# ---- code


class _Writer(PixelKernelWriter):
    """Writes the kernel that computes both convolutions.

    Operands: those of the first convolution without its result, then depthwise taps, bias (if any),
    extras, result.
    """

    def __init__(self, kernel: KernelSpec) -> None:
        self.first_count = len(kernel["images"])
        super().__init__(kernel, self.first_count + 1 + kernel["bias"])
        self.geometry = _Geometry(*kernel["geometry"])
        self.spec = KernelSpec(ConvFamily.name, kernel["first"])
        self.panels = MicrokernelSpec.from_spec(self.spec)
        self.e.include(write_microkernel(self.spec))
        words = self.first_count + 1 + kernel["scalars"]
        self.arguments = self.e.emit("ptr", f"alloca [{words} x i64], align 64")

    def write(self) -> str:
        """Write the loop over chunks: some rows of one panel of one image."""
        e, p = self.e, self.w.p
        with e.loop(e.begin, e.end) as chunk:
            extents = (p.images, p.blocks, self.panels.counts[0])
            image, block, panel = unravel(e, chunk.index, extents)
            top = e.mul(block, p.rows)
            rows = (top, e.minimum(e.add(top, p.rows), e.extent(p.height)))
            above = e.sub(e.mul(top, self.geometry.steps[0]), self.geometry.before[0])
            self.clear(rows, above)
            self.give_arguments(image, panel, above)
            self.panel((image, *rows), panel, above)
        return e.module()

    # ---- the first convolution

    @property
    def line_bytes(self) -> int:
        """Size in bytes of a row in scratch memory."""
        return self.geometry.line * self.panels.panel_width * FLOAT_BYTES

    def clear(self, rows: tuple[Int, Int], above: Int) -> None:
        """Write zeros around the intermediate image, as far as these rows of results read them."""
        e, geometry, pixel = self.e, self.geometry, self.panels.panel_width * FLOAT_BYTES
        begin, end = self.image_rows(rows, above)
        bottom = e.add(above, geometry.rows_under(self.w.p.rows))
        for first, last in ((above, begin), (end, bottom)):
            with e.loop(first, last) as row:
                at = e.at(e.scratch, e.mul(e.sub(row.index, above), self.line_bytes))
                self.zero(at, geometry.line * pixel)
        left, right = geometry.before[1], geometry.line - geometry.before[1] - geometry.width
        if left or right:
            with e.loop(begin, end) as row:
                at = e.at(e.scratch, e.mul(e.sub(row.index, above), self.line_bytes))
                self.zero(at, left * pixel)
                self.zero(e.at(at, (left + geometry.width) * pixel), right * pixel)

    def zero(self, at: Reg, size: int) -> None:
        """Write zeros to ``size`` bytes, in full vectors."""
        e, zero = self.e, self.e.constant(0.0, self.w.kind)
        with e.loop(0, size, self.w.p.lanes * FLOAT_BYTES) as position:
            e.store(zero, e.at(at, position.index))

    def image_rows(self, rows: tuple[Int, Int], above: Int) -> tuple[Int, Int]:
        """Return the intermediate rows inside the image that lie under rows of results.

        ``above`` is the first row in scratch memory, which may be padding. The range is empty if
        the windows see only padding.
        """
        e, geometry = self.e, self.geometry
        reach = (geometry.window[0] - 1) * geometry.dilations[0] + 1 - geometry.before[0]
        last = e.add(e.mul(e.sub(rows[1], 1), geometry.steps[0]), reach)
        bottom = e.add(above, geometry.rows_under(self.w.p.rows))
        begin = e.minimum(e.maximum(above, 0), bottom)
        return begin, e.maximum(e.minimum(last, geometry.height), begin)

    def give_arguments(self, image: Int, panel: Int, above: Int) -> None:
        """Store the arguments of the first convolution's kernel.

        The address of its result is such that the panel's rows land in scratch memory.
        """
        e, pixel = self.e, self.panels.panel_width * FLOAT_BYTES
        words: list[Reg] = []
        for operand, stride in enumerate(cast("Any", as_json(self.k["images"]))):
            ahead = e.mul(image, e.extent(stride))
            words.append(e.at(e.pointer(operand), ahead))
        start = e.sub(self.geometry.before[1] * pixel, e.mul(above, self.line_bytes))
        words.append(e.at(e.scratch, e.sub(start, e.mul(panel, pixel))))
        words += [e.i64(e.extent(("arg", k))) for k in range(self.k["scalars"])]
        for number, word in enumerate(words):
            e.store(word, e.at(self.arguments, number * 8), align=8)

    def expand(self, panel: Int, begin: Int, end: Int) -> None:
        """Call the first convolution's kernel for some rows of a panel."""
        e = self.e
        base = e.mul(panel, self.geometry.height)
        first, last = e.i64(e.add(base, begin)), e.i64(e.add(base, end))
        e.do(f"call void @{self.spec.symbol}({self.arguments}, {first}, {last}, {e.scratch})")

    # ---- both convolutions

    def panel(self, rows: tuple[Int, Int, Int], panel: Int, above: Int) -> None:
        """Write the results of some rows of one panel of one image."""
        e, p, width = self.e, self.w.p, self.panels.panel_width
        image, top, bottom = rows
        self.expand(panel, *self.image_rows((top, bottom), above))
        first = e.mul(panel, width)
        full_end = p.channels // p.lanes * p.lanes
        a = PixelStrides(0, self.geometry.line * width, width, 1, DType.FLOAT32.value)
        # The address is shifted so that rows and channels count from 0 in every operand.
        start = e.mul(e.mul(top, self.geometry.steps[0]), self.line_bytes)
        at = e.at(e.scratch, e.sub(0, e.add(start, e.mul(first, FLOAT_BYTES))))
        bias = e.pointer(self.first_count + 1) if self.k["bias"] else None
        writer = RowWriter(self.w, self.k, a, (at, e.pointer(self.first_count), bias))
        last = e.minimum(e.add(first, width), full_end)
        with e.loop(top, bottom) as row:
            writer.row((image, row.index), (first, last), None)
            if p.channels > full_end:
                with e.when(e.compare("eq", panel, (p.channels - 1) // width)):
                    mask = e.tail_mask(p.channels - full_end, p.lanes)
                    writer.row((image, row.index), (full_end, p.channels), mask)
