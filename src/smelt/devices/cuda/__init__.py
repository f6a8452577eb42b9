"""NVIDIA GPUs as devices, through the driver alone: memory, streams, code, launches, graphs.

Nothing here knows a compiler. ``cuda.bindings`` (the extra ``cuda``) is loaded at the first use of
a GPU.
"""

from smelt.devices.cuda._address_range import ReservedAddressRange, reserve_memory
from smelt.devices.cuda._array_interop import CudaArray, GpuArrayView, is_on_gpu, view_of
from smelt.devices.cuda._cubin import KernelResources, check_is_whole, resources_of
from smelt.devices.cuda._cublaslt import (
    LARGEST_ALPHA,
    CublasError,
    CublasLt,
    MatmulCall,
    open_cublaslt,
)
from smelt.devices.cuda._cudnn import ConvolutionCall, Cudnn, open_cudnn
from smelt.devices.cuda._cudnn_api import CudnnError
from smelt.devices.cuda._device import CudaDevice, cuda_device, selected_device, selected_index
from smelt.devices.cuda._driver import CudaError, Driver, cuda_driver
from smelt.devices.cuda._graph import CudaGraph
from smelt.devices.cuda._kernel_loader import KernelLoader, LoadedCall, LoadedKernel
from smelt.devices.cuda._kernel_record import (
    ABI_VERSION,
    CudaKernel,
    call_to_bytes,
    matching_architecture,
    read_record,
)
from smelt.devices.cuda._library_table import LIBRARIES
from smelt.devices.cuda._memory import (
    CudaAllocation,
    CudaMemory,
    PinnedAllocation,
    copy_memory,
    fill_memory,
    owner_of,
)
from smelt.devices.cuda._module import (
    CudaFunction,
    CudaModule,
    KernelArguments,
    LaunchConfig,
    launch,
)
from smelt.devices.cuda._occupancy import SIZE_FEATURE, SM_RESOURCES, SmResources
from smelt.devices.cuda._run_list import CudaLaunch, CudaRunList, RunListGraph, groups_of
from smelt.devices.cuda._stream import CudaEvent, CudaStream, HostTask, handle_of
from smelt.devices.cuda._vendor_libraries import (
    ALIGNED_BYTES,
    WORKSPACE_ALIGNED_BYTES,
    LibraryCall,
    LibraryError,
    LoadedLibrary,
)

__all__ = [
    "ABI_VERSION",
    "ALIGNED_BYTES",
    "LARGEST_ALPHA",
    "LIBRARIES",
    "SM_RESOURCES",
    "SIZE_FEATURE",
    "WORKSPACE_ALIGNED_BYTES",
    "ConvolutionCall",
    "CublasError",
    "CublasLt",
    "CudaAllocation",
    "CudaArray",
    "CudaDevice",
    "CudaError",
    "CudaEvent",
    "CudaFunction",
    "CudaGraph",
    "CudaKernel",
    "CudaMemory",
    "CudaModule",
    "ReservedAddressRange",
    "CudaLaunch",
    "CudaRunList",
    "CudaStream",
    "Cudnn",
    "CudnnError",
    "GpuArrayView",
    "Driver",
    "HostTask",
    "SmResources",
    "KernelArguments",
    "KernelLoader",
    "KernelResources",
    "LaunchConfig",
    "LibraryCall",
    "LibraryError",
    "LoadedCall",
    "LoadedKernel",
    "LoadedLibrary",
    "PinnedAllocation",
    "MatmulCall",
    "RunListGraph",
    "call_to_bytes",
    "check_is_whole",
    "copy_memory",
    "cuda_device",
    "cuda_driver",
    "fill_memory",
    "groups_of",
    "handle_of",
    "is_on_gpu",
    "launch",
    "matching_architecture",
    "open_cublaslt",
    "open_cudnn",
    "owner_of",
    "read_record",
    "reserve_memory",
    "resources_of",
    "selected_device",
    "selected_index",
    "view_of",
]
