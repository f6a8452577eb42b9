"""Launches of products: one, or for split-K one for the partial sums and one that adds them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from smelt.backends._iteration_space import Axis
from smelt.backends._launch_scalars import LaunchScalars
from smelt.backends.cuda._index_width import MAX_INT32
from smelt.backends.cuda._kernel_source import operand_parameters
from smelt.backends.cuda._product_kernels import ImplicitGemmKernel
from smelt.engine import Launch, View
from smelt.errors import InternalError
from smelt.types import DType, ceil_div, element_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.engine import Json
    from smelt.types import Dim

_REDUCE_ELEMENTS: Final = 512
"""Elements of the result per program of the launch that adds partial sums. Chosen without a
measurement."""
_REDUCE_COLUMNS: Final = 64
"""Columns of the result per program of that launch. Chosen without a measurement."""
KernelT = TypeVar("KernelT", bound=ImplicitGemmKernel)


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


def launches_of(
    family: str,
    kernel: ImplicitGemmKernel,
    iteration_space: GemmIterationSpace,
    views: Sequence[View],
    scalars: LaunchScalars,
    workspace: View | None = None,
) -> tuple[Launch, ...]:
    """Return the launches of a product; ``kernel`` still lacks rows, columns and operands."""
    if kernel.split_k == 1:
        return (_launch(family, kernel, iteration_space, views, scalars),)
    if workspace is None:
        raise InternalError(f"a split-K GEMM with {kernel.split_k} splits has no workspace")
    columns = iteration_space.columns.extent
    partials = View(
        workspace.buffer,
        workspace.offset,
        DType.FLOAT32,
        (kernel.split_k, iteration_space.row_count, columns),
        (iteration_space.row_count * columns, columns, 1),
    )
    reduce_scalars = LaunchScalars()
    partial_kernel, reduce_kernel = _split_k_kernels(kernel, scalars.json(partials.strides[0]))
    reduce_kernel = dataclasses.replace(
        reduce_kernel, split_k_stride=reduce_scalars.json(partials.strides[0])
    )
    first, second = _split_k_spaces(iteration_space, kernel.factors)
    return (
        _launch(family, partial_kernel, first, [*views[: kernel.factors], partials], scalars),
        _launch(
            family, reduce_kernel, second, [partials, *views[kernel.factors :]], reduce_scalars
        ),
    )


def _split_k_kernels(
    kernel: ImplicitGemmKernel, stride: Json
) -> tuple[ImplicitGemmKernel, ImplicitGemmKernel]:
    """Return the kernel of the partial sums, and the one that adds them."""
    parts = dataclasses.replace(
        kernel,
        bias=False,
        alpha=1.0,
        stages=(),
        prefetches_epilogue=False,
        constants=(*kernel.constants[: kernel.factors], False),
        split_k_stride=stride,
    )
    reduction = dataclasses.replace(
        kernel,
        schedule="split_k_reduce",
        factors=1,
        second_inner_k=0,
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
    return parts, reduction


def _split_k_spaces(
    iteration_space: GemmIterationSpace, factors: int
) -> tuple[GemmIterationSpace, GemmIterationSpace]:
    """Return the spaces of the partial sums and of their addition; partial sums are contiguous."""
    steps: list[Dim] = []
    step = iteration_space.columns.extent
    for axis in reversed(iteration_space.rows):
        steps.insert(0, step)
        step = step * axis.extent
    pairs = list(zip(iteration_space.rows, steps, strict=True))
    columns = iteration_space.columns
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


def _launch(
    family: str,
    kernel: ImplicitGemmKernel,
    iteration_space: GemmIterationSpace,
    views: Sequence[View],
    scalars: LaunchScalars,
) -> Launch:
    """Return a launch of the kernel on its operands."""
    bm, bn, _ = kernel.tile
    kernel = kernel_on(kernel, iteration_space, views, scalars)
    row_programs = kernel.programs or ceil_div(iteration_space.row_count, bm)
    chunks = (
        iteration_space.matrices
        * kernel.split_k
        * ceil_div(iteration_space.columns.extent, bn)
        * row_programs
    )
    return Launch(kernel.spec(family), tuple(views), (len(views) - 1,), scalars.values, chunks)


def kernel_on(
    kernel: KernelT,
    iteration_space: GemmIterationSpace,
    views: Sequence[View],
    scalars: LaunchScalars,
) -> KernelT:
    """Return the kernel with its rows, columns and operands."""
    kernel = dataclasses.replace(
        kernel,
        rows=tuple(
            (*scalars.all_json((axis.extent, *axis.strides)), window)
            for axis, window in zip(iteration_space.rows, iteration_space.windows, strict=True)
        ),
        columns=scalars.all_json(
            (iteration_space.columns.extent, *iteration_space.columns.strides)
        ),
        uses_int64_offsets=tuple(map(needs_int64_offsets, views)),
    )
    operands = tuple(operand_parameters(views, len(scalars.values)).items())
    return dataclasses.replace(kernel, operands=operands)


def needs_int64_offsets(view: View) -> bool:
    """Return whether offsets within a view may exceed 32 bits."""
    reach: Dim = 0
    for extent, stride in zip(view.shape, view.strides, strict=True):
        reach = reach + (extent - 1) * stride
    return not (isinstance(reach, int) and abs(reach) <= MAX_INT32)
