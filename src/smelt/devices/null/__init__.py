"""The device that computes nothing: engines load, bind and schedule on it, and results are zeros.

It stands in for any device where only the way to it is of interest: what a context costs without
its kernels, or whether an engine for another processor is sound.
"""

from smelt.devices.null._device import NullAllocation, NullMemory, NullRunList

__all__ = ["NullAllocation", "NullMemory", "NullRunList"]
