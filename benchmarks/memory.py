"""Measure the memory of a process that loads a network and runs it, for each engine.

Every engine has a fresh process: it imports numpy, the engine, loads the network, runs it once and
then a few times more. After each stage stand the resident memory, the part of it that the process
cannot share with others, and the peak so far. smelt loads an engine that was saved before;
smelt-build builds one in the process that runs it. The least of several processes counts: what is
more came from the system.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if not __package__:  # run as a script
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks.support.fresh import run_stages
from benchmarks.support.models import models_with_inputs
from benchmarks.support.results import parser_for, words, write_fused_kernel
from benchmarks.support.stages import Settings

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

_LAST: Final = "runs"
"""The stage after which nothing more is taken."""


def measure(
    model: str, files: dict[str, Path], inputs: Path, options: argparse.Namespace, repeats: int
) -> list[dict[str, Any]]:
    """Return a row for each engine and the file that it loads."""
    rows: list[dict[str, Any]] = []
    settings = Settings(options.threads)
    for engine, file in files.items():
        try:
            runs = [
                run_stages(engine, file, inputs, settings, options.limit) for _ in range(repeats)
            ]
        except (subprocess.SubprocessError, ValueError) as error:
            print(f"{model}: {engine} left out: {error}", file=sys.stderr)
            continue
        best = min(runs, key=lambda run: run[_LAST]["peak_mib"])
        rows.append(
            {
                "model": model,
                "threads": options.threads,
                "engine": engine,
                "numpy_mib": best["numpy"]["rss_mib"],
                "import_mib": best["import"]["rss_mib"],
                "loaded_mib": best["load"]["rss_mib"],
                "ran_mib": best[_LAST]["rss_mib"],
                "own_mib": best[_LAST]["own_mib"],
                "peak_mib": best[_LAST]["peak_mib"],
            }
        )
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure every model and write the rows."""
    parser = parser_for(__doc__)
    add = parser.add_argument
    add("--models", default="resnet50,mobilenetv2", help="names or groups, separated by commas")
    add("--threads", type=int, default=2)
    add("--peers", type=words, default=["onnxruntime", "openvino"], help="engines to compare with")
    add("--repeats", type=int, default=3, help="processes of each engine")
    add("--no-build", action="store_true", help="leave out the process that builds")
    options = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        saved = Path(scratch) / "saved.engine"
        for model, file, inputs in models_with_inputs(options.models, options.model_dir, scratch):
            saving = Settings(options.threads, saved=str(saved))
            run_stages("smelt-build", file, inputs, saving, options.limit)
            files = {"smelt": saved} | dict.fromkeys(options.peers, file)
            measured = measure(model, files, inputs, options, options.repeats)
            if not options.no_build:
                measured += measure(model, {"smelt-build": file}, inputs, options, 1)
            for row in measured:
                print(f"{row['model']} {row['engine']:12} peak {row['peak_mib']:7.1f} MiB", end="")
                print(f"   loaded {row['loaded_mib']:7.1f}   its own {row['own_mib']:7.1f}")
            rows += measured
            write_fused_kernel(options.json, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
