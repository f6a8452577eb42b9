"""Specs of the kernels of products, as their lowerings make them and their writers read them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from smelt.backends.cuda._kernel_source import operand_parameters
from smelt.engine import KernelSpec, as_json, parameters
from smelt.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.engine import Json, View


@dataclass(frozen=True, slots=True, kw_only=True)
class ImplicitGemmKernel:
    """Spec of a kernel: everything that its text depends on. Extents may be ``("arg", k)``.

    Strides of an axis are those of the A operand, the B operand, each epilogue operand and the
    result, in this order.
    """

    schedule: str = "tiled"
    """Schedule: "tiled"; "persistent" (programs keep their weights for many tiles) and
    "register_operand" (in addition A stays in registers); "prefetch" (weights are loaded before the
    PDL wait); "split_k_reduce" (adds the partial sums); "depthwise"; "fused_pair" (two
    products)."""
    stack: tuple[tuple[Json, ...], ...] = ()
    """Batch axes (groups, matrices): extent, then strides."""
    rows: tuple[tuple[Json, ...], ...] = ()
    """Axes of the output positions: extent, strides, and the number of the window axis, or -1."""
    columns: tuple[Json, ...] = ()
    """Column axis: extent, then strides."""
    windows: tuple[tuple[Any, ...], ...] = ()
    """Window axes: taps, stride of A between taps, window stride, dilation, padding before, input
    extent."""
    start: Json = 0
    """Distance of the first tap before the first element of A, in elements."""
    run: Json
    """Inner K: elements of the reduction within one tap (the input channels)."""
    inner_k_strides: tuple[Json, Json]
    """Strides of A and B along the inner K."""
    tap_stride: Json = 0
    """Stride of B between taps."""
    depth: int = 0
    """Packed K: elements of a column of B if there is a window. The inner K of all taps follow one
    another, then zeros."""
    tile: tuple[int, int, int]
    """Block sizes M (rows), N (columns) and K (step of the reduction)."""
    bias: bool
    """Whether epilogue operand 0 is a bias, added to the float32 sums before the epilogue."""
    bias_scale: float = 1.0
    """Factor of the bias (beta of Gemm)."""
    alpha: float = 1.0
    """Factor of the sums."""
    stages: Json
    """Program of the epilogue."""
    input_precision: str
    """How float32 operands are multiplied: "ieee", "tf32x3" or "tf32"."""
    clamps_edges: bool
    """Whether rows and columns past the end read the elements of the last ones instead of being
    masked. The operands are contiguous along the inner K, so vector loads remain possible."""
    constants: tuple[bool, ...]
    """Whether each operand is a weight, which may be read before earlier launches end."""
    prefetches_weights: bool = True
    """Whether weights are prefetched before earlier launches end."""
    prefetches_epilogue: bool = False
    """Whether epilogue operands are loaded before the sum instead of after it."""
    split_k: int = 1
    """Parts of the reduction that different programs compute, each into a result of its own."""
    split_k_partials: int = 1
    """Number of partial sums that a split_k_reduce kernel adds."""
    split_k_stride: Json = 0
    """Distance between two partial sums, in elements."""
    num_warps: int
    num_stages: int = 1
    row_programs: int = 0
    """Persistent programs that share a block of columns; 0 without persistence."""
    factors: int = 2
    """Number of operands of the reduction: A and B, and A of a second image if there is one; 1 for
    split_k_reduce. Epilogue operands follow, then the result."""
    valid_extents: tuple[Json, ...] = ()
    """Extents of the result along the row axes, if rows include padding."""
    second_image_channels: int = 0
    """Channels of a second image, whose 1x1 product extends the reduction; it is operand 2. 0 if
    there is none."""
    uses_int64_offsets: tuple[bool, ...] = ()
    """Whether each operand's offsets along its outermost axis may need more than 32 bits."""

    def spec(self, family: str, views: Sequence[View], scalars: int) -> KernelSpec:
        """Return the kernel as a spec of a family, with the description of its operands."""
        fields = {f.name: as_json(getattr(self, f.name)) for f in dataclasses.fields(self)}
        return KernelSpec(family, parameters(**fields, **operand_parameters(views, scalars)))

    @property
    def fixed_run(self) -> int:
        """Inner K, which only matrix products may leave to run time."""
        if isinstance(self.run, int):
            return self.run
        raise InternalError(f"the inner K of a {self.schedule} kernel must be known at build time")

    @classmethod
    def of(cls, kernel: KernelSpec) -> Self:
        """Return the kernel that `spec` wrote, without its operands."""
        names = {f.name for f in dataclasses.fields(cls)}
        found: dict[str, Any] = {k: v for k, v in kernel.parameters if k in names}
        return cls(**found)


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedPairKernel(ImplicitGemmKernel):
    """Spec of a fused pair: `ImplicitGemmKernel` of the first product, and the second's part."""

    second_columns: tuple[Json, ...] = ()
    """Columns of the second product: extent, then the stride of every operand."""
    second_tile: int = 0
    """Columns of the second product in a tile."""
    second_depth: int = 0
    """Packed K of the second product's weights, in elements."""
    second_bias: bool = False
    second_stages: Json = ()
    weights: int = 0
    """Number of the operand that holds the second product's weights."""
    returns_intermediate: bool = False
    """Whether the operand before those weights is the intermediate, as a result."""
