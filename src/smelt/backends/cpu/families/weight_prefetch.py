"""Weights asked for ahead of time, over the borders of launches.

Weights stream from memory: a network has more of them than the caches hold. Memory has time while
products of many pixels are computed, and too little where weights are many and pixels few
(Winograd's planes of small images, classifiers). Weights lie in the order of their use, so the
stream is one pointer that runs ahead of the computation: going backwards from the last launch, each
launch must find so much in the caches that memory delivers the rest while it runs. A launch for
which that is more than nothing sends its predecessors ahead.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from smelt.backends.cpu.families._microkernel_spec import MicrokernelSpec
from smelt.engine import Buffer, Launch, Space, View
from smelt.types import DType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.engine import Step

_BYTES_PER_PRODUCT: Final = 0.12
"""What memory delivers while a lane multiplies and adds once: some 16 GB/s a thread."""
_MAX_PREFETCH_DISTANCE_BYTES: Final = 12 << 20
"""How far the stream may be ahead: what the third cache surely keeps."""
_MAX_GAP_BYTES: Final = 256 << 10
"""Weights of other kernels between those of two products that the stream may cross."""
_CACHED_WEIGHTS_BYTES: Final = 16 << 20
"""Networks with fewer weights find them in the third cache."""
_RATE_BYTES: Final = 16
"""Rates are multiples of it, so that many launches share a kernel."""


@dataclass(slots=True)
class _PrefetchingLaunch:
    """A launch that can take part."""

    index: int
    launch: Launch
    panels: MicrokernelSpec
    begin: int
    """Its own weights, as offsets in the engine's."""
    end: int
    steps: int
    start: int = 0
    """Where the stream is when it starts, and when it ends."""
    stop: int = 0

    @property
    def loadable_bytes(self) -> int:
        """Bytes that memory delivers while it runs."""
        p = self.panels
        products = self.steps * p.step * p.tile[0] * p.tile[1] * p.panel_width
        return int(products * _BYTES_PER_PRODUCT)


def prefetch_weights(
    steps: Sequence[Step], buffers: Sequence[Buffer]
) -> tuple[tuple[Step, ...], tuple[Buffer, ...]]:
    """The steps with their shares of the stream, and the buffers with the stretches they read."""
    made, known = list(steps), list(buffers)
    products = _prefetching_launches(steps, buffers)
    if not products or sum(p.end - p.begin for p in products) < _CACHED_WEIGHTS_BYTES:
        return tuple(made), tuple(known)
    _plan_prefetch(products)
    for product in products:
        length = product.stop - product.start
        if length > 0 and (product.start, product.stop) != (product.begin, product.end):
            known.append(Buffer(Space.WEIGHTS, product.start, length))
            made[product.index] = _with_prefetch(product, len(known) - 1, length)
    return tuple(made), tuple(known)


def _prefetching_launches(
    steps: Sequence[Step], buffers: Sequence[Buffer]
) -> list[_PrefetchingLaunch]:
    found: list[_PrefetchingLaunch] = []
    for index, step in enumerate(steps):
        if not isinstance(step, Launch) or not isinstance(step.chunks, int):
            continue
        if dict(step.kernel.parameters).get("kernel") != "panels":
            continue
        panels = MicrokernelSpec.from_spec(step.kernel)
        read = [buffers[view.buffer] for view in step.operands]
        weights = [buffer for buffer in read if buffer.space is Space.WEIGHTS]
        if panels.has_uniform_panels or not panels.is_known or not panels.steps or not weights:
            continue
        begin = min(buffer.start for buffer in weights)
        end = max(buffer.start + buffer.size_bytes for buffer in weights)
        steps_in_all = step.chunks * panels.chunk_steps
        found.append(_PrefetchingLaunch(index, step, panels, begin, end, steps_in_all))
    return found


def _plan_prefetch(products: Sequence[_PrefetchingLaunch]) -> None:
    """Say for each launch where the stream is before and after it."""
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
    """The launch asking for a stretch of weights."""
    rate = -(-length // product.steps)
    rate = -(-rate // _RATE_BYTES) * _RATE_BYTES
    launch, panels = product.launch, replace(product.panels, prefetch_ahead=rate)
    view = View(buffer, 0, DType.UINT8, (length,), (1,))
    kernel = panels.spec(launch.kernel.family)
    return replace(launch, kernel=kernel, operands=(*launch.operands, view))
