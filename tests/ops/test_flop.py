"""Multiplications and additions of ops, counted by hand."""

from __future__ import annotations

import pytest

from smelt import ops
from smelt.errors import ShapeError
from smelt.ops import Op, Operand
from smelt.types import DType, SymbolicDim, TensorType

N = SymbolicDim.symbol("n")
CONV = ops.Conv((3, 3), pads=(1, 1, 1, 1))
COUNTED: list[tuple[str, Op, list[tuple[int, ...]], int]] = [
    ("conv", CONV, [(2, 4, 5, 5), (8, 4, 3, 3), (8,)], 2 * (2 * 8 * 25) * 36),
    ("groups", ops.Conv((3, 3), group=4), [(1, 4, 5, 5), (4, 1, 3, 3)], 2 * (4 * 9) * 9),
    ("bytes", ops.ConvInteger((1, 1)), [(1, 4, 5, 5), (8, 4, 1, 1)], 2 * (8 * 25) * 4),
    ("deconv", ops.ConvTranspose((2, 2), (2, 2)), [(1, 4, 5, 5), (4, 3, 2, 2)], 2 * 100 * 12),
    (
        "sum",
        ops.ConvSum(ops.Conv((1, 1)), ops.Conv((1, 1), (2, 2))),
        [(1, 4, 3, 3), (8, 4, 1, 1), (1, 6, 6, 6), (8, 6, 1, 1)],
        2 * (8 * 9) * (4 + 6),
    ),
    ("gemm", ops.Gemm(trans_a=True), [(7, 3), (7, 5)], 2 * 3 * 5 * 7),
    ("stack", ops.MatMul(), [(2, 1, 3, 4), (5, 4, 6)], 2 * (2 * 5 * 3 * 6) * 4),
    ("vector", ops.MatMul(), [(4,), (4, 6)], 2 * 6 * 4),
    ("integers", ops.MatMulInteger(), [(3, 4), (4, 6)], 2 * 3 * 6 * 4),
    (
        "attention",
        ops.Attention(1.0, heads=2),
        [(3, 10, 8), (3, 20, 8), (3, 20, 12)],
        2 * (3 * 2 * 10 * 20) * (4 + 6),
    ),
    (
        "lstm",
        ops.LSTM(5, "bidirectional"),
        [(7, 3, 6), (2, 20, 6), (2, 20, 5)],
        2 * (7 * 3) * 2 * 20 * (6 + 5),
    ),
    ("einsum", ops.Einsum("bij,bjk->bik"), [(2, 3, 4), (2, 4, 5)], 2 * 2 * 3 * 4 * 5),
    ("transposition", ops.Einsum("ij->ji"), [(3, 4)], 0),
    ("relu", ops.Relu(), [(3, 4)], 0),
    (
        "fused",
        ops.Fused(CONV, 2, (ops.Stage(ops.Relu(), (-1,)),)),
        [(1, 4, 5, 5), (8, 4, 3, 3)],
        2 * (8 * 25) * 36,
    ),
    (
        "fused_pair",
        ops.FusedPair(ops.Conv((1, 1)), 2, ops.Conv((3, 3), group=8)),
        [(1, 4, 5, 5), (8, 4, 1, 1), (8, 1, 3, 3)],
        2 * (8 * 25) * 4 + 2 * (8 * 9) * 9,
    ),
]


@pytest.mark.parametrize(("name", "op", "shapes", "wanted"), COUNTED, ids=[c[0] for c in COUNTED])
def test_the_multiplications_and_additions_of_an_op_are_those_counted_by_hand(
    name: str, op: Op, shapes: list[tuple[int, ...]], wanted: int
) -> None:
    dtype = DType.UINT8 if name in {"bytes", "integers"} else DType.FLOAT32
    operands = [Operand(TensorType(dtype, shape)) for shape in shapes]
    assert op.count_flop(operands) == wanted


@pytest.mark.parametrize("op", [next(iter(kind.cases())).op for kind in (ops.If, ops.Loop)])
def test_what_only_a_run_tells_is_not_told_before(op: Op) -> None:
    with pytest.raises(ShapeError, match="known only at run time"):
        op.count_flop([])


def test_symbols_stay_symbols() -> None:
    shapes = ((N, 4, 5, 5), (8, 4, 3, 3))
    operands = [Operand(TensorType(DType.FLOAT32, shape)) for shape in shapes]
    assert CONV.count_flop(operands) == 2 * (8 * 25) * 36 * N
