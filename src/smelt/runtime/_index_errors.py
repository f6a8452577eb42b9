"""Error words: where launches tell the host of an index that is out of range.

A launch that computes an address from data stays inside its memory whatever the data say, and
writes its layer's words when an index is out of range. Words are zero until then: all that a run
without errors costs is one comparison, and an engine without such launches has no words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from smelt.engine import ERROR_BYTES, Launch, Space
from smelt.errors import IndexRangeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from smelt.engine import Buffer, EngineHeader, LayerInfo, Plan, Step


class Memory(Protocol):
    """What a device allocates: bytes that the host sees, where launches write them."""

    @property
    def address(self) -> int:
        """Where launches write."""
        ...

    @property
    def bytes(self) -> NDArray[np.uint8]:
        """The same memory for the host."""
        ...

    def close(self) -> None:
        """Give it back."""
        ...


class ErrorWords:
    """The error words of one context."""

    is_awaited = True
    """A stream that follows a run waits for its errors, too."""

    def __init__(
        self, memory: Memory, layers: Sequence[LayerInfo], reporters: range | None = None
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
        self._none = bytes(self._bytes)
        self._layers = layers
        self._last: IndexRangeError | None = None
        self._is_checked = True

    def begin(self) -> None:
        """Start a run that ends with `check`: what one that was cut off has left is forgotten."""
        if not self._is_checked:
            self._words[:] = 0
        self._is_checked = False

    def expect_check(self) -> None:
        """Note a queued run: `check` is still to tell of it."""
        self._is_checked = False

    def forget(self) -> None:
        """Forget what a run told of that was cut off and has ended, but nothing that is owed."""
        if self._is_checked:
            self._words[:] = 0

    @property
    def are_set(self) -> bool:
        """Whether launches told of an error since the last `check`."""
        return self._bytes.tobytes() != self._none

    def check(self) -> None:
        """Forget what launches told of, if they did; none of them may be running.

        Raises:
            IndexRangeError: an index was out of range; it names the first layer that met one.
        """
        if self._bytes.tobytes() != self._none:
            raise self._taken()
        self._is_checked = True

    def wait(self) -> None:
        """Raise what `check` would, also once the words are closed."""
        error, self._last = self._last, None
        if error is not None:
            raise error
        self.check()

    def close(self) -> None:
        """Give the memory back; what launches told of is kept for `wait`. Again is harmless."""
        if self.are_set:
            self._last = self._taken()
        self._bytes, self._none = memoryview(b""), b""
        self._memory.close()

    def _taken(self) -> IndexRangeError:
        words = self._words.copy()
        self._words[:] = 0
        self._is_checked = True
        number = int(np.argmax(words[:, 1] != 0))
        index, complement = words[number].tolist()
        return IndexRangeError(
            f"{index} is out of range for an axis of {~complement} elements",
            node=str(self._layers[number]),
        )


def error_words(header: EngineHeader, allocate: Callable[[int], Memory]) -> ErrorWords | None:
    """The error words of a context of the engine; None if no launch writes any."""
    words = [b for p in header.plans for b in _written_error_words(p.steps, p)]
    if not words:
        return None
    numbers = [buffer.start // ERROR_BYTES for buffer in words]
    reporters = range(min(numbers), max(numbers) + 1)
    return ErrorWords(allocate(len(header.layers) * ERROR_BYTES), header.layers, reporters)


def reports_index_errors(steps: Sequence[Step], plan: Plan) -> bool:
    """Whether launches among the steps write error words."""
    return next(_written_error_words(steps, plan), None) is not None


def _written_error_words(steps: Sequence[Step], plan: Plan) -> Iterator[Buffer]:
    """Buffers of the error words that launches among the steps write."""
    for step in steps:
        if isinstance(step, Launch):
            buffers = [plan.buffers[view.buffer] for view in step.operands]
            yield from (buffer for buffer in buffers if buffer.space is Space.ERRORS)
