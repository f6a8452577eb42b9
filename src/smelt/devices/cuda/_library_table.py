"""Table of the libraries whose calls engines may contain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from smelt.devices.cuda._cublaslt import MatmulCall, open_cublaslt
from smelt.devices.cuda._cudnn import ConvolutionCall, open_cudnn
from smelt.devices.cuda._vendor_libraries import LibraryCall, LoadedLibrary, dotted_version

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from smelt.devices.cuda._device import CudaDevice


@dataclass(frozen=True, slots=True)
class VendorLibrary:
    """A library that engines may call."""

    title: str
    """Name for messages."""
    read: Callable[[Mapping[str, Any]], LibraryCall]
    """Creates a call from a record's fields, or raises EngineFormatError."""
    open: Callable[[CudaDevice, int | None], LoadedLibrary]
    """Opens the library on a GPU, of a given version or of any.

    Raises MissingExtraError, EngineMismatchError, and DeviceError if it is too old or fails.
    """

    def of_version(self, version: int) -> str:
        """Return the name of the library with a version, for messages."""
        return f"{self.title} {dotted_version(version)}"


LIBRARIES: Final[Mapping[str, VendorLibrary]] = {
    MatmulCall.provider: VendorLibrary("cuBLASLt", MatmulCall.from_fields, open_cublaslt),
    ConvolutionCall.provider: VendorLibrary("cuDNN", ConvolutionCall.from_fields, open_cudnn),
}
"""Libraries by their names in engines."""
