"""Fresh processes: what a program costs that starts, loads an engine and runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from benchmarks.support.models import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence

STAGES: Final = Path(__file__).with_name("stages.py")
_COMPILED: Final = ROOT / "build" / "benchmark-bytecode"


def environment(home: Path | None = None) -> dict[str, str]:
    """Return the environment of a fresh process: modules compiled, as installed ones are.

    Args:
        home: where keys and caches are; None for the user's.
    """
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    kept |= {"PYTHONPATH": str(ROOT / "src"), "PYTHONPYCACHEPREFIX": str(_COMPILED)}
    return kept | ({} if home is None else {"SMELT_HOME": str(home)})


def run_python(arguments: Sequence[str], limit: float, home: Path | None = None) -> str:
    """Return what a fresh interpreter prints."""
    done = subprocess.run(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=limit,
        env=environment(home),
    )
    return done.stdout


def run_stages(
    engine: str, file: Path, inputs: Path, threads: int, limit: float, home: Path | None = None
) -> dict[str, dict[str, float]]:
    """Return seconds and memory of each stage of one engine's process."""
    text = run_python(
        [str(STAGES), engine, str(file), str(inputs), str(threads)], limit=limit, home=home
    )
    rows = cast("list[dict[str, Any]]", json.loads(text.splitlines()[-1]))
    return {str(row.pop("stage")): row for row in rows}


def save_engine(
    model: Path, inputs: Path, file: Path, limit: float, home: Path | None = None
) -> None:
    """Build our engine of a model and save it, in a process of its own."""
    program = (
        "import sys, smelt, numpy as np\n"
        "shapes = {k: v.shape for k, v in np.load(sys.argv[2]).items()}\n"
        "network = smelt.network_from_onnx(sys.argv[1])\n"
        "smelt.build(network, device='cpu', shapes=shapes).save(sys.argv[3])\n"
    )
    run_python(["-c", program, str(model), str(inputs), str(file)], limit=limit, home=home)
