"""A model of more messages or fields than any network has is refused before they are made."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from smelt.errors import ModelFormatError
from smelt.importers.onnx import import_onnx
from smelt.types import Limit
from tests.importers.onnx.one_node import float_info

_NODE, _ATTRIBUTE, _TENSOR, _NAME = b"\x0a\x00", b"\x2a\x00", b"\x2a\x00", b"\x12\x00"
_DIM_OF_ONE = b"\x08\x01"


def _graph_of(content: bytes) -> bytes:
    return b"\x3a" + _size(len(content)) + content


def _node_of(content: bytes) -> bytes:
    return b"\x0a" + _size(len(content)) + content


def _size(value: int) -> bytes:
    head = b""
    while value >= 0x80:
        head += bytes([value & 0x7F | 0x80])
        value >>= 7
    return head + bytes([value])


def _never_parses(*_: object) -> None:
    raise AssertionError("protobuf was given the file")


@pytest.mark.parametrize(
    "data",
    [
        _graph_of(_NODE * 2000),
        _graph_of(_TENSOR * 2000),
        _graph_of(_node_of(_ATTRIBUTE * 2000)),
        _graph_of(_node_of(_ATTRIBUTE * 600) * 2),
    ],
    ids=["nodes", "initializers", "attributes of one node", "of two nodes"],
)
def test_a_model_of_too_many_messages_is_refused_before_it_is_parsed(
    data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Limit.MAX_MODEL_MESSAGES, "most", 1000)
    monkeypatch.setattr(onnx.ModelProto, "ParseFromString", _never_parses)
    with pytest.raises(ModelFormatError, match="MAX_MODEL_MESSAGES is 1,000"):
        import_onnx(data)


@pytest.mark.parametrize("content", [_NAME, _DIM_OF_ONE], ids=["texts", "numbers"])
def test_a_model_of_too_many_fields_is_refused_before_it_is_parsed(
    content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Limit.MAX_MODEL_MESSAGES, "most", 1000)
    monkeypatch.setattr(Limit.MAX_MODEL_FIELDS, "most", 1500)
    monkeypatch.setattr(onnx.ModelProto, "ParseFromString", _never_parses)
    with pytest.raises(ModelFormatError, match="MAX_MODEL_FIELDS is 1,500"):
        import_onnx(_graph_of(_node_of(content * 2000)))


@pytest.mark.parametrize(
    "rest", [b"\x3a\x05\x00", b"\x0b\x0c", b"\x00\x00", b"\x80" * 11, b"\x3d\x00"]
)
def test_a_large_model_that_is_damaged_is_refused(
    rest: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Limit.MAX_MODEL_MESSAGES, "most", 0)
    with pytest.raises(ModelFormatError, match="not an ONNX model, or is truncated or damaged"):
        import_onnx(b"\x08\x08" + rest)


def test_weights_are_no_messages_whatever_bytes_they_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen messages: graph, node, opset, tensor, and two values of six each."""
    weight = np.frombuffer(_NODE * 20_000, np.float32)
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        "weights",
        [float_info("x", weight.shape)],
        [float_info("y", weight.shape)],
        [numpy_helper.from_array(weight, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    monkeypatch.setattr(Limit.MAX_MODEL_MESSAGES, "most", 16)
    assert len(import_onnx(model.SerializeToString()).nodes) == 1


def test_zeros_that_fill_a_file_are_refused_at_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Limit.MAX_MODEL_MESSAGES, "most", 1000)
    monkeypatch.setattr(Limit.MAX_MODEL_FIELDS, "most", 2)
    with pytest.raises(ModelFormatError, match="not an ONNX model, or is truncated or damaged"):
        import_onnx(b"\x08\x08" + bytes(10_000))
