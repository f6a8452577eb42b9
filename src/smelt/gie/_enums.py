"""Enumerations of GIE.

The GIE User Guide names the members. The numbers are those of the header of TensorRT 3.0.4, a later
release under GIE's new name.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, NoReturn

from smelt.errors import GraphError
from smelt.types import DType, override, require_int, shown

if TYPE_CHECKING:
    from typing import Self


class _HeaderEnum(IntEnum):
    """Enumeration whose values are the documented numbers."""

    @classmethod
    def of(cls, value: object) -> Self:
        """Return the member that is given as itself or by its number.

        Raises:
            GraphError: ``value`` is neither.
        """
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
    """Element type of weights and inputs."""

    FLOAT = 0
    HALF = 1
    HALF2 = 1
    """Alias of ``HALF``, which the guide uses too."""

    @property
    def dtype(self) -> DType:
        """Element type of smelt."""
        return DType.FLOAT16 if self is DataType.HALF else DType.FLOAT32


class LayerType(_HeaderEnum):
    """Type of a layer."""

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
    """Function of an activation layer."""

    RELU = 0
    SIGMOID = 1
    TANH = 2


class PoolingType(_HeaderEnum):
    """Reduction of a pooling layer over each window."""

    MAX = 0
    AVERAGE = 1


class ScaleMode(_HeaderEnum):
    """Granularity of a scale layer's parameters: whole tensor, channel or element."""

    UNIFORM = 0
    CHANNEL = 1
    ELEMENTWISE = 2


class ElementWiseOperation(_HeaderEnum):
    """Operation of an elementwise layer on its two inputs."""

    SUM = 0
    PROD = 1
    MAX = 2
