"""Functions that import models as network definitions."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

from smelt.engine import MAGIC
from smelt.errors import GraphError, MissingExtraError, ModelFormatError
from smelt.network import NetworkDefinition
from smelt.signal_errors import pass_on_handler_error
from smelt.types import (
    Limit,
    copy_bytes,
    enough_memory_for,
    followed_atoms_limit,
    is_path,
    open_file,
    require_list,
    require_path,
    require_str,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    import onnx

    from smelt.network import Tensor


@enough_memory_for("the import")
def network_from_caffe(
    prototxt: str | os.PathLike[str] | bytes,
    caffemodel: str | os.PathLike[str] | bytes | None = None,
    dtype: str = "float32",
    outputs: Sequence[str] | None = None,
) -> tuple[NetworkDefinition, dict[str, Tensor]]:
    """Read a Caffe network.

    Args:
        prototxt: the network: a path, the bytes of a file, or its text.
        caffemodel: the weights: a path or the bytes of a file; None if there are none.
        dtype: storage type of the weights: ``float32`` or ``float16``.
        outputs: blobs to mark as outputs; None marks those that no layer reads, [] marks none.

    Returns:
        The network, with an implicit batch, and the tensor of each blob. If layers work in place,
            it is the result of the last one.

    Raises:
        ModelFormatError: a file is missing, malformed or truncated.
        GraphError: layers do not fit together.
        UnsupportedError: layers cannot be imported; the message lists them with reasons.
    """
    with _translated_import_errors():
        from smelt.importers.caffe import import_caffe

    graph, values = import_caffe(
        _source(prototxt),
        None if caffemodel is None else _source(caffemodel),
        dtype=dtype,
        outputs=_names(outputs),
    )
    network = NetworkDefinition.from_graph(graph)
    return network, {name: network.tensor(value) for name, value in values.items()}


@enough_memory_for("the import")
@followed_atoms_limit
def network_from_onnx(
    model: str | os.PathLike[str] | bytes | bytearray | memoryview | onnx.ModelProto,
    outputs: Sequence[str] | None = None,
) -> NetworkDefinition:
    """Read an ONNX model.

    Args:
        model: a path, the bytes of a file, or a ``ModelProto``.
        outputs: values to mark as outputs; None marks the model's own, [] marks none.

    Returns:
        The network, with an explicit batch.

    Raises:
        ModelFormatError: the model is malformed or truncated, or external data is missing.
        GraphError: the network is not valid.
        UnsupportedError: nodes cannot be imported; the message lists them with reasons.
        MissingExtraError: the package onnx is not installed.
    """
    if not hasattr(model, "HasField"):
        _check_source(model, "an ONNX model must be a path, bytes or a ModelProto")
        _refuse_engine(model)
    with _translated_import_errors():
        from smelt.importers.onnx import import_onnx

        graph = import_onnx(model, outputs=_names(outputs))
    return NetworkDefinition.from_graph(graph)


def read_onnx(
    model: str | os.PathLike[str] | bytes | bytearray | memoryview | onnx.ModelProto,
) -> onnx.ModelProto:
    """Read an ONNX model like `network_from_onnx`, for an engine that takes the message.

    Args:
        model: a path, the bytes of a file, or a ``ModelProto``.

    Returns:
        The message, which contains all external data.

    Raises:
        ModelFormatError: the model is malformed or truncated, external data is missing, or the
            whole is too large for one message.
        UnsupportedError: an opset version or an element type is not supported.
        MissingExtraError: the package onnx is not installed.
    """
    if not hasattr(model, "HasField"):
        _check_source(model, "an ONNX model must be a path, bytes or a ModelProto")
    with _translated_import_errors():
        from smelt.importers.onnx import read_onnx as read

        return read(model)


@enough_memory_for("the import")
def external_files(model: str | os.PathLike[str]) -> list[Path]:
    """Return the files of an ONNX model's external data; they may be missing or not allowed.

    Raises:
        ModelFormatError: the file cannot be read or is not a model.
        UnsupportedError: a version is not supported.
        MissingExtraError: the package onnx is not installed.
    """
    with _translated_import_errors():
        from smelt.importers.onnx import external_locations

        locations = sorted(external_locations(model))
    return [Path(model).parent / location for location in locations if "\0" not in location]


def _check_source(source: object, expected: str) -> None:
    """Check the type of a model's source; ``expected`` is the start of the error message."""
    if is_path(source):
        if not isinstance(source, str):
            require_path(source, "a model", ModelFormatError)
    elif not isinstance(source, bytes | bytearray | memoryview):
        raise ModelFormatError(f"{expected}, not {type(source).__name__}")


def _refuse_engine(model: object) -> None:
    """Check that a file is not an engine.

    Raises:
        ModelFormatError: the file is an engine.
    """
    name = "the model"
    try:
        if is_path(model):
            name = os.fsdecode(model)
            with open_file(name, Limit.MAX_ENGINE_BYTES) as file:
                start = file.read(len(MAGIC))
        else:
            view = memoryview(cast("bytes", model))
            start = bytes(view[: len(MAGIC)]) if view.ndim == 1 else b""
    except (OSError, ValueError) as error:
        pass_on_handler_error(error)
        return  # the importer reports the error
    if start == MAGIC:
        raise ModelFormatError(f"{name} is an engine, not a model; load it with smelt.load")


@contextmanager
def _translated_import_errors() -> Generator[None]:
    """Raise MissingExtraError if an import in the body fails."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingExtraError.from_import(error) from error


def _names(outputs: object) -> list[str] | None:
    """Return the names of outputs; a single string is taken as one name."""
    if outputs is None:
        return None
    names = [outputs] if isinstance(outputs, str) else require_list(outputs, "outputs", GraphError)
    return [require_str(name, "the name of an output", GraphError) for name in names]


def _source(source: str | os.PathLike[str] | bytes | bytearray | memoryview) -> str | bytes | Path:
    _check_source(source, "a Caffe file must be a path or bytes")
    if isinstance(source, bytearray | memoryview):
        return copy_bytes(source, "a Caffe file", ModelFormatError)
    return source if isinstance(source, str | bytes) else Path(source)
