"""Microkernel of convolutions and matrix products: register tiles summed over packed panels.

The result is a stack of images of ``height x width`` pixels with ``filters`` channels. A tile is a
few pixels (``tile``: rows x columns) by one *panel* of ``vectors * lanes`` channels. Its
accumulators stay in registers while the kernel sums over the taps: rows of the window, columns of
the window, and a contiguous *run* (the input channels). Elements of the first factor are broadcast,
so that operand may have any strides. The second factor is packed as ``[matrix][group][panel] [tap
row][tap column][word of the run][channel of the panel]``, so that a tile reads it as one contiguous
stream; a *word* is the 32 bits that a lane takes at a time (`DotProduct`).

Weights that are packed at build time store the last, narrower panel separately, in as few vectors
as hold it. Operands that are packed at run time have *uniform* panels: the last is as wide as the
others.

A matrix product has one row, a pixel per row of A, and a run of length K. The last tile of a row
overlaps the one before it instead of being smaller. Only rows shorter than a tile, which are known
at run time alone, are computed pixel by pixel. Every element is summed in one fixed order, whatever
tile or chunk contains it, so that results do not depend on the tiling or on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final, cast

from smelt.backends.cpu._emit import Emitter, Int, Reg
from smelt.backends.cpu._epilogue import Epilogue
from smelt.backends.cpu.families._dot_product import DOT_PRODUCTS, WORD_BYTES
from smelt.backends.cpu.families._microkernel_spec import (
    ACCUMULATOR_BYTES,
    MicrokernelSpec,
    OperandStrides,
    TileState,
    partial_sums_of,
)
from smelt.backends.cpu.families._vectors import balanced, load_channels, store, unravel

if TYPE_CHECKING:
    from smelt.engine import Json, KernelSpec

_LINE_BYTES: Final = 64
"""Size in bytes of a cache line, the unit of prefetching."""


def write_microkernel(kernel: KernelSpec) -> str:
    """Return the LLVM IR of a microkernel.

    The operands are the first factor, the full panels (if any), the last panel (if any), the bias
    (if any), the epilogue's extra operands, the result, and the weights of later launches (if any
    are prefetched).
    """
    return _Writer(kernel.symbol, MicrokernelSpec.from_spec(kernel)).write()


Accumulators = dict[tuple[int, int, int], Reg]
"""Maps (partial sum, pixel, vector) to the register of the accumulator."""


class _Writer:
    """Writes one microkernel as LLVM IR."""

    def __init__(self, symbol: str, panels: MicrokernelSpec) -> None:
        p = self.p = panels
        self.kind = f"<{p.lanes} x float>"
        self.dot_product = DOT_PRODUCTS[p.dot_product]
        self.sums_kind = self.dot_product.sums_type(p.lanes)
        self.a = OperandStrides(*cast("Any", p.a))
        self.out = OperandStrides(*cast("Any", p.out))
        self.extras = [OperandStrides(*cast("Any", x)) for x in p.extras]
        self.epilogue = Epilogue.from_json(p.epilogue)
        positions = iter(range(99))
        self.a_operand = next(positions)
        self.full_operand = next(positions) if p.full_panels or p.has_uniform_panels else -1
        self.tail_operand = next(positions) if p.tail_vectors and not p.has_uniform_panels else -1
        self.bias_operand = next(positions) if p.bias else -1
        self.extra_operands = [next(positions) for _ in p.extras]
        self.out_operand = next(positions)
        self.next_weights_operand = next(positions) if p.prefetch_ahead else -1
        self.e = Emitter(symbol, self.out_operand + 1 + bool(p.prefetch_ahead))

    def bytes_of(self, strides: OperandStrides, *terms: tuple[Int, Any]) -> Int:
        """Return the byte offset of the sum of ``index * stride`` over ``terms``."""
        e, size = self.e, strides.dtype.size_bytes
        varying = ((index, stride) for index, stride in terms if index != 0 and stride != 0)
        return e.sum(e.mul(index, e.mul(e.extent(stride), size)) for index, stride in varying)

    # ---- chunks, panels, rows, tiles

    def write(self) -> str:
        """Write the loops over chunks and panels, and return the module."""
        p, e = self.p, self.e
        filters = e.extent(p.filters)
        self.filters, self.run = filters, e.extent(p.taps[2])
        word = self.dot_product.group
        self.words = e.div(e.add(self.run, word - 1), word)
        self.full_count = e.div(filters, p.panel_width)
        self.tail_filters = e.mod(filters, p.panel_width)
        panels = self.panels = e.div(e.add(filters, p.panel_width - 1), p.panel_width)
        cut = len(list(takewhile(bool, p.b_images)))
        extents = [*p.images[:cut], p.counts[0], p.groups, *p.images[cut:], *p.counts[1:]]
        with e.loop(e.begin, e.end) as chunk:
            # Images with panels of their own (Winograd planes) are the outermost axes: chunks then
            # read the panels in memory order, which the prefetch of later weights relies on.
            *images, down, across = unravel(e, chunk.index, extents)
            block, group = images[cut : cut + 2]
            del images[cut : cut + 2]
            state = self.state(group, images, down, across)
            first = e.mul(block, p.blocks[2])
            last = e.minimum(e.add(first, p.blocks[2]), panels)
            if p.full_panels:
                with e.loop(first, e.minimum(last, self.full_count)) as panel:
                    self.count_tiles(state, chunk.index, e.sub(panel.index, first))
                    self.panel(state, panel.index)
            if p.tail_vectors:
                with e.when(e.compare("sgt", last, self.full_count)):
                    self.count_tiles(state, chunk.index, e.sub(self.full_count, first))
                    self.tail_panel(state)
        return e.module()

    def state(self, group: Int, images: list[Int], down: Int, across: Int) -> TileState:
        """Return the state at the start of a chunk, with all operand addresses computed."""
        p, e = self.p, self.e

        def start(operand: int, strides: OperandStrides) -> Reg:
            terms = [(group, strides.group), *zip(images, strides.images, strict=True)]
            return e.at(e.pointer(operand), self.bytes_of(strides, *terms))

        rows = -(-p.height // p.tile[0]) if isinstance(p.height, int) else e.extent(p.height)
        top, left = e.mul(down, p.blocks[0]), e.mul(across, p.blocks[1])
        return TileState(
            a=e.at(start(self.a_operand, self.a), self.bytes_of(self.a, (1, p.a_start))),
            out=start(self.out_operand, self.out),
            extras=[
                start(operand, strides)
                for operand, strides in zip(self.extra_operands, self.extras, strict=True)
            ],
            group=group,
            images=images,
            rows=(top, e.minimum(e.add(top, p.blocks[0]), rows)),
            columns=(left, e.minimum(e.add(left, p.blocks[1]), e.extent(p.across))),
        )

    def count_tiles(self, state: TileState, chunk: Int, panels: Int) -> None:
        """Set the number of tiles before a panel; all earlier chunks count as full."""
        p, e = self.p, self.e
        if p.prefetch_ahead:
            panels = e.add(e.mul(chunk, p.blocks[2]), panels)
            state.tiles_before = e.mul(panels, p.blocks[0] * p.blocks[1])

    def panel(self, state: TileState, index: Int) -> None:
        """Write the tiles of a panel without padding."""
        p, e = self.p, self.e
        count = self.panels if p.has_uniform_panels else self.full_count
        number = e.add(e.mul(self.matrix(state), count), index)
        self.use_panel(state, index, self.full_operand, number, p.vectors)
        state.masks = [None] * p.vectors
        self.passes(state)

    def tail_panel(self, state: TileState) -> None:
        """Write the tiles of the last panel, some of whose channels are padding."""
        p, e = self.p, self.e
        matrix = self.matrix(state)
        if p.has_uniform_panels:
            number = e.add(e.mul(matrix, self.panels), self.full_count)
            self.use_panel(state, self.full_count, self.full_operand, number, p.tail_vectors)
        else:
            self.use_panel(state, self.full_count, self.tail_operand, matrix, p.tail_vectors)
        masks: list[Reg | None] = []
        for j in range(p.tail_vectors):
            count = e.sub(self.tail_filters, j * p.lanes)
            full = isinstance(count, int) and count >= p.lanes
            masks.append(None if full else e.tail_mask(count, p.lanes))
        state.masks = masks
        self.passes(state)

    def matrix(self, state: TileState) -> Int:
        """Return the index of the packed matrix that belongs to the image and group."""
        e = self.e
        pairs = zip(state.images, self.p.b_images, strict=True)
        index = e.sum(e.mul(image, e.extent(stride)) for image, stride in pairs)
        return e.add(e.mul(index, self.p.groups), state.group)

    def use_panel(
        self, state: TileState, index: Int, operand: int, number: Int, vectors: int
    ) -> None:
        """Point the state at panel ``index``, which is panel ``number`` of its operand."""
        p, e = self.p, self.e
        narrow = operand == self.tail_operand
        state.width = vectors * p.lanes if narrow else p.panel_width
        size = e.mul(self.words, p.taps[0] * p.taps[1] * state.width * WORD_BYTES)
        state.panel, state.vectors = index, vectors
        state.panel_at = e.at(e.pointer(operand), e.mul(number, size))
        state.prefetch_ahead = e.at(state.panel_at, size)

    def passes(self, state: TileState) -> None:
        """Write the passes over the window's rows, each over all rows of tiles of the chunk."""
        for reduction_pass in range(self.p.reduction_passes):
            state.reduction_pass = reduction_pass
            with self.e.loop(*state.rows) as row:
                self.row(state, row.index)

    def row(self, state: TileState, index: Int) -> None:
        """Write one row of tiles; rows shorter than a tile are computed pixel by pixel."""
        p, e = self.p, self.e
        top = self.overlapped(index, p.tile[0], p.height) if p.tile[0] > 1 else index
        width = e.extent(p.width)
        if isinstance(width, int):
            self.tiles(state, index, top)
            return
        with e.when(e.compare("sge", width, p.tile[1])):
            self.tiles(state, index, top)
        with e.when(e.compare("slt", width, p.tile[1])), e.loop(0, width) as column:
            self.tile(state, top, column.index, (1, 1))

    def tiles(self, state: TileState, row: Int, top: Int) -> None:
        """Write the tiles of one row, and set what each of them prefetches."""
        p, e = self.p, self.e
        with e.loop(*state.columns) as column:
            left = self.overlapped(column.index, p.tile[1], p.width)
            down = e.sub(row, state.rows[0])
            across = e.sub(column.index, state.columns[0])
            state.tile_index = (
                e.add(e.mul(down, p.blocks[1]), across) if p.reduction_passes > 1 else 0
            )
            panel_ahead = state.prefetch_ahead
            if p.prefetch:
                state.prefetch_ahead = self.share_of_next_panel(state, row, column.index)
            if p.prefetch_ahead:
                number = e.add(e.add(state.tiles_before, e.mul(down, p.blocks[1])), across)
                next_weights_at = e.pointer(self.next_weights_operand)
                state.next_weights_at = e.at(
                    next_weights_at, e.mul(number, p.steps * p.prefetch_ahead)
                )
            self.tile(state, top, left, p.tile)
            state.prefetch_ahead = panel_ahead

    def share_of_next_panel(self, state: TileState, row: Int, column: Int) -> Reg:
        """Return the address of the part of the next panel that one tile prefetches.

        The tiles of the chunk share the next panel if a chunk covers all panels, else those of the
        image.
        """
        p, e = self.p, self.e
        across = p.across
        if p.counts[0] == 1:
            row, column = e.sub(row, state.rows[0]), e.sub(column, state.columns[0])
            across = p.blocks[1]
        number = e.add(e.mul(row, e.extent(across)), column)
        return e.at(state.prefetch_ahead, e.mul(number, p.steps * p.prefetch))

    def prefetch(self, state: TileState, taps: Int, index: Int, step: int) -> None:
        """Prefetch the parts of the next panel and of later weights that belong to one step."""
        p, e = self.p, self.e
        known_words = self.words if isinstance(self.words, int) else 0
        steps_before = e.add(e.mul(taps, known_words // step), e.div(index, step))
        for start, size in (
            (state.prefetch_ahead, p.prefetch),
            (state.next_weights_at, p.prefetch_ahead),
        ):
            at = e.at(start, e.mul(steps_before, size)) if size else start
            for line in range(0, size, _LINE_BYTES):
                e.prefetch(e.at(at, line))

    def overlapped(self, index: Int, size: int, extent: Json) -> Int:
        """Return where tile ``index`` starts; the last tile ends at the border."""
        e, length = self.e, self.e.extent(extent)
        start = e.mul(index, size)
        if isinstance(length, int) and length % size == 0:
            return start
        return e.minimum(start, e.sub(length, size))

    # ---- one tile

    def tile(self, state: TileState, top: Int, left: Int, shape: tuple[int, int]) -> None:
        """Write one tile of ``shape`` pixels whose first pixel is (``top``, ``left``)."""
        e = self.e
        pixels = [(r, c) for r in range(shape[0]) for c in range(shape[1])]
        # The last, narrower panel has as many partial sums as full panels: equal filters then give
        # bitwise equal channels, whichever panel they are in.
        vectors = self.p.vectors if self.p.full_panels else state.vectors
        state.partial_sums = partial_sums_of(len(pixels), vectors)
        sums = self.initial_accumulators(state, len(pixels))
        at = e.at(state.a, self.bytes_of(self.a, (top, self.a.row), (left, self.a.column)))
        state.offsets = [
            self.bytes_of(self.a, (r, self.a.row), (c, self.a.column)) for r, c in pixels
        ]
        sums = self.sum_rows(state, at, sums)
        totals = self.reduce_partial_sums(state, sums)
        if state.reduction_pass < self.p.reduction_passes - 1:
            for (i, j), value in totals.items():
                e.store(value, self.scratch(state, i, j))
            return
        self.finish(state, totals, pixels, top, left)

    def initial_accumulators(self, state: TileState, pixels: int) -> Accumulators:
        """Return the initial sums: the bias, or the unfinished sums of the pass before."""
        p, e = self.p, self.e
        zero = e.constant(0, self.sums_kind)
        sums = {
            (s, i, j): zero
            for s in range(state.partial_sums)
            for i in range(pixels)
            for j in range(state.vectors)
        }
        if state.reduction_pass:
            for i in range(pixels):
                for j in range(state.vectors):
                    sums[0, i, j] = e.load(self.sums_kind, self.scratch(state, i, j))
        elif p.bias:
            padded = self.e.div(e.add(self.filters, p.lanes - 1), p.lanes)
            padded = e.mul(padded, p.lanes)
            channel = e.add(e.mul(state.group, padded), e.mul(state.panel, p.panel_width))
            at = e.at(e.pointer(self.bias_operand), e.mul(channel, ACCUMULATOR_BYTES))
            for j in range(state.vectors):
                value = e.load(self.sums_kind, e.at(at, j * p.lanes * ACCUMULATOR_BYTES))
                sums.update({(0, i, j): value for i in range(pixels)})
        return sums

    def scratch(self, state: TileState, pixel: int, vector: int) -> Reg:
        """Return the address of an unfinished sum of the current tile in scratch memory."""
        p, e = self.p, self.e
        size = p.tile[0] * p.tile[1] * p.panel_width * ACCUMULATOR_BYTES
        within = (pixel * p.panel_width + vector * p.lanes) * ACCUMULATOR_BYTES
        return e.at(e.scratch, e.add(e.mul(state.tile_index, size), within))

    def sum_rows(self, state: TileState, at: Reg, sums: Accumulators) -> Accumulators:
        """Sum over the rows of the window that belong to the current pass."""
        p, e = self.p, self.e
        rows, columns, _ = p.taps
        line = e.mul(self.words, state.width * WORD_BYTES)

        def sum_row(row: Int, begun: Accumulators) -> Accumulators:
            a_row = e.at(at, self.bytes_of(self.a, (row, p.a_taps[0])))
            b_row = e.at(state.panel_at, e.mul(row, e.mul(line, columns)))

            def sum_column(column: Int, begun: Accumulators) -> Accumulators:
                a_run = e.at(a_row, self.bytes_of(self.a, (column, p.a_taps[1])))
                b_run = e.at(b_row, e.mul(column, line))
                taps = e.add(e.mul(row, columns), column)
                return self.sum_run(state, (a_run, b_run, taps), begun)

            return self.over(0, columns, begun, sum_column)

        first = rows * state.reduction_pass // p.reduction_passes
        last = rows * (state.reduction_pass + 1) // p.reduction_passes
        return self.over(first, last, sums, sum_row)

    def over(
        self,
        first: int,
        last: int,
        sums: Accumulators,
        body: Callable[[Int, Accumulators], Accumulators],
    ) -> Accumulators:
        """Write a loop over taps that carries the accumulators; one tap needs no loop."""
        if last - first == 1:
            return body(first, sums)
        with self.carrying(sums, first, last) as (index, inner):
            inner.update(body(index, inner))
        return sums

    @contextmanager
    def carrying(
        self, sums: Accumulators, first: Int, last: Int, step: int = 1
    ) -> Generator[tuple[Reg, Accumulators]]:
        """Write a loop that carries accumulators; yield its index and those of an iteration.

        The body changes the accumulators of the iteration; ``sums`` gets the final ones.
        """
        keys = list(sums)
        with self.e.loop(first, last, step, [sums[k] for k in keys]) as loop:
            inner = dict(zip(keys, loop.values, strict=True))
            yield loop.index, inner
            loop.carry = [inner[k] for k in keys]
        sums.update(zip(keys, loop.values, strict=True))

    def sum_run(
        self, state: TileState, at: tuple[Reg, Reg, Int], sums: Accumulators
    ) -> Accumulators:
        """Return the sums with one run added; ``at``: both factors, and the taps before the run."""
        e, sums, partial_sums = self.e, dict(sums), state.partial_sums
        a, b, taps = at
        step, words = max(self.p.unroll, partial_sums), self.words
        last = self.last_count()
        if isinstance(words, int) and (words <= 2 * step or self.p.window_column_elements):
            for k in range(words):
                count = last if k == words - 1 else None
                self.products(state, (a, b), (0, k), sums, k % partial_sums, count)
            return sums
        # A run of no elements has no last word.
        full_words = words if last is None else e.maximum(e.sub(words, 1), 0)
        looped = e.mul(e.div(full_words, step), step)
        with self.carrying(sums, 0, looped, step) as (index, inner):
            for u in range(step):
                self.products(state, (a, b), (index, u), inner, u % partial_sums)
            if self.p.steps and (self.p.prefetch or self.p.prefetch_ahead):
                self.prefetch(state, taps, index, step)
        if isinstance(words, int) and isinstance(looped, int):
            for k in range(looped, words):
                count = last if k == words - 1 else None
                self.products(state, (a, b), (0, k), sums, (k - looped) % partial_sums, count)
            return sums
        with self.carrying(sums, looped, full_words) as (index, inner):
            self.products(state, (a, b), (index, 0), inner, 0)
        if last is not None:
            with self.carrying(sums, full_words, words) as (index, inner):
                self.products(state, (a, b), (index, 0), inner, 0, last)
        return sums

    def last_count(self) -> Int | None:
        """Return the number of elements in the run's last word; None if every word is full."""
        e, group = self.e, self.dot_product.group
        rest = e.mod(self.run, group)
        if rest == 0:
            return None
        return (
            rest if isinstance(rest, int) else e.sub(self.run, e.mul(e.sub(self.words, 1), group))
        )

    def products(
        self,
        state: TileState,
        at: tuple[Reg, Reg],
        k: tuple[Int, int],
        sums: Accumulators,
        partial_sum: int,
        count: Int | None = None,
    ) -> None:
        """Add the products of one word of the run to the accumulators, in place.

        ``k`` is the word's index as a run-time base and a constant offset, and ``count`` the number
        of elements in the word if it is not full.
        """
        p, e, dot_product = self.p, self.e, self.dot_product
        width = state.width * WORD_BYTES
        a_base = e.at(at[0], self.bytes_of(self.a, (e.mul(k[0], dot_product.group), p.a_taps[2])))
        b_base = e.at(at[1], e.mul(k[0], width))
        kind = dot_product.factor_type(p.lanes)
        factors = [
            e.load(kind, e.at(b_base, k[1] * width + j * p.lanes * WORD_BYTES))
            for j in range(state.vectors)
        ]
        elements = count if isinstance(count, int) else dot_product.group
        first, *others = [self.element(k[1] * dot_product.group + i) for i in range(elements)]
        steps = [0, *(e.sub(other, first) for other in others)]
        unknown = None if isinstance(count, int) else count
        for i, offset in enumerate(state.offsets):
            at_word = e.at(a_base, e.add(offset, first))
            word = dot_product.load_word(e, at_word, steps, self.a.dtype, unknown)
            element = dot_product.broadcast(e, word, p.lanes)
            for j, factor in enumerate(factors):
                total = sums[partial_sum, i, j]
                sums[partial_sum, i, j] = dot_product.add_products(e, element, factor, total)

    def element(self, k: int) -> Int:
        """Return the byte offset of element ``k`` of a run in the first factor."""
        p = self.p
        if not p.window_column_elements:
            return self.bytes_of(self.a, (k, p.a_taps[2]))
        column, within = divmod(k, p.window_column_elements)
        return self.bytes_of(self.a, (column, p.a_taps[1]), (within, p.a_taps[2]))

    def reduce_partial_sums(
        self, state: TileState, sums: Accumulators
    ) -> dict[tuple[int, int], Reg]:
        """Add the partial sums of each element in a balanced tree."""
        totals: dict[tuple[int, int], Reg] = {}
        add = "fadd" if self.dot_product.sums.is_float else "add"
        for i in range(len(state.offsets)):
            for j in range(state.vectors):
                terms = [sums[s, i, j] for s in range(state.partial_sums)]
                totals[i, j] = balanced(partial(self.e.binary, add), terms)
        return totals

    def finish(
        self,
        state: TileState,
        sums: dict[tuple[int, int], Reg],
        pixels: Sequence[tuple[int, int]],
        top: Int,
        left: Int,
    ) -> None:
        """Write the scaling by alpha, the epilogue and the stores of a tile."""
        p, e, out = self.p, self.e, self.out
        at = e.at(state.out, self.bytes_of(out, (top, out.row), (left, out.column)))
        at = e.at(at, self.bytes_of(out, (e.mul(state.panel, p.panel_width), 1)))
        readers = [
            _EpilogueOperandReader(self, state, number, top, left)
            for number in range(len(self.extras))
        ]
        for (i, j), total in sums.items():
            row, column = pixels[i]
            value = total
            if p.alpha != 1.0:
                value = e.binary("fmul", value, e.constant(p.alpha, self.kind))

            def read(k: int, row: int = row, column: int = column, j: int = j) -> Reg:
                return readers[k].read(row, column, j)

            value = self.epilogue.emit(e, value, read)
            offset = self.bytes_of(out, (row, out.row), (column, out.column), (j * p.lanes, 1))
            store(e, value, e.at(at, offset), state.masks[j], out.dtype)


class _EpilogueOperandReader:
    """Reads one extra operand for the pixels of a tile; repeated vectors are loaded once."""

    def __init__(self, writer: _Writer, state: TileState, number: int, top: Int, left: Int) -> None:
        self.w, self.masks = writer, state.masks
        e, s = writer.e, writer.extras[number]
        self.strides, self.channel = s, e.extent(s.channel)
        first = e.mul(state.panel, writer.p.panel_width)
        at = writer.bytes_of(s, (top, s.row), (left, s.column), (first, s.channel))
        self.at = e.at(state.extras[number], at)
        self.loaded: dict[tuple[int, int, int], Reg] = {}

    def read(self, row: int, column: int, vector: int) -> Reg:
        """Return the operand's vector for a pixel of the tile and a vector of the panel."""
        s, w = self.strides, self.w
        vector = vector if self.channel != 0 else 0
        key = (row if s.row != 0 else 0, column if s.column != 0 else 0, vector)
        if key not in self.loaded:
            channel_term = (vector * w.p.lanes, s.channel)
            at = w.e.at(self.at, w.bytes_of(s, (row, s.row), (column, s.column), channel_term))
            mask = self.masks[vector]
            self.loaded[key] = load_channels(w.e, w.kind, at, self.channel, mask, s.dtype)
        return self.loaded[key]
