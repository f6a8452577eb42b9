"""Loading of records on one GPU: kernels of cubins, and library calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from smelt.devices.cuda._kernel_record import read_record
from smelt.devices.cuda._library_table import LIBRARIES
from smelt.devices.cuda._module import CudaModule, LaunchConfig, launch
from smelt.devices.cuda._vendor_libraries import LibraryCall
from smelt.errors import EngineFormatError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from smelt.devices.cuda._device import CudaDevice
    from smelt.devices.cuda._kernel_record import CudaKernel
    from smelt.devices.cuda._module import CudaFunction
    from smelt.devices.cuda._stream import CudaStream
    from smelt.devices.cuda._vendor_libraries import Launcher, LoadedLibrary


@dataclass(frozen=True, slots=True)
class LaunchArguments:
    """Arguments of one launch, in the driver's form and as integers."""

    address: int
    """Address of the array of pointers to the arguments."""
    words: NDArray[np.int64]
    """Addresses and integers, without the compiler's scratch words."""


@dataclass(frozen=True, slots=True)
class LoadedKernel:
    """A kernel of an engine on one GPU."""

    can_update_in_graph: ClassVar[bool] = True
    """Whether the arguments of its launch can be updated in a graph."""

    function: CudaFunction
    kernel: CudaKernel
    module: CudaModule
    """Module that contains the function and keeps it loaded."""

    @property
    def scratch_words(self) -> int:
        """Number of zero words behind its arguments."""
        return self.kernel.scratch_words

    def config(self, blocks: int, *, allows_pdl: bool = True) -> LaunchConfig:
        """Return the configuration of a launch; it uses PDL only if the kernel supports it."""
        return LaunchConfig(
            (blocks, 1, 1),
            self.kernel.threads,
            self.kernel.dynamic_shared_bytes,
            uses_pdl=allows_pdl and self.kernel.supports_pdl,
            cluster_size=self.kernel.cluster,
        )

    def launch(
        self, blocks: int, arguments: LaunchArguments, stream: CudaStream, *, allows_pdl: bool
    ) -> None:
        """Enqueue a launch. Raises CudaError: the driver rejects it, or earlier work failed."""
        launch(self.function, self.config(blocks, allows_pdl=allows_pdl), arguments, stream)


@dataclass(frozen=True, slots=True)
class LoadedCall:
    """A library call of an engine on one GPU; the library enqueues its own launches."""

    can_update_in_graph: ClassVar[bool] = False
    scratch_words: ClassVar[int] = 0

    call: LibraryCall
    queue: Launcher

    def launch(
        self, blocks: int, arguments: LaunchArguments, stream: CudaStream, *, allows_pdl: bool
    ) -> None:
        """Enqueue the call. Raises LibraryError: the library rejects it."""
        del allows_pdl
        if len(arguments.words) != self.call.words:
            raise EngineFormatError(
                f"a library call has {len(arguments.words)} operands; {self.call.words} are "
                "required"
            )
        if blocks:
            self.queue(arguments.words.tolist(), stream)


class KernelLoader:
    """Loads records on one GPU; each cubin and each library is loaded once."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self._modules: dict[bytes, CudaModule] = {}
        self._libraries: dict[tuple[str, int], LoadedLibrary] = {}

    def load(
        self, code: bytes | memoryview, offset: int = 0, architecture_index: int = 0
    ) -> LoadedKernel | LoadedCall:
        """Load a record; the arguments are those of `CudaKernel.from_bytes`.

        Raises:
            EngineFormatError: the record is malformed or names no function of its code.
            EngineMismatchError: the driver, the GPU or the library cannot run it.
            MissingExtraError: the library of a call is not installed.
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
