"""Fused pairs (back-to-back GEMMs): two products on the same rows in one program per tile.

The result of the first product is the A operand of the second. It stays on chip, and is stored only
if another node reads it. Three schedules exist:

- A program computes all columns of the first product for its rows, and its own columns of the
  second. Programs on the same rows each repeat the first product.
- A program keeps its pixels, loops over blocks of the first product's columns, and accumulates all
  columns of the second.
- The same with programs that keep the weights of both products and process many tiles.

Operands: those of the first product, with its result last (if that is stored), then the second
product's weights, its epilogue operands, its result.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from smelt.backends.cuda._cost_model import WARP_LANES
from smelt.backends.cuda._implicit_gemm import ImplicitGemmWriter, PersistentWriter
from smelt.backends.cuda._kernel_source import LANGUAGE_TYPES
from smelt.backends.cuda._product_specs import FusedPairKernel
from smelt.backends.cuda._tile_writer import broadcast_condition, divides, mask_arguments
from smelt.types import override

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from smelt.engine import KernelSpec

FUSED_PAIR: Final = "fused_pair"
"""Name of the kernel family."""
_REGISTER_WEIGHT_ELEMENTS: Final = 128
"""Maximum number of the second product's weights that a thread holds while the first product is
summed. Chosen without a measurement."""


class FusedPairWriter(PersistentWriter):
    """Writer of a fused pair; the first product is written as if alone, up to its result."""

    def __init__(self, kernel: KernelSpec) -> None:
        super().__init__(kernel)
        self.pair = FusedPairKernel.of(kernel)
        self.result, self.weights = self.last, self.pair.weights
        self.extras = self.weights - self.first_extra - self.pair.returns_intermediate
        self.last = self.weights - 1 if self.pair.returns_intermediate else -1
        self.second_axis: Any = self.pair.second_columns
        """Column axis of the second product."""
        self.second_tile = self.pair.second_tile
        self.second_count = self.s.extent(self.second_axis[0])
        self.column_tiles = self.s.divide_up(self.second_count, self.second_tile)
        self.second_ok = "" if divides(self.second_tile, self.second_count) else "then_ok"
        self.column_blocks = int(self.s.divide_up(self.column_count, self.tile[1]))
        """Blocks of the first product's columns."""

    @override
    def write(self) -> str:
        s = self.s
        s.narrow_scalars()
        if self.k.row_programs:
            self.prepare_second()
            self.write_persistent()
            return s.text()
        self.find_place()
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
        """Write the kernel with all columns of the first product in one tile."""
        s = self.s
        self.find_columns("0")
        self.prepare_columns()
        if self.k.prefetches_weights:
            self.prefetch_weights()
        self.read_weights(self.extras)
        (bm, first_columns, _), bn = self.tile, self.second_tile
        held = _REGISTER_WEIGHT_ELEMENTS * WARP_LANES * self.k.num_warps
        fits_registers = first_columns * bn <= held
        if fits_registers:
            self.load_second()
        s.wait()
        self.prefetch_epilogue(self.extras)
        ImplicitGemmWriter.sum(self)
        if not fits_registers:
            self.load_second()
        self.add_second(f"tl.zeros([{bm}, {bn}], tl.float32)")

    def write_column_blocks(self) -> None:
        """Write a loop over blocks of the first product's columns, with the pixels kept."""
        s, (bm, bn, _) = self.s, self.tile
        s.line(f"step = tl.arange(0, {self.tile[2]})")
        s.wait()
        self.load_first_operand()
        s.line(f"sums = tl.zeros([{bm}, {self.second_tile}], tl.float32)")
        with s.block(f"for stretch in range(0, {self.column_blocks}):"):
            self.find_columns(f"stretch * {bn}")
            self.prepare_columns()
            self.load_weights(0)
            self.load_second()
            self.add_first(0)
            self.add_second("sums")

    def write_persistent(self) -> None:
        """Write that loop for programs that keep all weights and process many tiles."""
        s, (bm, bn, _) = self.s, self.tile
        column_blocks, steps = range(self.column_blocks), len(self.steps())
        second_loaded = self.loaded
        loaded_by_block = [dict[int, str]() for _ in column_blocks]
        s.line("first = tl.program_id(0)")
        for column_block in column_blocks:
            self.select_column_block(column_block, loaded_by_block)
            self.find_columns(str(column_block * bn))
            self.prepare_columns()
            self.load_weights(column_block * steps)
            self.load_second()
            self.read_weights(self.extras)
        s.wait()
        with self.each_tile("first"):
            self.find_rows()
            self.prepare_rows()
            self.load_first_operand()
            for column_block in column_blocks:
                self.select_column_block(column_block, loaded_by_block)
                self.prefetch_epilogue(self.extras)
            s.line(f"sums = tl.zeros([{bm}, {self.second_tile}], tl.float32)")
            for column_block in column_blocks:
                self.select_column_block(column_block, loaded_by_block)
                self.add_first(column_block * steps)
                self.add_second("sums")
            self.loaded, self.suffix = second_loaded, ""
            self.finish()

    def select_column_block(self, column_block: int, loaded: Sequence[dict[int, str]]) -> None:
        """Select the variables of a block of columns."""
        self.suffix, self.loaded = f"_{column_block}", loaded[column_block]
        self.column = f"column{self.suffix}"

    # ---- the second product

    def prepare_second(self) -> None:
        """Write the second product's columns, and the loads of its epilogue weights."""
        s, bn = self.s, self.second_tile
        block_start = "" if self.column_tiles == "1" else f"across * {bn}"
        s.line(f"then = {s.join(block_start, f'tl.arange(0, {bn})')}")
        name = "then"
        if self.second_ok:
            s.line(f"then_ok = then < {self.second_count}")
            s.line(f"then_filter = tl.minimum(then, {self.second_count} - 1)")
            name = "then_filter"
        s.line(f"then_columns = p{self.weights} + {name} * {self.pair.second_depth}")
        with self.second_operands():
            self.read_weights(self.last - self.first_extra)

    def load_second(self) -> None:
        """Write the load of the second product's weights for the current block of columns."""
        ok = mask_arguments(broadcast_condition(self.column_ok, 0))
        at = f"then_columns[None, :] + {self.column}[:, None]"
        self.s.line(f"then_b{self.suffix} = tl.load({at}{ok})")

    def add_second(self, sums: str) -> None:
        """Write the first product's epilogue and the second product, added to ``sums``."""
        s = self.s
        value = self.write_epilogue(self.k.stages, has_bias=self.k.bias)
        factor = LANGUAGE_TYPES[s.dtypes[self.weights]]
        if self.pair.returns_intermediate:
            kind = LANGUAGE_TYPES[s.dtypes[self.last]]
            s.line(f"between = ({value}).to({kind})")
            if self.column_tiles == "1":
                self.store(self.last, "between")
            else:
                with s.block("if across == 0:"):
                    self.store(self.last, "between")
            value = "between"
        s.line(f"between = ({value}).to({factor})")
        if self.column_ok:
            # Columns past the end hold arbitrary values: NaN times a zero weight would remain.
            s.line(f"between = tl.where({broadcast_condition(self.column_ok, 1)}, between, 0.0)")
        s.line(f"sums = tl.dot(between, then_b{self.suffix}, {sums})")

    @override
    def finish(self) -> None:
        self.s.line("acc = sums")
        with self.second_operands():
            result = self.write_epilogue(self.pair.second_stages, has_bias=self.pair.second_bias)
            self.store(self.last, result)

    @contextmanager
    def second_operands(self) -> Generator[None]:
        """Select the operands of the second product for what is written in the context."""
        first = self.last, self.first_extra, self.columns, self.column, self.column_ok
        self.last, self.first_extra, self.columns = self.result, self.weights + 1, self.second_axis
        self.column, self.column_ok = "then", self.second_ok
        yield
        self.last, self.first_extra, self.columns, self.column, self.column_ok = first
