"""Every reader of foreign data: a bounded time of fuzzing, and the inputs that were kept."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fuzz.loop import read_corpus
from tests.fuzz.targets import TARGETS, Target
from tools.fuzz import run_target

SECONDS = 30
"""For all targets together, beside the first inputs."""
LEAST_SHARE = 0.9
"""Of all lines that a target watches ..."""
LEAST_SHARE_EACH = 0.8
"""... and of those of each of its modules, but for modules of a few lines."""
SMALL = 30
_TOTAL = sum(target.share for target in TARGETS)


def _text(findings: list[dict[str, Any]]) -> str:
    rows = [f"{f['kind']} in {f['place']} on {f['data'][:200]}\n{f['text']}" for f in findings]
    return "\n".join(rows)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_only_our_errors_come_out_in_bounded_time_and_memory(target: Target) -> None:
    row = run_target(target.name, SECONDS * target.share / _TOTAL)
    assert not row["findings"], _text(row["findings"])
    modules: dict[str, tuple[int, int, list[str]]] = row["modules"]
    reached = sum(module[0] for module in modules.values())
    assert reached >= LEAST_SHARE * sum(module[1] for module in modules.values()), modules
    for name, (part, lines, missed) in modules.items():
        enough = part >= LEAST_SHARE_EACH * lines or lines < SMALL
        assert enough, f"{name}: these lines were not reached: {missed}"
    assert row["accepted"] > 0


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_there_are_inputs_of_our_own_to_start_from(target: Target) -> None:
    inputs = [*target.seeds(), *read_corpus(target.name)]
    assert len(inputs) >= 2
    assert max(map(len, inputs)) <= 1 << 18
