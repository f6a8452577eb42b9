"""Launches of products: one, or for split-K one for the partial sums and one that adds them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from smelt.backends._iteration_space import Axis
from smelt.backends._launch_scalars import LaunchScalars
from smelt.backends._storage import packed_strides
from smelt.backends.cuda._index_limits import MAX_INT32
from smelt.engine import Launch, View
from smelt.errors import InternalError
from smelt.types import DType, Layout, ceil_div, element_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.backends.cuda._product_specs import ImplicitGemmKernel
    from smelt.backends.cuda.families._product_problem import ProductLowering
    from smelt.types import Dim

_REDUCE_ELEMENTS: Final = 512
"""Elements of the result per program of the launch that adds partial sums. Chosen without a
measurement."""
_REDUCE_COLUMNS: Final = 64
"""Columns of the result per program of that launch. Chosen without a measurement."""


@dataclass(frozen=True, slots=True)
class GemmIterationSpace:
    """Result as a matrix: its axes, with a stride for every operand, the result's last."""

    rows: tuple[Axis, ...]
    windows: tuple[int, ...]
    """For each row axis, the window axis that moves along it, or -1."""
    columns: Axis
    matrices: Dim = 1
    """Number of products in the batch."""

    @property
    def row_count(self) -> Dim:
        """Number of rows of the matrix."""
        return element_count(tuple(axis.extent for axis in self.rows))


def launches_of(lowering: ProductLowering) -> tuple[Launch, ...]:
    """Return the launches of a product."""
    kernel, iteration_space = lowering.kernel(), lowering.iteration_space()
    family, views, scalars = lowering.tactic.family, lowering.views, lowering.scalars
    if kernel.split_k == 1:
        return (launch_of(family, kernel, iteration_space, views, scalars),)
    workspace = lowering.workspace
    if workspace is None:
        raise InternalError(f"a split-K GEMM with {kernel.split_k} splits has no workspace")
    columns = iteration_space.columns.extent
    shape = (kernel.split_k, iteration_space.row_count, columns)
    strides = linear_strides(shape)
    partials = View(workspace.buffer, workspace.offset, DType.FLOAT32, shape, strides)
    reduce_scalars, stride, count = LaunchScalars(), strides[0], kernel.factors
    partial_kernel = dataclasses.replace(
        kernel,
        bias=False,
        alpha=1.0,
        stages=(),
        prefetches_epilogue=False,
        constants=(*kernel.constants[:count], False),
        split_k_stride=scalars.json(stride),
    )
    reduce_kernel = dataclasses.replace(
        _reduction_of(kernel), split_k_stride=reduce_scalars.json(stride)
    )
    first, second = _split_k_spaces(iteration_space, count)
    operands, extras = [*views[:count], partials], [partials, *views[count:]]
    return (
        launch_of(family, partial_kernel, first, operands, scalars),
        launch_of(family, reduce_kernel, second, extras, reduce_scalars),
    )


def _reduction_of(kernel: ImplicitGemmKernel) -> ImplicitGemmKernel:
    """Return the kernel that adds the partial sums of a product."""
    return dataclasses.replace(
        kernel,
        schedule="split_k_reduce",
        factors=1,
        second_image_channels=0,
        windows=(),
        start=0,
        run=0,
        inner_k_strides=(0, 0),
        prefetches_weights=False,
        prefetches_epilogue=True,
        constants=(False, *kernel.constants[kernel.factors :]),
        split_k=1,
        split_k_partials=kernel.split_k,
        tile=(_REDUCE_ELEMENTS // _REDUCE_COLUMNS, _REDUCE_COLUMNS, 1),
        num_warps=4,
        num_stages=1,
    )


def _split_k_spaces(
    iteration_space: GemmIterationSpace, factors: int
) -> tuple[GemmIterationSpace, GemmIterationSpace]:
    """Return the spaces of the partial sums and of their addition; partial sums are contiguous."""
    columns, rows = iteration_space.columns, iteration_space.rows
    *steps, _ = linear_strides((*(axis.extent for axis in rows), columns.extent))
    pairs = list(zip(rows, steps, strict=True))
    partial_space = GemmIterationSpace(
        tuple(Axis(axis.extent, (*axis.strides[:factors], step)) for axis, step in pairs),
        iteration_space.windows,
        Axis(columns.extent, (*columns.strides[:factors], 1)),
    )
    reduce_space = GemmIterationSpace(
        tuple(Axis(axis.extent, (step, *axis.strides[factors:])) for axis, step in pairs),
        (-1,) * len(iteration_space.rows),
        Axis(columns.extent, (1, *columns.strides[factors:])),
    )
    return partial_space, reduce_space


def launch_of(
    family: str,
    kernel: ImplicitGemmKernel,
    iteration_space: GemmIterationSpace,
    views: Sequence[View],
    scalars: LaunchScalars,
) -> Launch:
    """Return a launch of the kernel, which still lacks rows and columns, on its operands."""
    columns = iteration_space.columns
    kernel = dataclasses.replace(
        kernel,
        rows=tuple(
            (*scalars.all_json((axis.extent, *axis.strides)), window)
            for axis, window in zip(iteration_space.rows, iteration_space.windows, strict=True)
        ),
        columns=scalars.all_json((columns.extent, *columns.strides)),
        uses_int64_offsets=tuple(map(needs_int64_offsets, views)),
    )
    row_programs = kernel.row_programs or ceil_div(iteration_space.row_count, kernel.tile[0])
    column_programs = ceil_div(columns.extent, kernel.tile[1])
    chunks = iteration_space.matrices * kernel.split_k * column_programs * row_programs
    spec = kernel.spec(family, views, len(scalars.values))
    return Launch(spec, tuple(views), (len(views) - 1,), scalars.values, chunks)


def linear_strides(shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """Return the strides of contiguous elements, the last axis innermost."""
    return packed_strides(shape, Layout.LINEAR)[0]


def needs_int64_offsets(view: View) -> bool:
    """Return whether offsets within a view may exceed 32 bits."""
    reach: Dim = 0
    for extent, stride in zip(view.shape, view.strides, strict=True):
        reach = reach + (extent - 1) * stride
    return not (isinstance(reach, int) and abs(reach) <= MAX_INT32)
