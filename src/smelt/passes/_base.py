"""The base class of graph passes, and their results and notes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from smelt.ir import Graph

_MAX_NAMES: Final = 32
"""Largest number of layer names in either field of a note. Chosen without a measurement."""


@dataclass(frozen=True, slots=True)
class Note:
    """One change that a pass made to some layers, or the reason why it made none."""

    before: tuple[str, ...]
    """Layers of the model that the pass considered."""
    after: tuple[str, ...] = ()
    """Layers of the replacement node; empty if the layers were removed or not changed."""
    detail: str = ""
    """A description of the change, or the reason for the refusal."""
    applied: bool = True

    def __post_init__(self) -> None:
        # Merging a chain of a thousand layers pair by pair would list half a million names.
        for field in ("before", "after"):
            names: tuple[str, ...] = getattr(self, field)
            if len(names) > _MAX_NAMES:
                detail = f"{len(names) - _MAX_NAMES} more"
                object.__setattr__(self, field, (*names[:_MAX_NAMES], detail))

    def __str__(self) -> str:
        before = " + ".join(self.before)
        if not self.applied:
            return f"{before}: kept, {self.detail}"
        after = " + ".join(self.after) if self.after else "(nothing)"
        return f"{before} -> {after}" + (f": {self.detail}" if self.detail else "")

    @staticmethod
    def refusal(layers: tuple[str, ...], reason: str) -> Note:
        """Return a note that gives the reason why layers were not changed."""
        return Note(layers, (), reason, applied=False)


@dataclass(frozen=True, slots=True)
class PassResult:
    """The outcome of one pass: whether it changed the graph, and its notes."""

    modified: bool
    notes: tuple[Note, ...] = ()

    @staticmethod
    def of(notes: Iterable[Note]) -> PassResult:
        """Return the result of a pass that writes a note for every change it makes."""
        all_notes = tuple(notes)
        return PassResult(any(note.applied for note in all_notes), all_notes)


@dataclass(frozen=True)
class Pass(ABC):
    """A graph transformation that preserves results; its dataclass fields are its options."""

    name: ClassVar[str]
    """Name in reports and on the command line, in kebab-case."""
    discovers_values: ClassVar[bool] = False
    """Whether inference may determine more values after this pass. If so, an error of inference
    then is an error of the network and not of the pass.
    """

    def requires(self, graph: Graph) -> None:
        """Check the preconditions of the pass.

        Raises:
            GraphError: the graph does not meet them.
        """
        del graph

    def started(self, graph: Graph) -> Pass:
        """Return the pass to apply to a graph and its regions, with its counters at their start."""
        del graph
        return self

    @abstractmethod
    def apply(self, graph: Graph) -> PassResult:
        """Transform the graph in place and return what changed."""

    def ensures(self, graph: Graph) -> None:
        """Check the postconditions of the pass.

        Raises:
            GraphError: the graph does not meet them.
        """
        del graph
