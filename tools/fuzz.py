"""Fuzz what reads foreign data: files of models, engines, caches and keys.

Each target runs in a process of its own with bounded memory; an input may raise errors of smelt's
tree and nothing else, in bounded time. The first inputs are made by our own writers, and kept ones
come from tests/fuzz/corpus.

usage: python tools/fuzz.py onnx --seconds 600 --keep
       python tools/fuzz.py --all --seconds 60
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))

STUCK_SECONDS: Final = 60
"""Working for so long without a new input, a process hangs where no signal can end it."""
ASLEEP_SECONDS: Final = 600
"""The same for one that does not work; on a busy machine it may only be waiting for its turn."""


def main(arguments: list[str] | None = None) -> int:
    """Run the targets that the command line names; return how the process ends."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="names of targets")
    parser.add_argument("--all", action="store_true", help="every target; they share the time")
    parser.add_argument("--seconds", type=float, default=60, help="for how long, altogether")
    parser.add_argument("--seed", type=int, default=1, help="seed of all chance")
    parser.add_argument("--most", type=int, default=20, help="end after so many findings")
    parser.add_argument("--keep", action="store_true", help="keep what reaches new lines")
    parser.add_argument("--missed", action="store_true", help="list the lines not reached")
    parser.add_argument("--findings", type=Path, default=ROOT / "build" / "fuzz", metavar="DIR")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the outcome to FILE")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker is not None:
        return _work(options)
    rows = _run_targets(options)
    for row in rows:
        _show(row, options)
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    return 1 if any(row["findings"] for row in rows) else 0


def _run_targets(options: argparse.Namespace) -> list[dict[str, Any]]:
    from tests.fuzz.targets import TARGETS

    known = {target.name: target for target in TARGETS}
    names = list(known) if options.all else list(options.targets)
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise SystemExit(f"name targets out of: {', '.join(known)}; or give --all")
    total = sum(known[name].share for name in names)
    return [
        run_target(
            name,
            options.seconds * known[name].share / total,
            seed=options.seed,
            keep=options.keep,
        )
        for name in names
    ]


def run_target(
    name: str,
    seconds: float,
    *,
    seed: int = 1,
    keep: bool = False,
    most: int = 20,
    source: Path | None = None,
) -> dict[str, Any]:
    """Fuzz one target in a process of its own.

    Args:
        name: of the target.
        seconds: how long, once the first inputs have run.
        seed: of all chance.
        keep: whether the corpus takes what reaches something new.
        most: end after so many findings.
        source: folder whose ``smelt`` is fuzzed instead of this one's.
    """
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        scratch = Path(folder)
        command = [sys.executable, str(Path(__file__).resolve()), name, "--worker", folder]
        command += ["--seconds", str(seconds), "--seed", str(seed), "--most", str(most)]
        command += ["--keep"] if keep else []
        # One thread, and a home that is nobody's.
        environment = {"PATH": os.defpath, "HOME": folder, "OPENBLAS_NUM_THREADS": "1"}
        environment["PYTHONPATH"] = str(source or ROOT / "src")
        with (scratch / "log").open("wb") as log:
            process = subprocess.Popen(
                command, env=environment, cwd=folder, stdout=log, stderr=subprocess.STDOUT
            )
            problem = _watch(process, scratch / "input")
        result = scratch / "result.json"
        if problem is None and result.exists():
            row: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
            return row
        return _died(name, problem or f"exit status {process.returncode}", scratch)


def _watch(process: subprocess.Popen[bytes], current: Path) -> str | None:
    """Wait for a process; what is wrong with it, if it had to be ended."""
    changed, worked, last = time.monotonic(), 0.0, 0
    while process.poll() is None:
        time.sleep(0.1)
        at = current.stat().st_mtime_ns if current.exists() else 0
        if at != last:
            changed, worked, last = time.monotonic(), _processor_seconds(process.pid), at
        asleep = time.monotonic() - changed > ASLEEP_SECONDS
        if asleep or _processor_seconds(process.pid) - worked > STUCK_SECONDS:
            process.kill()
            process.wait()
            return f"no end after {ASLEEP_SECONDS if asleep else STUCK_SECONDS} s"
    return None


def _processor_seconds(process: int) -> float:
    """Return the processor time that a process has taken; 0 where it has ended."""
    try:
        fields = (
            Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        )
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _died(name: str, problem: str, scratch: Path) -> dict[str, Any]:
    log = (scratch / "log").read_text(encoding="utf-8", errors="replace")
    current = scratch / "input"
    data = current.read_bytes() if current.exists() else b""
    found = {"kind": "process ended", "place": problem, "text": log[-4000:], "data": data.hex()}
    return {"target": name, "runs": 0, "accepted": 0, "findings": [found], "modules": {}}


def _show(row: dict[str, Any], options: argparse.Namespace) -> None:
    modules = row["modules"].values()
    reached, total = sum(m[0] for m in modules), sum(m[1] for m in modules)
    share = f"{100 * reached / total:.1f} %" if total else "-"
    print(
        f"{row['target']}: {row['runs']} inputs, {row['accepted']} accepted, "
        f"{reached} of {total} lines ({share}), {len(row['findings'])} findings"
    )
    for name, (lines, of, missed) in row["modules"].items():
        print(f"  {name}: {lines}/{of} ({100 * lines / max(of, 1):.0f} %)")
        if options.missed:
            for line in missed:
                print(f"    {line}")
    for number, finding in enumerate(row["findings"]):
        options.findings.mkdir(parents=True, exist_ok=True)
        path = options.findings / f"{row['target']}-{number}"
        path.write_bytes(bytes.fromhex(finding["data"]))
        print(f"  {finding['kind']} in {finding['place']}: {path}\n{finding['text']}")


# ---- inside the process


def _work(options: argparse.Namespace) -> int:
    from tests.fuzz.loop import Loop, read_corpus, shares, write_corpus
    from tests.fuzz.targets import TARGETS

    (name,) = options.targets
    target = next(t for t in TARGETS if t.name == name)
    loop = Loop(target, options.seed, options.worker / "input")
    outcome = loop.run(options.seconds, [*target.seeds(), *read_corpus(name)], options.most)
    if options.keep and not outcome.findings:
        made = set(target.seeds())
        write_corpus(name, [data for data in outcome.kept if data not in made])
    row = {
        "target": name,
        "runs": outcome.runs,
        "accepted": outcome.accepted,
        "findings": [
            {"kind": f.kind, "place": f.place, "text": f.text, "data": f.data.hex()}
            for f in outcome.findings
        ],
        "modules": shares(target, outcome.reached),
    }
    (options.worker / "result.json").write_text(json.dumps(row), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
