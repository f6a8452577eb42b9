"""The example 02_googlenet_profile: its script runs and says what the build has saved."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.support.examples import EXAMPLES, run_example, start_example

if TYPE_CHECKING:
    from pathlib import Path

_SHORTENED = """
import runpy, sys
sys.path.insert(0, {folder!r})
import profile_layers
for name in list(profile_layers.MODULES)[1:]:
    del profile_layers.MODULES[name]
runpy.run_path({folder!r} + "/sample_googlenet.py", run_name="__main__")
"""
"""The sample with one module: to time the candidates of all nine takes half a minute."""


@pytest.mark.slow
@pytest.mark.requirement("G-74", "G-58", "G-24")
def test_script_counts_layers_before_and_after_and_averages_their_times(tmp_path: Path) -> None:
    options = ("--size", "64", "--tune", "none", "--iterations", "3", "--batch", "2", "--layers")
    shown = run_example("02_googlenet_profile", "profile_layers.py", *options, home=tmp_path)
    counts = {
        when: int(number) for when, number in re.findall(r"layers (\w+) the build: +(\d+)", shown)
    }
    assert counts["before"] == 141
    assert counts["after"] <= 70  # 57 ReLUs, 9 concatenations and 9 twins are no more
    assert "concat" not in shown.split("layers after the build")[1].splitlines()[0]
    rows = dict(re.findall(r"^  (\S.*?)  +([\d.]+) us +[\d.]+%$", shown, re.MULTILINE))
    steps = re.search(r"and steps between them: +(\d+)", shown)
    assert steps is not None
    assert "conv1 + conv1/relu" in rows
    profiled = re.search(r"all layers ([\d.]+) ms; a run ([\d.]+) ms with the profiler", shown)
    assert profiled is not None
    assert 0 < float(profiled[1]) <= float(profiled[2])
    total = sum(float(number) for number in re.findall(r"([\d.]+) us", shown)) / 1000
    assert total == pytest.approx(float(profiled[1]), abs=0.02)
    assert len(re.findall(r" us  ", shown)) == counts["after"] + int(steps[1])


@pytest.mark.slow
@pytest.mark.requirement("G-74", "G-58")
def test_sample_through_the_facade_averages_every_layer(tmp_path: Path) -> None:
    options = ("--size", "64", "--batch", "2")
    folder = EXAMPLES / "02_googlenet_profile"
    script = tmp_path / "shortened.py"
    script.write_text(_SHORTENED.format(folder=str(folder)), encoding="utf-8")
    shown = run_example(folder.name, str(script), *options, home=tmp_path)
    counts = re.findall(r"(\d+) layers became (\d+)", shown)
    assert [number for number, _ in counts] == ["27"]
    times = [float(number) for number in re.findall(r"([\d.]+) ms", shown)]
    assert len(times) == int(counts[0][1]) + 1
    assert sum(times[:-1]) == pytest.approx(times[-1], abs=0.1)


@pytest.mark.parametrize(
    ("script", "option", "value"),
    [
        ("profile_layers.py", "--size", "0"),
        ("profile_layers.py", "--iterations", "-1"),
        ("sample_googlenet.py", "--batch", "9" * 5000),
    ],
)
def test_numbers_that_make_no_sense_are_refused_in_a_line(
    tmp_path: Path, script: str, option: str, value: str
) -> None:
    done = start_example("02_googlenet_profile", script, option, value, home=tmp_path)
    assert done.returncode == 2
    assert f"argument {option}: {value!r} is no whole number from" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
