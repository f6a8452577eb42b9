"""Fresh processes: what a program costs that starts, loads an engine and runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final, cast

from benchmarks.support import stages
from benchmarks.support.models import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_COMPILED: Final = ROOT / "build" / "benchmark-bytecode"


def environment(home: Path | None = None) -> dict[str, str]:
    """Return the environment of a fresh process: modules compiled, as installed ones are.

    Args:
        home: where keys and caches are; None for the user's.
    """
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    paths = [str(ROOT / "src"), *filter(None, [kept.get("PYTHONPATH")])]
    kept |= {"PYTHONPATH": os.pathsep.join(paths), "PYTHONPYCACHEPREFIX": str(_COMPILED)}
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
    engine: str,
    file: Path,
    inputs: Path,
    settings: stages.Settings,
    limit: float,
    home: Path | None = None,
) -> dict[str, dict[str, float]]:
    """Return seconds and memory of each stage of one engine's process."""
    program = [str(stages.__file__), engine, str(file), str(inputs), json.dumps(settings)]
    text = run_python(program, limit=limit, home=home)
    rows = cast("list[dict[str, Any]]", json.loads(text.splitlines()[-1]))
    return {str(row.pop("stage")): row for row in rows}
