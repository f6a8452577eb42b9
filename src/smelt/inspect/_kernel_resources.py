"""Resources and occupancy of GPU kernels, read from their cubins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from smelt.devices.cuda import (
    LIBRARIES,
    SM_RESOURCES,
    CudaKernel,
    LibraryCall,
    read_record,
    resources_of,
)
from smelt.errors import EngineFormatError
from smelt.inspect._report import CodeReport

if TYPE_CHECKING:
    from smelt.engine import EngineHeader

_MAX_ARCHITECTURES: Final = 16
"""Largest number of an engine's architectures that are read."""


class CubinReader:
    """Reads the kernels of one engine, with a limit on the bytes that a damaged engine can cost."""

    def __init__(self, header: EngineHeader, code: bytes) -> None:
        self._code = code
        self._offsets = dict(header.symbols)
        names = header.fingerprint.architecture.split(",")
        self._architectures = names[:_MAX_ARCHITECTURES]
        # Valid records do not overlap, so together they are at most as large as the code. In a
        # damaged engine, each record could contain all that follow, and reading would be quadratic.
        self._budget = len(code)

    def codes(self, symbol: str) -> tuple[CodeReport, ...]:
        """Return the resources of a kernel on each architecture."""
        return tuple(self._code_of(symbol, n) for n in range(len(self._architectures)))

    def _code_of(self, symbol: str, index: int) -> CodeReport:
        """Return the resources of a kernel on the architecture of an index."""
        name = self._architectures[index]
        if symbol not in self._offsets:
            return CodeReport(name, problem="the engine has no code for this kernel")
        if self._budget < 0:
            return CodeReport(
                name, problem="the records of kernels overlap, so the engine is damaged"
            )
        try:
            kernel = read_record(self._code, self._offsets[symbol], index)
        except EngineFormatError as error:
            return CodeReport(name, problem=str(error))
        if isinstance(kernel, LibraryCall):
            library = LIBRARIES[kernel.provider].of_version(kernel.version)
            problem = f"the kernel is a call to {library}, so its resources are not shown"
            return CodeReport(name, problem=problem)
        self._budget -= len(kernel.cubin)
        return _code_report(name, kernel)


def _code_report(name: str, kernel: CudaKernel) -> CodeReport:
    """Return the resources of a kernel on an architecture, and its occupancy if that is known."""
    try:
        resources = resources_of(kernel.cubin, kernel.entry)
    except EngineFormatError as error:
        return CodeReport(
            name,
            kernel.threads,
            dynamic_shared_bytes=kernel.dynamic_shared_bytes,
            problem=str(error),
        )
    limits = {f"sm_{number}": sm for number, sm in SM_RESOURCES.items()}.get(name)
    blocks, limited_by = None, ""
    if limits is not None:
        shared = resources.static_shared_bytes + kernel.dynamic_shared_bytes
        blocks, limited_by = limits.resident_blocks(kernel.threads, resources.registers, shared)
    return CodeReport(
        architecture=name,
        threads=kernel.threads,
        registers=resources.registers,
        static_shared_bytes=resources.static_shared_bytes,
        dynamic_shared_bytes=kernel.dynamic_shared_bytes,
        local_bytes=resources.local_bytes,
        code_bytes=resources.code_bytes,
        blocks=blocks,
        occupancy=None if limits is None else (blocks or 0) * kernel.threads / limits.threads,
        limited_by=limited_by,
        problem=""
        if limits is not None
        else f"the occupancy is unknown: smelt has no multiprocessor limits for {name}",
    )
