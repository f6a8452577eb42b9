"""Measure kernels one by one: smelt beside other engines, on models of one node, taking turns.

Each family runs on shapes of several networks, warm, with inputs and outputs bound. Products and
convolutions are told in GFLOP/s, and as a share of the peak of a generated multiply-add loop that
is measured after each case; the others in GB/s of what they must read and write, as a share of
what copying so many bytes reaches. An engine may beat a copy: it need not go through the same
memory, and Winograd's transforms may beat the peak, for they multiply less.
"""

from __future__ import annotations

import math
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if not __package__:  # run as a script
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks.cpu_latency import TOLERANCE, largest_error
from benchmarks.support.engines import SAVED, EngineFailedError, Job, Worker, known_engines
from benchmarks.support.models import count_gflop, load_inputs, random_inputs, save_inputs
from benchmarks.support.one_node import CASES
from benchmarks.support.peak import PeakLoop
from benchmarks.support.results import parser_for, summary, words, write_fused_kernel

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from benchmarks.support.one_node import Case


def copy_rate(size_bytes: int, threads: int) -> float:
    """Return the 1e9 bytes a second, read and written, of copying half of ``size_bytes``."""
    pairs = [np.ones((2, max(1, size_bytes // 2 // threads)), np.uint8) for _ in range(threads)]

    def copy(pair: NDArray[np.uint8]) -> float:
        best = float("inf")
        for _ in range(30):
            begin = time.perf_counter()
            np.copyto(pair[1], pair[0])
            best = min(best, time.perf_counter() - begin)
        return best

    with ThreadPoolExecutor(threads) as pool:
        times = list(pool.map(copy, pairs))
    return size_bytes / max(times) / 1e9


def load(case: Case, job: Job, workers: Sequence[Worker]) -> dict[str, list[NDArray[Any]]]:
    """Return the outputs of each engine that runs the case; those are ready to be timed."""
    outputs: dict[str, list[NDArray[Any]]] = {}
    for worker in workers:
        try:
            worker.load(job)
            outputs[worker.engine] = worker.save(Path(job.inputs).with_name("outputs.npz"))
        except EngineFailedError as error:
            print(f"{case.label}: {error}", file=sys.stderr)
    return outputs


def measure(
    case: Case, job: Job, workers: Sequence[Worker], options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Return a row for each engine that runs the case, yet without its share of the peak."""
    outputs = load(case, job, workers)
    ready = [worker for worker in workers if worker.engine in outputs]
    if options.prepare or not ready:
        return []
    times: dict[str, list[float]] = {worker.engine: [] for worker in ready}
    for turn in range(options.rounds + 1):
        for worker in ready:
            taken = worker.take_turn(options.seconds, 3)
            if turn or options.rounds == 1:  # the first round warms all of them up
                times[worker.engine] += taken
    inputs = load_inputs(Path(job.inputs))
    gflop = count_gflop(Path(job.file), inputs)
    moved = moved_bytes(case, [*inputs.values(), *outputs[ready[0].engine]])
    unit, amount = ("GFLOP/s", gflop) if gflop else ("GB/s", moved / 1e9)
    peak = 0.0 if gflop else copy_rate(moved, options.threads)
    judge = outputs[ready[-1].engine]
    return [
        {
            "family": case.family,
            "case": case.label,
            "dtype": "float32",
            "threads": options.threads,
            "engine": worker.engine,
            "version": worker.version,
            **summary(times[worker.engine], digits=5),
            "rate": round(amount / min(times[worker.engine]) * 1e3, 2),
            "unit": unit,
            "peak": round(peak, 1),
            "agrees": largest_error(outputs[worker.engine], judge) <= TOLERANCE["float32"],
        }
        for worker in ready
    ]


def moved_bytes(case: Case, arrays: Sequence[NDArray[Any]]) -> int:
    """Return what must be read and written: inputs, outputs and weights, but for a table's."""
    weights = 0 if case.indices else sum(math.prod(shape) for shape in case.weights if shape)
    return 4 * weights + sum(array.nbytes for array in arrays)


def add_shares(rows: Sequence[dict[str, Any]], peak: float) -> None:
    """Add each row's share of the peak: for arithmetic the best that any case's loop reached."""
    for row in rows:
        if row["unit"] == "GFLOP/s":
            row["peak"] = round(peak, 1)
        row["share_of_peak"] = round(row["rate"] / row["peak"], 4)


def print_rows(rows: Sequence[dict[str, Any]]) -> None:
    """Print a case in one line."""
    if not rows:
        return
    cells = [
        f"{row['engine']} {row['best_ms'] * 1e3:8.1f} µs {row['rate']:7.1f} {row['unit']}"
        f" {row['share_of_peak']:4.0%}" + ("" if row["agrees"] else " DIFFERS")
        for row in rows
    ]
    peers = [row["best_ms"] for row in rows if row["engine"] != "smelt"]
    ours = [row["best_ms"] for row in rows if row["engine"] == "smelt"]
    ratio = f"  ratio {min(peers) / ours[0]:.2f}" if peers and ours else ""
    print(f"{rows[0]['case']:44} " + "   ".join(cells) + ratio, flush=True)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options."""
    parser = parser_for(__doc__)
    add = parser.add_argument
    add("--families", type=words, default=[], help="only these; their names may be cut short")
    add("--threads", type=int, default=1)
    add("--peers", type=words, default=["onnxruntime", "openvino"], help="engines to compare with")
    add("--engines", default=str(SAVED / "kernels"), help="where our engines are kept")
    add("--prepare", action="store_true", help="build our engines and measure nothing")
    add("--rounds", type=int, default=6, help="turns of each engine")
    add("--seconds", type=float, default=0.03, help="length of a turn")
    return parser.parse_args(arguments)


def job_of(case: Case, scratch: Path, options: argparse.Namespace) -> Job:
    """Write a case's model and inputs, and return what engines are given."""
    file, inputs = scratch / "case.onnx", scratch / "inputs.npz"
    case.save(file)
    save_inputs(inputs, random_inputs(file, 1, {}))
    return Job(
        model=case.label.replace(" ", "_"),
        file=str(file),
        inputs=str(inputs),
        dtype="float32",
        threads=options.threads,
        bound=True,
        saved=options.engines,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure every case and write the rows."""
    options = parse(arguments)
    names = known_engines(["smelt", *([] if options.prepare else options.peers)])
    wanted = tuple(options.families) or ("",)
    chosen = [case for case in CASES if case.family.startswith(wanted)]
    if not chosen:
        known = ", ".join(sorted({case.family for case in CASES}))
        raise SystemExit(f"no family {options.families}; there are: {known}")
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        workers = [Worker(name, threads=options.threads, limit=options.limit) for name in names]
        for worker in workers:
            stack.callback(worker.close)
        loop, peak = PeakLoop(), 0.0
        for case in chosen:
            job = job_of(case, Path(scratch), options)
            peak = max(peak, loop.run(options.threads))
            measured = measure(case, job, workers, options)
            rows += measured
            add_shares(rows, peak)
            print_rows(measured)
            write_fused_kernel(options.json, rows)
    ratios = ratios_of(rows)
    if ratios:
        mean = statistics.geometric_mean(ratios)
        print(f"geometric mean of best peer's time / ours over {len(ratios)} cases: {mean:.2f}")
    return 0


def ratios_of(rows: Sequence[dict[str, Any]]) -> list[float]:
    """Return the best peer's time over ours of every case that both ran."""
    times: dict[str, dict[str, float]] = {}
    for row in rows:
        times.setdefault(row["case"], {})[row["engine"]] = row["best_ms"]
    return [
        min(t for name, t in case.items() if name != "smelt") / case["smelt"]
        for case in times.values()
        if "smelt" in case and len(case) > 1
    ]


if __name__ == "__main__":
    sys.exit(main())
