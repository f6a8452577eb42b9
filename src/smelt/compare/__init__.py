"""Comparison of engines with a reference: errors, first differing layer, smallest failing part."""

from smelt.compare._compare import Comparison, Reduction, compare
from smelt.compare._error_metrics import OutputError, measure_error
from smelt.compare._export import model_from_graph
from smelt.compare._inputs import load_input, load_inputs
from smelt.compare._layers import LayerDifference
from smelt.compare._oracle import ORACLES, check_oracle
from smelt.compare._reduce import reduce_graph

__all__ = [
    "ORACLES",
    "Comparison",
    "LayerDifference",
    "OutputError",
    "Reduction",
    "check_oracle",
    "compare",
    "load_input",
    "load_inputs",
    "measure_error",
    "model_from_graph",
    "reduce_graph",
]
