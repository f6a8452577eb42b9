"""From marks to the table of requirements."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tools.requirements import Excuse, Requirement, judge, read_excuses, read_requirements

if TYPE_CHECKING:
    from pathlib import Path

KNOWN = Requirement("G-61", "pairs of images")
EXCUSES = (Excuse(("G-42", "G-60..G-67"), "later"), Excuse(("N-*",), "elsewhere"))


def test_the_document_holds_every_numbered_requirement() -> None:
    requirements = read_requirements()
    normative = [key for key in requirements if "X" not in key]
    assert (len(normative), len(requirements) - len(normative)) == (400, 65)


def test_every_excuse_covers_something() -> None:
    requirements = read_requirements()
    for excuse in read_excuses():
        for pattern in excuse.ids:
            assert any(Excuse((pattern,), "").covers(key) for key in requirements), pattern


@pytest.mark.parametrize(
    ("outcomes", "state"),
    [
        ({}, "excused"),
        ({"a": "skipped"}, "excused"),
        ({"a": "passed", "b": "skipped"}, "passed"),
        ({"a": "passed", "b": "failed"}, "failed"),
    ],
)
def test_tests_weigh_more_than_excuses(outcomes: dict[str, str], state: str) -> None:
    assert judge(KNOWN, outcomes, EXCUSES).state == state


def test_an_id_outside_every_pattern_has_no_excuse() -> None:
    assert judge(Requirement("G-68", ""), {}, EXCUSES).state == "none"
    assert judge(Requirement("NX-1", "[doc S1] a"), {}, EXCUSES).state == "none"
    assert judge(Requirement("N-1", ""), {}, EXCUSES).reason == "elsewhere"


def test_a_supplement_from_memory_does_not_count() -> None:
    assert judge(Requirement("NX-26", "[recall] values"), {}, ()).state == "excused"


def _run_pytest(
    folder: Path, test: str, *options: str
) -> tuple[subprocess.CompletedProcess[str], Path]:
    from tests.conftest import ROOT

    (folder / "conftest.py").write_text(
        "from tests.conftest import (\n"
        "    pytest_addoption, pytest_collection_modifyitems, pytest_configure)\n"
    )
    (folder / "test_it.py").write_text(f"import pytest\n{test}")
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = requirement\n")
    report = folder / "report.json"
    command = [sys.executable, "-m", "pytest", "-q", f"--test-report={report}", *options]
    done = subprocess.run(
        command,
        cwd=folder,
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}", "PATH": "", "HOME": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done, report


@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["one process", "workers"])
def test_outcomes_are_recorded_by_requirement(tmp_path: Path, options: tuple[str, ...]) -> None:
    done, report = _run_pytest(
        tmp_path,
        "@pytest.mark.requirement('G-1', 'G-2')\ndef test_good(): pass\n"
        "@pytest.mark.requirement('G-3')\ndef test_bad(): assert False\n"
        "@pytest.mark.requirement('G-4')\ndef test_later(): pytest.skip('no model')\n",
        *options,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    tests = json.loads(report.read_text())["tests"]
    assert all(0 <= entry.pop("seconds") < 60 for entry in tests.values())
    assert tests == {
        "test_it.py::test_bad": {"outcome": "failed", "requirements": ["G-3"]},
        "test_it.py::test_good": {"outcome": "passed", "requirements": ["G-1", "G-2"]},
        "test_it.py::test_later": {"outcome": "skipped", "requirements": ["G-4"]},
    }


@pytest.mark.parametrize(
    ("ids", "complaint"),
    [("'G-1', 'G-2', 'G-3', 'G-4'", "proves 3 at most"), ("'G-999'", "does not have")],
)
def test_too_many_and_unknown_ids_stop_the_run(tmp_path: Path, ids: str, complaint: str) -> None:
    done, _ = _run_pytest(tmp_path, f"@pytest.mark.requirement({ids})\ndef test_it(): pass\n")
    assert done.returncode == 4
    assert complaint in done.stdout + done.stderr
