"""What the NVDLA benchmark runs is right: its loadable computes convolutions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

from benchmarks.dla_speed import Layer, main, make_loadable, resnet50
from smelt.nvdla import Loadable, create_runtime
from smelt.nvdla.loadable import DescriptorVersion, DlaTaskView, interpret

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray


def _expected(layer: Layer, data: NDArray[np.int64], weights: bytes) -> NDArray[np.int64]:
    """The layer by hand: kernels in groups of 32, then blocks of 64 channels, lines, columns."""
    kernels = np.zeros((layer.kernels, layer.channels, layer.kernel, layer.kernel), np.int64)
    values = iter(np.frombuffer(weights, np.int8).tolist())
    for group in range(0, layer.kernels, 32):
        for block in range(0, layer.channels, 64):
            for y, x in np.ndindex(layer.kernel, layer.kernel):
                for kernel in range(group, min(group + 32, layer.kernels)):
                    for channel in range(block, min(block + 64, layer.channels)):
                        kernels[kernel, channel, y, x] = next(values)
    pad = layer.kernel // 2
    padded = np.pad(data, ((0, 0), (pad, pad), (pad, pad)))
    result = np.zeros((layer.kernels, layer.out_size, layer.out_size), np.int64)
    for y, x in np.ndindex(layer.out_size, layer.out_size):
        top, left = y * layer.stride, x * layer.stride
        window = padded[:, top : top + layer.kernel, left : left + layer.kernel]
        result[:, y, x] = np.tensordot(kernels, window, 3)
    limited: NDArray[np.int64] = np.clip((np.maximum(result, 0) + 2048) >> 12, -128, 127)
    return limited


@pytest.mark.requirement("D-6", "D-7", "D-8")
@pytest.mark.parametrize(
    "last",
    [
        Layer(6, 40, 70, 3),
        Layer(7, 100, 33, 1, 2),
        Layer(9, 3, 8, 7, 2),
        Layer(30, 1024, 4, 3, 2),  # in three bands
    ],
)
def test_a_loadable_of_our_own_computes_its_convolutions(last: Layer) -> None:
    loadable = make_loadable([Layer(5, 32, 32), last])
    data = np.random.default_rng(2).integers(-128, 128, (last.channels, last.size, last.size))
    with create_runtime(configuration="nv_large") as runtime:
        runtime.load(loadable.to_bytes())
        source = runtime.allocate_system_memory(runtime.get_input_tensor_desc(0).buffer_size)
        target = runtime.allocate_system_memory(runtime.get_output_tensor_desc(0).buffer_size)
        runtime.bind_input_tensor(0, source.mem_handle)
        runtime.bind_output_tensor(0, target.mem_handle)
        _put(source.data, data)
        runtime.submit()
        answer = _take(target.data, last.kernels, last.out_size)
    weights = loadable.blobs[4].data[Layer(5, 32, 32).weight_bytes :]
    np.testing.assert_array_equal(answer, _expected(last, data, weights))


def _put(memory: NDArray[np.uint8], data: NDArray[np.int64]) -> None:
    size, surfaces = data.shape[1], -(-data.shape[0] // 32)
    atoms = memory[: surfaces * size * size * 32].view(np.int8).reshape(surfaces, size, size, 32)
    for channel, plane in enumerate(data):
        atoms[channel // 32, :, :, channel % 32] = plane


def _take(memory: NDArray[np.uint8], channels: int, size: int) -> NDArray[np.int64]:
    surfaces = -(-channels // 32)
    atoms = memory[: surfaces * size * size * 32].view(np.int8).reshape(surfaces, size, size, 32)
    planes = [atoms[channel // 32, :, :, channel % 32] for channel in range(channels)]
    return np.stack(planes).astype(np.int64)


def test_the_whole_network_has_the_layers_of_a_resnet50() -> None:
    layers = list(resnet50())
    assert len(layers) == 53
    assert sum(layer.products for layer in layers) == pytest.approx(4.09e9, rel=0.01)
    loadable = Loadable.from_bytes(make_loadable(layers).to_bytes())
    (view,) = interpret(loadable).tasks
    assert isinstance(view, DlaTaskView)
    assert view.layout is DescriptorVersion.WITH_OFFSETS
    waits = [0] * len(view.operations)
    for edge in view.edges():
        waits[edge.target] += 1
    assert waits == [item.common.dependency_count for item in view.operations]


def test_figures_are_written(shared: Path, tmp_path: Path) -> None:
    assert shared
    assert main(["--networks", "lenet", "--repeats", "1", "--json", str(tmp_path / "f.json")]) == 0
    (row,) = json.loads((tmp_path / "f.json").read_text())
    assert row["network"] == "lenet"
    assert row["best_ms"] > 0
    assert row["cycles"] > 10_000
