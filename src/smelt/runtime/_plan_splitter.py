"""Splits a plan into segments: launches that run in one native call or graph, and host steps."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from smelt.engine import HostCall, Launch
from smelt.errors import InternalError
from smelt.runtime._host_segments import PartitionSegment, ReferenceSegment
from smelt.types import shared_formula_limit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from smelt.engine import CachedRuntimeChecks, HostStep, Plan, Submit
    from smelt.runtime._host_segments import Check
    from smelt.runtime._host_step_memory import MemoryAccessor
    from smelt.runtime._plan_executor import PlanExecutor
    from smelt.runtime._segments import Segment, SegmentFactory


@shared_formula_limit
def split_plan(
    plan: Plan,
    segment_factory: SegmentFactory,
    runtime_checks: CachedRuntimeChecks | None = None,
    partitions: Sequence[PlanExecutor] = (),
    *,
    only_launches: bool = False,
) -> list[Segment]:
    """Return the plan's segments, in order.

    Args:
        plan: the plan.
        segment_factory: creates the segments of the device.
        runtime_checks: checks the symbols that a step determines before the next step runs; None
            for a plan without such symbols.
        partitions: run the engines that steps submit.
        only_launches: whether to leave out the segments of host steps.
    """
    splitter = _PlanSplitter(plan, segment_factory, partitions)
    access = None if only_launches else segment_factory.memory_access
    for number, step in enumerate(plan.steps):
        if isinstance(step, Launch):
            splitter.launches.append(step)
        elif access is None:
            splitter.finish()
        else:
            check = _unchecked
            if runtime_checks is not None:
                check = partial(runtime_checks.check, stage=number)
            splitter.add_host_step(step, access, check)
    splitter.finish()
    return splitter.segments


class _PlanSplitter:
    """Splits a plan into segments; holds those of the steps so far."""

    def __init__(
        self, plan: Plan, segment_factory: SegmentFactory, partitions: Sequence[PlanExecutor]
    ) -> None:
        self.segments: list[Segment] = []
        self.launches: list[Launch] = []
        """Launches that belong to the next segment."""
        self._plan = plan
        self._segment_factory = segment_factory
        self._partitions = partitions

    def finish(self) -> None:
        """Make a segment of the launches."""
        if self.launches:
            self.segments.append(self._segment_factory.native(self.launches, self._plan))
            self.launches = []

    def add_host_step(self, step: HostStep, access: MemoryAccessor, check: Check) -> None:
        """Add the segment of a host step."""
        plan = self._plan
        if isinstance(step, HostCall):
            self.finish()
            layers = self._segment_factory.layers
            self.segments.append(ReferenceSegment(step, plan, access, check, layers))
            return
        count = self._required_launches(step)
        if count < len(self.launches) and (overlap := self._segment_factory.overlap()) is not None:
            independent = self.launches[count:]
            del self.launches[count:]
            self.finish()
            begin, access = overlap
            self.segments.append(begin)
            self.launches = independent
        self.finish()
        partition = self._partitions[step.partition]
        self.segments.append(PartitionSegment(step, plan, access, partition))

    def _required_launches(self, step: Submit) -> int:
        """Return how many of the launches must be complete before a step reads its inputs.

        Only launches that write an input count: the plan verifier has checked that no step
        overwrites memory that a later one reads.
        """
        key = self._plan.memory_key
        read = set(map(key, step.inputs))
        writers = (
            number
            for number, launch in enumerate(self.launches)
            if not read.isdisjoint(key(launch.operands[p]) for p in launch.writes)
        )
        return max(writers, default=-1) + 1


def _unchecked(values: Mapping[str, int], /) -> None:
    """Raise InternalError: a step determines symbols that no runtime check covers."""
    raise InternalError(
        f"no runtime check covers the symbols that a step determines: {sorted(values)}"
    )
