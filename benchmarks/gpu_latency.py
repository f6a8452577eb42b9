"""Measure the latency of whole networks on an NVIDIA GPU: smelt and other engines, interleaved.

Every engine has a process of its own that stays alive; short turns go round among them. All get the
same random inputs, and their outputs are compared before anything is timed. What counts is the time
of one inference on the GPU, by events around it while the host runs ahead, with what the last
inference left in L2 (warm) and with nothing of it (cold); beside it stands the host's own time from
a call to its results. All run as CUDA graphs, XLA as it likes. torch's and XLA's inputs are of the
measured type already, ours are float32 as the model says.

``torch.compile`` takes minutes for a network, so --compiled says which models it is measured on;
what it found is kept with our engines in build/benchmark-engines. --with FILE takes the rows of
other engines from an earlier measurement, so that ours can be measured anew alone.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

if not __package__:  # run as a script
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks.cpu_latency import largest_error
from benchmarks.support.engines import SAVED, EngineFailedError, Job, Worker
from benchmarks.support.gpu_engines import ENGINES
from benchmarks.support.models import load_inputs, models_with_inputs, shapes_of
from benchmarks.support.onnx_steps import Ceilings, read_network, roofline_ms
from benchmarks.support.results import (
    name_of_gpu,
    numbers,
    parser_for,
    summary,
    words,
    write_fused_kernel,
)

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    Array = NDArray[Any]

OURS: Final = "smelt"
TOLERANCE: Final = {"float32": 2e-4, "tf32": 1e-2, "float16": 6e-3, "bfloat16": 4e-2}
"""Largest difference between two engines that is not called an error, of the largest output.

Both round, so it is twice what each may be away from exact arithmetic: 1e-4, 3e-3 and 2e-2. tf32
has the bits of float16, but an engine that leaves it to the tensor cores cuts off what they have no
room for: 7e-3 of ResNet-50, 4e-4 if rounded. So there it is what `smelt compare` allows one engine.
"""
CEILINGS: Final = {
    "float32": Ceilings(60e12, 4.3e12),
    "tf32": Ceilings(395e12, 4.3e12),
    "float16": Ceilings(790e12, 4.3e12),
    "bfloat16": Ceilings(790e12, 4.3e12),
}
"""What an H200 does at best: products and copies measured on random data, and of float32 (and tf32)
the vendor's rate in the same proportion."""
_ITEM_BYTES: Final = {"float32": 4, "tf32": 4, "float16": 2, "bfloat16": 2}

Row = dict[str, Any]


class Workers:
    """A process for each engine, which stays for the next network."""

    def __init__(self, names: Sequence[str], limit: float) -> None:
        """Start none yet."""
        self.names, self._limit = names, limit
        self._made: dict[str, Worker] = {}

    def ready(self, job: Job, names: Sequence[str]) -> list[Worker]:
        """Return those that can run the job, made ready one after another, for they tune."""
        workers: list[Worker] = []
        for name in names:
            begin = time.monotonic()
            if name not in self._made:
                self._made[name] = Worker(name, threads=1, limit=self._limit, room="gpu_engines")
            try:
                self._made[name].load(job)
            except EngineFailedError as error:
                print(f"{_label(job)}: left out: {error}", file=sys.stderr, flush=True)
                self._made.pop(name).close()
            else:
                seconds = time.monotonic() - begin
                print(f"{_label(job)}: {name} is ready after {seconds:.1f} s", flush=True)
                workers.append(self._made[name])
        return workers

    def close(self) -> None:
        """End them."""
        for worker in self._made.values():
            worker.close()


def _label(job: Job) -> str:
    return f"{job.model} {job.dtype} batch={job.batch}"


def compare(workers: list[Worker], job: Job, folder: Path) -> dict[str, float]:
    """Print how far each engine's outputs are from the last's; return that by engine."""
    outputs = {worker.engine: worker.save(folder / f"{worker.engine}.npz") for worker in workers}
    judge = workers[-1].engine
    errors = {name: largest_error(found, outputs[judge]) for name, found in outputs.items()}
    for name, error in errors.items():
        if name != judge:
            verdict = "" if error <= TOLERANCE[job.dtype] else "; that is something else: not timed"
            print(f"{_label(job)}: {name} differs from {judge} by {error:.1e}{verdict}")
    return errors


def measure_rounds(workers: Sequence[Worker], options: argparse.Namespace) -> dict[str, Any]:
    """Return each engine's times by kind."""
    times: dict[str, dict[str, list[float]]] = {worker.engine: {} for worker in workers}
    for turn in range(options.rounds + 1):
        for worker in workers:
            detail = cast("dict[str, list[float]]", worker.turn(options.seconds, options.warm_up))
            for kind, taken in detail.items():
                if turn:  # the first round warms all of them up
                    times[worker.engine].setdefault(kind, []).extend(taken)
    return times


def measure(
    job: Job, workers: Workers, names: Sequence[str], options: argparse.Namespace
) -> list[Row]:
    """Return a row for each engine."""
    file, inputs = Path(job.file), Path(job.inputs)
    ready = workers.ready(job, names)
    if not ready:
        return []
    errors = compare(ready, job, inputs.parent)
    near = [w for w in ready if errors[w.engine] <= TOLERANCE[job.dtype]]
    times = measure_rounds(near, options)
    least = roofline_ms(
        read_network(file),
        shapes_of(file, load_inputs(inputs)),
        _ITEM_BYTES[job.dtype],
        CEILINGS[job.dtype],
    )
    rows: list[Row] = []
    for worker in near:
        kinds = times[worker.engine]
        row: Row = {
            "model": job.model,
            "dtype": job.dtype,
            "batch": job.batch,
            "engine": worker.engine,
            "version": worker.version,
            "options": worker.options,
            **summary(kinds["warm"], 5),
            "cold_ms": round(statistics.median(kinds["cold"]), 5) if kinds["cold"] else None,
            "call_ms": round(statistics.median(kinds["call"]), 5),
            "roofline_ms": round(least, 5),
            "error": None if worker is ready[-1] else float(f"{errors[worker.engine]:.1e}"),
            "compared_with": None if worker is ready[-1] else ready[-1].engine,
            "measured": options.stamp,
        }
        row["share_of_roofline"] = round(least / row["median_ms"], 4)
        rows.append(row)
    return rows


def print_rows(rows: Sequence[Row]) -> None:
    """Print a model's rows, and the ratio of the best peer's median to ours."""
    for row in rows:
        cold = f"{row['cold_ms']:8.4f}" if row["cold_ms"] else " " * 8
        print(
            f"{row['model']:18} {row['dtype']:8} b{row['batch']:<4} {row['engine']:14}"
            f" median {row['median_ms']:8.4f}  best {row['best_ms']:8.4f}  cold {cold}"
            f"  call {row['call_ms']:8.4f}  {row['share_of_roofline']:.0%} of the roofline"
        )
    peers = {row["engine"]: row["median_ms"] for row in rows}
    if (ours := peers.pop(OURS, None)) and peers:
        said = ", ".join(f"{name} / ours {time / ours:.2f}" for name, time in peers.items())
        print(said, flush=True)


def earlier_rows(file: Path | None, row: Row, measured: Sequence[str]) -> list[Row]:
    """Return the rows that an earlier measurement has for the same setting."""
    if file is None:
        return []
    kept = cast("list[Row]", json.loads(file.read_text(encoding="utf-8")))
    same = ("model", "dtype", "batch")
    return [k for k in kept if k["engine"] not in measured and all(k[n] == row[n] for n in same)]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options."""
    parser = parser_for(__doc__)
    add = parser.add_argument
    add("--models", default="resnet50", help="names or groups, separated by commas")
    add("--dtype", type=words, default=["float16"], help=f"of {', '.join(TOLERANCE)}, by commas")
    add("--batch", type=numbers, default=[1], help="one number or several, by commas")
    add("--settings", type=words, default=[], help="MODEL:BATCH by commas, in place of those two")
    add("--peers", type=words, default=["torch", "xla"], help="engines to compare with")
    add("--compiled", type=words, default=["resnet50", "minilm"], help="for torch.compile")
    add("--no-smelt", action="store_true", help="measure the peers alone")
    add("--with", dest="earlier", type=Path, help="rows of engines that are not measured now")
    add("--shape", action="append", default=[], help="INPUT=1,3,224,224")
    add("--tune", default="fast", help="smelt's tuning effort")
    add("--engines", default=str(SAVED), help="where engines are kept; empty for nowhere")
    add("--rounds", type=int, default=4, help="turns of each engine that count")
    add("--seconds", type=float, default=0.3, help="length of a turn")
    add("--warm-up", type=int, default=5, help="calls of a turn that do not count")
    options = parser.parse_args(arguments)
    if unknown := [dtype for dtype in options.dtype if dtype not in TOLERANCE]:
        raise SystemExit(f"no dtype {', '.join(unknown)}; there are: {', '.join(TOLERANCE)}")
    if unknown := [name for name in options.peers if name not in ENGINES]:
        raise SystemExit(f"no engine {', '.join(unknown)}; there are: {', '.join(ENGINES)}")
    options.stamp = time.strftime("%Y-%m-%d %H:%M", time.gmtime())
    return options


def jobs(options: argparse.Namespace, scratch: str) -> Iterator[Job]:
    """Yield everything to measure."""
    settings = [(text.partition(":")[0], int(text.partition(":")[2])) for text in options.settings]
    for models, batch in settings or [(options.models, batch) for batch in options.batch]:
        found = models_with_inputs(models, options.model_dir, scratch, batch, options.shape)
        for model, file, inputs in found:
            for dtype in options.dtype:
                job = Job(model, str(file), str(inputs), dtype, 1, batch, options.tune)
                yield replace(job, saved=options.engines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure every model and write the rows."""
    options = parse(arguments)
    names = [*([] if options.no_smelt else [OURS]), *options.peers]
    gpu = name_of_gpu()
    rows: list[Row] = []
    failed: list[str] = []
    with (
        tempfile.TemporaryDirectory() as scratch,
        closing(Workers(names, options.limit)) as workers,
    ):
        for job in jobs(options, scratch):
            wanted = [n for n in names if n != "torch.compile" or job.model in options.compiled]
            try:
                measured = measure(job, workers, wanted, options)
            except EngineFailedError as error:
                print(f"{_label(job)}: {error}", file=sys.stderr)
                measured = []
            if names[0] not in [row["engine"] for row in measured]:
                failed.append(_label(job))
            if measured:
                engines = [row["engine"] for row in measured]
                measured += earlier_rows(options.earlier, measured[0], engines)
            print_rows(measured)
            rows += measured
            write_fused_kernel(options.json, rows, gpu)
    if failed:
        print(f"not measured with {names[0]}: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
