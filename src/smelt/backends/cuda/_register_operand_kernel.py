"""The kernel of products whose first factor tensor cores take from registers, as it was read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from smelt.backends.cuda._implicit_gemm import PersistentWriter
from smelt.backends.cuda._kernel_source import LANGUAGE_TYPES, VECTOR
from smelt.backends.cuda._tile_writer import divides, sanitize_name
from smelt.types import override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROWS: Final = 64
"""Of a tile: those of one instruction."""
FRAGMENT: Final = 32
"""Elements of a sum that four threads read as a vector each: two steps of an instruction."""
MASK_PTX: Final = "and.b32 $0, $1, $2;"
"""Two elements where a mask has ones, else zeros."""
_MAX_AT_ONCE: Final = 4
FRAGMENT_ROW: Final = "(q // 8) % 4 * 16 + q // 32 * 8 + q % 8"
"""Which of a tile's rows a thread reads as its first, then as its second."""


class RegisterOperandWriter(PersistentWriter):
    """Programs hold the weights of their columns, and do tile after tile below.

    Columns of the second factor are packed in the order in which this reads the first.
    """

    @override
    def write(self) -> str:
        s, bm = self.s, self.tile[0]
        self.find_scalars()
        s.line("program = tl.program_id(0)")
        s.line(f"across = program % {self.across}")
        self.find_columns()
        self.prepare_columns()
        s.line(f"vector = step // {VECTOR}")
        s.line(f"within = step % {VECTOR}")
        for first, count in group_concurrent_steps(len(self.fragments())):
            s.line(f"k = {first * FRAGMENT} + tl.arange(0, {count * FRAGMENT})")
            s.line(f"b{first} = tl.load(b_columns[None, :] + k[:, None])")
        for number in self.fragments():
            self.find_fragment(number)
        self.read_weights(self.last - self.factors)
        s.wait()
        natural = self.order
        begin = f"program // {self.across}"
        with s.for_each_tile("down", begin, self.down, self.k["programs"]):
            s.line(f"q = tl.arange(0, {bm})")
            self.order = FRAGMENT_ROW
            self.find_rows()
            self.prepare_rows()
            for number in self.fragments():
                self.load_fragment(number)
            self.order = natural
            self.find_rows()
            s.line(f"acc = tl.zeros([{bm}, {self.tile[1]}], tl.float32)")
            for first, count in group_concurrent_steps(len(self.fragments())):
                factors = joined([f"a{first + n}" for n in range(count)], bm)
                s.line(f"acc = tl.dot({factors}, b{first}, acc)")
            self.finish()
        return s.text()

    @property
    def vectors(self) -> int:
        """Of a tap's run."""
        return -(-int(self.k["run"]) // VECTOR)

    def fragments(self) -> range:
        return range(self.k["depth"] // FRAGMENT)

    def find_fragment(self, number: int) -> None:
        """Where a fragment's vectors lie in a window, and which of their elements are its own."""
        s, vectors, run = self.s, self.vectors, self.k["run"]
        s.line(f"place = {number * FRAGMENT // VECTOR} + vector")
        s.line(f"tap = place // {vectors}")
        s.line(f"c = place % {vectors} * {VECTOR} + within")
        _, offset = self.locate_tap("tap", "")
        s.line(f"offset{number} = {s.join(offset, 'c')}")
        total = self.taps * vectors
        if (number + 1) * FRAGMENT > total * VECTOR:
            s.line(f"there{number} = place < {total}")
        if run % VECTOR:
            s.line(f"keep{number} = tl.where(c < {run}, -1, 0).to(tl.int16)[None, :]")

    def load_fragment(self, number: int) -> None:
        """Load a fragment, in the order in which tensor cores take it."""
        s, bm = self.s, self.tile[0]
        past = (number + 1) * FRAGMENT > self.taps * self.vectors * VECTOR
        ok = sanitize_name(f"there{number}[None, :]") if past else ""
        s.line(f"a = tl.load(a_rows[:, None] + offset{number}[None, :]{ok})")
        if not divides(VECTOR, self.k["run"]):
            kind = LANGUAGE_TYPES[s.dtypes[0]]
            how = f"dtype={kind}, is_pure=True, pack=2"
            s.line(
                f'a = tl.inline_asm_elementwise("{MASK_PTX}", "=r,r,r", [a, keep{number}], {how})'
            )
        s.line(f"a{number} = {taken('a', bm)}")


def group_concurrent_steps(fragments: int) -> Iterator[tuple[int, int]]:
    """Fragments that are multiplied at once, each product is waited for: first and number."""
    first = 0
    while first < fragments:
        count = min(_MAX_AT_ONCE, 1 << (fragments - first).bit_length() - 1)
        yield first, count
        first += count


def joined(names: Sequence[str], rows: int) -> str:
    """Fragments side by side."""
    count = len(names)
    if count == 1:
        return names[0]
    left, right = joined(names[: count // 2], rows), joined(names[count // 2 :], rows)
    made = f"tl.permute(tl.join({left}, {right}), (0, 2, 1))"
    return f"tl.reshape({made}, [{rows}, {count * FRAGMENT}])"


def taken(name: str, rows: int) -> str:
    """A fragment as it was read, in the order in which tensor cores take it."""
    read = f"tl.reshape({name}, [2, 4, {rows // 8}, 4, 2, 2, 2])"
    return f"tl.reshape(tl.permute({read}, (1, 0, 2, 4, 5, 3, 6)), [{rows}, {FRAGMENT}])"
