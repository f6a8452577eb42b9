"""Conversion of arrays at the API: DLPack and numpy protocols, without casts."""

from __future__ import annotations

import sys
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from smelt.errors import BindingError
from smelt.types import DType, application_errors, evaluate_dim, is_array

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from smelt.devices.cuda import GpuArrayView
    from smelt.engine import Binding
    from smelt.types import Shape

_HOST_KINDS: Final = frozenset({1, 3})
"""DLPack device types in CPU-accessible memory: kDLCPU (1) and kDLCUDAHost (3, pinned)."""

_DLPACK_MODULES: Final = {"jax": "jax.numpy", "jaxlib": "jax.numpy"}
"""Modules that offer ``from_dlpack``, for libraries whose root module does not."""


def array_from_value(
    value: object, binding: Binding, dtype: np.dtype[Any], *, is_written: bool = False
) -> NDArray[Any]:
    """Return ``value`` as a numpy array on the same memory, if it has the binding's dtype.

    Raises:
        BindingError: ``value`` is not an array, is on another device, or has another dtype.
    """
    array = _as_numpy(value, binding, is_written=is_written)
    if array.dtype != dtype:
        raise _dtype_error(array, binding)
    return array


def contiguous_array(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array that kernels can read; a non-contiguous or misaligned one is copied."""
    if array.flags.c_contiguous and array.flags.aligned:
        return array
    return np.ascontiguousarray(array)


def writable_array(value: object, binding: Binding, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return ``value`` as a numpy array on the same memory, to be written by kernels.

    Raises:
        BindingError: ``value`` is not an array of the binding's dtype on the host, or is not
            contiguous, aligned and writable.
    """
    array = array_from_value(value, binding, dtype, is_written=True)
    flags = array.flags
    if not (flags.c_contiguous and flags.aligned and flags.writeable):
        raise BindingError(
            f"{binding.name}: an output array must be C-contiguous, aligned and writable"
        )
    return array


def start_addresses(arrays: Sequence[Any]) -> list[int | None]:
    """Return the addresses of arrays; None for an array that is copied before it is read."""
    return [_start_address(array) for array in arrays]


def _start_address(array: int | NDArray[Any] | GpuArrayView) -> int | None:
    if isinstance(array, int):
        return array
    if isinstance(array, np.ndarray):
        return address_of(array) if array.flags.c_contiguous else None
    return array.address


def check_apart(
    bindings: Sequence[Binding], starts: Sequence[int | None], sizes: Sequence[int]
) -> None:
    """Check that no output shares memory with an input or another output.

    Kernels write outputs while they still read inputs, so an overlap would give wrong results.

    Args:
        bindings: the engine's bindings.
        starts: address of the array of each binding; None where a copy is read.
        sizes: bytes of each binding that a run reads or writes.

    Raises:
        BindingError: two bindings overlap; the message names both.
    """
    rows = sorted(
        (begin, begin + size, number)
        for number, (begin, size) in enumerate(zip(starts, sizes, strict=True))
        if begin is not None and size
    )
    last: dict[bool, tuple[int, Binding]] = {}
    for start, end, number in rows:
        binding = bindings[number]
        for other_end, other in last.values():
            if start < other_end and not (other.is_input and binding.is_input):
                raise BindingError(
                    f"{binding.name} and {other.name} share memory, and an output must not "
                    "overlap other bindings; give each output its own array"
                )
        if binding.is_input not in last or last[binding.is_input][0] < end:
            last[binding.is_input] = end, binding


def _as_numpy(value: object, binding: Binding, *, is_written: bool) -> NDArray[Any]:
    """Return any supported array as a numpy array on the same memory."""
    if type(value) is np.ndarray:
        return value
    with application_errors(partial(unreadable, binding)):
        if is_array(value):
            # A subclass may override shape and dtype; a base-class view has numpy's own.
            return np.asarray(value)
        return _import(value, binding, is_written=is_written)


def unreadable(binding: Binding, reason: str) -> BindingError:
    """Return the error for an array whose own methods raised one."""
    return BindingError(f"{binding.name}: the array cannot be read: {reason}")


def _import(value: object, binding: Binding, *, is_written: bool) -> NDArray[Any]:
    """Import an array by DLPack, or by numpy's protocols if it does not support DLPack."""
    device_query = getattr(value, "__dlpack_device__", None)
    if device_query is None:
        # numpy would copy a list, and kernels would write to the copy.
        return np.asarray(_writable_buffer(value, binding) if is_written else value)
    kind, number = device_query()
    if kind not in _HOST_KINDS:
        raise BindingError(
            f"{binding.name}: the array is on device {number} of DLPack device type {int(kind)}; "
            "copy it to the host first"
        )
    return _from_dlpack(value)


def _writable_buffer(value: Any, binding: Binding) -> memoryview:
    try:
        return memoryview(value)
    except TypeError as error:
        raise BindingError(
            f"{binding.name}: an output must be a writable array, not {type(value).__name__}; "
            f"allocate it with np.empty(shape, {str(binding.dtype.numpy)!r})"
        ) from error


def _from_dlpack(value: Any) -> NDArray[Any]:
    """Import by DLPack; bfloat16 torch tensors go by int16, as numpy's DLPack lacks bfloat16."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor) and value.dtype == torch.bfloat16:
        bits: NDArray[Any] = np.from_dlpack(value.view(torch.int16))
        return bits.view(DType.BFLOAT16.numpy)
    return np.from_dlpack(value)


def _dtype_error(array: NDArray[Any], binding: Binding) -> BindingError:
    """Return the error for an array of the wrong dtype or byte order."""
    expected = binding.dtype.numpy
    if not array.dtype.isnative and array.dtype.newbyteorder("=") == expected:
        return BindingError(
            f"{binding.name}: the array is not in native byte order; convert it with "
            "array.astype(array.dtype.newbyteorder('='))"
        )
    advice = (
        f"convert it with array.astype({str(expected)!r})"
        if binding.is_input
        else f"allocate the output with np.empty(shape, {str(expected)!r})"
    )
    return BindingError(
        f"{binding.name}: the array has dtype {array.dtype}, expected {binding.dtype.value}; "
        f"{advice}"
    )


def address_of(array: NDArray[Any]) -> int:
    """Return the address of the array's first element."""
    address: int = array.__array_interface__["data"][0]
    return address


def trimmed(extents: Shape, array: NDArray[Any], values: Mapping[str, int]) -> NDArray[Any]:
    """Return the part of an output that a run with data-dependent sizes has filled."""
    shape = [evaluate_dim(dim, values) for dim in extents]
    if tuple(shape) == array.shape:
        return array
    return array.reshape(-1)[: prod(shape)].reshape(shape)


def library_of(value: object) -> Any:
    """Return the module whose ``from_dlpack`` makes arrays like ``value``; None if none does."""
    module: Any = type(value).__module__  # an application may set it to anything
    root = module.partition(".")[0] if isinstance(module, str) else ""
    library: Any = sys.modules.get(_DLPACK_MODULES.get(root, root))
    return None if root == "numpy" or not hasattr(library, "from_dlpack") else library


def exporter_for(values: object) -> Callable[[NDArray[Any], DType], Any] | None:
    """Return a function that converts results to the library of ``values``; None for numpy."""
    if isinstance(values, np.ndarray):
        return None
    library = library_of(values)
    if library is None or not hasattr(values, "__dlpack__"):
        return None

    def refused(reason: str) -> BindingError:
        name = library.__name__
        return BindingError(
            f"{name} cannot import the outputs: {reason}; pass numpy arrays as inputs"
        )

    def export(array: NDArray[Any], dtype: DType) -> Any:  # returns an array of that library
        with application_errors(refused):
            if dtype is not DType.BFLOAT16:
                return library.from_dlpack(array)
            if library.__name__ == "torch":  # numpy's DLPack has no bfloat16
                return library.from_dlpack(array.view(np.int16)).view(library.bfloat16)
            return library.asarray(array)

    return export
