"""Compare all generated code with the manifest in tests/golden/code, or write the manifest.

The manifest tells whether a change of the generators changes what they generate. For every
conformance request (an op's case in a mode, such as float16, for a target) it has a digest of the
machine code of the first candidate, and for all candidates digests of their text with names made
canonical; for reference networks that are built by estimates, of all their code. Keys name ops,
cases, modes, targets and models, and nothing that smelt's source calls its own.

usage: python -m tools.code_manifest [--part cpu cuda networks] [--only conv] [--target sm_90]
       python -m tools.code_manifest --update
       python -m tools.code_manifest --only conv --dump build/code   # every text, to be compared
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tools.code_digests import (
    CODE_DIGITS,
    TEXT_DIGITS,
    canonical_text,
    digest,
    parts_of_object,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from tools.code_sources import Candidate, Kernel, Request

ROOT: Final = Path(__file__).resolve().parent.parent
FOLDER: Final = ROOT / "tests" / "golden" / "code"
PARTS: Final = ("cpu", "cuda", "networks")
COPIES: Final = "copies"
"""The row of what a unit's requests need between nodes: one digest of all its texts."""
_REFERENCE: Final = "reference"
"""Stands for a step that runs the reference in Python."""
_REFERENCE_ALONE: Final = "-"
"""Stands for a candidate without other steps."""
_VIEW: Final = "view"
"""Stands for a candidate that moves no data."""
_RUN_LOOP: Final = "run loop"
_ENTRIES: Final = (
    "for each case code:text text ..., digests of the first candidate's machine code and of every "
    "candidate's canonical text; '-' is a reference in Python"
)
_ABOUT: Final = {
    "cpu": f"target | op | mode: {_ENTRIES}",
    "cuda": f"target | op | mode: {_ENTRIES}",
    "networks": "target | network | precision: digests of the engine's code and of its kernels' "
    "canonical texts",
}
_KEPT_SECONDS: Final = 60.0
"""How often an update writes what is done: a run that is interrupted loses no more."""
_BLAS_KERNELS: Final = "Haswell"
"""numpy's matrix kernels of the processes that build. The rounding trial of float16 compares errors
with a limit, and their last bits differ between processors: with the kernels for AVX-512 another
layer of UltraFace stays in float32."""
_LARGE: Final = frozenset({"conv", "fused", "chain", "conv_sum", "sizes of networks"})
Rows = dict[str, list[str]]
"""For each key an entry a case: "code:text text …", digests of the first candidate's machine code
and of every candidate's text; "" where the case has no such request."""


@dataclass(frozen=True, slots=True)
class Task:
    """A share of a part of the manifest, small enough for many to run side by side."""

    part: str
    target: str
    unit: str
    precision: str = ""

    @property
    def prefix(self) -> str:
        """What the keys of its rows begin with."""
        end = f"{self.precision}" if self.precision else ""
        return f"{self.target} | {self.unit} | {end}"


@dataclass(frozen=True, slots=True)
class How:
    """What is done beside computing digests."""

    dump: Path | None = None
    """Folder for every text and the first candidates' machine code."""
    is_quick: bool = False
    """Whether machine code is taken to be what the manifest says where the text is."""
    compiles: bool = True
    """Whether there are digests of machine code that the manifest does not tell."""


@dataclass(slots=True)
class Outcome:
    """What a task has found."""

    task: Task
    rows: Rows = field(default_factory=dict[str, list[str]])
    labels: dict[str, dict[int, str]] = field(default_factory=dict[str, dict[int, str]])
    """For messages: what each case of a key is called."""
    skipped: str = ""
    """Why there is nothing."""
    seconds: float = 0.0


# ---- digests


class Digests:
    """Digests of kernels, each computed once: candidates share most of them."""

    def __init__(self) -> None:
        self._texts: dict[object, str] = {}
        self._codes: dict[object, str] = {}

    def text(self, kernel: Kernel) -> str:
        """Of the canonical text and the compiler's options."""
        if kernel.identity not in self._texts:
            text = canonical_text(kernel.language, kernel.text)
            self._texts[kernel.identity] = digest([text, *kernel.options], 64)
        return self._texts[kernel.identity]

    def code(self, kernel: Kernel) -> str:
        """Of the machine code and of how it is launched."""
        from tools.code_sources import compiled

        key = (kernel.target, self.text(kernel))
        if key not in self._codes:
            made = compiled(kernel)
            parts: list[str | bytes] = ["not compiled"]
            if made is not None:
                parts = [*parts_of_object(made[0]), *made[1]]
            self._codes[key] = digest(parts, 64)
        return self._codes[key]

    def text_of(self, candidate: Candidate) -> str:
        """Of all steps of a candidate."""
        if special := _without_kernels(candidate):
            return special
        steps = (_REFERENCE if kernel is None else self.text(kernel) for kernel in candidate)
        return digest(steps, TEXT_DIGITS)

    def code_of(self, candidate: Candidate) -> str:
        """Of all steps of a candidate."""
        if special := _without_kernels(candidate):
            return special
        steps = (_REFERENCE if kernel is None else self.code(kernel) for kernel in candidate)
        return digest(steps, CODE_DIGITS)


def _without_kernels(candidate: Candidate) -> str:
    if not candidate:
        return _VIEW
    return _REFERENCE_ALONE if all(kernel is None for kernel in candidate) else ""


# ---- tasks


def run_task(task: Task, stored: Mapping[str, list[str]], how: How) -> Outcome:
    """Compute the rows of a task."""
    begin = time.perf_counter()
    is_network = task.part == "networks"
    outcome = _network(task, how) if is_network else _conformance(task, stored, how)
    outcome.seconds = time.perf_counter() - begin
    return outcome


def _conformance(task: Task, stored: Mapping[str, list[str]], how: How) -> Outcome:
    from tools.code_sources import forget, requests_of

    outcome, digests = Outcome(task), Digests()
    copies: set[str] = set()
    for request in requests_of(task.target, task.unit):
        key = task.prefix + request.mode
        row = outcome.rows.setdefault(key, [])
        row += [""] * (request.case - len(row))
        known = stored.get(key, [])[request.case : request.case + 1] if how.is_quick else []
        row.append(_entry(request, digests, "".join(known), compiles=how.compiles))
        outcome.labels.setdefault(key, {})[request.case] = request.label
        copies |= {digests.text(kernel)[:TEXT_DIGITS] for kernel in request.copies}
        if how.dump is not None:
            _dump_request(how.dump / task.target / task.unit / request.mode, request)
    if copies:
        outcome.rows[task.prefix + COPIES] = [digest(sorted(copies), CODE_DIGITS)]
    forget()
    return outcome


def _entry(request: Request, digests: Digests, known: str, *, compiles: bool) -> str:
    """The entry; of machine code it takes what is known of such text."""
    texts = [digests.text_of(candidate) for candidate in request.candidates]
    code, _, known_texts = known.partition(":")
    if known_texts.split(" ")[0] != texts[0]:
        code = ""
    if not code and compiles:
        code = digests.code_of(request.candidates[0])
    return f"{code}:{' '.join(texts)}"


def _network(task: Task, how: How) -> Outcome:
    from tools.code_sources import built_network, forget, run_loop, why_absent

    outcome, digests = Outcome(task), Digests()
    key = task.prefix
    if task.unit == _RUN_LOOP:
        outcome.rows[key] = [digest([run_loop(task.target)], CODE_DIGITS) + ":"]
        return outcome
    if reason := why_absent(task.unit):
        outcome.skipped = reason
        return outcome
    made = built_network(task.unit, task.target, task.precision)
    parts = [*made.code, *(part for cubin in made.cubins for part in parts_of_object(cubin))]
    texts = " ".join(digests.text(kernel)[:TEXT_DIGITS] for kernel in made.kernels)
    outcome.rows[key] = [f"{digest(parts, CODE_DIGITS)}:{texts}"]
    if how.dump is not None:
        folder = how.dump / task.target / task.unit / task.precision
        for number, kernel in enumerate(made.kernels):
            _write(folder / f"{number:03}.txt", _shown(kernel))
    forget()
    return outcome


def _dump_request(folder: Path, request: Request) -> None:
    from tools.code_sources import compiled

    for number, candidate in enumerate(request.candidates):
        shown = (_REFERENCE + "\n" if kernel is None else _shown(kernel) for kernel in candidate)
        _write(folder / f"{request.case:03}.{number:03}.txt", "\n".join(shown))
    for number, kernel in enumerate(request.candidates[0]):
        if kernel is not None and (made := compiled(kernel)) is not None:
            (folder / f"{request.case:03}.{number:03}.o").write_bytes(made[0])


def _shown(kernel: Kernel) -> str:
    return "\n".join([canonical_text(kernel.language, kernel.text), *kernel.options, ""])


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def tasks_of(part: str, targets: Sequence[str], only: Sequence[str]) -> list[Task]:
    """The tasks of a part, the longest first; ``targets`` and ``only`` choose if they are given."""
    from tools import code_sources as sources

    if part == "networks":
        made = list(_network_tasks())
    else:
        all_targets = sources.CPU_TARGETS if part == "cpu" else sources.CUDA_TARGETS
        made = [Task(part, t, unit) for t in all_targets for unit in sources.unit_names(t)]
    chosen = [
        task
        for task in made
        if (not targets or task.target in targets) and (not only or task.unit in only)
    ]
    return sorted(chosen, key=lambda task: task.unit not in _LARGE)


def _network_tasks() -> Iterator[Task]:
    from tools import code_sources as sources

    more = {"sm_90": ("float16",), sources.RICHEST: ("bfloat16",)}
    for target in (*sources.CUDA_NETWORK_TARGETS, *sources.CPU_NETWORK_TARGETS):
        for name in sources.network_names():
            for precision in ("float32", *more.get(target, ())):
                yield Task("networks", target, name, precision)
    for target in ("x86-64", "aarch64"):
        yield Task("networks", target, _RUN_LOOP, "any")


# ---- many at once


def run_tasks(
    tasks: Sequence[Task], stored: Mapping[str, list[str]], how: How, jobs: int
) -> Iterator[Outcome]:
    """Run tasks in processes of their own; what is done comes first."""
    from tools.code_sources import private_folder

    # What processes inherit: one thread of numpy's each, and sets in any order must do.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    given = (
        (task, {k: v for k, v in stored.items() if k.startswith(task.prefix)}, how)
        for task in tasks
    )
    with private_folder() as home:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(jobs, context, initializer=_begin, initargs=(home,)) as pool:
            try:
                for future in as_completed([pool.submit(_run, task) for task in given]):
                    yield future.result()
            finally:
                pool.shutdown(cancel_futures=True)


def _begin(home: str) -> None:
    from tools.code_sources import use_private_home

    use_private_home(home)


def _run(given: tuple[Task, Mapping[str, list[str]], How]) -> Outcome:
    return run_task(*given)


# ---- the files


def path_of(part: str) -> Path:
    """Where a part of the manifest is."""
    return FOLDER / f"{part}.json"


def read_part(part: str) -> tuple[dict[str, Any], Rows]:
    """Header and rows of a part; empty where it is not written yet."""
    if not path_of(part).exists():
        return {}, {}
    content = json.loads(path_of(part).read_text(encoding="utf-8"))
    return content["header"], content["rows"]


def write_part(part: str, header: Mapping[str, Any], rows: Rows) -> None:
    """Write a part, one row a line: differences between commits can be read."""
    lines = [f"{json.dumps(key)}: {json.dumps(rows[key])}" for key in sorted(rows)]
    text = f'{{"header": {json.dumps(header)},\n"rows": {{\n' + ",\n".join(lines) + "\n}}\n"
    _write(path_of(part), text)


# ---- differences


def differences(
    outcomes: Iterable[Outcome], stored: Mapping[str, list[str]], *, compares_code: bool
) -> Iterator[str]:
    """A line for each request that is not what the manifest says."""
    for outcome in outcomes:
        if outcome.skipped:
            continue
        known = {key for key in stored if key.startswith(outcome.task.prefix)}
        for key in sorted(known | outcome.rows.keys()):
            old, new = stored.get(key, []), outcome.rows.get(key, [])
            if not old or not new:
                yield f"{key}: {'the manifest has it not' if new else 'it is no longer there'}"
                continue
            labels = outcome.labels.get(key, {})
            for case in range(max(len(old), len(new))):
                before, after = ("".join(row[case : case + 1]) for row in (old, new))
                if reason := difference(before, after, compares_code=compares_code):
                    where = f" | case {case} ({labels.get(case, 'unknown')})" if labels else ""
                    yield f"{key}{where}: {reason}"


def difference(before: str, after: str, *, compares_code: bool = True) -> str:
    """In what way an entry differs from the manifest's, in words; "" where it does not."""
    if before == after:
        return ""
    if not before or not after:
        return "the manifest has it not" if not before else "it is no longer there"
    old_code, _, old_text = before.rpartition(":")
    new_code, _, new_text = after.rpartition(":")
    found: list[str] = []
    if compares_code and old_code and new_code and old_code != new_code:
        found.append("machine code differs")
    old, new = old_text.split(" "), new_text.split(" ")
    if old != new:
        found.append(_text_difference(old, new))
    return "; ".join(found)


def _text_difference(old: Sequence[str], new: Sequence[str]) -> str:
    if Counter(old) == Counter(new):
        return "the same texts in another order"
    if len(old) != len(new):
        gone, come = Counter(old) - Counter(new), Counter(new) - Counter(old)
        return (
            f"{len(new)} texts instead of {len(old)}: {gone.total()} are gone and "
            f"{come.total()} are new"
        )
    places = [n for n, (a, b) in enumerate(zip(old, new, strict=True)) if a != b]
    return f"text differs at {', '.join(map(str, places))} of {len(new)}"


# ---- the command


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare or update; 1 when something differs."""
    options = _parser().parse_args(arguments)
    if platform.machine() in {"x86_64", "AMD64"}:
        os.environ.setdefault("OPENBLAS_CORETYPE", _BLAS_KERNELS)
    failed = [_do_part(part, options) for part in options.part]
    return int(any(failed))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--update", action="store_true", help="write what is computed")
    parser.add_argument("--part", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--only", nargs="+", default=[], metavar="UNIT", help="ops or networks")
    parser.add_argument("--target", nargs="+", default=[], help="targets, such as sm_90")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--dump", type=Path, metavar="DIR", help="write every text below DIR")
    parser.add_argument(
        "--quick", action="store_true", help="compile nothing whose text the manifest has"
    )
    parser.add_argument("--text", action="store_true", help="compile no candidate; compare texts")
    return parser


def _do_part(part: str, options: argparse.Namespace) -> bool:
    """Whether a part differs from the manifest, and is not to be updated."""
    from tools.code_sources import versions

    header, stored = read_part(part)
    tasks = tasks_of(part, options.target, options.only)
    is_whole = not options.target and not options.only
    same = header.get("versions") == versions()
    if options.update and header and not same and not is_whole:
        raise SystemExit(f"{part}: {header['versions']} made the manifest: update all of it")
    how = How(options.dump, (options.quick or options.text) and same, not options.text)
    begin = kept = time.perf_counter()
    outcomes: list[Outcome] = []
    for outcome in run_tasks(tasks, stored, how, options.jobs):
        outcomes.append(outcome)
        _tell(f"[{len(outcomes)}/{len(tasks)}] {outcome.task.prefix}", outcome)
        # Rows of two compilers must not be mixed under one header.
        if options.update and (same or not header) and time.perf_counter() > kept + _KEPT_SECONDS:
            _update(part, outcomes, stored, is_whole=False)
            kept = time.perf_counter()
    seconds = time.perf_counter() - begin
    if options.update:
        _update(part, outcomes, stored, is_whole=is_whole)
    found = list(differences(outcomes, stored, compares_code=same))
    if not same and header:
        print(f"{part}: made with {header['versions']}; only texts are compared")
    for line in found if not options.update else ():
        print(line)
    if count := _count_without_code(read_part(part)[1]):
        print(f"{part}: {count} requests have their text alone; --update --quick compiles them")
    print(f"{part}: {len(tasks)} tasks, {seconds:.0f} s, {len(found) or 'no'} differences")
    return bool(found) and not options.update


def _tell(head: str, outcome: Outcome) -> None:
    tail = f"skipped: {outcome.skipped}" if outcome.skipped else f"{outcome.seconds:.1f} s"
    print(f"{head} {tail}", file=sys.stderr, flush=True)


def _update(part: str, outcomes: Sequence[Outcome], stored: Rows, *, is_whole: bool) -> None:
    """Write rows that were computed, and keep those that could not or should not be."""
    from tools.code_sources import versions

    done = tuple(o.task.prefix for o in outcomes if not o.skipped)
    tried = tuple(o.task.prefix for o in outcomes)
    kept = {
        key: row
        for key, row in stored.items()
        if not key.startswith(done) and (not is_whole or key.startswith(tried))
    }
    rows = kept | {key: row for outcome in outcomes for key, row in outcome.rows.items()}
    header = {
        "about": _ABOUT[part],
        "versions": versions(),
        "without_machine_code": _count_without_code(rows),
    }
    write_part(part, header, rows)


def _count_without_code(rows: Rows) -> int:
    """How many requests were only asked for their text."""
    return sum(entry.startswith(":") for row in rows.values() for entry in row)


if __name__ == "__main__":
    sys.exit(main())
