"""The partition verifier: checks that an engine and its partitions agree on shared memory.

A step that submits a partition passes it addresses. Nothing but the views of the step says how much
memory is there, so the partition's bindings must have exactly the dtypes and shapes of the views,
for all symbol values of the plan, and the views must be contiguous.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from smelt.engine._plan import Submit
from smelt.errors import EngineFormatError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.engine._plan import EngineHeader, Plan, View
    from smelt.types import Dim


def verify_partitions(header: EngineHeader, partitions: Sequence[EngineHeader]) -> None:
    """Check the steps of an engine that submit its partitions.

    The plans of the engine and of the partitions must have been verified.

    Raises:
        EngineFormatError: a step and its partition do not fit.
    """
    for number, plan in enumerate(header.plans):
        for step in plan.steps:
            if not isinstance(step, Submit):
                continue
            if not 0 <= step.partition < len(partitions):
                raise EngineFormatError(
                    f"plan {number}: a step uses partition {step.partition}, which does not exist"
                )
            try:
                _verify_step(plan, step, partitions[step.partition])
            except EngineFormatError as error:
                where = f"plan {number}: partition {step.partition}"
                raise EngineFormatError(f"{where}: {error}") from None


def _verify_step(plan: Plan, step: Submit, partition: EngineHeader) -> None:
    """Check one step. Raises EngineFormatError: it does not fit the partition."""
    if len(partition.plans) != 1 or partition.plans[0].data_dependent_symbols:
        raise EngineFormatError(
            "the partition must have one plan, and the inputs must determine all of its symbols"
        )
    inner = partition.plans[0]
    ranges = {name: (low, high) for name, low, high in plan.symbols}
    for name, low, high in inner.symbols:
        outer_low, outer_high = ranges.get(name, (-1, -1))
        if not low <= outer_low <= outer_high <= high:
            raise EngineFormatError(
                f"the range of the symbol {name!r} in the partition, {low} to {high}, does not "
                "cover its range in the engine's plan"
            )
    bindings = partition.bindings
    views = (*step.inputs, *step.outputs)
    directions = [True] * len(step.inputs) + [False] * len(step.outputs)
    if [binding.is_input for binding in bindings] != directions:
        raise EngineFormatError(
            "the step's inputs and outputs do not match the partition's bindings in number or order"
        )
    for view, binding, shape in zip(views, bindings, inner.shapes(bindings), strict=True):
        if view.dtype is not binding.dtype or view.shape != shape or not _is_contiguous(view):
            raise EngineFormatError(
                f"an operand does not fit the binding {binding.name!r}: it is "
                f"{view.dtype.value}{list(view.shape)} where a contiguous "
                f"{binding.dtype.value}{list(shape)} is expected"
            )
    _verify_written_memory(plan, step)


def _verify_written_memory(plan: Plan, step: Submit) -> None:
    """Check that each output is in a buffer that no other operand is in.

    The buffers of an arena that a step uses do not overlap, which the plan verifier has checked.
    """
    reads, writes = (list(map(plan.memory_key, part)) for part in (step.inputs, step.outputs))
    if len(set(writes)) < len(writes) or not set(writes).isdisjoint(reads):
        raise EngineFormatError("an output shares its memory with another operand")


def _is_contiguous(view: View) -> bool:
    """Return whether the elements of a view have no gaps, for all symbol values."""
    stride: Dim = 1
    for extent, own in zip(reversed(view.shape), reversed(view.strides), strict=True):
        if own != stride and extent != 1:
            return False
        stride = stride * extent
    return not any(before or after for before, after in view.halo)
