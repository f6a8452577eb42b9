"""Prefetching of weights across launches.

A network has more weights than the caches hold, so weights stream from memory. Memory is idle while
products of many pixels are computed, and too slow where weights are many and pixels few (Winograd
planes of small images, classifiers). Weights lie in the order of their use, so the stream is one
pointer that runs ahead of the computation. Going backwards from the last launch, the plan
determines how many of a launch's weights must be in cache when it starts, such that memory delivers
the rest while it runs. If that is more than nothing, earlier launches prefetch it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from smelt.backends.cpu.families._microkernel_spec import MicrokernelSpec
from smelt.engine import Buffer, Launch, Space, View
from smelt.types import DType

if TYPE_CHECKING:
    from smelt.backends._plan_passes import UnallocatedPlan

_BYTES_PER_PRODUCT: Final = 0.12
"""Bytes that memory delivers per multiply-add of one lane: about 16 GB/s per thread. ResNet-50
changes by at most 1 % if memory is assumed to be 0.5 to 4 times as fast
(docs/lab/convolutions.md)."""
_MAX_PREFETCH_DISTANCE_BYTES: Final = 12 << 20
"""Largest lead of the stream in bytes: what the L3 cache keeps with certainty. ResNet-50 changes by
at most 1 % with 20 MB (docs/lab/convolutions.md)."""
_MAX_GAP_BYTES: Final = 256 << 10
"""Largest gap in bytes of other kernels' weights between two products that the stream crosses.
Chosen without a measurement."""
_CACHED_WEIGHTS_BYTES: Final = 16 << 20
"""Total size of weights in bytes below which they stay in the L3 cache between runs. Chosen without
a measurement."""
_RATE_BYTES: Final = 16
"""Granularity in bytes of the prefetch rate. Rounded rates make more launches share one kernel.
Chosen without a measurement."""


@dataclass(slots=True)
class _PrefetchingLaunch:
    """A launch of the microkernel whose weights belong to the stream."""

    index: int
    """Index of the launch among the plan's steps."""
    launch: Launch
    panels: MicrokernelSpec
    begin: int
    """Start of its weights, as a byte offset in the engine's weights."""
    end: int
    """End of its weights, as a byte offset in the engine's weights."""
    steps: int
    """Iterations of the microkernel's loops in the whole launch, each of which can prefetch."""
    start: int = 0
    """Position of the stream when the launch starts, as a byte offset."""
    stop: int = 0
    """Position of the stream when the launch ends, as a byte offset."""

    @property
    def loadable_bytes(self) -> int:
        """Bytes that memory delivers while the launch runs."""
        p = self.panels
        products = self.steps * p.step * p.tile[0] * p.tile[1] * p.panel_width
        return int(products * _BYTES_PER_PRODUCT)


def prefetch_weights(plan: UnallocatedPlan) -> None:
    """Add prefetching to the launches, and a buffer for each range of weights that they prefetch.

    Plans whose weights fit into the L3 cache do not change.
    """
    products = _prefetching_launches(plan)
    if not products or sum(p.end - p.begin for p in products) < _CACHED_WEIGHTS_BYTES:
        return
    _plan_prefetch(products)
    for product in products:
        length = product.stop - product.start
        if length > 0 and (product.start, product.stop) != (product.begin, product.end):
            buffer = len(plan.buffers)
            plan.buffers.append(Buffer(Space.WEIGHTS, product.start, length))
            plan.steps[product.index] = _with_prefetch(product, buffer, length)


def _prefetching_launches(plan: UnallocatedPlan) -> list[_PrefetchingLaunch]:
    """Return the launches of microkernels with constant extents and weights, in plan order."""
    launches: list[_PrefetchingLaunch] = []
    for index, step in enumerate(plan.steps):
        if not isinstance(step, Launch) or not isinstance(step.chunks, int):
            continue
        if dict(step.kernel.parameters).get("kernel") != "panels":
            continue
        panels = MicrokernelSpec.from_spec(step.kernel)
        operand_buffers = [plan.buffers[view.buffer] for view in step.operands]
        weights = [buffer for buffer in operand_buffers if buffer.space is Space.WEIGHTS]
        if panels.has_uniform_panels or not panels.is_known or not panels.steps or not weights:
            continue
        begin = min(buffer.start for buffer in weights)
        end = max(buffer.start + buffer.size_bytes for buffer in weights)
        steps_in_all = step.chunks * panels.chunk_steps
        launches.append(_PrefetchingLaunch(index, step, panels, begin, end, steps_in_all))
    return launches


def _plan_prefetch(products: Sequence[_PrefetchingLaunch]) -> None:
    """Set the stream's position at the start and the end of each launch, last launch first."""
    following: _PrefetchingLaunch | None = None
    for product in reversed(products):
        product.stop = product.end
        near = following is not None and 0 <= following.begin - product.end <= _MAX_GAP_BYTES
        if near and following is not None and following.start > following.begin:
            product.stop = following.start
        earliest = max(product.begin, product.stop - product.loadable_bytes)
        product.start = min(earliest, product.begin + _MAX_PREFETCH_DISTANCE_BYTES)
        following = product


def _with_prefetch(product: _PrefetchingLaunch, buffer: int, length: int) -> Launch:
    """Return the launch with a range of weights to prefetch as one more operand."""
    rate = -(-length // product.steps)
    rate = -(-rate // _RATE_BYTES) * _RATE_BYTES
    launch, panels = product.launch, replace(product.panels, prefetch_ahead=rate)
    view = View(buffer, 0, DType.UINT8, (length,), (1,))
    kernel = panels.spec(launch.kernel.family)
    return replace(launch, kernel=kernel, operands=(*launch.operands, view))
