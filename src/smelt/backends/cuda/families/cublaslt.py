"""Family of cuBLASLt products: one tactic for each algorithm that the library proposes."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from smelt.backends._base import NodeRefusedError, refuse_if
from smelt.backends._fused_programs import root_of
from smelt.backends._node_operands import required_input
from smelt.backends.cuda.families._product_operands import (
    columns_first,
    reshaped,
    variable_weights_reason,
)
from smelt.backends.cuda.families.vendor_library import LibraryFamily, LibraryOperation, Proposal
from smelt.devices.cuda import LARGEST_ALPHA, CublasLt, MatmulCall
from smelt.ops import Conv, Gelu, Gemm, MatMul, Relu
from smelt.types import Layout, fixed_extent, fixed_shape, override

if TYPE_CHECKING:
    from collections.abc import Iterable

    from smelt.ir import Constant, Node, Op, Value

_REQUESTED_ALGORITHMS: Final = 8
"""Number of algorithms requested from the library, for each workspace limit. Chosen without a
measurement."""
_WORKSPACES: Final = (32 << 20, 0)
"""Workspace limits in bytes: NVIDIA's recommendation for Hopper, and none."""
_MAX_EXTENT: Final = (1 << 31) - 1
"""Maximum extent that the library's integers hold."""


class CublasLtFamily(LibraryFamily[MatmulCall, CublasLt]):
    """Matrix products and pointwise convolutions, with the epilogues that the library fuses."""

    name: ClassVar[str] = MatmulCall.provider
    roots: ClassVar[tuple[type[Op], ...]] = (Conv, Gemm, MatMul)

    @override
    def matched(self, node: Node) -> LibraryOperation:
        root, x, y = root_of(node)[0], required_input(node, 0), required_input(node, 1)
        if isinstance(root, Conv):
            operation = _match_conv(root, x, y)
        elif isinstance(root, Gemm):
            operation = _match_gemm(node, root, x, y)
        else:
            operation = _match_matmul(x, y)
        fields = operation.fields
        longest = max(fields[name] for name in ("matrices", "rows", "columns", "depth"))
        if longest > _MAX_EXTENT:
            raise NodeRefusedError(
                f"an extent of the product is {longest}; the library supports at most {_MAX_EXTENT}"
            )
        if not abs(fields["alpha"]) <= LARGEST_ALPHA:
            raise NodeRefusedError(
                f"alpha is {fields['alpha']}; only finite float32 values are supported"
            )
        return operation

    @override
    def activation(self, op: Op) -> str | None:
        if isinstance(op, Gelu):
            return "gelu" if op.approximate == "tanh" else None
        return "relu" if isinstance(op, Relu) else None

    @override
    def call(self, operation: LibraryOperation, **fields: Any) -> MatmulCall:
        return MatmulCall(activation=operation.activation, **operation.fields, **fields)

    @override
    def proposals(self, call: MatmulCall) -> Iterable[Proposal]:
        lists = (
            self.loaded_library.algorithms(
                call, count=_REQUESTED_ALGORITHMS, max_workspace_bytes=limit
            )
            for limit in _WORKSPACES
        )
        unique = dict.fromkeys(chain.from_iterable(lists))
        return [({"algorithm": algorithm}, needed_bytes) for algorithm, needed_bytes in unique]

    @override
    def factor(self, node: Node, weights: Constant) -> Constant:
        """Return a constant second operand with the elements of each column contiguous."""
        root = root_of(node)[0]
        if isinstance(root, Conv):
            filters = fixed_extent(weights.type.shape[0])
            return reshaped(weights, f"{weights.name}.rows", filters, -1)
        return columns_first(weights, is_transposed=isinstance(root, Gemm) and bool(root.trans_b))

    @override
    def rows(self, call: MatmulCall) -> tuple[int, int]:
        return call.matrices, call.rows


# ---- matching of nodes


def _match_conv(root: Conv, x: Value, y: Value) -> LibraryOperation:
    """Return a pointwise convolution as a product. Raises NodeRefusedError: it is unsupported."""
    refuse_if(variable_weights_reason(y))
    if {*root.kernel_shape, *root.strides, root.group} != {1} or any(root.pads):
        raise NodeRefusedError(
            "the convolution is not pointwise (1x1, ungrouped, stride 1, no padding)"
        )
    filters, depth = fixed_shape(y.tensor.shape)[:2]
    rows = math.prod(fixed_shape(x.tensor.shape)) // depth
    product = _product(1, (rows, filters, depth), (False, True))
    return replace(product, layout=Layout.CHANNELS_LAST)


def _match_gemm(node: Node, root: Gemm, x: Value, y: Value) -> LibraryOperation:
    """Return a Gemm as a product. Raises NodeRefusedError: it is unsupported."""
    if root_of(node)[1] > 2 and node.inputs[2] is not None and root.beta != 1:
        raise NodeRefusedError(f"beta is {root.beta}; only 1 is supported")
    first, second = (cast("tuple[int, int]", value.tensor.shape) for value in (x, y))
    rows, depth = first[::-1] if root.trans_a else first
    columns = second[0] if root.trans_b else second[1]
    transposed = bool(root.trans_a), bool(root.trans_b) or y.constant is not None
    return _product(1, (rows, columns, depth), transposed, root.alpha)


def _match_matmul(x: Value, y: Value) -> LibraryOperation:
    """Return a MatMul as a batched product. Raises NodeRefusedError: it is unsupported."""
    first, second = (fixed_shape(value.tensor.shape) for value in (x, y))
    if min(len(first), len(second)) < 2:
        raise NodeRefusedError("an operand is a vector (rank 1)")
    *batch, rows, depth = first
    if len(second) == 2:
        count, rows = 1, math.prod(batch) * rows
    elif y.constant is None and tuple(batch) == second[:-2]:
        count = math.prod(batch)
    else:
        raise NodeRefusedError(
            "the batch axes of the operands differ, or the second operand is a batched constant"
        )
    return _product(count, (rows, second[-1], depth), (False, y.constant is not None))


def _product(
    matrices: int, extents: tuple[int, int, int], transposed: tuple[bool, bool], alpha: float = 1.0
) -> LibraryOperation:
    """Return the operation of a batched product of so many rows and columns, and such a depth."""
    sizes = dict(zip(("rows", "columns", "depth"), extents, strict=True))
    fields = {"matrices": matrices, **sizes, "transposed": transposed, "alpha": float(alpha)}
    return LibraryOperation(fields=fields, columns=extents[1])
