"""Passes over the steps of a plan, which the backend of its device lists.

A plan pass changes the order of the steps, the attributes of their launches, or what they prefetch.
Results never change. Passes run after the nodes are lowered and before memory is assigned, so that
the live ranges of tensors follow from the final order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from smelt.engine import Launch, accesses_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from smelt.backends._base import Tactic
    from smelt.engine import Buffer, Step


@dataclass(slots=True)
class UnallocatedPlan:
    """The steps of a plan before memory is assigned."""

    largest: Mapping[str, int]
    """Largest value of each symbol."""
    steps: list[Step] = field(default_factory=list["Step"])
    tactics: list[Tactic | None] = field(default_factory=list["Tactic | None"])
    """Tactic of each step's node; None for copies and fills of halos."""
    complete_before_step: list[int] = field(default_factory=list[int])
    """Number of steps, from the first, that are complete when each step starts."""
    buffers: list[Buffer] = field(default_factory=list["Buffer"])

    def append(self, step: Step, tactic: Tactic | None, complete: int) -> None:
        """Append a step before which the first ``complete`` steps must be complete."""
        self.steps.append(step)
        self.tactics.append(tactic)
        self.complete_before_step.append(complete)

    def order(self, groups: Sequence[Sequence[int]]) -> None:
        """Order the steps by groups of their numbers; the steps of a group may run at once."""
        steps, tactics = self.steps, self.tactics
        self.steps, self.tactics, self.complete_before_step = [], [], []
        for group in groups:
            complete = len(self.steps)
            for position, number in enumerate(group):
                step = steps[number]
                if isinstance(step, Launch):
                    step = replace(step, waits=position == 0)
                self.append(step, tactics[number], complete)

    def live_ranges(self) -> dict[int, tuple[int, int]]:
        """Return the first and the last step that accesses each buffer, by the buffer's number."""
        uses: dict[int, list[int]] = defaultdict(list)
        for number, step in enumerate(self.steps):
            for view, _ in accesses_of(step):
                uses[view.buffer].append(number)
        return {buffer: (numbers[0], numbers[-1]) for buffer, numbers in uses.items()}


PlanPass = Callable[[UnallocatedPlan], None]
"""A change of an unallocated plan in place."""
