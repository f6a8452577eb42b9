"""Measure everything, in parts that take less than eight minutes each, and renew the tables.

usage: python benchmarks/run_all.py [--parts networks,kernels] [--prepare]

First with --prepare, which only builds our engines and needs no quiet machine; then without, on a
machine that does nothing else. Rows go to benchmarks/results, and from there into README and
docs/performance.md.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

HERE: Final = Path(__file__).resolve().parent
LIMIT_S: Final = 480
LATENCY: Final = "cpu_latency.py"
PARTS: Final = {
    "networks": (LATENCY, "cpu_networks", "--models networks --threads 2,1"),
    "batch8": (LATENCY, "cpu_batch8", "--models networks --batch 8"),
    "bfloat16": (LATENCY, "cpu_bfloat16", "--models networks --dtype bfloat16 --peers openvino"),
    "int8": (LATENCY, "cpu_int8", "--models resnet50,mobilenetv2 --dtype int8"),
    "untuned": (LATENCY, "cpu_untuned", "--models untuned"),
    "given": (LATENCY, "cpu_given", "--models given"),
    "small": (LATENCY, "cpu_small", "--models small --threads 2,1"),
    "bound": (LATENCY, "cpu_bound", "--models small --threads 1 --bound"),
    "kernels": ("cpu_kernels.py", "cpu_kernels", ""),
    "builds": ("build_time.py", "build_time", ""),
    "memory": ("memory.py", "memory", ""),
    "contention": ("contention.py", "contention", ""),
    "rotation": ("rotation.py", "rotation", ""),
    "barrier": ("barrier.py", "barrier", ""),
    "guards": ("guards.py", "guards", ""),
}
"""The script of each part, the file of its rows, and its options."""
NOT_PREPARED: Final = frozenset({"builds", "memory", "barrier", "guards"})
"""Parts that build in what they measure, or build nothing."""


def command_of(part: str, *, prepare: bool, folder: Path) -> list[str]:
    """Return the command of a part."""
    script, name, options = PARTS[part]
    command = [sys.executable, str(HERE / script), *options.split()]
    return [*command, *(["--prepare"] if prepare else ["--json", str(folder / f"{name}.json")])]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts one after another."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", default=",".join(PARTS), help="some of them, by commas")
    parser.add_argument("--prepare", action="store_true", help="build our engines, measure nothing")
    parser.add_argument("--folder", type=Path, default=HERE / "results", help="where rows go")
    options = parser.parse_args(arguments)
    parts = options.parts.split(",")
    if unknown := [part for part in parts if part not in PARTS]:
        raise SystemExit(f"no part {', '.join(unknown)}; there are: {', '.join(PARTS)}")
    failed: list[str] = []
    for part in parts:
        if options.prepare and part in NOT_PREPARED:
            continue
        begin = time.monotonic()
        command = command_of(part, prepare=options.prepare, folder=options.folder)
        try:
            limit = None if options.prepare else LIMIT_S
            done = subprocess.run(command, check=False, timeout=limit).returncode == 0
        except subprocess.TimeoutExpired:
            done = False
        if not done:
            failed.append(part)
        state = "done" if done else "FAILED"
        print(f"---- {part}: {state} in {time.monotonic() - begin:.0f} s", flush=True)
    if not options.prepare:
        renew = [sys.executable, str(HERE.parent / "tools" / "readme_benchmarks.py")]
        subprocess.run(renew, check=True)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
