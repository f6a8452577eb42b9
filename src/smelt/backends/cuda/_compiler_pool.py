"""Kernels compiled many at once, in processes: the compiler keeps global state, and may fail badly.

The processes are new ones, never forks: a fork of a process that uses a GPU is of no use to anyone.
One that dies or takes too long at a kernel is replaced, and that kernel is refused; nothing else is
lost. A record does not depend on which process made it, nor on when.
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import tempfile
import threading
import weakref
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from smelt.backends.cuda._compiler_worker import DONE, READY, read_frame, request, write_frame
from smelt.backends.cuda._triton import compile_kernel, require_triton
from smelt.errors import BuildError, DeviceError
from smelt.types import start_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from smelt.backends.cuda._target import CudaTarget
    from smelt.engine import KernelSpec

_SECONDS: Final = 60.0
"""A kernel that is not compiled after this time never will be."""
_START_SECONDS: Final = 60.0
_MAX_REPORTED_CHARACTERS: Final = 500
"""How much of what a compiler prints is told."""
_PATHS: Final = "import json, sys; sys.path[:] = json.loads(sys.argv[1])"
_PROGRAM: Final = "from smelt.backends.cuda._compiler_worker import main; main(sys.argv[2])"


@dataclass(frozen=True, slots=True)
class _CompileJob:
    kernel: KernelSpec
    text: str
    target: CudaTarget
    keep: Callable[[bytes], None] | None
    done: Future[bytes]


class CompilerPool:
    """Processes that are started when there is work for them, and end with the pool."""

    def __init__(self, jobs: int, *, seconds: float = _SECONDS, program: str = _PROGRAM) -> None:
        """A pool without processes.

        Args:
            jobs: how many kernels may be compiled at once.
            seconds: how long one may take.
            program: what a process runs; its ``sys.argv[2]`` is a folder for the compiler.
        """
        self._jobs = jobs
        self._shop = _PoolState(seconds, program)
        self._finalizer = weakref.finalize(self, self._shop.close)

    def submit(
        self,
        kernel: KernelSpec,
        text: str,
        target: CudaTarget,
        keep: Callable[[bytes], None] | None = None,
    ) -> Future[bytes]:
        """Have a kernel compiled. The future has its record, or a BuildError.

        Args:
            kernel: what is compiled.
            text: its text.
            target: for which GPU.
            keep: told the record first, in the thread that waited for the compiler.

        Raises:
            MissingExtraError: Triton is not installed.
        """
        require_triton()
        state, done = self._shop, Future[bytes]()
        state.jobs.put(_CompileJob(kernel, text, target, keep, done))
        with state.lock:
            if len(state.threads) < self._jobs and state.jobs.qsize() > state.idle:
                try:
                    state.threads.append(start_thread(_run_worker, state))
                except DeviceError:
                    if not state.threads:
                        raise
        return done

    def close(self) -> None:
        """End all processes; what is not compiled is cancelled. Again is harmless."""
        self._finalizer()


@dataclass(slots=True)
class _PoolState:
    """What the pool shares with its threads, each of which waits for one process."""

    seconds: float
    program: str
    jobs: queue.SimpleQueue[_CompileJob | None] = field(
        default_factory=queue.SimpleQueue[_CompileJob | None]
    )
    lock: threading.Lock = field(default_factory=threading.Lock)
    threads: list[threading.Thread] = field(default_factory=list[threading.Thread])
    workers: list[_CompilerProcess] = field(default_factory=list["_CompilerProcess"])
    idle: int = 0
    is_closed: bool = False
    _folder: tempfile.TemporaryDirectory[str] | None = None

    def folder(self) -> str:
        """Where the compiler writes: a folder of this pool alone, not what others may change."""
        with self.lock:
            if self._folder is None:
                self._folder = tempfile.TemporaryDirectory(
                    prefix="smelt-compilers-", ignore_cleanup_errors=True
                )
            return self._folder.name

    def close(self) -> None:
        with self.lock:
            self.is_closed = True
            workers, threads = list(self.workers), list(self.threads)
        for worker in workers:
            worker.process.kill()
        for _ in threads:
            self.jobs.put(None)
        for thread in threads:
            thread.join()
        if self._folder is not None:
            self._folder.cleanup()


def _run_worker(state: _PoolState) -> None:
    """Do jobs until the pool is closed, with one process and, where it dies, its successors."""
    worker: _CompilerProcess | None = None
    while True:
        with state.lock:
            state.idle += 1
        job = state.jobs.get()
        with state.lock:
            state.idle -= 1
        if job is None:
            break
        if state.is_closed or not job.done.set_running_or_notify_cancel():
            job.done.cancel()
            continue
        try:
            if worker is None or not worker.is_alive:
                worker = _started(state, worker)
            record = _compiled(job, worker, state.seconds)
            if job.keep is not None:
                job.keep(record)
            job.done.set_result(record)
        except BaseException as error:  # noqa: BLE001  (who waits for the future gets it)
            job.done.set_exception(error)
    if worker is not None:
        worker.close()


def _compiled(job: _CompileJob, worker: _CompilerProcess | None, seconds: float) -> bytes:
    if worker is None:
        return compile_kernel(job.kernel, job.text, job.target).to_bytes()
    asked = request(job.kernel, job.text, job.target)
    reply = worker.ask(asked, seconds)
    if reply is None:
        why = worker.cause_of_death(seconds)
        detail = f"kernel {job.kernel.symbol} does not compile: {why}"
        raise BuildError(detail, lines=() if worker.timed_out else worker.printed())
    if reply[:1] == DONE:
        return reply[1:]
    detail, *more = reply[1:].decode(errors="replace").splitlines()
    raise BuildError(detail, lines=(*more, *worker.printed()))


class _CompilerProcess:
    """One process, and what it prints."""

    def __init__(self, command: Sequence[str]) -> None:
        """Start it. Raises OSError: it cannot be."""
        with ExitStack() as stack:
            self.errors = stack.enter_context(tempfile.TemporaryFile(buffering=0))
            self.process = subprocess.Popen(  # noqa: S603  (our own program)
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors
            )
            stack.pop_all()
        self.timed_out = False

    @property
    def is_alive(self) -> bool:
        """Whether it can be asked."""
        return self.process.poll() is None

    def ask(self, asked: bytes, seconds: float) -> bytes | None:
        """Its answer; None when it has died of the question, or was ended after ``seconds``."""
        assert self.process.stdin is not None  # noqa: S101  (a pipe)
        self.errors.seek(0)
        self.errors.truncate()
        try:
            write_frame(self.process.stdin, asked)
        except OSError:
            return None
        return self.reply(seconds)

    def reply(self, seconds: float) -> bytes | None:
        """What it says next; None when it has died, or was ended after ``seconds``."""
        assert self.process.stdout is not None  # noqa: S101  (a pipe)
        watchdog = threading.Timer(seconds, self._end)
        watchdog.daemon = True
        watchdog.start()
        try:
            return read_frame(self.process.stdout)
        finally:
            watchdog.cancel()

    def _end(self) -> None:
        self.timed_out = True
        self.process.kill()

    def cause_of_death(self, seconds: float) -> str:
        """Why there was no answer; the process is gone for certain."""
        self.process.kill()
        status = self.process.wait()
        if self.timed_out:
            return f"the compiler exceeded its time limit of {seconds:g} s"
        return f"the compiler ended with status {status}"

    def printed(self) -> list[str]:
        """The last lines of what the compiler printed."""
        self.errors.seek(0)
        text = self.errors.read().decode(errors="replace").strip()
        return text[-_MAX_REPORTED_CHARACTERS:].splitlines()

    def close(self) -> None:
        """End it, and forget what it printed."""
        self.process.kill()
        with self.process:
            pass
        self.errors.close()


def _started(state: _PoolState, before: _CompilerProcess | None) -> _CompilerProcess | None:
    """A new process, in place of one that died; None where there can be none."""
    if before is not None:
        _end(before, state)
    if not sys.executable:
        return None
    start = f"{_PATHS}\n{state.program}"
    command = [sys.executable, "-I", "-c", start, json.dumps(sys.path), state.folder()]
    try:
        worker = _CompilerProcess(command)
    except OSError:
        return None
    with state.lock:
        state.workers.append(worker)
        is_late = state.is_closed
    if is_late:
        worker.process.kill()
    if worker.reply(_START_SECONDS) == READY:
        return worker
    _end(worker, state)
    return None


def _end(worker: _CompilerProcess, state: _PoolState) -> None:
    worker.close()
    with state.lock:
        state.workers.remove(worker)
