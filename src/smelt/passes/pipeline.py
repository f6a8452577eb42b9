"""The order in which passes run."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from smelt.passes.absorb_quantization import AbsorbQuantization
from smelt.passes.chain_depthwise import ChainDepthwise
from smelt.passes.combine_affines import CombineAffines
from smelt.passes.decompose import Decompose
from smelt.passes.fold_constants import FoldConstants
from smelt.passes.fold_projections import FoldProjections
from smelt.passes.fold_scales import FoldScales
from smelt.passes.fuse_attention import FuseAttention
from smelt.passes.fuse_epilogues import FuseEpilogues
from smelt.passes.inline_branches import InlineBranches
from smelt.passes.merge_siblings import MergeSiblings
from smelt.passes.move_quantization import MoveQuantization
from smelt.passes.promote_half import PromoteHalf
from smelt.passes.push_scales import PushScales
from smelt.passes.recognize_activations import RecognizeActivations
from smelt.passes.recognize_norms import RecognizeNorms
from smelt.passes.remove_noops import RemoveNoops
from smelt.passes.remove_unused import RemoveUnused
from smelt.passes.simplify_concats import SimplifyConcats
from smelt.passes.simplify_integers import SimplifyIntegers
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
    SimplifyIntegers(),
    RemoveUnused(),
    PushScales(),
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
    FoldScales(),
    RemoveNoops(),
    RemoveUnused(),
    # Epilogues before siblings: siblings are merged with their epilogues, when these are alike.
    FuseEpilogues(),
    MergeSiblings(),
    FoldProjections(),
    # Last, of what no other pass has a use for apart.
    ChainDepthwise(),
    RemoveUnused(),
)
"""What builds run, for engines that compute in float32, if they want every composed op."""

_COMPOSED: dict[type[Pass], str] = {
    AbsorbQuantization: "integer",
    ChainDepthwise: "chain",
    FoldProjections: "conv_sum",
    FuseAttention: "attention",
}
"""The passes that make an op of several which not every backend has code for, and that op."""


def pipeline(
    precision: str = "float32",
    *,
    never_fused: Collection[str] = (),
    kept_whole: Collection[str] = (),
    composed: Collection[str] = ("chain", "integer"),
    storage: DType = DType.FLOAT32,
) -> tuple[Pass, ...]:
    """The passes for one build.

    Args:
        precision: what the engine computes in; all but float32 keep half precision as it is,
            and convolutions apart.
        never_fused: names of elementwise ops for which a backend has no generated code.
        kept_whole: names of ops for which a backend has code that is better than their parts.
        composed: names of ops, each of several, that a backend has code for: "chain", "attention",
            "gather" where an epilogue follows one, and "integer" where products of bytes have code.
        storage: as what float32 will be stored.
    """
    passes: list[Pass] = []
    for one in DEFAULT_PIPELINE:
        if _COMPOSED.get(type(one)) not in (None, *composed):
            continue
        match one:
            case PromoteHalf() | ChainDepthwise() if precision != "float32":
                continue
            case FoldScales():
                passes.append(replace(one, storage=storage))
            case SimplifyIntegers():
                passes.append(replace(one, kernels="integer" in composed))
            case FuseEpilogues():
                excluded = tuple(sorted(never_fused))
                passes.append(replace(one, excluded=excluded, gathers="gather" in composed))
            case Decompose():
                passes.append(replace(one, excluded=tuple(sorted(kept_whole))))
            case _:
                passes.append(one)
    return tuple(passes)
