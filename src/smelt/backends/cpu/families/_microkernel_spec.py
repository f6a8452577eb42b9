"""Parameters that determine the code of a microkernel, and their encoding as a kernel spec.

A position is where the microkernel stands in its loops while its LLVM IR is written.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Final

from smelt.backends.cpu._emit import Int, Reg
from smelt.backends.cpu._kernel_spec import kernel_spec
from smelt.backends.cpu.families._dot_product import DOT_PRODUCTS
from smelt.engine import Json, KernelSpec, as_json
from smelt.types import DType

ACCUMULATOR_BYTES: Final = 4
"""Size in bytes of one accumulator (float32 or int32)."""
_MIN_INDEPENDENT_SUMS: Final = 8
"""Number of independent accumulators that hide the latency of multiply-add: 4 cycles at two
instructions per cycle."""


@dataclass(frozen=True, slots=True)
class OperandStrides:
    """Strides of one operand along the coordinates of the result, in elements."""

    images: tuple[Json, ...]
    group: Json
    row: Json
    column: Json
    channel: Json = 1
    stored: str = DType.FLOAT32.value
    """Name of the element type in memory."""

    @property
    def dtype(self) -> DType:
        """Element type in memory."""
        return DType(self.stored)


@dataclass(frozen=True, slots=True)
class MicrokernelSpec:
    """Everything that determines the code of one microkernel.

    Extents and strides are integers, or ``("arg", k)`` for a value that the launch passes as scalar
    ``k``. The field names are the parameter names of the kernel's spec.
    """

    images: tuple[Json, ...]
    """Extents of the stack of images; each operand has its own stride per axis."""
    groups: int
    height: Json
    width: Json
    filters: Json
    """Channels of the result per group; a constant unless panels are uniform."""
    lanes: int
    vectors: int
    """Vectors per panel."""
    tile: tuple[int, int]
    """Rows and columns of a tile; one row unless height and width are constants."""
    taps: tuple[int, int, Json]
    """Rows of the window, columns of the window, and length of the contiguous run in elements."""
    blocks: tuple[int, int, int]
    """Rows of tiles, columns of tiles and panels of one chunk."""
    counts: tuple[Json, Json, Json]
    """Number of chunks along panels, along rows and along columns of tiles."""
    across: Json
    """Columns of tiles of an image."""
    reduction_passes: int
    """Passes over the tiles of a chunk, each of which sums some rows of the window."""
    unroll: int
    """Words of the run that the innermost loop handles per iteration."""
    a: Json
    """Strides of the first factor."""
    a_start: Json
    """Offset in elements from the first factor's element (0, …, 0) to the first tap of the first
    pixel; negative where a halo is read."""
    a_taps: tuple[Json, Json, Json]
    """Strides of the first factor along tap rows, tap columns and the run, in elements."""
    b_images: tuple[Json, ...]
    """Number of packed matrices from one image to the next along each axis; 0 for weights."""
    out: Json
    """Strides of the result."""
    extras: tuple[Json, ...]
    """Strides of the epilogue's extra operands."""
    dot_product: str
    """Key in `DOT_PRODUCTS` of the instruction that multiplies and accumulates."""
    bias: bool
    """Whether the sums start from a packed vector of per-channel values instead of 0."""
    alpha: float
    """Factor applied to the sum before the epilogue."""
    epilogue: Json
    """Epilogue as `Epilogue.as_json` writes it."""
    prefetch: int = 0
    """Bytes of the next panel that each step of a tile's sum prefetches."""
    has_uniform_panels: bool = False
    """Whether one operand holds all panels, the last as wide as the others."""
    window_column_elements: int = 0
    """Elements of a run within one column of the window, if the run continues in the next
    columns; else 0."""
    prefetch_ahead: int = 0
    """Bytes of later launches' weights that each step prefetches from the last operand; the
    chunks cover that operand in their order."""

    @property
    def step(self) -> int:
        """Words of the run that the loop of a full tile handles per iteration."""
        return max(self.unroll, partial_sums_of(self.tile[0] * self.tile[1], self.vectors))

    @property
    def steps(self) -> int:
        """Iterations of a tile's loops, each of which can prefetch.

        The value is 0 if the run is unrolled completely or is not a constant.
        """
        run = self.taps[2] if isinstance(self.taps[2], int) else 0
        words = -(-run // DOT_PRODUCTS[self.dot_product].group)
        looped = words // self.step if words > 2 * self.step else 0
        return self.taps[0] * self.taps[1] * looped

    @property
    def is_known(self) -> bool:
        """Whether every extent is a constant at build time."""
        extents = (self.height, self.width, self.filters, self.taps[2], *self.images)
        return all(isinstance(extent, int) for extent in extents)

    @property
    def chunk_steps(self) -> int:
        """Loop iterations of a full chunk."""
        return self.blocks[0] * self.blocks[1] * self.blocks[2] * self.steps

    @property
    def panel_width(self) -> int:
        """Channels per panel."""
        return self.lanes * self.vectors

    @property
    def full_panels(self) -> int:
        """Number of panels without padding; 1 if the number of filters is not a constant."""
        return self.filters // self.panel_width if isinstance(self.filters, int) else 1

    @property
    def tail_vectors(self) -> int:
        """Number of vectors of the last, narrower panel; 0 if there is none."""
        if not isinstance(self.filters, int):
            return self.vectors
        return -(-(self.filters % self.panel_width) // self.lanes)

    @property
    def scratch_bytes(self) -> int:
        """Scratch memory in bytes for unfinished sums if there are several passes."""
        if self.reduction_passes == 1:
            return 0
        tiles = self.blocks[0] * self.blocks[1]
        return tiles * self.tile[0] * self.tile[1] * self.panel_width * ACCUMULATOR_BYTES

    def spec(self, family: str) -> KernelSpec:
        """Return the kernel spec of the given family with these parameters."""
        fields = {f.name: as_json(getattr(self, f.name)) for f in dataclasses.fields(self)}
        return kernel_spec(family, kernel="panels", **fields)

    @staticmethod
    def from_spec(kernel: KernelSpec) -> MicrokernelSpec:
        """Return the parameters that `spec` wrote."""
        fields: dict[str, Any] = {n: as_json(v) for n, v in kernel.parameters if n != "kernel"}
        return MicrokernelSpec(**fields)


def partial_sums_of(pixels: int, vectors: int) -> int:
    """Return the number of partial sums per element of a tile.

    Small tiles have several, so that at least `_MIN_INDEPENDENT_SUMS` accumulators are in flight.
    """
    return max(1, _MIN_INDEPENDENT_SUMS // (pixels * vectors))


@dataclass(slots=True)
class TileState:
    """Operand addresses for the current image and group, and the tile that is being computed."""

    a: Reg
    """Address of the first factor's first tap for pixel (0, 0) of the image and group."""
    out: Reg
    """Address of the result's pixel (0, 0), first channel of the group."""
    extras: list[Reg]
    """Addresses of the epilogue's extra operands at the same position."""
    group: Int
    images: list[Int]
    """Coordinates of the image along each axis of the stack."""
    rows: tuple[Int, Int]
    """First row of tiles of the chunk, and the one after the last."""
    columns: tuple[Int, Int]
    """First column of tiles of the chunk, and the one after the last."""
    panel: Int = 0
    """Index of the panel within the group."""
    panel_at: Reg = dataclasses.field(default_factory=lambda: Reg("", "ptr"))
    """Address of the panel's packed weights."""
    vectors: int = 0
    """Number of vectors of the panel that are computed."""
    width: int = 0
    """Number of channels of the panel as it is stored, padding included."""
    masks: list[Reg | None] = dataclasses.field(default_factory=list["Reg | None"])
    """For each vector, the mask of channels to store; None for a full vector."""
    reduction_pass: int = 0
    """Index of the pass over the rows of the window."""
    partial_sums: int = 1
    """Number of partial sums per element of the tile."""
    offsets: list[Int] = dataclasses.field(default_factory=list[Int])
    """Byte offset of each pixel of the tile in the first factor."""
    tile_index: Int = 0
    """Index of the tile within the chunk, which selects its slot of unfinished sums."""
    prefetch_ahead: Reg = dataclasses.field(default_factory=lambda: Reg("", "ptr"))
    """Address of the part of the next panel that this tile prefetches."""
    tiles_before: Int = 0
    """Number of tiles in the chunks and panels before this panel."""
    next_weights_at: Reg = dataclasses.field(default_factory=lambda: Reg("", "ptr"))
    """Address of the part of later launches' weights that this tile prefetches."""
