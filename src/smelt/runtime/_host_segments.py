"""Segments of host steps: the reference of an op, or a partition: an engine of another device."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from smelt.engine import Space
from smelt.errors import InternalError, ShapeError
from smelt.ir import count_excess, evaluate
from smelt.runtime._host_step_memory import HostStepMemory
from smelt.runtime._segments import Segment
from smelt.types import counted, override

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from smelt.engine import HostCall, LayerInfo, Plan, Submit
    from smelt.runtime._host_step_memory import MemoryAccessor, MemoryMap
    from smelt.runtime._plan_executor import PlanExecutor

Check = Callable[[Mapping[str, int]], None]
"""Checks the conditions on symbols whose values a step has just determined."""


class _HostSegment(Segment):
    """A host step on the memory of its plan."""

    def __init__(self, step: HostCall | Submit, plan: Plan, memory_access: MemoryAccessor) -> None:
        self.layer = step.layer
        self._memory = HostStepMemory(plan, memory_access)
        self._milliseconds = 0.0
        views = [view for view in step.inputs if view is not None]
        self.reads_input = any(plan.buffers[v.buffer].space is Space.INPUT for v in views)

    def run(self, values: dict[str, int], memories: MemoryMap, *, timed: bool) -> None:
        """Run the step. Raises the errors of `_compute`."""
        start_ns = time.perf_counter_ns() if timed else 0
        self._compute(values, memories)
        if timed:
            self._milliseconds = (time.perf_counter_ns() - start_ns) / 1e6

    @abstractmethod
    def _compute(self, values: dict[str, int], memories: MemoryMap) -> None:
        """Compute the outputs from the inputs; set the symbols that the results determine."""

    def milliseconds(self) -> list[tuple[int, float]]:
        """Return the layer and milliseconds of the last timed run, copies included."""
        return [(self.layer, self._milliseconds)]


class ReferenceSegment(_HostSegment):
    """A host step: runs the reference of an op on the plan's memory."""

    def __init__(
        self,
        step: HostCall,
        plan: Plan,
        memory_access: MemoryAccessor,
        check: Check,
        layers: Sequence[LayerInfo] = (),
    ) -> None:
        super().__init__(step, plan, memory_access)
        self._check = check
        self._step = step
        # Most engines have no host step and need not load the ops.
        from smelt.ops import op_from_json

        self._op = op_from_json(step.op)
        self._where = str(layers[step.layer]) if layers else self._op.name

    @override
    def _compute(self, values: dict[str, int], memories: MemoryMap) -> None:
        """Run the reference; set the symbols that its results determine, and check them.

        Raises:
            ShapeError: a result is larger than the plan allows, its extents violate a guard, or its
                shape or dtype differs from what the engine expects.
            IndexRangeError: an index is out of range.
            GraphError: the reference fails on the inputs in another way.
        """
        inputs = [
            None if view is None else self._memory.load(view, values, memories).array
            for view in self._step.inputs
        ]
        for array in inputs:
            if array is not None:
                array.flags.writeable = False
        results = evaluate(self._op, inputs, self._where, values)
        if len(results) < len(self._step.outputs):
            raise InternalError(
                f"the reference implementation of {self._op.name} returns "
                f"{counted(len(results), 'result')}, but the step has "
                f"{counted(len(self._step.outputs), 'output')}"
            )
        self._set_decided_symbols(results, values)
        for view, result in zip(self._step.outputs, results, strict=False):
            operand = self._memory.load(view, values, memories)
            target = operand.array
            if target.shape != result.shape or target.dtype != result.dtype:
                raise ShapeError(
                    f"the result is {result.dtype}{list(result.shape)}, but the engine reserved "
                    f"memory for {target.dtype}{list(target.shape)}",
                    node=self._op.name,
                )
            target[...] = result
            self._memory.store(operand)

    def _set_decided_symbols(self, results: Sequence[NDArray[Any]], values: dict[str, int]) -> None:
        """Set the symbols that the results determine, and check the conditions on them."""
        for name, output, axis in self._step.sizes:
            size = int(results[output].shape[axis])
            if size > values[name]:  # the value so far is the capacity
                raise ShapeError(count_excess(name, size, values[name]), node=self._where)
            values[name] = size
        if self._step.sizes:
            self._check(values)


class PartitionSegment(_HostSegment):
    """A step that runs a partition on contiguous host arrays."""

    def __init__(
        self, step: Submit, plan: Plan, memory_access: MemoryAccessor, partition: PlanExecutor
    ) -> None:
        super().__init__(step, plan, memory_access)
        self._step, self._partition = step, partition

    @override
    def _compute(self, values: dict[str, int], memories: MemoryMap) -> None:
        """Run the partition. Raises the errors of its run."""
        inputs = [self._memory.load(view, values, memories) for view in self._step.inputs]
        outputs = [
            self._memory.load(view, values, memories, is_overwritten=True)
            for view in self._step.outputs
        ]
        self._partition.submit(values, [operand.array for operand in (*inputs, *outputs)])
        for operand in outputs:
            self._memory.store(operand)
