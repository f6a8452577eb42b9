"""ONNX models become graphs: opset 7 to the newest, every version brought to the newest meaning.

The file's bytes are not trusted: sizes are checked before they are used, and external data may lie
only in the model's own folder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    import onnx

    from smelt.ir import Graph

__all__ = ["import_onnx", "read_onnx"]


def import_onnx(
    source: str | os.PathLike[str] | bytes | bytearray | memoryview | onnx.ModelProto,
    *,
    outputs: Sequence[str] | None = None,
) -> Graph:
    """Read an ONNX model: a path, the bytes of a file, or a message.

    ``outputs`` names the values that leave the graph instead of the model's own outputs; an empty
    list marks nothing.

    Raises ModelFormatError: the bytes are no sound model, or external data is missing or elsewhere.
    Raises GraphError: the network is wrong (cycles, names that stand for nothing or twice, shapes
    that do not fit).
    Raises UnsupportedError: naming every node that nothing here can run, with the reason.
    """
    # onnx is loaded only by who reads a model.
    from smelt.importers.onnx._model import graph_from_model

    return graph_from_model(source, outputs)


def read_onnx(
    source: str | os.PathLike[str] | bytes | bytearray | memoryview | onnx.ModelProto,
) -> onnx.ModelProto:
    """Read an ONNX model as a message that has all its weights, as `import_onnx` reads it.

    Raises ModelFormatError: the bytes are no sound model, external data is missing or elsewhere, or
    all of it is too large for one message.
    Raises UnsupportedError: a version or an element type that nothing here knows.
    """
    from smelt.importers.onnx._load import read_model

    return read_model(source)
