"""Every reader of foreign data: a bounded minute of fuzzing, and the inputs that were kept."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fuzz.loop import read_corpus
from tests.fuzz.targets import TARGETS, Target
from tools.fuzz import run_target

SECONDS = 60
"""For all targets together, beside the first inputs."""
LEAST_SHARE = 0.9
_TOTAL = sum(target.share for target in TARGETS)


def _text(findings: list[dict[str, Any]]) -> str:
    rows = [f"{f['kind']} in {f['place']} on {f['data'][:200]}\n{f['text']}" for f in findings]
    return "\n".join(rows)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_only_our_errors_come_out_in_bounded_time_and_memory(target: Target) -> None:
    row = run_target(target.name, SECONDS * target.share / _TOTAL)
    assert not row["findings"], _text(row["findings"])
    missing = {
        name: missed
        for name, (reached, lines, missed) in row["modules"].items()
        if reached < LEAST_SHARE * lines
    }
    assert not missing, f"fewer than {LEAST_SHARE:.0%} of the lines were reached: {missing}"
    assert row["accepted"] > 0


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_there_are_inputs_of_our_own_to_start_from(target: Target) -> None:
    inputs = [*target.seeds(), *read_corpus(target.name)]
    assert len(inputs) >= 2
    assert max(map(len, inputs)) <= 1 << 18
