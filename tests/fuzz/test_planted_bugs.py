"""The fuzzers find bugs: seven that are planted in a copy of the package, each within a minute.

Each takes one check away that hostile input needs. The tree that is fuzzed is a copy.
"""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from smelt.errors import SmeltError
from tests.fuzz.targets import TARGETS
from tools.fuzz import ROOT, run_target

if TYPE_CHECKING:
    from pathlib import Path

SECONDS = 60


@dataclass(frozen=True, slots=True)
class Bug:
    """A check, and what is left without it."""

    target: str
    file: str
    sound: str
    broken: str


BUGS = (
    # A view may name a buffer that the plan has not.
    Bug(
        "plan",
        "engine/_concrete_verifier.py",
        "if not 0 <= view.buffer < len(self.plan.buffers):",
        "if view.buffer < 0:",
    ),
    # A field of a caffemodel may be longer than the file.
    Bug(
        "caffe",
        "importers/_protobuf_wire.py",
        "if size > end - position:",
        "if size > 1 << 62:",
    ),
    # An element type that nothing stands for.
    Bug(
        "onnx",
        "importers/onnx/_tensors.py",
        "    if code in TensorProto.DataType.values() and code != TensorProto.UNDEFINED:\n",
        "    assert code != TensorProto.UNDEFINED\n    if code:\n",
    ),
    # Ops inside ops without end.
    Bug(
        "op",
        "ops/_op_json.py",
        "if depth > MAXIMUM_DEPTH:\n            raise EngineFormatError(f\"an op's field",
        "if depth < 0:\n            raise EngineFormatError(f\"an op's field",
    ),
    # An offset in a loadable may lead out of the file.
    Bug(
        "loadable",
        "nvdla/loadable/_flatbuffers.py",
        "if position < 0 or position + size > len(self._data):",
        "if position < 0:",
    ),
    # A line of a trace with fewer arguments than its command takes.
    Bug(
        "trace",
        "nvdla/traces/_parse.py",
        "if len(arguments) < len(needed):",
        "if needed and not arguments:",
    ),
    # An edge of a task's graph may wait for an event that does not exist.
    Bug(
        "task",
        "nvdla/firmware/_graph.py",
        "elif edge.event > max(OperationEvent):",
        "elif edge.event > 255:",
    ),
)


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.target)
def test_a_planted_bug_is_found_within_a_minute(bug: Bug, tmp_path: Path) -> None:
    shutil.copytree(
        ROOT / "src" / "smelt", tmp_path / "smelt", ignore=shutil.ignore_patterns("__pycache__")
    )
    file = tmp_path / "smelt" / bug.file
    text = file.read_text(encoding="utf-8")
    assert text.count(bug.sound) == 1, "the check that was to be broken is elsewhere now"
    file.write_text(text.replace(bug.sound, bug.broken), encoding="utf-8")
    row = run_target(bug.target, SECONDS, most=1, source=tmp_path)
    assert row["findings"], "nothing is found"
    # The fault is the planted one: the same input does no harm to the tree that has the check.
    # Which symptom comes first depends on chance, so it is not named.
    (target,) = (target for target in TARGETS if target.name == bug.target)
    for finding in row["findings"]:
        with contextlib.suppress(SmeltError):
            target.run(bytes.fromhex(finding["data"]))
