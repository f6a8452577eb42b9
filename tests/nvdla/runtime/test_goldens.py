"""Every loadable of the official regression gives its golden image, byte for byte."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np
import pytest

from smelt.nvdla import create_runtime
from smelt.nvdla.port import LocalPort, MachineDriver, PortServer, SocketPort
from smelt.nvdla.runtime import image_from_tensor

if TYPE_CHECKING:
    from pathlib import Path

    from smelt.nvdla import Runtime

GOLDENS = (
    "BDMA_L0_0_76a9a4",
    "CDP_L0_0_66cb25",
    "CDP_L0_0_large_fe3167",
    "CDP_L0_0_small_4531af",
    "CONV_D_L0_0_6d2d02",
    "CONV_D_L0_0_large_f394b6",
    "CONV_D_L0_0_small_3c77f6",
    "NN_L0_0_9521de",
    "PDP_L0_0_e21636",
    "PDP_L0_0_large_a57d22",
    "PDP_L0_0_small_fbdf76",
    "RBK_L0_0_6dbb5a",
    "SDP_X1_L0_0_b9bf63",
    "SDP_X1_L0_0_large_4486c3",
    "SDP_X1_L0_0_small_c9894d",
)
NAMES = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
DIGITS = dict(zip(NAMES, (1, 7, 3, 4, 5, 5, 7, 3, 3), strict=True))


def loadable_of(shared: Path, name: str) -> bytes:
    (path,) = (shared / "nvdla" / "flatbufs" / "kmd").glob(f"*/{name}_fbuf")
    return path.read_bytes()


def configuration_of(name: str) -> str:
    return {"large": "nv_large", "small": "nv_small"}.get(name.rsplit("_", 1)[1], "nv_full")


def run_to_image(runtime: Runtime, loadable: bytes) -> bytes:
    """Run with inputs of zeros, as the regression does, and pack the output."""
    runtime.load(loadable)
    for number in range(runtime.get_num_input_tensors()):
        size = runtime.get_input_tensor_desc(number).buffer_size
        runtime.bind_input_tensor(number, runtime.allocate_system_memory(size).mem_handle)
    tensor = runtime.get_output_tensor_desc(0)
    output = runtime.allocate_system_memory(tensor.buffer_size)
    runtime.bind_output_tensor(0, output.mem_handle)
    runtime.submit()
    return image_from_tensor(tensor, output.data).to_bytes()


@pytest.mark.requirement("D-1", "D-5", "D-8")
@pytest.mark.parametrize("golden", GOLDENS)
def test_a_loadable_gives_its_golden_image(golden: str, shared: Path) -> None:
    name = golden.rsplit("_", 1)[0]
    folder = shared / "nvdla" / "golden" / golden / "dla"
    with create_runtime(configuration=configuration_of(name)) as runtime:
        image = run_to_image(runtime, loadable_of(shared, name))
    assert image == (folder / "o_000000.dimg").read_bytes()
    digest = hashlib.md5(image, usedforsecurity=False).hexdigest()
    assert digest == (folder / "lead.md5").read_text().split()[0]


def read_pgm(path: Path) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    magic, width, height, _, pixels = path.read_bytes().split(None, 4)
    assert magic == b"P5"
    return np.frombuffer(pixels, np.uint8).reshape(int(height), int(width))


def classify(
    runtime: Runtime, image: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]
) -> list[float]:
    """Give the network the image as half-precision atoms of one channel."""
    tensor = runtime.get_input_tensor_desc(0)
    source = runtime.allocate_system_memory(tensor.buffer_size)
    output = runtime.allocate_system_memory(runtime.get_output_tensor_desc(0).buffer_size)
    atoms = source.data.view(np.float16).reshape(28, 28, 16)
    atoms[..., 0] = image
    runtime.bind_input_tensor(0, source.mem_handle)
    runtime.bind_output_tensor(0, output.mem_handle)
    runtime.submit()
    return [float(value) for value in output.data.view(np.float16)[:10]]


@pytest.mark.requirement("D-6", "D-7", "D-12")
def test_lenet_answers_on_digits_as_the_official_virtual_platform(shared: Path) -> None:
    answers: dict[str, list[float]] = {}
    with create_runtime() as runtime:
        runtime.load(loadable_of(shared, "NN_L0_0"))
        for name in DIGITS:
            (path,) = (shared / "nvdla" / "images" / "digits").glob(f"{name}.pgm")
            answers[name] = classify(runtime, read_pgm(path))
    assert {name: int(np.argmax(values)) for name, values in answers.items()} == DIGITS
    printed = {f"{value:.6g}" for value in answers["two"]}
    assert {"0.00407028", "0.996094"} <= printed


@pytest.mark.requirement("D-10", "D-13")
def test_another_process_transport_gives_the_same_image(shared: Path, tmp_path: Path) -> None:
    data = loadable_of(shared, "NN_L0_0")
    driver = MachineDriver("nv_full", dram_bytes=1 << 24)
    with PortServer(tmp_path / "s", driver) as server:
        server.start()
        with SocketPort(tmp_path / "s", timeout_s=60) as port, create_runtime(port) as remote:
            there = run_to_image(remote, data)
    with create_runtime(LocalPort(MachineDriver("nv_full", dram_bytes=1 << 24))) as runtime:
        assert run_to_image(runtime, data) == there
