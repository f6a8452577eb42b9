"""Short programs for the machine: one operation each, its registers by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from smelt.nvdla import MemorySpace
from smelt.nvdla.hardware import NV_FULL, Configuration, Machine, Precision
from smelt.nvdla.registers import RegisterFile

if TYPE_CHECKING:
    from numpy.typing import NDArray

SOURCE, TARGET, WEIGHTS, OPERAND, MASKS, SECOND = (
    0x10000,
    0x80000,
    0x100000,
    0x180000,
    0x1C0000,
    0x1E0000,
)
MEMORY_BYTES = 0x200000
DTYPES: dict[Precision, type[np.generic]] = {
    Precision.INT8: np.int8,
    Precision.INT16: np.int16,
    Precision.FP16: np.float16,
}


class Bench:
    """A machine, its registers by name, and cubes in its memory."""

    def __init__(self, configuration: Configuration = NV_FULL, *, exact_fp16: bool = False) -> None:
        self.machine = Machine(configuration, MEMORY_BYTES, MEMORY_BYTES, exact_fp16=exact_fp16)
        self.configuration = configuration
        self.registers = RegisterFile(self.machine, self.machine.register_map)

    def set(self, block: str, **words: int) -> None:
        """Write words; registers that only one map has may be missing from another."""
        for name, word in words.items():
            self.registers.write(f"{block}.{name}", word)

    def put(self, address: int, data: NDArray[np.generic]) -> None:
        """Write an array to DRAM."""
        self.machine.memory.write(MemorySpace.DRAM, address, data.tobytes())

    def get(self, address: int, count: int, dtype: type[np.generic]) -> NDArray[np.generic]:
        """Read an array from DRAM."""
        size = count * np.dtype(dtype).itemsize
        return np.frombuffer(self.machine.memory.read(MemorySpace.DRAM, address, size), dtype)

    def pack(self, cube: NDArray[np.generic]) -> NDArray[np.generic]:
        """Lay [height, width, channels] out as atoms, tails zero."""
        height, width, channels = cube.shape
        lanes = self.configuration.atom_bytes // cube.itemsize
        surfaces = -(-channels // lanes)
        padded = np.zeros((height, width, surfaces * lanes), cube.dtype)
        padded[..., :channels] = cube
        return padded.reshape(height, width, surfaces, lanes).transpose(2, 0, 1, 3)

    def unpack(
        self, address: int, shape: tuple[int, int, int], dtype: type[np.generic]
    ) -> NDArray[np.generic]:
        """Read [height, width, channels] back."""
        height, width, channels = shape
        lanes = self.configuration.atom_bytes // np.dtype(dtype).itemsize
        surfaces = -(-channels // lanes)
        flat = self.get(address, surfaces * height * width * lanes, dtype)
        cube = flat.reshape(surfaces, height, width, lanes).transpose(1, 2, 0, 3)
        return cube.reshape(height, width, -1)[..., :channels]

    def strides(self, height: int, width: int) -> tuple[int, int]:
        """Return a packed cube's line and surface strides."""
        line = width * self.configuration.atom_bytes
        return line, line * height

    def program_convolution(
        self,
        *,
        size: tuple[int, int, int],
        kernels: int,
        kernel: tuple[int, int],
        output: tuple[int, int],
        precision: Precision = Precision.INT8,
        stride: tuple[int, int] = (1, 1),
        pad: tuple[int, int] = (0, 0),
        winograd: bool = False,
    ) -> None:
        """Program CDMA to CACC for a feature cube at SOURCE and kernels at WEIGHTS."""
        height, width, channels = size
        line, surface = self.strides(height, width)
        mode = int(winograd) | int(precision) << 8 | int(precision) << 12
        steps = (stride[1] - 1) | (stride[0] - 1) << 16
        self.set(
            "CDMA",
            D_MISC_CFG=mode,
            D_DATAIN_SIZE_0=(width - 1) | (height - 1) << 16,
            D_DATAIN_SIZE_1=channels - 1,
            D_DAIN_RAM_TYPE=1,
            D_DAIN_ADDR_LOW_0=SOURCE,
            D_LINE_STRIDE=line,
            D_SURF_STRIDE=surface,
            D_CONV_STRIDE=steps,
        )
        self.set(
            "CSC",
            D_MISC_CFG=mode,
            D_DATAIN_SIZE_EXT_1=channels - 1,
            D_WEIGHT_SIZE_EXT_0=(kernel[1] - 1) | (kernel[0] - 1) << 16,
            D_WEIGHT_SIZE_EXT_1=(channels - 1) | (kernels - 1) << 16,
            D_DATAOUT_SIZE_0=(output[1] - 1) | (output[0] - 1) << 16,
            D_DATAOUT_SIZE_1=kernels - 1,
            D_CONV_STRIDE_EXT=0 if winograd else steps,
            D_ZERO_PADDING=pad[1] | pad[0] << 16,
        )
        self._program_buffer(size, precision, stride[0])

    def _program_buffer(self, size: tuple[int, int, int], precision: Precision, step: int) -> None:
        """Say where weights are, and claim banks; each pixel has entries of its own."""
        height, width, channels = size
        configuration = self.configuration
        pixel_bytes = channels * precision.size_bytes * step
        entries = (width + 2) * -(-pixel_bytes // configuration.buffer_width_bytes)
        self.set("CDMA", D_WEIGHT_RAM_TYPE=1, D_WEIGHT_ADDR_LOW=WEIGHTS)
        banks = min(-(-entries * height // configuration.buffer_depth), 12)
        weight_banks = configuration.buffer_banks - banks - 1
        for block in ("CDMA", "CSC"):
            self.set(
                block,
                D_BANK=(banks - 1) | (weight_banks - 1) << 16,
                D_ENTRY_PER_SLICE=entries - 1,
            )

    def program_sdp(
        self,
        *,
        size: tuple[int, int, int],
        precision: Precision = Precision.INT8,
        output: Precision | None = None,
        flying: bool = False,
    ) -> None:
        """Program SDP to pass a cube from SOURCE, or from the convolution, to TARGET."""
        height, width, channels = size
        line, surface = self.strides(height, width)
        result = precision if output is None else output
        self.set(
            "SDP",
            D_FEATURE_MODE_CFG=int(flying),
            D_DATA_FORMAT=int(precision) | int(result) << 2,
            D_DATA_CUBE_WIDTH=width - 1,
            D_DATA_CUBE_HEIGHT=height - 1,
            D_DATA_CUBE_CHANNEL=channels - 1,
            D_DST_DMA_CFG=1,
            D_DST_BASE_ADDR_LOW=TARGET,
            D_DST_LINE_STRIDE=line,
            D_DST_SURFACE_STRIDE=surface,
            D_DP_BS_CFG=1,
            D_DP_BN_CFG=1,
            D_DP_EW_CFG=1,
            D_CVT_OFFSET=0,
            D_CVT_SCALE=1,
            D_CVT_SHIFT=0,
        )
        self._program_sdp_reader(size, precision, flying=flying)

    def _program_sdp_reader(
        self, size: tuple[int, int, int], precision: Precision, *, flying: bool
    ) -> None:
        height, width, channels = size
        line, surface = self.strides(height, width)
        self.set(
            "SDP_RDMA",
            D_FEATURE_MODE_CFG=int(flying) | int(precision) << 2 | int(precision) << 4,
            D_SRC_DMA_CFG=1,
            D_SRC_BASE_ADDR_LOW=SOURCE,
            D_SRC_LINE_STRIDE=line,
            D_SRC_SURFACE_STRIDE=surface,
            D_DATA_CUBE_WIDTH=width - 1,
            D_DATA_CUBE_HEIGHT=height - 1,
            D_DATA_CUBE_CHANNEL=channels - 1,
            D_BRDMA_CFG=1,
            D_NRDMA_CFG=1,
            D_ERDMA_CFG=1,
        )

    def enable(self, *blocks: str) -> None:
        """Enable an operation."""
        for block in blocks:
            self.set(block, D_OP_ENABLE=1)

    def finish(self) -> int:
        """Wait for interrupts until none is left, and return all that came."""
        came = 0
        while self.machine.wait_for_interrupt(0):
            status = self.registers.read("GLB.S_INTR_STATUS")
            came |= status
            self.set("GLB", S_INTR_STATUS=status)
        return came

    def convolve(self) -> int:
        """Enable SDP and the convolution, and wait for both."""
        self.enable("SDP", "CACC", "CMAC_A", "CMAC_B", "CSC", "CDMA")
        return self.finish()
