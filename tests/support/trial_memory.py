"""The buffers of a trial's plan, poisoned, with room around each that must stay as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from smelt.engine import Space
from smelt.types import evaluate_dim

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.engine import Launch
    from tests.support.trials import Trial

Array = np.ndarray[Any, Any]
GUARD_BYTES = 4096
POISON = 0xFF
"""No number in any float."""


class TrialMemory:
    """Every buffer on the host, whole: what a run starts from, and what is left of it."""

    def __init__(
        self, trial: Trial, inputs: Sequence[Array] | None = None, poison: int = POISON
    ) -> None:
        """Lay out weights and inputs (the case's own if none are given); the rest is poison."""
        self.trial = trial
        self.poison = poison
        self.arrays: list[Array] = []
        given = list(trial.arrays.values()) if inputs is None else inputs
        self._inputs = len(given)
        data = np.frombuffer(bytes(trial.weights.data()), np.uint8)
        for buffer in trial.plan.buffers:
            memory = np.full(buffer.size_bytes + 2 * GUARD_BYTES, poison, np.uint8)
            inner = memory[GUARD_BYTES : GUARD_BYTES + buffer.size_bytes]
            if buffer.space is Space.WEIGHTS:
                inner[:] = data[buffer.start : buffer.start + buffer.size_bytes]
            elif buffer.space is Space.ERRORS:
                inner[:] = 0
            elif buffer.space is Space.INPUT:
                flat = np.ascontiguousarray(given[buffer.start]).reshape(-1).view(np.uint8)
                inner[: flat.size] = flat
            self.arrays.append(memory)
        self._before = [memory.copy() for memory in self.arrays]

    def words(self, launch: Launch, bases: Sequence[int]) -> list[int]:
        """The addresses of a launch's operands where the arrays lie at ``bases``."""
        values = self.trial.values
        return [
            bases[view.buffer] + GUARD_BYTES + evaluate_dim(view.offset, values)
            for view in launch.operands
        ]

    def detail(self) -> list[list[int]]:
        """The error words that launches wrote."""
        numbered = enumerate(self.trial.plan.buffers)
        words = (self.arrays[k] for k, buffer in numbered if buffer.space is Space.ERRORS)
        values = [memory[GUARD_BYTES:-GUARD_BYTES].view(np.int64).tolist() for memory in words]
        return [pair for pair in values if any(pair)]

    def damage(self) -> list[str]:
        """What was written that must not be: around buffers, weights, inputs."""
        found: list[str] = []
        for number, buffer in enumerate(self.trial.plan.buffers):
            memory, before = self.arrays[number], self._before[number]
            if buffer.space in {Space.WEIGHTS, Space.INPUT}:
                is_whole = np.array_equal(memory, before)
            else:
                end = GUARD_BYTES + buffer.size_bytes
                is_whole = bool(
                    (memory[:GUARD_BYTES] == self.poison).all()
                    and (memory[end:] == self.poison).all()
                )
            if not is_whole:
                found.append(f"buffer {number} ({buffer.space.value}) is written out of bounds")
        return found

    def outputs(self) -> tuple[Array, ...]:
        """What the graph's outputs hold."""
        plan, graph = self.trial.plan, self.trial.graph
        places = {b.start: k for k, b in enumerate(plan.buffers) if b.space is Space.OUTPUT}
        return tuple(
            self._output(self.arrays[places[self._inputs + number]], value.tensor)
            for number, value in enumerate(graph.outputs)
        )

    def _output(self, memory: Array, kind: Any) -> Array:
        shape = tuple(evaluate_dim(d, self.trial.values) for d in kind.shape)
        count = int(np.prod(shape)) * kind.dtype.size_bytes
        inner = memory[GUARD_BYTES : GUARD_BYTES + count]
        found: Array = inner.view(kind.dtype.numpy).reshape(shape)
        return found
