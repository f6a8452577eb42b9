"""Element types.

Numpy has no bfloat16: an array of it has the dtype of the package ml_dtypes, which onnx brings and
a machine that only runs engines may lack. It is imported when the first such array is made.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import numpy as np

from smelt.errors import MissingExtraError


class DType(Enum):
    """Element type. The value is the name of its numpy dtype, ml_dtypes' for bfloat16."""

    FLOAT64 = "float64"
    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    INT64 = "int64"
    INT32 = "int32"
    INT16 = "int16"
    INT8 = "int8"
    UINT64 = "uint64"
    UINT32 = "uint32"
    UINT16 = "uint16"
    UINT8 = "uint8"
    BOOL = "bool"

    @property
    def numpy(self) -> np.dtype[Any]:
        """The numpy dtype that holds one element.

        Raises MissingExtraError: it is bfloat16's, and the package that has it is not installed.
        """
        return _bfloat16() if self is DType.BFLOAT16 else np.dtype(self.value)

    @property
    def __numpy_dtype__(self) -> np.dtype[Any]:
        """The same, where numpy asks: ``np.dtype(binding.dtype)``, ``np.zeros(8, x.dtype)``."""
        return self.numpy

    @property
    def dtype(self) -> np.dtype[Any]:
        """The same, where a numpy older than 2.4 asks."""
        return self.numpy

    @property
    def size_bytes(self) -> int:
        """Bytes an element."""
        return 2 if self is DType.BFLOAT16 else self.numpy.itemsize

    @property
    def is_float(self) -> bool:
        """Whether values are floating-point."""
        return self in _FLOATS

    @property
    def is_integer(self) -> bool:
        """Whether values are integers (bool is not)."""
        return not self.is_float and self is not DType.BOOL

    @classmethod
    def from_numpy(cls, dtype: np.dtype[Any] | type) -> DType:
        """The element type of a numpy dtype. Raises ValueError."""
        return cls(np.dtype(dtype).name)


def _bfloat16() -> np.dtype[Any]:
    try:
        import ml_dtypes
    except ModuleNotFoundError as error:
        raise MissingExtraError("ml_dtypes", lead="numpy has no bfloat16, and ") from error
    made: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return made


_FLOATS = frozenset({DType.FLOAT64, DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16})


def is_float_dtype(dtype: np.dtype[Any]) -> bool:
    """Whether a numpy dtype is floating-point; numpy's own ``kind`` leaves bfloat16 out."""
    return dtype.kind == "f" or dtype.name == DType.BFLOAT16.value
