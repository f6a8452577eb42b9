"""Importers of Caffe and ONNX models; each format is loaded on first use.

``network_from_caffe`` and ``network_from_onnx`` return a `NetworkDefinition`. The subpackages
return the graph itself, ``read_onnx`` returns the ONNX message for another engine, and
``external_files`` names the files that an ONNX model consists of besides its own.
"""

from smelt.importers._import_network import (
    external_files,
    network_from_caffe,
    network_from_onnx,
    read_onnx,
)

__all__ = ["external_files", "network_from_caffe", "network_from_onnx", "read_onnx"]
