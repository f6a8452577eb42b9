"""Measure the latency of whole networks on the CPU: smelt beside other engines, taking turns.

Every engine has a process of its own that stays alive; short turns go round among them, so that a
change of the machine's clock or a busy neighbour hits all alike, and after each round the
processor's peak is measured. All get the same random inputs, and their outputs are compared before
anything is timed. Best and median are over all calls of all turns, without the first calls of each
turn, which refill the caches.

--models takes names, or the groups networks, small and given; benchmarks/support/models.py says
which models there are. --dtype int8 measures quantised twins (benchmarks/support/quantize.py).
What ours has built is kept in build/benchmark-engines until smelt or the model changes; --prepare
only builds, so that the rest can be measured when the machine is quiet.
"""

from __future__ import annotations

import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if not __package__:  # run as a script
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks.support.engines import (
    DTYPES,
    SAVED,
    EngineFailedError,
    Job,
    Worker,
    known_engines,
)
from benchmarks.support.models import (
    count_gflop,
    load_inputs,
    models_with_inputs,
)
from benchmarks.support.peak import PeakLoop
from benchmarks.support.quantize import quantized_model
from benchmarks.support.results import numbers, parser_for, summary, words, write_fused_kernel

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    Array = NDArray[Any]

TOLERANCE: Final = {"float32": 1e-3, "float16": 3e-2, "bfloat16": 1e-1, "int8": 1e-1}
"""Largest difference between two engines that is not called an error, of the largest output."""


def largest_error(ours: Sequence[Array], theirs: Sequence[Array]) -> float:
    """Return the largest difference of any output, of that output's largest magnitude."""
    if [x.shape for x in ours] != [x.shape for x in theirs]:
        return float("inf")
    errors = [0.0]
    for x, y in zip(ours, theirs, strict=True):
        if x.size:
            difference = np.abs(x.astype(np.float64) - y.astype(np.float64)).max()
            errors.append(float(difference / (np.abs(y.astype(np.float64)).max() or 1.0)))
    return max(errors)


def start(job: Job, names: Sequence[str], limit: float, stack: ExitStack) -> list[Worker]:
    """Return a worker for each engine that can run the job."""
    workers: list[Worker] = []
    for name in names:
        worker = Worker(name, threads=job.threads, limit=limit)
        stack.callback(worker.close)
        try:
            worker.load(job)
        except EngineFailedError as error:
            print(f"{job.model} {job.dtype}: left out: {error}", file=sys.stderr)
        else:
            workers.append(worker)
    return workers


def compare(workers: list[Worker], job: Job, folder: Path) -> list[Worker]:
    """Print how far each engine's outputs are from the last's; return those that are near it."""
    *others, judge = [(worker, worker.save(folder / f"{worker.engine}.npz")) for worker in workers]
    near = [judge[0]]
    for worker, outputs in others:
        error = largest_error(outputs, judge[1])
        print(f"{job.model}: {worker.engine} differs from {judge[0].engine} by {error:.1e}")
        if error <= TOLERANCE[job.dtype]:
            near.append(worker)
        else:
            print(f"{job.model}: {worker.engine} computes something else; not timed")
    return [worker for worker in workers if worker in near]


def measure(job: Job, names: Sequence[str], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row for each engine."""
    inputs = Path(job.inputs)
    with ExitStack() as stack:
        workers = start(job, names, options.limit, stack)
        if not workers or options.prepare:
            return []
        workers = compare(workers, job, inputs.parent)
        times, peak = take_rounds(workers, job, options)
    gflop = count_gflop(Path(job.file), load_inputs(inputs))
    rows: list[dict[str, Any]] = []
    for worker in workers:
        row: dict[str, Any] = {
            "model": job.model,
            "dtype": job.dtype,
            "threads": job.threads,
            "batch": job.batch,
            "engine": worker.engine,
            "version": worker.version,
            "options": worker.options,
            **summary(times[worker.engine]),
            "gflop": round(gflop, 4),
            "peak_gflops": round(peak, 1),
        }
        row["share_of_peak"] = round(gflop / row["best_ms"] * 1e3 / peak, 4)
        rows.append(row)
    return rows


def take_rounds(
    workers: Sequence[Worker], job: Job, options: argparse.Namespace
) -> tuple[dict[str, list[float]], float]:
    """Return the times of each engine, and the peak in 1e9 operations a second."""
    times: dict[str, list[float]] = {worker.engine: [] for worker in workers}
    loop, peak = PeakLoop(job.dtype), 0.0
    end = time.monotonic() + options.model_seconds
    for turn in range(options.rounds + 1):
        for worker in workers:
            taken = worker.take_turn(options.seconds, options.warm_up)
            if turn or options.rounds == 1:  # the first round warms all of them up
                times[worker.engine] += taken
        peak = max(peak, loop.run(job.threads))
        if turn > 1 and time.monotonic() > end:
            break
    return times, peak


def print_rows(rows: Sequence[dict[str, Any]]) -> None:
    """Print a model's rows, and the ratio to the best of the others."""
    for row in rows:
        label = f"{row['model']} {row['dtype']} threads={row['threads']} batch={row['batch']}"
        print(f"{label}  {row['engine']:12} best {row['best_ms']:9.3f} ms", end="")
        print(f"   median {row['median_ms']:9.3f} ms   {row['share_of_peak']:.0%} of peak")
    best = {row["engine"]: row["best_ms"] for row in rows}
    if (ours := best.pop("smelt", None)) and best:
        print(f"best peer's time / ours: {min(best.values()) / ours:.3f}", flush=True)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options."""
    parser = parser_for(__doc__)
    add = parser.add_argument
    add("--models", default="resnet50", help="names or groups, separated by commas")
    add("--dtype", type=words, default=["float32"], help=f"of {', '.join(DTYPES)}, by commas")
    add("--threads", type=numbers, default=[2], help="one number or several, by commas")
    add("--batch", type=numbers, default=[1], help="one number or several, by commas")
    add("--peers", type=words, default=["onnxruntime", "openvino"], help="engines to compare with")
    add("--no-smelt", action="store_true", help="measure the peers alone")
    add("--bound", action="store_true", help="bind inputs and outputs once, and time the rest")
    add("--shape", action="append", default=[], help="INPUT=1,3,224,224")
    add("--tune", default="fast", help="smelt's tuning effort")
    add("--engines", default=str(SAVED), help="where our engines are kept; empty for nowhere")
    add("--prepare", action="store_true", help="build our engines and measure nothing")
    add("--rounds", type=int, default=12, help="turns of each engine")
    add("--seconds", type=float, default=0.2, help="length of a turn")
    add("--warm-up", type=int, default=2, help="calls of a turn that do not count")
    add("--model-seconds", type=float, default=20.0, help="no new round of a model after these")
    options = parser.parse_args(arguments)
    if unknown := [dtype for dtype in options.dtype if dtype not in DTYPES]:
        raise SystemExit(f"no dtype {', '.join(unknown)}; there are: {', '.join(DTYPES)}")
    return options


def jobs(options: argparse.Namespace, scratch: str) -> Iterator[Job]:
    """Yield everything to measure."""
    for batch in options.batch:
        found = models_with_inputs(options.models, options.model_dir, scratch, batch, options.shape)
        for model, file, inputs in found:
            for dtype in options.dtype:
                twin = quantized_model(file, inputs) if dtype == "int8" else file
                for threads in options.threads:
                    job = Job(model, str(twin), str(inputs), dtype, threads, batch, options.tune)
                    yield replace(job, bound=options.bound, saved=options.engines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure every model and write the rows."""
    options = parse(arguments)
    names = known_engines([*([] if options.no_smelt else ["smelt"]), *options.peers])
    if options.prepare:
        names = ["smelt"]
    rows: list[dict[str, Any]] = []
    failed: list[str] = []
    with tempfile.TemporaryDirectory() as scratch:
        for job in jobs(options, scratch):
            try:
                measured = measure(job, names, options)
            except EngineFailedError as error:
                print(f"{job.model}: {error}", file=sys.stderr)
                measured = []
            rows += measured
            if not options.prepare and names[0] not in [row["engine"] for row in measured]:
                failed.append(f"{job.model} {job.dtype}")
            print_rows(measured)
            write_fused_kernel(options.json, rows)
    if failed:
        print(f"not measured with {names[0]}: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
