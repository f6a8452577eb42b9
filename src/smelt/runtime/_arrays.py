"""Arrays in and out: whatever speaks DLPack or numpy's protocols, and nothing is ever cast."""

from __future__ import annotations

import sys
from math import prod
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from smelt.errors import BindingError
from smelt.types import DType, evaluate_dim

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from smelt.engine import Binding

_HOST_KINDS: Final = frozenset({1, 3})
"""DLPack's device kinds whose memory a processor reads: its own, and CUDA's pinned."""

_HOMES: Final = {"jax": "jax.numpy", "jaxlib": "jax.numpy"}
"""Modules that know DLPack, of libraries whose outermost module does not."""


def array_from_value(value: object, binding: Binding, wanted: np.dtype[Any]) -> NDArray[Any]:
    """Return ``value`` as an array of the binding's dtype, in its own memory.

    Raises:
        BindingError: it is no array, lies on another device, or has another dtype.
    """
    array = _as_numpy(value, binding)
    if array.dtype != wanted:
        array = _same_bits(array, binding)
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
    array = _as_numpy(value, binding)
    if array.dtype != wanted:
        array = _same_bits(array, binding)
    flags = array.flags
    if not (flags.c_contiguous and flags.aligned and flags.writeable):
        raise BindingError(
            f"{binding.name}: an output is written in place, so its array must be contiguous, "
            "aligned and writable"
        )
    return array


def _as_numpy(value: object, binding: Binding) -> NDArray[Any]:
    return cast("NDArray[Any]", value) if isinstance(value, np.ndarray) else _import(value, binding)


def _import(value: object, binding: Binding) -> NDArray[Any]:
    where = getattr(value, "__dlpack_device__", None)
    if where is None:
        try:
            return np.asarray(value)
        except ValueError as error:  # lists whose lengths differ
            raise BindingError(f"{binding.name}: this is no array: {error}") from error
    kind, number = where()
    if kind not in _HOST_KINDS:
        raise BindingError(
            f"{binding.name}: the array lies on device {number} of DLPack's kind {int(kind)}; "
            "copy it to the host first"
        )
    try:
        return np.from_dlpack(_plain(value, binding))
    except (BufferError, RuntimeError, TypeError) as error:
        raise BindingError(f"{binding.name}: the array cannot be read: {error}") from error


def _plain(value: Any, binding: Binding) -> Any:  # an array of any library
    """A torch bfloat16 tensor as its bits: numpy has no such type."""
    torch = sys.modules.get("torch")
    if binding.dtype is DType.BFLOAT16 and torch is not None and isinstance(value, torch.Tensor):
        return value.view(torch.int16) if value.dtype == torch.bfloat16 else value
    return value


def _same_bits(array: NDArray[Any], binding: Binding) -> NDArray[Any]:
    wanted = binding.dtype.numpy
    if binding.dtype is DType.BFLOAT16 and array.dtype.name in {"bfloat16", "int16"}:
        return array.view(np.uint16)
    if array.dtype.newbyteorder("=") == wanted:
        raise BindingError(
            f"{binding.name}: the array has foreign byte order; "
            "convert it with array.astype(array.dtype.newbyteorder('='))"
        )
    advice = (
        f"convert it with array.astype({str(wanted)!r}) if that is what you want"
        if binding.is_input
        else f"an output is written in place, so allocate it with np.empty(shape, {str(wanted)!r})"
    )
    raise BindingError(
        f"{binding.name}: the array has dtype {array.dtype}, and {binding.dtype.value} is needed; "
        f"{advice}"
    )


def address_of(array: NDArray[Any]) -> int:
    """Return where the array's first element lies."""
    address: int = array.__array_interface__["data"][0]
    return address


def trimmed(binding: Binding, array: NDArray[Any], values: Mapping[str, int]) -> NDArray[Any]:
    """The part of an output that a run with data-dependent sizes has filled."""
    shape = [evaluate_dim(dim, values) for dim in binding.shape]
    if tuple(shape) == array.shape:
        return array
    return array.reshape(-1)[: prod(shape)].reshape(shape)


def library_of(value: object) -> Any:
    """Return the module that makes arrays like ``value`` from DLPack's; None for numpy, or none."""
    root = type(value).__module__.partition(".")[0]
    library: Any = sys.modules.get(_HOMES.get(root, root))
    return None if root == "numpy" or not hasattr(library, "from_dlpack") else library


def exporter_for(values: object) -> Callable[[NDArray[Any], DType], Any] | None:
    """Return what makes a result an array of the same library as ``values``; None for numpy."""
    if isinstance(values, np.ndarray):
        return None
    library = library_of(values)
    if library is None or not hasattr(values, "__dlpack__"):
        return None

    def export(array: NDArray[Any], dtype: DType) -> Any:  # an array of that library
        if dtype is DType.BFLOAT16 and library.__name__ == "torch":
            return library.from_dlpack(array.view(np.int16)).view(library.bfloat16)
        return library.from_dlpack(array)

    return export
