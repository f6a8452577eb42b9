"""The documented enumerations, with the numbers of the TensorRT 3.0.4 header, GIE's next of kin."""

from __future__ import annotations

from enum import IntEnum

from smelt.types import DType


class DataType(IntEnum):
    """Precision of weights."""

    FLOAT = 0
    HALF = 1
    HALF2 = 1
    """The guide's other spelling of ``HALF``."""

    @property
    def dtype(self) -> DType:
        """The element type."""
        return DType.FLOAT16 if self is DataType.HALF else DType.FLOAT32


class LayerType(IntEnum):
    """Kinds of layers."""

    CONVOLUTION = 0
    FULLY_CONNECTED = 1
    ACTIVATION = 2
    POOLING = 3
    LRN = 4
    SCALE = 5
    SOFTMAX = 6
    DECONVOLUTION = 7
    CONCATENATION = 8
    ELEMENTWISE = 9


class ActivationType(IntEnum):
    """Functions of an activation layer."""

    RELU = 0
    SIGMOID = 1
    TANH = 2


class PoolingType(IntEnum):
    """What a pooling layer takes of each window."""

    MAX = 0
    AVERAGE = 1


class ScaleMode(IntEnum):
    """For what each parameter of a scale layer stands: the tensor, a channel, or an element."""

    UNIFORM = 0
    CHANNEL = 1
    ELEMENTWISE = 2


class ElementWiseOperation(IntEnum):
    """What an elementwise layer does with its two inputs."""

    SUM = 0
    PROD = 1
    MAX = 2
