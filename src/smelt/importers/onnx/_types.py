"""Conversion of ONNX types to tensor types, with a symbol for every unknown extent."""

from __future__ import annotations

import re
from keyword import iskeyword
from math import prod
from typing import TYPE_CHECKING

from smelt.errors import ModelFormatError, UnsupportedError
from smelt.importers.onnx._tensors import dtype_from_onnx
from smelt.types import Limit, SymbolicDim, TensorType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onnx import TensorShapeProto, TypeProto

    from smelt.types import Dim

_MAX_EXTENT = (1 << 31) - 1
"""Largest extent that a model may declare."""
_MAX_TENSOR_BYTES = 1 << 40
"""Largest size in bytes of a declared tensor, with symbolic extents counted as 1."""
_UNNAMED = ("", "?", "*", "None", "-1")
"""Names of symbolic extents that exporters write for an unknown extent."""
_RESULT_EXTENT = re.compile(r"(.+)_\d+_\d+")
"""A symbol that an If makes of its ``count_symbol``, a result and an axis."""


class SymbolTable:
    """The symbols of a model's unknown extents; each name in the model is one symbol."""

    def __init__(self) -> None:
        self._by_parameter: dict[str, str] = {}
        self._taken: dict[str, int] = {}
        self._count_symbols = set[str]()
        self._no_count_symbols = set[str]()
        """Names from which an If could make a symbol that is taken."""

    def named(self, parameter: str) -> Dim:
        """Return the symbol for a name in the model, converted to an identifier."""
        if parameter not in self._by_parameter:
            self._by_parameter[parameter] = self.reserve(parameter)
        return SymbolicDim.symbol(self._by_parameter[parameter])

    def fresh(self, owner: str, axis: int) -> Dim:
        """Return a symbol for an extent that has no name in the model."""
        return SymbolicDim.symbol(self.reserve(f"{owner}_{axis}"))

    def reserve(self, preferred_name: str) -> str:
        """Return an identifier that is not the name of another symbol."""
        base = re.sub(r"\W+", "_", preferred_name[:100], flags=re.ASCII).strip("_") or "dim"
        base = f"_{base}" if base[0].isdigit() or iskeyword(base) else base
        name = unused_name(self._taken, base)
        while (match := _RESULT_EXTENT.fullmatch(name)) and match[1] in self._count_symbols:
            name = unused_name(self._taken, base)
        if match:
            self._no_count_symbols.add(match[1])
        return name

    def reserve_count(self, node_name: str) -> str:
        """Return a ``count_symbol`` for a node, of which an If may make further symbols."""
        name = self.reserve(f"{node_name}_count")
        while name in self._no_count_symbols:
            name = self.reserve(f"{node_name}_count")
        self._count_symbols.add(name)
        return name


def unused_name(taken: dict[str, int], preferred_name: str) -> str:
    """Return the preferred name, with a number if it is taken.

    ``taken`` holds the last number used with each name.
    """
    name, number = preferred_name, taken.get(preferred_name, 1)
    while name in taken:
        number += 1
        name = f"{preferred_name}_{number}"
    taken[preferred_name] = number
    taken.setdefault(name, 1)
    return name


def tensor_type(proto: TypeProto, owner: str, symbols: SymbolTable, where: str) -> TensorType:
    """Return the tensor type that a model declares.

    Raises:
        UnsupportedError: the value is not a tensor, has no declared rank, or has an element type
            that smelt does not support.
        ModelFormatError: an extent or the size is invalid.
    """
    kind = proto.WhichOneof("value")
    if kind != "tensor_type":
        found = f"type {kind.removesuffix('_type').replace('_', ' ')}" if kind else "no type"
        raise UnsupportedError(f"{where} has {found}; only dense tensors are supported")
    dtype = dtype_from_onnx(proto.tensor_type.elem_type, where)
    if not proto.tensor_type.HasField("shape"):
        raise UnsupportedError(
            f"{where} has no shape; at least its rank must be known: set the shape in the model"
        )
    Limit.MAX_RANK.check(len(proto.tensor_type.shape.dim), f"{where} has", ModelFormatError)
    shape = _shape(proto.tensor_type.shape, owner, symbols, where)
    result = TensorType(dtype, shape)
    size = dtype.size_bytes * prod(extent for extent in shape if isinstance(extent, int))
    if size > _MAX_TENSOR_BYTES:
        raise ModelFormatError(
            f"{where} is {result}, which takes at least {size} bytes; the maximum is "
            f"{_MAX_TENSOR_BYTES}"
        )
    return result


def declared_shape(proto: TypeProto) -> tuple[int | None, ...] | None:
    """Return the declared extents, None for unknown ones; None if there is no shape."""
    if proto.WhichOneof("value") != "tensor_type" or not proto.tensor_type.HasField("shape"):
        return None
    return tuple(
        dim.dim_value if dim.WhichOneof("value") == "dim_value" and dim.dim_value >= 0 else None
        for dim in proto.tensor_type.shape.dim
    )


def agrees(shape: Sequence[Dim], declared: Sequence[int | None]) -> bool:
    """Return whether a shape is the declared one, as far as the extents of both are known."""
    return len(shape) == len(declared) and all(
        not isinstance(extent, int) or declared_extent in (None, extent)
        for extent, declared_extent in zip(shape, declared, strict=True)
    )


def _shape(
    proto: TensorShapeProto, owner: str, symbols: SymbolTable, where: str
) -> tuple[Dim, ...]:
    """Return a declared shape, with symbols for extents that are not fixed."""
    shape: list[Dim] = []
    for axis, dim in enumerate(proto.dim):
        if dim.WhichOneof("value") == "dim_value" and dim.dim_value != -1:
            if not 0 <= dim.dim_value <= _MAX_EXTENT:
                raise ModelFormatError(
                    f"{where}: axis {axis} has extent {dim.dim_value}; it must be from 0 to "
                    f"{_MAX_EXTENT}"
                )
            shape.append(dim.dim_value)
        elif dim.dim_param.strip() in _UNNAMED:
            shape.append(symbols.fresh(owner, axis))
        else:
            shape.append(symbols.named(dim.dim_param))
    return tuple(shape)
