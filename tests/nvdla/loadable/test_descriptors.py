"""Descriptors lie in memory as the firmware's C compiler lays them out."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smelt.nvdla import NvdlaError, NvError
from smelt.nvdla.loadable import (
    DESCRIPTOR_CLASSES,
    BdmaOperation,
    BdmaSurface,
    BdmaTransfer,
    CdpOperation,
    CdpSurface,
    CommonOperation,
    Consumer,
    Converter,
    ConvOperation,
    ConvSurface,
    DataCube,
    Descriptor,
    DescriptorVersion,
    EmuBuffer,
    EmuBuffers,
    EmuFormat,
    EmuNetworkDescriptor,
    EmuPowerOperation,
    EmuSoftmaxOperation,
    LutParameters,
    NetworkDescriptor,
    OperationType,
    PdpOperation,
    PdpSurface,
    Roi,
    RoiArray,
    RubikOperation,
    RubikSurface,
    SdpOperation,
    SdpStage,
    SdpSurface,
    TaskStatus,
    find_emu_format,
    find_emu_layout,
    read_emu_operation,
)
from tests.support.nvdla_loadables import write_emu_operation

if TYPE_CHECKING:
    from pathlib import Path

NEW, OLD = DescriptorVersion.WITH_OFFSETS, DescriptorVersion.WITHOUT_OFFSETS
STRUCTURES: dict[str, type[Descriptor]] = {
    "dla_network_desc": NetworkDescriptor,
    "dla_consumer": Consumer,
    "dla_common_op_desc": CommonOperation,
    "dla_roi_array_desc": RoiArray,
    "dla_roi_desc": Roi,
    "dla_bdma_transfer_desc": BdmaTransfer,
    "dla_bdma_surface_desc": BdmaSurface,
    "dla_bdma_op_desc": BdmaOperation,
    "dla_bdma_stat_desc": DESCRIPTOR_CLASSES[OperationType.BDMA].statistics,
    "dla_cvt_param": Converter,
    "dla_data_cube": DataCube,
    "dla_conv_surface_desc": ConvSurface,
    "dla_conv_op_desc": ConvOperation,
    "dla_conv_stat_desc": DESCRIPTOR_CLASSES[OperationType.CONV].statistics,
    "dla_lut_param": LutParameters,
    "dla_sdp_surface_desc": SdpSurface,
    "dla_sdp_op": SdpStage,
    "dla_sdp_op_desc": SdpOperation,
    "dla_sdp_stat_desc": DESCRIPTOR_CLASSES[OperationType.SDP].statistics,
    "dla_pdp_surface_desc": PdpSurface,
    "dla_pdp_op_desc": PdpOperation,
    "dla_pdp_stat_desc": DESCRIPTOR_CLASSES[OperationType.PDP].statistics,
    "dla_cdp_surface_desc": CdpSurface,
    "dla_cdp_op_desc": CdpOperation,
    "dla_cdp_stat_desc": DESCRIPTOR_CLASSES[OperationType.CDP].statistics,
    "dla_rubik_surface_desc": RubikSurface,
    "dla_rubik_op_desc": RubikOperation,
    "dla_rubik_stat_desc": DESCRIPTOR_CLASSES[OperationType.RUBIK].statistics,
    "dla_task_status": TaskStatus,
    "emu_network_desc": EmuNetworkDescriptor,
    "emu_buffer_desc": EmuBuffer,
}
OLD_SIZES: dict[type[Descriptor], int] = {
    DataCube: 28,
    ConvSurface: 152,
    SdpSurface: 140,
    PdpSurface: 56,
    CdpSurface: 56,
    RubikSurface: 56,
    BdmaSurface: 644,
}


def _read_c_layout(path: Path) -> dict[str, tuple[int, dict[str, tuple[int, int]]]]:
    """Read the compiler's table: a structure's size, its fields' offsets and sizes."""
    found: dict[str, tuple[int, dict[str, tuple[int, int]]]] = {}
    fields: dict[str, tuple[int, int]] = {}
    for line in path.read_text().splitlines():
        if head := re.fullmatch(r"(?:struct|union) (\w+) size=(\d+)", line):
            fields = {}
            found[head[1]] = (int(head[2]), fields)
        elif field := re.fullmatch(r" +(\d+) +(\d+) +.*?(\w+)(?:\[.*)?", line):
            fields[field[3]] = (int(field[1]), int(field[2]))
    return found


def _place(cls: type[Descriptor], name: str) -> tuple[int, int]:
    """Find where a field lies by changing it, bit by bit, in what is written."""
    size = cls.size_bytes()
    touched: set[int] = set()
    for byte in range(size):
        data = bytearray(size)
        data[byte] = 1
        value = cls.from_bytes(data)
        if getattr(value, name) != getattr(cls.from_bytes(bytes(size)), name):
            touched.add(byte)
    return min(touched), max(touched) - min(touched) + 1


@pytest.mark.requirement("D-6", "D-8")
@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_structure_is_laid_out_as_by_the_c_compiler(structure: str, shared: Path) -> None:
    layouts = _read_c_layout(shared / "nvdla" / "descriptor_layout.txt")
    cls = STRUCTURES[structure]
    size, fields = layouts[structure]
    assert cls.size_bytes() == size
    ours = set(cls.field_specs)
    if structure in ("dla_sdp_op_desc", "dla_bdma_surface_desc"):
        fields = dict(list(fields.items())[:4])  # what follows is the structures above, and slow
    for name, place in fields.items():
        if name in ours and not name.startswith("reserved"):
            start, length = _place(cls, name)
            assert start == place[0], name
            assert length == place[1] or (name.endswith("_offset") and "lut" in structure), name


def test_structures_before_firmware_0_12_have_shorter_cubes() -> None:
    for cls, size in OLD_SIZES.items():
        assert cls.size_bytes(OLD) == size


def test_both_tensors_of_an_emulated_operation_have_256_bytes() -> None:
    pair = EmuBuffers(dst_data=EmuBuffer(address_index=5))
    for layout in (OLD, NEW):
        assert EmuBuffers.size_bytes(layout) == 512
        assert pair.to_bytes(layout)[256] == 5


def test_what_follows_a_cube_moves_up_in_old_structures() -> None:
    surface = ConvSurface(offset_u=-2, in_line_uv_stride=7)
    assert surface.to_bytes(OLD)[140:] == b"\xfe" + b"\xff" * 7 + b"\7\0\0\0"
    assert surface.to_bytes(NEW)[160:] == b"\xfe" + b"\xff" * 7 + b"\7\0\0\0"
    with pytest.raises(NvdlaError, match="offset") as caught:
        DataCube(offset=4).to_bytes(OLD)
    assert caught.value.status is NvError.BAD_VALUE


@pytest.mark.parametrize("cls", [*STRUCTURES.values()])
@pytest.mark.parametrize("layout", [OLD, NEW])
@given(data=st.data())
def test_any_bytes_survive_reading_and_writing(
    cls: type[Descriptor], layout: DescriptorVersion, data: st.DataObject
) -> None:
    size = cls.size_bytes(layout)
    seed = data.draw(st.integers(0, 2**32 - 1))
    content = np.random.default_rng(seed).integers(0, 256, size).astype(np.uint8).tobytes()
    value = cls.from_bytes(content, 0, layout)
    assert cls.from_bytes(value.to_bytes(layout), 0, layout) == value
    if cls not in (EmuNetworkDescriptor, EmuBuffer):  # these have padding
        assert value.to_bytes(layout) == content


@pytest.mark.parametrize(("offset", "size"), [(0, 31), (1, 32), (-1, 64), (1 << 40, 64)])
def test_a_structure_outside_its_bytes_is_refused(offset: int, size: int) -> None:
    with pytest.raises(NvdlaError, match="DataCube") as caught:
        DataCube.from_bytes(bytes(size), offset)
    assert caught.value.status is NvError.INVALID_SIZE


@pytest.mark.parametrize(
    ("value", "status", "text"),
    [
        (DataCube(width=1 << 16), NvError.BAD_VALUE, r"DataCube\.width has a value"),
        (
            PdpSurface(dst_data=DataCube(address=-40000)),
            NvError.BAD_VALUE,
            r"DataCube\.address has",
        ),
        (NetworkDescriptor(op_head=(0,)), NvError.COUNT_MISMATCH, "has 1 value instead of 6"),
    ],
)
def test_a_value_that_does_not_fit_its_field_is_refused(
    value: Descriptor, status: NvError, text: str
) -> None:
    with pytest.raises(NvdlaError, match=text) as caught:
        value.to_bytes()
    assert caught.value.status is status


def test_a_structure_prints_without_reserved_fields() -> None:
    printed: dict[str, Any] = PdpSurface(dst_data=DataCube(width=3)).to_dict()
    assert printed["dst_data"]["width"] == 3
    assert "reserved0" not in printed["dst_data"]


@pytest.mark.parametrize("layout", [OLD, NEW])
def test_emulated_operations_of_both_generations_are_read(layout: DescriptorVersion) -> None:
    power = EmuPowerOperation(power=2.0, scale=0.5, shift=-1.0)
    softmax = EmuSoftmaxOperation(axis=1)
    data = write_emu_operation(power, layout) + write_emu_operation(softmax, layout)
    assert len(data) == (32 if layout is OLD else 48)
    assert find_emu_layout(len(data), 2) is layout
    assert read_emu_operation(data, 0, layout) == power
    assert read_emu_operation(data, 1, layout) == softmax
    for index in (2, -1):
        with pytest.raises(NvdlaError):
            read_emu_operation(data, index, layout)


def test_the_old_emulator_counted_formats_otherwise() -> None:
    assert find_emu_format(2, OLD) is EmuFormat.FF16
    assert find_emu_format(3, NEW) is EmuFormat.FF16
    for number, layout in ((3, OLD), (6, NEW)):
        with pytest.raises(NvdlaError) as caught:
            find_emu_format(number, layout)
        assert caught.value.status is NvError.NOT_SUPPORTED
    with pytest.raises(NvdlaError):
        find_emu_layout(15, 1)
