"""Measure what comes before the first inference: importing, building, building again, loading.

Every time is taken inside a fresh process whose modules are compiled, as installed ones are; best
and median are over all of them, and the kinds take turns. "cold build" has an empty home: neither
timings nor code are cached. "cached build" is the same build again. "load" is `smelt.load` of the
saved engine, with everything that it imports, and a context; for the others, a session from the
model. "import" is the engine's package with numpy, "import numpy" numpy alone.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if not __package__:  # run as a script
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks.support.fresh import run_python, run_stages, save_engine
from benchmarks.support.models import models_with_inputs
from benchmarks.support.results import parser_for, words, write_rows

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

_IMPORT: Final = """
import time
begin = time.perf_counter()
import numpy{}
print(time.perf_counter() - begin)
"""


def time_import(module: str, limit: float) -> float:
    """Return the seconds of importing numpy and then ``module``, if any."""
    text = _IMPORT.format(f"\nimport {module}" if module else "")
    return float(run_python(["-c", text], limit))


def row(model: str, measure: str, engine: str, times: Sequence[float]) -> dict[str, Any]:
    """Return a row, and print it."""
    best, median = min(times), statistics.median(times)
    print(
        f"{model:12} {engine:12} {measure:14} best {best:8.3f} s   median {median:8.3f} s",
        flush=True,
    )
    return {
        "model": model,
        "measure": measure,
        "engine": engine,
        "best_s": round(best, 4),
        "median_s": round(median, 4),
    }


def import_rows(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the rows of imports."""
    modules = {"numpy": "", "smelt": "smelt"} | {name: name for name in options.peers}
    times: dict[str, list[float]] = {name: [] for name in modules}
    for turn in range(options.repeats + 1):
        for name, module in modules.items():
            taken = time_import(module, options.limit)
            if turn:  # the first one compiles the modules
                times[name].append(taken)
    return [
        row("", "import numpy" if name == "numpy" else "import", name, times[name])
        for name in modules
    ]


def build_rows(
    model: str, file: Path, inputs: Path, scratch: Path, options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Return the rows of our builds, the first of each pair with an empty home."""
    cold: list[float] = []
    cached: list[float] = []
    for number in range(options.builds):
        home = scratch / f"{model.replace('/', '_')}{number}"
        home.mkdir(mode=0o700)
        for times in (cold, cached):
            stages = run_stages("smelt-build", file, inputs, options.threads, options.limit, home)
            times.append(stages["read"]["seconds"] + stages["build"]["seconds"])
    return [row(model, "cold build", "smelt", cold), row(model, "cached build", "smelt", cached)]


def load_rows(
    model: str, file: Path, inputs: Path, scratch: Path, options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Return the rows of loading, in turns."""
    saved = scratch / "saved.engine"
    save_engine(file, inputs, saved, options.limit)
    files = {"smelt": saved} | dict.fromkeys(options.peers, file)
    times: dict[str, list[float]] = {name: [] for name in files}
    for _ in range(options.repeats):
        for name, loaded in files.items():
            stages = run_stages(name, loaded, inputs, options.threads, options.limit)
            times[name].append(stages["load"]["seconds"])
    return [row(model, "load", name, times[name]) for name in files]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure every model and write the rows."""
    parser = parser_for(__doc__)
    add = parser.add_argument
    add("--models", default="resnet50", help="names or groups, separated by commas")
    add("--threads", type=int, default=2)
    add("--peers", type=words, default=["onnxruntime", "openvino"], help="engines to compare with")
    add("--repeats", type=int, default=7, help="processes of each kind")
    add("--builds", type=int, default=2, help="cold builds, and as many cached ones")
    options = parser.parse_args(arguments)
    rows = import_rows(options)
    with tempfile.TemporaryDirectory() as scratch:
        for model, file, inputs in models_with_inputs(options.models, options.model_dir, scratch):
            rows += build_rows(model, file, inputs, Path(scratch), options)
            rows += load_rows(model, file, inputs, Path(scratch), options)
            write_rows(options.json, rows)
    write_rows(options.json, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
