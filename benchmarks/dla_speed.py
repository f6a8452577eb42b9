"""Measure how fast the NVDLA model runs, through the whole stack: driver, scheduler, machine.

- ``lenet``: an image through the official regression's LeNet (fp16, nv_full); needs the reference
  files (SMELT_SHARED, else ../shared).
- ``resnet50``: all 53 convolutions of a ResNet-50, each with its ReLU and conversion to int8, on
  nv_large; weights and data are random. A layer that the convolution buffer does not hold runs in
  several bands of lines.

Beside the time stand the cycles that the model estimates for the hardware.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from smelt.nvdla import Loadable, create_runtime
from smelt.nvdla.hardware import NV_LARGE
from smelt.nvdla.loadable import (
    OPERATION_STRIDE_BYTES,
    SURFACE_STRIDE_BYTES,
    Address,
    Blob,
    CommonOperation,
    Consumer,
    Converter,
    ConvOperation,
    ConvSurface,
    DataCube,
    Interface,
    Memory,
    MemoryFlags,
    MemoryType,
    NetworkDescriptor,
    OperationEvent,
    OperationType,
    SdpOperation,
    SdpStage,
    SdpSurface,
    SubInterface,
    Submit,
    Task,
    TensorDescriptor,
    Version,
)
from smelt.nvdla.port import LocalPort, MachineDriver

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.nvdla import Runtime

ROOT: Final = Path(__file__).resolve().parent.parent
ATOM_BYTES: Final = 32
BUFFER_BYTES: Final = 1 << 21
"""Room for the largest tensor of a layer."""
FIRMWARE: Final = Version(0, 12, 5)


@dataclass(frozen=True, slots=True)
class Layer:
    """A convolution of a square image."""

    size: int
    channels: int
    kernels: int
    kernel: int = 1
    stride: int = 1

    @property
    def out_size(self) -> int:
        """Height and width of the result; the padding keeps what the stride does not take."""
        return -(-self.size // self.stride)

    @property
    def products(self) -> int:
        """Multiplications."""
        return self.out_size**2 * self.kernels * self.kernel**2 * self.channels

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights in memory."""
        return -(-self.kernels * self.kernel**2 * self.channels // 128) * 128


@dataclass(frozen=True, slots=True)
class Band:
    """Lines of a layer's result whose input fits the convolution buffer."""

    layer: Layer
    first: int
    count: int

    @property
    def top(self) -> int:
        """The first line that the windows see; negative ones are padding."""
        return self.first * self.layer.stride - self.layer.kernel // 2

    @property
    def bottom(self) -> int:
        """The line after the last that the windows see."""
        return self.top + (self.count - 1) * self.layer.stride + self.layer.kernel

    @property
    def lines(self) -> range:
        """The lines of the input."""
        return range(max(0, self.top), min(self.layer.size, self.bottom))


def entries_per_line(layer: Layer) -> int:
    """Return the entries of the convolution buffer that a line of the input takes: 2 atoms each."""
    pairs, rest = divmod(-(-layer.channels // ATOM_BYTES), 2)
    return pairs * layer.size + rest * -(-layer.size // 2)


def weight_banks(layer: Layer) -> int:
    """Return the banks that a group of kernels takes."""
    group_bytes = layer.kernel**2 * layer.channels * min(layer.kernels, NV_LARGE.atomic_k)
    return -(-group_bytes // (NV_LARGE.buffer_depth * NV_LARGE.buffer_width_bytes))


def split(layer: Layer) -> list[Band]:
    """Return a layer's bands."""
    banks = NV_LARGE.buffer_banks - weight_banks(layer)
    most = banks * NV_LARGE.buffer_depth // entries_per_line(layer)
    rows = (most - layer.kernel) // layer.stride + 1
    return [
        Band(layer, first, min(rows, layer.out_size - first))
        for first in range(0, layer.out_size, rows)
    ]


def resnet50() -> Iterator[Layer]:
    """Give the convolutions of a ResNet-50 for 224 x 224 pixels."""
    yield Layer(224, 3, 64, 7, 2)
    channels = 64
    for width, blocks, size in ((64, 3, 56), (128, 4, 28), (256, 6, 14), (512, 3, 7)):
        for block in range(blocks):
            stride = 2 if block == 0 and width > 64 else 1
            yield Layer(size * stride, channels, width)
            yield Layer(size * stride, width, width, 3, stride)
            yield Layer(size, width, 4 * width)
            if block == 0:
                yield Layer(size * stride, channels, 4 * width, 1, stride)
            channels = 4 * width


def main(arguments: list[str] | None = None) -> int:
    """Measure what the command line names; return how the process ends."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--networks", default="lenet,resnet50", help="which, with commas")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each; the best counts")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE")
    options = parser.parse_args(arguments)
    measures = {"lenet": measure_lenet, "resnet50": measure_resnet50}
    rows: list[dict[str, Any]] = []
    for name in options.networks.split(","):
        row = measures[name](options.repeats)
        if row is None:
            print(f"{name}: the reference files are absent; set SMELT_SHARED")
            continue
        rows.append({"network": name, **row})
        print(
            f"{name}: {row['best_ms']:.1f} ms an image (median {row['median_ms']:.1f}), "
            f"{row['cycles']:,} cycles estimated on {row['configuration']}"
        )
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0


def measure_lenet(repeats: int) -> dict[str, Any] | None:
    """Run the official LeNet."""
    shared = Path(os.environ.get("SMELT_SHARED", ROOT.parent / "shared"))
    path = shared / "nvdla" / "flatbufs" / "kmd" / "NN" / "NN_L0_0_fbuf"
    if not path.exists():
        return None
    return _measure(path.read_bytes(), "nv_full", repeats)


def measure_resnet50(repeats: int) -> dict[str, Any]:
    """Run the convolutions of a ResNet-50."""
    layers = list(resnet50())
    row = _measure(make_loadable(layers).to_bytes(), "nv_large", repeats)
    return {**row, "products": sum(layer.products for layer in layers)}


def _measure(loadable: bytes, configuration: str, repeats: int) -> dict[str, Any]:
    driver = MachineDriver(configuration)
    with create_runtime(LocalPort(driver)) as runtime:
        runtime.load(loadable)
        _bind(runtime)
        times: list[float] = []
        for _ in range(repeats):
            driver.machines[0].records.clear()
            start = time.perf_counter()
            runtime.submit()
            times.append((time.perf_counter() - start) * 1e3)
        return {
            "configuration": configuration,
            "best_ms": min(times),
            "median_ms": sorted(times)[len(times) // 2],
            "cycles": driver.machines[0].total_cycles,
        }


def _bind(runtime: Runtime) -> None:
    chance = np.random.default_rng(0)
    for number in range(runtime.get_num_input_tensors()):
        tensor = runtime.get_input_tensor_desc(number)
        memory = runtime.allocate_system_memory(tensor.buffer_size)
        if tensor.data_type == 4:
            memory.data[:] = chance.integers(0, 256, tensor.buffer_size)
        runtime.bind_input_tensor(number, memory.mem_handle)
    for number in range(runtime.get_num_output_tensors()):
        size = runtime.get_output_tensor_desc(number).buffer_size
        memory = runtime.allocate_system_memory(size)
        runtime.bind_output_tensor(number, memory.mem_handle)


# ---- a loadable of convolutions, one after the other


def make_loadable(layers: list[Layer]) -> Loadable:
    """Give a loadable whose layers all read the input and write the output."""
    bands = [(number, band) for number, layer in enumerate(layers) for band in split(layer)]
    places = [0, *itertools.accumulate(layer.weight_bytes for layer in layers)]
    network = NetworkDescriptor(
        operation_desc_index=2,
        surface_desc_index=3,
        dependency_graph_index=1,
        op_head=(-1, 0, 1, -1, -1, -1),
        num_rois=1,
        num_operations=2 * len(bands),
        num_addresses=7,
    )
    graph, operations, surfaces = b"", b"", b""
    for index, (number, band) in enumerate(bands):
        is_last = index == len(bands) - 1
        graph += b"".join(part.to_bytes() for part in _dependencies(index, is_last=is_last))
        for operation in (_convolution(band), _activation()):
            operations += operation.to_bytes().ljust(OPERATION_STRIDE_BYTES, b"\0")
        for surface in _surfaces(band, places[number]):
            surfaces += surface.to_bytes().ljust(SURFACE_STRIDE_BYTES, b"\0")
    weights = np.random.default_rng(1).integers(-9, 10, places[-1]).astype(np.int8).tobytes()
    blobs = (
        Blob("task-0-addr0", 0, Interface.DLA1, SubInterface.ADDR0, FIRMWARE, network.to_bytes()),
        Blob("task-0-dep_graph", 0, Interface.DLA1, SubInterface.DEPS, FIRMWARE, graph),
        Blob("task-0-op_list", 0, Interface.DLA1, SubInterface.OPS, FIRMWARE, operations),
        Blob("task-0-surf_list", 0, Interface.DLA1, SubInterface.SURFS, FIRMWARE, surfaces),
        Blob("weights", data=weights),
    )
    return _pack(blobs)


def _pack(blobs: tuple[Blob, ...]) -> Loadable:
    filled = MemoryFlags.ALLOC | MemoryFlags.SET
    memories = [
        Memory(number, 0, filled, len(blob.data), 4096, (blob.name,), (0,))
        for number, blob in enumerate(blobs)
    ]
    for number, flag in enumerate((MemoryFlags.INPUT, MemoryFlags.OUTPUT)):
        memories.append(
            Memory(5 + number, 0, MemoryFlags.ALLOC | flag, BUFFER_BYTES, tensor_desc_id=number)
        )
    tensors = tuple(
        TensorDescriptor(name, number, 5 + number, BUFFER_BYTES, data_type=4)
        for number, name in enumerate(("data", "result"))
    )
    return Loadable(
        tasks=(Task(0, Interface.DLA1, -1, tuple(range(7))),),
        memories=tuple(memories),
        addresses=tuple(Address(number, number) for number in range(7)),
        blobs=blobs,
        tensors=tensors,
        submits=(Submit(0, (0,)),),
    )


def _dependencies(index: int, *, is_last: bool) -> tuple[CommonOperation, CommonOperation]:
    """A layer waits for the one before; within it the second engine starts first."""
    convolution, activation = 2 * index, 2 * index + 1
    follows = [] if is_last else [convolution + 2, activation + 2]
    none = Consumer()
    programmed, completed = OperationEvent.PROGRAMMED, OperationEvent.COMPLETED
    next_convolution = Consumer(follows[0], programmed) if follows else none
    after = Consumer(follows[0], completed) if follows else none
    next_activation = Consumer(follows[1], programmed) if follows else none
    return (
        CommonOperation(
            convolution,
            op_type=OperationType.CONV,
            dependency_count=3 if index else 1,
            consumers=(none, next_convolution, Consumer(activation, programmed), none, none, none),
        ),
        CommonOperation(
            activation,
            op_type=OperationType.SDP,
            dependency_count=2 if index else 1,
            consumers=(none, after, next_activation, none, none, none),
            fused_parent=Consumer(convolution, OperationEvent.ENABLED),
        ),
    )


def _convolution(band: Band) -> ConvOperation:
    layer, padding = band.layer, band.layer.kernel // 2
    return ConvOperation(
        data_format=36,
        fetch_grain=1,
        entry_per_slice=entries_per_line(layer),
        batch=1,
        data_bank=NV_LARGE.buffer_banks - weight_banks(layer),
        weight_bank=weight_banks(layer),
        release=len(band.lines),
        input_width_csc=layer.size,
        input_height_csc=len(band.lines),
        input_channel_csc=layer.channels,
        kernel_width_csc=layer.kernel,
        kernel_height_csc=layer.kernel,
        kernel_channel_csc=layer.channels,
        input_width_cmac=layer.out_size,
        input_height_cmac=band.count,
        bytes_per_kernel=layer.kernel**2 * layer.channels,
        conv_stride_x=layer.stride,
        conv_stride_y=layer.stride,
        pad_x_left=padding,
        pad_x_right=padding,
        pad_y_top=band.lines.start - band.top,
        pad_y_bottom=band.bottom - band.lines.stop,
        dilation_x=1,
        dilation_y=1,
        in_cvt=Converter(scale=1, enable=1),
        out_cvt=Converter(scale=1),
    )


def _activation() -> SdpOperation:
    stage = SdpStage(enable=1, act=1)
    return SdpOperation(out_cvt=Converter(scale=1, truncate=12, enable=1), batch_num=1, x1_op=stage)


def _surfaces(band: Band, offset: int) -> tuple[ConvSurface, SdpSurface]:
    layer, results = band.layer, range(band.first, band.first + band.count)
    weights = DataCube(
        MemoryType.DRAM,
        4,
        offset,
        layer.weight_bytes,
        layer.kernel,
        layer.kernel,
        layer.channels,
    )
    flying = _cube(MemoryType.ON_THE_FLY, -1, layer.out_size, layer.kernels, results)
    source = _cube(MemoryType.DRAM, 5, layer.size, layer.channels, band.lines)
    target = _cube(MemoryType.DRAM, 6, layer.out_size, layer.kernels, results)
    return (
        ConvSurface(weight_data=weights, src_data=source, dst_data=flying),
        SdpSurface(src_data=flying, dst_data=target),
    )


def _cube(kind: MemoryType, address: int, size: int, channels: int, lines: range) -> DataCube:
    """Return some lines of a square cube."""
    surface = size * size * ATOM_BYTES
    return DataCube(
        kind,
        address,
        0 if kind is MemoryType.ON_THE_FLY else lines.start * size * ATOM_BYTES,
        surface * -(-channels // ATOM_BYTES),
        size,
        len(lines),
        channels,
        line_stride=size * ATOM_BYTES,
        surf_stride=surface,
    )


if __name__ == "__main__":
    sys.exit(main())
