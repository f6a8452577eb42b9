"""Compile half of each backend: what it can run, by which tactics, and its kernels' code."""

from smelt.backends._assemble import (
    Assembled,
    WeightStore,
    assemble,
    constant_bytes,
    error_view,
    stored_type,
)
from smelt.backends._base import (
    Aliasing,
    Backend,
    CodeImage,
    Family,
    Operands,
    Refusal,
    Tactic,
    Target,
    store_as,
)
from smelt.backends._code_cache import CodeCache
from smelt.backends._edition import edition_of
from smelt.backends._fusion import root_of
from smelt.backends._scalars import Scalars
from smelt.backends._storage import Stored, contiguous_strides, linear_format, same_order

__all__ = [
    "Aliasing",
    "Assembled",
    "Backend",
    "CodeCache",
    "CodeImage",
    "Family",
    "Operands",
    "Refusal",
    "Scalars",
    "Stored",
    "Tactic",
    "Target",
    "WeightStore",
    "assemble",
    "constant_bytes",
    "contiguous_strides",
    "edition_of",
    "error_view",
    "linear_format",
    "root_of",
    "same_order",
    "store_as",
    "stored_type",
]
