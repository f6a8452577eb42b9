"""The default pass pipeline, and its adaptation to precision and backend."""

from __future__ import annotations

from collections.abc import Collection
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
from smelt.passes.fuse_layer_normalization import FuseLayerNormalization
from smelt.passes.inline_branches import InlineBranches
from smelt.passes.merge_siblings import MergeSiblings
from smelt.passes.move_quantization import MoveQuantization
from smelt.passes.promote_half import PromoteHalf
from smelt.passes.recognize_activations import RecognizeActivations
from smelt.passes.remove_noops import RemoveNoops
from smelt.passes.remove_unused import RemoveUnused
from smelt.passes.simplify_concats import SimplifyConcats
from smelt.passes.sink_transposes import SinkTransposes
from smelt.types import DType

if TYPE_CHECKING:
    from smelt.passes._base import Pass

DEFAULT_PIPELINE: tuple[Pass, ...] = (
    # First the passes that shrink the graph, so that later ones have less to search. They also
    # make shapes constant, on which the patterns below rely.
    RemoveUnused(),
    FoldConstants(),
    InlineBranches(),
    RemoveNoops(),
    # While every tensor still has the DequantizeLinear and QuantizeLinear of its exporter: later
    # passes would separate them.
    MoveQuantization(),
    AbsorbQuantization(),
    FoldZeroPoints(),
    RemoveUnused(),
    FoldQuantizeScales(),
    RemoveUnused(),
    # Before any weight is folded, so that weights are multiplied in float32.
    PromoteHalf(),
    # Before decomposition, which could break the patterns of exporters.
    RecognizeActivations(),
    FuseLayerNormalization(),
    FuseAttention(),
    # Then one normal form, of ops that the passes below and the backends support.
    Decompose(),
    FoldConstants(),
    RemoveNoops(),
    # A transpose may stand between a convolution and its scale, so transposes move first.
    SinkTransposes(),
    SimplifyConcats(),
    CombineAffines(),
    # Scales are folded into weights before epilogues, where each would take a stage.
    FoldScaleShift(),
    RemoveNoops(),
    RemoveUnused(),
    # Epilogues before siblings, because siblings are merged with equal epilogues.
    FuseEpilogues(),
    MergeSiblings(),
    FuseConvSums(),
    # Last, because other passes need the two convolutions separately.
    FuseConvDepthwise(),
    RemoveUnused(),
)
"""The passes of a float32 build for a backend that implements every composite op."""

_COMPOSITE_OPS: dict[type[Pass], str] = {
    AbsorbQuantization: "int8_products",
    FuseConvDepthwise: "fused_pair",
    FuseConvSums: "conv_sum",
    FuseAttention: "attention",
}
"""Passes that form a composite op, and the name that a backend must list to enable each."""


def pipeline(
    precision: str = "float32",
    *,
    non_fusable_ops: Collection[str] = (),
    non_decomposed_ops: Collection[str] = (),
    supported_composite_ops: Collection[str] = ("fused_pair", "int8_products"),
    storage_dtype: DType = DType.FLOAT32,
) -> tuple[Pass, ...]:
    """Return the passes for one build.

    Args:
        precision: precision of the engine. All but ``"float32"`` keep float16 tensors as they are,
            and do not fuse convolutions with depthwise ones.
        non_fusable_ops: names of elementwise ops for which a backend has no generated code.
        non_decomposed_ops: names of ops that a backend implements better than their decomposition.
        supported_composite_ops: names of composite ops that a backend implements: ``"fused_pair"``,
            ``"attention"``, ``"conv_sum"``, ``"gather"`` (a Gather with an epilogue), and
            ``"int8_products"`` (products of bytes).
        storage_dtype: element type in which float32 weights will be stored.
    """
    passes: list[Pass] = []
    composites = frozenset(supported_composite_ops)
    for graph_pass in DEFAULT_PIPELINE:
        if _COMPOSITE_OPS.get(type(graph_pass)) not in (None, *composites):
            continue
        match graph_pass:
            case PromoteHalf() | FuseConvDepthwise() if precision != "float32":
                continue
            case FoldScaleShift():
                passes.append(replace(graph_pass, storage=storage_dtype))
            case FoldZeroPoints():
                passes.append(replace(graph_pass, kernels="int8_products" in composites))
            case FuseEpilogues():
                excluded, gathers = tuple(sorted(non_fusable_ops)), "gather" in composites
                passes.append(replace(graph_pass, excluded=excluded, gathers=gathers))
            case Decompose():
                passes.append(replace(graph_pass, excluded=tuple(sorted(non_decomposed_ops))))
            case _:
                passes.append(graph_pass)
    return tuple(passes)
