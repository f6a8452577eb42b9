"""One file per op: attributes, inference, numpy reference, cases."""

from smelt.ir import Array, Case, Op, Operand
from smelt.ops.fused import Fused, Stage

__all__ = ["ALL_OPS", "Array", "Case", "Fused", "Op", "Operand", "Stage"]

ALL_OPS: tuple[type[Op], ...] = (Fused,)
