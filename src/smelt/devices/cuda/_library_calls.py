"""Which libraries' calls there are."""

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
"""One call as data. Its argument words are addresses: its operands', its workspace's."""


class LoadedLibrary(Protocol):
    """A library on one GPU."""

    provider: ClassVar[str]
    """Its name in engines."""
    version: int
    """Its own number of its version."""

    def prepare(self, call: Any, /) -> Launcher:
        """Let it look at one of its calls; what is returned queues it on its operands.

        Raises:
            EngineMismatchError: it cannot do this call on this GPU.
        """
        ...


@dataclass(frozen=True, slots=True)
class Library:
    """A library that engines may call."""

    title: str
    """As people call it."""
    read: Callable[[Mapping[str, Any]], LibraryCall]
    """Makes a call of a record's fields, or raises EngineFormatError."""
    open: Callable[[CudaDevice, int | None], LoadedLibrary]
    """Opens it on a GPU, of a version or of any.

    Raises MissingExtraError, EngineMismatchError, and DeviceError where it is too old or refuses.
    """

    def of_version(self, version: int) -> str:
        """The library and a version of it, as people write them."""
        return f"{self.title} {dotted_version(version)}"


LIBRARIES: Final[Mapping[str, Library]] = {
    ProductCall.provider: Library("cuBLASLt", ProductCall.from_fields, open_cublaslt),
    ConvolutionCall.provider: Library("cuDNN", ConvolutionCall.from_fields, open_cudnn),
}
"""By their names in engines."""
