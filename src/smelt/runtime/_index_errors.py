"""Error words: memory in which launches report an index that is out of range.

A launch that computes addresses from data stays inside its memory for any data, and writes the
error words of its layer if an index is out of range. The words are zero otherwise, so a run without
errors costs one comparison. An engine without such launches has no error words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from smelt.engine import ERROR_BYTES, Launch, Space
from smelt.errors import IndexRangeError
from smelt.types import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from smelt.devices.cpu import CpuAllocation
    from smelt.devices.cuda import PinnedAllocation
    from smelt.engine import Buffer, EngineHeader, LayerInfo, Plan, Step


class ErrorWords:
    """The error words of one context."""

    is_awaited = True
    """`PendingWork` protocol: a stream that follows these words checks them when synchronised."""

    def __init__(
        self,
        memory: CpuAllocation | PinnedAllocation,
        layers: Sequence[LayerInfo],
        reporters: range | None = None,
    ) -> None:
        """Zero memory of `ERROR_BYTES` for each layer.

        ``reporters`` are the numbers of the first to the last layer that can report an error; None
        is all layers. Only their words are compared after a run: a network has hundreds of layers,
        and its embeddings are the first few.
        """
        memory.bytes[:] = 0
        self._memory, self.address = memory, memory.address
        self._words = memory.bytes.view(np.int64).reshape(-1, 2)
        watched = range(len(layers)) if reporters is None else reporters
        self._bytes = memory.bytes.data[watched.start * ERROR_BYTES : watched.stop * ERROR_BYTES]
        self._zeros = bytes(self._bytes)
        self._layers = layers
        self._pending_error: IndexRangeError | None = None
        self._is_checked = True

    def begin(self) -> None:
        """Start a run that ends with `check`; discard errors of an interrupted run."""
        if not self._is_checked:
            self._words[:] = 0
        self._is_checked = False

    def expect_check(self) -> None:
        """Record that a run is enqueued whose errors `check` must report."""
        self._is_checked = False

    def forget(self) -> None:
        """Discard errors of an interrupted run, unless a `check` of an enqueued run is pending."""
        if self._is_checked:
            self._words[:] = 0

    @property
    def are_set(self) -> bool:
        """Whether launches reported an error since the last `check`."""
        return self._bytes.tobytes() != self._zeros

    def check(self) -> None:
        """Raise and reset a reported error; no launch may be running.

        Raises:
            IndexRangeError: an index was out of range; the error names the first such layer.
        """
        if self._bytes.tobytes() != self._zeros:
            raise self._take_error()
        self._is_checked = True

    def wait(self) -> None:
        """Raise what `check` raises, even after `close`."""
        error, self._pending_error = self._pending_error, None
        if error is not None:
            raise error
        self.check()

    def close(self) -> None:
        """Release the memory; a reported error is kept for `wait`. Idempotent."""
        if self.are_set:
            self._pending_error = self._take_error()
        self._bytes, self._zeros = memoryview(b""), b""
        self._memory.close()

    def _take_error(self) -> IndexRangeError:
        """Reset the words and return the error that they report."""
        words = self._words.copy()
        self._words[:] = 0
        self._is_checked = True
        number = int(np.argmax(words[:, 1] != 0))
        index, complement = words[number].tolist()
        return IndexRangeError(
            f"index {index} is out of range for an axis of {counted(~complement, 'element')}",
            node=str(self._layers[number]),
        )


def error_words(
    header: EngineHeader, allocate: Callable[[int], CpuAllocation | PinnedAllocation]
) -> ErrorWords | None:
    """Allocate the error words of a context; None if no launch of the engine writes any."""
    words = [b for p in header.plans for b in _written_error_words(p.steps, p)]
    if not words:
        return None
    numbers = [buffer.start // ERROR_BYTES for buffer in words]
    reporters = range(min(numbers), max(numbers) + 1)
    return ErrorWords(allocate(len(header.layers) * ERROR_BYTES), header.layers, reporters)


def reports_index_errors(steps: Sequence[Step], plan: Plan) -> bool:
    """Return whether launches among the steps write error words."""
    return next(_written_error_words(steps, plan), None) is not None


def _written_error_words(steps: Sequence[Step], plan: Plan) -> Iterator[Buffer]:
    """Yield the buffers of the error words that launches among the steps write."""
    for step in steps:
        if isinstance(step, Launch):
            buffers = [plan.buffers[view.buffer] for view in step.operands]
            yield from (buffer for buffer in buffers if buffer.space is Space.ERRORS)
