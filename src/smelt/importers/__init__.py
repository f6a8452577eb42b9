"""Files become networks: ``smelt.importers.caffe`` and ``smelt.importers.onnx``, each on demand.

``network_from_caffe`` and ``network_from_onnx`` give a `NetworkDefinition`; the rooms below give
the graph itself. A program pays only for the format that it reads.
"""

from smelt.importers._networks import network_from_caffe, network_from_onnx

__all__ = ["network_from_caffe", "network_from_onnx"]
