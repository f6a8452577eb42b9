"""Caffe's messages as a protobuf schema, built at import from the tables of ``schema.txt``."""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING, Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

if TYPE_CHECKING:
    from google.protobuf.message import Message

_PACKAGE: Final = "smelt.caffe"


def _read_tables() -> dict[str, dict[str, list[str]]]:
    """Return the words of each table of ``schema.txt`` by its kind and its name."""
    text = resources.files(__package__ or "").joinpath("schema.txt").read_text("ascii")
    tables: dict[str, dict[str, list[str]]] = {"types": {}, "enum": {}, "message": {}}
    words: list[str] = []
    for line in text.splitlines():
        if line.startswith(" "):
            words += line.split()
        elif not line.startswith("#"):
            kind, _, name = line.partition(" ")
            words = tables[kind][name] = []
    return tables


_TYPES, _ENUMS, _MESSAGES = _read_tables().values()
_V1_TYPES: Final = _TYPES["of V1"]
V1_NAMES: Final = dict(zip(map(int, _V1_TYPES[1::3]), _V1_TYPES[2::3], strict=True))
"""Names in the current format by the numbers of the V1 format."""
_ENUMS["V1Type"] += [word for at, word in enumerate(_V1_TYPES) if at % 3 < 2]

_Field = descriptor_pb2.FieldDescriptorProto


def _field(name: str, number: str, kind: str) -> descriptor_pb2.FieldDescriptorProto:
    """Return the descriptor of a field from its entry in the table."""
    kind, _, default = kind.partition("=")
    field = _Field(name=name, number=int(number), label=_Field.LABEL_OPTIONAL)
    if kind[-1] in "*!":
        field.label = _Field.LABEL_REPEATED
        field.options.packed = kind.endswith("!")
        kind = kind[:-1]
    if kind[0].isupper():
        field.type = _Field.TYPE_ENUM if kind in _ENUMS else _Field.TYPE_MESSAGE
        field.type_name = (
            f".{_PACKAGE}.{kind}Scope.{kind}" if kind in _ENUMS else f".{_PACKAGE}.{kind}"
        )
    else:
        field.type = _Field.Type.Value(f"TYPE_{kind.upper()}")
    if default:
        field.default_value = default
    return field


def _file() -> descriptor_pb2.FileDescriptorProto:
    """Return the file descriptor of all messages and enumerations."""
    file = descriptor_pb2.FileDescriptorProto(name="smelt/caffe", package=_PACKAGE, syntax="proto2")
    for name, words in _ENUMS.items():
        # The values of an enumeration are siblings of its name, so each has a message around it.
        enum = file.message_type.add(name=f"{name}Scope").enum_type.add(name=name)
        for label, number in zip(words[::2], words[1::2], strict=True):
            enum.value.add(name=label, number=int(number))
    for name, words in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for start in range(0, len(words), 3):
            message.field.append(_field(*words[start : start + 3]))
    return file


_POOL: Final = descriptor_pool.DescriptorPool()
_POOL.Add(_file())


def new_message(name: str) -> Any:
    """Return an empty message of the schema, such as ``NetParameter`` or ``BlobProto``."""
    kind: type[Message] = message_factory.GetMessageClass(
        _POOL.FindMessageTypeByName(f"{_PACKAGE}.{name}")
    )
    return kind()
