"""Conversion of ``AttributeProto`` messages to checked Python values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import onnx
from onnx import AttributeProto

from smelt.errors import ModelFormatError, UnsupportedError
from smelt.importers.onnx._tensors import array_from_sparse, array_from_tensor
from smelt.ir import Array

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from smelt.importers.onnx._external_data import ExternalData

Attribute = (
    int
    | float
    | str
    | Array
    | onnx.GraphProto
    | tuple[int, ...]
    | tuple[float, ...]
    | tuple[str, ...]
)

_KIND = AttributeProto.AttributeType


def attribute_value(proto: AttributeProto, external: ExternalData, where: str) -> Attribute:
    """Return the value of an attribute.

    Raises:
        ModelFormatError: the attribute has no type, or its text is not UTF-8.
        UnsupportedError: no supported op has attributes of this type.
    """
    kind = proto.type
    label = f"{where}, attribute {proto.name!r}"
    if kind in _READERS:
        return _READERS[kind](proto, label)
    if kind == AttributeProto.TENSOR:
        return array_from_tensor(proto.t, external, label)
    if kind == AttributeProto.SPARSE_TENSOR:
        return array_from_sparse(proto.sparse_tensor, external, label)
    if kind == AttributeProto.UNDEFINED:
        raise ModelFormatError(f"{label} has no type")
    raise UnsupportedError(
        f"attribute {proto.name!r} has type {_kind_name(kind)}, which no supported op takes"
    )


def check_attributes(
    protos: Sequence[AttributeProto], schema: onnx.defs.OpSchema, where: str
) -> None:
    """Check the names and types of a node's attributes against the op's schema.

    Raises:
        ModelFormatError: an attribute is repeated, of the wrong type, or missing.
        UnsupportedError: the op does not define an attribute.
    """
    seen: set[str] = set()
    for proto in protos:
        if proto.name in seen:
            raise ModelFormatError(f"{where}: attribute {proto.name!r} is given twice")
        seen.add(proto.name)
        definition = schema.attributes.get(proto.name)
        if definition is None:
            names = ", ".join(sorted(schema.attributes)) or "none"
            raise UnsupportedError(
                f"attribute {proto.name!r} is unknown; the attributes are: {names}"
            )
        expected = int(cast("Any", definition.type).value)
        if proto.type not in (expected, AttributeProto.UNDEFINED):
            raise ModelFormatError(
                f"{where}: attribute {proto.name!r} has type {_kind_name(proto.type)}; it must be "
                f"{_kind_name(expected)}"
            )
    for name, attribute in schema.attributes.items():
        if attribute.required and name not in seen:
            raise ModelFormatError(f"{where}: attribute {name!r} is required but missing")


def _text(data: bytes, label: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ModelFormatError(f"{label} is not UTF-8 text; the file is damaged") from error


_READERS: Final[Mapping[int, Callable[[AttributeProto, str], Attribute]]] = {
    AttributeProto.INT: lambda proto, _: proto.i,
    AttributeProto.FLOAT: lambda proto, _: proto.f,
    AttributeProto.STRING: lambda proto, label: _text(proto.s, label),
    AttributeProto.INTS: lambda proto, _: tuple(proto.ints),
    AttributeProto.FLOATS: lambda proto, _: tuple(proto.floats),
    AttributeProto.STRINGS: lambda proto, label: tuple(_text(s, label) for s in proto.strings),
    AttributeProto.GRAPH: lambda proto, _: proto.g,
}


def _kind_name(kind: int) -> str:
    return _KIND.Name(kind).lower() if kind in _KIND.values() else str(kind)
