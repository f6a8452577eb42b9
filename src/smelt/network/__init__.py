"""The network definition API: networks built layer by layer, or filled by an importer.

A network holds weights by reference: an array that is passed in is neither copied nor changed, and
must live as long as the network. Errors name the line of the caller's file that caused them.
"""

from smelt.network._layers import NetworkDefinition
from smelt.network._tensor import Layer, Tensor

__all__ = ["Layer", "NetworkDefinition", "Tensor"]
