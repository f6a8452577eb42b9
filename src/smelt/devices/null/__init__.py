"""The null device, which computes nothing: engines load and run on it, and results are zeros.

It replaces a real device to measure the overhead of a context without kernels, or to check an
engine for another CPU.
"""

from smelt.devices.null._device import NullMemory, NullRunList

__all__ = ["NullMemory", "NullRunList"]
