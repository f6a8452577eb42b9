"""Element types, dimensions, layouts, value types, devices by name, text: what rooms share."""

from smelt.types._closing import Closing
from smelt.types._device import DEVICE_GRAMMAR, DeviceName
from smelt.types._dim import (
    Dim,
    Symbol,
    SymbolicDim,
    ceil_div,
    dim_from_text,
    evaluate_dim,
    substitute_dim,
    symbols_of,
)
from smelt.types._dtype import DType, decode_bfloat16, encode_bfloat16
from smelt.types._override import override
from smelt.types._table import WIDTH_OF_FILES, TextTable
from smelt.types._text import (
    count_cells,
    counted,
    format_number,
    format_share,
    without_controls,
    wrap_words,
)
from smelt.types._value import (
    Layout,
    OptionalType,
    SequenceType,
    Shape,
    TensorFormat,
    TensorType,
    ValueType,
    element_count,
)

__all__ = [
    "Closing",
    "DEVICE_GRAMMAR",
    "DType",
    "DeviceName",
    "Dim",
    "Layout",
    "OptionalType",
    "SequenceType",
    "Shape",
    "Symbol",
    "SymbolicDim",
    "TensorFormat",
    "TensorType",
    "TextTable",
    "ValueType",
    "WIDTH_OF_FILES",
    "ceil_div",
    "count_cells",
    "counted",
    "decode_bfloat16",
    "dim_from_text",
    "element_count",
    "encode_bfloat16",
    "evaluate_dim",
    "format_number",
    "format_share",
    "override",
    "substitute_dim",
    "symbols_of",
    "without_controls",
    "wrap_words",
]
