"""Launches with their arguments: queued one by one, or recorded into graphs that are moved.

Arguments are one array of 64-bit words. The driver reads them when a launch is queued or recorded;
a graph keeps what it read, so where a word changes the graph's node must be given its words again.

Source: CUDA Driver API reference, "Graph Management" (cuGraphExecKernelNodeSetParams) and "Stream
Management" (cuStreamGetCaptureInfo, cuStreamUpdateCaptureDependencies).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from smelt.devices.cuda._graph import CudaGraph
from smelt.devices.cuda._kernel_loader import LoadedKernel
from smelt.errors import ContextError, InternalError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from numpy.typing import NDArray

    from smelt.devices.cuda._kernel_loader import LoadedCall
    from smelt.devices.cuda._stream import CudaEvent, CudaStream

_SET_DEPENDENCIES: Final = 1
_WORD_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class CudaLaunch:
    """One launch of a list."""

    kernel: LoadedKernel | LoadedCall
    words: int
    """Argument words, scratch left out."""
    wait_for: int
    """How many rows of the list must be complete before this one starts."""
    uses_pdl: bool = True
    """Whether it may begin before they are, if its code can wait by itself."""


@dataclass(frozen=True, slots=True)
class _Arguments:
    """Where the pointers to one launch's words lie, and the words."""

    address: int
    words: NDArray[np.int64]


class CudaRunList:
    """Rows with their words and numbers of blocks."""

    def __init__(
        self, rows: Sequence[CudaLaunch], words: NDArray[np.int64], blocks: Sequence[int]
    ) -> None:
        """Take a list's rows; ``words`` has those of all rows, one row's after another's.

        Raises:
            ContextError: a number of blocks is negative.
        """
        if min(blocks, default=0) < 0:
            raise ContextError("a launch has a negative number of blocks")
        self.rows, self.blocks = rows, blocks
        self.words = np.append(words, np.int64(0))
        """Who changes them gives them again to each graph that is kept; the last one is 0."""
        base = int(self.words.ctypes.data)
        nothing = base + len(words) * _WORD_BYTES
        pointers: list[int] = []
        starts: list[tuple[int, int]] = []
        first = 0
        for row in rows:
            starts.append((len(pointers) * _WORD_BYTES, first))
            pointers += range(base + first * _WORD_BYTES, nothing, _WORD_BYTES)[: row.words]
            pointers += [nothing] * row.kernel.scratch_words
            first += row.words
        self._pointers = np.array([*pointers, 0], np.uint64)
        place = int(self._pointers.ctypes.data)
        self.arguments = [
            _Arguments(place + start, self.words[first : first + row.words])
            for row, (start, first) in zip(rows, starts, strict=True)
        ]

    def launch(self, row: int, stream: CudaStream, *, uses_pdl: bool = True) -> None:
        """Queue one row. Raises DeviceError: it is refused, or earlier work failed."""
        early = uses_pdl and self.rows[row].uses_pdl and not self._follows_call(row)
        self.rows[row].kernel.launch(self.blocks[row], self.arguments[row], stream, uses_pdl=early)

    def _follows_call(self, row: int) -> bool:
        """Whether a library's call is among what a row waits for: who knows what that ends with."""
        end = self.rows[row].wait_for
        first = self.rows[end - 1].wait_for if end else 0
        return any(not before.kernel.can_update_in_graph for before in self.rows[first:end])

    def launch_all(self, stream: CudaStream) -> None:
        """Queue every row, one after another. Raises what `launch` does."""
        for row in range(len(self.rows)):
            self.launch(row, stream)


class RunGraph:
    """A run list's rows as a graph."""

    def __init__(
        self,
        rows: CudaRunList,
        stream: CudaStream,
        *,
        part: range | None = None,
        updatable_rows: Collection[int] = (),
        marks: Mapping[int, CudaEvent] | None = None,
    ) -> None:
        """Record the rows.

        Args:
            rows: the list, which must live as long.
            stream: nothing else may use it meanwhile.
            part: consecutive rows, if not all; the first must not wait for less than all before.
            updatable_rows: the rows whose words may change: `move` gives them to the graph. A
                library's calls cannot be among them.
            marks: events to be marked before the rows of these numbers, and after the last. With
                marks all rows run one after another.

        Raises:
            DeviceError: a launch is refused.
        """
        self._list = rows
        self._device = stream.device
        self._nodes: dict[int, Any] = {}
        self._parameters: dict[int, Any] = {}
        self._moving = frozenset(updatable_rows)
        chosen = range(len(rows.rows)) if part is None else part
        branches = any(rows.rows[number].wait_for != number for number in chosen)

        def record() -> None:
            if marks is not None:
                self._record_marked(stream, chosen, marks)
            elif branches:
                self._record_branches(stream, chosen)
            else:
                for row in chosen:
                    self._record_row(stream, row)

        # A library may load code when it is first called.
        calls = any(not rows.rows[number].kernel.can_update_in_graph for number in chosen)
        self._graph = CudaGraph(stream, record, loads_code=calls)

    def _record_row(self, stream: CudaStream, row: int, *, uses_pdl: bool = True) -> None:
        self._list.launch(row, stream, uses_pdl=uses_pdl)
        if row in self._moving and self._list.blocks[row]:
            self._nodes[row] = captured_nodes(stream)[0]

    def _record_marked(
        self, stream: CudaStream, part: range, marks: Mapping[int, CudaEvent]
    ) -> None:
        for row in part:
            if row in marks:
                marks[row].record_in_graph(stream)
            self._record_row(stream, row, uses_pdl=False)
        if part.stop in marks:
            marks[part.stop].record_in_graph(stream)

    def _record_branches(self, stream: CudaStream, part: range) -> None:
        """Rows that wait for the same rows lie side by side."""
        before: list[Any] = []
        side_by_side: list[Any] = []
        for number in part:
            if self._list.rows[number].wait_for == number and side_by_side:
                before, side_by_side = side_by_side, []
            depend_on(stream, before)
            self._record_row(stream, number)
            if self._list.blocks[number]:
                side_by_side.append(captured_nodes(stream)[0])
        depend_on(stream, side_by_side or before)

    def move(self, row: int) -> None:
        """Give the graph the words that a row has now, for its next launches.

        Raises:
            CudaError: the driver refuses.
        """
        node = self._nodes.get(row)
        if node is None:
            return
        if row not in self._parameters:
            self._parameters[row] = self._parameters_of(row)
        self._graph.set_kernel(node, self._parameters[row])

    def _parameters_of(self, row: int) -> Any:
        kernel = self._list.rows[row].kernel
        if not isinstance(kernel, LoadedKernel):
            raise InternalError("the arguments of a library call cannot be updated in a graph")
        made = self._device.driver.api.CUDA_KERNEL_NODE_PARAMS()
        made.func = kernel.function.handle
        made.gridDimX, made.gridDimY, made.gridDimZ = self._list.blocks[row], 1, 1
        made.blockDimX, made.blockDimY, made.blockDimZ = kernel.kernel.threads, 1, 1
        made.sharedMemBytes = kernel.kernel.dynamic_shared_bytes
        made.kernelParams = self._list.arguments[row].address
        return made

    def launch(self, stream: CudaStream) -> None:
        """Queue all rows. Raises CudaError: earlier work failed."""
        self._graph.launch(stream)

    def close(self) -> None:
        """Let the graph go once its work is done; again is harmless."""
        self._graph.close()


def captured_nodes(stream: CudaStream) -> list[Any]:
    """Return the nodes on which the next work of a stream that is being captured will depend."""
    device = stream.device
    api = device.driver.api
    # Until CUDA 13 the first name was that of a form which refuses early starts.
    newer = "cuStreamGetCaptureInfo_v3"
    name = newer if hasattr(api, newer) else "cuStreamGetCaptureInfo"
    found = device.driver.call(name, stream.handle)
    return list(found[3])


def depend_on(stream: CudaStream, nodes: Sequence[Any]) -> None:
    """Let the next work of a stream that is being captured depend on just these nodes."""
    device = stream.device
    # The same history: the second name was another form's until CUDA 13.
    newer = "cuStreamUpdateCaptureDependencies_v2"
    name = newer if hasattr(device.driver.api, newer) else "cuStreamUpdateCaptureDependencies"
    device.driver.call(name, stream.handle, list(nodes), None, len(nodes), _SET_DEPENDENCIES)


def groups_of(layers: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return runs of rows of the same layer: the layer, the first row, and one past the last."""
    starts = [row for row, layer in enumerate(layers) if row == 0 or layers[row - 1] != layer]
    ends = [*starts, len(layers)]
    return [(layers[first], first, last) for first, last in pairwise(ends)]
