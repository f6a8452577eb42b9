"""Types of the values of a graph, and storage formats of tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from smelt.errors import ShapeError
from smelt.types._dim import Dim, ceil_div
from smelt.types._limits import Limit
from smelt.types._text_formatting import format_integer

if TYPE_CHECKING:
    from smelt.types._dtype import DType

Shape = tuple[Dim, ...]
"""Extents, outermost first in the model's axis order (NCHW for images)."""


@dataclass(frozen=True, slots=True)
class TensorType:
    """Element type and shape of a tensor."""

    dtype: DType
    shape: Shape

    def __post_init__(self) -> None:
        if len(self.shape) > Limit.MAX_RANK.most:
            raise ShapeError(f"a tensor has {Limit.MAX_RANK.excess(len(self.shape))}")

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def is_static(self) -> bool:
        """Whether every extent is known."""
        return all(isinstance(d, int) for d in self.shape)

    def __str__(self) -> str:
        return f"{self.dtype.value}[{', '.join(map(_extent_text, self.shape))}]"


def _extent_text(extent: Dim) -> str:
    """Return an extent as the graph parser reads it; abbreviate one that is too long to parse."""
    return format_integer(extent).replace(",", "") if isinstance(extent, int) else str(extent)


@dataclass(frozen=True, slots=True)
class SequenceType:
    """A sequence of tensors of one type."""

    element: TensorType

    def __str__(self) -> str:
        return f"sequence({self.element})"


@dataclass(frozen=True, slots=True)
class OptionalType:
    """A value that may be absent."""

    element: TensorType | SequenceType

    def __str__(self) -> str:
        return f"optional({self.element})"


ValueType = TensorType | SequenceType | OptionalType


class Layout(Enum):
    """Order of the axes of a tensor in memory."""

    LINEAR = "linear"
    """Axis order of the model, last axis contiguous."""
    CHANNELS_LAST = "channels_last"
    """Axis 1 (channels) contiguous: NHWC for images, NWC for series."""
    STRIDED = "strided"
    """Any strides of a view: kernels that read or write this layout depend on the last stride only.
    In a buffer of its own, such a tensor is stored as LINEAR."""

    PAIRED = "paired"
    """Elements of two adjacent images side by side: ``[pairs, C, H, W, 2]``. With an odd number of
    images, the last pair has a second image that is never read."""

    def stored_shape(self, shape: Shape) -> Shape:
        """Return the extents in memory of a tensor of this layout, in the axis order of views."""
        if self is not Layout.PAIRED:
            return shape
        return (ceil_div(shape[0], 2), *shape[1:], 2)

    def axis_order(self, rank: int) -> tuple[int, ...]:
        """Return the axes of a tensor of this rank, outermost in memory first."""
        if self is not Layout.CHANNELS_LAST or rank < 3:
            return tuple(range(rank))
        return (0, *range(2, rank), 1)


@dataclass(frozen=True, slots=True)
class TensorFormat:
    """Storage format of a tensor: element type and layout."""

    dtype: DType
    layout: Layout = Layout.LINEAR

    def __str__(self) -> str:
        return f"{self.dtype.value}/{self.layout.value}"


def element_count(shape: Shape) -> Dim:
    """Return the number of elements: the product of the extents."""
    return math.prod(shape)
