"""The order in which passes run."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from smelt.passes.absorb_quantization import AbsorbQuantization
from smelt.passes.combine_affines import CombineAffines
from smelt.passes.decompose import Decompose
from smelt.passes.fold_constants import FoldConstants
from smelt.passes.fold_quantize_scales import FoldQuantizeScales
from smelt.passes.fold_scale_shift import FoldScaleShift
from smelt.passes.fold_zero_points import FoldZeroPoints
from smelt.passes.fuse_attention import FuseAttention
from smelt.passes.fuse_conv_depthwise import FuseConvDepthwise
from smelt.passes.fuse_conv_sums import FuseConvSums
from smelt.passes.fuse_epilogues import FuseEpilogues
from smelt.passes.inline_branches import InlineBranches
from smelt.passes.merge_siblings import MergeSiblings
from smelt.passes.move_quantization import MoveQuantization
from smelt.passes.promote_half import PromoteHalf
from smelt.passes.recognize_activations import RecognizeActivations
from smelt.passes.recognize_norms import RecognizeNorms
from smelt.passes.remove_noops import RemoveNoops
from smelt.passes.remove_unused import RemoveUnused
from smelt.passes.simplify_concats import SimplifyConcats
from smelt.passes.sink_transposes import SinkTransposes
from smelt.types import DType

if TYPE_CHECKING:
    from collections.abc import Collection

    from smelt.passes._base import Pass

DEFAULT_PIPELINE: tuple[Pass, ...] = (
    # First what makes the graph smaller, so that everything after has less to look at. Shapes
    # become constants here, on which the patterns below rely.
    RemoveUnused(),
    FoldConstants(),
    InlineBranches(),
    RemoveNoops(),
    # While every tensor is still wrapped as exporters wrap it: later passes would tear that apart.
    MoveQuantization(),
    AbsorbQuantization(),
    FoldZeroPoints(),
    RemoveUnused(),
    FoldQuantizeScales(),
    RemoveUnused(),
    # Before any weight is folded, so that weights are multiplied in float32.
    PromoteHalf(),
    # Before decomposition, which could take the patterns of exporters apart.
    RecognizeActivations(),
    RecognizeNorms(),
    FuseAttention(),
    # Then one normal form: what is left is what the passes below and the backends know.
    Decompose(),
    FoldConstants(),
    RemoveNoops(),
    # Transposes stand between a convolution and its scale: they go first.
    SinkTransposes(),
    SimplifyConcats(),
    CombineAffines(),
    # Scales go into weights before epilogues, where they would cost a stage.
    FoldScaleShift(),
    RemoveNoops(),
    RemoveUnused(),
    # Epilogues before siblings: siblings are merged with their epilogues, when these are alike.
    FuseEpilogues(),
    MergeSiblings(),
    FuseConvSums(),
    # Last, of what no other pass has a use for apart.
    FuseConvDepthwise(),
    RemoveUnused(),
)
"""What builds run, for engines that compute in float32, if they want every composed op."""

_COMPOSED: dict[type[Pass], str] = {
    AbsorbQuantization: "int8_products",
    FuseConvDepthwise: "fused_pair",
    FuseConvSums: "conv_sum",
    FuseAttention: "attention",
}
"""The passes that make an op of several which not every backend has code for, and that op."""


def pipeline(
    precision: str = "float32",
    *,
    non_fusable_ops: Collection[str] = (),
    non_decomposed_ops: Collection[str] = (),
    composite_ops: Collection[str] = ("fused_pair", "int8_products"),
    storage: DType = DType.FLOAT32,
) -> tuple[Pass, ...]:
    """The passes for one build.

    Args:
        precision: what the engine computes in; all but float32 keep half precision as it is,
            and convolutions apart.
        non_fusable_ops: names of elementwise ops for which a backend has no generated code.
        non_decomposed_ops: names of ops that a backend has better code for than for their parts.
        composite_ops: names of ops, each of several, that a backend has code for: "fused_pair",
            "attention", "gather" where an epilogue follows one, and "int8_products" where
            products of bytes have code.
        storage: as what float32 will be stored.
    """
    passes: list[Pass] = []
    for one in DEFAULT_PIPELINE:
        if _COMPOSED.get(type(one)) not in (None, *composite_ops):
            continue
        match one:
            case PromoteHalf() | FuseConvDepthwise() if precision != "float32":
                continue
            case FoldScaleShift():
                passes.append(replace(one, storage=storage))
            case FoldZeroPoints():
                passes.append(replace(one, kernels="int8_products" in composite_ops))
            case FuseEpilogues():
                excluded = tuple(sorted(non_fusable_ops))
                passes.append(replace(one, excluded=excluded, gathers="gather" in composite_ops))
            case Decompose():
                passes.append(replace(one, excluded=tuple(sorted(non_decomposed_ops))))
            case _:
                passes.append(one)
    return tuple(passes)
