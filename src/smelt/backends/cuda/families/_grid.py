"""From a product on the memory of its operands to launches: one, or pieces and what adds them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from smelt.backends._axes import Axis
from smelt.backends._scalars import Scalars
from smelt.backends.cuda._product import ProductKernel
from smelt.backends.cuda._reach import FARTHEST
from smelt.backends.cuda._source import operand_parameters
from smelt.engine import Launch, View
from smelt.errors import InternalError
from smelt.types import DType, ceil_div, element_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.engine import Json
    from smelt.types import Dim

_ADDED_ELEMENTS: Final = 512
"""Elements of the result that a program adds the pieces of."""
_ADDED_COLUMNS: Final = 64
SUM_BYTES: Final = DType.FLOAT32.size_bytes
KernelT = TypeVar("KernelT", bound=ProductKernel)


@dataclass(frozen=True, slots=True)
class Grid:
    """The result as a matrix: its axes, with a stride for every operand, the result's last."""

    rows: tuple[Axis, ...]
    windows: tuple[int, ...]
    """For each axis of the rows, the axis of the window that moves along it, or -1."""
    columns: Axis
    matrices: Dim = 1
    """Products of one shape beside each other."""

    @property
    def places(self) -> Dim:
        """Rows of the matrix."""
        return element_count(tuple(axis.extent for axis in self.rows))


def launches_of(
    family: str,
    kernel: ProductKernel,
    grid: Grid,
    views: Sequence[View],
    scalars: Scalars,
    workspace: View | None = None,
) -> tuple[Launch, ...]:
    """The launches of a product; ``kernel`` lacks its rows, its columns and its operands."""
    if kernel.pieces == 1:
        return (_launch(family, kernel, grid, views, scalars),)
    if workspace is None:
        raise InternalError(f"a product of {kernel.pieces} pieces has no workspace")
    columns = grid.columns.extent
    sums = View(
        workspace.buffer,
        workspace.offset,
        DType.FLOAT32,
        (kernel.pieces, grid.places, columns),
        (grid.places * columns, columns, 1),
    )
    others = Scalars()
    parts, adding = _sum_pieces(kernel, scalars.json(sums.strides[0]))
    adding = dataclasses.replace(adding, piece_stride=others.json(sums.strides[0]))
    first, second = _two_grids(grid, kernel.factors)
    return (
        _launch(family, parts, first, [*views[: kernel.factors], sums], scalars),
        _launch(family, adding, second, [sums, *views[kernel.factors :]], others),
    )


def _sum_pieces(kernel: ProductKernel, stride: Json) -> tuple[ProductKernel, ProductKernel]:
    """The kernel of the pieces, and the one that adds them."""
    parts = dataclasses.replace(
        kernel,
        bias=False,
        alpha=1.0,
        stages=(),
        early=False,
        constants=(*kernel.constants[: kernel.factors], False),
        piece_stride=stride,
    )
    adding = dataclasses.replace(
        kernel,
        sums="pieces",
        factors=1,
        second_run=0,
        windows=(),
        start=0,
        run=0,
        run_strides=(0, 0),
        asks=False,
        early=True,
        constants=(False, *kernel.constants[kernel.factors :]),
        pieces=1,
        added=kernel.pieces,
        tile=(_ADDED_ELEMENTS // _ADDED_COLUMNS, _ADDED_COLUMNS, 1),
        warps=4,
        pipeline=1,
    )
    return parts, adding


def _two_grids(grid: Grid, factors: int) -> tuple[Grid, Grid]:
    """The result as the pieces write it, and as what adds them does: sums lie in one stretch."""
    steps: list[Dim] = []
    step = grid.columns.extent
    for axis in reversed(grid.rows):
        steps.insert(0, step)
        step = step * axis.extent
    pairs = list(zip(grid.rows, steps, strict=True))
    columns = grid.columns
    written = Grid(
        tuple(Axis(axis.extent, (*axis.strides[:factors], step)) for axis, step in pairs),
        grid.windows,
        Axis(columns.extent, (*columns.strides[:factors], 1)),
    )
    added = Grid(
        tuple(Axis(axis.extent, (step, *axis.strides[factors:])) for axis, step in pairs),
        (-1,) * len(grid.rows),
        Axis(columns.extent, (1, *columns.strides[factors:])),
    )
    return written, added


def _launch(
    family: str, kernel: ProductKernel, grid: Grid, views: Sequence[View], scalars: Scalars
) -> Launch:
    bm, bn, _ = kernel.tile
    kernel = kernel_on(kernel, grid, views, scalars)
    down = kernel.programs or ceil_div(grid.places, bm)
    chunks = grid.matrices * kernel.pieces * ceil_div(grid.columns.extent, bn) * down
    return Launch(kernel.spec(family), tuple(views), (len(views) - 1,), scalars.values, chunks)


def kernel_on(kernel: KernelT, grid: Grid, views: Sequence[View], scalars: Scalars) -> KernelT:
    """The kernel with its rows, its columns and its operands."""
    kernel = dataclasses.replace(
        kernel,
        rows=tuple(
            (*scalars.all_json((axis.extent, *axis.strides)), window)
            for axis, window in zip(grid.rows, grid.windows, strict=True)
        ),
        columns=scalars.all_json((grid.columns.extent, *grid.columns.strides)),
        far=tuple(map(is_far, views)),
    )
    operands = tuple(operand_parameters(views, len(scalars.values)).items())
    return dataclasses.replace(kernel, operands=operands)


def is_far(view: View) -> bool:
    """Whether elements may lie further from the first than 32 bits count."""
    reach: Dim = 0
    for extent, stride in zip(view.shape, view.strides, strict=True):
        reach = reach + (extent - 1) * stride
    return not (isinstance(reach, int) and abs(reach) <= FARTHEST)
