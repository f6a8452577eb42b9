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
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np

from smelt.backends._base import Refusal, Tactic
from smelt.backends._fused_programs import root_of
from smelt.backends.cuda._kernel_source import VECTOR
from smelt.backends.cuda._product_costs import register_operand_seconds
from smelt.backends.cuda._product_schedules import TileConfig
from smelt.backends.cuda._register_operand_kernel import FRAGMENT, ROWS, RegisterOperandWriter
from smelt.backends.cuda.families._conv_problem import ConvLowering
from smelt.backends.cuda.families._gemm_operands import wide_operand_reason
from smelt.backends.cuda.families._stem_problem import StemProblem
from smelt.backends.cuda.families.stem import StemFamily
from smelt.ir import Constant
from smelt.ops import Conv, Pad, Reshape, Transpose
from smelt.types import fixed_extent, override

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    def tactics(self, node: Node, target: CudaTarget) -> Iterator[Tactic | Refusal]:
        if not isinstance(root_of(node)[0], Conv) or (problem := StemProblem(node)).stem_reason:
            return  # the plain family yields the refusal
        if reason := why_not_direct(problem, target):
            yield Refusal(self.name, reason)
            return
        plain = [t for t in super().tactics(node, target) if isinstance(t, Tactic)]
        if not plain:
            return
        min_hint = (
            0.0
            if target.has_fitted_cost_model
            else _UNFITTED_PENALTY * min(t.cost_hint for t in plain)
        )
        for config, seconds in _configs(problem, target):
            hint = max(seconds, min_hint)
            yield replace(plain[0], family=self.name, parameters=config.parameters, cost_hint=hint)

    @override
    def pack_filters(self, problem: StemProblem) -> Constant:
        return _pack_fragments(problem.widened(), problem.root)

    @override
    def generate(self, kernel: KernelSpec, target: CudaTarget) -> str:
        del target
        return RegisterOperandWriter(kernel).write()

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
            programs=max(1, programs * bn // shape.columns),
            schedule="register_operand",
        )
        seconds = register_operand_seconds(shape, length, tiles, target, is_full=count == most)
        yield config, seconds


def why_not_direct(problem: StemProblem, target: CudaTarget) -> str | None:
    """Return why a stem cannot read pixels from registers, or None."""
    if reason := wide_operand_reason(target.operand_dtype(problem.dtype)):
        return reason
    if target.capability < _FIRST_WITH_WGMMA:
        return f"{target.architecture} has no tensor cores that read one operand from shared memory"
    if not isinstance(problem.padded_shape[-2], int):
        return "the image width is symbolic"
    if all(problem.filter_shape[0] % columns for columns in COLUMNS):
        return "the filter count is not a multiple of the tile"
    if (length := window_length(problem)) > _MAX_WINDOW_ELEMENTS:
        return f"windows of {length} elements do not fit into registers"
    return None


def window_length(problem: StemProblem) -> int:
    """Return the elements of a window as read, padded to whole fragments."""
    rows = prod(problem.root.kernel_shape[:-1])
    return _round_up(rows * in_vectors(problem.run), FRAGMENT)


def in_vectors(run: int) -> int:
    """Return the elements of a window's row as read, padded to whole vectors."""
    return _round_up(run, VECTOR)


def _round_up(count: int, unit: int) -> int:
    """Return a count rounded up to a multiple of a unit."""
    return -(-count // unit) * unit


def _pack_fragments(wide: Constant, root: Conv) -> Constant:
    """Return the filters in the order in which threads hold a window's elements.

    Of 32 neighbours, thread ``q`` of four loads eight: ``(q, step, half, two)``. Tensor cores read
    them as ``(step, half, q, two)``.
    """
    name, (filters, *_) = wide.name, wide.type.shape
    order = (0, *range(2, wide.type.rank), 1)
    rows = prod(root.kernel_shape[:-1])

    def reshape(source: Constant, label: str, *shape: Any) -> Constant:
        extents = Constant(f"{name}.{label}_extents", np.array(shape, np.int64))
        return Constant.derive(f"{name}.{label}", Reshape(), source, extents)

    def pad_last_axis(source: Constant, label: str, unit: int) -> Constant:
        length = fixed_extent(source.type.shape[-1])
        after = np.zeros(2 * source.type.rank, np.int64)
        after[-1] = _round_up(length, unit) - length
        if not after[-1]:
            return source
        amounts = Constant(f"{name}.{label}_amounts", after)
        return Constant.derive(f"{name}.{label}", Pad(), source, amounts)

    packed = Constant.derive(f"{name}.taps_first", Transpose(order), wide)
    packed = pad_last_axis(reshape(packed, "rows", filters, rows, -1), "vectors", VECTOR)
    packed = pad_last_axis(reshape(packed, "windows", filters, -1), "wholes", FRAGMENT)
    packed = reshape(packed, "read", filters, -1, 4, 2, 2, 2)
    packed = Constant.derive(f"{name}.taken", Transpose((0, 1, 3, 4, 2, 5)), packed)
    return reshape(packed, "fragments", filters, -1)
