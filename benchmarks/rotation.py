"""Measure what it costs to run several models in turn, as servers do, against each one alone.

One process of each engine holds all the models. In a round the engines take turns, and within a
turn each model runs alone for a while, then all of them in rotation for as long; so all meet the
same neighbours. Each model's weights and arenas leave the caches to the next one's, whoever
computes. What a row calls `kept` is our advantage over the best peer in rotation, by that of the
model alone, in the same round: 1 where turns cost us what they cost others, less where more.
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any, Final, cast

if not __package__:  # run as a script
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks.support.engines import SAVED, EngineFailedError, Job, Worker, known_engines
from benchmarks.support.models import models_with_inputs
from benchmarks.support.results import numbers, parser_for, words, write_fused_kernel

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

OURS: Final = "smelt"
_WAYS: Final = ("alone", "rotation")

Times = dict[str, list[float]]
"""Medians in milliseconds by way, one for each round."""


def measure(
    jobs: Sequence[Job], names: Sequence[str], options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Return a row for each model and engine."""
    with ExitStack() as stack:
        threads = jobs[0].threads
        workers = [
            Worker(name, threads=threads, limit=options.limit, room="rotation") for name in names
        ]
        for worker in workers:
            stack.callback(worker.close)
            for job in jobs:
                worker.load(job)
        if options.prepare:
            return []
        found = {
            (job.model, name): {way: list[float]() for way in _WAYS}
            for job in jobs
            for name in names
        }
        for _ in range(options.rounds):
            for worker in workers:
                detail = cast("dict[str, Times]", worker.turn(options.seconds, 3))
                for job in jobs:
                    for way in _WAYS:
                        found[job.model, worker.engine][way].append(median(detail[way][job.model]))
    return [_row(job, worker, found) for job in jobs for worker in workers]


def _row(job: Job, worker: Worker, found: dict[tuple[str, str], Times]) -> dict[str, Any]:
    times = found[job.model, worker.engine]
    slowdowns = [turn / alone for alone, turn in zip(*(times[way] for way in _WAYS), strict=True)]
    row = {
        "model": job.model,
        "dtype": job.dtype,
        "threads": job.threads,
        "batch": job.batch,
        "engine": worker.engine,
        "version": worker.version,
        "options": worker.options,
        "alone_median_ms": round(median(times["alone"]), 4),
        "rotation_median_ms": round(median(times["rotation"]), 4),
        "slowdown": round(median(slowdowns), 4),
    }
    peers = [name for model, name in found if model == job.model and name != OURS]
    if worker.engine == OURS and peers:
        kept = kept_advantage(times, [found[job.model, name] for name in peers])
        low, _, high = quantiles(kept, n=4) if len(kept) > 1 else kept * 3
        row |= {"kept": round(median(kept), 4), "kept_quartiles": [round(low, 4), round(high, 4)]}
    return row


def kept_advantage(ours: Times, peers: Sequence[Times]) -> list[float]:
    """Return the advantage over the best peer in rotation by that alone, for each round."""
    best = {
        way: [min(turns) for turns in zip(*(p[way] for p in peers), strict=True)] for way in _WAYS
    }
    gains = {way: [p / o for p, o in zip(best[way], ours[way], strict=True)] for way in _WAYS}
    return [turn / alone for alone, turn in zip(*(gains[way] for way in _WAYS), strict=True)]


def print_rows(rows: Sequence[dict[str, Any]]) -> None:
    """Print the rows."""
    for row in rows:
        line = (
            f"{row['model']} threads={row['threads']}  {row['engine']:12}"
            f" alone {row['alone_median_ms']:8.3f} ms   in turn {row['rotation_median_ms']:8.3f} ms"
            f"   slowdown {row['slowdown']:.3f}"
        )
        if "kept" in row:
            low, high = row["kept_quartiles"]
            line += f"   kept {row['kept']:.3f} (half of the rounds in {low:.3f}..{high:.3f})"
        print(line, flush=True)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options."""
    parser = parser_for(__doc__)
    add = parser.add_argument
    add("--models", default="mobilenetv2,squeezenet,resnet50", help="names, separated by commas")
    add("--threads", type=numbers, default=[2], help="one number or several, by commas")
    add("--peers", type=words, default=["onnxruntime"], help="engines to compare with")
    add("--engines", default=str(SAVED), help="where our engines are kept; empty for nowhere")
    add("--prepare", action="store_true", help="build our engines and measure nothing")
    add("--rounds", type=int, default=20, help="turns of each engine")
    add("--seconds", type=float, default=0.5, help="length of a model's part of a turn")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the rotation and write the rows."""
    options = parse(arguments)
    names = known_engines([OURS, *([] if options.prepare else options.peers)])
    rows: list[dict[str, Any]] = []
    failed = False
    with tempfile.TemporaryDirectory() as scratch:
        found = list(models_with_inputs(options.models, options.model_dir, scratch))
        for threads in options.threads:
            jobs = [
                Job(model, str(file), str(inputs), "float32", threads, saved=options.engines)
                for model, file, inputs in found
            ]
            try:
                measured = measure(jobs, names, options)
            except EngineFailedError as error:
                print(error, file=sys.stderr)
                failed = True
                continue
            print_rows(measured)
            rows += measured
            write_fused_kernel(options.json, rows)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
