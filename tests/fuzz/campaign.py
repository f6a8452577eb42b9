"""Campaigns: one numbered input after the other in worker processes that may die of any of them.

Input k of a seed follows from that seed and k alone. A worker tries inputs within limits of
processor time and address space; when it dies, what it was about to try is a finding, and another
worker goes on behind it. Findings are cut down before they are compared, so that each cause is told
once. Kernels are compiled without optimisation, which takes a seventh of the time.
"""

from __future__ import annotations

import argparse
import base64
import faulthandler
import functools
import json
import logging
import os
import resource
import select
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from smelt.backends.cpu import CpuBackend, _compile
from smelt.backends.cpu._target import load_llvm
from smelt.builder import _cpu_toolchain
from smelt.errors import SmeltError
from tests.fuzz.build_trial import FindingError
from tests.fuzz.model_shrink import smaller_models
from tests.fuzz.planted import PLANTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from smelt.backends.cpu import CpuTarget
    from smelt.engine import KernelSpec
    from tests.fuzz.planted import Planted

    Send = Callable[[Any], None]
    Note = Callable[[str], None]

MAX_SECONDS: Final = 10
"""Processor time of one input."""
MAX_BYTES: Final = 2 << 30
"""Address space beyond what a worker starts with."""
STUCK_SECONDS: Final = 300
"""Without an answer a worker is asleep for good."""
_LIFE: Final = 2000
"""Inputs of one worker: what it has compiled is forgotten with it."""
ATTEMPTS: Final = 60
"""To make a finding smaller."""
ROOT: Final = Path(__file__).resolve().parent.parent.parent


@dataclass(frozen=True, slots=True)
class Finding:
    """An input that breaks a promise."""

    kind: str
    place: str
    text: str
    recipe: str
    data: bytes

    @property
    def key(self) -> tuple[str, str]:
        """What makes two findings one."""
        return self.kind, self.place


@dataclass(slots=True)
class Summary:
    """What a campaign came to."""

    attempts: int
    """To make a finding smaller."""
    done: Counter[str] = field(default_factory=Counter[str])
    findings: dict[tuple[str, str], Finding] = field(default_factory=dict[Any, Finding])
    seen: set[tuple[str, str]] = field(default_factory=set[Any])


@dataclass(frozen=True, slots=True)
class Campaign:
    """What is tried."""

    module: str
    """Which ``python -m`` runs it."""
    input_of: Callable[[int, int], tuple[bytes, str]]
    """Seed and number to a model, and the recipe of what is done with it: both numbers as text."""
    attempt: Callable[[bytes, str, Note], Counter[str]]
    """Tries a model by a recipe, telling what it is about to do; how often what came out."""
    reached: str = "built"
    """What is told while it runs: how many inputs came so far."""
    suffix: str = ".onnx"
    """Of inputs that are saved."""
    plants: Mapping[str, Planted] = field(default_factory=lambda: PLANTS)


# ---- in a worker


class _Objects:
    """Keeps what was compiled in memory: nobody else gets code without optimisation."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, CpuTarget], bytes] = {}

    def get(self, kernel: KernelSpec, target: CpuTarget, /) -> bytes | None:
        return self._made.get((kernel.symbol, target))

    def put(self, kernel: KernelSpec, target: CpuTarget, content: bytes, /) -> None:
        self._made[kernel.symbol, target] = content


def prepare_process(plant: Planted | None = None) -> None:
    """Compile quickly and keep to oneself; with a ``plant`` also with that bug."""
    objects = _Objects()
    toolchain: Any = _cpu_toolchain
    toolchain.CpuBackend = _always(CpuBackend(objects, jobs=1))
    toolchain.CodeCache = SimpleNamespace(open=_always(None))
    compiler: Any = _compile
    compiler._optimise = _always(None)
    compiler._target_machine = _simple_machine
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    if plant is not None:
        plant.plant()


def _always(result: object) -> Callable[..., object]:
    """A function with one result for everything."""

    def call(*_arguments: object) -> object:
        return result

    return call


@functools.cache
def _simple_machine(target: CpuTarget) -> Any:
    """A code generator that takes as little time as it can."""
    compiler: Any = _compile
    compiler._initialize()
    triple = load_llvm().Target.from_triple(target.triple)
    return triple.create_target_machine(
        cpu=target.cpu, features=target.llvm_features, opt=0, reloc="pic", codemodel="small"
    )


def _limit() -> None:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    most = pages * resource.getpagesize() + MAX_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.enable()
    faulthandler.register(signal.SIGPROF, chain=True)


def _outcome(campaign: Campaign, data: bytes, recipe: str, note: Note) -> Counter[str] | Finding:
    """Try one input in this process."""
    signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS)
    try:
        return campaign.attempt(data, recipe, note)
    except FindingError as error:
        return Finding(error.kind, error.place, error.text, recipe, data)
    except SmeltError as error:
        return _exception("error where none may be", error, data, recipe)
    except MemoryError as error:
        return _exception("memory", error, data, recipe)
    except Exception as error:  # noqa: BLE001  (that is what is looked for)
        return _exception(type(error).__name__, error, data, recipe)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _exception(kind: str, error: BaseException, data: bytes, recipe: str) -> Finding:
    frames = traceback.extract_tb(error.__traceback__)
    inner = [f for f in frames if "/smelt/" in f.filename] or list(frames)
    place = f"{Path(inner[-1].filename).name}:{inner[-1].name}"
    text = "".join(traceback.format_exception(error, limit=-6))
    return Finding(kind, place, text[-2000:], recipe, data)


# ---- processes


def _in_child(work: Callable[[Send, Path], None], folder: Path) -> tuple[list[Any], str | None]:
    """Run ``work`` in a forked process with limits; what it sent, and why it died if it did."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _become_worker(work, writing, folder)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as pipe:
        sent = [json.loads(line) for line in _lines(pipe, child)]
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return sent, None if code == 0 else _death(code, folder)


def _become_worker(work: Callable[[Send, Path], None], writing: int, folder: Path) -> None:
    """Never returns: a forked process must not go on as its parent."""
    code = 1
    try:
        with (folder / "log").open("w", encoding="utf-8") as log:
            os.dup2(log.fileno(), 2)
        _limit()
        with os.fdopen(writing, "w", encoding="utf-8") as pipe:

            def send(row: Any) -> None:
                pipe.write(json.dumps(row) + "\n")
                pipe.flush()

            work(send, folder)
        code = 0
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
    finally:
        os._exit(code)


def _lines(pipe: Any, child: int) -> Iterator[str]:
    """The lines that a process sends; one that sends nothing for long is ended."""
    while True:
        ready, _, _ = select.select([pipe], [], [], STUCK_SECONDS)
        if not ready:
            os.kill(child, signal.SIGKILL)
            return
        line = pipe.readline()
        if not line:
            return
        yield line


def _death(code: int, folder: Path) -> str:
    log = (folder / "log").read_text(encoding="utf-8", errors="replace")
    if code == -signal.SIGPROF:
        return "hang"
    if code == -signal.SIGKILL:
        return "stuck"
    if "out of memory" in log or "bad_alloc" in log:
        return "memory"
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit {code}"


def _note(folder: Path, text: str) -> None:
    (folder / "note").write_text(text, encoding="utf-8")


def _deadly(death: str, folder: Path, data: bytes, recipe: str) -> Finding:
    note = folder / "note"
    place = note.read_text(encoding="utf-8") if note.exists() else "?"
    log = (folder / "log").read_text(encoding="utf-8", errors="replace")
    return Finding(death, place, log[:3000], recipe, data)


def try_in_child(campaign: Campaign, data: bytes, recipe: str) -> Finding | None:
    """Try one input in a process of its own."""

    def work(send: Send, folder: Path) -> None:
        send(_row_of(_outcome(campaign, data, recipe, lambda text: _note(folder, text))))

    with tempfile.TemporaryDirectory(prefix="campaign-") as name:
        sent, death = _in_child(work, Path(name))
        if death is not None:
            return _deadly(death, Path(name), data, recipe)
    return _from_row(sent[0]) if isinstance(sent[0], list) else None


# ---- the campaign


def run_campaign(
    campaign: Campaign,
    seed: int,
    count: int,
    *,
    first: int = 0,
    most: int = 200,
    attempts: int = ATTEMPTS,
    tell: Callable[[str], None] = lambda _text: None,
) -> Summary:
    """Try ``count`` inputs from number ``first`` on; end after ``most`` different findings.

    At most so many ``attempts`` are made to make one smaller.
    """
    summary = Summary(attempts)
    number, end, start = first, first + count, time.monotonic()
    while number < end and len(summary.findings) < most:
        number = _try_some(campaign, seed, (number, min(end, number + _LIFE)), summary, tell)
        spent = time.monotonic() - start
        tell(
            f"{number - first} inputs in {spent:.0f} s ({(number - first) / spent:.0f} a second), "
            f"{summary.done[campaign.reached]} {campaign.reached}, {len(summary.findings)} findings"
        )
    return summary


def _try_some(
    campaign: Campaign,
    seed: int,
    numbers: tuple[int, int],
    summary: Summary,
    tell: Callable[[str], None],
) -> int:
    """Try inputs until one of them kills the worker; the number of the next."""

    def work(send: Send, folder: Path) -> None:
        for number in range(*numbers):
            current = folder / "input"
            current.write_bytes(b"")
            (folder / "number").write_text(str(number), encoding="ascii")
            # Here, and not in the parent: other people's code, which helps to make inputs, may die.
            data, recipe = campaign.input_of(seed, number)
            current.write_bytes(data)
            outcome = _outcome(campaign, data, recipe, lambda text: _note(folder, text))
            send(_row_of(outcome))

    with tempfile.TemporaryDirectory(prefix="campaign-") as name:
        folder = Path(name)
        sent, death = _in_child(work, folder)
        for row in sent:
            summary.done["inputs"] += 1
            if isinstance(row, list):
                _found(campaign, summary, _from_row(row), tell)
            else:
                summary.done.update(row)
        if death is None:
            return numbers[1]
        summary.done["inputs"] += 1
        number = int((folder / "number").read_text(encoding="ascii"))
        if data := (folder / "input").read_bytes():
            _found(campaign, summary, _deadly(death, folder, data, f"{seed} {number}"), tell)
        else:
            summary.done["could not be made"] += 1
        return number + 1


def _row_of(outcome: Counter[str] | Finding) -> Any:
    if not isinstance(outcome, Finding):
        return dict(outcome)
    data = base64.b64encode(outcome.data).decode()
    return [outcome.kind, outcome.place, outcome.text, outcome.recipe, data]


def _from_row(row: Any) -> Finding:
    kind, place, text, recipe, data = row
    return Finding(kind, place, text, recipe, base64.b64decode(data))


def _found(
    campaign: Campaign, summary: Summary, finding: Finding, tell: Callable[[str], None]
) -> None:
    """Note a finding, cut down so that findings of one cause are one."""
    summary.done[f"finding: {finding.kind}"] += 1
    if finding.key in summary.seen:
        return
    small = _shrunk(campaign, finding, summary.attempts)
    summary.seen |= {finding.key, small.key}
    if small.key not in summary.findings:
        summary.findings[small.key] = small
        tell(f"  {small.kind} at {small.place} (recipe {small.recipe!r})")


def _smaller(data: bytes) -> list[bytes]:
    """Smaller inputs, found in a process of their own."""

    def work(send: Send, folder: Path) -> None:
        del folder
        for smaller in smaller_models(data):
            send(base64.b64encode(smaller).decode())

    with tempfile.TemporaryDirectory(prefix="campaign-") as name:
        return [base64.b64decode(text) for text in _in_child(work, Path(name))[0]]


def _shrunk(campaign: Campaign, finding: Finding, attempts: int) -> Finding:
    """The smallest model found that ends in the same kind of finding."""
    if finding.kind in ("hang", "stuck"):
        return finding  # each attempt would take as long
    best, tried = finding, 0
    changed = attempts > 0
    while changed:
        changed = False
        for data in _smaller(best.data):
            if tried >= attempts:
                return best
            tried += 1
            again = try_in_child(campaign, data, best.recipe)
            if again is not None and again.kind == finding.kind:
                best, changed = again, True
                break
    return best


# ---- the command line


def main(campaign: Campaign, about: str, arguments: list[str] | None = None) -> int:
    """Run a campaign or one saved input; return how the process ends."""
    parser = argparse.ArgumentParser(description=about.partition("\n\n")[0])
    parser.add_argument("--count", type=int, default=1000, help="inputs")
    parser.add_argument("--first", type=int, default=0, help="the first input's number")
    parser.add_argument("--seed", type=int, default=1, help="seed of all chance")
    parser.add_argument("--most", type=int, default=200, help="end after so many findings")
    parser.add_argument("--attempts", type=int, default=ATTEMPTS, help="to make a finding smaller")
    parser.add_argument(
        "--plant", choices=sorted(campaign.plants), help="with a bug that is to be found"
    )
    parser.add_argument("--replay", type=Path, metavar="FILE", help="try one saved input")
    name = campaign.module.rpartition(".")[2]
    parser.add_argument("--findings", type=Path, default=ROOT / "build" / "fuzz" / name)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the summary to FILE")
    options = parser.parse_args(arguments)
    prepare_process(campaign.plants.get(options.plant))
    if options.replay is not None:
        return _replay(campaign, options.replay)
    summary = run_campaign(
        campaign,
        options.seed,
        options.count,
        first=options.first,
        most=options.most,
        attempts=options.attempts,
        tell=_say,
    )
    for what, times in sorted(summary.done.items()):
        _say(f"{times:8} {what}")
    for finding in summary.findings.values():
        path = _save(campaign, finding, options.findings)
        _say(f"{finding.kind} at {finding.place}: {path}")
    if options.json is not None:
        options.json.write_text(json.dumps(_as_data(summary), indent=1), encoding="utf-8")
    return 1 if summary.findings else 0


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _save(campaign: Campaign, finding: Finding, folder: Path) -> Path:
    """Write a finding: the model, and beside it what is known of it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{'-'.join((finding.kind + ' ' + finding.recipe).split())}{campaign.suffix}"
    path.write_bytes(finding.data)
    detail = f"{finding.recipe}\n{finding.kind} at {finding.place}\n\n{finding.text}\n\n"
    detail += f"python -m {campaign.module} --replay {path}\n"
    path.with_suffix(".txt").write_text(detail, encoding="utf-8")
    return path


def _as_data(summary: Summary) -> dict[str, Any]:
    found = [[f.kind, f.place, f.text, f.recipe] for f in summary.findings.values()]
    return {"done": dict(summary.done), "findings": found}


def _replay(campaign: Campaign, path: Path) -> int:
    recipe = path.with_suffix(".txt").read_text(encoding="utf-8").splitlines()[0]
    found = try_in_child(campaign, path.read_bytes(), recipe)
    _say(f"{found.kind} at {found.place}\n{found.text}" if found else "no finding")
    return 1 if found else 0
