"""Run lists on a GPU: launches with arguments, enqueued singly or recorded in updatable graphs.

Arguments are one array of 64-bit words. The driver copies them when a launch is enqueued or
recorded. If a word changes, the parameters of the graph's node must therefore be updated.

Source: CUDA Driver API reference, "Graph Management" (cuGraphExecKernelNodeSetParams) and "Stream
Management" (cuStreamGetCaptureInfo, cuStreamUpdateCaptureDependencies).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from smelt.devices.cuda._graph import CudaGraph
from smelt.devices.cuda._kernel_loader import LaunchArguments, LoadedKernel
from smelt.errors import ContextError, InternalError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from numpy.typing import NDArray

    from smelt.devices.cuda._kernel_loader import LoadedCall
    from smelt.devices.cuda._stream import CudaEvent, CudaStream

_SET_DEPENDENCIES: Final = 1
"""CU_STREAM_SET_CAPTURE_DEPENDENCIES: replace the set of dependencies."""
_WORD_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class CudaLaunch:
    """One launch of a list."""

    kernel: LoadedKernel | LoadedCall
    words: int
    """Number of argument words, without scratch words."""
    wait_for: int
    """Number of leading rows of the list that must be complete before this one starts."""
    uses_pdl: bool = True
    """Whether it may start earlier by PDL, if its code waits for its dependencies."""


class CudaRunList:
    """Launches with their argument words and numbers of blocks."""

    def __init__(
        self, rows: Sequence[CudaLaunch], words: NDArray[np.int64], blocks: Sequence[int]
    ) -> None:
        """Create a list; ``words`` holds the argument words of all rows in order.

        Raises:
            ContextError: a number of blocks is negative.
        """
        if min(blocks, default=0) < 0:
            raise ContextError("a launch has a negative number of blocks")
        self.rows, self.blocks = rows, blocks
        self.words = np.append(words, np.int64(0))
        """Argument words, then one 0. After a change, recorded graphs must be updated."""
        base = int(self.words.ctypes.data)
        zero_address = base + len(words) * _WORD_BYTES
        pointers: list[int] = []
        starts: list[tuple[int, int]] = []
        first = 0
        for row in rows:
            starts.append((len(pointers) * _WORD_BYTES, first))
            pointers += range(base + first * _WORD_BYTES, zero_address, _WORD_BYTES)[: row.words]
            pointers += [zero_address] * row.kernel.scratch_words
            first += row.words
        self._pointers = np.array([*pointers, 0], np.uint64)
        pointers_address = int(self._pointers.ctypes.data)
        self.arguments = [
            LaunchArguments(pointers_address + start, self.words[first : first + row.words])
            for row, (start, first) in zip(rows, starts, strict=True)
        ]

    def launch(self, row: int, stream: CudaStream, *, allows_pdl: bool = True) -> None:
        """Enqueue one row. Raises DeviceError: the launch is rejected, or earlier work failed."""
        pdl = allows_pdl and self.rows[row].uses_pdl and not self._follows_call(row)
        self.rows[row].kernel.launch(self.blocks[row], self.arguments[row], stream, allows_pdl=pdl)

    def _follows_call(self, row: int) -> bool:
        """Return whether a row depends on a library call, after which PDL is not safe."""
        end = self.rows[row].wait_for
        first = self.rows[end - 1].wait_for if end else 0
        return any(not before.kernel.can_update_in_graph for before in self.rows[first:end])

    def launch_all(self, stream: CudaStream) -> None:
        """Enqueue every row in order. Raises what `launch` raises."""
        for row in range(len(self.rows)):
            self.launch(row, stream)


class RunListGraph(CudaGraph):
    """Rows of a run list as a CUDA graph."""

    def __init__(
        self,
        rows: CudaRunList,
        stream: CudaStream,
        *,
        part: range | None = None,
        updatable_rows: Collection[int] = (),
        timing_events: Mapping[int, CudaEvent] | None = None,
    ) -> None:
        """Record the rows.

        Args:
            rows: the list, which must outlive the graph.
            stream: stream for recording; nothing else may use it meanwhile.
            part: range of rows to record, None for all; the first row must wait for all rows before
                it.
            updatable_rows: rows whose words may change; `update_node_params` updates them. Library
                calls are not supported.
            timing_events: events to record before the rows with these numbers, and one past the
                last row. With events, all rows run one after another.

        Raises:
            DeviceError: a launch is rejected.
        """
        self._list = rows
        self._nodes: dict[int, Any] = {}
        self._parameters: dict[int, Any] = {}
        self._updatable_rows = frozenset(updatable_rows)
        selected = range(len(rows.rows)) if part is None else part
        branches = any(rows.rows[number].wait_for != number for number in selected)

        def record() -> None:
            if timing_events is not None:
                self._record_timed(stream, selected, timing_events)
            elif branches:
                self._record_branches(stream, selected)
            else:
                for row in selected:
                    self._record_row(stream, row)

        # A library may load code at its first call.
        calls = any(not rows.rows[number].kernel.can_update_in_graph for number in selected)
        super().__init__(stream, record, is_relaxed=calls)

    def _record_row(self, stream: CudaStream, row: int, *, allows_pdl: bool = True) -> None:
        self._list.launch(row, stream, allows_pdl=allows_pdl)
        if row in self._updatable_rows and self._list.blocks[row]:
            self._nodes[row] = captured_nodes(stream)[0]

    def _record_timed(
        self, stream: CudaStream, part: range, timing_events: Mapping[int, CudaEvent]
    ) -> None:
        for row in part:
            if row in timing_events:
                timing_events[row].record_in_graph(stream)
            self._record_row(stream, row, allows_pdl=False)
        if part.stop in timing_events:
            timing_events[part.stop].record_in_graph(stream)

    def _record_branches(self, stream: CudaStream, part: range) -> None:
        """Record rows with the same dependencies as concurrent branches."""
        dependencies: list[Any] = []
        concurrent: list[Any] = []
        for number in part:
            if self._list.rows[number].wait_for == number and concurrent:
                dependencies, concurrent = concurrent, []
            depend_on(stream, dependencies)
            self._record_row(stream, number)
            if self._list.blocks[number]:
                concurrent.append(captured_nodes(stream)[0])
        depend_on(stream, concurrent or dependencies)

    def update_node_params(self, row: int) -> None:
        """Update the graph's node of a row to the current words, for later launches.

        Raises:
            CudaError: the driver rejects the update.
        """
        node = self._nodes.get(row)
        if node is None:
            return
        if row not in self._parameters:
            self._parameters[row] = self._parameters_of(row)
        self.set_kernel(node, self._parameters[row])

    def _parameters_of(self, row: int) -> Any:
        kernel = self._list.rows[row].kernel
        if not isinstance(kernel, LoadedKernel):
            raise InternalError("the arguments of a library call cannot be updated in a graph")
        parameters = self.device.driver.api.CUDA_KERNEL_NODE_PARAMS()
        parameters.func = kernel.function.handle
        parameters.gridDimX, parameters.gridDimY, parameters.gridDimZ = self._list.blocks[row], 1, 1
        threads = kernel.kernel.threads
        parameters.blockDimX, parameters.blockDimY, parameters.blockDimZ = threads, 1, 1
        parameters.sharedMemBytes = kernel.kernel.dynamic_shared_bytes
        parameters.kernelParams = self._list.arguments[row].address
        return parameters


def captured_nodes(stream: CudaStream) -> list[Any]:
    """Return the nodes that the next work of a capturing stream will depend on."""
    device = stream.device
    api = device.driver.api
    # Until CUDA 13, the name without suffix was a version that rejects PDL.
    newer = "cuStreamGetCaptureInfo_v3"
    name = newer if hasattr(api, newer) else "cuStreamGetCaptureInfo"
    info = device.driver.call(name, stream.handle)
    return list(info[3])


def depend_on(stream: CudaStream, nodes: Sequence[Any]) -> None:
    """Make the next work of a capturing stream depend on exactly these nodes."""
    device = stream.device
    # Until CUDA 13, the name without suffix was a version with other parameters.
    newer = "cuStreamUpdateCaptureDependencies_v2"
    name = newer if hasattr(device.driver.api, newer) else "cuStreamUpdateCaptureDependencies"
    device.driver.call(name, stream.handle, list(nodes), None, len(nodes), _SET_DEPENDENCIES)


def groups_of(layers: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return runs of rows of one layer: the layer, the first row, and one past the last row."""
    starts = [row for row, layer in enumerate(layers) if row == 0 or layers[row - 1] != layer]
    ends = [*starts, len(layers)]
    return [(layers[first], first, last) for first, last in pairwise(ends)]
