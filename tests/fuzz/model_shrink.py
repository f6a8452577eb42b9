"""Smaller models that may show the same: one output, fewer nodes, inputs in the middle."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import onnx
from google.protobuf.message import DecodeError
from onnx import helper as untyped_helper

from tests.fuzz.model_mutators import Mutant

if TYPE_CHECKING:
    from collections.abc import Iterator

helper: Any = untyped_helper


def smaller_models(data: bytes) -> Iterator[bytes]:
    """Models with a part of this one's nodes, the smallest parts first."""
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError:
        return
    seen = {data}
    for made in (*_by_outputs(model), *_by_inputs(model), *_without_nodes(model)):
        text = made.SerializeToString()
        if text not in seen and made.ByteSize() < model.ByteSize() + 200:
            seen.add(text)
            if _size(made) < _size(model):
                yield text


def _size(model: onnx.ModelProto) -> tuple[int, int]:
    return len(model.graph.node), len(model.graph.output) + len(model.graph.input)


def _copy(model: onnx.ModelProto) -> Any:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def _by_outputs(model: onnx.ModelProto) -> Iterator[Any]:
    """One value alone as output, early ones first."""
    names = [name for node in model.graph.node for name in node.output if name]
    for name in names:
        copy = _copy(model)
        del copy.graph.output[:]
        copy.graph.output.append(helper.make_empty_tensor_value_info(name))
        yield _pruned(copy)


def _by_inputs(model: onnx.ModelProto) -> Iterator[Any]:
    """A value in the middle as an input, late ones first."""
    mutant = Mutant(_copy(model), random.Random(0))  # noqa: S311  (decides nothing)
    names = [name for node in model.graph.node for name in node.output if name in mutant.types]
    for name in names[::-1]:
        copy = _copy(model)
        kind, shape = mutant.types[name]
        if "?" in shape:
            continue
        for node in copy.graph.node:
            node.output[:] = [o if o != name else f"{o}_unused" for o in node.output]
        copy.graph.input.append(helper.make_tensor_value_info(name, kind, shape))
        if all(output.name != name for output in copy.graph.output):
            yield _pruned(copy)


def _without_nodes(model: onnx.ModelProto) -> Iterator[Any]:
    """A node less; what read its results reads its first input."""
    for at in range(len(model.graph.node))[::-1]:
        copy = _copy(model)
        node = copy.graph.node[at]
        if not (len(node.input) and len(node.output)):
            continue
        old, new = node.output[0], node.input[0]
        del copy.graph.node[at]
        for other in copy.graph.node:
            other.input[:] = [name if name != old else new for name in other.input]
        if all(output.name != old for output in copy.graph.output):
            yield _pruned(copy)


def _pruned(model: Any) -> Any:
    """The model without what no output needs. Regions may read anything: then all stays."""
    graph = model.graph
    if any(a.HasField("g") or len(a.graphs) for node in graph.node for a in node.attribute):
        return model
    needed = {output.name for output in graph.output}
    for node in reversed(list(graph.node)):
        if any(name in needed for name in node.output):
            needed.update(node.input)
        else:
            graph.node.remove(node)
    for field in ("initializer", "input", "value_info"):
        kept = [item for item in getattr(graph, field) if item.name in needed]
        graph.ClearField(field)
        getattr(graph, field).extend(kept)
    return model
