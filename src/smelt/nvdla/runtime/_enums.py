"""Enumerations of the runtime's interface. Source: nvdla/sw, NvDlaType.h and IRuntime.h."""

from __future__ import annotations

from enum import IntEnum

PixelFormat = IntEnum(
    "PixelFormat",
    "R8 R10 R12 R16 R16_I R16_F "
    "A16B16G16R16 X16B16G16R16 A16B16G16R16_F A16Y16U16V16 V16U16Y16A16 A16Y16U16V16_F "
    "A8B8G8R8 A8R8G8B8 B8G8R8A8 R8G8B8A8 X8B8G8R8 X8R8G8B8 B8G8R8X8 R8G8B8X8 "
    "A2B10G10R10 A2R10G10B10 B10G10R10A2 R10G10B10A2 A2Y10U10V10 V10U10Y10A2 A8Y8U8V8 V8U8Y8A8 "
    "Y8_U8V8_N444 Y8_V8U8_N444 Y10_U10V10_N444 Y10_V10U10_N444 Y12_U12V12_N444 "
    "Y12_V12U12_N444 Y16_U16V16_N444 Y16_V16U16_N444 "
    "FEATURE FEATURE_X8 UNKNOWN",
    start=0,
)
"""Pixel formats of images in memory, numbered in this order from 0."""


class PixelMapping(IntEnum):
    """Arrangements of an image's lines in memory."""

    PITCH_LINEAR = 0


class LayerType(IntEnum):
    """Layer types of a network."""

    CONVOLUTION = 0
    FULLY_CONNECTED = 1
    ACTIVATION = 2
    POOLING = 3
    LRN = 4
    SCALE = 5
    BATCH_NORM = 6
    SOFTMAX = 7
    DECONVOLUTION = 8
    CONCATENATION = 9
    ELEMENTWISE = 10
    SLICE = 11


class ActivationType(IntEnum):
    """Functions of an activation layer."""

    RELU = 0
    SIGMOID = 1
    TANH = 2


class PoolingType(IntEnum):
    """Functions of a pooling layer."""

    MIN = 0
    MAX = 1
    AVERAGE = 2


class ElementwiseOperation(IntEnum):
    """Functions of an elementwise layer."""

    SUM = 0
    PROD = 1
    MIN = 2
    MAX = 3


class BiasMode(IntEnum):
    """Granularity of bias values."""

    NONE = 0
    UNIFORM = 1
    CHANNEL = 2
    ELEMENTWISE = 3


class ScaleMode(IntEnum):
    """Granularity of scale values."""

    UNKNOWN = 0
    UNIFORM = 1
    CHANNEL = 2
    ELEMENTWISE = 3


class BatchNormMode(IntEnum):
    """Granularity of batch normalisation parameters."""

    UNIFORM = 0
    CHANNEL = 1
