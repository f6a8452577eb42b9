"""Print which requirements are proven, from the last test report.

usage: python tools/requirements.py [--json FILE] [--only G,GX] [--all] [--strict]

Reads docs/requirements.md (ids and texts), docs/excused.toml (who owns what is not proven yet) and
build/test-report.json (written by `make test`); writes build/requirements.json:
id -> {tests, state: passed | failed | none | excused, reason}.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

ROOT: Final = Path(__file__).resolve().parent.parent
REQUIREMENTS: Final = ROOT / "docs" / "requirements.md"
EXCUSES: Final = ROOT / "docs" / "excused.toml"
REPORT: Final = ROOT / "build" / "test-report.json"
RESULT: Final = ROOT / "build" / "requirements.json"

_ENTRY: Final = re.compile(r"- (?P<id>[NLCGD]X?-\d+) (?P<text>.*)")
_FROM_MEMORY: Final = re.compile(r"\[recall\b")
_RECALL_REASON: Final = "a supplement from memory, unverified: does not count"


@dataclass(frozen=True, slots=True)
class Requirement:
    """One numbered statement."""

    id: str
    text: str

    @property
    def counts(self) -> bool:
        """Whether it must be met: a supplement written from memory need not be."""
        return _FROM_MEMORY.match(self.text) is None


@dataclass(frozen=True, slots=True)
class Excuse:
    """Why some requirements need no test yet."""

    ids: tuple[str, ...]
    reason: str

    def covers(self, requirement_id: str) -> bool:
        """Return whether one of the patterns names the id."""
        return any(_matches(pattern, requirement_id) for pattern in self.ids)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the tests say about one requirement."""

    tests: tuple[str, ...]
    state: str
    reason: str


def read_requirements(path: Path = REQUIREMENTS) -> dict[str, Requirement]:
    """Return every requirement of the document, by id."""
    found: dict[str, Requirement] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if entry := _ENTRY.match(line):
            if entry["id"] in found:
                raise SystemExit(f"{path}: {entry['id']} stands twice")
            found[entry["id"]] = Requirement(entry["id"], entry["text"])
    return found


def read_excuses(path: Path = EXCUSES) -> tuple[Excuse, ...]:
    """Return the excuses in the order of the file; the first that covers an id counts."""
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    return tuple(Excuse(tuple(entry["ids"]), entry["reason"]) for entry in table["excuse"])


def read_report(path: Path = REPORT) -> dict[str, dict[str, str]]:
    """Return, for each id, the outcome of every test that names it."""
    if not path.exists():
        raise SystemExit(f"{path} is not there: run `make test` first")
    report = cast("dict[str, dict[str, object]]", json.loads(path.read_text(encoding="utf-8")))
    by_id: dict[str, dict[str, str]] = {}
    for test, entry in cast("dict[str, dict[str, object]]", report["tests"]).items():
        for requirement_id in cast("list[str]", entry["requirements"]):
            by_id.setdefault(requirement_id, {})[test] = str(entry["outcome"])
    return by_id


def judge(
    requirement: Requirement, outcomes: Mapping[str, str], excuses: Iterable[Excuse]
) -> Verdict:
    """Return the state of one requirement: failing tests weigh most, then passing ones."""
    tests = tuple(sorted(outcomes))
    if failed := [test for test in tests if outcomes[test] == "failed"]:
        return Verdict(tests, "failed", f"fails: {', '.join(failed)}")
    if "passed" in outcomes.values():
        return Verdict(tests, "passed", "")
    if not requirement.counts:
        return Verdict(tests, "excused", _RECALL_REASON)
    for excuse in excuses:
        if excuse.covers(requirement.id):
            return Verdict(tests, "excused", excuse.reason)
    return Verdict(tests, "none", "its tests were skipped" if tests else "no test names it")


def _matches(pattern: str, requirement_id: str) -> bool:
    family, _, number = requirement_id.partition("-")
    if ".." in pattern:
        first, last = pattern.split("..")
        first_family, _, first_number = first.partition("-")
        last_number = last.rpartition("-")[2]
        return family == first_family and int(first_number) <= int(number) <= int(last_number)
    return pattern in {requirement_id, f"{family}-*"}


def _print_table(
    requirements: Mapping[str, Requirement], verdicts: Mapping[str, Verdict], *, full: bool
) -> None:
    for requirement_id, verdict in verdicts.items():
        text = requirements[requirement_id].text
        count = f"{len(verdict.tests)} tests" if len(verdict.tests) != 1 else "1 test"
        shown = text if full or len(text) <= 88 else text[:87] + "…"
        print(f"{requirement_id:6} {verdict.state:8} {count:>9}  {shown}")
        if verdict.state in {"failed", "none"} or (full and verdict.reason):
            print(f"{'':26}-> {verdict.reason}")
        if full:
            for test in verdict.tests:
                print(f"{'':26}   {test}")


def _print_summary(verdicts: Mapping[str, Verdict]) -> None:
    states = ("passed", "failed", "none", "excused")
    families = sorted({requirement_id.partition("-")[0] for requirement_id in verdicts})
    print(f"\n{'':8}" + "".join(f"{state:>9}" for state in states))
    for family in (*families, ""):
        counts = Counter(
            verdict.state
            for requirement_id, verdict in verdicts.items()
            if not family or requirement_id.partition("-")[0] == family
        )
        print(f"{family or 'all':8}" + "".join(f"{counts[state]:9}" for state in states))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table and write the JSON file; with --strict fail unless all are met or excused."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, default=RESULT, help="where the result is written")
    parser.add_argument("--only", default="", help="families to show, such as G,GX")
    parser.add_argument("--all", action="store_true", help="whole texts, reasons and test names")
    parser.add_argument("--strict", action="store_true", help="fail on states failed and none")
    options = parser.parse_args(arguments)

    requirements, excuses, report = read_requirements(), read_excuses(), read_report()
    families = {part for part in options.only.split(",") if part}
    verdicts = {
        key: judge(requirement, report.get(key, {}), excuses)
        for key, requirement in requirements.items()
    }
    options.json.parent.mkdir(parents=True, exist_ok=True)
    rows = {
        key: {"tests": verdict.tests, "state": verdict.state, "reason": verdict.reason}
        for key, verdict in verdicts.items()
    }
    options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")

    shown = {
        key: verdict
        for key, verdict in verdicts.items()
        if not families or key.partition("-")[0] in families
    }
    _print_table(requirements, shown, full=options.all)
    _print_summary(shown)
    bad = [key for key, verdict in shown.items() if verdict.state in {"failed", "none"}]
    return 1 if options.strict and bad else 0


if __name__ == "__main__":
    sys.exit(main())
