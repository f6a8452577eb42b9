"""The kernel under convolution and matrix product: tiles of the result, summed over packed panels.

The result is a stack of images of ``height x width`` pixels with ``filters`` channels. A tile
is a few pixels (``tile``: rows x columns) by one *panel* of ``vectors * lanes`` channels, kept
in registers while the kernel sums over the taps: rows of the window, columns of the window, and
a contiguous *run* (the channels). Input elements are broadcast, so their strides are free; the
second factor is packed as ``[matrix][group][panel][tap row][tap column][word of the run]
[channel of the panel]``: a word is what a lane takes at a time (`Arithmetic`). Of packed weights
the last, narrower panel lies apart, in as few vectors as hold it; what is packed at run time is
*uniform*, its last panel as wide as the others.

A matrix product is the case of one row, a pixel for each row of A and a run as long as K. The
last tile of a row overlaps the one before it rather than being smaller; only rows shorter than
a tile, whose length is known at run time alone, are done pixel by pixel. Every element is
summed in one fixed order, whatever the tile or chunk that it falls into.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final

from smelt.backends.cpu._emit import Emitter, Int, Reg
from smelt.backends.cpu._epilogue import Epilogue
from smelt.backends.cpu.families._arithmetic import ARITHMETICS, WORD_BYTES
from smelt.backends.cpu.families._panel_spec import SUM_BYTES, Panels, Strides, chains_of
from smelt.backends.cpu.families._vectors import load_channels, store, unravel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from smelt.engine import Json, KernelSpec

_LINE_BYTES: Final = 64


def write_panels(kernel: KernelSpec) -> str:
    """The LLVM IR of a panel kernel.

    Operands: first factor, full panels and last panel (each if there is one), bias (if any), extra
    operands, result, later weights (if any are asked for).
    """
    return _Writer(kernel.symbol, Panels.from_spec(kernel)).write()


@dataclass(slots=True)
class _Place:
    """Where the kernel is: pointers at the current image and group, and the tile being computed."""

    a: Reg
    out: Reg
    extras: list[Reg]
    group: Int
    images: list[Int]
    rows: tuple[Int, Int]
    columns: tuple[Int, Int]
    panel: Int = 0
    panel_at: Reg = dataclasses.field(default_factory=lambda: Reg("", "ptr"))
    vectors: int = 0
    width: int = 0
    """Channels of the panel as it is stored."""
    masks: list[Reg | None] = dataclasses.field(default_factory=list["Reg | None"])
    part: int = 0
    tile_index: Int = 0
    ahead: Reg = dataclasses.field(default_factory=lambda: Reg("", "ptr"))
    """What the tile asks for of the next panel."""
    tiles_before: Int = 0
    """Tiles of the chunks and panels before."""
    later: Reg = dataclasses.field(default_factory=lambda: Reg("", "ptr"))
    """What the tile asks for of later weights."""


Sums = dict[tuple[int, int, int], Reg]
"""(chain, pixel, vector) -> partial sum."""


class _Writer:
    def __init__(self, symbol: str, panels: Panels) -> None:
        p = self.p = panels
        self.kind = f"<{p.lanes} x float>"
        self.arithmetic = ARITHMETICS[p.arithmetic]
        self.sums_kind = self.arithmetic.sums_type(p.lanes)
        self.a = Strides.from_json(p.a)
        self.out = Strides.from_json(p.out)
        self.extras = [Strides.from_json(x) for x in p.extras]
        self.epilogue = Epilogue.from_json(p.epilogue)
        positions = iter(range(99))
        self.a_operand = next(positions)
        self.full_operand = next(positions) if p.full_panels or p.uniform else -1
        self.tail_operand = next(positions) if p.tail_vectors and not p.uniform else -1
        self.bias_operand = next(positions) if p.bias else -1
        self.extra_operands = [next(positions) for _ in p.extras]
        self.out_operand = next(positions)
        self.later_operand = next(positions) if p.ahead else -1
        self.e = Emitter(symbol, self.out_operand + 1 + bool(p.ahead))

    def bytes_of(self, strides: Strides, *terms: tuple[Int, Any]) -> Int:
        """The byte offset in an operand of a sum of index * stride."""
        e, size = self.e, strides.dtype.size_bytes
        total: Int = 0
        for index, stride in terms:
            if index == 0 or stride == 0:
                continue
            total = e.add(total, e.mul(index, e.mul(e.extent(stride), size)))
        return total

    # ---- chunks, panels, rows, tiles

    def write(self) -> str:
        p, e = self.p, self.e
        filters = e.extent(p.filters)
        self.filters, self.run = filters, e.extent(p.taps[2])
        word = self.arithmetic.group
        self.words = e.div(e.add(self.run, word - 1), word)
        self.whole = e.div(filters, p.panel_width)
        self.left = e.mod(filters, p.panel_width)
        panels = self.panels = e.div(e.add(filters, p.panel_width - 1), p.panel_width)
        own = len(list(takewhile(bool, p.b_images)))
        extents = [*p.images[:own], p.counts[0], p.groups, *p.images[own:], *p.counts[1:]]
        with e.loop(e.begin, e.end) as chunk:
            # Images with panels of their own come one after the other, as their panels lie.
            *images, down, across = unravel(e, chunk.index, extents)
            block, group = images[own : own + 2]
            del images[own : own + 2]
            place = self.place(group, images, down, across)
            first = e.mul(block, p.blocks[2])
            last = e.minimum(e.add(first, p.blocks[2]), panels)
            if p.full_panels:
                with e.loop(first, e.minimum(last, self.whole)) as panel:
                    self.count_tiles(place, chunk.index, e.sub(panel.index, first))
                    self.panel(place, panel.index)
            if p.tail_vectors:
                with e.when(e.compare("sgt", last, self.whole)):
                    self.count_tiles(place, chunk.index, e.sub(self.whole, first))
                    self.tail_panel(place)
        return e.module()

    def place(self, group: Int, images: list[Int], down: Int, across: Int) -> _Place:
        p, e = self.p, self.e

        def start(operand: int, strides: Strides) -> Reg:
            terms = [(group, strides.group), *zip(images, strides.images, strict=True)]
            return e.at(e.pointer(operand), self.bytes_of(strides, *terms))

        rows = -(-p.height // p.tile[0]) if isinstance(p.height, int) else e.extent(p.height)
        top, left = e.mul(down, p.blocks[0]), e.mul(across, p.blocks[1])
        return _Place(
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

    def count_tiles(self, place: _Place, chunk: Int, panels: Int) -> None:
        """Count the tiles before a panel: those of all chunks before, as if each were whole."""
        p, e = self.p, self.e
        if p.ahead:
            panels = e.add(e.mul(chunk, p.blocks[2]), panels)
            place.tiles_before = e.mul(panels, p.blocks[0] * p.blocks[1])

    def panel(self, place: _Place, index: Int) -> None:
        """A panel without padding."""
        p, e = self.p, self.e
        count = self.panels if p.uniform else self.whole
        number = e.add(e.mul(self.matrix(place), count), index)
        self.use_panel(place, index, self.full_operand, number, p.vectors)
        place.masks = [None] * p.vectors
        self.passes(place)

    def tail_panel(self, place: _Place) -> None:
        """The last panel, some of whose channels are padding."""
        p, e = self.p, self.e
        matrix = self.matrix(place)
        if p.uniform:
            number = e.add(e.mul(matrix, self.panels), self.whole)
            self.use_panel(place, self.whole, self.full_operand, number, p.tail_vectors)
        else:
            self.use_panel(place, self.whole, self.tail_operand, matrix, p.tail_vectors)
        masks: list[Reg | None] = []
        for j in range(p.tail_vectors):
            count = e.sub(self.left, j * p.lanes)
            full = isinstance(count, int) and count >= p.lanes
            masks.append(None if full else e.tail_mask(count, p.lanes))
        place.masks = masks
        self.passes(place)

    def matrix(self, place: _Place) -> Int:
        """Number of the packed matrix."""
        e = self.e
        index: Int = 0
        for image, stride in zip(place.images, self.p.b_images, strict=True):
            index = e.add(index, e.mul(image, e.extent(stride)))
        return e.add(e.mul(index, self.p.groups), place.group)

    def use_panel(self, place: _Place, index: Int, operand: int, number: Int, vectors: int) -> None:
        p, e = self.p, self.e
        narrow = operand == self.tail_operand
        place.width = vectors * p.lanes if narrow else p.panel_width
        size = e.mul(self.words, p.taps[0] * p.taps[1] * place.width * WORD_BYTES)
        place.panel, place.vectors = index, vectors
        place.panel_at = e.at(e.pointer(operand), e.mul(number, size))
        place.ahead = e.at(place.panel_at, size)

    def passes(self, place: _Place) -> None:
        for part in range(self.p.parts):
            place.part = part
            with self.e.loop(*place.rows) as row:
                self.row(place, row.index)

    def row(self, place: _Place, index: Int) -> None:
        p, e = self.p, self.e
        top = self.overlapped(index, p.tile[0], p.height) if p.tile[0] > 1 else index
        width = e.extent(p.width)
        if isinstance(width, int):
            self.tiles(place, index, top)
            return
        with e.when(e.compare("sge", width, p.tile[1])):
            self.tiles(place, index, top)
        with e.when(e.compare("slt", width, p.tile[1])), e.loop(0, width) as column:
            self.tile(place, top, column.index, (1, 1))

    def tiles(self, place: _Place, row: Int, top: Int) -> None:
        p, e = self.p, self.e
        with e.loop(*place.columns) as column:
            left = self.overlapped(column.index, p.tile[1], p.width)
            down = e.sub(row, place.rows[0])
            across = e.sub(column.index, place.columns[0])
            place.tile_index = e.add(e.mul(down, p.blocks[1]), across) if p.parts > 1 else 0
            panel_ahead = place.ahead
            if p.prefetch:
                place.ahead = self.share_of_next_panel(place, row, column.index)
            if p.ahead:
                number = e.add(e.add(place.tiles_before, e.mul(down, p.blocks[1])), across)
                later = e.pointer(self.later_operand)
                place.later = e.at(later, e.mul(number, p.steps * p.ahead))
            self.tile(place, top, left, p.tile)
            place.ahead = panel_ahead

    def share_of_next_panel(self, place: _Place, row: Int, column: Int) -> Reg:
        """Where the part of the next panel starts that one tile asks for.

        The tiles share it: those of the chunk if it does every panel, else those of the image.
        """
        p, e = self.p, self.e
        across = p.across
        if p.counts[0] == 1:
            row, column = e.sub(row, place.rows[0]), e.sub(column, place.columns[0])
            across = p.blocks[1]
        number = e.add(e.mul(row, e.extent(across)), column)
        return e.at(place.ahead, e.mul(number, p.steps * p.prefetch))

    @property
    def known_words(self) -> int:
        """Words of the run where they are known, else 0."""
        return self.words if isinstance(self.words, int) else 0

    def step(self, chains: int) -> int:
        """Words of the run that the loop takes at a time."""
        return max(self.p.unroll, chains)

    def prefetch(self, place: _Place, taps: Int, index: Int, step: int) -> None:
        """Ask for the parts of the next panel and of later weights that belong to one step."""
        p, e = self.p, self.e
        done = e.add(e.mul(taps, self.known_words // step), e.div(index, step))
        for start, size in ((place.ahead, p.prefetch), (place.later, p.ahead)):
            at = e.at(start, e.mul(done, size)) if size else start
            for line in range(0, size, _LINE_BYTES):
                e.prefetch(e.at(at, line))

    def overlapped(self, index: Int, size: int, extent: Json) -> Int:
        """Where tile ``index`` starts: the last one ends at the border."""
        e, whole = self.e, self.e.extent(extent)
        start = e.mul(index, size)
        if isinstance(whole, int) and whole % size == 0:
            return start
        return e.minimum(start, e.sub(whole, size))

    # ---- one tile

    def tile(self, place: _Place, top: Int, left: Int, shape: tuple[int, int]) -> None:
        e = self.e
        pixels = [(r, c) for r in range(shape[0]) for c in range(shape[1])]
        # As many in the last, narrower panel: equal filters give equal channels, bit for bit.
        vectors = self.p.vectors if self.p.full_panels else place.vectors
        chains = chains_of(len(pixels), vectors)
        sums = self.first_sums(place, len(pixels), chains)
        at = e.at(place.a, self.bytes_of(self.a, (top, self.a.row), (left, self.a.column)))
        offsets = [self.bytes_of(self.a, (r, self.a.row), (c, self.a.column)) for r, c in pixels]
        sums = self.sum_rows(place, at, offsets, sums, chains)
        whole = self.add_chains(sums, len(pixels), place.vectors, chains)
        if place.part < self.p.parts - 1:
            for (i, j), value in whole.items():
                e.store(value, self.scratch(place, i, j))
            return
        self.finish(place, whole, pixels, top, left)

    def first_sums(self, place: _Place, pixels: int, chains: int) -> Sums:
        p, e = self.p, self.e
        zero = e.constant(0, self.sums_kind)
        sums = {
            (s, i, j): zero
            for s in range(chains)
            for i in range(pixels)
            for j in range(place.vectors)
        }
        if place.part:
            for i in range(pixels):
                for j in range(place.vectors):
                    sums[0, i, j] = e.load(self.sums_kind, self.scratch(place, i, j))
        elif p.bias:
            padded = self.e.div(e.add(self.filters, p.lanes - 1), p.lanes)
            padded = e.mul(padded, p.lanes)
            channel = e.add(e.mul(place.group, padded), e.mul(place.panel, p.panel_width))
            at = e.at(e.pointer(self.bias_operand), e.mul(channel, SUM_BYTES))
            for j in range(place.vectors):
                value = e.load(self.sums_kind, e.at(at, j * p.lanes * SUM_BYTES))
                sums.update({(0, i, j): value for i in range(pixels)})
        return sums

    def scratch(self, place: _Place, pixel: int, vector: int) -> Reg:
        p, e = self.p, self.e
        size = p.tile[0] * p.tile[1] * p.panel_width * SUM_BYTES
        within = (pixel * p.panel_width + vector * p.lanes) * SUM_BYTES
        return e.at(e.scratch, e.add(e.mul(place.tile_index, size), within))

    def sum_rows(self, place: _Place, at: Reg, offsets: list[Int], sums: Sums, chains: int) -> Sums:
        """Sum over the rows of the window that are this pass's."""
        p, e = self.p, self.e
        rows, columns, _ = p.taps
        line = e.mul(self.words, place.width * WORD_BYTES)

        def sum_row(row: Int, begun: Sums) -> Sums:
            a_row = e.at(at, self.bytes_of(self.a, (row, p.a_taps[0])))
            b_row = e.at(place.panel_at, e.mul(row, e.mul(line, columns)))

            def sum_column(column: Int, begun: Sums) -> Sums:
                a_run = e.at(a_row, self.bytes_of(self.a, (column, p.a_taps[1])))
                b_run = e.at(b_row, e.mul(column, line))
                taps = e.add(e.mul(row, columns), column)
                return self.sum_run(place, (a_run, b_run, taps), offsets, begun, chains)

            return self.over(0, columns, begun, sum_column)

        first = rows * place.part // p.parts
        last = rows * (place.part + 1) // p.parts
        return self.over(first, last, sums, sum_row)

    def over(self, first: int, last: int, sums: Sums, body: Callable[[Int, Sums], Sums]) -> Sums:
        """Loop over taps, carrying the sums; no loop for a single tap."""
        if last - first == 1:
            return body(first, sums)
        keys = list(sums)
        with self.e.loop(first, last, carried=[sums[k] for k in keys]) as loop:
            made = body(loop.index, dict(zip(keys, loop.values, strict=True)))
            loop.carry = [made[k] for k in keys]
        return dict(zip(keys, loop.values, strict=True))

    def sum_run(
        self,
        place: _Place,
        at: tuple[Reg, Reg, Int],
        offsets: list[Int],
        sums: Sums,
        chains: int,
    ) -> Sums:
        """The sums with the products of one run added; ``at``: both factors, and the taps done."""
        e, sums = self.e, dict(sums)
        a, b, taps = at
        step, words = self.step(chains), self.words
        last = self.last_count()
        if isinstance(words, int) and (words <= 2 * step or self.p.column_run):
            for k in range(words):
                count = last if k == words - 1 else None
                self.products(place, (a, b), (0, k), offsets, sums, k % chains, count)
            return sums
        whole = words if last is None else e.sub(words, 1)
        keys, looped = list(sums), e.mul(e.div(whole, step), step)
        with e.loop(0, looped, step, [sums[k] for k in keys]) as loop:
            inner = dict(zip(keys, loop.values, strict=True))
            for u in range(step):
                self.products(place, (a, b), (loop.index, u), offsets, inner, u % chains)
            if self.p.steps and (self.p.prefetch or self.p.ahead):
                self.prefetch(place, taps, loop.index, step)
            loop.carry = [inner[k] for k in keys]
        sums = dict(zip(keys, loop.values, strict=True))
        if isinstance(words, int) and isinstance(looped, int):
            for k in range(looped, words):
                count = last if k == words - 1 else None
                self.products(place, (a, b), (0, k), offsets, sums, (k - looped) % chains, count)
            return sums
        sums = self.one_by_one(place, (a, b), (looped, whole), offsets, sums)
        if last is not None:
            sums = self.one_by_one(place, (a, b), (whole, words), offsets, sums, last)
        return sums

    def last_count(self) -> Int | None:
        """Elements of the run's last word; None where every word is full."""
        e, group = self.e, self.arithmetic.group
        rest = e.mod(self.run, group)
        if rest == 0:
            return None
        return (
            rest if isinstance(rest, int) else e.sub(self.run, e.mul(e.sub(self.words, 1), group))
        )

    def one_by_one(
        self,
        place: _Place,
        at: tuple[Reg, Reg],
        words: tuple[Int, Int],
        offsets: list[Int],
        sums: Sums,
        count: Int | None = None,
    ) -> Sums:
        """Add the products of these words in a loop."""
        keys = list(sums)
        with self.e.loop(*words, 1, [sums[k] for k in keys]) as loop:
            inner = dict(zip(keys, loop.values, strict=True))
            self.products(place, at, (loop.index, 0), offsets, inner, 0, count)
            loop.carry = [inner[k] for k in keys]
        return dict(zip(keys, loop.values, strict=True))

    def products(
        self,
        place: _Place,
        at: tuple[Reg, Reg],
        k: tuple[Int, int],
        offsets: list[Int],
        sums: Sums,
        chain: int,
        count: Int | None = None,
    ) -> None:
        """Add the products of one word of the run: ``k`` is a base and what it is ahead by.

        ``count``: the word's elements, if it is not full.
        """
        p, e, arithmetic = self.p, self.e, self.arithmetic
        width = place.width * WORD_BYTES
        a_base = e.at(at[0], self.bytes_of(self.a, (e.mul(k[0], arithmetic.group), p.a_taps[2])))
        b_base = e.at(at[1], e.mul(k[0], width))
        kind = arithmetic.factor_type(p.lanes)
        factors = [
            e.load(kind, e.at(b_base, k[1] * width + j * p.lanes * WORD_BYTES))
            for j in range(place.vectors)
        ]
        elements = count if isinstance(count, int) else arithmetic.group
        first, *others = [self.element(k[1] * arithmetic.group + i) for i in range(elements)]
        steps = [0, *(e.sub(other, first) for other in others)]
        unknown = None if isinstance(count, int) else count
        for i, offset in enumerate(offsets):
            at_word = e.at(a_base, e.add(offset, first))
            word = arithmetic.load_word(e, at_word, steps, self.a.dtype, unknown)
            element = arithmetic.broadcast(e, word, p.lanes)
            for j, factor in enumerate(factors):
                total = sums[chain, i, j]
                sums[chain, i, j] = arithmetic.add_products(e, element, factor, total)

    def element(self, k: int) -> Int:
        """Byte offset of element ``k`` of a run."""
        p = self.p
        if not p.column_run:
            return self.bytes_of(self.a, (k, p.a_taps[2]))
        column, within = divmod(k, p.column_run)
        return self.bytes_of(self.a, (column, p.a_taps[1]), (within, p.a_taps[2]))

    def add_chains(
        self, sums: Sums, pixels: int, vectors: int, chains: int
    ) -> dict[tuple[int, int], Reg]:
        whole: dict[tuple[int, int], Reg] = {}
        add = "fadd" if self.arithmetic.sums.is_float else "add"
        for i in range(pixels):
            for j in range(vectors):
                terms = [sums[s, i, j] for s in range(chains)]
                while len(terms) > 1:
                    pairs = zip(terms[::2], terms[1::2], strict=False)
                    odd = terms[-1:] if len(terms) % 2 else []
                    terms = [self.e.binary(add, x, y) for x, y in pairs] + odd
                whole[i, j] = terms[0]
        return whole

    def finish(
        self,
        place: _Place,
        sums: dict[tuple[int, int], Reg],
        pixels: Sequence[tuple[int, int]],
        top: Int,
        left: Int,
    ) -> None:
        """Epilogue and stores."""
        p, e, out = self.p, self.e, self.out
        at = e.at(place.out, self.bytes_of(out, (top, out.row), (left, out.column)))
        at = e.at(at, self.bytes_of(out, (e.mul(place.panel, p.panel_width), 1)))
        readers = [
            _ExtraReader(self, place, number, top, left) for number in range(len(self.extras))
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
            store(e, value, e.at(at, offset), place.masks[j], out.dtype)


class _ExtraReader:
    """Reads one extra operand of the epilogue at the tile; what does not vary is loaded once."""

    def __init__(self, writer: _Writer, place: _Place, number: int, top: Int, left: Int) -> None:
        self.w, self.masks = writer, place.masks
        e, s = writer.e, writer.extras[number]
        self.strides, self.channel = s, e.extent(s.channel)
        first = e.mul(place.panel, writer.p.panel_width)
        at = writer.bytes_of(s, (top, s.row), (left, s.column), (first, s.channel))
        self.at = e.at(place.extras[number], at)
        self.loaded: dict[tuple[int, int, int], Reg] = {}

    def read(self, row: int, column: int, vector: int) -> Reg:
        s, w = self.strides, self.w
        vector = vector if self.channel != 0 else 0
        key = (row if s.row != 0 else 0, column if s.column != 0 else 0, vector)
        if key not in self.loaded:
            ahead = (vector * w.p.lanes, s.channel)
            at = w.e.at(self.at, w.bytes_of(s, (row, s.row), (column, s.column), ahead))
            mask = self.masks[vector]
            self.loaded[key] = load_channels(w.e, w.kind, at, self.channel, mask, s.dtype)
        return self.loaded[key]
