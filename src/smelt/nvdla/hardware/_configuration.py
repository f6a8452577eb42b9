"""Hardware configurations: the known ones, and the class for defining others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from smelt.nvdla._errors import NvError
from smelt.nvdla._protocols import Precision

_INT8_ONLY: Final = frozenset({Precision.INT8})


@dataclass(frozen=True, slots=True)
class Configuration:
    """Parameters of an NVDLA implementation; `dataclasses.replace` makes variants."""

    name: str
    register_map: str = "v2"
    """Name of the register map: ``nv_full`` or ``v2``."""
    atomic_c: int = 64
    """Channels that a MAC cell multiplies per cycle."""
    atomic_k: int = 32
    """Number of MAC cells: kernels per cycle at int8."""
    atom_bytes: int = 32
    """Size of a memory atom: the contiguous channels of one pixel of a feature surface."""
    buffer_banks: int = 16
    """Number of banks of the convolution buffer."""
    buffer_depth: int = 512
    """Entries of a bank."""
    buffer_width_bytes: int = 64
    """Size of an entry of a bank."""
    precisions: frozenset[Precision] = _INT8_ONLY
    has_bdma: bool = False
    has_rubik: bool = False
    has_winograd: bool = False
    has_compression: bool = False
    has_batch: bool = False
    has_sram: bool = False
    has_sdp_eltwise: bool = True
    has_sdp_lut: bool = True
    has_pdp: bool = True
    has_cdp: bool = True
    clock_hz: float = 1e9
    dram_bytes_per_s: float = 10e9
    sram_bytes_per_s: float = 25e9

    def __post_init__(self) -> None:
        for name in ("atomic_c", "atomic_k", "atom_bytes", "buffer_banks", "buffer_depth"):
            value = getattr(self, name)
            if value < 1:
                raise NvError.BAD_VALUE.error(
                    f"configuration {self.name}: {name} is {value}; it must be positive"
                )
        if self.atom_bytes % 2 or Precision.INT8 not in self.precisions:
            precisions = ", ".join(item.name.lower() for item in sorted(self.precisions))
            raise NvError.BAD_VALUE.error(
                f"configuration {self.name}: atom_bytes is {self.atom_bytes} and the precisions "
                f"are {precisions or 'none'}; atom_bytes must be even, and int8 must be one of the "
                "precisions"
            )

    @property
    def buffer_bytes(self) -> int:
        """Size of the convolution buffer in bytes."""
        return self.buffer_banks * self.buffer_depth * self.buffer_width_bytes

    @property
    def macs(self) -> int:
        """Number of int8 multiplications per cycle."""
        return self.atomic_c * self.atomic_k

    def kernel_group(self, precision: Precision) -> int:
        """Return the number of kernels that are stored and computed together."""
        if precision is Precision.INT8:
            return self.atomic_k
        return max(1, self.atomic_k // 2)

    def atom_elements(self, precision: Precision) -> int:
        """Return the number of channels in one atom."""
        return self.atom_bytes // precision.size_bytes


NV_LARGE: Final = Configuration(
    name="nv_large", has_winograd=True, has_compression=True, has_batch=True, has_sram=True
)
NV_FULL: Final = replace(
    NV_LARGE,
    name="nv_full",
    register_map="nv_full",
    buffer_depth=256,
    buffer_width_bytes=128,
    precisions=frozenset(Precision),
    has_bdma=True,
    has_rubik=True,
)
NV_SMALL: Final = Configuration(
    name="nv_small",
    atomic_c=8,
    atomic_k=8,
    atom_bytes=8,
    buffer_banks=32,
    buffer_width_bytes=8,
    dram_bytes_per_s=1e9,
)
NV_SMALL_256: Final = Configuration(
    name="nv_small_256",
    atomic_c=32,
    atomic_k=8,
    atom_bytes=8,
    buffer_banks=32,
    buffer_depth=128,
    buffer_width_bytes=32,
    dram_bytes_per_s=5e9,
)
NV_SMALL_256_FULL: Final = replace(NV_SMALL_256, name="nv_small_256_full", has_sram=True)
NV_MEDIUM_512: Final = Configuration(
    name="nv_medium_512",
    atomic_c=32,
    atomic_k=16,
    atom_bytes=16,
    buffer_banks=32,
    buffer_width_bytes=32,
)
NV_MEDIUM_1024_FULL: Final = replace(
    NV_MEDIUM_512, name="nv_medium_1024_full", atomic_k=32, atom_bytes=32, has_sram=True
)

CONFIGURATIONS: Final = {
    item.name: item
    for item in (
        NV_FULL,
        NV_LARGE,
        NV_SMALL,
        NV_SMALL_256,
        NV_SMALL_256_FULL,
        NV_MEDIUM_512,
        NV_MEDIUM_1024_FULL,
    )
}
"""The known configurations, by name."""


def find_configuration(name: str) -> Configuration:
    """Return a known configuration by name.

    Raises:
        NvdlaError: BAD_PARAMETER if there is none of that name; the message lists the names.
    """
    try:
        return CONFIGURATIONS[name]
    except KeyError:
        raise NvError.BAD_PARAMETER.error(
            f"there is no NVDLA configuration {name!r}; the configurations are "
            f"{', '.join(CONFIGURATIONS)}"
        ) from None
