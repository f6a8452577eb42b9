"""What a device string means."""

from __future__ import annotations

import pytest

from smelt.builder import BuildOptions
from smelt.builder._options import first_known, parse_device
from smelt.errors import UnsupportedError


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("cpu", ("cpu", None)),
        ("cpu:0", ("cpu", None)),
        ("cpu:x86-64-v3", ("cpu", "x86-64-v3")),
        ("null", ("null", None)),
    ],
)
def test_a_device_is_a_kind_and_an_index_or_a_target(
    text: str, meaning: tuple[str, str | None]
) -> None:
    assert parse_device(text) == meaning


@pytest.mark.parametrize("text", ["cpu:1", "gpu", "cuda:0", "", "cpu0"])
def test_a_device_that_does_not_exist_is_refused_by_name(text: str) -> None:
    with pytest.raises(UnsupportedError, match=f"device '{text}'"):
        parse_device(text)


def test_the_first_known_device_of_a_list_is_taken() -> None:
    assert first_known(["dla:nv_small", "cpu"]) == "cpu"
    with pytest.raises(UnsupportedError, match="no device"):
        first_known(["dla:nv_small", "cuda"])


def test_a_precision_that_cannot_be_built_says_what_can() -> None:
    with pytest.raises(UnsupportedError, match="float32, bfloat16, float16"):
        BuildOptions(precision="float8")
