"""What a pass is, and what it reports."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from smelt.ir import Graph

_MAX_NAMES: Final = 32
"""Of layers in a note."""


@dataclass(frozen=True, slots=True)
class Note:
    """One thing that a pass did to layers, or did not do and why."""

    before: tuple[str, ...]
    """Layers of the model that were looked at."""
    after: tuple[str, ...] = ()
    """Layers of the node that stands for them now; empty when they are gone or stayed."""
    detail: str = ""
    """What was done; for a refusal, why not."""
    applied: bool = True

    def __post_init__(self) -> None:
        # A chain of a thousand layers that is merged link by link would list half a million names.
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
        """Say why layers were left as they are."""
        return Note(layers, (), reason, applied=False)


@dataclass(frozen=True, slots=True)
class PassResult:
    """Whether a pass changed the graph, and its notes."""

    modified: bool
    notes: tuple[Note, ...] = ()

    @staticmethod
    def of(notes: Iterable[Note]) -> PassResult:
        """The result of a pass that notes every change it makes."""
        kept = tuple(notes)
        return PassResult(any(note.applied for note in kept), kept)


@dataclass(frozen=True)
class Pass(ABC):
    """A transformation of graphs that changes no result; its dataclass fields are its options."""

    name: ClassVar[str]
    """The name in reports and on the command line, in kebab-case."""
    discovers_values: ClassVar[bool] = False
    """Whether inference knows more values behind it: what it refuses then is wrong in the network,
    not in the pass."""

    def requires(self, graph: Graph) -> None:
        """Check what must hold before. Raises GraphError."""
        del graph

    def started(self, graph: Graph) -> Pass:
        """The pass as it goes over a graph and its regions: one that counts starts to count."""
        del graph
        return self

    @abstractmethod
    def apply(self, graph: Graph) -> PassResult:
        """Change the graph in place, and say what was done."""

    def ensures(self, graph: Graph) -> None:
        """Check what holds afterwards. Raises GraphError."""
        del graph
