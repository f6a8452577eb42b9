"""Kernel of products whose A operand tensor cores take from registers, in the order it is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from smelt.backends.cuda._implicit_gemm import PersistentWriter
from smelt.backends.cuda._kernel_source import LANGUAGE_TYPES, VECTOR
from smelt.backends.cuda._tile_writer import divides, mask_arguments
from smelt.types import override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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
        self.find_scalars()
        s.line("program = tl.program_id(0)")
        s.line(f"across = program % {self.column_tiles}")
        self.find_columns()
        self.prepare_columns()
        s.line(f"vector = step // {VECTOR}")
        s.line(f"within = step % {VECTOR}")
        for first, count in fragment_groups(len(self.fragments())):
            s.line(f"k = {first * FRAGMENT} + tl.arange(0, {count * FRAGMENT})")
            s.line(f"b{first} = tl.load(b_columns[None, :] + k[:, None])")
        for number in self.fragments():
            self.find_fragment(number)
        self.read_weights(self.last - self.first_extra)
        s.wait()
        natural_order = self.row_order
        begin = f"program // {self.column_tiles}"
        with s.for_each_tile("down", begin, self.row_tiles, self.k.programs):
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
                a_operand = join_fragments([f"a{first + n}" for n in range(count)], bm)
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
        s, bm = self.s, self.tile[0]
        exceeds_window = (number + 1) * FRAGMENT > self.taps * self.vectors * VECTOR
        ok = mask_arguments(f"there{number}[None, :]") if exceeds_window else ""
        s.line(f"a = tl.load(a_rows[:, None] + offset{number}[None, :]{ok})")
        if not divides(VECTOR, self.k.fixed_run):
            kind = LANGUAGE_TYPES[s.dtypes[0]]
            options = f"dtype={kind}, is_pure=True, pack=2"
            operands = f'"=r,r,r", [a, keep{number}]'
            s.line(f'a = tl.inline_asm_elementwise("{MASK_PTX}", {operands}, {options})')
        s.line(f"a{number} = {permute_fragment('a', bm)}")


def fragment_groups(fragments: int) -> Iterator[tuple[int, int]]:
    """Yield (first, count) of the fragments that each product multiplies."""
    first = 0
    while first < fragments:
        count = min(_MAX_AT_ONCE, 1 << (fragments - first).bit_length() - 1)
        yield first, count
        first += count


def join_fragments(names: Sequence[str], rows: int) -> str:
    """Return fragments concatenated along the reduction axis."""
    count = len(names)
    if count == 1:
        return names[0]
    left, right = (
        join_fragments(names[: count // 2], rows),
        join_fragments(names[count // 2 :], rows),
    )
    interleaved = f"tl.permute(tl.join({left}, {right}), (0, 2, 1))"
    return f"tl.reshape({interleaved}, [{rows}, {count * FRAGMENT}])"


def permute_fragment(name: str, rows: int) -> str:
    """Return a fragment permuted from load order to the order that tensor cores expect."""
    axes = f"tl.reshape({name}, [2, 4, {rows // 8}, 4, 2, 2, 2])"
    return f"tl.reshape(tl.permute({axes}, (1, 0, 2, 4, 5, 3, 6)), [{rows}, {FRAGMENT}])"
