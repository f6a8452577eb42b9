"""Packing of a matrix product's second factor at run time.

A chunk packs one panel of one matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Final, cast

from smelt.backends.cpu._elementwise import to_compute_type, to_storage_type
from smelt.backends.cpu._emit import LLVM_TYPES, Emitter, Int, Reg, lane_count, vector_type
from smelt.backends.cpu.families._dot_product import DOT_PRODUCTS, WORD_BYTES, DotProduct
from smelt.backends.cpu.families._vectors import (
    AxisRange,
    ElementConversion,
    RegisterTransposer,
    unravel,
)
from smelt.engine import KernelSpec, as_json
from smelt.types import DType

_TRANSPOSE_TILE: Final = 16
"""Columns of a panel that are transposed in registers at a time. A register of AVX-512 has 16
float32."""


def write_packing(kernel: KernelSpec) -> str:
    """Return the LLVM IR that packs panels as ``[word of the rows][channel of the panel]``.

    Each chunk packs one panel of one matrix. Operands: the matrix, the packed panels.
    """
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
        packed = e.at(e.pointer(1), e.mul(chunk.index, e.mul(words, width * WORD_BYTES)))
        first = e.mul(panel, width)
        at = e.at(at, e.mul(first, column_stride))
        full = isinstance(columns, int) and columns % width == 0
        even = isinstance(rows, int) and rows % dot_product.group == 0
        contiguous_rows = dtype is dot_product.factor and row_stride == size
        if contiguous_rows and full and (even or dot_product.group == 1):
            _transpose_panel(e, at, packed, (words, width), column_stride)
        else:
            steps = (row_stride, column_stride)
            source = _PanelPacker(e, at, dtype, dot_product, steps, e.sub(columns, first))
            source.copy(packed, rows, kernel["vectors"], kernel["lanes"])
    return e.module()


def _transpose_panel(e: Emitter, at: Reg, packed: Reg, shape: tuple[Int, int], step: Int) -> None:
    """Pack a panel whose columns are contiguous in memory: transpose its words in registers."""
    words, width = shape
    transposer = RegisterTransposer(
        e, at, packed, step, width * WORD_BYTES, ElementConversion.words(WORD_BYTES)
    )
    remainder = words % _TRANSPOSE_TILE if isinstance(words, int) else None
    # The width of a panel of three vectors is not a multiple of the tile.
    rows, columns = AxisRange(0, width, width % _TRANSPOSE_TILE), AxisRange(0, words, remainder)
    transposer.rectangle(rows, columns, _TRANSPOSE_TILE)


@dataclass(frozen=True, slots=True)
class _PanelPacker:
    """Writes the packing of one panel of a matrix."""

    e: Emitter
    at: Reg
    """Address of the panel's first element."""
    dtype: DType
    """Element type of the matrix."""
    dot_product: DotProduct
    steps: tuple[Int, Int]
    """Bytes from one row to the next, and from one column to the next."""
    columns: Int
    """Number of columns from the panel's first column to the end of the matrix."""

    def copy(self, packed: Reg, rows: Int, vectors: int, lanes: int) -> None:
        """Pack all rows; the rows of one word are interleaved."""
        e, group = self.e, self.dot_product.group
        full_words, rest = e.div(rows, group), e.mod(rows, group)
        word_row_bytes = vectors * lanes * WORD_BYTES
        with e.loop(0, full_words) as word:
            target = e.at(packed, e.mul(word.index, word_row_bytes))
            self._words(target, e.mul(word.index, group), group, vectors, lanes)
        for count in range(group - 1, 0, -1):
            if isinstance(rest, int) and rest != count:
                continue
            is_last = (
                nullcontext() if isinstance(rest, int) else e.when(e.compare("eq", rest, count))
            )
            with is_last:
                target = e.at(packed, e.mul(full_words, word_row_bytes))
                self._words(target, e.mul(full_words, group), count, vectors, lanes)

    def _words(self, target: Reg, row: Int, count: int, vectors: int, lanes: int) -> None:
        """Write the words of ``count`` rows; missing rows are zero."""
        e, group = self.e, self.dot_product.group
        kind = vector_type(LLVM_TYPES[self.dot_product.factor], lanes)
        for j in range(vectors):
            parts = [self._part(e.add(row, i), j * lanes, lanes) for i in range(count)]
            parts += [Reg("zeroinitializer", kind)] * (group - count)
            e.store(interleaved(e, parts), e.at(target, j * lanes * WORD_BYTES))

    def _part(self, row: Int, column: int, lanes: int) -> Reg:
        """Return one vector of a row in the type of the packed panels.

        Beyond the last column, contiguous columns give zeros and strided columns repeat the last
        one.
        """
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
    """Return the vectors interleaved element by element.

    The result has the first elements of all parts, then their second elements, and so on. The
    number of parts is 1, 2 or 4.
    """
    if len(parts) == 1:
        return parts[0]
    first, second = interleaved(e, parts[::2]), interleaved(e, parts[1::2])
    lanes = lane_count(first.type)
    return e.shuffle(first, second, [k for i in range(lanes) for k in (i, lanes + i)])
