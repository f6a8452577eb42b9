"""CUDA graphs: a sequence of launches, recorded once and started by one call.

Source: CUDA Driver API reference, "Graph Management"; stream capture.
"""

from __future__ import annotations

import gc
import threading
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from smelt.devices.cuda._driver import CudaError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from smelt.devices.cuda._device import CudaDevice
    from smelt.devices.cuda._stream import CudaStream


class CudaGraph:
    """Recorded work. What it reads and writes must stay where it was when it was recorded."""

    __slots__ = ("__weakref__", "_finalizer", "_handle", "device")

    def __init__(
        self, stream: CudaStream, record: Callable[[], None], *, loads_code: bool = False
    ) -> None:
        """Record what ``record`` queues on ``stream``; nothing of it runs yet.

        Args:
            stream: nothing else may use it meanwhile.
            record: queues the work.
            loads_code: whether it may do more than queue work: load code, for example. Otherwise
                the driver refuses that.

        Raises:
            CudaError: something was queued that a graph cannot hold.
            Whatever ``record`` raises; the stream can be used again.
        """
        device = self.device = stream.device
        modes = device.driver.api.CUstreamCaptureMode
        mode = modes.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        if loads_code:
            mode = modes.CU_STREAM_CAPTURE_MODE_RELAXED
        with _COLLECTOR.paused():
            graph = _record(stream, record, mode)
        # The recorded graph stays: its nodes name what is to be changed in the executable one.
        try:
            self._handle: Any = device.call("cuGraphInstantiate", graph, 0)
        except BaseException:
            device.give_back("cuGraphDestroy", graph)
            raise
        self._finalizer = weakref.finalize(self, _destroy, device, self._handle, graph)
        self._finalizer.atexit = False

    def launch(self, stream: CudaStream) -> None:
        """Queue all of it. Raises CudaError: earlier work failed."""
        self.device.call("cuGraphLaunch", self._handle, stream.handle)

    def set_kernel(self, node: Any, parameters: Any) -> None:
        """Give a recorded launch other arguments, for later launches of the graph.

        Args:
            node: the launch's, as the capture told.
            parameters: a ``CUDA_KERNEL_NODE_PARAMS`` of the same kernel.
        """
        self.device.call("cuGraphExecKernelNodeSetParams", self._handle, node, parameters)

    def close(self) -> None:
        """Let the graph go once its work is done; again is harmless."""
        self._finalizer()


class _Collector:
    """Python's garbage collector, which rests while any thread records.

    What it finds may give memory, modules or a library's handle back. Between a capture's beginning
    and its end the driver refuses that of the thread that records, and the capture is lost with it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pauses = 0
        self._was_on = False

    @contextmanager
    def paused(self) -> Generator[None]:
        """Let nothing be collected meanwhile."""
        with self._lock:
            if not self._pauses:
                self._was_on = gc.isenabled()
                gc.disable()
            self._pauses += 1
        try:
            yield
        finally:
            with self._lock:
                self._pauses -= 1
                if self._was_on and not self._pauses:
                    gc.enable()


_COLLECTOR: Final = _Collector()


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
    except CudaError:  # the capture was broken already, and ended by that
        return
    if int(graph):
        device.call("cuGraphDestroy", graph)
