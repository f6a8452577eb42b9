"""From ONNX's types to ours, with a name for every unknown extent."""

from __future__ import annotations

import re
from keyword import iskeyword
from typing import TYPE_CHECKING

from smelt.errors import ModelFormatError, UnsupportedError
from smelt.importers.onnx._tensors import dtype_from_onnx
from smelt.types import Limit, SymbolicDim, TensorType

if TYPE_CHECKING:
    from onnx import TensorShapeProto, TypeProto

    from smelt.types import Dim

_LARGEST_EXTENT = (1 << 31) - 1
_LARGEST_TENSOR_BYTES = 1 << 40
_UNNAMED = ("", "?", "*", "None", "-1")


class SymbolTable:
    """Names of the unknown extents of a model; one name of the model is one symbol."""

    def __init__(self) -> None:
        self._by_parameter: dict[str, str] = {}
        self._taken: set[str] = set()

    def named(self, parameter: str) -> Dim:
        """The symbol for a name of the model, made an identifier."""
        if parameter not in self._by_parameter:
            self._by_parameter[parameter] = self.reserve(parameter)
        return SymbolicDim.symbol(self._by_parameter[parameter])

    def fresh(self, owner: str, axis: int) -> Dim:
        """A symbol for an extent that the model leaves without a name."""
        return SymbolicDim.symbol(self.reserve(f"{owner}_{axis}"))

    def reserve(self, preferred_name: str) -> str:
        """An identifier that names no other symbol."""
        base = re.sub(r"\W+", "_", preferred_name[:100], flags=re.ASCII).strip("_") or "dim"
        base = f"_{base}" if base[0].isdigit() or iskeyword(base) else base
        name, number = base, 2
        while name in self._taken:
            name, number = f"{base}_{number}", number + 1
        self._taken.add(name)
        return name


def tensor_type(proto: TypeProto, owner: str, symbols: SymbolTable, where: str) -> TensorType:
    """The type of a tensor that a model declares.

    Raises UnsupportedError: no tensor, no declared rank, or an element type that smelt has not.
    Raises ModelFormatError: extents that no tensor has.
    """
    kind = proto.WhichOneof("value")
    if kind != "tensor_type":
        what = (kind or "of no type").removesuffix("_type").replace("_", " ")
        raise UnsupportedError(f"{where} is {what}; only dense tensors are supported")
    dtype = dtype_from_onnx(proto.tensor_type.elem_type, where)
    if not proto.tensor_type.HasField("shape"):
        raise UnsupportedError(
            f"{where} has no shape; at least its rank must be known: set it in the model"
        )
    if (rank := len(proto.tensor_type.shape.dim)) > Limit.MAX_RANK.most:
        raise ModelFormatError(f"{where} has {Limit.MAX_RANK.excess(rank)}")
    shape = _shape(proto.tensor_type.shape, owner, symbols, where)
    result = TensorType(dtype, shape)
    size = dtype.size_bytes
    for extent in shape:
        size *= extent if isinstance(extent, int) else 1
    if size > _LARGEST_TENSOR_BYTES:
        raise ModelFormatError(
            f"{where} is {result}: {size} bytes are more than a machine can address"
        )
    return result


def declared_shape(proto: TypeProto) -> tuple[int | None, ...] | None:
    """The extents that a declaration fixes, None for the others; None when it has no shape."""
    if proto.WhichOneof("value") != "tensor_type" or not proto.tensor_type.HasField("shape"):
        return None
    return tuple(
        dim.dim_value if dim.WhichOneof("value") == "dim_value" and dim.dim_value >= 0 else None
        for dim in proto.tensor_type.shape.dim
    )


def _shape(
    proto: TensorShapeProto, owner: str, symbols: SymbolTable, where: str
) -> tuple[Dim, ...]:
    shape: list[Dim] = []
    for axis, dim in enumerate(proto.dim):
        if dim.WhichOneof("value") == "dim_value" and dim.dim_value != -1:
            if not 0 <= dim.dim_value <= _LARGEST_EXTENT:
                raise ModelFormatError(
                    f"{where}: axis {axis} has extent {dim.dim_value}; it must be 0 to "
                    f"{_LARGEST_EXTENT}"
                )
            shape.append(dim.dim_value)
        elif dim.dim_param.strip() in _UNNAMED:
            shape.append(symbols.fresh(owner, axis))
        else:
            shape.append(symbols.named(dim.dim_param))
    return tuple(shape)
