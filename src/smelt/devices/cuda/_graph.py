"""CUDA graphs: launches that are captured once and started by one call.

Source: CUDA Driver API reference, "Graph Management"; stream capture.
"""

from __future__ import annotations

import gc
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from smelt.devices._allocations import Resource
from smelt.devices.cuda._driver import CudaError
from smelt.types import ForkLock

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from smelt.devices.cuda._device import CudaDevice
    from smelt.devices.cuda._stream import CudaStream


class CudaGraph(Resource):
    """Captured work; memory that it accesses must keep its addresses."""

    __slots__ = ("_handle", "device")

    def __init__(
        self, stream: CudaStream, record: Callable[[], None], *, is_relaxed: bool = False
    ) -> None:
        """Capture the work that ``record`` enqueues on ``stream``, without running it.

        Args:
            stream: stream for capturing; nothing else may use it meanwhile.
            record: enqueues the work.
            is_relaxed: whether ``record`` may also make other driver calls, such as loading code,
                which the default capture mode rejects.

        Raises:
            CudaError: a graph cannot contain the enqueued work.
            Any error of ``record``; the stream remains usable.
        """
        device = self.device = stream.device
        modes = device.driver.api.CUstreamCaptureMode
        mode = modes.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        if is_relaxed:
            mode = modes.CU_STREAM_CAPTURE_MODE_RELAXED
        with _COLLECTOR.paused():
            graph = _record(stream, record, mode)
        # The captured graph is kept: its nodes identify the nodes to update in the executable
        # graph.
        try:
            self._handle: Any = device.call("cuGraphInstantiate", graph, 0)
        except BaseException:
            device.give_back("cuGraphDestroy", graph)
            raise
        self.release_by(_destroy, device, self._handle, graph)

    def launch(self, stream: CudaStream) -> None:
        """Enqueue the graph. Raises CudaError: earlier work failed."""
        self.device.call("cuGraphLaunch", self._handle, stream.handle)

    def set_kernel(self, node: Any, parameters: Any) -> None:
        """Set the parameters of a kernel node for later launches of the graph.

        Args:
            node: the node of the launch, from the capture.
            parameters: a ``CUDA_KERNEL_NODE_PARAMS`` of the same kernel.
        """
        self.device.call("cuGraphExecKernelNodeSetParams", self._handle, node, parameters)


class _Capture:
    """Identity of one capture."""

    __slots__ = ("__weakref__",)


class _GarbageCollectorPause:
    """Disables Python's garbage collector while any thread captures a graph.

    Finalizers may free memory, modules or library handles. During a capture, the driver rejects
    such calls of the capturing thread and invalidates the capture.
    """

    def __init__(self) -> None:
        self._lock = ForkLock()
        self._captures: weakref.WeakSet[_Capture] = weakref.WeakSet()
        """Captures in progress; one that an interrupt has ended is collected."""
        self._was_on = False

    @contextmanager
    def paused(self) -> Generator[None]:
        """Disable garbage collection while the context is active."""
        capture = _Capture()
        with self._lock:
            if not self._captures:
                self._was_on = self._was_on or gc.isenabled()
            self._captures.add(capture)
            gc.disable()
        try:
            yield
        finally:
            with self._lock:
                self._captures.discard(capture)
                if self._was_on and not self._captures:
                    self._was_on = False
                    gc.enable()


_COLLECTOR: Final = _GarbageCollectorPause()


def _destroy(device: CudaDevice, executable: Any, graph: Any) -> None:
    device.give_back("cuGraphExecDestroy", executable)
    device.give_back("cuGraphDestroy", graph)


def _record(stream: CudaStream, record: Callable[[], None], mode: Any) -> Any:
    stream.device.call("cuStreamBeginCapture", stream.handle, mode)
    try:
        record()
    except BaseException:
        _abandon_capture(stream)
        raise
    return stream.device.call("cuStreamEndCapture", stream.handle)


def _abandon_capture(stream: CudaStream) -> None:
    device = stream.device
    try:
        graph = device.call("cuStreamEndCapture", stream.handle)
    except CudaError:  # the capture was invalidated and ended already
        return
    if int(graph):
        device.call("cuGraphDestroy", graph)
