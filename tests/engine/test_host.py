"""What this machine is, and whether an engine was made for it."""

from __future__ import annotations

import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import llvmlite.binding as llvm
import pytest

from smelt.engine import (
    VERSION,
    Fingerprint,
    Host,
    _host,
    check_compatibility,
    detect_host,
    known_features,
)
from smelt.errors import EngineMismatchError

HERE = Host("x86_64", ("avx", "avx2", "fma", "sse2"), "linux")
MADE = Fingerprint("cpu", "x86_64", ("avx2", "fma"), "linux", 1, "0.1.0")


def check(made: Fingerprint) -> None:
    check_compatibility(made, runtime_abi=1, runtime_version="0.1.0", host=HERE)


def test_an_equal_or_wider_machine_runs_an_engine() -> None:
    check(MADE)
    check(replace(MADE, features=()))


@pytest.mark.requirement("G-45")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"architecture": "aarch64"}, "processor architecture: the engine was built for aarch64"),
        ({"features": ("avx512f", "avx512vl", "fma")}, "lacks avx512f, avx512vl"),
        ({"system": "darwin"}, "operating system"),
        ({"abi": 2}, "kernel interface"),
        (
            {"version": "0.0.9"},
            "smelt version: the engine was built for 0.0.9, but this machine has 0.1.0",
        ),
    ],
)
def test_an_engine_made_elsewhere_is_refused_with_what_differs(
    change: dict[str, object], words: str
) -> None:
    with pytest.raises(EngineMismatchError, match=f"{words}(.|\n)*Build the engine again"):
        check(replace(MADE, **change))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def test_every_difference_is_listed_at_once() -> None:
    with pytest.raises(EngineMismatchError) as caught:
        check(replace(MADE, system="darwin", abi=7, features=("amx-tile",)))
    assert str(caught.value).count("\n  - ") == 3


def test_what_is_found_here_agrees_with_llvm() -> None:
    found = llvm.get_host_cpu_features()
    here = detect_host()
    assert here.architecture == llvm.get_default_triple().split("-")[0].replace("arm64", "aarch64")
    for feature in known_features(here.architecture):
        if feature in found:
            assert found[feature] == (feature in here.features), feature


@pytest.mark.parametrize(
    ("system", "text", "name"),
    [
        (
            "linux",
            "processor : 0\nmodel name\t: Make: Model 7\nflags : avx\n\nmodel name : B\n",
            "Make: Model 7",
        ),
        ("linux", "Features : asimd\n", ""),
        ("darwin", "model name : Make\n", ""),
    ],
)
def test_a_processor_is_called_what_the_system_calls_it(
    system: str, text: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_host, "_read_cpuinfo", lambda: text)
    monkeypatch.setattr(sys, "platform", system)
    assert detect_host.__wrapped__().processor == name


def test_the_version_is_the_packages() -> None:
    path = Path(__file__).parents[2] / "pyproject.toml"
    assert tomllib.loads(path.read_text())["project"]["version"] == VERSION
