"""The fuzzing loop: run, watch, keep what reaches something new, change it, run again.

It runs in a process of its own, whose memory is bounded, and which says before each input what it
is about to run: when the process dies or hangs, the file that it left is the input.
"""

from __future__ import annotations

import hashlib
import io
import logging
import random
import resource
import signal
import time
import traceback
import warnings
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from smelt.errors import SmeltError
from tests.fuzz.coverage import Coverage, function_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import FrameType

    from tests.fuzz.targets import Target

MAX_SECONDS: Final = 5.0
"""Processor time of one input, with the tracer's cost, before it counts as a hang."""
MAX_BYTES: Final = 1 << 30
"""Memory beyond what the process has when the loop starts."""
CORPUS: Final = Path(__file__).parent / "corpus"


class HangError(BaseException):
    """An input took too long; no ``except Exception`` may swallow it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """An input that breaks the contract."""

    kind: str
    place: str
    """The innermost frame of smelt: findings are one when kind and place are."""
    text: str
    data: bytes


@dataclass(slots=True)
class Outcome:
    """What a run of the loop came to."""

    target: str
    runs: int = 0
    accepted: int = 0
    """Inputs that were read without an error."""
    findings: list[Finding] = field(default_factory=list[Finding])
    kept: list[bytes] = field(default_factory=list[bytes])
    reached: dict[str, set[int]] = field(default_factory=dict[str, set[int]])


class Loop:
    """One target, one seed of chance."""

    def __init__(self, target: Target, seed: int, scratch: Path) -> None:
        """Prepare; ``scratch`` is where the current input is written before it is run."""
        self.target = target
        self.chance = random.Random(f"{target.name} {seed}")  # noqa: S311  (no secret)
        self.coverage = Coverage(target.files)
        self.seen: set[int] = set()
        self.scratch = scratch
        self.outcome = Outcome(target.name)
        self._places: set[tuple[str, str]] = set()

    def run(self, seconds: float, inputs: Iterable[bytes], most: int = 20) -> Outcome:
        """Run the inputs, then changed ones until the time is over or ``most`` findings."""
        _bound_memory()
        logging.disable(logging.CRITICAL)
        warnings.simplefilter("ignore")
        before = signal.signal(signal.SIGPROF, _on_alarm)
        end = time.process_time() + seconds  # a busy machine does not shorten it
        try:
            for data in inputs:
                self._try(data, must_keep=True)
            while time.process_time() < end and len(self.outcome.findings) < most:
                self._try(self.target.mutate(self._parent(), self.chance, self.outcome.kept))
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.signal(signal.SIGPROF, before)
            logging.disable(logging.NOTSET)
        self.outcome.reached = self.coverage.lines(self.seen)
        return self.outcome

    def _parent(self) -> bytes:
        kept = self.outcome.kept
        if not kept:
            return b""
        # What was found last is nearest to what was never reached.
        recent = max(1, len(kept) // 5)
        return self.chance.choice(kept[-recent:] if self.chance.random() < 0.4 else kept)

    def _try(self, data: bytes, *, must_keep: bool = False) -> None:
        self.scratch.write_bytes(data)
        self.outcome.runs += 1
        finding: Finding | None = None
        signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS)
        self.coverage.start()
        try:
            self.target.run(data)
            self.outcome.accepted += 1
        except SmeltError as error:
            finding = self._unclear(error, data)
        except (Exception, HangError) as error:  # noqa: BLE001  (anything else is what we look for)
            self.coverage.stop()
            finding = _finding(error, data)
        finally:
            hits = self.coverage.stop()
            signal.setitimer(signal.ITIMER_PROF, 0)
        if finding is not None and (finding.kind, finding.place) not in self._places:
            self._places.add((finding.kind, finding.place))
            self.outcome.findings.append(finding)
        if hits - self.seen:
            self.seen |= hits
            self.outcome.kept.append(data)
        elif must_keep and len(self.outcome.kept) < 5:
            self.outcome.kept.append(data)

    def _unclear(self, error: SmeltError, data: bytes) -> Finding | None:
        """An error that says nothing, or says it in thousands of words, is a finding too."""
        text = str(error)
        if text.strip() and len(text) < 20_000:
            return None
        return Finding("unclear message", type(error).__name__, text[:200], data)


def _on_alarm(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise HangError(f"more than {MAX_SECONDS} s of processor time")


def _bound_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MAX_BYTES, hard))


def _finding(error: BaseException, data: bytes) -> Finding:
    frames = traceback.extract_tb(error.__traceback__)
    inner = [f for f in frames if "/smelt/" in f.filename.replace("\\", "/")] or list(frames)
    place = f"{Path(inner[-1].filename).name}:{inner[-1].name}" if inner else "?"
    text = "".join(traceback.format_exception(error, limit=-12))
    return Finding(type(error).__name__, place, text[-4000:], data)


# ---- the corpus


def read_corpus(name: str) -> list[bytes]:
    """The inputs that are kept for a target, smallest first."""
    path = CORPUS / f"{name}.zip"
    if not path.exists():
        return []
    with zipfile.ZipFile(path) as archive:
        return sorted((archive.read(n) for n in archive.namelist()), key=lambda d: (len(d), d))


def write_corpus(name: str, inputs: Sequence[bytes]) -> None:
    """Keep inputs: equal inputs give equal files."""
    CORPUS.mkdir(exist_ok=True)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for data in sorted(set(inputs), key=lambda d: (len(d), d)):
            entry = zipfile.ZipInfo(hashlib.sha256(data).hexdigest()[:16])
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    (CORPUS / f"{name}.zip").write_bytes(buffer.getvalue())


# ---- the report


def _is_exempt(function: str, names: tuple[str, ...]) -> bool:
    """Whether a function, or the class it is in, is named; functions inside it still count."""
    outer = function.partition(".<locals>.<")[0]
    return outer in names or outer.rpartition(".")[0] in names


def shares(target: Target, reached: dict[str, set[int]]) -> dict[str, tuple[int, int, list[str]]]:
    """For each module: lines reached, lines there are, and the lines that were not reached."""
    found: dict[str, tuple[int, int, list[str]]] = {}
    for name, path in target.files.items():
        counted = {
            line: function
            for line, function in function_lines(path).items()
            if not _is_exempt(function, target.not_parsers)
        }
        missed = sorted(set(counted) - reached[name])
        found[name] = (
            len(counted) - len(missed),
            len(counted),
            [f"{line} ({counted[line]})" for line in missed],
        )
    return found
