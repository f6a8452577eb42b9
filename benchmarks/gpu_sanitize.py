"""Run networks on a GPU under compute-sanitizer: nothing out of bounds, nothing that races.

Engines are built and saved first, outside of the tool, which slows everything down by a hundred
times. Under it each is loaded and run twice, as a graph; the two runs must agree in every bit.
Untuned engines have the kernels that estimates choose, the same everywhere; those of --tune fast
have what the clock chooses, which is other kernels at each --batch.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

if not __package__:  # run as a script
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks.support.models import ROOT, models_with_inputs
from benchmarks.support.results import numbers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

TOOLS: Final = ("memcheck", "racecheck", "synccheck", "initcheck")
_FOUND: Final = 9
"""Exit status for what the tool found."""
_BUILD: Final = """
import sys, numpy as np, smelt
shapes = {k: v.shape for k, v in np.load(sys.argv[2]).items()}
network = smelt.network_from_onnx(sys.argv[1])
options = {"device": "cuda", "precision": sys.argv[3], "tune": sys.argv[4]}
smelt.build(network, shapes=shapes, **options).save(sys.argv[5])
"""
_RUN: Final = """
import sys, numpy as np
from smelt.runtime import Engine
inputs = dict(np.load(sys.argv[2]))
with Engine.load(sys.argv[1]) as engine, engine.create_context() as context:
    first, second = context.run(inputs), context.run(inputs)
for name, array in first.items():
    assert np.isfinite(array.astype(np.float64)).all(), name
    assert array.tobytes() == second[name].tobytes(), f"{name} moves from run to run"
"""


def _python(program: str, arguments: Sequence[str], before: Sequence[str], limit: float) -> str:
    """Run a program; return what is wrong, or nothing."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    try:
        done = subprocess.run(
            [*before, sys.executable, "-c", program, *arguments],
            env=os.environ | {"PYTHONPATH": paths},
            capture_output=True,
            text=True,
            timeout=limit,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"not done after {limit:.0f} s"
    if done.returncode == 0:
        return ""
    return f"status {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-1500:]}"


def check(options: argparse.Namespace, scratch: str) -> Iterator[tuple[str, str]]:
    """Yield each check, and what is wrong with it."""
    engine = Path(scratch) / "saved.engine"
    for batch in options.batch:
        for model, file, inputs in models_with_inputs(options.models, None, scratch, batch):
            for precision in options.precision.split(","):
                label = f"{model} {precision} batch={batch}"
                given = [str(file), str(inputs), precision, options.tune, str(engine)]
                if wrong := _python(_BUILD, given, (), options.limit):
                    yield f"{label} build", wrong
                    continue
                for tool in options.tools.split(","):
                    command = ["compute-sanitizer", "--tool", tool, f"--error-exitcode={_FOUND}"]
                    wrong = _python(_RUN, [str(engine), str(inputs)], command, options.limit)
                    yield f"{label} {tool}", wrong


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one line for each network, batch, precision and tool."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="lenet,resnet50", help="separated by commas")
    parser.add_argument("--precision", default="float16", help="separated by commas")
    parser.add_argument("--batch", type=numbers, default=[1], help="separated by commas")
    parser.add_argument("--tools", default="memcheck,racecheck", help=f"of {', '.join(TOOLS)}")
    parser.add_argument("--tune", default="none", help="tuning effort")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds of each run at most")
    options = parser.parse_args(arguments)
    if shutil.which("compute-sanitizer") is None:
        print("compute-sanitizer is not installed; it comes with the CUDA toolkit")
        return 1
    failed = False
    with tempfile.TemporaryDirectory() as scratch:
        for name, wrong in check(options, scratch):
            failed |= bool(wrong)
            print(f"{name}: {wrong or 'nothing found'}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
