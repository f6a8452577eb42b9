"""From AttributeProtos to checked Python values."""

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
    """The value of an attribute.

    Raises ModelFormatError: no type, or text that is not UTF-8.
    Raises UnsupportedError: a type that no op here takes.
    """
    kind = proto.type
    label = f"{where}, attribute {proto.name!r}"
    read = _READERS.get(kind)
    if read is not None:
        return read(proto, label)
    if kind == AttributeProto.TENSOR:
        return array_from_tensor(proto.t, external, label)
    if kind == AttributeProto.SPARSE_TENSOR:
        return array_from_sparse(proto.sparse_tensor, external, label)
    if kind == AttributeProto.UNDEFINED:
        raise ModelFormatError(f"{label} has no type")
    name = _KIND.Name(kind).lower() if kind in _KIND.values() else str(kind)
    raise UnsupportedError(f"attribute {proto.name!r} has type {name}, which no supported op takes")


def check_attributes(
    protos: Sequence[AttributeProto], schema: onnx.defs.OpSchema, where: str
) -> None:
    """Check names and types of a node's attributes against the op's definition.

    Raises ModelFormatError: one twice, of the wrong type, or required and absent.
    Raises UnsupportedError: one that the op does not define.
    """
    seen: set[str] = set()
    for proto in protos:
        if proto.name in seen:
            raise ModelFormatError(f"{where}: attribute {proto.name!r} is given twice")
        seen.add(proto.name)
        known = schema.attributes.get(proto.name)
        if known is None:
            defined = ", ".join(sorted(schema.attributes)) or "none"
            raise UnsupportedError(
                f"attribute {proto.name!r} is unknown; the attributes are: {defined}"
            )
        wanted = int(cast("Any", known.type).value)
        if proto.type not in (wanted, AttributeProto.UNDEFINED):
            raise ModelFormatError(
                f"{where}: attribute {proto.name!r} is {_kind_name(proto.type)} and must be "
                f"{_kind_name(wanted)}"
            )
    for name, attribute in schema.attributes.items():
        if attribute.required and name not in seen:
            raise ModelFormatError(f"{where}: attribute {name!r} is required and missing")


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
    return _KIND.Name(kind).lower() if kind in _KIND.values() else f"type {kind}"
