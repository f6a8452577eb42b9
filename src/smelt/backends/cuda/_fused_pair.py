"""Two products one behind the other, of the same places, by one program for each tile.

What the first product makes of a tile's places is the first factor of the second one: it stays
where it is, and is stored only if somebody else reads it, too. A program does the first product
whole, with as many columns as the first has, and its own columns of the second; several programs
of one row of tiles do the first each for itself. Or it walks along the first's columns, a stretch
at a time, with the pixels held, and adds up all columns of the second; so may programs do that hold
the weights of both products, and walk down the rows.

Operands: those of the first product, with what it makes last (if that is kept), the second's
weights, its extra operands, its result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from smelt.backends.cuda._cost_model import WARP_LANES
from smelt.backends.cuda._implicit_gemm import (
    ImplicitGemmKernel,
    ImplicitGemmWriter,
    PersistentWriter,
)
from smelt.backends.cuda._kernel_source import LANGUAGE_TYPES
from smelt.backends.cuda._tile_writer import across, divides, sanitize_name
from smelt.types import override

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.engine import Json, KernelSpec

FUSED_PAIR: Final = "fused_pair"
_REGISTER_WEIGHT_ELEMENTS: Final = 128
"""Of the second's weights that a thread may hold while the first product is summed."""


@dataclass(frozen=True, slots=True)
class FusedPairKernel(ImplicitGemmKernel):
    """What a chain's text depends on beside its first product. All operands share its rows."""

    second_columns: tuple[Json, ...] = ()
    """Of the second product: extent, then every operand's stride."""
    second_tile: int = 0
    """Columns of the second product that a program does."""
    second_depth: int = 0
    """Elements of a column of the second's weights as they are packed."""
    second_bias: bool = False
    second_stages: Json = ()
    weights: int = 0
    """Which operand the second's weights are."""
    returns_intermediate: bool = False
    """Whether the operand before them is what is between the two products."""


def write_fused_pair(kernel: KernelSpec) -> str:
    """The text of a chain's kernel."""
    return _FusedPairWriter(kernel).write()


class _FusedPairWriter(PersistentWriter):
    """The first product's part is written as one alone would be, up to its result."""

    def __init__(self, kernel: KernelSpec) -> None:
        super().__init__(kernel)
        self.result, self.weights = self.last, int(kernel["weights"])
        self.extras = self.weights - self.factors - kernel["returns_intermediate"]
        self.last = self.weights - 1 if kernel["returns_intermediate"] else -1
        self.then: Any = kernel["second_columns"]
        self.second_tile = int(kernel["second_tile"])
        self.then_count = self.s.extent(self.then[0])
        self.across = self.s.divide_up(self.then_count, self.second_tile)
        self.then_ok = "" if divides(self.second_tile, self.then_count) else "then_ok"
        self.column_blocks = int(self.s.divide_up(self.column_count, self.tile[1]))

    @override
    def write(self) -> str:
        s = self.s
        self.find_scalars()
        if self.k["programs"]:
            self.prepare_second()
            self.write_persistent()
            return s.text()
        s.line(f"tile = {s.program}")
        s.line(f"across = tile % {self.across}")
        s.line(f"down = tile // {self.across}")
        self.find_rows()
        self.prepare_rows()
        self.prepare_second()
        if self.column_blocks == 1:
            self.write_whole()
        else:
            self.write_column_blocks()
        self.finish()
        return s.text()

    def write_whole(self) -> None:
        """The first product as it would be alone, but that its columns are one tile."""
        s = self.s
        self.find_column_block("0")
        self.prepare_columns()
        if self.k["prefetches_weights"]:
            self.prefetch_weights()
        self.read_weights(self.extras)
        (bm, own, _), bn = self.tile, self.second_tile
        is_small = own * bn <= _REGISTER_WEIGHT_ELEMENTS * WARP_LANES * self.k["num_warps"]
        if is_small:
            self.load_second()
        s.wait()
        if self.k["prefetches_epilogue"]:
            for extra in range(self.extras):
                self.read(extra)
        ImplicitGemmWriter.sum(self)
        if not is_small:
            self.load_second()
        self.add_second(f"tl.zeros([{bm}, {bn}], tl.float32)")

    def write_column_blocks(self) -> None:
        """Some of the first's columns at a time, by pixels that are held."""
        s, (bm, bn, _) = self.s, self.tile
        s.line(f"step = tl.arange(0, {self.tile[2]})")
        s.wait()
        self.load_first_operand()
        s.line(f"sums = tl.zeros([{bm}, {self.second_tile}], tl.float32)")
        with s.block(f"for stretch in range(0, {self.column_blocks}):"):
            self.find_column_block(f"stretch * {bn}")
            self.prepare_columns()
            for number, first in enumerate(self.steps()):
                self.load_weight_step(number, first)
            self.load_second()
            self.add_first(0)
            self.add_second("sums")

    def write_persistent(self) -> None:
        """The same by programs that hold all weights, and do tile after tile below."""
        s, (bm, bn, _) = self.s, self.tile
        column_blocks, steps = range(self.column_blocks), len(self.steps())
        then, own = self.loaded, [dict[int, str]() for _ in range(self.column_blocks)]
        s.line("first = tl.program_id(0)")
        for column_block in column_blocks:
            self.select_column_block(column_block, own)
            self.find_column_block(str(column_block * bn))
            self.prepare_columns()
            for number, first in enumerate(self.steps()):
                self.load_weight_step(column_block * steps + number, first)
            self.load_second()
            self.read_weights(self.extras)
        s.wait()
        with s.for_each_tile("down", "first", self.down, self.k["programs"]):
            self.find_rows()
            self.prepare_rows()
            self.load_first_operand()
            for column_block in column_blocks if self.k["prefetches_epilogue"] else ():
                self.select_column_block(column_block, own)
                for extra in range(self.extras):
                    self.read(extra)
            s.line(f"sums = tl.zeros([{bm}, {self.second_tile}], tl.float32)")
            for column_block in column_blocks:
                self.select_column_block(column_block, own)
                self.add_first(column_block * steps)
                self.add_second("sums")
            self.loaded, self.suffix = then, ""
            self.finish()

    def select_column_block(self, column_block: int, loaded: Sequence[dict[int, str]]) -> None:
        """Let columns be those of a stretch, which has variables of its own."""
        self.suffix, self.loaded = f"_{column_block}", loaded[column_block]
        self.column = f"column{self.suffix}"

    def find_column_block(self, first: str) -> None:
        """Which columns of the first product come now."""
        s, bn = self.s, self.tile[1]
        s.line(f"{self.column} = {s.join(first, f'tl.arange(0, {bn})')}")
        if self.column_ok:
            s.line(f"{self.column_ok} = {self.column} < {self.column_count}")

    def add_first(self, weights: int) -> None:
        """Multiply the pixels that are held and a stretch's weights, from a number on."""
        bm, bn, _ = self.tile
        self.s.line(f"acc = tl.zeros([{bm}, {bn}], tl.float32)")
        for number, _ in enumerate(self.steps()):
            self.multiply_by(f"a{number}", f"b{weights + number}")

    def load_first_operand(self) -> None:
        """Load the pixels of all steps."""
        for number, first in enumerate(self.steps()):
            at, ok = self.pixels(first)
            self.load_pixels(f"a{number}", at, ok)

    # ---- the second product

    def prepare_second(self) -> None:
        """Where its columns are, and what is known of its epilogue."""
        s, bn = self.s, self.second_tile
        place = "" if self.across == "1" else f"across * {bn}"
        s.line(f"then = {s.join(place, f'tl.arange(0, {bn})')}")
        name = "then"
        if self.then_ok:
            s.line(f"then_ok = then < {self.then_count}")
            s.line(f"then_filter = tl.minimum(then, {self.then_count} - 1)")
            name = "then_filter"
        s.line(f"then_columns = p{self.weights} + {name} * {self.k['second_depth']}")
        own = self._as_second()
        self.read_weights(self.last - self.factors)
        self._restore_first(own)

    def load_second(self) -> None:
        """Load its weights for the columns of the first that come now."""
        ok = sanitize_name(across(self.column_ok, 0))
        at = f"then_columns[None, :] + {self.column}[:, None]"
        self.s.line(f"then_b{self.suffix} = tl.load({at}{ok})")

    def add_second(self, sums: str) -> None:
        """End the first product, and multiply what it makes."""
        s = self.s
        value = self.end(self.k["stages"], bias=self.k["bias"])
        factor = LANGUAGE_TYPES[s.dtypes[self.weights]]
        if self.k["returns_intermediate"]:
            kind = LANGUAGE_TYPES[s.dtypes[self.last]]
            s.line(f"between = ({value}).to({kind})")
            if self.across == "1":
                self.store(self.last, "between")
            else:
                with s.block("if across == 0:"):
                    self.store(self.last, "between")
            value = "between"
        s.line(f"between = ({value}).to({factor})")
        if self.column_ok:
            # Behind the last column anything may be; times zero it need not be zero.
            s.line(f"between = tl.where({across(self.column_ok, 1)}, between, 0.0)")
        s.line(f"sums = tl.dot(between, then_b{self.suffix}, {sums})")

    @override
    def finish(self) -> None:
        self._as_second()
        self.s.line("acc = sums")
        self.store(self.last, self.end(self.k["second_stages"], bias=self.k["second_bias"]))

    def _as_second(self) -> tuple[Any, ...]:
        """Let operands be the second's from here on; what they were."""
        own = (self.last, self.factors, self.columns, self.column, self.column_ok)
        self.last, self.factors, self.columns = self.result, self.weights + 1, self.then
        self.column, self.column_ok = "then", self.then_ok
        return own

    def _restore_first(self, own: tuple[Any, ...]) -> None:
        self.last, self.factors, self.columns, self.column, self.column_ok = own
