"""The ONNX importer: models of opset 7 and newer become graphs with the latest op semantics.

The file is not trusted: sizes are checked before they are used, and external data must be in the
model's own folder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    import onnx

    from smelt.ir import Graph

__all__ = ["external_locations", "import_onnx", "read_onnx"]


def import_onnx(
    source: str | os.PathLike[str] | bytes | bytearray | memoryview | onnx.ModelProto,
    *,
    outputs: Sequence[str] | None = None,
) -> Graph:
    """Read an ONNX model from a path, the bytes of a file, or a ``ModelProto``.

    ``outputs`` names the values to mark as outputs instead of the model's own; an empty list marks
    none.

    Raises:
        ModelFormatError: the model is malformed, or external data is missing or in another place.
        GraphError: the network is not valid (cycles, unknown or repeated names, shapes that do not
            fit).
        UnsupportedError: nodes are not supported; the message lists them with reasons.
    """
    # Imported here, so that the package onnx is only needed to read a model.
    from smelt.importers.onnx._import import graph_from_model

    return graph_from_model(source, outputs)


def read_onnx(
    source: str | os.PathLike[str] | bytes | bytearray | memoryview | onnx.ModelProto,
) -> onnx.ModelProto:
    """Read an ONNX model like `import_onnx`, as a message with all its external data.

    Raises:
        ModelFormatError: the model is malformed, external data is missing or in another place, or
            the whole is too large for one message.
        UnsupportedError: an opset version or an element type is not supported.
    """
    from smelt.importers.onnx._load import read_model

    return read_model(source)


def external_locations(path: str | os.PathLike[str]) -> set[str]:
    """Return the locations of a model's external data, as the model states them.

    Raises:
        ModelFormatError: the file cannot be read or is not a model.
        UnsupportedError: a version is not supported.
    """
    from smelt.importers.onnx._load import external_locations as locations

    return locations(path)
