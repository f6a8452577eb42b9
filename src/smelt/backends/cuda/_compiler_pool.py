"""Pool of compiler processes: the compiler keeps global state and may crash.

Processes are spawned, never forked: CUDA does not work in a fork of a process that uses a GPU. A
process that dies or exceeds its time limit is replaced, and only its current kernel fails. A record
does not depend on the process that compiled it, nor on the order of compilation.
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
from smelt.signal_errors import pass_on_handler_error
from smelt.types import BackgroundThread

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from smelt.backends.cuda._target import CudaTarget
    from smelt.engine import KernelSpec

_SECONDS: Final = 60.0
"""Time limit of one kernel's compilation, in seconds. Chosen without a measurement: kernels compile
in seconds, so a compiler that takes longer hangs."""
_START_SECONDS: Final = 60.0
"""Time limit of a process's start, in seconds. Chosen without a measurement."""
_MAX_REPORTED_CHARACTERS: Final = 500
"""Maximum length of the compiler output that is included in an error, in characters. Chosen without
a measurement, for a readable message."""
_PATHS: Final = "import json, sys; sys.path[:] = json.loads(sys.argv[1])"
"""Program text that gives a worker this process's ``sys.path``."""
_PROGRAM: Final = "from smelt.backends.cuda._compiler_worker import main; main(sys.argv[2])"
"""Program text that runs the worker."""


@dataclass(frozen=True, slots=True)
class _CompileJob:
    """One kernel to compile, and the future of its record."""

    kernel: KernelSpec
    text: str
    target: CudaTarget
    keep: Callable[[bytes], None] | None
    done: Future[bytes]


class CompilerPool:
    """Pool of processes that are started on demand and end with the pool."""

    def __init__(self, jobs: int, *, seconds: float = _SECONDS, program: str = _PROGRAM) -> None:
        """Create a pool without processes.

        Args:
            jobs: maximum number of kernels that are compiled at once.
            seconds: time limit of one kernel, in seconds.
            program: program text of a worker; its ``sys.argv[2]`` is a folder for the compiler.
        """
        self._jobs = jobs
        self._state = _PoolState(seconds, program)
        self._finalizer = weakref.finalize(self, self._state.close)

    def submit(
        self,
        kernel: KernelSpec,
        text: str,
        target: CudaTarget,
        keep: Callable[[bytes], None] | None = None,
    ) -> Future[bytes]:
        """Queue a kernel for compilation; return a future of its record or a BuildError.

        Args:
            kernel: kernel to compile.
            text: Triton source of the kernel.
            target: GPU to compile for.
            keep: called with the record before the future is set, in a thread of the pool.

        Raises:
            MissingExtraError: Triton is not installed.
        """
        require_triton()
        state, done = self._state, Future[bytes]()
        state.jobs.put(_CompileJob(kernel, text, target, keep, done))
        with state.lock:
            if len(state.threads) < self._jobs and state.jobs.qsize() > state.idle:
                try:
                    state.threads.append(BackgroundThread(_run_worker, state))
                except DeviceError:
                    if not state.threads:
                        raise
        return done

    def close(self) -> None:
        """End all processes and cancel pending kernels. Further calls have no effect."""
        self._finalizer()


@dataclass(slots=True)
class _PoolState:
    """State that the pool shares with its threads, each of which serves one process."""

    seconds: float
    program: str
    jobs: queue.SimpleQueue[_CompileJob | None] = field(
        default_factory=queue.SimpleQueue[_CompileJob | None]
    )
    lock: threading.Lock = field(default_factory=threading.Lock)
    threads: list[BackgroundThread] = field(default_factory=list[BackgroundThread])
    workers: list[_CompilerProcess] = field(default_factory=list["_CompilerProcess"])
    idle: int = 0
    is_closed: bool = False
    _folder: tempfile.TemporaryDirectory[str] | None = None

    def folder(self) -> str:
        """Return the folder for the compiler's output, private to this pool."""
        with self.lock:
            if self._folder is None:
                self._folder = tempfile.TemporaryDirectory(
                    prefix="smelt-compilers-", ignore_cleanup_errors=True
                )
            return self._folder.name

    def close(self) -> None:
        """Kill the processes, end the threads and delete the folder."""
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
    """Process jobs until the pool is closed, with one process that is replaced if it dies."""
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
            if worker is None or worker.process.poll() is not None:
                worker = _start_process(state, worker)
            record = _compile(job, worker, state.seconds)
            if job.keep is not None:
                job.keep(record)
            job.done.set_result(record)
        except BaseException as error:  # noqa: BLE001  (passed to the future)
            job.done.set_exception(error)
    if worker is not None:
        worker.close()


def _compile(job: _CompileJob, worker: _CompilerProcess | None, seconds: float) -> bytes:
    """Return the record of a job's kernel. Raises BuildError if compilation fails."""
    if worker is None:
        return compile_kernel(job.kernel, job.text, job.target).to_bytes()
    payload = request(job.kernel, job.text, job.target)
    reply = worker.ask(payload, seconds)
    if reply is None:
        cause = worker.cause_of_death(seconds)
        detail = f"kernel {job.kernel.symbol} does not compile: {cause}"
        raise BuildError(detail, lines=() if worker.timed_out else worker.printed())
    if reply[:1] == DONE:
        return reply[1:]
    detail, *other_lines = reply[1:].decode(errors="replace").splitlines()
    raise BuildError(detail, lines=(*other_lines, *worker.printed()))


class _CompilerProcess:
    """One compiler process and its error output."""

    def __init__(self, command: Sequence[str]) -> None:
        """Start the process. Raises OSError if that fails."""
        with ExitStack() as stack:
            self.errors = stack.enter_context(tempfile.TemporaryFile(buffering=0))
            self.process = subprocess.Popen(  # noqa: S603  (our own program)
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors
            )
            stack.pop_all()
        self.timed_out = False

    def ask(self, payload: bytes, seconds: float) -> bytes | None:
        """Return the reply to a request; None if the process died or exceeded ``seconds``."""
        assert self.process.stdin is not None  # noqa: S101  (a pipe)
        self.errors.seek(0)
        self.errors.truncate()
        try:
            write_frame(self.process.stdin, payload)
        except OSError as error:
            pass_on_handler_error(error)
            return None
        return self.reply(seconds)

    def reply(self, seconds: float) -> bytes | None:
        """Return the next frame; None if the process died or exceeded ``seconds``."""
        assert self.process.stdout is not None  # noqa: S101  (a pipe)
        watchdog = threading.Timer(seconds, self._end)
        watchdog.daemon = True
        watchdog.start()
        try:
            return read_frame(self.process.stdout)
        finally:
            watchdog.cancel()

    def _end(self) -> None:
        """Kill the process because of its time limit."""
        self.timed_out = True
        self.process.kill()

    def cause_of_death(self, seconds: float) -> str:
        """Kill the process, and return why it gave no reply."""
        self.process.kill()
        status = self.process.wait()
        if self.timed_out:
            return f"the compiler exceeded its time limit of {seconds:g} s"
        return f"the compiler process ended with status {status}"

    def printed(self) -> list[str]:
        """Return the last lines of the compiler's output."""
        self.errors.seek(0)
        text = self.errors.read().decode(errors="replace").strip()
        return text[-_MAX_REPORTED_CHARACTERS:].splitlines()

    def close(self) -> None:
        """End the process and discard its output."""
        self.process.kill()
        with self.process:
            pass
        self.errors.close()


def _start_process(
    state: _PoolState, predecessor: _CompilerProcess | None
) -> _CompilerProcess | None:
    """Start a process in place of one that died; None if no process can be started."""
    if predecessor is not None:
        _end(predecessor, state)
    if not sys.executable:
        return None
    program = f"{_PATHS}\n{state.program}"
    command = [sys.executable, "-I", "-c", program, json.dumps(sys.path), state.folder()]
    try:
        worker = _CompilerProcess(command)
    except OSError as error:
        pass_on_handler_error(error)
        return None
    with state.lock:
        state.workers.append(worker)
        is_closed = state.is_closed
    if is_closed:
        worker.process.kill()
    if worker.reply(_START_SECONDS) == READY:
        return worker
    _end(worker, state)
    return None


def _end(worker: _CompilerProcess, state: _PoolState) -> None:
    """Close a process and remove it from the pool."""
    worker.close()
    with state.lock:
        state.workers.remove(worker)
