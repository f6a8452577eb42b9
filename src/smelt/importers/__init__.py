"""Importers of Caffe and ONNX models; each format is loaded on first use.

``network_from_caffe`` and ``network_from_onnx`` return a `NetworkDefinition`. The subpackages
return the graph itself, and ``read_onnx`` returns the ONNX message for another engine.
"""

from smelt.importers._networks import network_from_caffe, network_from_onnx, read_onnx

__all__ = ["network_from_caffe", "network_from_onnx", "read_onnx"]
