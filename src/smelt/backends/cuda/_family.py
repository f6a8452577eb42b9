"""Base class of the kernel families for GPUs: what their kernels support, as flags."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from smelt.backends._base import Family
from smelt.backends.cuda._target import CudaTarget
from smelt.types import override

if TYPE_CHECKING:
    from smelt.backends.cuda._kernel_source import KernelWriter
    from smelt.engine import KernelSpec


class CudaFamily(Family[CudaTarget]):
    """Family of kernels for GPUs. The backend asks for these flags and never for a name."""

    supports_reduced_precision: ClassVar[bool] = True
    writer: ClassVar[type[KernelWriter]]
    """Writer of the family's kernels, unless `writer_of` chooses among several."""
    uses_int32_offsets: ClassVar[bool] = False
    """Whether kernels compute offsets in 32 bits, so that larger tensors are refused."""
    supports_reversed_tiles: ClassVar[bool] = False
    """Whether kernels can process their tiles last to first."""
    excludes_other_families: ClassVar[bool] = False
    """Whether a node for which the family has tactics is offered no others."""
    has_fixed_types: ClassVar[bool] = False
    """Whether a tactic is for the types that its operands had when it was listed."""

    @override
    def generate(self, kernel: KernelSpec, target: CudaTarget) -> str:
        return self.writer_of(kernel)(kernel).write()

    def writer_of(self, kernel: KernelSpec) -> type[KernelWriter]:
        """Return the writer of a kernel's text."""
        del kernel
        return self.writer
