"""Dot products of the microkernel: contents of a lane, and the instruction that accumulates.

A lane of a packed panel is a *word* of 32 bits: one float32, or a *group* of narrower elements that
are adjacent along the run. One instruction multiplies the group in each lane by the corresponding
group of the first factor, which is broadcast to all lanes, and adds the products to the lane's
accumulator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from smelt.backends.cpu._elementwise import to_compute_type
from smelt.backends.cpu._emit import LLVM_TYPES, Emitter, Int, Reg, lane_count, vector_type
from smelt.backends.cpu._math import multiply_add
from smelt.types import Dim, DType, ceil_div, override

if TYPE_CHECKING:
    from smelt.backends.cpu._target import CpuTarget

WORD_BYTES: Final = 4
"""Size in bytes of the word in one lane."""


@dataclass(frozen=True, slots=True)
class DotProduct:
    """One way to multiply and accumulate. Kernel specs and tactics refer to it by its name."""

    name: str
    factor: DType
    """Element type of the packed panels, and of the first factor if ``group`` is more than 1."""
    group: int
    """Number of elements per word."""
    sums: DType
    """Element type of the accumulators."""
    instruction: str = ""
    """LLVM intrinsic that accumulates the products of words; "" for a plain multiply-add."""
    feature: str = ""
    """LLVM name of the instruction-set feature that provides the intrinsic."""

    def words(self, run: Dim) -> Dim:
        """Return the number of words of a run; the last word may be partial."""
        return ceil_div(run, self.group)

    def sums_type(self, lanes: int) -> str:
        """Return the LLVM type of a register of accumulators."""
        return vector_type(LLVM_TYPES[self.sums], lanes)

    def factor_type(self, lanes: int) -> str:
        """Return the LLVM type of a register of words."""
        return vector_type(LLVM_TYPES[self.factor], lanes * self.group)

    def add_products(self, e: Emitter, a: Reg, b: Reg, total: Reg) -> Reg:
        """Return ``total`` plus the products of the words of ``a`` and ``b``, lane by lane."""
        if not self.instruction:
            return multiply_add(e, a, b, total)
        return e.call(total.type, self.instruction, total, a, b)

    def broadcast(self, e: Emitter, word: Reg, lanes: int) -> Reg:
        """Return a register with the word in every lane."""
        splat = e.splat(word, lanes)
        kind = self.factor_type(lanes)
        return splat if splat.type == kind else bits_as(e, splat, kind)

    def load_word(
        self, e: Emitter, at: Reg, steps: Sequence[Int], dtype: DType, count: Int | None = None
    ) -> Reg:
        """Load the elements at these byte offsets as one word, with zeros for missing elements.

        ``count`` is the number of elements in the word if only the running kernel knows it.
        """
        if self.group == 1:
            return to_compute_type(e, e.load(LLVM_TYPES[dtype], e.at(at, steps[0])), dtype)
        word = self._load_elements(e, at, steps, count)
        if dtype is DType.INT8:  # the instructions take unsigned bytes: add 128 to each
            word = e.binary("xor", word, e.constant(_SIGNS, "i32"))
        return word

    def _load_elements(self, e: Emitter, at: Reg, steps: Sequence[Int], count: Int | None) -> Reg:
        """Load narrow elements into an i32, the first in the lowest bits.

        Adjacent elements are one load. Otherwise the elements are loaded one by one and shifted
        into place; a missing element reads the first one's address, and its value is replaced by 0.
        """
        size = self.factor.size_bytes
        if count is None and list(steps) == [*range(0, WORD_BYTES, size)]:
            return e.load("i32", at)
        word = e.constant(0, "i32")
        for number, step in enumerate(steps):
            inside = None if count is None else e.compare("slt", number, count)
            byte_offset = step if inside is None else e.select(inside, e.i64(step), e.i64(0))
            element = e.convert("zext", e.load(f"i{8 * size}", e.at(at, byte_offset)), "i32")
            if inside is not None:
                element = e.select(inside, element, e.constant(0, "i32"))
            moved = e.binary("shl", element, e.constant(8 * size * number, "i32"))
            word = e.binary("or", word, moved)
        return word


class WideningDotProduct(DotProduct):
    """Products of bytes that are widened to 16 bits first, so that no product saturates.

    The even and the odd elements of each group are multiplied separately, and each pair of products
    is added to the accumulator.
    """

    @override
    def add_products(self, e: Emitter, a: Reg, b: Reg, total: Reg) -> Reg:
        lanes = lane_count(total.type)
        kind = vector_type("i16", 2 * lanes)
        first, second = bits_as(e, a, kind), bits_as(e, b, kind)
        eight = e.constant(8, kind)
        signed = e.binary("ashr", e.binary("shl", second, eight), eight)
        pairs = (
            (e.binary("and", first, e.constant(255, kind)), signed),
            (e.binary("lshr", first, eight), e.binary("ashr", second, eight)),
        )
        for x, y in pairs:
            total = e.binary("add", total, self._sum_pairs(e, x, y, total.type))
        return total

    def _sum_pairs(self, e: Emitter, x: Reg, y: Reg, kind: str) -> Reg:
        """Multiply words of 16 bits and add adjacent products into 32 bits.

        Targets without such an instruction multiply the two halves of each 32-bit lane separately.
        """
        if self.instruction:
            return e.call(kind, self.instruction, x, y)
        sixteen, parts = e.constant(16, kind), list[Reg]()
        for shift in (True, False):
            wide = [bits_as(e, v, kind) for v in (x, y)]
            if shift:  # move the lower half up, so that the arithmetic shift extends its sign
                wide = [e.binary("shl", v, sixteen) for v in wide]
            parts.append(e.binary("mul", *(e.binary("ashr", v, sixteen) for v in wide)))
        return e.binary("add", *parts)


def bits_as(e: Emitter, value: Reg, kind: str) -> Reg:
    """Return the register's bits as another type."""
    return e.emit(kind, f"bitcast {value} to {kind}")


_BYTES: Final = (DType.INT8, 4, DType.INT32)
"""Factor type, group and accumulator type of the products of bytes."""
_SIGNS: Final = 0x80808080 - (1 << 32)
"""The sign bits of four bytes, as a signed 32-bit integer."""
DOT_PRODUCTS: Final[dict[str, DotProduct]] = {
    a.name: a
    for a in (
        DotProduct("float32", DType.FLOAT32, 1, DType.FLOAT32),
        DotProduct(
            "bfloat16",
            DType.BFLOAT16,
            2,
            DType.FLOAT32,
            "llvm.x86.avx512bf16.dpbf16ps.512",
            "avx512bf16",
        ),
        DotProduct("int8_vnni", *_BYTES, "llvm.x86.avx512.vpdpbusd.512", "avx512vnni"),
        DotProduct("int8_vnni_256", *_BYTES, "llvm.x86.avx512.vpdpbusd.256", "avxvnni"),
        WideningDotProduct("int8_widening_512", *_BYTES, "llvm.x86.avx512.pmaddw.d.512"),
        WideningDotProduct("int8_widening_256", *_BYTES, "llvm.x86.avx2.pmadd.wd"),
        WideningDotProduct("int8_widening_128", *_BYTES, "llvm.x86.sse2.pmadd.wd"),
        WideningDotProduct("int8_widening", *_BYTES),
    )
}
"""All dot products by name."""


def int8_dot_product(target: CpuTarget) -> DotProduct:
    """Return the dot product of unsigned by signed bytes for a target."""
    if target.vector_bits == 512 and target.has("avx512vnni"):
        return DOT_PRODUCTS["int8_vnni"]
    if target.vector_bits == 256 and target.has("avxvnni"):
        return DOT_PRODUCTS["int8_vnni_256"]
    width = f"_{target.vector_bits}" if target.architecture == "x86_64" else ""
    return DOT_PRODUCTS[f"int8_widening{width}"]


def dot_product_for(dtype: DType, target: CpuTarget) -> DotProduct:
    """Return the dot product for elements stored as ``dtype``; float32 if the target has none."""
    for dot_product in DOT_PRODUCTS.values():
        if dot_product.factor is dtype and dot_product.feature and target.has(dot_product.feature):
            return dot_product
    return DOT_PRODUCTS["float32"]
