"""Stem convolutions by persistent programs whose tensor cores read pixels from registers.

Windows of a stem overlap, so copying them to shared memory copies mostly the same pixels again, and
that copy limits the other stem kernels. Tensor cores also accept A in registers, if each thread
holds certain elements of certain windows: of every 32, two pairs of neighbours in each step. The
order of a reduction is free. So each thread loads eight neighbours, and the filters are packed in
the order that results.

A window's row may end within a vector. The elements past its end are zeroed in registers, because
zero times infinity is NaN.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, ClassVar, Final

from smelt.backends._base import Tactic, refuse_if
from smelt.backends._fused_programs import root_of
from smelt.backends.cuda._kernel_source import VECTOR
from smelt.backends.cuda._product_costs import register_operand_seconds
from smelt.backends.cuda._register_operand_kernel import FRAGMENT, ROWS, RegisterOperandWriter
from smelt.backends.cuda._tile_configs import TileConfig
from smelt.backends.cuda.families._conv_problem import ConvLowering, in_vectors
from smelt.backends.cuda.families._product_operands import (
    end_in_whole,
    reshaped,
    taps_first,
    wide_operand_reason,
)
from smelt.backends.cuda.families._stem_problem import StemProblem
from smelt.backends.cuda.families.stem import StemFamily
from smelt.ir import Constant
from smelt.ops import Conv, Transpose
from smelt.types import fixed_extent, override

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.backends.cuda._kernel_source import KernelWriter
    from smelt.backends.cuda._target import CudaTarget
    from smelt.engine import KernelSpec
    from smelt.ir import Node

COLUMNS: Final = (64, 32, 16)
"""Possible columns of a tile."""
_MAX_WINDOW_ELEMENTS: Final = 640
"""Maximum number of elements of a window, all of which the threads of a program hold at once.
Chosen without a measurement."""
_FIRST_WITH_WGMMA: Final = 90
"""Compute capability (times ten) from which products with A in registers and B in shared memory
exist."""
_REGISTERS: Final = 512
"""Registers of a multiprocessor per thread of a program of 128 threads."""
_UNFITTED_PENALTY: Final = 1.001
"""Factor on the plain family's estimate where the cost model is not fitted, so that these tactics
are not chosen without measurements."""
_OWN_REGISTERS: Final = 40
"""Registers of a thread besides a window's elements and the sums. No measurement is recorded."""


class _StemDirectLowering(ConvLowering):
    """Lowering whose filter columns are padded to whole fragments."""

    @property
    @override
    def column_length(self) -> int:
        return _round_up(prod(self.root.kernel_shape) * in_vectors(self.run), FRAGMENT)


class StemDirectFamily(StemFamily):
    """Family of 16-bit stems on GPUs with WGMMA."""

    name: ClassVar[str] = "stem_direct"
    lowering: ClassVar[type[ConvLowering]] = _StemDirectLowering

    @override
    def tactics(self, node: Node, target: CudaTarget) -> Iterator[Tactic]:
        if not isinstance(root_of(node)[0], Conv) or (problem := StemProblem(node)).stem_reason:
            return  # the plain family yields the refusal
        refuse_if(why_not_direct(problem, target))
        plain = list(super().tactics(node, target))
        if not plain:
            return
        min_hint = 0.0
        if not target.has_fitted_cost_model:
            min_hint = _UNFITTED_PENALTY * min(t.estimated_seconds for t in plain)
        for config, seconds in _configs(problem, target):
            hint = max(seconds, min_hint)
            yield replace(
                plain[0], family=self.name, parameters=config.parameters, estimated_seconds=hint
            )

    @override
    def pack_filters(self, problem: StemProblem) -> Constant:
        return _pack_fragments(problem.widened(), problem.root)

    @override
    def writer_of(self, kernel: KernelSpec) -> type[KernelWriter]:
        return RegisterOperandWriter

    @override
    def run_read(self, run: int) -> int:
        return in_vectors(run)


def _configs(problem: StemProblem, target: CudaTarget) -> Iterator[tuple[TileConfig, float]]:
    """Yield as many programs as fit and one fewer per multiprocessor, with estimated seconds."""
    shape, length = problem.shape(target), window_length(problem)
    bn = next(n for n in COLUMNS if shape.columns % n == 0)
    tiles = -(-shape.rows // ROWS) * (shape.columns // bn)
    most = _REGISTERS // (_OWN_REGISTERS + length // 4 + bn // 2)
    counts = {min(tiles, target.multiprocessors * max(1, n)): n for n in (most - 1, most)}
    for programs, count in counts.items():
        config = TileConfig(
            (ROWS, bn, FRAGMENT),
            num_warps=4,
            num_stages=1,
            row_programs=max(1, programs * bn // shape.columns),
            schedule="register_operand",
        )
        seconds = register_operand_seconds(
            shape, length, tiles, target, has_full_occupancy=count == most
        )
        yield config, seconds


def why_not_direct(problem: StemProblem, target: CudaTarget) -> str | None:
    """Return why a stem cannot read pixels from registers, or None."""
    if reason := wide_operand_reason(target.operand_dtype(problem.dtype)):
        return reason
    if target.capability < _FIRST_WITH_WGMMA:
        return (
            f"{target.architecture} has no tensor cores that read an operand from shared memory "
            "(WGMMA)"
        )
    if not isinstance(problem.padded_shape[-2], int):
        return "the image width is symbolic"
    if all(problem.filter_shape[0] % columns for columns in COLUMNS):
        return f"the filter count {problem.filter_shape[0]} is not a multiple of {min(COLUMNS)}"
    if (length := window_length(problem)) > _MAX_WINDOW_ELEMENTS:
        return (
            f"the window has {length} elements; at most {_MAX_WINDOW_ELEMENTS} fit into registers"
        )
    return None


def window_length(problem: StemProblem) -> int:
    """Return the elements of a window as read, padded to whole fragments."""
    rows = prod(problem.root.kernel_shape[:-1])
    return _round_up(rows * in_vectors(problem.run), FRAGMENT)


def _round_up(count: int, unit: int) -> int:
    """Return a count rounded up to a multiple of a unit."""
    return -(-count // unit) * unit


def _pack_fragments(wide: Constant, root: Conv) -> Constant:
    """Return the filters in the order in which threads hold a window's elements.

    Of 32 neighbours, thread ``q`` of four loads eight: ``(q, step, half, two)``. Tensor cores read
    them as ``(step, half, q, two)``.
    """
    name, filters = wide.name, fixed_extent(wide.type.shape[0])
    rows = prod(root.kernel_shape[:-1])

    packed = reshaped(taps_first(wide), f"{name}.rows", filters, rows, -1)
    packed = end_in_whole(packed, f"{name}.vectors", VECTOR)
    packed = reshaped(packed, f"{name}.windows", filters, -1)
    packed = end_in_whole(packed, f"{name}.wholes", FRAGMENT)
    packed = reshaped(packed, f"{name}.read", filters, -1, 4, 2, 2, 2)
    packed = Constant.derive(f"{name}.taken", Transpose((0, 1, 3, 4, 2, 5)), packed)
    return reshaped(packed, f"{name}.fragments", filters, -1)
