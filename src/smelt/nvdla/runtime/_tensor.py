"""Descriptions of bindable tensors, as the application reads and sets them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from smelt.nvdla._errors import NvdlaError, NvError

if TYPE_CHECKING:
    from smelt.nvdla.loadable import TensorDescriptor

MAX_NAME_BYTES: Final = 80
"""Size in bytes of a tensor's name in the C structure."""
NUM_STRIDES: Final = 8
"""Number of strides in the C structure."""


class Dims4(NamedTuple):
    """Extents of a tensor."""

    n: int
    c: int
    h: int
    w: int


@dataclass(frozen=True, slots=True)
class NvDlaTensor:
    """Description of a network's input or output. Only the strides may be changed.

    Strides are in bytes. NCHW has the strides of an element, a line, a surface and the tensor;
    NHWC those of an element, a channel, a line and the tensor; NCxHWx those of an element, an
    atom, a line, a surface and the tensor. The official compiler writes the strides of element,
    line and surface for every format, and relocations read the line stride at index 1 and the
    surface stride at index 2.
    """

    name: str
    buffer_size: int
    dims: Dims4
    data_format: int
    data_type: int
    data_category: int
    pixel_format: int
    pixel_mapping: int
    stride: tuple[int, ...]

    @classmethod
    def from_descriptor(cls, entry: TensorDescriptor) -> NvDlaTensor:
        """Return the description of a loadable's tensor; a long name is cut to `MAX_NAME_BYTES`."""
        name = entry.name.encode()[:MAX_NAME_BYTES].decode(errors="ignore")
        return cls(
            name,
            entry.size,
            Dims4(entry.n, entry.c, entry.h, entry.w),
            entry.data_format,
            entry.data_type,
            entry.data_category,
            entry.pixel_format,
            entry.pixel_mapping,
            entry.strides,
        )


_FIXED_FIELDS: Final = (
    ("name", NvError.NOT_SUPPORTED),
    ("data_format", NvError.NOT_IMPLEMENTED),
    ("data_type", NvError.NOT_IMPLEMENTED),
    ("data_category", NvError.NOT_IMPLEMENTED),
    ("pixel_format", NvError.NOT_SUPPORTED),
    ("pixel_mapping", NvError.NOT_SUPPORTED),
    ("dims", NvError.NOT_SUPPORTED),
)
"""Fields that must not change, and the documented error code, in the order of the checks."""


def check_change(old: NvDlaTensor, new: NvDlaTensor) -> None:
    """Check that a new description differs from the old one in its strides only.

    Raises:
        NvdlaError: The documented code of the field that differs; BAD_PARAMETER if the strides are
            invalid.
    """
    for name, status in _FIXED_FIELDS:
        old_value, new_value = getattr(old, name), getattr(new, name)
        if old_value != new_value:
            raise NvdlaError(
                status,
                f"tensor {old.name!r}: {name} cannot be changed from {old_value} to {new_value}; "
                "only strides can be changed",
            )
    if len(new.stride) != NUM_STRIDES:
        raise NvError.BAD_PARAMETER.error(
            f"tensor {old.name!r}: the description has {len(new.stride)} strides; it must have "
            f"{NUM_STRIDES}"
        )
    for stride in new.stride:
        if not 0 <= stride < 1 << 32:
            raise NvError.BAD_PARAMETER.error(
                f"tensor {old.name!r}: a stride of {stride} does not fit into 32 bits"
            )
