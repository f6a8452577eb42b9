"""Compile-time backends: supported ops, their tactics and kernel code generation."""

from smelt.backends._base import (
    Aliasing,
    Backend,
    CodeImage,
    Family,
    NodeRefusedError,
    Operands,
    Refusal,
    Tactic,
    Target,
    backend_of,
    with_storage_dtype,
)
from smelt.backends._code_cache import CodeCache, codegen_version_of
from smelt.backends._fused_programs import op_as, root_as, root_of
from smelt.backends._host_families import ReferenceFamily
from smelt.backends._launch_scalars import LaunchScalars
from smelt.backends._plan_builder import (
    BuiltPlan,
    WeightStore,
    build_plan,
    constant_bytes,
    error_view,
    stored_type,
)
from smelt.backends._storage import (
    StoredTensor,
    contiguous_strides,
    is_same_memory_order,
    linear_format,
)

__all__ = [
    "Aliasing",
    "BuiltPlan",
    "Backend",
    "CodeCache",
    "CodeImage",
    "Family",
    "NodeRefusedError",
    "Operands",
    "ReferenceFamily",
    "Refusal",
    "LaunchScalars",
    "StoredTensor",
    "Tactic",
    "Target",
    "WeightStore",
    "backend_of",
    "build_plan",
    "constant_bytes",
    "contiguous_strides",
    "codegen_version_of",
    "error_view",
    "linear_format",
    "op_as",
    "root_as",
    "root_of",
    "is_same_memory_order",
    "with_storage_dtype",
    "stored_type",
]
