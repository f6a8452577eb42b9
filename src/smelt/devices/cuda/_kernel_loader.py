"""From records to what can be launched on one GPU: kernels of cubins, and calls of libraries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from smelt.devices.cuda._kernel_record import read_record
from smelt.devices.cuda._library_calls import LIBRARIES, LibraryCall
from smelt.devices.cuda._module import Arguments, CudaModule, LaunchShape, launch
from smelt.errors import EngineFormatError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from smelt.devices.cuda._device import CudaDevice
    from smelt.devices.cuda._kernel_record import CudaKernel
    from smelt.devices.cuda._library_calls import LoadedLibrary
    from smelt.devices.cuda._module import CudaFunction
    from smelt.devices.cuda._stream import CudaStream
    from smelt.devices.cuda._vendor_libraries import Launcher


class LaunchArguments(Arguments, Protocol):
    """Arguments of one launch, as the driver wants them and as numbers."""

    @property
    def words(self) -> NDArray[np.int64]:
        """Addresses and integers, the compiler's scratch left out."""
        ...


@dataclass(frozen=True, slots=True)
class LoadedKernel:
    """A kernel of an engine on one GPU."""

    can_update_in_graph: ClassVar[bool] = True
    """Whether a graph's launch of it can be given other words."""

    function: CudaFunction
    kernel: CudaKernel
    module: CudaModule
    """What the function is part of; it must live as long."""

    @property
    def scratch_words(self) -> int:
        """Words of zero that it takes behind its arguments."""
        return self.kernel.scratch_words

    def shape(self, blocks: int, *, uses_pdl: bool = True) -> LaunchShape:
        """A launch of so many blocks; it starts early only if its code can wait by itself."""
        return LaunchShape(
            (blocks, 1, 1),
            self.kernel.threads,
            self.kernel.dynamic_shared_bytes,
            supports_pdl=uses_pdl and self.kernel.supports_pdl,
            cluster=self.kernel.cluster,
        )

    def launch(
        self, blocks: int, arguments: LaunchArguments, stream: CudaStream, *, uses_pdl: bool
    ) -> None:
        """Queue a launch. Raises CudaError: the driver refuses it, or earlier work failed."""
        launch(self.function, self.shape(blocks, uses_pdl=uses_pdl), arguments, stream)


@dataclass(frozen=True, slots=True)
class LoadedCall:
    """A library call of an engine on one GPU: the library makes launches of its own of it."""

    can_update_in_graph: ClassVar[bool] = False
    scratch_words: ClassVar[int] = 0

    call: LibraryCall
    queue: Launcher

    def launch(
        self, blocks: int, arguments: LaunchArguments, stream: CudaStream, *, uses_pdl: bool
    ) -> None:
        """Queue the call. Raises LibraryError: the library refuses it."""
        del uses_pdl
        if len(arguments.words) != self.call.words:
            raise EngineFormatError(
                f"a library call has {len(arguments.words)} operands, expected {self.call.words}"
            )
        if blocks:
            self.queue(arguments.words.tolist(), stream)


class KernelLoader:
    """Brings records to one GPU: each piece of code, and each library, once."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self._modules: dict[bytes, CudaModule] = {}
        self._libraries: dict[tuple[str, int], LoadedLibrary] = {}

    def load(
        self, code: bytes | memoryview, offset: int = 0, architecture_index: int = 0
    ) -> LoadedKernel | LoadedCall:
        """Load the record at an offset; `CudaKernel.from_bytes` says more.

        Raises:
            EngineFormatError: it is malformed, or names no function of its code.
            EngineMismatchError: the driver, the GPU or the library cannot run it.
            MissingExtraError: it calls a library that is not here.
            DeviceError: the GPU has too little shared memory, or earlier work failed.
        """
        kernel = read_record(code, offset, architecture_index)
        if isinstance(kernel, LibraryCall):
            return self._loaded_call(kernel)
        if kernel.cubin not in self._modules:
            self._modules[kernel.cubin] = CudaModule(self._device, kernel.cubin)
        module = self._modules[kernel.cubin]
        function = module.function(kernel.entry, kernel.dynamic_shared_bytes)
        return LoadedKernel(function, kernel, module)

    def _loaded_call(self, call: LibraryCall) -> LoadedCall:
        key = call.provider, call.version
        if key not in self._libraries:
            self._libraries[key] = LIBRARIES[call.provider].open(self._device, call.version)
        return LoadedCall(call, self._libraries[key].prepare(call))
