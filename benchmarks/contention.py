"""Measure how a busy neighbour slows each engine down: one busy process on every core.

Rounds alternate between a quiet machine and a contended one, and within a round the engines take
turns, so that all meet the same neighbours. The slowdown is the median time beside busy processes
over the median on the quiet machine; fair sharing alone costs a factor of two. What a busy
neighbour costs an idle application is measured, too: the processor time that each engine's process
takes between its calls.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if not __package__:  # run as a script
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks.support.engines import SAVED, EngineFailedError, Job, Worker, known_engines
from benchmarks.support.models import models_with_inputs
from benchmarks.support.results import numbers, parser_for, words, write_fused_kernel

if TYPE_CHECKING:
    import argparse
    from collections.abc import Generator, Sequence

_BUSY: Final = "import os, sys; os.sched_setaffinity(0, [int(sys.argv[1])])\nwhile True: pass"
_IDLE_S: Final = 0.3
_TICKS: Final = os.sysconf("SC_CLK_TCK")


class Neighbours:
    """One process on each core that does nothing but take its processor; stopped at first."""

    def __init__(self) -> None:
        """Start them."""
        self._processes = [
            subprocess.Popen([sys.executable, "-S", "-c", _BUSY, str(core)])
            for core in sorted(os.sched_getaffinity(0))
        ]
        self._signal(signal.SIGSTOP)

    @property
    def numbers(self) -> list[int]:
        """The processes' numbers."""
        return [process.pid for process in self._processes]

    @contextmanager
    def busy(self) -> Generator[None]:
        """Let them run."""
        self._signal(signal.SIGCONT)
        time.sleep(0.05)
        try:
            yield
        finally:
            self._signal(signal.SIGSTOP)

    def close(self) -> None:
        """End them."""
        for process in self._processes:
            process.kill()
            process.wait()

    def _signal(self, number: signal.Signals) -> None:
        for process in self._processes:
            process.send_signal(number)


def processor_seconds(number: int) -> float:
    """Return the processor time that a process has used."""
    fields = Path(f"/proc/{number}/stat").read_text(encoding="ascii").rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def idle_share(worker: Worker, seconds: float) -> float:
    """Return the share of a processor that a process takes right after its calls have ended."""
    worker.take_turn(seconds, 1)
    before = processor_seconds(worker.number)
    time.sleep(_IDLE_S)
    return (processor_seconds(worker.number) - before) / _IDLE_S


def measure(job: Job, names: Sequence[str], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row for each engine."""
    with ExitStack() as stack:
        workers = [Worker(name, threads=job.threads, limit=options.limit) for name in names]
        for worker in workers:
            stack.callback(worker.close)
            worker.load(job)
        if options.prepare:
            return []
        neighbours = Neighbours()
        stack.callback(neighbours.close)
        quiet, busy = ({name: list[float]() for name in names} for _ in range(2))
        for _ in range(options.rounds):
            for worker in workers:
                quiet[worker.engine] += worker.take_turn(options.seconds, 3)
            with neighbours.busy():
                for worker in workers:
                    busy[worker.engine] += worker.take_turn(options.seconds, 3)
        idle = {worker.engine: idle_share(worker, options.seconds) for worker in workers}
    rows: list[dict[str, Any]] = []
    for worker in workers:
        name = worker.engine
        before, beside = statistics.median(quiet[name]), statistics.median(busy[name])
        rows.append(
            {
                "model": job.model,
                "dtype": job.dtype,
                "threads": job.threads,
                "batch": job.batch,
                "engine": name,
                "version": worker.version,
                "options": worker.options,
                "busy_processes": len(neighbours.numbers),
                "quiet_median_ms": round(before, 4),
                "busy_median_ms": round(beside, 4),
                "busy_p95_ms": round(float(np.percentile(busy[name], 95)), 4),
                "slowdown": round(beside / before, 3),
                "idle_share": round(idle[name], 3),
            }
        )
    return rows


def print_rows(rows: Sequence[dict[str, Any]]) -> None:
    """Print a model's rows."""
    for row in rows:
        print(
            f"{row['model']} threads={row['threads']}  {row['engine']:12}"
            f" quiet {row['quiet_median_ms']:8.3f} ms   busy {row['busy_median_ms']:8.3f} ms"
            f" (95 of 100 under {row['busy_p95_ms']:.3f})   slowdown {row['slowdown']:.2f}"
            f"   idle {row['idle_share']:.1%}",
            flush=True,
        )


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options."""
    parser = parser_for(__doc__)
    add = parser.add_argument
    add("--models", default="resnet50,mobilenetv2", help="names or groups, separated by commas")
    add("--threads", type=numbers, default=[2], help="one number or several, by commas")
    add("--peers", type=words, default=["onnxruntime", "openvino"], help="engines to compare with")
    add("--engines", default=str(SAVED), help="where our engines are kept; empty for nowhere")
    add("--prepare", action="store_true", help="build our engines and measure nothing")
    add("--rounds", type=int, default=8, help="turns of each engine, quiet and busy each")
    add("--seconds", type=float, default=0.5, help="length of a turn")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure every model and write the rows."""
    options = parse(arguments)
    names = known_engines(["smelt", *([] if options.prepare else options.peers)])
    rows: list[dict[str, Any]] = []
    failed = False
    with tempfile.TemporaryDirectory() as scratch:
        for model, file, inputs in models_with_inputs(options.models, options.model_dir, scratch):
            for threads in options.threads:
                job = Job(model, str(file), str(inputs), "float32", threads, saved=options.engines)
                try:
                    measured = measure(job, names, options)
                except EngineFailedError as error:
                    print(f"{model}: {error}", file=sys.stderr)
                    failed = True
                    continue
                print_rows(measured)
                rows += measured
                write_fused_kernel(options.json, rows)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
