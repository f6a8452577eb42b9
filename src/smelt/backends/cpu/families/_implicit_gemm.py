"""Lowering of convolutions and matrix products from views to launches of the microkernel."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, cast

from smelt.backends import Family, LaunchScalars, Tactic
from smelt.backends.cpu._epilogue import Epilogue
from smelt.backends.cpu._target import CpuTarget
from smelt.backends.cpu.families._dot_product import DOT_PRODUCTS, WORD_BYTES
from smelt.backends.cpu.families._microkernel import write_microkernel
from smelt.backends.cpu.families._microkernel_spec import MicrokernelSpec
from smelt.backends.cpu.families._operand_packing import reduced_precision_products
from smelt.backends.cpu.families._tiling import (
    TilingProblem,
    choose_blocks,
    choose_tile,
    static_extent,
)
from smelt.engine import Json, KernelSpec, Launch, Parameters, TypedParameters, View
from smelt.types import Dim, DType, ceil_div, override

if TYPE_CHECKING:
    from smelt.ir import Node

_COLD_WEIGHTS_BYTES: Final = 192 << 10
"""Size in bytes from which weights are prefetched. Smaller weights are likely to be in cache still.
Chosen without a measurement."""
_GUESSED_EXTENT: Final = 128
"""Extent assumed for an axis known only at run time when tiles are chosen. Chosen without a
measurement."""


class ProductFamily(Family[CpuTarget], ABC):
    """Base of the families whose kernels are microkernels on floats of any storage type."""

    @override
    def reduced_precision_tactics(
        self, node: Node, tactic: Tactic, dtype: DType, target: CpuTarget
    ) -> tuple[Tactic, ...]:
        return reduced_precision_products(node, tactic, dtype, target)

    @override
    def generate(self, kernel: KernelSpec, target: CpuTarget) -> str:
        return write_microkernel(kernel)


@dataclass(frozen=True, slots=True)
class GemmStrides:
    """Strides of one operand along the coordinates of the result, in elements."""

    images: tuple[Dim, ...]
    group: Dim
    row: Dim
    column: Dim
    channel: Dim = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ImplicitGemm:
    """A sum over packed panels: convolution or matrix product as the microkernel computes it.

    Extents and strides may be symbolic. The fields correspond to those of `MicrokernelSpec`.
    """

    images: tuple[Dim, ...]
    groups: int = 1
    height: Dim = 1
    width: Dim
    filters: Dim
    """Channels of the result per group."""
    taps: tuple[int, int, Dim]
    """Rows of the window, columns of the window, and length of the contiguous run in elements."""
    a: GemmStrides
    """Strides of the first factor."""
    a_start: Dim = 0
    """Offset in elements from the first factor's element (0, …, 0) to the first pixel's first
    tap."""
    a_taps: tuple[Dim, Dim, Dim]
    """Strides of the first factor along tap rows, tap columns and the run, in elements."""
    b_images: tuple[Dim, ...]
    """Number of packed matrices from one image to the next along each axis; 0 for weights."""
    out: GemmStrides
    extras: tuple[GemmStrides, ...] = ()
    """Strides of the epilogue's extra operands."""
    epilogue: Epilogue = field(default_factory=Epilogue)
    has_bias: bool = False
    """Whether the sums start from a packed bias."""
    alpha: float = 1.0
    """Factor applied to the sum before the epilogue."""
    has_uniform_panels: bool = False
    """Whether panels are packed at run time, all of one width."""
    window_column_elements: int = 0
    """Elements of a run within one column of the window, if the run continues in the next
    columns; else 0."""

    @property
    def operand_strides(self) -> tuple[GemmStrides, ...]:
        """Strides of every operand that advances with the result's coordinates."""
        return (self.a, self.out, *self.extras)

    def map_strides(self, change: Callable[[GemmStrides], GemmStrides]) -> ImplicitGemm:
        """Return the product with ``change`` applied to the strides of every operand."""
        return replace(
            self, a=change(self.a), out=change(self.out), extras=tuple(map(change, self.extras))
        )

    def flattened(self) -> ImplicitGemm:
        """Return the same product with adjacent axes merged where their memory is contiguous.

        Fewer, longer rows leave less work in partial tiles. A 1x1 convolution of an image without
        gaps becomes one row, and images whose rows are contiguous become one longer row.
        """
        product = self._without_units()
        one_tap = self.taps[:2] == (1, 1) and product.height != 1
        if one_tap and all(w.row == product.width * w.column for w in product.operand_strides):
            product = replace(product, height=1, width=product.height * product.width)
            product = product.map_strides(lambda w: replace(w, row=0))
        while product._images_are_rows():
            product = product._with_image_as_row()
        return product

    def _without_units(self) -> ImplicitGemm:
        """Drop image axes of extent 1, and zero the strides of rows and columns of extent 1."""
        kept_axes = [i for i, extent in enumerate(self.images) if extent != 1]

        def change(w: GemmStrides) -> GemmStrides:
            return replace(
                w,
                images=tuple(w.images[i] for i in kept_axes),
                row=0 if self.height == 1 else w.row,
                column=0 if self.width == 1 else w.column,
            )

        images, b_images = (
            tuple(dims[i] for i in kept_axes) for dims in (self.images, self.b_images)
        )
        return replace(self, images=images, b_images=b_images).map_strides(change)

    def _images_are_rows(self) -> bool:
        """Return whether the last image axis can be merged into the row of pixels."""
        if not self.images or self.height != 1 or self.b_images[-1] != 0 or self.taps[:2] != (1, 1):
            return False
        if self.width == 1:
            return True
        is_known = isinstance(self.images[-1], int)
        return is_known and all(w.images[-1] == self.width * w.column for w in self.operand_strides)

    def _with_image_as_row(self) -> ImplicitGemm:
        """Return the product with the last image axis merged into the row of pixels."""
        single = self.width == 1
        product = self.map_strides(
            lambda w: replace(w, images=w.images[:-1], column=w.images[-1] if single else w.column)
        )
        *images, last = self.images
        b_images, width = self.b_images[:-1], self.width * last
        return replace(product, images=tuple(images), b_images=b_images, width=width)

    @property
    def problem(self) -> TilingProblem:
        """Extents that determine the choice of tiles."""
        images: int | None = 1
        for extent in self.images:
            images = images * extent if images is not None and isinstance(extent, int) else None
        return TilingProblem(
            images,
            self.groups,
            static_extent(self.height),
            static_extent(self.width),
            static_extent(self.filters) or _GUESSED_EXTENT,
            max(1, self.taps[0] * self.taps[1]) * (static_extent(self.taps[2]) or _GUESSED_EXTENT),
        )

    def launch(self, family: str, options: Parameters, views: tuple[View, ...]) -> Launch:
        """Return the launch for the options of a tactic.

        Args:
            family: name of the family that generates the kernel.
            options: the tactic's parameters.
            views: the kernel's operands in order.
        """
        product = self.flattened()
        scalars = LaunchScalars()
        panels = product.panels(TypedParameters(options), views, scalars)
        chunks: Dim = self.groups
        for extent in (*product.images, *product._counts(panels)):
            chunks = chunks * extent
        spec, scratch = panels.spec(family), panels.scratch_bytes
        return Launch(spec, views, (len(views) - 1,), scalars.values, chunks, scratch)

    def _counts(self, panels: MicrokernelSpec) -> tuple[Dim, Dim, Dim]:
        """Return the number of chunks along panels, along rows and along columns of tiles."""
        tile, blocks = panels.tile, panels.blocks
        return (
            ceil_div(self.filters, panels.panel_width * blocks[2]),
            ceil_div(self.height, tile[0] * blocks[0]),
            ceil_div(self.width, tile[1] * blocks[1]),
        )

    def panels(
        self, options: TypedParameters, views: Sequence[View], scalars: LaunchScalars
    ) -> MicrokernelSpec:
        """Return the microkernel's spec for the options of a tactic.

        Strides and extents that are symbolic are added to ``scalars``.
        """
        lanes, vectors = options.integer("lanes"), options.integer("vectors")
        problem, dot_product = self.problem, options.text("dot_product", "float32")
        tile = choose_tile(problem, options.integer("pixels"), vectors)
        blocks = choose_blocks(problem, tile, vectors, lanes, options.text("parallel_split"))
        is_known = problem.height is not None and problem.width is not None
        extra_views = zip(self.extras, views[len(views) - 1 - len(self.extras) : -1], strict=True)
        panels = MicrokernelSpec(
            images=scalars.all_json(self.images),
            groups=self.groups,
            height=scalars.json(self.height),
            width=scalars.json(self.width),
            filters=scalars.json(self.filters),
            lanes=lanes,
            vectors=vectors,
            tile=tile,
            taps=(*self.taps[:2], scalars.json(self.taps[2])),
            blocks=_clamp_blocks(problem, tile, blocks),
            counts=(0, 0, 0),
            across=scalars.json(ceil_div(self.width, tile[1])),
            reduction_passes=options.integer("reduction_passes", 1) if is_known else 1,
            unroll=_unroll(DOT_PRODUCTS[dot_product].words(self.taps[2])),
            a=_strides(self.a, views[0], scalars),
            a_start=scalars.json(self.a_start),
            a_taps=cast("tuple[int, int, int]", scalars.all_json(self.a_taps)),
            b_images=scalars.all_json(self.b_images),
            out=_strides(self.out, views[-1], scalars),
            extras=tuple(_strides(w, v, scalars) for w, v in extra_views),
            dot_product=dot_product,
            bias=self.has_bias,
            alpha=self.alpha,
            epilogue=self.epilogue.as_json(),
            has_uniform_panels=self.has_uniform_panels,
            window_column_elements=self.window_column_elements,
        )
        down, rows, columns = scalars.all_json(self._counts(panels))
        counted = replace(panels, counts=(down, rows, columns))
        return replace(counted, prefetch=prefetch_bytes(counted))


def _strides(walk: GemmStrides, view: View, scalars: LaunchScalars) -> Json:
    """Return the strides of an operand and its element type as a JSON value."""
    numbers = (walk.group, walk.row, walk.column, walk.channel)
    return (scalars.all_json(walk.images), *scalars.all_json(numbers), view.dtype.value)


def _clamp_blocks(
    problem: TilingProblem, tile: tuple[int, int], blocks: tuple[int, int, int]
) -> tuple[int, int, int]:
    """Return blocks that do not exceed the number of tiles, as far as that is known."""
    rows, columns, panels = blocks
    if problem.height is not None:
        rows = max(1, min(rows, -(-problem.height // tile[0])))
    if problem.width is not None:
        columns = max(1, min(columns, -(-problem.width // tile[1])))
    return rows, columns, panels


def _unroll(words: Dim) -> int:
    """Return how many words of the run the innermost loop handles per iteration.

    A divisor of the run's length is preferred, so that no words remain after the loop.
    """
    word_count = words if isinstance(words, int) else 4
    return next((u for u in (4, 3, 5, 7) if word_count % u == 0), 4)


def prefetch_bytes(panels: MicrokernelSpec) -> int:
    """Return how many bytes of the next panel each step of the sum prefetches.

    The tiles of a panel together prefetch the whole next panel. Weights are cold, because a network
    streams more of them than the caches hold; small weights are not worth the instructions. The
    result is 0 if nothing is prefetched.
    """
    height, width, filters = panels.height, panels.width, panels.filters
    if not isinstance(height, int) or not isinstance(width, int) or not isinstance(filters, int):
        return 0
    depth = panels.steps * panels.step
    if (
        panels.has_uniform_panels
        or _packed_matrix_count(panels) * depth * filters * WORD_BYTES < _COLD_WEIGHTS_BYTES
    ):
        return 0
    rows, columns = -(-height // panels.tile[0]), -(-width // panels.tile[1])
    if panels.counts[0] == 1:
        rows, columns = min(rows, panels.blocks[0]), min(columns, panels.blocks[1])
    steps = rows * columns * panels.steps  # 0 for an empty batch
    return -(-depth * panels.panel_width * WORD_BYTES // steps) if steps else 0


def _packed_matrix_count(panels: MicrokernelSpec) -> int:
    """Return the number of packed matrices; unknown extents count as 1."""
    count = panels.groups
    for extent, stride in zip(panels.images, panels.b_images, strict=True):
        if isinstance(extent, int) and stride != 0:
            count *= extent
    return count
