"""Lifetimes of the tensors of a plan, from its build report or from its steps."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from smelt.engine import Space, accesses_of
from smelt.inspect._report import TensorLifetime
from smelt.types import items_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from smelt.engine import Plan


def reported_lifetimes(record: Mapping[str, object]) -> Iterator[TensorLifetime]:
    """Yield the valid tensor lifetimes of a plan's entry in the build report."""
    for entry in items_of(record.get("memory")):
        match entry:
            case [str(name), int(offset), int(size), int(first), int(last)] if (
                0 <= first <= last and size >= 0 and offset >= 0
            ):
                yield TensorLifetime(name, offset, size, first, last)
            case _:
                continue


def lifetimes_of_plan(plan: Plan) -> Iterator[TensorLifetime]:
    """Yield the lifetimes of arena buffers that follow from the steps, if the report has none."""
    live_ranges: dict[int, tuple[int, int]] = {}
    for number, step in enumerate(plan.steps):
        for view, _ in accesses_of(step):
            # The plan verifier has not checked an engine that was only read.
            if not 0 <= view.buffer < len(plan.buffers):
                continue
            if plan.buffers[view.buffer].space is Space.ARENA:
                first, _ = live_ranges.get(view.buffer, (number, number))
                live_ranges[view.buffer] = (first, number)
    for index, (first, last) in live_ranges.items():
        buffer = plan.buffers[index]
        yield TensorLifetime(f"buffer {index}", buffer.start, buffer.size_bytes, first, last)


def max_live_bytes(memory: Sequence[TensorLifetime]) -> int:
    """Return the largest total size of tensors that are alive at once."""
    changes = sorted(
        [(life.first_step, life.size_bytes) for life in memory]
        + [(life.last_step + 1, -life.size_bytes) for life in memory]
    )
    return max(accumulate(change for _, change in changes), default=0)
