"""The model that benchmarks are tried on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from onnx import TensorProto, helper

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A small network with a free batch."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 8])
    node = helper.make_node("Relu", ["x"], ["y"], name="act")
    graph = helper.make_graph([node], "tiny", [x], [y])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (tmp_path / "tiny.onnx").write_bytes(proto.SerializeToString())
    return tmp_path / "tiny.onnx"
