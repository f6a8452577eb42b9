"""Running an example as its reader would: a process of its own, with an empty home."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run_example(folder: str, script: str, *options: str, home: Path) -> str:
    """Run the script of an example; return what it prints. Fails when the script does."""
    run = start_example(folder, script, *options, home=home)
    assert run.returncode == 0, run.stderr
    assert not run.stderr, run.stderr
    return run.stdout


def start_example(
    folder: str, script: str, *options: str, home: Path
) -> subprocess.CompletedProcess[str]:
    """Run the script of an example, and tell how it ended."""
    environment = {name: v for name, v in os.environ.items() if not name.startswith("SMELT_")}
    return subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / folder / script), *options],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=home,
        env={**environment, "HOME": str(home), "USERPROFILE": str(home)},
    )
