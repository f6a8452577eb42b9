"""From views to the launch of a panel kernel: the lowering of convolution and matrix product."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, cast

from smelt.backends._launch_scalars import LaunchScalars
from smelt.backends.cpu.families._dot_product import DOT_PRODUCTS, WORD_BYTES
from smelt.backends.cpu.families._microkernel_spec import MicrokernelSpec, OperandStrides
from smelt.backends.cpu.families._tiling import (
    TilingProblem,
    choose_blocks,
    choose_tile,
    static_extent,
)
from smelt.engine import Launch, Options
from smelt.types import ceil_div

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from smelt.backends.cpu._epilogue import Epilogue
    from smelt.engine import Json, Parameters, View
    from smelt.types import Dim

_COLD_WEIGHTS_BYTES: Final = 192 << 10
"""Weights from this size on are asked for ahead of time."""
_GUESSED_EXTENT: Final = 128
"""What an extent known only at run time is taken for when tiles are chosen."""


@dataclass(frozen=True, slots=True)
class GemmStrides:
    """Strides of one operand, in elements, along the coordinates of the result."""

    images: tuple[Dim, ...]
    group: Dim
    row: Dim
    column: Dim
    channel: Dim = 1


@dataclass(frozen=True, slots=True)
class ImplicitGemm:
    """A sum over packed panels, with extents and strides that may be symbolic."""

    images: tuple[Dim, ...]
    groups: int
    height: Dim
    width: Dim
    filters: Dim
    taps: tuple[int, int, Dim]
    a: GemmStrides
    a_start: Dim
    """From the first factor's element (0, …, 0) to the first tap of the first pixel."""
    a_taps: tuple[Dim, Dim, Dim]
    b_images: tuple[Dim, ...]
    """Packed matrices from one image to the next."""
    out: GemmStrides
    extras: tuple[GemmStrides, ...]
    epilogue: Epilogue
    bias: bool
    alpha: float = 1.0
    has_uniform_panels: bool = False
    """Whether panels are packed at run time, all of one width."""
    column_run: int = 0
    """Elements of a run that lie in one column, if it goes on in the columns after it; else 0."""

    @property
    def operand_strides(self) -> tuple[GemmStrides, ...]:
        """The walks of everything that moves with the result."""
        return (self.a, self.out, *self.extras)

    def map_strides(self, change: Callable[[GemmStrides], GemmStrides]) -> ImplicitGemm:
        """The product with every walk changed."""
        return replace(
            self,
            a=change(self.a),
            out=change(self.out),
            extras=tuple(map(change, self.extras)),
        )

    def flattened(self) -> ImplicitGemm:
        """The same product with axes merged that lie in memory like one."""
        made = self._without_units()
        one_tap = self.taps[:2] == (1, 1) and made.height != 1
        if one_tap and all(w.row == made.width * w.column for w in made.operand_strides):
            made = replace(made, height=1, width=made.height * made.width)
            made = made.map_strides(lambda w: replace(w, row=0))
        while made._images_are_rows():
            made = made._with_image_as_row()
        return made

    def _without_units(self) -> ImplicitGemm:
        kept = [i for i, extent in enumerate(self.images) if extent != 1]

        def change(w: GemmStrides) -> GemmStrides:
            return replace(
                w,
                images=tuple(w.images[i] for i in kept),
                row=0 if self.height == 1 else w.row,
                column=0 if self.width == 1 else w.column,
            )

        made = replace(
            self,
            images=tuple(self.images[i] for i in kept),
            b_images=tuple(self.b_images[i] for i in kept),
        )
        return made.map_strides(change)

    def _images_are_rows(self) -> bool:
        if not self.images or self.height != 1 or self.b_images[-1] != 0 or self.taps[:2] != (1, 1):
            return False
        if self.width == 1:
            return True
        known = isinstance(self.images[-1], int)
        return known and all(w.images[-1] == self.width * w.column for w in self.operand_strides)

    def _with_image_as_row(self) -> ImplicitGemm:
        single = self.width == 1
        made = self.map_strides(
            lambda w: replace(w, images=w.images[:-1], column=w.images[-1] if single else w.column)
        )
        return replace(
            made,
            images=self.images[:-1],
            b_images=self.b_images[:-1],
            width=self.width * self.images[-1],
        )

    @property
    def problem(self) -> TilingProblem:
        """What the choice of tiles depends on."""
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
        """The launch, for a tactic's options; ``views`` are the kernel's operands in order."""
        product = self.flattened()
        scalars = LaunchScalars()
        panels = product.panels(Options(options), views, scalars)
        chunks: Dim = self.groups
        for extent in (*product.images, *product._counts(panels)):
            chunks = chunks * extent
        return Launch(
            panels.spec(family),
            views,
            (len(views) - 1,),
            scalars.values,
            chunks,
            scratch_bytes=panels.scratch_bytes,
        )

    def _counts(self, panels: MicrokernelSpec) -> tuple[Dim, Dim, Dim]:
        """Blocks of panels, of rows and of columns of tiles."""
        tile, blocks = panels.tile, panels.blocks
        return (
            ceil_div(self.filters, panels.panel_width * blocks[2]),
            ceil_div(self.height, tile[0] * blocks[0]),
            ceil_div(self.width, tile[1] * blocks[1]),
        )

    def panels(
        self, options: Options, views: Sequence[View], scalars: LaunchScalars
    ) -> MicrokernelSpec:
        """The kernel, for a tactic's options and the kernel's operands."""
        lanes, vectors = options.integer("lanes"), options.integer("vectors")
        problem, dot_product = self.problem, options.text("dot_product", "float32")
        tile = choose_tile(problem, options.integer("pixels"), vectors)
        cut = choose_blocks(problem, tile, vectors, lanes, options.text("parallel_split"))
        known = problem.height is not None and problem.width is not None
        read = zip(self.extras, views[len(views) - 1 - len(self.extras) : -1], strict=True)
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
            blocks=_clamp_blocks(problem, tile, cut),
            counts=(0, 0, 0),
            across=scalars.json(ceil_div(self.width, tile[1])),
            reduction_passes=options.integer("reduction_passes", 1) if known else 1,
            unroll=_unroll(DOT_PRODUCTS[dot_product].words(self.taps[2])),
            a=_strides(self.a, views[0], scalars),
            a_start=scalars.json(self.a_start),
            a_taps=cast("tuple[int, int, int]", scalars.all_json(self.a_taps)),
            b_images=scalars.all_json(self.b_images),
            out=_strides(self.out, views[-1], scalars),
            extras=tuple(_strides(w, v, scalars) for w, v in read),
            dot_product=dot_product,
            bias=self.bias,
            alpha=self.alpha,
            epilogue=self.epilogue.as_json(),
            has_uniform_panels=self.has_uniform_panels,
            column_run=self.column_run,
        )
        down, rows, columns = scalars.all_json(self._counts(panels))
        counted = replace(panels, counts=(down, rows, columns))
        return replace(counted, prefetch=prefetch_bytes(counted))


def _strides(walk: GemmStrides, view: View, scalars: LaunchScalars) -> Json:
    """How a kernel walks over a view."""
    images = scalars.all_json(walk.images)
    numbers = (walk.group, walk.row, walk.column, walk.channel)
    group, row, column, channel = scalars.all_json(numbers)
    return OperandStrides(images, group, row, column, channel, view.dtype).as_json()


def _clamp_blocks(
    problem: TilingProblem, tile: tuple[int, int], blocks: tuple[int, int, int]
) -> tuple[int, int, int]:
    """Blocks no larger than what there is, where that is known."""
    rows, columns, panels = blocks
    if problem.height is not None:
        rows = max(1, min(rows, -(-problem.height // tile[0])))
    if problem.width is not None:
        columns = max(1, min(columns, -(-problem.width // tile[1])))
    return rows, columns, panels


def _unroll(words: Dim) -> int:
    """Steps of the sum written out: such that none is left over, if that can be."""
    known = words if isinstance(words, int) else 4
    return next((u for u in (4, 3, 5, 7) if known % u == 0), 4)


def prefetch_bytes(panels: MicrokernelSpec) -> int:
    """What each step of the sum asks for of the next panel, such that the tiles ask for all of it.

    Weights are cold: a network streams more of them than the caches hold. Small ones are not
    worth it.
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
    steps = rows * columns * panels.steps  # none at all where a batch is empty
    return -(-depth * panels.panel_width * WORD_BYTES // steps) if steps else 0


def _packed_matrix_count(panels: MicrokernelSpec) -> int:
    """How many packed matrices there are, as far as it is known."""
    count = panels.groups
    for extent, stride in zip(panels.images, panels.b_images, strict=True):
        if isinstance(extent, int) and stride != 0:
            count *= extent
    return count
