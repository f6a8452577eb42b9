"""Reading of Caffe files from paths, bytes or text, and their diagnosis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from smelt.errors import ModelFormatError
from smelt.importers._model_files import read_model_file
from smelt.importers.caffe._caffemodel_reader import CaffemodelReader
from smelt.types import Limit, copy_bytes, require_path

if TYPE_CHECKING:
    from pathlib import Path

    from smelt.importers.caffe._caffemodel_reader import StoredLayer
    from smelt.ir import Array

_ADVICE: Final = {
    Limit.MAX_PROTOTXT_BYTES: "is it the caffemodel? Give the prototxt first",
    Limit.MAX_MODEL_BYTES: "check that it is the right file",
}
_CONTROL: Final = frozenset(range(32)) - {9, 10, 11, 12, 13}
"""Control characters that text files do not contain; tabs and line ends are excluded."""


def read_prototxt(source: Path | bytes | str) -> tuple[str, str]:
    """Return the text of a prototxt, and its name for messages.

    A string with a brace or a line end is the text itself; any other string is a path.

    Raises:
        ModelFormatError: the file cannot be read, is too large, or is binary.
    """
    if isinstance(source, str) and ("{" in source or "\n" in source):
        source = source.encode("utf-8", "surrogateescape")
    data, what = _read(source, "prototxt", Limit.MAX_PROTOTXT_BYTES)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ModelFormatError(_binary_file_message(what, error.start)) from error
    if _is_binary(data):
        raise ModelFormatError(_binary_file_message(what, 0))
    return text, what


def read_caffemodel(source: Path | bytes | str) -> tuple[list[StoredLayer], str]:
    """Return the layers of a caffemodel with their weights, and its name for messages.

    Raises:
        ModelFormatError: the file cannot be read or is not a caffemodel.
    """
    data, what = _read(source, "caffemodel", Limit.MAX_MODEL_BYTES)
    if _is_prototxt(data):
        raise ModelFormatError(
            f"{what} is text, not a caffemodel: are the prototxt and the caffemodel swapped? "
            "Give the prototxt first"
        )
    layers = CaffemodelReader(data, what).read_layers()
    if any(layer.is_v0 for layer in layers):
        raise ModelFormatError(
            f"{what} is in the V0 format of 2013; upgrade it with Caffe's upgrade_net_proto_binary"
        )
    if not layers:
        raise ModelFormatError(
            f"{what} has no layers: it is empty or not a caffemodel; give the file that training "
            "wrote"
        )
    return layers, what


def read_mean(source: Path | bytes | str) -> Array:
    """Read a mean image, float32 ``(1, C, H, W)``, from a binaryproto's path or bytes.

    Raises:
        ModelFormatError: the file cannot be read or is not a binaryproto.
    """
    data, what = _read(source, "mean file", Limit.MAX_MODEL_BYTES)
    array = CaffemodelReader(data, what).read_blob("the mean image").array()
    if array.size == 0 or array.ndim == 0:
        raise ModelFormatError(
            f"{what} has no mean image: give a binaryproto that compute_image_mean wrote"
        )
    return array.astype("float32", copy=False)


def _read(source: Path | bytes | str, what: str, limit: Limit) -> tuple[bytes, str]:
    """Return the bytes of a source, and its name for messages.

    Raises:
        ModelFormatError: the file cannot be read or exceeds the limit.
    """
    if isinstance(source, bytes | bytearray | memoryview):
        data = copy_bytes(source, f"the {what}", ModelFormatError)
        limit.check(len(data), f"the {what} has", ModelFormatError, f"; {_ADVICE[limit]}")
        return data, f"the {what}"
    path = require_path(source, f"the {what}", ModelFormatError)
    return read_model_file(path, limit, f"{what} {path}", _ADVICE[limit]), f"{what} {path}"


def _is_binary(data: bytes) -> bool:
    return any(byte in _CONTROL for byte in data[:4096])


def _is_prototxt(data: bytes) -> bool:
    head = data[:4096]
    return bool(head) and not _is_binary(head) and head.isascii() and any(c in head for c in b":{")


def _binary_file_message(what: str, position: int) -> str:
    """Return the error message for a binary file in place of a prototxt."""
    return (
        f"{what} is not text (at byte {position}): is it a caffemodel? Give the prototxt first, "
        "then the caffemodel"
    )
