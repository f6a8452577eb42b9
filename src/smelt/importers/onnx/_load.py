"""Loading of ONNX models from paths, bytes or messages, and checks of their headers."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError

from smelt.errors import ModelFormatError, UnsupportedError
from smelt.importers._model_files import read_model_file
from smelt.importers._protobuf_wire import WireError
from smelt.importers.onnx._external_data import ExternalData
from smelt.importers.onnx._protobuf_limits import check_counts
from smelt.importers.onnx._tensors import embed_data, external_tensors
from smelt.types import Limit, copy_bytes, require_path

if TYPE_CHECKING:
    from pathlib import Path

    from google.protobuf.message import Message

ModelSource = str | os.PathLike[str] | bytes | bytearray | memoryview | onnx.ModelProto

OLDEST_IR = 3
"""Oldest supported version of the ONNX format."""
OLDEST_OPSET = 7
"""Oldest supported version of ONNX's own op set."""
_FREE_TEXT_FIELDS = ("doc_string", "value")
"""String fields that are not names: documentation and the values of metadata."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A decoded model with its folder and opset versions."""

    proto: onnx.ModelProto
    folder: Path | None
    """Folder of external data; None if the model was not read from a file."""
    opsets: dict[str, int]
    """Opset version of each domain; ONNX's own domain is the empty name."""


def load_model(source: ModelSource) -> LoadedModel:
    """Decode a model and check its header.

    Raises:
        ModelFormatError: the source cannot be read or is not a model.
        UnsupportedError: a version is too old or too new.
    """
    folder = None
    if isinstance(source, onnx.ModelProto):
        proto = source
    elif isinstance(source, bytes | bytearray | memoryview):
        proto = _decode(copy_bytes(source, "an ONNX model", ModelFormatError), "the data")
    else:
        path = require_path(source, "an ONNX model", ModelFormatError)
        problem = f"the ONNX model {path} cannot be read"
        advice = "save its weights as external data"
        data = read_model_file(path, Limit.MAX_MODEL_BYTES, problem, advice)
        proto = _decode(data, str(path))
        folder = path.absolute().parent
    if not proto.HasField("graph"):
        raise ModelFormatError(
            "the ONNX model has no graph; it is another kind of file, or truncated"
        )
    _require_text(proto)
    if proto.ir_version < OLDEST_IR:
        raise UnsupportedError(
            f"the model has ONNX IR version {proto.ir_version}; {OLDEST_IR} or newer is required: "
            "export it again with a current exporter"
        )
    return LoadedModel(proto, folder, opset_versions(proto))


def read_model(source: ModelSource) -> onnx.ModelProto:
    """Decode a model and embed its external data.

    Raises:
        ModelFormatError: the source cannot be read, is not a model, or is too large for one
            message.
        UnsupportedError: a version is too old or too new, or an element type is unknown.
    """
    model = load_model(source)
    if model.folder is not None:
        embed_data(model.proto, ExternalData(model.folder))
    return model.proto


def external_locations(path: str | os.PathLike[str]) -> set[str]:
    """Return the locations of a model's external data, as the model states them.

    Raises:
        ModelFormatError: the file cannot be read or is not a model.
        UnsupportedError: a version is too old or too new.
    """
    return {
        entry.value
        for tensor in external_tensors(load_model(path).proto)
        for entry in tensor.external_data
        if entry.key == "location"
    }


def domain_name(domain: str) -> str:
    """Return the name of a domain; that of ONNX's own, which has two, is empty."""
    return "" if domain == "ai.onnx" else domain


def opset_versions(holder: onnx.ModelProto | onnx.FunctionProto) -> dict[str, int]:
    """Return the opset version of each domain that a model or function imports."""
    versions: dict[str, int] = {}
    for entry in holder.opset_import:
        domain = domain_name(entry.domain)
        versions[domain] = max(versions.get(domain, 0), entry.version)
    version = versions.get("")
    newest = onnx.defs.onnx_opset_version()
    if version is not None and not OLDEST_OPSET <= version <= newest:
        advice = (
            "convert it with onnx.version_converter"
            if version < OLDEST_OPSET
            else "install a newer onnx package, or export with an older opset"
        )
        raise UnsupportedError(
            f"the model uses ONNX opset {version}; {OLDEST_OPSET} to {newest} are supported: "
            f"{advice}"
        )
    if isinstance(holder, onnx.ModelProto) and not versions:
        raise ModelFormatError(
            "the ONNX model has no opset import; it must state which opset version it uses"
        )
    return versions


def _decode(data: bytes, where: str) -> onnx.ModelProto:
    """Decode a serialised model; ``where`` names it in messages."""
    if not data:
        raise ModelFormatError(f"{where} is empty; expected an ONNX model")
    proto = onnx.ModelProto()
    try:
        check_counts(data, proto)
        proto.ParseFromString(data)
    except (DecodeError, WireError) as error:
        raise ModelFormatError(
            f"{where} is not an ONNX model, or is truncated or damaged ({error}); download it again"
        ) from error
    return proto


def _require_text(message: Message) -> None:
    """Check that all strings are UTF-8 text (protobuf returns bytes if not), and not too long.

    The length of names is limited, because they become parts of other names and of messages.
    """
    stack = [message]
    while stack:
        for field, content in stack.pop().ListFields():
            if field.type == FieldDescriptor.TYPE_MESSAGE:
                stack.extend([content] if hasattr(content, "ListFields") else content)
            elif field.type == FieldDescriptor.TYPE_STRING:
                texts = [content] if isinstance(content, str | bytes) else content
                if not all(isinstance(text, str) for text in texts):
                    raise ModelFormatError(
                        f"field {field.full_name} of the ONNX model is not UTF-8 text; the file "
                        "is damaged"
                    )
                longest = max(map(len, texts), default=0)
                if longest > Limit.MAX_NAME_CHARACTERS.most and field.name not in _FREE_TEXT_FIELDS:
                    detail = Limit.MAX_NAME_CHARACTERS.excess(longest)
                    raise ModelFormatError(
                        f"field {field.full_name} of the ONNX model has {detail}; shorten it"
                    )
