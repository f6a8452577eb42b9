"""Warnings of a build about options that have no effect."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from smelt.builder._options import HALF2, PRECISIONS
from smelt.errors import sanitize_name
from smelt.types import symbols_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.builder._toolchain import Toolchain
    from smelt.ir import Graph

_LOG = logging.getLogger(__name__)


def warn_of_batch(size: int, graph: Graph) -> None:
    """Warn that ``max_batch_size`` has no effect on a network with an explicit batch."""
    is_open = any(symbols_of(*value.tensor.shape[:1]) for value in graph.inputs)
    _LOG.warning(
        "max_batch_size=%d has no effect: the batch of %s is part of its inputs' shapes, %s",
        size,
        sanitize_name(graph.name),
        "and shapes= (`--shape`) sets it" if is_open else "and it is fixed",
    )


def warn_of_precision(
    precision: str, tools: Toolchain, targets_without_precision: Sequence[str]
) -> None:
    """Warn that a precision has no effect on some or all targets."""
    storage = PRECISIONS[precision]
    if precision == HALF2 and tools.storage(storage) is storage:
        _LOG.warning(
            "precision='half2' means float16 here: only GPUs have half2 instructions, and the "
            "device is %s",
            tools.name,
        )
        return
    scope = (
        ""
        if len(targets_without_precision) == len(tools.parts())
        else f" for all targets of {tools.name}, which share one plan"
    )
    _LOG.warning(
        "precision=%r has no effect: %s cannot compute in it, and float32 is kept%s",
        precision,
        " and ".join(targets_without_precision),
        scope,
    )


def warn_of_estimates(target: str, advice: str) -> None:
    """Warn that no tactic can be timed."""
    _LOG.warning(
        "no tactic is timed: %s is not a device of this machine, so tactics are chosen by cost "
        "estimates. %s; tune='none' (`--tune none`) silences this warning",
        target,
        advice,
    )
