"""What a GPU's multiprocessor gives an engine's kernels, as their machine code says."""

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


class CubinReader:
    """Reads the kernels of one engine, and no more bytes than a sound one can have."""

    def __init__(self, header: EngineHeader, code: bytes) -> None:
        self._code = code
        self._offsets = dict(header.symbols)
        names = header.fingerprint.architecture.split(",")
        self._architectures = names[:_MAX_ARCHITECTURES]
        # Sound records lie side by side; in others, each could hold all that follow.
        self._budget = len(code)

    def codes(self, symbol: str) -> tuple[CodeReport, ...]:
        """What a kernel takes on each architecture."""
        return tuple(self._code_of(symbol, n) for n in range(len(self._architectures)))

    def _code_of(self, symbol: str, place: int) -> CodeReport:
        name = self._architectures[place]
        if symbol not in self._offsets:
            return CodeReport(name, problem="the engine has no code for it")
        if self._budget < 0:
            return CodeReport(name, problem="kernels overlap")
        try:
            kernel = read_record(self._code, self._offsets[symbol], place)
        except EngineFormatError as error:
            return CodeReport(name, problem=str(error))
        if isinstance(kernel, LibraryCall):
            called = LIBRARIES[kernel.provider].of_version(kernel.version)
            return CodeReport(name, problem=f"it is a call of {called}")
        self._budget -= len(kernel.cubin)
        return _code_report(name, kernel)


def _code_report(name: str, kernel: CudaKernel) -> CodeReport:
    try:
        found = resources_of(kernel.cubin, kernel.entry)
    except EngineFormatError as error:
        return CodeReport(
            name,
            kernel.threads,
            dynamic_shared_bytes=kernel.dynamic_shared_bytes,
            problem=str(error),
        )
    limits = {f"sm_{number}": one for number, one in SM_RESOURCES.items()}.get(name)
    blocks, limited_by = None, ""
    if limits is not None:
        shared = found.static_shared_bytes + kernel.dynamic_shared_bytes
        blocks, limited_by = limits.resident_blocks(kernel.threads, found.registers, shared)
    return CodeReport(
        architecture=name,
        threads=kernel.threads,
        registers=found.registers,
        static_shared_bytes=found.static_shared_bytes,
        dynamic_shared_bytes=kernel.dynamic_shared_bytes,
        local_bytes=found.local_bytes,
        code_bytes=found.code_bytes,
        blocks=blocks,
        occupancy=None if limits is None else (blocks or 0) * kernel.threads / limits.threads,
        limited_by=limited_by,
        problem="" if limits is not None else f"the resources of {name} are not known",
    )
