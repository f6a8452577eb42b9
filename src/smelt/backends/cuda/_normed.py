"""A normalisation of rows and a product that reads them, by one program for each tile.

A program has its rows whole, for the sum runs along all of them: it normalises them itself, each
program of a row of tiles for its own, and the first of those stores them if somebody else reads
them, too. Weights are there before earlier launches have ended, or asked for until then: where the
launch before is brief, to have them all takes longer than that.

Operands: what is normalised, the product's weights, what the normalisation scales and shifts by,
what it makes (if that is kept), extra operands, the product's result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from smelt.backends.cuda._elementwise import literal
from smelt.backends.cuda._product import AheadWriter, ProductKernel
from smelt.backends.cuda._source import LANGUAGE_TYPES
from smelt.backends.cuda._tile_writer import across, masked
from smelt.types import override

if TYPE_CHECKING:
    from smelt.engine import KernelSpec

NORMED: Final = "normed"
_OWN: Final = 2
"""The first operand that a normalisation scales by."""


@dataclass(frozen=True, slots=True)
class NormedKernel(ProductKernel):
    """Everything that decides the text; the product's run is a row's length."""

    centres: bool = True
    """Whether the mean is taken off."""
    epsilon: float = 0.0
    scales: int = 0
    """What rows are multiplied with, and then what is added: one, both or none."""
    keeps: bool = False
    """Whether the operand behind those is what the normalisation makes."""


def write_normed(kernel: KernelSpec) -> str:
    """The kernel's text."""
    return _NormedWriter(kernel).write()


class _NormedWriter(AheadWriter):
    @override
    def prepare(self) -> None:
        self.prepare_rows()
        self.prepare_columns()
        self.read_scales(are_weights=True)
        if self.k["asks"]:
            self.ask_for_weights()
        else:
            self.hold_all()

    def hold_all(self) -> None:
        """Load the weights of all steps."""
        for number, first in enumerate(self.steps()):
            self.hold(number, first)

    def read_scales(self, *, are_weights: bool) -> None:
        """Load each step's part of what rows are scaled and shifted by."""
        for operand in range(_OWN, _OWN + self.k["scales"]):
            if self.k["constants"][operand] is are_weights:
                for number, first in enumerate(self.steps()):
                    at = self.s.join(f"p{operand}", str(first), "step")
                    self.s.line(f"e{operand}_{number} = tl.load({at}).to(tl.float32)[None, :]")

    @override
    def sum(self) -> None:
        s, (bm, bn, _), steps = self.s, self.tile, range(len(self.steps()))
        if self.k["asks"]:
            self.hold_all()
        self.read_scales(are_weights=False)
        for number, first in enumerate(self.steps()):
            at, ok = self.pixels(first)
            s.line(f"x{number} = tl.load({at}{masked(ok)}).to(tl.float32)")
        if self.k["centres"]:
            self.add_up("total", [f"x{number}" for number in steps])
            for number in steps:
                s.line(f"x{number} = x{number} - (total / {self.k['run']}.0)[:, None]")
        self.add_up("energy", [f"x{number} * x{number}" for number in steps])
        epsilon = literal(self.k["epsilon"])
        s.line(f"scale = (1.0 / tl.sqrt(energy / {self.k['run']}.0 + {epsilon}))[:, None]")
        for number in steps:
            value = f"x{number} * scale"
            for operand, sign in zip(range(_OWN, _OWN + self.k["scales"]), "*+", strict=False):
                value += f" {sign} e{operand}_{number}"
            s.line(f"a{number} = ({value}).to({LANGUAGE_TYPES[s.dtypes[1]]})")
        if self.k["keeps"]:
            self.keep()
        s.line(f"acc = tl.zeros([{bm}, {bn}], tl.float32)")
        for number in steps:
            self.multiply_by(f"a{number}", f"b{number}")

    def add_up(self, name: str, parts: list[str]) -> None:
        """Write the sums of each row's elements, of all steps at once."""
        self.s.line(f"{name} = tl.sum({' + '.join(parts)}, axis=1)")

    def keep(self) -> None:
        """Store the rows, once for all tiles beside each other."""
        s, operand = self.s, _OWN + self.k["scales"]
        kind, ok = LANGUAGE_TYPES[s.dtypes[operand]], across(self.row_ok, 0)
        with s.block("if across == 0:"):
            s.line(f"kept = (p{operand} + ({self.row_offset(operand)}))[:, None]")
            for number, first in enumerate(self.steps()):
                at = f"kept + ({s.join(str(first), 'step')})[None, :]"
                s.line(f"tl.store({at}, a{number}.to({kind}){f', mask={ok}' if ok else ''})")
