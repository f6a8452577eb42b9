"""The documented enumerations, with the numbers of the TensorRT 3.0.4 header, GIE's next of kin."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, NoReturn

from smelt.errors import GraphError
from smelt.types import DType, override, require_int, shown

if TYPE_CHECKING:
    from typing import Self


class _HeaderEnum(IntEnum):
    """Values by their documented numbers."""

    @classmethod
    def of(cls, value: object) -> Self:
        """The member that an argument is or has the number of. Raises GraphError."""
        return cls(require_int(value, cls.__name__, lambda _: cls._refusal(value)))

    @classmethod
    @override
    def _missing_(cls, value: object) -> NoReturn:
        raise cls._refusal(value)

    @classmethod
    def _refusal(cls, value: object) -> GraphError:
        known = ", ".join(member.name for member in cls)
        return GraphError(
            f"{shown(value)} is not a member of {cls.__name__}; the members are {known}"
        )


class DataType(_HeaderEnum):
    """Precision of weights."""

    FLOAT = 0
    HALF = 1
    HALF2 = 1
    """The guide's other spelling of ``HALF``."""

    @property
    def dtype(self) -> DType:
        """The element type."""
        return DType.FLOAT16 if self is DataType.HALF else DType.FLOAT32


class LayerType(_HeaderEnum):
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


class ActivationType(_HeaderEnum):
    """Functions of an activation layer."""

    RELU = 0
    SIGMOID = 1
    TANH = 2


class PoolingType(_HeaderEnum):
    """What a pooling layer takes of each window."""

    MAX = 0
    AVERAGE = 1


class ScaleMode(_HeaderEnum):
    """For what each parameter of a scale layer stands: the tensor, a channel, or an element."""

    UNIFORM = 0
    CHANNEL = 1
    ELEMENTWISE = 2


class ElementWiseOperation(_HeaderEnum):
    """What an elementwise layer does with its two inputs."""

    SUM = 0
    PROD = 1
    MAX = 2
