"""cuDNN's backend interface: descriptors with typed attributes.

Source: cuDNN backend library reference, "cudnn_graph Library"; numbers as in its headers.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Final

from smelt.devices.cuda._vendor_libraries import LibraryError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CUDNN: Final = "cuDNN"
Attribute = tuple[int, int]
"""Number and type of an attribute."""

# Types of attributes, with their types in C.
HANDLE, DATA_TYPE, BOOLEAN, INT64, FLOAT, POINTER = 0, 1, 2, 3, 4, 6
CORRELATION_MODE, HEURISTIC, KNOB, NUMERICS, POINTWISE, DESCRIPTOR = 7, 8, 9, 11, 14, 15
_C_TYPES: Final[Mapping[int, Any]] = {
    **dict.fromkeys((HANDLE, POINTER, DESCRIPTOR), ctypes.c_void_p),
    **dict.fromkeys(
        (DATA_TYPE, CORRELATION_MODE, HEURISTIC, KNOB, NUMERICS, POINTWISE), ctypes.c_int
    ),
    BOOLEAN: ctypes.c_bool,
    INT64: ctypes.c_int64,
    FLOAT: ctypes.c_float,
}

_STATUSES: Final = {
    1001: "NOT_INITIALIZED",
    1002: "SUBLIBRARY_VERSION_MISMATCH",
    1008: "SUBLIBRARY_LOADING_FAILED",
    2000: "BAD_PARAM",
    3000: "NOT_SUPPORTED",
    3007: "NOT_SUPPORTED_ARCH_MISMATCH",
    3008: "NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING",
    4000: "INTERNAL_ERROR",
    4003: "INTERNAL_ERROR_HOST_ALLOCATION_FAILED",
    4004: "INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    5000: "EXECUTION_FAILED",
}
_GROUP: Final = 1000
"""Size of the range of statuses of one kind."""
_REFUSALS: Final = (2, 3)
"""Kinds of statuses by which the library refuses a graph or a plan."""

_WORD, _INT = ctypes.c_void_p, ctypes.c_int
FUNCTIONS: Final[Mapping[str, Sequence[Any]]] = {
    "cudnnCreate": (_WORD,),
    "cudnnDestroy": (_WORD,),
    "cudnnSetStream": (_WORD, _WORD),
    "cudnnBackendCreateDescriptor": (_INT, _WORD),
    "cudnnBackendDestroyDescriptor": (_WORD,),
    "cudnnBackendSetAttribute": (_WORD, _INT, _INT, ctypes.c_int64, _WORD),
    "cudnnBackendGetAttribute": (_WORD, _INT, _INT, ctypes.c_int64, _WORD, _WORD),
    "cudnnBackendFinalize": (_WORD,),
    "cudnnBackendExecute": (_WORD, _WORD, _WORD),
}
"""Argument types of each function; each returns a status."""


class CudnnError(LibraryError):
    """cuDNN reported that a call failed."""

    def __init__(self, what: str, status: int) -> None:
        kind = _STATUSES.get(status // _GROUP * _GROUP, "an undocumented status")
        super().__init__(CUDNN, what, status, _STATUSES.get(status, kind))


class CudnnRefusal(CudnnError):
    """cuDNN refused a graph or an engine, as opposed to reporting an error of its own."""


class Descriptors:
    """Descriptors of the library that are destroyed together."""

    def __init__(self, api: Any) -> None:
        self._api = api
        self._live: list[int] = []

    def new(self, kind: int, *attributes: tuple[Attribute, Sequence[Any]]) -> int:
        """Create a finalised descriptor from its attributes and their values."""
        descriptor = self._blank(kind)
        for (attribute, type_), values in attributes:
            content = (_C_TYPES[type_] * len(values))(*values)
            where = ctypes.addressof(content)
            arguments = descriptor, attribute, type_, len(values), where
            call_api(self._api, "cudnnBackendSetAttribute", *arguments)
        call_api(self._api, "cudnnBackendFinalize", descriptor)
        return descriptor

    def read(self, descriptor: int, attribute: Attribute, most: int = 1) -> list[Any]:
        """Return the values of an attribute, at most ``most`` of them."""
        content = (_C_TYPES[attribute[1]] * most)()
        return list(content[: self._got(descriptor, attribute, content)])

    def filled(
        self, descriptor: int, attribute: Attribute, kind: int, most: int | None = None
    ) -> list[int]:
        """Return an attribute's descriptors of a kind; the library fills empty descriptors.

        The library does not report the number for some attributes in advance; these need ``most``.
        """
        if most is None:
            most = self._got(descriptor, attribute, (ctypes.c_void_p * 0)())
        blanks = (ctypes.c_void_p * most)(*(self._blank(kind) for _ in range(most)))
        count = self._got(descriptor, attribute, blanks) if most else 0
        return [blank for blank in blanks[:count] if blank is not None]

    def _blank(self, kind: int) -> int:
        descriptor = ctypes.c_void_p()
        call_api(self._api, "cudnnBackendCreateDescriptor", kind, ctypes.addressof(descriptor))
        self._live.append(descriptor.value or 0)
        return self._live[-1]

    def _got(self, descriptor: int, attribute: Attribute, content: Any) -> int:
        """Return the number of values of an attribute; as many of them as fit are written."""
        count = ctypes.c_int64()
        where = ctypes.addressof(content) if len(content) else None
        arguments = descriptor, *attribute, len(content), ctypes.addressof(count), where
        call_api(self._api, "cudnnBackendGetAttribute", *arguments)
        return int(count.value)

    def kept(self) -> Descriptors:
        """Return a new owner of all descriptors; they are not destroyed with this object."""
        other = Descriptors(self._api)
        other._live, self._live = self._live, []
        return other

    def close(self) -> None:
        """Destroy the descriptors; a second call has no effect."""
        while self._live:
            self._api.cudnnBackendDestroyDescriptor(self._live.pop())


def call_api(api: Any, name: str, *arguments: Any) -> None:
    status = getattr(api, name)(*arguments)
    if status:
        raise (CudnnRefusal if status // _GROUP in _REFUSALS else CudnnError)(name, status)
