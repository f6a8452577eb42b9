"""Measure what comes before the first inference: importing, building, building again, loading.

Every time is taken inside a fresh process whose modules are compiled, as installed ones are; best
and median are over all of them. "import" is the engine's package with numpy, "import numpy" numpy
alone; nothing else counts the process's start. "cold build" reads a model and builds it in an empty
home: neither timings nor code are cached. "cached build" is the same build again.

On CPUs "load" is `smelt.load` of the saved engine, with everything that it imports, and a context;
for the others, a session from the model. They take turns.

On GPUs (--device cuda) the engine is loaded in processes that can import neither Triton nor torch
and find no nvcc, and each row tells the time up to the end of a step: "open the GPU" imports
cuda-bindings and starts the driver, which no CUDA program does without; "load" is `Engine.load`;
then "context", and "first answer" with the outputs of one inference on the host. For a GPU that is
not here (--device cuda:sm_90) engines are built, by estimates, and not loaded.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if not __package__:  # run as a script
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks.support.engines import Job
from benchmarks.support.fresh import run_python, run_stages
from benchmarks.support.models import models_with_inputs, random_inputs, save_inputs
from benchmarks.support.one_node import Case
from benchmarks.support.results import name_of_gpu, numbers, parser_for, words, write_fused_kernel
from benchmarks.support.stages import Settings

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

_IMPORT: Final = """
import time
begin = time.perf_counter()
import numpy{}
print(time.perf_counter() - begin)
"""
_ONTO_GPU: Final = {
    "device": "open the GPU",
    "load": "load",
    "context": "context",
    "first run": "first answer",
}
"""The stages of loading onto a GPU, in order, and what the time up to the end of each is called."""

Row = dict[str, Any]


def time_import(module: str, limit: float) -> float:
    """Return the seconds of importing numpy and then ``module``, if any."""
    text = _IMPORT.format(f"\nimport {module}" if module else "")
    return float(run_python(["-c", text], limit))


def row(measure: str, engine: str, times: Sequence[float], job: Job | None, device: str) -> Row:
    """Return a row, and print it; without a job it is of no model."""
    best, median = min(times), statistics.median(times)
    of = {"dtype": job.dtype, "batch": job.batch, "device": device} if job else {}
    model = job.model if job else ""
    label = " ".join(map(str, (model, *of.values())))
    print(
        f"{label:28} {engine:12} {measure:14} best {best:8.3f} s   median {median:8.3f} s",
        flush=True,
    )
    return {
        "model": model,
        **of,
        "measure": measure,
        "engine": engine,
        "best_s": round(best, 4),
        "median_s": round(median, 4),
    }


def import_rows(options: argparse.Namespace) -> list[Row]:
    """Return the rows of imports."""
    modules = {"numpy": "", "smelt": "smelt"} | {name: name for name in options.peers}
    times: dict[str, list[float]] = {name: [] for name in modules}
    for turn in range(options.repeats + 1):
        for name, module in modules.items():
            taken = time_import(module, options.limit)
            if turn:  # the first one compiles the modules
                times[name].append(taken)
    return [
        row("import numpy" if name == "numpy" else "import", name, taken, None, options.device)
        for name, taken in times.items()
    ]


def time_build(job: Job, home: Path, saved: Path, options: argparse.Namespace) -> float:
    """Return the seconds of reading a model and building its engine, which is then saved."""
    settings = Settings(job.threads, options.device, job.precision, str(saved))
    file, inputs = Path(job.file), Path(job.inputs)
    stages = run_stages("smelt-build", file, inputs, settings, options.limit, home)
    return stages["read"]["seconds"] + stages["build"]["seconds"]


def warm_up(scratch: Path, options: argparse.Namespace) -> None:
    """Build something small, so that all modules are compiled, and a driver ran once."""
    model, inputs = scratch / "small.onnx", scratch / "small.npz"
    Case("small", "Relu", ((1, 64),)).save(model)
    save_inputs(inputs, random_inputs(model, 1, {}))
    job = Job("small", str(model), str(inputs), "float32", options.threads)
    time_build(job, new_home(scratch), scratch / "small.engine", options)


def new_home(scratch: Path) -> Path:
    """Return an empty folder for keys and caches, which is its owner's alone."""
    return Path(tempfile.mkdtemp(prefix="home-", dir=scratch))


def measure(job: Job, scratch: Path, options: argparse.Namespace) -> list[Row]:
    """Return the rows of builds, the first in each home with nothing cached, and of loads."""
    saved = scratch / "saved.engine"
    homes = [new_home(scratch) for _ in range(options.builds)]
    times: dict[str, list[float]] = {"cold build": [], "cached build": []}
    for home in homes:
        for kind in ("cold build", *["cached build"] * max(options.cached, 1)):
            times[kind].append(time_build(job, home, saved, options))
    rows = [row(kind, "smelt", taken, job, options.device) for kind, taken in times.items()]
    if not options.on_gpu:
        return rows + load_rows(job, saved, homes[-1], options)
    return rows + (gpu_load_rows(job, saved, homes[-1], options) if options.is_here else [])


def load_rows(job: Job, saved: Path, home: Path, options: argparse.Namespace) -> list[Row]:
    """Return the rows of loading on the CPU, in turns."""
    files = {"smelt": saved} | dict.fromkeys(options.peers, Path(job.file))
    times: dict[str, list[float]] = {name: [] for name in files}
    settings = Settings(job.threads)
    for _ in range(options.repeats):
        for name, loaded in files.items():
            stages = run_stages(name, loaded, Path(job.inputs), settings, options.limit, home)
            times[name].append(stages["load"]["seconds"])
    return [row("load", name, taken, job, options.device) for name, taken in times.items()]


def gpu_load_rows(job: Job, saved: Path, home: Path, options: argparse.Namespace) -> list[Row]:
    """Return the rows of loading onto a GPU, where nothing can compile."""
    times: dict[str, list[float]] = {name: [] for name in _ONTO_GPU.values()}
    settings = Settings(job.threads, options.device)
    for _ in range(options.repeats):
        stages = run_stages("smelt-bare", saved, Path(job.inputs), settings, options.limit, home)
        ends = itertools.accumulate(stages[stage]["seconds"] for stage in _ONTO_GPU)
        for taken, end in zip(times.values(), ends, strict=True):
            taken.append(end)
    return [row(name, "smelt", taken, job, options.device) for name, taken in times.items()]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options."""
    parser = parser_for(__doc__)
    add = parser.add_argument
    add("--models", default="resnet50", help="names or groups, separated by commas")
    add("--device", default="cpu", help="what to build for: cpu, cuda, cuda:1, cuda:sm_90")
    add("--precision", type=words, default=["float32"], help="one or several, by commas")
    add("--batch", type=numbers, default=[1], help="one number or several, by commas")
    add("--threads", type=int, default=2)
    add(
        "--peers",
        type=words,
        default=["onnxruntime", "openvino"],
        help="engines to compare with, on CPUs alone",
    )
    add("--repeats", type=int, default=7, help="processes of each kind")
    add("--builds", type=int, help="cold builds; 2 on CPUs and 1 on GPUs if not given")
    add("--cached", type=int, default=2, help="cached builds after each cold one, one at least")
    options = parser.parse_args(arguments)
    options.on_gpu = options.device.startswith("cuda")
    options.is_here = ":sm_" not in options.device
    options.builds = options.builds or (1 if options.on_gpu else 2)
    if options.on_gpu:
        options.peers = []
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure every model and write the rows."""
    options = parse(arguments)
    gpu = name_of_gpu() if options.on_gpu and options.is_here else None
    rows = import_rows(options)
    with tempfile.TemporaryDirectory() as scratch:
        warm_up(Path(scratch), options)
        for batch in options.batch:
            found = models_with_inputs(options.models, options.model_dir, scratch, batch)
            for model, file, inputs in found:
                for dtype in options.precision:
                    job = Job(model, str(file), str(inputs), dtype, options.threads, batch)
                    rows += measure(job, Path(scratch), options)
                    write_fused_kernel(options.json, rows, gpu)
    write_fused_kernel(options.json, rows, gpu)
    return 0


if __name__ == "__main__":
    sys.exit(main())
