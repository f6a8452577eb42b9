"""Worker pool: threads that sleep in native code until a run leases them.

A pool belongs to a set of CPUs, since threads inherit the affinity of the thread that starts them.
A run leases only idle workers, so concurrent contexts share the CPUs instead of oversubscribing
them. A preempted worker may still be leaving an earlier list; it is idle only after it has left.
"""

from __future__ import annotations

import atexit
import ctypes
import logging
import os
import time
import weakref
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final

from smelt import config
from smelt.devices.cpu import _abi as abi
from smelt.devices.cpu._memory import CpuMemory
from smelt.devices.cpu._processors import available_processors
from smelt.errors import DeviceError
from smelt.signal_errors import is_direct
from smelt.types import BackgroundThread, ForkLock, counted, reset_in_child

if TYPE_CHECKING:
    from collections.abc import Callable

    from smelt.devices.cpu._native_runtime import NativeRuntime

_MAX_WORKERS: Final = 1023
_SPINS_BEFORE_SLEEP: Final = 400
"""Polls before a worker sleeps, about 10 us: avoids the wake-up between runs in a tight loop."""
_LEAVE_TIMEOUT_S: Final = 2.0
_MASK: Final = 0xFFFFFFFF


class Worker:
    """A worker thread and its mailbox."""

    __slots__ = (
        "_avoids",
        "_finished",
        "_memory",
        "_posted",
        "_runtime",
        "_wakes",
        "holds",
        "mailbox",
        "thread",
    )

    def __init__(self, runtime: NativeRuntime, memory: CpuMemory, *, waits_natively: bool) -> None:
        self._runtime = runtime
        self._memory = memory.allocate(abi.MAILBOX_BYTES, "worker mailbox")
        self._memory.bytes[:] = 0
        self.mailbox = self._memory.address
        self._posted = ctypes.c_uint32.from_address(self.mailbox + abi.MAILBOX_POSTED)
        self._finished = ctypes.c_uint32.from_address(self.mailbox + abi.MAILBOX_FINISHED)
        ctypes.c_int64.from_address(self.mailbox + abi.MAILBOX_SPINS).value = _SPINS_BEFORE_SLEEP
        self.holds: object = None
        """Memory of the last list, kept alive because a late worker may still read it."""
        self._avoids: int | None = None
        self._wakes: SimpleQueue[None] | None = None if waits_natively else SimpleQueue()
        self.thread = BackgroundThread(self._work)

    @property
    def is_native(self) -> bool:
        """Whether the worker waits in native code, which may then post to its mailbox."""
        return self._wakes is None

    @property
    def is_idle(self) -> bool:
        """Whether the worker has left every posted list."""
        return self._finished.value == self._posted.value

    def avoid(self, processor: int | None, processors: frozenset[int]) -> None:
        """Exclude the lessee's CPU from the worker's affinity; None excludes no CPU.

        The system tends to schedule a woken worker on the CPU of the waking thread, where it would
        wait until the run is over.
        """
        if processor == self._avoids:
            return
        self._avoids = processor
        native_id = self.thread.native_id
        others = processors if processor is None else processors - {processor}
        if native_id is not None and others:
            try:
                os.sched_setaffinity(native_id, others)
            except OSError as error:  # a sandbox may forbid it, or the thread may be ending
                if not is_direct(error):
                    raise

    def post(self, run_list: int, slot: int, epoch: int) -> None:
        """Post a list to the worker, which must be idle. List 0 ends the worker."""
        if self._wakes is None:
            self._runtime.post(self.mailbox, run_list, slot, epoch)
            return
        for offset, value in (
            (abi.MAILBOX_LIST, run_list),
            (abi.MAILBOX_SLOT, slot),
            (abi.MAILBOX_EPOCH, epoch),
        ):
            ctypes.c_int64.from_address(self.mailbox + offset).value = value
        self._posted.value += 1
        self._wakes.put(None)

    def wait_until_left(self) -> None:
        """Wait until the worker has left all posted lists and no longer reads their memory."""
        target = self._posted.value
        while 0 < (target - self._finished.value) & _MASK < 1 << 31:
            time.sleep(20e-6)

    def _work(self) -> None:
        if self._wakes is None:
            self._runtime.worker(self.mailbox)
            return
        read = ctypes.c_int64.from_address
        run_list = read(self.mailbox + abi.MAILBOX_LIST)
        slot, epoch = read(self.mailbox + abi.MAILBOX_SLOT), read(self.mailbox + abi.MAILBOX_EPOCH)
        while True:
            self._wakes.get()
            if run_list.value:
                self._runtime.run(run_list.value, epoch.value, slot.value)
            leaving = not run_list.value
            self._finished.value += 1
            if leaving:
                return


class Lease:
    """The workers leased by one run, for as long as this object exists."""

    __slots__ = ("__weakref__", "workers")

    def __init__(self) -> None:
        self.workers: list[Worker] = []


class WorkerPool:
    """The workers of one set of processors.

    ``waits_natively=False`` makes workers wait in Python, as they do on systems without futexes.
    """

    def __init__(self, *, waits_natively: bool = True) -> None:
        self._waits_natively = waits_natively
        self._processors = available_processors()
        self._memory = CpuMemory()
        self._lock = ForkLock()
        self.reset()
        _pools.add(self)

    def reset(self) -> None:
        """Discard all workers in a forked child, where the parent's threads do not exist."""
        self._free: list[Worker] = []
        self._busy: dict[Worker, weakref.ref[Lease]] = {}
        self.generation = os.getpid()

    @property
    def size(self) -> int:
        """Number of workers in the pool."""
        return len(self._free) + len(self._busy)

    def lease(self, lease: Lease, count: int, runtime: NativeRuntime) -> None:
        """Lease up to ``count`` idle workers; the pool grows to ``count`` workers in total.

        No further workers are started for a second lessee at the same time, because they would
        compete for the same CPUs. If the system cannot start a thread, the run has fewer workers.
        A signal handler that interrupts this pool runs without workers.
        """
        if self._lock.is_held:
            return
        with self._lock:
            if len(self._free) < count and self._busy:
                self._reclaim()
            free = self._free
            for position in range(len(free) - 1, -1, -1):
                if len(lease.workers) == count:
                    break
                if free[position].is_idle:
                    self._busy[free[position]] = weakref.ref(lease)
                    lease.workers.append(free.pop(position))
            missing = min(count, _MAX_WORKERS) - len(free) - len(self._busy)
            for _ in range(missing):
                try:
                    waits_natively = self._waits_natively and runtime.has_workers
                    worker = Worker(runtime, self._memory, waits_natively=waits_natively)
                except DeviceError as error:
                    config.log_once(
                        logging.WARNING,
                        f"engines run with {counted(len(lease.workers) + 1, 'thread')} instead of "
                        f"{count + 1}: {error}",
                    )
                    break
                self._busy[worker] = weakref.ref(lease)
                lease.workers.append(worker)

    def release(self, lease: Lease) -> None:
        """Return the leased workers to the pool."""
        if not lease.workers:
            return
        with self._lock:
            for worker in lease.workers:
                if self._busy.pop(worker, None) is not None:
                    self._free.append(worker)
            lease.workers.clear()

    def spread(self, lease: Lease) -> None:
        """Exclude the caller's CPU from the workers' affinity if there are enough other CPUs."""
        if _processor_now is None:
            return
        is_crowded = len(lease.workers) >= len(self._processors)
        processor = None if is_crowded else _processor_now()
        for worker in lease.workers:
            worker.avoid(processor, self._processors)

    def _reclaim(self) -> None:
        """Free the workers of leases that are gone because an interrupt prevented their release."""
        for worker in [worker for worker, lease in self._busy.items() if lease() is None]:
            del self._busy[worker]
            self._free.append(worker)

    def dismiss(self) -> None:
        """End the idle workers and wait for their threads."""
        with self._lock:
            leaving = [worker for worker in self._free if worker.is_idle]
            self._free = [worker for worker in self._free if worker not in leaving]
        for worker in leaving:
            worker.post(0, 0, 0)
        for worker in leaving:
            worker.thread.join(_LEAVE_TIMEOUT_S)


def _find_processor_now() -> Callable[[], int] | None:
    """Return ``sched_getcpu`` if the system supports it and affinities, else None."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    return getattr(ctypes.PyDLL(None), "sched_getcpu", None)


_processor_now: Final = _find_processor_now()
_pools = reset_in_child(WorkerPool.reset)
_by_processors: dict[frozenset[int], WorkerPool] = {}
_table_lock = ForkLock()


def worker_pool() -> WorkerPool:
    """Return the pool for the CPUs of the calling thread."""
    processors = available_processors()
    with _table_lock:
        pool = _by_processors.get(processors)
        if pool is None:  # a signal handler may create it meanwhile
            pool = _by_processors.setdefault(processors, WorkerPool())
        return pool


@atexit.register
def _dismiss_all() -> None:
    for pool in list(_pools):
        pool.dismiss()
