"""Numbers and places on the command line that nothing can be done with."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Smelt


def test_commands_say_that_a_folder_is_locked(
    smelt: Smelt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked = tmp_path / "locked"
    locked.mkdir()
    real_stat = os.stat

    def stat(path: Any, **words: Any) -> os.stat_result:
        if str(path).startswith(f"{locked}/"):
            raise PermissionError(13, "Permission denied", str(path))
        return real_stat(path, **words)

    monkeypatch.setattr(os, "stat", stat)
    for words in (("build", locked / "m.onnx"), ("bench", locked / "m.onnx")):
        answer = smelt(*words)
        assert answer.code != 0
        assert "Permission denied" in answer.err


@pytest.mark.parametrize("number", ["9223372036854775807", "1" * 30, "1" * 5000, "\u0663", "-1"])
@pytest.mark.parametrize("option", ["--batch", "--threads", "--iterations", "--warmup"])
def test_a_number_that_is_none_is_wrong_usage(
    smelt: Smelt, engine: Path, option: str, number: str
) -> None:
    assert smelt("bench", engine, option, number).code == 2


def test_a_batch_that_no_plan_takes_is_refused_before_memory_is(
    smelt: Smelt, open_model: Path, tmp_path: Path
) -> None:
    built = tmp_path / "m.engine"
    shape = ("--shape", "image=1..4x3x16x16", "--tune", "none")
    assert smelt("build", open_model, "-o", built, *shape).code == 0
    answer = smelt("bench", built, "--batch", 2**31 - 1)
    assert "the engine takes a batch of 1..4" in answer.err
