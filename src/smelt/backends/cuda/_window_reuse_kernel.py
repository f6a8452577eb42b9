"""The kernel of convolutions whose windows slide over shared memory: each pixel is read once.

A convolution that gathers its factors reads each pixel once a tap, nine times for a window of 3x3,
through the second-level cache. Here the places of the image are numbered one behind the other, its
padding among them: after each row and each image so many places follow as the window reaches over
the border, and they are zeros. Then the pixel that a tap sees lies a fixed number of places from
the one in the window's corner, whatever the place of the window. So a program copies a stretch of
places into shared memory, a *slice* of the channels at a time, and each tap multiplies the same
memory from another row on. What windows find that lie on padding is not stored.

The weights' tile of each tap and slice passes through a ring of buffers. The product is turned:
filters are its rows, for tensor cores read the fewer bytes the wider the other side is.

Triton's own language has no name for such memory; Gluon, the language below it, has.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod
from typing import TYPE_CHECKING, Final

from smelt.backends.cuda._cost_model import WARP_LANES
from smelt.backends.cuda._kernel_source import LANGUAGE_TYPES, VECTOR
from smelt.backends.cuda._tile_writer import TileWriter, across, both, divides
from smelt.types import DType, override

if TYPE_CHECKING:
    from smelt.engine import Json, KernelSpec

_SWIZZLE_BYTES: Final = 128
_WARP_ROWS: Final = 16
_MAX_INSTRUCTION_COLUMNS: Final = 256
"""Rows and columns of one instruction that a warp has part in."""
_RING_DISTANCE: Final = 2
"""Steps before a tile of weights is needed again that it may be asked for: one is being multiplied
while the next is begun."""


def ring_slots(taps: int, most: int) -> int:
    """Tiles of weights that may be held where a slice has so many taps."""
    return min(most, taps + 1)


@dataclass(frozen=True, slots=True)
class SharedWindowLayout:
    """How shared memory is divided that a window slides over."""

    slots: int
    """Slices of the channels that are held at once."""
    chunks: int
    """In which a slice is copied, one in a step."""
    chunk_rows: int
    """Rows of each."""

    @property
    def rows(self) -> int:
        """Of all slices that are held."""
        return self.slots * self.chunks * self.chunk_rows


def shared_window_layout(need: int, taps: int, slices: int, ring: int) -> SharedWindowLayout:
    """The memory of so many rows, of which the next slice is copied while one is multiplied."""
    turns = taps + _RING_DISTANCE - ring if slices > 1 else need
    chunk_rows = WARP_LANES
    while -(-need // chunk_rows) > turns:
        chunk_rows *= 2
    return SharedWindowLayout(min(2, slices), -(-need // chunk_rows), chunk_rows)


class WindowReuseWriter(TileWriter):
    """Operands: image, weights, extra operands, result.

    The axes of the rows are as long as the padded image; ``valid_extents`` says how much of each
    is the
    result's. A tile is so many places, filters, and channels of a slice.
    """

    def __init__(self, kernel: KernelSpec) -> None:
        """Find out how far apart what windows see is."""
        super().__init__(kernel)
        self.row_ok = "row_ok"
        extents = [axis[0] for axis in self.rows]
        self.pitches = [prod(extents[at + 1 :]) for at in range(1, len(extents))]
        """Places from one to the next along each axis of the window."""
        windows = list(zip(self.windows, self.pitches, strict=True))
        self.lead = sum(w[4] * pitch for w, pitch in windows)
        """Places from the corner of the first window to the first of the image."""
        window_span = sum((w[0] - 1) * w[3] * pitch for w, pitch in windows)
        self.run: int = kernel["run"]
        self.slices = -(-self.run // self.tile[2])
        self.ring: int = kernel["num_stages"]
        need = self.tile[0] + window_span
        self.window = shared_window_layout(need, self.taps, self.slices, self.ring)
        self.steps = self.taps * self.slices
        self.kind = LANGUAGE_TYPES[self.s.dtypes[1]]

    @override
    def write(self) -> str:
        s = self.s
        self.find_scalars()
        self.lay_out()
        s.line(f"tile = {s.program}")
        s.line(f"across = tile % {self.across}")
        s.line(f"down = tile // {self.across}")
        self.find_weights()
        self.write_column_indices("1, multiplied")
        for number in range(min(self.steps, self.ring - 1)):
            self.copy_weights(str(number), *divmod(number, self.taps))
        self.read_weights(self.last - self.factors)
        copies = self.find_first()
        s.wait()
        for to, at, there in copies:
            self.copy(to, at, there)
        for _ in range(self.ring - 1):  # all that is needed first is in one group
            s.line("hopper.async_copy.commit_group()")
        self.sum()
        self.finish()
        return s.text()

    def lay_out(self) -> None:
        """Name how memory and registers are laid out, and take shared memory."""
        s = self.s
        places, filters, width = self.tile
        num_warps, copied, stored = self.k["num_warps"], self.lanes("copied"), self.lanes("written")
        beside = max(1, num_warps * _WARP_ROWS // filters)
        swizzle = width * s.dtypes[1].size_bytes
        bits = 8 * s.dtypes[1].size_bytes
        layouts = {
            "copied": f"gl.BlockedLayout([1, {VECTOR}], [{WARP_LANES // copied}, {copied}], "
            f"[{num_warps}, 1], [1, 0])",
            "written": f"gl.BlockedLayout([1, {VECTOR}], [{WARP_LANES // stored}, {stored}], "
            f"[{num_warps}, 1], [1, 0])",
            "multiplied": f"gl.NVMMADistributedLayout([3, 0], [{num_warps // beside}, {beside}], "
            f"[16, {min(places // beside, _MAX_INSTRUCTION_COLUMNS)}, 16])",
            "swizzled": f"gl.NVMMASharedLayout({swizzle}, {bits}, 2)",
            "plain": "gl.SwizzledSharedLayout(1, 1, 1, [1, 0])",
        }
        for name, layout in layouts.items():
            s.line(f"{name}: gl.constexpr = {layout}")
        count = self.window.slots * self.window.chunks
        for name, shape in {
            "window": (count, self.window.chunk_rows, width),
            "ring": (self.ring, filters, width),
        }.items():
            s.line(f"{name} = gl.allocate_shared_memory({self.kind}, {list(shape)}, swizzled)")
        # A row of it alone, to begin what a tap sees anywhere.
        lines = [self.window.rows, 1, width]
        s.line(f"lines = window._reinterpret({self.kind}, {lines}, plain)")

    def find_weights(self) -> None:
        """Where the weights of the tile's filters lie."""
        s, (_, filters, width) = self.s, self.tile
        rows = f"across * {filters} + gl.arange(0, {filters}, gl.SliceLayout(1, copied))"
        if self.column_ok:
            rows = f"tl.minimum({rows}, {self.column_count} - 1)"
        s.line(f"c = gl.arange(0, {width}, gl.SliceLayout(0, copied))")
        s.line(f"b_rows = p1 + (({rows}) * {self.columns[2]})[:, None] + c[None, :]")

    def copy_weights(self, slot: str, number: int | str, tap: int | str) -> None:
        """Have the weights of a slice and a tap copied into a buffer of the ring."""
        run = self.run
        offset = self.s.join(f"({tap}) * {run}", f"({number}) * {self.tile[2]}")
        self.copy(f"ring.index({slot})", f"b_rows + ({offset})", self.channels_ok(number))

    def channels_ok(self, number: int | str) -> str:
        """Which channels of a slice there are, as a condition on rows of them."""
        width = self.tile[2]
        return (
            "" if divides(width, self.run) else f"(c + ({number}) * {width} < {self.run})[None, :]"
        )

    def copy(self, to: str, source: str, condition: str) -> None:
        mask = f", mask={condition}" if condition else ""
        copy = "hopper.async_copy.async_copy_global_to_shared"
        self.s.line(f"{copy}({to}, {source}{mask})")

    def find_first(self) -> list[tuple[str, str, str]]:
        """The copies of the first slice of the window, in few large pieces.

        For each: to where, from where, and which places are pixels.
        """
        s, rows = self.s, self.window.chunks * self.window.chunk_rows
        self.find_corner()
        found: list[tuple[str, str, str]] = []
        first = 0
        while first < rows:
            count = 1 << ((rows - first).bit_length() - 1)
            shape = f"{self.kind}, [{count}, {self.tile[2]}], swizzled"
            places = self.find_pixels(f"w{first}", str(first), count, "0")
            names = (f"from{first}", f"there{first}")
            for variable, text in zip(names, places, strict=True):
                s.line(f"{variable} = {text}")
            found.append((f"lines.index({first})._reinterpret({shape})", *names))
            first += count
        return found

    def find_corner(self) -> None:
        """The place that the window begins with, axis by axis; it may lie before the first image.

        What is negative is counted from an image before the first, so that nothing has to be
        divided that is.
        """
        s, extents = self.s, [axis[0] for axis in self.rows]
        image = prod(extents[1:])
        before = -(-self.lead // image)
        s.line(f"corner = down * {self.tile[0]} + {before * image - self.lead}")
        names = [f"corner{axis}" for axis in range(len(extents))]
        s.unravel("corner", extents, names)
        s.line(f"{names[0]} = {names[0]} - {before}")

    def find_pixels(self, name: str, first: str, count: int, number: str) -> tuple[str, str]:
        """Addresses of a slice of so many rows of the window, and which of them are pixels.

        They are counted from the window's corner: small numbers are divided with less effort.
        """
        s, extents = self.s, [axis[0] for axis in self.rows]
        names = [f"{name}_{axis}" for axis in range(len(extents))]
        rest = f"{first} + gl.arange(0, {count}, {self.listed(count, 'copied')})"
        for axis in reversed(range(len(extents))):
            s.line(f"{names[axis]} = corner{axis} + {rest}")
            if axis:
                s.line(f"{name}_over = {names[axis]} // {extents[axis]}")
                s.line(f"{names[axis]} = {names[axis]} - {name}_over * {extents[axis]}")
            rest = f"{name}_over"
        conditions = [f"({names[0]} >= 0)", f"({names[0]} < {s.extent(extents[0])})"]
        for at, window in zip(names[1:], self.windows, strict=True):
            conditions.append(f"({at} < {s.extent(window[5])})")
        offset = s.offset(names, self.rows, 0, uses_int64_offsets=self.k["uses_int64_offsets"][0])
        self.broadcast_pixels(name, offset, " & ".join(conditions), "copied")
        there = f"({name} >= 0)[:, None]"
        if channels := self.channels_ok(number):
            there = f"{there} & {channels}"
        slice_ = s.sum_of((number, self.tile[2]))
        return f"(p0 + {name})[:, None] + (c + ({slice_}))[None, :]", there

    def listed(self, count: int, layout: str) -> str:
        """How so many rows lie before all lanes of a row of a layout know of it.

        There is one in each lane, as far as they go, of the warp that needs it.
        """
        num_warps = self.k["num_warps"]
        lanes = self.lanes(layout)
        rows = WARP_LANES // lanes
        step = rows * num_warps
        ahead = [step << bit for bit in range((count // step).bit_length() - 1)]
        beside = lanes.bit_length() - 1
        first, later = ahead[:beside], ahead[beside:]
        first += [0] * (beside - len(first))
        across = [1 << bit for bit in range(rows.bit_length() - 1)]
        between = [rows << bit for bit in range(num_warps.bit_length() - 1)]
        bases = [
            [[x if x < count else 0] for x in some] for some in (later, first + across, between)
        ]
        return f"gl.DistributedLinearLayout({bases[0]}, {bases[1]}, {bases[2]}, [], [{count}])"

    def lanes(self, layout: str) -> int:
        """Lanes of a row of a layout."""
        wide = self.tile[2] if layout == "copied" else self.tile[1]
        return min(WARP_LANES, wide // VECTOR)

    def broadcast_pixels(self, name: str, offset: str, condition: str, layout: str) -> None:
        """Have all lanes of a row know its offset, negative where the condition does not hold."""
        s = self.s
        s.line(f"{name} = tl.where({condition}, {offset}, -{VECTOR})")
        s.line(f"{name} = gl.convert_layout({name}, gl.SliceLayout(1, {layout}))")
        s.line(f"{name} = tl.multiple_of({name}, {self.vector(layout)})")

    def vector(self, layout: str) -> int:
        """What surely divides the offsets of a layout's rows."""
        operand = 0 if layout == "copied" else self.last
        strides = [axis[1 + operand] for axis in self.rows]
        known = [stride for stride in strides if isinstance(stride, int)]
        return gcd(VECTOR, *known) if len(known) == len(strides) else 1

    @override
    def sum(self) -> None:
        s, (places, filters, _) = self.s, self.tile
        s.line(f"acc = gl.zeros([{filters}, {places}], tl.float32, multiplied)")
        with s.block(f"for number in range(0, {self.steps}):"):
            s.line(f"tap = number % {self.taps}")
            s.line(f"part = number // {self.taps}")
            s.line(f"hopper.async_copy.wait_group({self.ring - _RING_DISTANCE - 1})")
            s.line("hopper.fence_async_shared()")
            self.multiply_tap()
            self.prefetch_copies()
            s.line("hopper.async_copy.commit_group()")
        s.line("acc = hopper.warpgroup_mma_wait(0, deps=[acc])")
        s.line("hopper.async_copy.wait_group(0)")

    def multiply_tap(self) -> None:
        """Begin the product of a step, and wait for the one before."""
        s, (places, _, width) = self.s, self.tile
        names = [f"t{n}" for n in range(len(self.windows))]
        s.unravel("tap", [w[0] for w in self.windows], names)
        terms: list[tuple[str, Json]] = [
            (name, w[3] * pitch)
            for name, w, pitch in zip(names, self.windows, self.pitches, strict=True)
        ]
        each = self.window.chunks * self.window.chunk_rows
        slot = f"(part % 2) * {each}" if self.window.slots > 1 else ""
        first = s.join(slot, s.sum_of(*terms))
        shape = f"{self.kind}, [{places}, {width}], swizzled"
        s.line(f"seen = lines.index({first})._reinterpret({shape}).permute([1, 0])")
        weights = f"ring.index(number % {self.ring})"
        s.line(f"acc = hopper.warpgroup_mma({weights}, seen, acc, is_async=True)")
        s.line("acc = hopper.warpgroup_mma_wait(1, deps=[acc])")

    def prefetch_copies(self) -> None:
        """Have copied what later steps need, into buffers that no product reads any more."""
        s, taps, ring = self.s, self.taps, self.ring
        s.line(f"ahead = number + {ring - _RING_DISTANCE}")
        with s.block(f"if (ahead >= {ring - 1}) & (ahead < {self.steps}):"):
            self.copy_weights(f"ahead % {ring}", f"ahead // {taps}", f"ahead % {taps}")
        chunk_rows, chunks = self.window.chunk_rows, self.window.chunks
        if self.window.slots == 1:
            return
        last = f"(part < {self.slices - 1})"
        with s.block(f"if {last} & (tap >= 1) & (tap <= {chunks}):"):
            s.line("next = part + 1")
            to = f"window.index((next % 2) * {chunks} + tap - 1)"
            first = f"(tap - 1) * {chunk_rows}"
            self.copy(to, *self.find_pixels("v", first, chunk_rows, "next"))

    def write_column_indices(self, layout: str) -> None:
        """The tile's columns, in a layout."""
        s, filters = self.s, self.tile[1]
        spread = f"gl.arange(0, {filters}, gl.SliceLayout({layout}))"
        s.line(f"{self.column} = across * {filters} + {spread}")
        if self.column_ok:
            self.column_ok = f"({self.column} < {self.column_count})"

    @override
    def find_rows(self) -> None:
        s, places = self.s, self.tile[0]
        layout = self.listed(places, "written")
        s.line(f"row = down * {places} + gl.arange(0, {places}, {layout})")
        s.unravel("row", [axis[0] for axis in self.rows], self.row_names)
        inside = (
            f"({name} < {s.extent(extent)})"
            for name, extent in zip(self.row_names, self.k["valid_extents"], strict=True)
        )
        s.line(f"row_ok = {' & '.join(inside)}")

    @override
    def spread(self, operand: int) -> str:
        return {"[None, :]": "[:, None]"}.get(text := super().spread(operand), text)

    @override
    def finish(self) -> None:
        """The epilogue, in which nothing goes by the place, and then the tile turned."""
        s, kind = self.s, LANGUAGE_TYPES[self.s.dtypes[self.last]]
        s.line(f"result = ({self.end(self.k['stages'], bias=self.k['bias'])}).to({kind})")
        self.turn(s.dtypes[self.last])
        self.find_rows()
        self.column = "filter"
        self.write_column_indices("0, written")
        self.broadcast_pixels("row", self.row_offset(self.last), "row_ok", "written")
        mask = both("(row >= 0)[:, None]", across(self.column_ok, 1))
        at = f"(p{self.last} + row)[:, None] + ({self.column_offset(self.last)})[None, :]"
        s.line(f"tl.store({at}, result, mask={mask})")

    def turn(self, dtype: DType) -> None:
        """Turn the result over, by way of the window's memory if there is room.

        Nobody needs that any more, and all of the tile goes at once.
        """
        s, (places, filters, width) = self.s, self.tile
        s.line("tl.debug_barrier()")  # the products of all warps have read what they had to
        if places * filters * dtype.size_bytes > self.window.rows * width * s.dtypes[1].size_bytes:
            s.line("result = gl.convert_layout(result.permute([1, 0]), written)")
            return
        swizzle = min(_SWIZZLE_BYTES, filters * dtype.size_bytes)
        layout = f"gl.NVMMASharedLayout({swizzle}, {8 * dtype.size_bytes}, 2)"
        kind = f"{LANGUAGE_TYPES[dtype]}, [{places}, {filters}], {layout}"
        s.line(f"turned = lines.index(0)._reinterpret({kind})")
        s.line("turned.store(result.permute([1, 0]))")
        s.line("result = turned.load(written)")
