"""Arrays in and out: whatever speaks DLPack or numpy's protocols, and nothing is ever cast."""

from __future__ import annotations

import sys
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from smelt.errors import BindingError
from smelt.types import DType, application_errors, evaluate_dim

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from smelt.engine import Binding
    from smelt.types import Shape

_HOST_KINDS: Final = frozenset({1, 3})
"""DLPack's device kinds whose memory a processor reads: its own, and CUDA's pinned."""

_DLPACK_MODULES: Final = {"jax": "jax.numpy", "jaxlib": "jax.numpy"}
"""Modules that know DLPack, of libraries whose outermost module does not."""


def array_from_value(value: object, binding: Binding, wanted: np.dtype[Any]) -> NDArray[Any]:
    """Return ``value`` as an array of the binding's dtype, in its own memory.

    Raises:
        BindingError: it is not an array, lies on another device, or has another dtype.
    """
    array = _as_numpy(value, binding)
    if array.dtype != wanted:
        raise _refusal(array, binding)
    return array


def contiguous_array(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array for kernels to read: a strided, reversed or misaligned one is copied."""
    if array.flags.c_contiguous and array.flags.aligned:
        return array
    return np.ascontiguousarray(array)


def writable_array(value: object, binding: Binding, wanted: np.dtype[Any]) -> NDArray[Any]:
    """Return ``value`` as an array whose elements are its own memory, to be written.

    Raises:
        BindingError: it is no such array, or not contiguous, or must not be written.
    """
    array = _as_numpy(value, binding, is_written=True)
    if array.dtype != wanted:
        raise _refusal(array, binding)
    flags = array.flags
    if not (flags.c_contiguous and flags.aligned and flags.writeable):
        raise BindingError(
            f"{binding.name}: an output array must be contiguous, aligned and writable"
        )
    return array


def start_addresses(arrays: Sequence[Any]) -> list[int | None]:
    """Where arrays and addresses begin; None for an array that is copied before it is read."""
    return [_start_address(array) for array in arrays]


def _start_address(array: Any) -> int | None:
    if isinstance(array, int):
        return array
    if isinstance(array, np.ndarray):
        known = cast("NDArray[Any]", array)
        return address_of(known) if known.flags.c_contiguous else None
    begin: int = array.address
    return begin


def check_apart(
    bindings: Sequence[Binding], starts: Sequence[int | None], sizes: Sequence[int]
) -> None:
    """Check that no output shares memory with an input or another output.

    Kernels write an output while they still read inputs, so the results would be others.

    Args:
        bindings: the engine's.
        starts: where the array of each begins; None where a copy is read.
        sizes: bytes that a run reads or writes of each.

    Raises:
        BindingError: two do, by name.
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


def _as_numpy(value: object, binding: Binding, *, is_written: bool = False) -> NDArray[Any]:
    if type(value) is np.ndarray:
        return value
    if isinstance(value, np.ndarray):
        # By numpy's own record of it: a subclass may say otherwise of its shape and its type.
        return np.asarray(cast("NDArray[Any]", value))
    with application_errors(partial(unreadable, binding)):
        return _import(value, binding, is_written=is_written)


def unreadable(binding: Binding, reason: str) -> BindingError:
    """The error of an array whose own methods raised one."""
    return BindingError(f"{binding.name}: the array cannot be read: {reason}")


def _import(value: object, binding: Binding, *, is_written: bool) -> NDArray[Any]:
    where = getattr(value, "__dlpack_device__", None)
    if where is None:
        # numpy would make a copy of a list, and write that.
        return np.asarray(_memory_of(value, binding) if is_written else value)
    kind, number = where()
    if kind not in _HOST_KINDS:
        raise BindingError(
            f"{binding.name}: the array is on device {number} of DLPack device type {int(kind)}; "
            "copy it to the host first"
        )
    return _from_dlpack(value)


def _memory_of(value: Any, binding: Binding) -> memoryview:
    try:
        return memoryview(value)
    except TypeError as error:
        raise BindingError(
            f"{binding.name}: an output must be a writable array, not {type(value).__name__}; "
            f"allocate it with np.empty(shape, {str(binding.dtype.numpy)!r})"
        ) from error


def _from_dlpack(value: Any) -> NDArray[Any]:
    """The memory of an array; of a torch tensor in bfloat16, too, which numpy's DLPack has not."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor) and value.dtype == torch.bfloat16:
        bits: NDArray[Any] = np.from_dlpack(value.view(torch.int16))
        return bits.view(DType.BFLOAT16.numpy)
    return np.from_dlpack(value)


def _refusal(array: NDArray[Any], binding: Binding) -> BindingError:
    wanted = binding.dtype.numpy
    if array.dtype.newbyteorder("=") == wanted:
        return BindingError(
            f"{binding.name}: the array is not in native byte order; convert it with "
            "array.astype(array.dtype.newbyteorder('='))"
        )
    advice = (
        f"convert it with array.astype({str(wanted)!r})"
        if binding.is_input
        else f"allocate the output with np.empty(shape, {str(wanted)!r})"
    )
    return BindingError(
        f"{binding.name}: the array has dtype {array.dtype}, and {binding.dtype.value} is needed; "
        f"{advice}"
    )


def address_of(array: NDArray[Any]) -> int:
    """Return where the array's first element lies."""
    address: int = array.__array_interface__["data"][0]
    return address


def trimmed(extents: Shape, array: NDArray[Any], values: Mapping[str, int]) -> NDArray[Any]:
    """The part of an output that a run with data-dependent sizes has filled."""
    shape = [evaluate_dim(dim, values) for dim in extents]
    if tuple(shape) == array.shape:
        return array
    return array.reshape(-1)[: prod(shape)].reshape(shape)


def library_of(value: object) -> Any:
    """Return the module that makes arrays like ``value`` from DLPack's; None for numpy, or none."""
    root = type(value).__module__.partition(".")[0]
    library: Any = sys.modules.get(_DLPACK_MODULES.get(root, root))
    return None if root == "numpy" or not hasattr(library, "from_dlpack") else library


def exporter_for(values: object) -> Callable[[NDArray[Any], DType], Any] | None:
    """Return what makes a result an array of the same library as ``values``; None for numpy."""
    if isinstance(values, np.ndarray):
        return None
    library = library_of(values)
    if library is None or not hasattr(values, "__dlpack__"):
        return None

    def export(array: NDArray[Any], dtype: DType) -> Any:  # an array of that library
        if dtype is not DType.BFLOAT16:
            return library.from_dlpack(array)
        if library.__name__ == "torch":  # numpy's DLPack has no bfloat16
            return library.from_dlpack(array.view(np.int16)).view(library.bfloat16)
        return library.asarray(array)

    return export
