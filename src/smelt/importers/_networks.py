"""What the importers read, as networks."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

from smelt.engine import MAGIC
from smelt.errors import GraphError, MissingExtraError, ModelFormatError
from smelt.network import NetworkDefinition
from smelt.types import (
    Limit,
    copy_bytes,
    enough_memory_for,
    one_file_of_formulas,
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
        caffemodel: the weights: a path or the bytes of a file; None where there are none.
        dtype: how weights are stored: ``float32`` or ``float16``.
        outputs: blobs to mark as outputs; None marks what nothing consumes, [] marks nothing.

    Returns:
        The network, with an implicit batch, and the tensor of each blob: where layers work in
        place, that of the last one.

    Raises:
        ModelFormatError: a file is missing, malformed or cut off.
        GraphError: layers do not fit together.
        UnsupportedError: naming every layer that cannot be imported, with the reason.
    """
    with _packages_needed():
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
@one_file_of_formulas()
def network_from_onnx(
    model: str | os.PathLike[str] | bytes | bytearray | memoryview | onnx.ModelProto,
    outputs: Sequence[str] | None = None,
) -> NetworkDefinition:
    """Read an ONNX model.

    Args:
        model: a path, the bytes of a file, or a message.
        outputs: values to mark as outputs; None marks the model's own, [] marks nothing.

    Returns:
        The network, with an explicit batch.

    Raises:
        ModelFormatError: the model is malformed or cut off, or external data is missing.
        GraphError: the network is wrong.
        UnsupportedError: naming every node that cannot be imported, with the reason.
        MissingExtraError: the package onnx is not installed.
    """
    if not hasattr(model, "HasField"):
        _check_source(model, "an ONNX model is given as a path, bytes or a ModelProto")
        _refuse_engine(model)
    with _packages_needed():
        from smelt.importers.onnx import import_onnx

        graph = import_onnx(model, outputs=_names(outputs))
    return NetworkDefinition.from_graph(graph)


def read_onnx(
    model: str | os.PathLike[str] | bytes | bytearray | memoryview | onnx.ModelProto,
) -> onnx.ModelProto:
    """Read an ONNX model as `network_from_onnx` does, for an engine that takes the message itself.

    Args:
        model: a path, the bytes of a file, or a message.

    Returns:
        The message, with all its weights in it.

    Raises:
        ModelFormatError: the model is malformed or cut off, external data is missing, or all of it
            is too large for one message.
        UnsupportedError: a version or an element type is not known here.
        MissingExtraError: the package onnx is not installed.
    """
    if not hasattr(model, "HasField"):
        _check_source(model, "an ONNX model is given as a path, bytes or a ModelProto")
    with _packages_needed():
        from smelt.importers.onnx import read_onnx as read

        return read(model)


def _check_source(given: object, wanted: str) -> None:
    if not isinstance(given, str | os.PathLike | bytes | bytearray | memoryview):
        raise ModelFormatError(f"{wanted}, not {type(given).__name__}")
    if isinstance(given, os.PathLike):
        require_path(cast("os.PathLike[str]", given), "a model", ModelFormatError)


def _refuse_engine(model: object) -> None:
    """Raise ModelFormatError: it is not a model but what smelt made of one."""
    try:
        if isinstance(model, str | os.PathLike):
            name = os.fspath(cast("str | os.PathLike[str]", model))
            with open_file(name, Limit.MAX_ENGINE_BYTES) as file:
                start = file.read(len(MAGIC))
        else:
            view = memoryview(cast("bytes", model))
            start, name = bytes(view[: len(MAGIC)]) if view.ndim == 1 else b"", "the model"
    except (OSError, ValueError):
        return  # the importer says what is wrong
    if start == MAGIC:
        raise ModelFormatError(f"{name} is an engine, not a model; load it with smelt.load")


@contextmanager
def _packages_needed() -> Generator[None]:
    """Name the package that is missing where smelt was installed without what it depends on."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingExtraError.from_import(error) from error


def _names(outputs: object) -> list[str] | None:
    """The names of outputs; a single one is a sequence of letters, too, and nobody means that."""
    if outputs is None:
        return None
    names = [outputs] if isinstance(outputs, str) else require_list(outputs, "outputs", GraphError)
    return [require_str(name, "the name of an output", GraphError) for name in names]


def _source(given: str | os.PathLike[str] | bytes | bytearray | memoryview) -> str | bytes | Path:
    _check_source(given, "a Caffe file is given as a path or bytes")
    if isinstance(given, bytearray | memoryview):
        return copy_bytes(given, "a Caffe file", ModelFormatError)
    return given if isinstance(given, str | bytes) else Path(given)
