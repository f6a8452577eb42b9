"""The definition API: networks made layer by layer, or taken over from an importer.

A network holds weights by reference: an array handed to it is neither copied nor changed, and lives
as long as the network does. An error names the line of the caller's file that caused it.
"""

from smelt.network._definition import NetworkDefinition
from smelt.network._tensor import Layer, Tensor

__all__ = ["Layer", "NetworkDefinition", "Tensor"]
