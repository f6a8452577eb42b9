"""The same by programs that stay, and read pixels the way that tensor cores take them.

A stem's windows overlap: what is copied into shared memory for tensor cores is mostly the same
pixels again and again, and that copy is what the other kernels wait for. Tensor cores also take
pixels from registers, if each thread has certain elements of certain windows: of every 32, two
times two neighbours. Which elements these are is for the sum to say: in any order it is the same
sum. So each thread reads eight neighbours, and the filters are packed in the order that this makes.

A window's row ends within a vector. What is behind it is set to zero where it lies, in registers:
zero times what is infinite is not a number.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil, prod
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np

from smelt.backends._base import Refusal, Tactic
from smelt.backends._fused_programs import root_as, root_of
from smelt.backends.cuda._cost_model import LAUNCH_SECONDS, pass_seconds
from smelt.backends.cuda._kernel_source import VECTOR
from smelt.backends.cuda._register_operand_kernel import FRAGMENT, ROWS, RegisterOperandWriter
from smelt.backends.cuda.families._gemm_operands import as_factor, why_wide
from smelt.backends.cuda.families.conv import ConvLowering, reason_against
from smelt.backends.cuda.families.stem import (
    StemFamily,
    factors_of,
    padded_shape,
    row_of,
    stem_shape,
    why_no_stem,
    widened,
)
from smelt.engine import parameters
from smelt.ir import Constant
from smelt.ops.conv import Conv
from smelt.ops.pad import Pad
from smelt.ops.reshape import Reshape
from smelt.ops.transpose import Transpose
from smelt.types import fixed_extent, override

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.backends.cuda._target import CudaTarget
    from smelt.backends.cuda.families._gemm_tiles import GemmShape
    from smelt.engine import KernelSpec
    from smelt.ir import Node

COLUMNS: Final = (64, 32, 16)
"""Of a tile."""
_MAX_DEEP: Final = 640
"""Elements of a window, all of which a program's threads hold at once."""
_FIRST_WITH_WGMMA: Final = 90
"""Capability from which on products of the first factor in registers and the other in shared
memory can be had."""
COPIED_BYTES: Final = 6
"""Of an element: read in four, written in two."""
_TILE_SECONDS: Final = 2.0e-7
_ELEMENT_SECONDS: Final = 1.8e-9
"""For each element of a window, of a tile that a multiprocessor does beside others."""
_REGISTERS: Final = 512
"""That programs of 128 threads share, for each thread."""
_FEWER_PROGRAMS_PENALTY: Final = 1.1
"""How much longer it takes with one program less."""
_UNFITTED_PENALTY: Final = 1.001
"""Than the plain family's where estimates were not fitted: they are not chosen without a clock."""
_OWN_REGISTERS: Final = 40
"""Beside a window's elements and sums."""


class _StemDirectLowering(ConvLowering):
    @override
    def column_length(self, total: int) -> int:
        rows = total // self.run
        return _whole(rows * in_vectors(self.run), FRAGMENT)


class StemDirectFamily(StemFamily):
    """Stems of 16 bits on Hopper and its like."""

    name: ClassVar[str] = "stem_direct"
    lowering: ClassVar[type[ConvLowering]] = _StemDirectLowering

    @override
    def tactics(self, node: Node, target: CudaTarget) -> Iterator[Tactic | Refusal]:
        root, _ = root_of(node)
        if not isinstance(root, Conv) or reason_against(node) or why_no_stem(node, root):
            return  # the plain family says why
        shape = stem_shape(node, root, target)
        if reason := why_not_direct(node, root, shape, target):
            yield Refusal(self.name, reason)
            return
        plain = [t for t in super().tactics(node, target) if isinstance(t, Tactic)]
        if not plain:
            return
        least = (
            0.0
            if target.has_fitted_cost_model
            else _UNFITTED_PENALTY * min(t.cost_hint for t in plain)
        )
        bn = next(n for n in COLUMNS if shape.columns % n == 0)
        length, most = window_length(node, root), target.multiprocessors
        tiles = -(-shape.rows // ROWS) * (shape.columns // bn)
        once = LAUNCH_SECONDS + pass_seconds(shape.image * COPIED_BYTES, target)
        busy = ceil(tiles / most) * (_TILE_SECONDS + length * _ELEMENT_SECONDS)
        programs_per_sm = _REGISTERS // (_OWN_REGISTERS + length // 4 + bn // 2)
        found = {
            min(tiles, most * max(1, count)): count
            for count in (programs_per_sm - 1, programs_per_sm)
        }
        for programs, count in found.items():
            options = parameters(
                tile=(ROWS, bn, FRAGMENT),
                num_warps=4,
                num_stages=1,
                precision="ieee",
                prefetches_epilogue=False,
                split_k=1,
                programs=max(1, programs * bn // shape.columns),
                schedule="register_operand",
            )
            seconds = once + busy * (1.0 if count == programs_per_sm else _FEWER_PROGRAMS_PENALTY)
            hint = max(seconds, least)
            yield replace(plain[0], family=self.name, parameters=options, cost_hint=hint)

    @override
    def pack(self, node: Node, tactic: Tactic) -> tuple[Constant, ...]:
        root = root_as(Conv, node)
        width, _ = row_of(node, root)
        return (as_factor(_pack_fragments(widened(node, width), root), factors_of(tactic), tactic),)

    @override
    def generate(self, kernel: KernelSpec, target: CudaTarget) -> str:
        del target
        return RegisterOperandWriter(kernel).write()

    @override
    def run_read(self, run: int) -> int:
        return in_vectors(run)


def why_not_direct(node: Node, root: Conv, shape: GemmShape, target: CudaTarget) -> str | None:
    """Why tensor cores do not take the pixels of a stem from registers, or None."""
    if reason := why_wide(shape.dtype):
        return reason
    if target.capability < _FIRST_WITH_WGMMA:
        return f"{target.architecture} has no tensor cores that read one operand from shared memory"
    if not isinstance(padded_shape(node, root)[-2], int):
        return "the image width is symbolic"
    if all(shape.columns % columns for columns in COLUMNS):
        return "the filter count is not a multiple of the tile"
    if (length := window_length(node, root)) > _MAX_DEEP:
        return f"windows of {length} elements do not fit into registers"
    return None


def window_length(node: Node, root: Conv) -> int:
    """Elements of a window as they are read."""
    _, run = row_of(node, root)
    return _whole(prod(root.kernel_shape[:-1]) * in_vectors(run), FRAGMENT)


def in_vectors(run: int) -> int:
    """Elements of a window's row as they are read."""
    return _whole(run, VECTOR)


def _whole(count: int, unit: int) -> int:
    return -(-count // unit) * unit


def _pack_fragments(wide: Constant, root: Conv) -> Constant:
    """Filters in the order in which threads have a window's elements.

    Of 32 neighbours, thread ``q`` of four reads eight: ``(q, step, half, two)``. Tensor cores take
    them as ``(step, half, q, two)``.
    """
    name, (filters, *_) = wide.name, wide.type.shape
    order = (0, *range(2, wide.type.rank), 1)
    rows = prod(root.kernel_shape[:-1])

    def shaped(source: Constant, what: str, *shape: Any) -> Constant:
        extents = Constant(f"{name}.{what}_extents", np.array(shape, np.int64))
        return Constant.derive(f"{name}.{what}", Reshape(), source, extents)

    def lengthened(source: Constant, what: str, unit: int) -> Constant:
        length = fixed_extent(source.type.shape[-1])
        after = np.zeros(2 * source.type.rank, np.int64)
        after[-1] = _whole(length, unit) - length
        if not after[-1]:
            return source
        amounts = Constant(f"{name}.{what}_amounts", after)
        return Constant.derive(f"{name}.{what}", Pad(), source, amounts)

    made = Constant.derive(f"{name}.taps_first", Transpose(order), wide)
    made = lengthened(shaped(made, "rows", filters, rows, -1), "vectors", VECTOR)
    made = lengthened(shaped(made, "windows", filters, -1), "wholes", FRAGMENT)
    made = shaped(made, "read", filters, -1, 4, 2, 2, 2)
    made = Constant.derive(f"{name}.taken", Transpose((0, 1, 3, 4, 2, 5)), made)
    return shaped(made, "fragments", filters, -1)
