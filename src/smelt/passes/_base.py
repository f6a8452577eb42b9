"""The base classes of graph passes, and their results and notes."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Final

from smelt.ir import FreshNames, Graph, Node
from smelt.types import override

MAX_SWEEPS: Final = 1000
"""Limit of sweeps of a pass that normally ends when a sweep changes nothing. Chosen without a
measurement."""
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
            return f"{before}: kept: {self.detail}"
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
    """A graph transformation that preserves results.

    A pass with options is a frozen dataclass, whose fields they are.
    """

    name: ClassVar[str]
    """Name in reports and on the command line: that of the class, in kebab-case."""
    discovers_values: ClassVar[bool] = False
    """Whether inference may determine more values after this pass. If so, an error of inference
    then is an error of the network and not of the pass.
    """

    def __init_subclass__(cls) -> None:
        cls.name = vars(cls).get("name") or re.sub(r"\B(?=[A-Z])", "-", cls.__name__).lower()

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


class NodePass(Pass):
    """A pass that considers one node after the other."""

    max_sweeps: ClassVar[int] = 1
    """Limit of sweeps over the graph; the pass ends when a sweep changes nothing."""

    @abstractmethod
    def rewrite(self, graph: Graph, node: Node, names: FreshNames) -> Note | None:
        """Transform the graph around a node, and return what changed or why nothing did.

        The node may have been removed by the rewriting of a node before it.
        """

    @override
    def apply(self, graph: Graph) -> PassResult:
        notes: list[Note] = []
        names = FreshNames(graph)
        for _ in range(self.max_sweeps):
            made = [n for node in list(graph.nodes) if (n := self.rewrite(graph, node, names))]
            notes.extend(made)
            if not any(note.applied for note in made):
                break
        return PassResult.of(notes)
