"""One file per family of kernels; the backend lists them."""

__all__: list[str] = []
