"""Packing the second factor of a product when the network runs: a panel of one matrix a chunk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from smelt.backends.cpu._elementwise import to_compute_type, to_storage_type
from smelt.backends.cpu._emit import LLVM_TYPES, Emitter, Int, Reg, lane_count, vector_type
from smelt.backends.cpu.families._dot_product import DOT_PRODUCTS, WORD_BYTES, DotProduct
from smelt.backends.cpu.families._register_transpose import AxisRange, RegisterTransposer
from smelt.backends.cpu.families._vectors import ElementConversion, unravel
from smelt.engine import as_json
from smelt.types import DType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.engine import KernelSpec

_TRANSPOSE_TILE: Final = 16
"""Columns of a panel that are transposed at a time."""


def write_packing(kernel: KernelSpec) -> str:
    """Copy one panel of one matrix a chunk: ``[word of the rows][channel of the panel]``."""
    e = Emitter(kernel.symbol, 2)
    dtype, dot_product = DType(kernel["dtype"]), DOT_PRODUCTS[kernel["dot_product"]]
    size, width = dtype.size_bytes, kernel["lanes"] * kernel["vectors"]
    rows, columns = e.extent(kernel["rows"]), e.extent(kernel["columns"])
    row_stride = e.mul(e.extent(kernel["row_stride"]), size)
    column_stride = e.mul(e.extent(kernel["column_stride"]), size)
    words = e.div(e.add(rows, dot_product.group - 1), dot_product.group)
    stack, strides = as_json(kernel["stack"]), as_json(kernel["strides"])
    with e.loop(e.begin, e.end) as chunk:
        extents = (*cast("Any", stack), as_json(kernel["panels"]))
        *images, panel = unravel(e, chunk.index, extents)
        at = e.pointer(0)
        for image, stride in zip(images, cast("Any", strides), strict=True):
            at = e.at(at, e.mul(image, e.mul(e.extent(stride), size)))
        made = e.at(e.pointer(1), e.mul(chunk.index, e.mul(words, width * WORD_BYTES)))
        first = e.mul(panel, width)
        at = e.at(at, e.mul(first, column_stride))
        full = isinstance(columns, int) and columns % width == 0
        even = isinstance(rows, int) and rows % dot_product.group == 0
        alike = dtype is dot_product.factor and row_stride == size
        if alike and full and (even or dot_product.group == 1):
            _transpose_panel(e, at, made, (words, width), column_stride)
        else:
            steps = (row_stride, column_stride)
            source = _Source(e, at, dtype, dot_product, steps, e.sub(columns, first))
            source.copy(made, rows, kernel["vectors"], kernel["lanes"])
    return e.module()


def _transpose_panel(e: Emitter, at: Reg, made: Reg, shape: tuple[Int, int], step: Int) -> None:
    """A panel whose columns run on in memory: its words are transposed in registers."""
    words, width = shape
    transposer = RegisterTransposer(
        e, at, made, step, width * WORD_BYTES, ElementConversion.words(WORD_BYTES)
    )
    left = words % _TRANSPOSE_TILE if isinstance(words, int) else None
    # Panels of three vectors are no whole number of tiles.
    transposer.rectangle(
        AxisRange(0, width, width % _TRANSPOSE_TILE), AxisRange(0, words, left), _TRANSPOSE_TILE
    )


@dataclass(frozen=True, slots=True)
class _Source:
    """Where a panel comes from."""

    e: Emitter
    at: Reg
    dtype: DType
    dot_product: DotProduct
    steps: tuple[Int, Int]
    """Bytes from row to row, and from column to column."""
    columns: Int
    """How many there are from the panel's first on."""

    def copy(self, made: Reg, rows: Int, vectors: int, lanes: int) -> None:
        """Row by row, those of a word together."""
        e, group = self.e, self.dot_product.group
        whole, rest = e.div(rows, group), e.mod(rows, group)
        line = vectors * lanes * WORD_BYTES
        with e.loop(0, whole) as word:
            target = e.at(made, e.mul(word.index, line))
            self._words(target, e.mul(word.index, group), group, vectors, lanes)
        for missing in range(1, group):
            count = group - missing
            if isinstance(rest, int):
                if rest == count:
                    self._words(
                        e.at(made, e.mul(whole, line)), e.mul(whole, group), count, vectors, lanes
                    )
                continue
            with e.when(e.compare("eq", rest, count)):
                target = e.at(made, e.mul(whole, line))
                self._words(target, e.mul(whole, group), count, vectors, lanes)

    def _words(self, target: Reg, row: Int, count: int, vectors: int, lanes: int) -> None:
        """The words of ``count`` rows; those that are missing are zero."""
        e, group = self.e, self.dot_product.group
        kind = vector_type(LLVM_TYPES[self.dot_product.factor], lanes)
        for j in range(vectors):
            parts = [self._part(e.add(row, i), j * lanes, lanes) for i in range(count)]
            parts += [Reg("zeroinitializer", kind)] * (group - count)
            e.store(interleaved(e, parts), e.at(target, j * lanes * WORD_BYTES))

    def _part(self, row: Int, column: int, lanes: int) -> Reg:
        """Elements of a row; beyond the columns zeros, or copies where they lie apart."""
        e, (row_step, column_step) = self.e, self.steps
        at = e.at(e.at(self.at, e.mul(row, row_step)), e.mul(column_step, column))
        count, element = e.sub(self.columns, column), LLVM_TYPES[self.dtype]
        kind = vector_type(element, lanes)
        if column_step == self.dtype.size_bytes:
            value = e.load_masked(kind, at, e.tail_mask(count, lanes))
        else:
            value = Reg("zeroinitializer", kind)
            last = e.sub(count, 1)
            for lane in range(lanes):
                position = e.mul(e.minimum(lane, last), column_step)
                one = e.load(element, e.at(at, position))
                value = e.emit(kind, f"insertelement {value}, {one}, i64 {lane}")
        if self.dtype is self.dot_product.factor:
            return value
        return to_storage_type(e, to_compute_type(e, value, self.dtype), self.dot_product.factor)


def interleaved(e: Emitter, parts: Sequence[Reg]) -> Reg:
    """The first elements of all parts (1, 2 or 4), then their second ones, and so on."""
    if len(parts) == 1:
        return parts[0]
    first, second = interleaved(e, parts[::2]), interleaved(e, parts[1::2])
    lanes = lane_count(first.type)
    order = ", ".join(f"i32 {i}, i32 {lanes + i}" for i in range(lanes))
    mask = f"<{2 * lanes} x i32> <{order}>"
    kind = vector_type(first.type[1:-1].split(" x ")[1], 2 * lanes)
    return e.emit(kind, f"shufflevector {first}, {second}, {mask}")
