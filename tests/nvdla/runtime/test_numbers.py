"""The documented numbers of the interface, written out once more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from smelt.nvdla import NvDlaError, NvError
from smelt.nvdla.loadable import DataCategory, DataFormat, DataType
from smelt.nvdla.port import NvDlaHeap
from smelt.nvdla.runtime import (
    BatchNormMode,
    BiasMode,
    ElementwiseOperation,
    LayerType,
    PixelFormat,
    PixelMapping,
    PoolingType,
    ScaleMode,
)

if TYPE_CHECKING:
    from enum import IntEnum

PIXEL_FORMATS = """
    R8 R10 R12 R16 R16_I R16_F A16B16G16R16 X16B16G16R16 A16B16G16R16_F A16Y16U16V16 V16U16Y16A16
    A16Y16U16V16_F A8B8G8R8 A8R8G8B8 B8G8R8A8 R8G8B8A8 X8B8G8R8 X8R8G8B8 B8G8R8X8 R8G8B8X8
    A2B10G10R10 A2R10G10B10 B10G10R10A2 R10G10B10A2 A2Y10U10V10 V10U10Y10A2 A8Y8U8V8 V8U8Y8A8
    Y8_U8V8_N444 Y8_V8U8_N444 Y10_U10V10_N444 Y10_V10U10_N444 Y12_U12V12_N444 Y12_V12U12_N444
    Y16_U16V16_N444 Y16_V16U16_N444 FEATURE FEATURE_X8 UNKNOWN
"""
IN_ORDER: dict[type[IntEnum], str] = {
    PixelFormat: PIXEL_FORMATS,
    PixelMapping: "PITCH_LINEAR",
    DataFormat: "UNKNOWN NCHW NHWC NCXHWX",
    DataType: "UNKNOWN FLOAT HALF INT16 INT8 UINT8 UINT16",
    DataCategory: "IMAGE WEIGHT FEATURE PLANAR BIAS",
    LayerType: "CONVOLUTION FULLY_CONNECTED ACTIVATION POOLING LRN SCALE BATCH_NORM SOFTMAX "
    "DECONVOLUTION CONCATENATION ELEMENTWISE SLICE",
    PoolingType: "MIN MAX AVERAGE",
    ElementwiseOperation: "SUM PROD MIN MAX",
    BiasMode: "NONE UNIFORM CHANNEL ELEMENTWISE",
    ScaleMode: "UNKNOWN UNIFORM CHANNEL ELEMENTWISE",
    BatchNormMode: "UNIFORM CHANNEL",
    NvDlaHeap: "SYSTEM SRAM",
}
ERRORS = {
    "SUCCESS": 0,
    "NOT_IMPLEMENTED": 1,
    "NOT_SUPPORTED": 2,
    "NOT_INITIALIZED": 3,
    "BAD_PARAMETER": 4,
    "TIMEOUT": 5,
    "INSUFFICIENT_MEMORY": 6,
    "READ_ONLY_ATTRIBUTE": 7,
    "INVALID_STATE": 8,
    "INVALID_ADDRESS": 9,
    "INVALID_SIZE": 10,
    "BAD_VALUE": 11,
    "ALREADY_ALLOCATED": 13,
    "BUSY": 14,
    "RESOURCE_ERROR": 15,
    "COUNT_MISMATCH": 16,
    "OVERFLOW": 17,
    "DISCONNECTED": 18,
    "FILE_NOT_FOUND": 19,
    "TEST_APPLICATION_FAILED": 20,
    "DEVICE_NOT_FOUND": 21,
    "MODULE_NOT_PRESENT": 0x000A000E,
    "SURFACE_NOT_SUPPORTED": 0x00010003,
    "FILE_WRITE_FAILED": 0x30000,
    "FILE_READ_FAILED": 0x30001,
    "END_OF_FILE": 0x30002,
    "FILE_OPERATION_FAILED": 0x30003,
    "DIR_OPERATION_FAILED": 0x30004,
    "END_OF_DIR_LIST": 0x30005,
    "IOCTL_FAILED": 0x3000F,
    "PATH_ALREADY_EXISTS": 0x30014,
}


@pytest.mark.requirement("DX-3", "DX-4", "DX-5")
@pytest.mark.parametrize("kind", IN_ORDER, ids=lambda kind: kind.__name__)
def test_an_enumeration_counts_as_documented(kind: type[IntEnum]) -> None:
    assert {item.name: item.value for item in kind} == {
        name: number for number, name in enumerate(IN_ORDER[kind].split())
    }


@pytest.mark.requirement("D-33", "DX-1")
def test_error_codes_are_the_documented_ones() -> None:
    assert {item.name: item.value for item in NvError} == ERRORS


@pytest.mark.requirement("D-33", "DX-1")
def test_both_documented_names_of_the_error_codes_are_one_enumeration() -> None:
    assert NvDlaError is NvError
    assert NvDlaError(0x000A000E) is NvError.MODULE_NOT_PRESENT
