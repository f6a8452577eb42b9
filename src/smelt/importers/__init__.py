"""Files become networks: ``smelt.importers.caffe`` and ``smelt.importers.onnx``, each on demand.

``network_from_caffe`` and ``network_from_onnx`` give a `NetworkDefinition`; the rooms below give
the graph itself, and ``read_onnx`` the message for another engine. A program pays only for the
format that it reads.
"""

from smelt.importers._networks import network_from_caffe, network_from_onnx, read_onnx

__all__ = ["network_from_caffe", "network_from_onnx", "read_onnx"]
