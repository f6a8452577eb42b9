"""The native runtime of an engine: mapped functions of generated code, callable from Python."""

from __future__ import annotations

import ctypes
import hashlib
import time
from typing import TYPE_CHECKING, Final

from smelt.devices.cpu import _abi as abi
from smelt.devices.cpu._mapped_code import MappedCode
from smelt.errors import EngineFormatError
from smelt.types import ForkLock

if TYPE_CHECKING:
    from collections.abc import Mapping

_POINTER: Final = ctypes.c_void_p
_INT: Final = ctypes.c_int64

_REQUIRED: Final = (abi.BEGIN, abi.CLOSE, abi.RUN, abi.CLOCK)
_CALIBRATION_NS: Final = 5_000_000
"""Minimum time over which the tick length is measured."""

_lock = ForkLock()
_mapped: dict[bytes, NativeRuntime] = {}


class NativeRuntime:
    """Run loop, worker loop and clock; `native_runtime` maps it until the process ends."""

    def __init__(self, image: bytes, symbols: Mapping[str, int]) -> None:
        self._code = MappedCode(image)
        at = {name: self._code.address + offset for name, offset in symbols.items()}
        self.begin = ctypes.CFUNCTYPE(_INT, _POINTER)(at[abi.BEGIN])
        self.close = ctypes.CFUNCTYPE(None, _POINTER)(at[abi.CLOSE])
        self.run = ctypes.CFUNCTYPE(None, _POINTER, _INT, _INT)(at[abi.RUN])
        self.clock = ctypes.CFUNCTYPE(_INT)(at[abi.CLOCK])
        self.has_workers = {abi.EXECUTE, abi.WORKER, abi.POST} <= symbols.keys()
        """Whether workers sleep in native code; otherwise they wait in Python."""
        if self.has_workers:
            self.execute = ctypes.CFUNCTYPE(None, _POINTER, _POINTER, _INT)(at[abi.EXECUTE])
            self.worker = ctypes.CFUNCTYPE(None, _POINTER)(at[abi.WORKER])
            self.post = ctypes.CFUNCTYPE(None, _POINTER, _POINTER, _INT, _INT)(at[abi.POST])
        self._clock_origin = (int(self.clock()), time.perf_counter_ns())

    def milliseconds_per_tick(self) -> float:
        """Return the milliseconds per clock tick, measured since the runtime was mapped."""
        ticks_before, ns_before = self._clock_origin
        while (ns_now := time.perf_counter_ns()) - ns_before < _CALIBRATION_NS:
            time.sleep(_CALIBRATION_NS / 1e9)
        return (ns_now - ns_before) / 1e6 / max(1, int(self.clock()) - ticks_before)


def native_runtime(image: bytes, symbols: Mapping[str, int]) -> NativeRuntime:
    """Return the runtime in ``image``, mapped once per process and never unmapped.

    It is never unmapped because workers sleep in its code.

    Raises:
        EngineFormatError: a function is missing or lies outside the image.
        DeviceError: the system does not permit executable memory.
    """
    for name in _REQUIRED:
        if name not in symbols:
            raise EngineFormatError(
                f"the engine's native runtime has no function {name!r}; build the engine again"
            )
    if any(not 0 <= offset < len(image) for offset in symbols.values()):
        raise EngineFormatError(
            "a function of the engine's native runtime lies outside its code; build the engine "
            "again"
        )
    key = hashlib.sha256(repr(sorted(symbols.items())).encode() + image).digest()
    with _lock:
        if key not in _mapped:
            _mapped[key] = NativeRuntime(image, symbols)
        return _mapped[key]
