"""Access to a device that Linux's UIO maps into this process, and to memory reserved for it.

``/dev/uioN`` provides a register window and, when read, the number of interrupts. A 1 must be
written to it before it reports the next interrupt. The interrupt line stays asserted until the
firmware clears the status, so an interrupt that arrives in between is not lost.
"""

from __future__ import annotations

import mmap
import os
import select
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from smelt.nvdla._errors import NvdlaError, NvError
from smelt.signal_errors import pass_on_handler_error
from smelt.types import Closeable, override

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from typing_extensions import Buffer

    from smelt.nvdla._protocols import MemorySpace

_WORD_BYTES: Final = 4
"""Size of a register, and of an interrupt count."""
_ENABLE: Final = (1).to_bytes(_WORD_BYTES, "little")
"""Value that enables the next interrupt when it is written to the device."""


class _Mapping:
    """A mapped window of a device file."""

    def __init__(self, path: str | Path, size_bytes: int, offset: int) -> None:
        flags = os.O_RDWR | os.O_CLOEXEC | getattr(os, "O_SYNC", 0)
        try:
            self.file = os.open(path, flags)
        except OSError as error:
            pass_on_handler_error(error)
            raise NvError.DEVICE_NOT_FOUND.error(
                f"cannot open the device {path}: {error.strerror}; check that its driver is loaded "
                "and that you have permission to open it"
            ) from error
        try:
            self._map = mmap.mmap(self.file, size_bytes, offset=offset)
        except (OSError, ValueError) as error:
            os.close(self.file)
            pass_on_handler_error(error)
            raise NvError.RESOURCE_ERROR.error(
                f"cannot map {size_bytes} bytes of {path} at offset {offset:#x}: {error}"
            ) from error
        self.view = memoryview(self._map)

    def close(self) -> None:
        if not self._map.closed:
            self.view.release()
            self._map.close()
            os.close(self.file)


class UioBus(Closeable):
    """`RegisterBus` of a mapped device."""

    def __init__(
        self,
        path: str | Path,
        size_bytes: int,
        *,
        map_number: int = 0,
        interrupt_file: int | None = None,
    ) -> None:
        """Map a device's registers.

        Args:
            path: Path of the device, such as ``/dev/uio0``.
            size_bytes: Size of the register window in bytes.
            map_number: Number of the device's window that holds the registers.
            interrupt_file: File descriptor to read interrupts from; by default the device.

        Raises:
            NvdlaError: DEVICE_NOT_FOUND if the device cannot be opened; RESOURCE_ERROR if it
                cannot be mapped.
        """
        self._path = path
        self._mapping = _Mapping(path, size_bytes, map_number * mmap.PAGESIZE)
        # Registers support only 32-bit accesses.
        self._words = self._mapping.view[: size_bytes - size_bytes % _WORD_BYTES].cast("I")
        self._interrupts = self._mapping.file if interrupt_file is None else interrupt_file

    @override
    def close(self) -> None:
        """Unmap the device."""
        self._words.release()
        self._mapping.close()

    def read(self, address: int, /) -> int:
        """Return the 32-bit register at a byte address."""
        return self._words[self._index(address)]

    def write(self, address: int, value: int, /) -> None:
        """Set the 32-bit register at a byte address."""
        self._words[self._index(address)] = value

    def wait_for_interrupt(self, timeout_s: float, /) -> bool:
        """Wait until the interrupt line is asserted; return False after ``timeout_s`` seconds."""
        deadline_s = time.monotonic() + timeout_s
        try:
            os.write(self._interrupts, _ENABLE)
            remaining_s = max(deadline_s - time.monotonic(), 0)
            ready, _, _ = select.select([self._interrupts], [], [], remaining_s)
            if not ready:
                return False
            count = os.read(self._interrupts, _WORD_BYTES)
        except OSError as error:
            pass_on_handler_error(error)
            raise NvError.DISCONNECTED.error(
                f"the device {self._path} is no longer available: {error.strerror}"
            ) from error
        if len(count) != _WORD_BYTES:
            raise NvError.DISCONNECTED.error(
                f"the device {self._path} no longer reports interrupts"
            )
        return True

    def _index(self, address: int) -> int:
        if address % _WORD_BYTES or not 0 <= address < len(self._words) * _WORD_BYTES:
            raise NvError.INVALID_ADDRESS.error(
                f"there is no register at {address:#x}: the window of {self._path} has "
                f"{len(self._words)} registers of {_WORD_BYTES} bytes"
            )
        return address // _WORD_BYTES


class DmaRegion(NamedTuple):
    """Memory that both the accelerator and this process can access."""

    space: MemorySpace
    address: int
    """Physical address, as the accelerator uses it."""
    size_bytes: int
    path: str | Path
    """File that maps the memory, such as the device of a reserved buffer."""
    offset: int = 0
    """Offset of the memory in the file; a multiple of the page size."""


class UioMemory(Closeable):
    """`DmaMemory` of mapped regions."""

    def __init__(self, regions: Sequence[DmaRegion]) -> None:
        """Map regions.

        Raises:
            NvdlaError: DEVICE_NOT_FOUND if a file cannot be opened; RESOURCE_ERROR if it cannot be
                mapped.
        """
        self._regions: list[tuple[DmaRegion, _Mapping]] = []
        try:
            for region in regions:
                mapping = _Mapping(region.path, region.size_bytes, region.offset)
                self._regions.append((region, mapping))
        except NvdlaError:
            self.close()
            raise

    @override
    def close(self) -> None:
        """Unmap all regions."""
        for _, mapping in self._regions:
            mapping.close()
        self._regions.clear()

    def read(self, space: MemorySpace, address: int, size_bytes: int, /) -> bytes:
        """Return a copy of a byte range; raise NvdlaError(INVALID_ADDRESS) outside the regions."""
        return bytes(self._window(space, address, size_bytes))

    def write(self, space: MemorySpace, address: int, data: Buffer, /) -> None:
        """Write a byte range; raise NvdlaError(INVALID_ADDRESS) outside the regions."""
        source = memoryview(data).cast("B")
        self._window(space, address, source.nbytes)[:] = source

    def _window(self, space: MemorySpace, address: int, size_bytes: int) -> memoryview:
        """Return a view of a byte range, which must lie in one region."""
        for region, mapping in self._regions:
            start = address - region.address
            fits = start >= 0 and 0 <= size_bytes <= region.size_bytes - start
            if region.space == space and fits:
                return mapping.view[start : start + size_bytes]
        raise NvError.INVALID_ADDRESS.error(
            f"{space.name} bytes {address:#x} to {address + size_bytes:#x} are not in a mapped "
            "region"
        )
