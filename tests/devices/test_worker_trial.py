"""Trials: whether short lists are faster without workers."""

from __future__ import annotations

import pytest

from smelt.devices.cpu._run_list import WorkerTrial


def settled(trial: WorkerTrial, with_workers_ns: int, alone_ns: int) -> WorkerTrial:
    """The trial after all the runs it wants, of these lengths."""
    for _ in range(100):
        if trial.settled_runs:
            return trial
        trial.note(alone_ns if trial.alone else with_workers_ns)
    raise AssertionError("the trial never ends")


@pytest.mark.parametrize(
    ("with_workers_ns", "alone_ns", "alone"),
    [(9_000, 7_000, True), (9_000, 9_500, True), (20_000, 35_000, False), (5_000_000, 1, False)],
)
def test_short_lists_that_gain_nothing_from_workers_run_without(
    with_workers_ns: int, alone_ns: int, alone: bool
) -> None:
    assert settled(WorkerTrial(skips_trial=False), with_workers_ns, alone_ns).alone is alone


def test_what_is_faster_is_found_out_again_after_a_while() -> None:
    trial = settled(WorkerTrial(skips_trial=False), 40_000, 35_000)
    assert trial.alone
    while trial.settled_runs:
        trial.note_untimed()
    assert not settled(trial, 20_000, 35_000).alone
