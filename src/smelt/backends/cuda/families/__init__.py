"""Kernel families of the CUDA backend, one per file; the backend lists them."""

__all__: list[str] = []
