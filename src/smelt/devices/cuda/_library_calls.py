"""Table of the libraries whose calls engines may contain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

from smelt.devices.cuda._cublaslt import ProductCall, open_cublaslt
from smelt.devices.cuda._cudnn import ConvolutionCall, open_cudnn
from smelt.devices.cuda._vendor_libraries import dotted_version

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from smelt.devices.cuda._device import CudaDevice
    from smelt.devices.cuda._vendor_libraries import Launcher

LibraryCall = ProductCall | ConvolutionCall
"""One call as data. Its argument words are the addresses of its operands and its workspace."""


class LoadedLibrary(Protocol):
    """A library on one GPU."""

    provider: ClassVar[str]
    """Name of the library in engines."""
    version: int
    """Version number in the library's own format."""

    def prepare(self, call: Any, /) -> Launcher:
        """Prepare one call of the library; the returned function queues it on its operands.

        Raises:
            EngineMismatchError: the library cannot perform this call on this GPU.
        """
        ...


@dataclass(frozen=True, slots=True)
class Library:
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


LIBRARIES: Final[Mapping[str, Library]] = {
    ProductCall.provider: Library("cuBLASLt", ProductCall.from_fields, open_cublaslt),
    ConvolutionCall.provider: Library("cuDNN", ConvolutionCall.from_fields, open_cudnn),
}
"""Libraries by their names in engines."""
