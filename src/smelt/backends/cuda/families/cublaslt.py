"""Family of cuBLASLt products: one tactic for each algorithm that the library proposes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, cast

import numpy as np

from smelt.backends._fused_programs import root_of
from smelt.backends._node_operands import required_input
from smelt.backends.cuda.families._gemm_operands import factor_type
from smelt.backends.cuda.families.vendor_library import LibraryFamily, Match, Proposal
from smelt.devices.cuda import LARGEST_ALPHA, CublasLt, ProductCall
from smelt.ir import Constant, Op
from smelt.ops import Conv, Gelu, Gemm, MatMul, Relu, Reshape, Transpose
from smelt.types import Layout, fixed_shape, override

if TYPE_CHECKING:
    from collections.abc import Iterable

    from smelt.backends._base import Tactic
    from smelt.devices.cuda import LibraryCall
    from smelt.ir import Node, Value

_REQUESTED_ALGORITHMS: Final = 8
"""Number of algorithms requested from the library, for each workspace limit. Chosen without a
measurement."""
_WORKSPACES: Final = (32 << 20, 0)
"""Workspace limits in bytes: NVIDIA's recommendation for Hopper, and none."""
_MAX_EXTENT: Final = (1 << 31) - 1
"""Maximum extent that the library's integers hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Product(Match):
    """A node as a batched matrix product."""

    matrices: int = 1
    rows: int
    depth: int
    transposed: tuple[bool, bool]
    alpha: float = 1.0


class CublasLtFamily(LibraryFamily[_Product]):
    """Matrix products and pointwise convolutions, with the epilogues that the library fuses."""

    name: ClassVar[str] = ProductCall.provider
    roots: ClassVar[tuple[type[Op], ...]] = (Conv, Gemm, MatMul)

    def __init__(self, library: CublasLt) -> None:
        super().__init__(library)
        self.cublaslt = library

    @override
    def matched(self, node: Node) -> _Product | str:
        root, x, y = root_of(node)[0], required_input(node, 0), required_input(node, 1)
        if isinstance(root, Conv):
            match = _match_conv(root, x, y)
        elif isinstance(root, Gemm):
            match = _match_gemm(node, root, x, y)
        else:
            match = _match_matmul(x, y)
        if isinstance(match, str):
            return match
        longest = max(match.matrices, match.rows, match.columns, match.depth)
        if longest > _MAX_EXTENT:
            return f"an extent of the product, {longest}, exceeds the library's integers"
        if not abs(match.alpha) <= LARGEST_ALPHA:
            return f"the scale alpha={match.alpha} is not supported"
        return match

    @override
    def activation(self, op: Op) -> str | None:
        if isinstance(op, Gelu):
            return "gelu" if op.approximate == "tanh" else None
        return "relu" if isinstance(op, Relu) else None

    @override
    def call(self, node: Node, match: _Product, tactic: Tactic) -> ProductCall:
        options = tactic.options
        return ProductCall(
            version=options.integer("version"),
            matrices=match.matrices,
            rows=match.rows,
            columns=match.columns,
            depth=match.depth,
            transposed=match.transposed,
            factors=factor_type(tactic),
            result=tactic.outputs[0].dtype,
            precision=str(options["precision"]),
            alpha=float(match.alpha),
            adds=match.added is not None,
            bias=match.bias is not None,
            activation=match.activation,
            workspace_bytes=options.integer("workspace", 0),
            algorithm=str(options.get("algorithm", "")),
        )

    @override
    def proposals(self, call: LibraryCall) -> Iterable[Proposal]:
        algorithms: dict[tuple[str, int], None] = {}
        for limit in _WORKSPACES:
            algorithms |= dict.fromkeys(
                self.cublaslt.algorithms(
                    cast("ProductCall", call),
                    count=_REQUESTED_ALGORITHMS,
                    most_workspace_bytes=limit,
                )
            )
        return [
            ({"algorithm": algorithm}, workspace_bytes) for algorithm, workspace_bytes in algorithms
        ]

    @override
    def factor(self, node: Node, weights: Constant) -> Constant:
        return _columns(node, weights)

    @override
    def rows(self, call: LibraryCall) -> tuple[int, int]:
        product = cast("ProductCall", call)
        return product.matrices, product.rows


# ---- matching of nodes


def _match_conv(root: Conv, x: Value, y: Value) -> _Product | str:
    """Return a pointwise convolution as a product, or why it is unsupported."""
    if y.constant is None:
        return f"the weights {y.name} are not constant"
    is_pointwise = {*root.kernel_shape, *root.strides, root.group} == {1} and not any(root.pads)
    if not is_pointwise:
        return "only an ungrouped 1x1 convolution with stride 1 and no padding is a matrix product"
    filters, depth = fixed_shape(y.tensor.shape)[:2]
    positions = math.prod(fixed_shape(x.tensor.shape)) // depth
    return _Product(
        rows=positions,
        columns=filters,
        depth=depth,
        transposed=(False, True),
        layout=Layout.CHANNELS_LAST,
    )


def _match_gemm(node: Node, root: Gemm, x: Value, y: Value) -> _Product | str:
    """Return a Gemm as a product, or why it is unsupported."""
    if root_of(node)[1] > 2 and node.inputs[2] is not None and root.beta != 1:
        return f"the scale beta={root.beta} is not supported"
    first, second = (cast("tuple[int, int]", value.tensor.shape) for value in (x, y))
    rows, depth = first[::-1] if root.trans_a else first
    columns = second[0] if root.trans_b else second[1]
    transposed = (bool(root.trans_a), bool(root.trans_b) or y.constant is not None)
    return _Product(
        rows=rows,
        columns=columns,
        depth=depth,
        transposed=transposed,
        layout=Layout.LINEAR,
        alpha=root.alpha,
    )


def _match_matmul(x: Value, y: Value) -> _Product | str:
    """Return a MatMul as a batched product, or why it is unsupported."""
    first, second = (fixed_shape(value.tensor.shape) for value in (x, y))
    if min(len(first), len(second)) < 2:
        return "an operand is a vector (rank 1)"
    *batch, rows, depth = first
    columns = second[-1]
    transposed = (False, y.constant is not None)
    if len(second) == 2:
        count, rows = 1, math.prod(batch) * rows
    elif y.constant is None and tuple(batch) == second[:-2]:
        count = math.prod(batch)
    else:
        return "the batch axes of the operands differ, or one operand is constant"
    return _Product(
        matrices=count,
        rows=rows,
        columns=columns,
        depth=depth,
        transposed=transposed,
        layout=Layout.LINEAR,
    )


def _columns(node: Node, weights: Constant) -> Constant:
    """Return a constant second operand with the elements of each column contiguous."""
    root = root_of(node)[0]
    if isinstance(root, Conv):
        shape = Constant(f"{weights.name}.filters", np.array([weights.type.shape[0], -1], np.int64))
        return Constant.derive(f"{weights.name}.rows", Reshape(), weights, shape)
    if isinstance(root, Gemm) and root.trans_b:
        return weights
    return Constant.derive(f"{weights.name}.columns_first", Transpose((1, 0)), weights)
