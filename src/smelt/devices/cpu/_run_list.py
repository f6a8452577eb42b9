"""Run lists: launches as a table that native workers process."""

from __future__ import annotations

import ctypes
import functools
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from smelt.devices.cpu import _abi as abi
from smelt.devices.cpu._worker_pool import Lease
from smelt.errors import ContextError
from smelt.types import Limit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from smelt.devices.cpu._memory import CpuMemory
    from smelt.devices.cpu._native_runtime import NativeRuntime
    from smelt.devices.cpu._worker_pool import Worker, WorkerPool

_WORD_BYTES: Final = 8
_ROW_WORDS: Final = abi.ROW_BYTES // _WORD_BYTES
_CHUNKS: Final = abi.ROW_CHUNKS // _WORD_BYTES
_FINISHED: Final = abi.ROW_FINISHED_TICKS // _WORD_BYTES
_SHARES: Final = 4
"""Divisor of the remaining chunks that a worker takes; small shares limit the delay by a preempted
worker."""


_SHORT_NS: Final = 100_000
"""Run time above which workers are always used: their wake-up is then negligible."""
_TINY_NS: Final = 10_000
"""Run time without workers below which workers are never used."""
_TRIALS: Final = 14
"""Number of runs of a trial: first half with workers, second half without. The runs are in blocks
because a worker that has just worked is still awake."""
_VALID_RUNS: Final = 5000
"""Number of runs after which the trial is repeated, since the load of the machine changes."""
_FOREVER: Final = 1 << 62
_MIN_GAIN: Final = 1.1
"""Minimum speed-up of a short list by workers, which occupy CPUs that others could use."""


class WorkerTrial:
    """Determines by timing some runs whether a list is faster without workers.

    Results are the same in both cases. A list is short if one of its first runs with workers was.
    """

    __slots__ = ("_best_ns", "_runs", "alone", "settled_runs")

    def __init__(self, *, skips_trial: bool) -> None:
        self.settled_runs = _FOREVER if skips_trial else 0
        """Number of further runs that need no timing."""
        self._restart()

    def _restart(self) -> None:
        self.alone = False
        """Whether the next run uses no workers."""
        self._runs = 0
        self._best_ns = [_FOREVER, _FOREVER]

    def note(self, nanoseconds: int) -> None:
        """Record the time of a run."""
        best = self._best_ns
        best[self.alone] = min(best[self.alone], nanoseconds)
        self._runs += 1
        if self._runs < 3:  # the first runs meet cold caches and sleeping workers
            return
        if best[0] > _SHORT_NS:
            self.alone, self.settled_runs = False, _FOREVER
        elif self._runs < _TRIALS:
            self.alone = self._runs >= _TRIALS // 2
        else:
            self.alone = best[1] < best[0] * _MIN_GAIN
            self.settled_runs = _FOREVER if best[1] < _TINY_NS else _VALID_RUNS

    def note_untimed(self) -> None:
        """Record a run without timing."""
        self.settled_runs -= 1
        if not self.settled_runs:
            self._restart()


@dataclass(frozen=True, slots=True)
class RunListRow:
    """Row of a run list: the constant part of a launch."""

    function: int
    """Address of the kernel."""
    words: int
    """Number of argument words."""
    wait_for: int
    """Number of leading rows that must be complete before it starts."""


class Scratch:
    """Private memory of each worker in a launch; lists that never run concurrently share it."""

    def __init__(self, memory: CpuMemory, scratch_bytes: int, threads: int) -> None:
        self.stride = -(-scratch_bytes // abi.ALIGNMENT_BYTES) * abi.ALIGNMENT_BYTES
        self._memory = memory.allocate(self.stride * threads, "scratch")
        self.address = self._memory.address

    def close(self) -> None:
        """Release the memory. Idempotent."""
        self._memory.close()


class RunList:
    """A list of launches with its argument words, run by one caller at a time.

    ``words`` are the argument words of all rows, one after another, to be filled in between runs;
    they start as zeros.
    """

    def __init__(
        self,
        rows: Sequence[RunListRow],
        runtime: NativeRuntime,
        pool: WorkerPool,
        memory: CpuMemory,
        *,
        threads: int,
        scratch: Scratch,
        may_run_alone: bool = False,
    ) -> None:
        """Create the table.

        Args:
            rows: the launches.
            runtime: native runtime that executes the list.
            pool: pool whose idle workers take part.
            memory: allocates the table and the words.
            threads: maximum number of threads, including the caller.
            scratch: scratch memory of the threads.
            may_run_alone: whether a short list may run without workers if a trial in its first runs
                shows that this is faster.
        """
        self._runtime, self._pool = runtime, pool
        self._threads = threads
        self._scratch = scratch
        total = sum(row.words for row in rows)
        self._memories = [
            memory.allocate(abi.LIST_BYTES, "run list"),
            memory.allocate(abi.ROW_BYTES * len(rows), "run list"),
            memory.allocate(_WORD_BYTES * total, "arguments"),
        ]
        header, table, words = self._memories
        for part in (header, table, words):
            part.bytes[:] = 0
        self._header: NDArray[np.int64] = header.bytes.view(np.int64)
        self._table: NDArray[np.int64] = table.bytes.view(np.int64).reshape(-1, _ROW_WORDS)
        self.words: NDArray[np.int64] = words.bytes.view(np.int64)
        self._address = header.address
        self._header[abi.LIST_ROWS // 8] = table.address
        self._header[abi.LIST_COUNT // 8] = len(rows)
        self._fill(rows, words.address)
        self._mailboxes = (ctypes.c_void_p * max(1, threads - 1))()
        self._mailboxes_of: list[Worker] = []
        self._seen: set[Worker] = set()
        """All workers that the list was posted to."""
        self._generation = pool.generation
        self._may_run_alone = may_run_alone
        self._timed = False
        self._execute_alone = self._executor()
        self._restart_trial()

    @property
    def _regions(self) -> int:
        """Number of regions into which the chunks of each row are divided."""
        return min(self._threads, abi.MAX_REGIONS)

    def _fill(self, rows: Sequence[RunListRow], words: int) -> None:
        self._header[abi.LIST_SCRATCH // 8] = self._scratch.address
        self._header[abi.LIST_SCRATCH_STRIDE // 8] = self._scratch.stride
        self._header[abi.LIST_REGIONS // 8] = self._regions
        shares = 1 if self._threads == 1 else _SHARES
        for record, row in zip(self._table, rows, strict=True):
            record[abi.ROW_FUNCTION // 8] = row.function
            record[abi.ROW_ARGUMENTS // 8] = words
            record[abi.ROW_WAIT_FOR // 8] = row.wait_for
            record[abi.ROW_SHARES // 8] = shares
            words += row.words * _WORD_BYTES

    def set_chunks(self, chunks: Sequence[int]) -> None:
        """Set every row's number of chunks.

        Raises:
            ContextError: a number is negative or exceeds the maximum.
        """
        for count in chunks:
            if not 0 <= count <= abi.MAX_CHUNKS:
                raise ContextError(f"a launch has {Limit.MAX_CHUNKS.excess(count)}")
        # A worker that leaves an earlier run late may still read the old numbers.
        self._runtime.close(self._address)
        self._table[:, _CHUNKS] = chunks
        for region in range(self._regions):
            at = (abi.ROW_REGIONS + region * abi.REGION_BYTES) // _WORD_BYTES
            ends = [
                count * part // self._regions for count in chunks for part in (region, region + 1)
            ]
            bounds = np.array(ends, np.int64).reshape(-1, 2)
            self._table[:, at + abi.REGION_START // 8] = bounds[:, 0]
            self._table[:, at + abi.REGION_END // 8] = bounds[:, 1]
        self._restart_trial()

    def _restart_trial(self) -> None:
        self._trial = WorkerTrial(skips_trial=not self._may_run_alone)
        self._is_alone = self._threads == 1
        """Whether all further runs use no workers."""

    def _executor(self) -> Callable[[], None]:
        """Return a function that runs the list without workers, with arguments converted once."""
        runtime, address = self._runtime, ctypes.c_void_p(self._address)
        if runtime.has_workers:
            return functools.partial(runtime.execute, address, None, 0)
        return lambda: runtime.run(address, runtime.begin(address), 0)

    def run(self, *, timed: bool = False) -> None:
        """Run the list once with the idle workers, and return when it is complete.

        Raises:
            ContextError: the list is closed.
        """
        if timed is not self._timed:
            self._check_open()
            self._header[abi.LIST_TIMED // 8] = timed
            self._timed = timed
        if self._is_alone:
            self._execute_alone()
            return
        self._check_open()
        trial = self._trial
        is_noted = not (timed or trial.settled_runs)
        start = time.perf_counter_ns() if is_noted else 0
        if trial.alone and not timed:
            self._execute_alone()
        else:
            self._run_leased()
        if is_noted:
            trial.note(time.perf_counter_ns() - start)
            self._is_alone = trial.alone and trial.settled_runs == _FOREVER
        elif not timed:
            trial.note_untimed()

    def _check_open(self) -> None:
        if not self._address:
            raise ContextError("this run list is closed")

    def _run_leased(self) -> None:
        pool = self._pool
        # After a fork, the workers exist only in the parent.
        if pool.generation != self._generation:
            self._seen.clear()
            self._mailboxes_of = []
            self._generation = pool.generation
        lease = Lease()
        try:
            pool.lease(lease, self._threads - 1, self._runtime)
            pool.spread(lease)
            self._run_with(lease.workers)
        finally:
            pool.release(lease)

    def _run_with(self, workers: list[Worker]) -> None:
        # Recorded before posting: close() must know them even after a KeyboardInterrupt.
        self._seen.update(workers)
        for worker in workers:
            worker.holds = self._memories
        if not self._runtime.has_workers or not all(w.is_native for w in workers):
            epoch = self._runtime.begin(self._address)
            try:
                for slot, worker in enumerate(workers, 1):
                    worker.post(self._address, slot, epoch)
            finally:  # posted workers run, so the run must complete before memory is freed
                self._runtime.run(self._address, epoch, 0)
            return
        if workers != self._mailboxes_of:
            self._mailboxes_of = []
            for index, worker in enumerate(workers):
                self._mailboxes[index] = worker.mailbox
            self._mailboxes_of = list(workers)
        self._runtime.execute(self._address, self._mailboxes, len(workers))

    def row_ticks(self) -> list[int]:
        """Return the ticks by which each row extended the last timed run."""
        ticks: list[int] = []
        latest = int(self._header[abi.LIST_STARTED_TICKS // 8])
        for finished in self._table[:, _FINISHED].tolist():
            ticks.append(max(0, finished - latest))
            latest = max(latest, finished)
        return ticks

    def close(self) -> None:
        """Release the memory once no worker reads the list any more. Idempotent."""
        if not self._memories:
            return
        if self._pool.generation == self._generation:
            for worker in self._seen:
                worker.wait_until_left()
        self._seen.clear()
        self._mailboxes_of = []
        self._header = self._table = self.words = np.empty(0, np.int64)
        for memory in self._memories:
            memory.close()
        self._memories = []
        self._is_alone = False
        self._address = 0
