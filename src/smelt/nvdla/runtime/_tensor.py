"""What the application sees of a tensor that it binds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from smelt.nvdla._status import NvdlaError, NvError

if TYPE_CHECKING:
    from smelt.nvdla.loadable import TensorDescriptor

MAX_NAME_BYTES: Final = 80
NUM_STRIDES: Final = 8


class Dims4(NamedTuple):
    """The extents of a tensor."""

    n: int
    c: int
    h: int
    w: int


@dataclass(frozen=True, slots=True)
class NvDlaTensor:
    """A tensor of a network. Only its strides may be set.

    The strides are bytes: for NCHW of an element, a line, a surface, the tensor; for NHWC of an
    element, a channel, a line, the tensor; for NCxHWx of an element, an atom, a line, a surface,
    the tensor. The official compiler writes element, line and surface for every format, and
    relocations read the line from index 1 and the surface from index 2.
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
        """The tensor of an entry of a loadable; a long name is cut as in the C structure."""
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


_REFUSALS: Final = (
    ("name", NvError.NOT_SUPPORTED),
    ("data_format", NvError.NOT_IMPLEMENTED),
    ("data_type", NvError.NOT_IMPLEMENTED),
    ("data_category", NvError.NOT_IMPLEMENTED),
    ("pixel_format", NvError.NOT_SUPPORTED),
    ("pixel_mapping", NvError.NOT_SUPPORTED),
    ("dims", NvError.NOT_SUPPORTED),
)
"""What may not change, in the order in which it is looked at."""


def check_change(old: NvDlaTensor, new: NvDlaTensor) -> None:
    """Refuse a change of anything but strides, with the documented code."""
    for name, status in _REFUSALS:
        was, wanted = getattr(old, name), getattr(new, name)
        if was != wanted:
            raise NvdlaError(
                status,
                f"tensor {old.name!r}: {name} cannot change from {was} to {wanted}; "
                "only strides can",
            )
    if len(new.stride) != NUM_STRIDES:
        raise NvdlaError(
            NvError.BAD_PARAMETER,
            f"tensor {old.name!r}: {len(new.stride)} strides, expected {NUM_STRIDES}",
        )
    for stride in new.stride:
        if not 0 <= stride < 1 << 32:
            raise NvdlaError(
                NvError.BAD_PARAMETER,
                f"tensor {old.name!r}: a stride of {stride} does not fit into 32 bits",
            )
