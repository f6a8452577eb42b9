"""Kernel families of the CPU backend, one file per family; `CpuBackend` lists them."""

__all__: list[str] = []
