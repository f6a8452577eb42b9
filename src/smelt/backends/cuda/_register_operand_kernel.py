"""Kernel of products whose A operand tensor cores take from registers, in the order it is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from smelt.backends.cuda._cost_model import parts_of
from smelt.backends.cuda._implicit_gemm import PersistentWriter
from smelt.backends.cuda._kernel_source import LANGUAGE_TYPES, VECTOR
from smelt.backends.cuda._tile_writer import mask_arguments
from smelt.types import override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.backends.cuda._kernel_source import KernelSource

ROWS: Final = 64
"""Rows of a tile: those of one instruction."""
FRAGMENT: Final = 32
"""Elements of the reduction that four threads load as one vector each: two instruction steps."""
MASK_PTX: Final = "and.b32 $0, $1, $2;"
"""PTX that zeroes the elements, two at once, whose mask is zero."""
_MAX_AT_ONCE: Final = 4
"""Maximum number of fragments in one product. The stem of ResNet-50 at batch 128 takes 146 µs with
several fragments at once and 155 µs with one (docs/lab/products-on-gpus.md); the maximum is chosen
without a measurement."""
FRAGMENT_ROW: Final = "(q // 8) % 4 * 16 + q // 32 * 8 + q % 8"
"""Expression of the tile's row that each thread reads, in the order tensor cores expect."""


class RegisterOperandWriter(PersistentWriter):
    """Writer of persistent products whose A operand stays in registers.

    Columns of B are packed in the order in which A is read.
    """

    @override
    def write(self) -> str:
        s, bm = self.s, self.tile[0]
        self.find_own_columns()
        s.line(f"vector = step // {VECTOR}")
        s.line(f"within = step % {VECTOR}")
        load_filters(s, len(self.fragments()))
        for number in self.fragments():
            self.find_fragment(number)
        self.read_weights(self.last - self.first_extra)
        s.wait()
        natural_order = self.row_order
        with self.each_tile(f"program // {self.column_tiles}"):
            s.line(f"q = tl.arange(0, {bm})")
            self.row_order = FRAGMENT_ROW
            self.find_rows()
            self.prepare_rows()
            for number in self.fragments():
                self.load_fragment(number)
            self.row_order = natural_order
            self.find_rows()
            s.line(f"acc = tl.zeros([{bm}, {self.tile[1]}], tl.float32)")
            for first, count in fragment_groups(len(self.fragments())):
                a_operand = join_fragments([f"a{first + n}" for n in range(count)])
                s.line(f"acc = tl.dot({a_operand}, b{first}, acc)")
            self.finish()
        return s.text()

    @property
    def vectors(self) -> int:
        """Vectors of a tap's inner K."""
        return -(-self.k.fixed_run // VECTOR)

    def fragments(self) -> range:
        """Return the numbers of the fragments of a column."""
        return range(self.k.depth // FRAGMENT)

    def find_fragment(self, number: int) -> None:
        """Write the offsets of a fragment's vectors in a window, and the mask of valid elements."""
        s, vectors, inner_k = self.s, self.vectors, self.k.fixed_run
        s.line(f"place = {number * FRAGMENT // VECTOR} + vector")
        s.line(f"tap = place // {vectors}")
        s.line(f"c = place % {vectors} * {VECTOR} + within")
        _, offset = self.locate_tap("tap", "")
        s.line(f"offset{number} = {s.join(offset, 'c')}")
        total = self.taps * vectors
        if (number + 1) * FRAGMENT > total * VECTOR:
            s.line(f"there{number} = place < {total}")
        if inner_k % VECTOR:
            s.line(f"keep{number} = tl.where(c < {inner_k}, -1, 0).to(tl.int16)[None, :]")

    def load_fragment(self, number: int) -> None:
        """Write the load of a fragment, permuted to the order that tensor cores expect."""
        s = self.s
        exceeds_window = (number + 1) * FRAGMENT > self.taps * self.vectors * VECTOR
        ok = mask_arguments(f"there{number}[None, :]") if exceeds_window else ""
        s.line(f"a = tl.load(a_rows[:, None] + offset{number}[None, :]{ok})")
        keep = f"keep{number}" if self.k.fixed_run % VECTOR else ""
        write_fragment(s, f"a{number}", keep)


def fragment_groups(fragments: int) -> Iterator[tuple[int, int]]:
    """Return (first, count) of the fragments that each product multiplies."""
    return parts_of(fragments, _MAX_AT_ONCE)


def load_filters(s: KernelSource, fragments: int) -> None:
    """Write the loads of the filters that each product multiplies."""
    for first, count in fragment_groups(fragments):
        s.line(f"k = {first * FRAGMENT} + tl.arange(0, {count * FRAGMENT})")
        s.line(f"b{first} = tl.load(b_columns[None, :] + k[:, None])")


def write_fragment(s: KernelSource, name: str, keep: str) -> None:
    """Write the permutation of ``a`` from load order to the order that tensor cores expect.

    If ``keep`` is given, elements are zero where this mask is.
    """
    if keep:
        options = f"dtype={LANGUAGE_TYPES[s.dtypes[0]]}, is_pure=True, pack=2"
        s.line(f'a = tl.inline_asm_elementwise("{MASK_PTX}", "=r,r,r", [a, {keep}], {options})')
    axes = f"tl.reshape(a, [2, 4, {ROWS // 8}, 4, 2, 2, 2])"
    permuted = f"tl.permute({axes}, (1, 0, 2, 4, 5, 3, 6))"
    s.line(f"{name} = tl.reshape({permuted}, [{ROWS}, {FRAGMENT}])")


def join_fragments(names: Sequence[str]) -> str:
    """Return fragments concatenated along the reduction axis."""
    count = len(names)
    if count == 1:
        return names[0]
    halves = names[: count // 2], names[count // 2 :]
    left, right = map(join_fragments, halves)
    interleaved = f"tl.permute(tl.join({left}, {right}), (0, 2, 1))"
    return f"tl.reshape({interleaved}, [{ROWS}, {count * FRAGMENT}])"
