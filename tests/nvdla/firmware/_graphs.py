"""Random task graphs that a compiler could have made."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from smelt.nvdla.loadable import OperationEvent, OperationType
from tests.nvdla.firmware._tasks import TaskBuilder

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn

_STAGES = (
    (OperationType.BDMA,),
    (OperationType.CONV, OperationType.SDP),
    (OperationType.CONV, OperationType.SDP, OperationType.PDP),
    (OperationType.SDP,),
    (OperationType.SDP, OperationType.PDP),
    (OperationType.PDP,),
    (OperationType.CDP,),
    (OperationType.RUBIK,),
)
_EVENTS = (OperationEvent.COMPLETED, OperationEvent.PROGRAMMED, OperationEvent.ENABLED)
_CDMA_EVENTS = (OperationEvent.CDMA_WEIGHTS_DONE, OperationEvent.CDMA_DATA_DONE)
_TABLE_USERS = (OperationType.SDP, OperationType.CDP)


@st.composite
def task_graphs(draw: DrawFn, most_stages: int = 10) -> TaskBuilder:
    """Stages one after another; each is one operation, or several that stream into each other."""
    task = TaskBuilder(num_rois=draw(st.sampled_from((1, 1, 1, 2, 3))))
    stage_of: list[int] = []
    for stage in range(draw(st.integers(1, most_stages))):
        kinds = draw(st.sampled_from(_STAGES))
        members = [task.add(kind) for kind in kinds]
        stage_of += [stage] * len(members)
        for source, target in itertools.pairwise(members):
            task.fuse(source, target)
        for member in members:
            if kinds == (OperationType.BDMA,):
                task.operations[member].is_empty = draw(st.booleans())
            if task.operations[member].op_type in _TABLE_USERS:
                task.operations[member].lut_index = draw(st.integers(-1, 2))
    for source, operation in enumerate(task.operations):
        for target in range(source + 1, len(task.operations)):
            wanted = task.operations[target].op_type
            is_free = operation.consumers[wanted].index == -1 and wanted != operation.op_type
            if is_free and stage_of[target] > stage_of[source] and draw(st.booleans()):
                task.connect(source, target, draw(st.sampled_from(_events_of(operation.op_type))))
    task.chain(draw(st.sampled_from((*_EVENTS, OperationEvent.NONE))))
    return task


def _events_of(op_type: OperationType) -> tuple[OperationEvent, ...]:
    return (*_EVENTS, *_CDMA_EVENTS) if op_type is OperationType.CONV else _EVENTS
