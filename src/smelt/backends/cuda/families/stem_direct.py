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
from math import ceil, prod
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np

from smelt.backends._base import Refusal, Tactic
from smelt.backends._fused_programs import root_as, root_of
from smelt.backends.cuda._cost_model import LAUNCH_SECONDS, pass_seconds
from smelt.backends.cuda._kernel_source import VECTOR
from smelt.backends.cuda._register_operand_kernel import FRAGMENT, ROWS, RegisterOperandWriter
from smelt.backends.cuda.families._gemm_operands import as_factor, wide_operand_reason
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
from smelt.ops import Conv, Pad, Reshape, Transpose
from smelt.types import fixed_extent, override

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.backends.cuda._target import CudaTarget
    from smelt.backends.cuda.families._gemm_tiles import GemmShape
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
COPIED_BYTES: Final = 6
"""Memory traffic of the copy per element in bytes: four read, two written."""
_TILE_SECONDS: Final = 2.0e-7
"""Fixed time of a tile, in seconds. With `_ELEMENT_SECONDS` and windows of 224 elements the
estimate for ResNet-50's stem at batch 128 on an H200 is 115 µs without the copy; measured are 146
µs with it, of which the copy takes 30 (docs/lab/products-on-gpus.md)."""
_ELEMENT_SECONDS: Final = 1.8e-9
"""Time of a tile per element of a window, in seconds. `_TILE_SECONDS` names the measurement."""
_REGISTERS: Final = 512
"""Registers of a multiprocessor per thread of a program of 128 threads."""
_FEWER_PROGRAMS_PENALTY: Final = 1.1
"""Factor on the estimate with one program fewer per multiprocessor. No measurement is recorded."""
_UNFITTED_PENALTY: Final = 1.001
"""Factor on the plain family's estimate where the cost model is not fitted, so that these tactics
are not chosen without measurements."""
_OWN_REGISTERS: Final = 40
"""Registers of a thread besides a window's elements and the sums. No measurement is recorded."""


class _StemDirectLowering(ConvLowering):
    """Lowering whose filter columns are padded to whole fragments."""

    @override
    def column_length(self, total: int) -> int:
        rows = total // self.run
        return _round_up(rows * in_vectors(self.run), FRAGMENT)


class StemDirectFamily(StemFamily):
    """Family of 16-bit stems on GPUs with WGMMA."""

    name: ClassVar[str] = "stem_direct"
    lowering: ClassVar[type[ConvLowering]] = _StemDirectLowering

    @override
    def tactics(self, node: Node, target: CudaTarget) -> Iterator[Tactic | Refusal]:
        root, _ = root_of(node)
        if not isinstance(root, Conv) or reason_against(node) or why_no_stem(node, root):
            return  # the plain family yields the refusal
        shape = stem_shape(node, root, target)
        if reason := why_not_direct(node, root, shape, target):
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
        bn = next(n for n in COLUMNS if shape.columns % n == 0)
        length, multiprocessors = window_length(node, root), target.multiprocessors
        tiles = -(-shape.rows // ROWS) * (shape.columns // bn)
        fixed_seconds = LAUNCH_SECONDS + pass_seconds(shape.image * COPIED_BYTES, target)
        tile_seconds = ceil(tiles / multiprocessors) * (_TILE_SECONDS + length * _ELEMENT_SECONDS)
        programs_per_sm = _REGISTERS // (_OWN_REGISTERS + length // 4 + bn // 2)
        counts = {
            min(tiles, multiprocessors * max(1, count)): count
            for count in (programs_per_sm - 1, programs_per_sm)
        }
        for programs, count in counts.items():
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
            factor = 1.0 if count == programs_per_sm else _FEWER_PROGRAMS_PENALTY
            hint = max(fixed_seconds + tile_seconds * factor, min_hint)
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
    """Return why a stem cannot read pixels from registers, or None."""
    if reason := wide_operand_reason(shape.dtype):
        return reason
    if target.capability < _FIRST_WITH_WGMMA:
        return f"{target.architecture} has no tensor cores that read one operand from shared memory"
    if not isinstance(padded_shape(node, root)[-2], int):
        return "the image width is symbolic"
    if all(shape.columns % columns for columns in COLUMNS):
        return "the filter count is not a multiple of the tile"
    if (length := window_length(node, root)) > _MAX_WINDOW_ELEMENTS:
        return f"windows of {length} elements do not fit into registers"
    return None


def window_length(node: Node, root: Conv) -> int:
    """Return the elements of a window as read, padded to whole fragments."""
    _, run = row_of(node, root)
    return _round_up(prod(root.kernel_shape[:-1]) * in_vectors(run), FRAGMENT)


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
