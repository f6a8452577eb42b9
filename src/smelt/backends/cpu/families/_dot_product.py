"""How the panel kernel multiplies: what a lane holds, and the instruction that sums products.

A lane of a packed panel is a *word* of 32 bits: one float32, or a *group* of narrower elements
that lie one after the other along the run. One instruction multiplies the group of each lane by
the group of the first factor, which every lane is given, and adds the products to the lane's sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from smelt.backends.cpu._elementwise import to_compute_type
from smelt.backends.cpu._emit import LLVM_TYPES, Int, Reg, lane_count, vector_type
from smelt.backends.cpu._math import multiply_add
from smelt.types import DType, ceil_div, override

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.backends.cpu._emit import Emitter
    from smelt.backends.cpu._target import CpuTarget
    from smelt.types import Dim

WORD_BYTES: Final = 4
"""Size of what a lane holds."""


@dataclass(frozen=True, slots=True)
class DotProduct:
    """One way to multiply and sum. In specs and tactics it is its name."""

    name: str
    factor: DType
    """Elements of the packed panels; of the first factor too, when a group is more than one."""
    group: int
    """Elements of a word."""
    sums: DType
    """Elements of the sums."""
    instruction: str = ""
    """The intrinsic that adds the products of words; its vectors are of 512 bits."""
    feature: str = ""
    """The instruction set that has it."""

    @property
    def is_integer_sum(self) -> bool:
        """Whether sums are integers."""
        return not self.sums.is_float

    def words(self, run: Dim) -> Dim:
        """Words of a run, the last of which may not be full."""
        return ceil_div(run, self.group)

    def sums_type(self, lanes: int) -> str:
        """The type of registers that hold sums."""
        return vector_type(LLVM_TYPES[self.sums], lanes)

    def factor_type(self, lanes: int) -> str:
        """The type of registers that hold words."""
        return vector_type(LLVM_TYPES[self.factor], lanes * self.group)

    def add_products(self, e: Emitter, a: Reg, b: Reg, total: Reg) -> Reg:
        """``total`` with the products of the words of ``a`` and ``b`` added, lane by lane."""
        if not self.instruction:
            return multiply_add(e, a, b, total)
        return e.call(total.type, self.instruction, total, a, b)

    def broadcast(self, e: Emitter, word: Reg, lanes: int) -> Reg:
        """The word in every lane."""
        everywhere = e.splat(word, lanes)
        kind = self.factor_type(lanes)
        return everywhere if everywhere.type == kind else bits_as(e, everywhere, kind)

    def load_word(
        self, e: Emitter, at: Reg, steps: Sequence[Int], dtype: DType, count: Int | None = None
    ) -> Reg:
        """The elements at these byte offsets as one word, with zeros for those that are missing.

        Of ``count`` elements where that is known only when the kernel runs.
        """
        if self.group == 1:
            return to_compute_type(e, e.load(LLVM_TYPES[dtype], e.at(at, steps[0])), dtype)
        word = self._load_elements(e, at, steps, count)
        if dtype is DType.INT8:  # as far above -128 as unsigned bytes are above 0
            word = e.binary("xor", word, e.constant(_SIGNS, "i32"))
        return word

    def _load_elements(self, e: Emitter, at: Reg, steps: Sequence[Int], count: Int | None) -> Reg:
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
    """Products of bytes by way of words of 16 bits, in which none of them saturates.

    Of each group the even and the odd elements are multiplied and added in pairs.
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
        if self.instruction:
            return e.call(kind, self.instruction, x, y)
        sixteen, parts = e.constant(16, kind), list[Reg]()
        for shift in (True, False):
            wide = [bits_as(e, v, kind) for v in (x, y)]
            if shift:  # the lower half goes up first, to come down with its sign
                wide = [e.binary("shl", v, sixteen) for v in wide]
            parts.append(e.binary("mul", *(e.binary("ashr", v, sixteen) for v in wide)))
        return e.binary("add", *parts)


def bits_as(e: Emitter, value: Reg, kind: str) -> Reg:
    """The same bits as another type."""
    return e.emit(kind, f"bitcast {value} to {kind}")


_BYTES: Final = (DType.INT8, 4, DType.INT32)
_SIGNS: Final = 0x80808080 - (1 << 32)
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
"""Every arithmetic by name."""


def int8_dot_product(target: CpuTarget) -> DotProduct:
    """What multiplies unsigned by signed bytes on a target."""
    if target.vector_bits == 512 and target.has("avx512vnni"):
        return DOT_PRODUCTS["int8_vnni"]
    if target.vector_bits == 256 and target.has("avxvnni"):
        return DOT_PRODUCTS["int8_vnni_256"]
    width = f"_{target.vector_bits}" if target.architecture == "x86_64" else ""
    return DOT_PRODUCTS[f"int8_widening{width}"]


def dot_product_for(dtype: DType, target: CpuTarget) -> DotProduct:
    """What multiplies elements stored as ``dtype`` on a target; single precision by default."""
    for one in DOT_PRODUCTS.values():
        if one.factor is dtype and one.feature and target.has(one.feature):
            return one
    return DOT_PRODUCTS["float32"]
