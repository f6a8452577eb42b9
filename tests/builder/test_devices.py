"""What a device string means."""

from __future__ import annotations

from typing import Any

import pytest

import smelt
from smelt.builder import BuildOptions
from smelt.builder._cpu_toolchain import CpuToolchain
from smelt.builder._toolchain import toolchain_of
from smelt.devices import DEVICE_KINDS, DeviceName
from smelt.errors import UnsupportedError
from smelt.runtime import gpu_named
from tests.support.toolchains import open_toolchain


@pytest.mark.parametrize(
    ("text", "kind"),
    [("cpu", "cpu"), ("cpu:0", "cpu"), ("cpu:x86-64-v3", "cpu"), ("null", "null")],
)
def test_a_device_is_a_kind_and_an_index_or_a_target(text: str, kind: str) -> None:
    assert open_toolchain(text).fingerprint.device == kind


def test_a_target_is_the_one_that_is_named() -> None:
    tools = open_toolchain("cpu:x86-64-v3")
    assert isinstance(tools, CpuToolchain)
    assert tools.target.cpu == "x86-64-v3"


@pytest.mark.parametrize("text", ["cpu", "cpu:x86-64-v2", "cpu:x86-64-v3"])
def test_an_engine_is_made_anew_for_the_target_that_it_was_made_for(text: str) -> None:
    tools = open_toolchain(text)
    assert toolchain_of(tools.fingerprint).target == tools.target


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("cuda", DeviceName(DEVICE_KINDS["cuda"])),
        ("cuda:3", DeviceName(DEVICE_KINDS["cuda"], 3)),
        ("cuda:sm_90a", DeviceName(DEVICE_KINDS["cuda"], target="sm_90a")),
        ("cuda:sm_80,sm_90", DeviceName(DEVICE_KINDS["cuda"], target="sm_80,sm_90")),
        ("cpu:x86-64-v3", DeviceName(DEVICE_KINDS["cpu"], target="x86-64-v3")),
    ],
)
def test_a_number_is_a_place_here_and_a_word_what_to_compile_for(
    text: str, means: DeviceName
) -> None:
    assert DeviceName.from_text(text) == means


@pytest.mark.parametrize(
    ("text", "spelling"),
    [
        *((f"cuda:{x}", "'cuda:sm_90'") for x in ("90", "sm90", "9.0", "90a", "compute_90")),
        ("CUDA:SM_90", "'cuda:sm_90'"),
        ("cuda:sm_80,90", "'cuda:sm_80,sm_90'"),
        ("cuda:sm_80,", "'cuda:sm_80'"),
        ("cuda:120", "'cuda:sm_120'"),
        *((f"cuda:{x}", "('cuda:0') nor .* ('cuda:sm_90')") for x in ("-1", "0x1", "h100", "1e9")),
        *((text, "NVIDIA GPU is 'cuda'") for text in ("gpu", "GPU", "nvidia", "cuda:", "cuda0")),
        ("gpu:1", "'cuda:1'"),
        ("cpu:-1", "'cpu:x86-64-v3'"),
        ("CPU", "'cpu'"),
        ("cpu:1", "a processor is 'cpu'"),
        ("dla", "`smelt dla run`"),
        ("tpu", "cuda:sm_80,sm_90, null"),
        (7, "devices are: cpu"),
    ],
)
def test_a_wrong_name_is_refused_with_the_right_spelling(text: Any, spelling: str) -> None:
    pattern = spelling.replace("(", r"\(").replace(")", r"\)")
    for read in (DeviceName.from_text, smelt.Stream, gpu_named):
        with pytest.raises(UnsupportedError, match=pattern):
            read(text)


@pytest.mark.parametrize("text", ["cpu:1", "gpu", "dla:nv_small", "", "cpu0"])
def test_a_device_that_does_not_exist_is_refused_by_name(text: str) -> None:
    with pytest.raises(UnsupportedError, match=f"device '{text}'"):
        open_toolchain(text)


@pytest.mark.parametrize("device", [3, None, b"cpu", [], ["cpu", 3]])
def test_what_is_no_name_is_refused_with_those_there_are(device: Any) -> None:
    with pytest.raises(
        UnsupportedError, match=r"must be a name or a list of names; devices are: cpu"
    ):
        open_toolchain(device)


def test_the_first_device_of_a_list_that_can_be_built_for_is_taken() -> None:
    assert open_toolchain(["dla:nv_small", "cpu"]).fingerprint.device == "cpu"
    with pytest.raises(
        UnsupportedError, match=r"none of the devices(.|\n)*dla:nv_small: (.|\n)*tpu: "
    ):
        open_toolchain(["dla:nv_small", "tpu"])


def test_a_precision_that_cannot_be_built_says_what_can() -> None:
    with pytest.raises(UnsupportedError, match="float32, bfloat16, float16"):
        BuildOptions(precision="float8")
