"""Element types.

numpy has no bfloat16; its arrays use the dtype of the package ml_dtypes. onnx depends on that
package, but a machine that only runs engines may not have it, so it is imported on first use.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np

from smelt.errors import MissingExtraError

if TYPE_CHECKING:
    from numpy.typing import NDArray


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

        Raises MissingExtraError for bfloat16 when the package ml_dtypes is not installed.
        """
        return _bfloat16() if self is DType.BFLOAT16 else np.dtype(self.value)

    @property
    def __numpy_dtype__(self) -> np.dtype[Any]:
        """The numpy dtype, for numpy 2.4 and later: ``np.dtype(binding.dtype)`` works."""
        return self.numpy

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy dtype, under the name that numpy before 2.4 looks up."""
        return self.numpy

    @property
    def size_bytes(self) -> int:
        """Size of one element in bytes."""
        return 2 if self is DType.BFLOAT16 else self.numpy.itemsize

    @property
    def is_float(self) -> bool:
        """Whether values are floating-point."""
        return self in _FLOATS

    @property
    def is_integer(self) -> bool:
        """Whether values are integers; bool is not an integer type."""
        return not self.is_float and self is not DType.BOOL

    @classmethod
    def from_numpy(cls, dtype: np.dtype[Any] | type) -> DType:
        """Return the element type of a numpy dtype. Raises ValueError when there is none."""
        return cls(np.dtype(dtype).name)


def _bfloat16() -> np.dtype[Any]:
    try:
        import ml_dtypes
    except ModuleNotFoundError as error:
        raise MissingExtraError("ml_dtypes", lead="numpy has no bfloat16, and ") from error
    dtype: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return dtype


_FLOATS = frozenset({DType.FLOAT64, DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16})
_FLOAT_NAMES = frozenset(dtype.value for dtype in _FLOATS)


def is_float_dtype(dtype: np.dtype[Any]) -> bool:
    """Whether a numpy dtype is one of the floating-point types, in any byte order."""
    return dtype.name in _FLOAT_NAMES


def random_array(
    dtype: np.dtype[Any], shape: tuple[int, ...], rng: np.random.Generator
) -> NDArray[Any]:
    """Return normally distributed floats; integers and booleans are 0 or 1.

    Indices are thus in range for every axis of at least two elements.
    """
    if is_float_dtype(dtype):
        return rng.standard_normal(shape, np.float32).astype(dtype)
    return rng.integers(0, 2, shape).astype(dtype)
