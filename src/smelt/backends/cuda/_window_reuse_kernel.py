"""Convolution kernel that loads each pixel once: windows slide over pixels in shared memory.

An implicit GEMM loads each pixel once per tap through the L2 cache, nine times for a 3x3 window.
Here the positions of the padded image are numbered consecutively: each row and each image is
followed by as many positions as the window extends over the border, and they hold zeros. The pixel
of a tap then has a constant distance from the window's corner, for every position of the window. A
program copies a range of positions into shared memory, one *slice* of the channels at a time, and
each tap multiplies the same memory at another row offset. Results at padding positions are not
stored.

The weight tiles of each tap and slice pass through a ring of buffers. The product is transposed:
filters are its rows, because tensor cores read fewer bytes the wider the other operand is.

Triton cannot express such views of shared memory; Gluon, its lower-level language, can.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod
from typing import TYPE_CHECKING, Final

from smelt.backends.cuda._cost_model import WARP_LANES, parts_of
from smelt.backends.cuda._kernel_source import LANGUAGE_TYPES, VECTOR
from smelt.backends.cuda._tile_writer import TileWriter, all_of, broadcast_condition, divides
from smelt.types import DType, override

if TYPE_CHECKING:
    from smelt.engine import Json, KernelSpec

_SWIZZLE_BYTES: Final = 128
"""Maximum swizzle of shared memory, in bytes."""
_WARP_ROWS: Final = 16
"""Rows of one instruction that a warp computes."""
_MAX_INSTRUCTION_COLUMNS: Final = 256
"""Maximum columns of one instruction."""
_RING_DISTANCE: Final = 2
"""Steps between the last use of a ring buffer and the next copy into it: one product is still
running while the next one starts."""


@dataclass(frozen=True, slots=True)
class SharedWindowLayout:
    """Division of the shared memory over which windows slide."""

    slots: int
    """Slices of the channels that are held at once."""
    chunks: int
    """Chunks in which a slice is copied, one per step."""
    chunk_rows: int
    """Rows of a chunk."""

    @property
    def rows(self) -> int:
        """Rows of all slices that are held."""
        return self.slots * self.chunks * self.chunk_rows


def shared_window_layout(need: int, taps: int, slices: int, ring: int) -> SharedWindowLayout:
    """Return the layout of ``need`` rows; the next slice is copied during the current products."""
    max_chunks = taps + _RING_DISTANCE - ring if slices > 1 else need
    chunk_rows = WARP_LANES
    while -(-need // chunk_rows) > max_chunks:
        chunk_rows *= 2
    return SharedWindowLayout(min(2, slices), -(-need // chunk_rows), chunk_rows)


class WindowReuseWriter(TileWriter):
    """Writer of a convolution. Operands: image, weights, epilogue operands, result.

    The row axes are as long as the padded image; ``valid_extents`` are the result's extents. A tile
    is (positions, filters, channels of a slice).
    """

    def __init__(self, kernel: KernelSpec) -> None:
        """Compute the distances between the pixels of a window."""
        super().__init__(kernel)
        self.row_ok = "row_ok"
        extents = [axis[0] for axis in self.rows]
        self.pitches = [prod(extents[at + 1 :]) for at in range(1, len(extents))]
        """Distance between neighbours along each window axis, in positions."""
        windows = list(zip(self.windows, self.pitches, strict=True))
        self.lead = sum(w[4] * pitch for w, pitch in windows)
        """Distance from the corner of the first window to the first pixel, in positions."""
        window_span = sum((w[0] - 1) * w[3] * pitch for w, pitch in windows)
        self.run = self.k.fixed_run
        self.slices = -(-self.run // self.tile[2])
        self.ring = self.k.num_stages
        need = self.tile[0] + window_span
        self.window = shared_window_layout(need, self.taps, self.slices, self.ring)
        self.steps = self.taps * self.slices
        self.kind = LANGUAGE_TYPES[self.s.dtypes[1]]

    @override
    def write(self) -> str:
        s = self.s
        s.narrow_scalars()
        self.lay_out()
        self.find_place()
        self.find_weights()
        self.write_column_indices("1, multiplied")
        for number in range(min(self.steps, self.ring - 1)):
            self.copy_weights(str(number), *divmod(number, self.taps))
        self.read_weights(self.last - self.first_extra)
        copies = self.find_first()
        s.wait()
        for to, at, there in copies:
            self.copy(to, at, there)
        for _ in range(self.ring - 1):  # the first group has all first copies; the others are empty
            s.line("hopper.async_copy.commit_group()")
        self.sum()
        self.finish()
        return s.text()

    def lay_out(self) -> None:
        """Write the layouts of memory and registers, and the allocation of shared memory."""
        s = self.s
        places, filters, width = self.tile
        num_warps, copied, stored = self.k.num_warps, self.lanes("copied"), self.lanes("written")
        column_warps = max(1, num_warps * _WARP_ROWS // filters)
        swizzle = width * s.dtypes[1].size_bytes
        bits = 8 * s.dtypes[1].size_bytes
        layouts = {
            "copied": f"gl.BlockedLayout([1, {VECTOR}], [{WARP_LANES // copied}, {copied}], "
            f"[{num_warps}, 1], [1, 0])",
            "written": f"gl.BlockedLayout([1, {VECTOR}], [{WARP_LANES // stored}, {stored}], "
            f"[{num_warps}, 1], [1, 0])",
            "multiplied": f"gl.NVMMADistributedLayout([3, 0], "
            f"[{num_warps // column_warps}, {column_warps}], "
            f"[16, {min(places // column_warps, _MAX_INSTRUCTION_COLUMNS)}, 16])",
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
        # A view of single rows, so that a tap's view can start at any row.
        lines = [self.window.rows, 1, width]
        s.line(f"lines = window._reinterpret({self.kind}, {lines}, plain)")

    def find_weights(self) -> None:
        """Write the addresses of the weights of the tile's filters."""
        s, (_, filters, width) = self.s, self.tile
        rows = f"across * {filters} + gl.arange(0, {filters}, gl.SliceLayout(1, copied))"
        if self.column_ok:
            rows = f"tl.minimum({rows}, {self.column_count} - 1)"
        s.line(f"c = gl.arange(0, {width}, gl.SliceLayout(0, copied))")
        s.line(f"b_rows = p1 + (({rows}) * {self.columns[2]})[:, None] + c[None, :]")

    def copy_weights(self, slot: str, number: int | str, tap: int | str) -> None:
        """Write the asynchronous copy of the weights of a slice and tap into a ring buffer."""
        offset = self.s.join(f"({tap}) * {self.run}", f"({number}) * {self.tile[2]}")
        self.copy(f"ring.index({slot})", f"b_rows + ({offset})", self.channels_ok(number))

    def channels_ok(self, number: int | str) -> str:
        """Return the condition of the channels of a slice that exist."""
        width, run = self.tile[2], self.run
        return "" if divides(width, run) else f"(c + ({number}) * {width} < {run})[None, :]"

    def copy(self, to: str, source: str, condition: str) -> None:
        """Write an asynchronous copy from global to shared memory."""
        mask = f", mask={condition}" if condition else ""
        copy = "hopper.async_copy.async_copy_global_to_shared"
        self.s.line(f"{copy}({to}, {source}{mask})")

    def find_first(self) -> list[tuple[str, str, str]]:
        """Return the copies of the first slice, in few large pieces.

        Each is (destination, source addresses, condition of the pixels that exist).
        """
        s, rows = self.s, self.window.chunks * self.window.chunk_rows
        self.find_corner()
        copies: list[tuple[str, str, str]] = []
        for first, count in parts_of(rows, limit=rows):
            shape = f"{self.kind}, [{count}, {self.tile[2]}], swizzled"
            places = self.find_pixels(f"w{first}", str(first), count, "0")
            names = (f"from{first}", f"there{first}")
            for variable, text in zip(names, places, strict=True):
                s.line(f"{variable} = {text}")
            copies.append((f"lines.index({first})._reinterpret({shape})", *names))
        return copies

    def find_corner(self) -> None:
        """Write the coordinates of the tile's first position; it may be before the first image.

        Coordinates are counted from an earlier image, so that no negative number is divided.
        """
        s, image = self.s, prod(axis[0] for axis in self.rows[1:])
        before = -(-self.lead // image)
        s.line(f"corner = down * {self.tile[0]} + {before * image - self.lead}")
        first, *_ = s.coordinates("corner", self.rows, "corner")
        s.line(f"{first} = {first} - {before}")

    def find_pixels(self, name: str, first: str, count: int, number: str) -> tuple[str, str]:
        """Return the addresses of a slice of ``count`` rows of the window, and the mask of pixels.

        Rows are counted from the window's corner: dividing small numbers is cheaper.
        """
        s, extents = self.s, [axis[0] for axis in self.rows]
        names = [f"{name}_{axis}" for axis in range(len(extents))]
        rest = f"{first} + gl.arange(0, {count}, {self.row_layout(count, 'copied')})"
        for axis in reversed(range(len(extents))):
            s.line(f"{names[axis]} = corner{axis} + {rest}")
            if axis:
                s.line(f"{name}_over = {names[axis]} // {extents[axis]}")
                s.line(f"{names[axis]} = {names[axis]} - {name}_over * {extents[axis]}")
            rest = f"{name}_over"
        conditions = [f"({names[0]} >= 0)", f"({names[0]} < {s.extent(extents[0])})"]
        for at, window in zip(names[1:], self.windows, strict=True):
            conditions.append(f"({at} < {s.extent(window[5])})")
        offset = s.offset(names, self.rows, 0, uses_int64_offsets=self.k.uses_int64_offsets[0])
        self.broadcast_pixels(name, offset, " & ".join(conditions), "copied")
        there = f"({name} >= 0)[:, None]"
        if channels := self.channels_ok(number):
            there = f"{there} & {channels}"
        slice_ = s.sum_of((number, self.tile[2]))
        return f"(p0 + {name})[:, None] + (c + ({slice_}))[None, :]", there

    def row_layout(self, count: int, layout: str) -> str:
        """Return the layout of a vector of rows before it is broadcast to the lanes of each row.

        Each warp holds one row per lane, as far as rows go, of the rows that it needs.
        """
        num_warps = self.k.num_warps
        lanes = self.lanes(layout)
        rows = WARP_LANES // lanes
        step = rows * num_warps
        row_steps = [step << bit for bit in range((count // step).bit_length() - 1)]
        lane_bits = lanes.bit_length() - 1
        lane_steps, register_rows = row_steps[:lane_bits], row_steps[lane_bits:]
        lane_steps += [0] * (lane_bits - len(lane_steps))
        lane_rows = [1 << bit for bit in range(rows.bit_length() - 1)]
        warp_rows = [rows << bit for bit in range(num_warps.bit_length() - 1)]
        bases = [
            [[x if x < count else 0] for x in rows_of]
            for rows_of in (register_rows, lane_steps + lane_rows, warp_rows)
        ]
        return f"gl.DistributedLinearLayout({bases[0]}, {bases[1]}, {bases[2]}, [], [{count}])"

    def lanes(self, layout: str) -> int:
        """Return the number of lanes that share a row of a layout."""
        wide = self.tile[2] if layout == "copied" else self.tile[1]
        return min(WARP_LANES, wide // VECTOR)

    def broadcast_pixels(self, name: str, offset: str, condition: str, layout: str) -> None:
        """Write the offset of each row to all its lanes, negative where masked."""
        s = self.s
        s.line(f"{name} = tl.where({condition}, {offset}, -{VECTOR})")
        s.line(f"{name} = gl.convert_layout({name}, gl.SliceLayout(1, {layout}))")
        s.line(f"{name} = tl.multiple_of({name}, {self.vector(layout)})")

    def vector(self, layout: str) -> int:
        """Return the known common divisor of the offsets of a layout's rows."""
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
        """Write the start of a step's product, and the wait for the one before."""
        s, (places, _, width) = self.s, self.tile
        names = s.coordinates("tap", self.windows, "t")
        terms: list[tuple[str, Json]] = [
            (name, w[3] * pitch)
            for name, w, pitch in zip(names, self.windows, self.pitches, strict=True)
        ]
        slice_rows = self.window.chunks * self.window.chunk_rows
        slot = f"(part % 2) * {slice_rows}" if self.window.slots > 1 else ""
        first = s.join(slot, s.sum_of(*terms))
        shape = f"{self.kind}, [{places}, {width}], swizzled"
        s.line(f"seen = lines.index({first})._reinterpret({shape}).permute([1, 0])")
        weights = f"ring.index(number % {self.ring})"
        s.line(f"acc = hopper.warpgroup_mma({weights}, seen, acc, is_async=True)")
        s.line("acc = hopper.warpgroup_mma_wait(1, deps=[acc])")

    def prefetch_copies(self) -> None:
        """Write the copies for later steps, into buffers that no product reads any more."""
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
        """Write the tile's column numbers in a layout."""
        s, filters = self.s, self.tile[1]
        spread = f"gl.arange(0, {filters}, gl.SliceLayout({layout}))"
        s.line(f"{self.column} = across * {filters} + {spread}")
        if self.column_ok:
            self.column_ok = f"({self.column} < {self.column_count})"

    @override
    def find_rows(self) -> None:
        s, places = self.s, self.tile[0]
        layout = self.row_layout(places, "written")
        s.line(f"row = down * {places} + gl.arange(0, {places}, {layout})")
        s.unravel("row", [axis[0] for axis in self.rows], self.row_names)
        inside = (
            f"({name} < {s.extent(extent)})"
            for name, extent in zip(self.row_names, self.k.valid_extents, strict=True)
        )
        s.line(f"row_ok = {' & '.join(inside)}")

    @override
    def broadcast_suffix(self, operand: int) -> str:
        return {"[None, :]": "[:, None]"}.get(text := super().broadcast_suffix(operand), text)

    @override
    def finish(self) -> None:
        """Write the epilogue, which must not depend on positions, then the transposed store."""
        s, kind = self.s, LANGUAGE_TYPES[self.s.dtypes[self.last]]
        s.line(f"result = ({self.write_epilogue(self.k.stages, has_bias=self.k.bias)}).to({kind})")
        self.transpose_result(s.dtypes[self.last])
        self.find_rows()
        self.column = "filter"
        self.write_column_indices("0, written")
        self.broadcast_pixels("row", self.row_offset(self.last), "row_ok", "written")
        mask = all_of("(row >= 0)[:, None]", broadcast_condition(self.column_ok, 1))
        at = f"(p{self.last} + row)[:, None] + ({self.column_offset(self.last)})[None, :]"
        s.line(f"tl.store({at}, result, mask={mask})")

    def transpose_result(self, dtype: DType) -> None:
        """Write the transposition of the result, through the window's shared memory if it fits.

        No product needs that memory any more, and the store covers the whole tile.
        """
        s, (places, filters, width) = self.s, self.tile
        s.line("tl.debug_barrier()")  # the products of all warps have read the window
        if places * filters * dtype.size_bytes > self.window.rows * width * s.dtypes[1].size_bytes:
            s.line("result = gl.convert_layout(result.permute([1, 0]), written)")
            return
        swizzle = min(_SWIZZLE_BYTES, filters * dtype.size_bytes)
        layout = f"gl.NVMMASharedLayout({swizzle}, {8 * dtype.size_bytes}, 2)"
        kind = f"{LANGUAGE_TYPES[dtype]}, [{places}, {filters}], {layout}"
        s.line(f"turned = lines.index(0)._reinterpret({kind})")
        s.line("turned.store(result.permute([1, 0]))")
        s.line("result = turned.load(written)")
