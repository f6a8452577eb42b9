"""Comparison of engines with a reference: errors, first differing layer, smallest failing part."""

from smelt.compare._compare import Comparison, ReducedNetwork, compare
from smelt.compare._error_metrics import OutputError
from smelt.compare._inputs import load_input, load_inputs
from smelt.compare._layers import LayerDifference
from smelt.compare._onnx_export import model_from_graph
from smelt.compare._oracle import check_oracle

__all__ = [
    "Comparison",
    "LayerDifference",
    "OutputError",
    "ReducedNetwork",
    "check_oracle",
    "compare",
    "load_input",
    "load_inputs",
    "model_from_graph",
]
