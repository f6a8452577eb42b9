"""Element types."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


class DType(Enum):
    """Element type. The value is its numpy name; bfloat16, which numpy lacks, is held as bits."""

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
        """The numpy dtype that holds one element; uint16 for bfloat16."""
        return np.dtype("uint16" if self is DType.BFLOAT16 else self.value)

    @property
    def size_bytes(self) -> int:
        """Bytes an element."""
        return self.numpy.itemsize

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


_FLOATS = frozenset({DType.FLOAT64, DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16})


def encode_bfloat16(values: NDArray[Any]) -> NDArray[np.uint16]:
    """The bits of the nearest bfloat16 numbers, ties to even."""
    bits = np.asarray(values, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    quiet = bits >> 16 | 0x40  # a number that is none stays none, though its low bits are cut
    return np.where(np.isnan(values), quiet, rounded).astype(np.uint16)


def decode_bfloat16(bits: NDArray[Any]) -> NDArray[np.float32]:
    """The numbers that bits of bfloat16 are."""
    return (bits.astype(np.uint32) << 16).view(np.float32)
