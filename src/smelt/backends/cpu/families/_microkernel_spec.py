"""What decides the code of a panel kernel, as data."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Final

from smelt.backends.cpu.families._dot_product import DOT_PRODUCTS
from smelt.engine import Json, KernelSpec, as_json, parameters
from smelt.types import DType

ACCUMULATOR_BYTES: Final = 4
"""Size of an unfinished sum."""
_MIN_INDEPENDENT_SUMS: Final = 8
"""Independent sums that hide the latency of multiply-add."""


@dataclass(frozen=True, slots=True)
class OperandStrides:
    """How one operand moves, in elements, with the coordinates of the result."""

    images: tuple[Json, ...]
    group: Json
    row: Json
    column: Json
    channel: Json = 1
    dtype: DType = DType.FLOAT32
    """Its elements."""

    def as_json(self) -> Json:
        """What a spec holds."""
        strides = (self.images, self.group, self.row, self.column, self.channel)
        return (*strides, self.dtype.value)

    @staticmethod
    def from_json(value: Any) -> OperandStrides:
        """What `as_json` wrote."""
        images, group, row, column, channel, dtype = value
        return OperandStrides(images, group, row, column, channel, DType(dtype))


@dataclass(frozen=True, slots=True)
class MicrokernelSpec:
    """Everything that decides the code of one kernel. Extents and strides may be ``("arg", k)``."""

    images: tuple[Json, ...]
    """Extents of the stack, which operands walk with strides of their own."""
    groups: int
    height: Json
    width: Json
    filters: Json
    """Channels of the result, of one group; known unless panels are uniform."""
    lanes: int
    vectors: int
    """Vectors of a panel."""
    tile: tuple[int, int]
    """Rows and columns of a tile; one row unless height and width are known."""
    taps: tuple[int, int, Json]
    """Rows, columns and run."""
    blocks: tuple[int, int, int]
    """Rows of tiles, columns of tiles and panels of one chunk."""
    counts: tuple[Json, Json, Json]
    """Number of blocks of panels, of rows and of columns of tiles."""
    across: Json
    """Columns of tiles in all."""
    reduction_passes: int
    """Passes over the tiles of a chunk, each summing some rows of the window."""
    unroll: int
    a: Json
    """Strides of the first factor."""
    a_start: Json
    """From its element (0, …, 0) to the first pixel's first tap: negative where a halo is read."""
    a_taps: tuple[Json, Json, Json]
    """Its strides along tap rows, tap columns and the run."""
    b_images: tuple[Json, ...]
    """Packed matrices from one image to the next: zero for weights."""
    out: Json
    extras: tuple[Json, ...]
    """Strides of the extra operands."""
    dot_product: str
    """Name of what multiplies and sums."""
    bias: bool
    """Whether a packed vector of channels is what sums start from."""
    alpha: float
    """Factor of the sum, before the epilogue."""
    epilogue: Json
    prefetch: int = 0
    """Bytes of the next panel that each step of a tile's sum asks for, so that it comes in time."""
    has_uniform_panels: bool = False
    """Whether the last panel is as wide as the others, and one operand holds them all."""
    column_run: int = 0
    """Elements of a run that lie in one column, if it goes on in the columns after it; else 0."""
    prefetch_ahead: int = 0
    """Bytes of later launches' weights that each step asks for: those of one more operand, the
    last, which the chunks go through in their order."""

    @property
    def step(self) -> int:
        """Words of the run that a tile's loop takes at a time."""
        return max(self.unroll, partial_sums_of(self.tile[0] * self.tile[1], self.vectors))

    @property
    def steps(self) -> int:
        """Turns of a tile's loops, each of which may prefetch; 0 where the run has no loop."""
        run = self.taps[2] if isinstance(self.taps[2], int) else 0
        words = -(-run // DOT_PRODUCTS[self.dot_product].group)
        looped = words // self.step if words > 2 * self.step else 0
        return self.taps[0] * self.taps[1] * looped

    @property
    def is_known(self) -> bool:
        """Whether every extent is known before the kernel runs."""
        extents = (self.height, self.width, self.filters, self.taps[2], *self.images)
        return all(isinstance(extent, int) for extent in extents)

    @property
    def chunk_steps(self) -> int:
        """Steps of a whole chunk."""
        return self.blocks[0] * self.blocks[1] * self.blocks[2] * self.steps

    @property
    def panel_width(self) -> int:
        """Channels of a panel."""
        return self.lanes * self.vectors

    @property
    def full_panels(self) -> int:
        """Panels without padding, where that is known; 1 where it is not."""
        return self.filters // self.panel_width if isinstance(self.filters, int) else 1

    @property
    def tail_vectors(self) -> int:
        """Vectors of the last, narrower panel; 0 when there is none."""
        if not isinstance(self.filters, int):
            return self.vectors
        return -(-(self.filters % self.panel_width) // self.lanes)

    @property
    def scratch_bytes(self) -> int:
        """Memory for unfinished sums, when there is more than one pass."""
        if self.reduction_passes == 1:
            return 0
        tiles = self.blocks[0] * self.blocks[1]
        return tiles * self.tile[0] * self.tile[1] * self.panel_width * ACCUMULATOR_BYTES

    def spec(self, family: str) -> KernelSpec:
        """The kernel as data."""
        fields = {f.name: as_json(getattr(self, f.name)) for f in dataclasses.fields(self)}
        return KernelSpec(family, parameters(kernel="panels", **fields))

    @staticmethod
    def from_spec(kernel: KernelSpec) -> MicrokernelSpec:
        """What `spec` wrote."""
        fields: dict[str, Any] = {n: as_json(v) for n, v in kernel.parameters if n != "kernel"}
        return MicrokernelSpec(**fields)


def partial_sums_of(pixels: int, vectors: int) -> int:
    """Partial sums of each element of a tile, such that enough are in flight."""
    return max(1, _MIN_INDEPENDENT_SUMS // (pixels * vectors))
