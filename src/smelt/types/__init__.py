"""Element types, dimensions, layouts, value types, devices by name, text: what rooms share."""

from smelt.types._argument_checks import (
    application_errors,
    given_array,
    given_bool,
    given_dict,
    given_float,
    given_function,
    given_int,
    given_ints,
    given_list,
    given_text,
    given_word,
    shown,
)
from smelt.types._arrays import ArrayHeader, read_array, read_arrays, write_arrays
from smelt.types._closeable import Closeable
from smelt.types._device import DEVICE_GRAMMAR, DeviceName
from smelt.types._dim import (
    Dim,
    Symbol,
    SymbolicDim,
    ceil_div,
    dim_from_text,
    dim_to_text,
    evaluate_dim,
    fixed_extent,
    fixed_shape,
    one_file_of_formulas,
    substitute_dim,
    symbols_of,
)
from smelt.types._dim_sign import is_never_negative
from smelt.types._dim_table import EXACT_BOUND, DimTable, bounds_of, upper_bound
from smelt.types._dtype import DType, is_float_dtype
from smelt.types._files import copy_bytes, is_special, open_file, open_special, path_from, read_file
from smelt.types._fork_lock import ForkLock
from smelt.types._guard import (
    Guard,
    Relation,
    assume_at_least,
    assume_divides,
    assume_equal,
    collect_guards,
)
from smelt.types._json import count_json_parts, fields_of, items_of, parse_json
from smelt.types._limits import Limit
from smelt.types._memory import enough_memory_for, out_of_memory
from smelt.types._override import override
from smelt.types._table import WIDTH_OF_FILES, TextTable
from smelt.types._text import (
    count_cells,
    counted,
    format_number,
    format_share,
    format_whole,
    wrap_words,
)
from smelt.types._threads import start_thread
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
    "application_errors",
    "ForkLock",
    "format_whole",
    "fields_of",
    "items_of",
    "fixed_extent",
    "fixed_shape",
    "enough_memory_for",
    "out_of_memory",
    "ArrayHeader",
    "DEVICE_GRAMMAR",
    "WIDTH_OF_FILES",
    "Closeable",
    "DType",
    "EXACT_BOUND",
    "DeviceName",
    "Dim",
    "DimTable",
    "Guard",
    "Layout",
    "Limit",
    "OptionalType",
    "Relation",
    "SequenceType",
    "Shape",
    "Symbol",
    "SymbolicDim",
    "TensorFormat",
    "TensorType",
    "TextTable",
    "ValueType",
    "assume_at_least",
    "assume_divides",
    "assume_equal",
    "bounds_of",
    "ceil_div",
    "collect_guards",
    "copy_bytes",
    "count_cells",
    "count_json_parts",
    "counted",
    "dim_from_text",
    "dim_to_text",
    "element_count",
    "evaluate_dim",
    "format_number",
    "format_share",
    "given_array",
    "given_bool",
    "given_dict",
    "given_float",
    "given_function",
    "given_int",
    "given_ints",
    "given_list",
    "given_text",
    "given_word",
    "is_float_dtype",
    "is_never_negative",
    "is_special",
    "open_file",
    "open_special",
    "override",
    "parse_json",
    "path_from",
    "read_array",
    "read_arrays",
    "read_file",
    "shown",
    "start_thread",
    "substitute_dim",
    "symbols_of",
    "upper_bound",
    "wrap_words",
    "write_arrays",
    "one_file_of_formulas",
]
