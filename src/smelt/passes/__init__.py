"""Graph passes that preserve results, one per file, and the pipeline in which they run."""

from smelt.passes._base import Note, Pass, PassResult
from smelt.passes._pair_fusion import fuse_pair_nodes, unfusable_pair_reason
from smelt.passes._pass_manager import PassRecord, PassReport, run_passes
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
from smelt.passes.pipeline import DEFAULT_PIPELINE, pipeline
from smelt.passes.promote_half import PromoteHalf
from smelt.passes.recognize_activations import RecognizeActivations
from smelt.passes.remove_noops import RemoveNoops
from smelt.passes.remove_unused import RemoveUnused
from smelt.passes.simplify_concats import SimplifyConcats
from smelt.passes.sink_transposes import SinkTransposes

__all__ = [
    "ALL_PASSES",
    "DEFAULT_PIPELINE",
    "AbsorbQuantization",
    "FuseConvDepthwise",
    "CombineAffines",
    "Decompose",
    "FoldConstants",
    "FuseConvSums",
    "FoldScaleShift",
    "FuseAttention",
    "FuseEpilogues",
    "InlineBranches",
    "MergeSiblings",
    "MoveQuantization",
    "Note",
    "Pass",
    "PassRecord",
    "PassReport",
    "PassResult",
    "PromoteHalf",
    "FoldQuantizeScales",
    "RecognizeActivations",
    "FuseLayerNormalization",
    "RemoveNoops",
    "RemoveUnused",
    "SimplifyConcats",
    "FoldZeroPoints",
    "SinkTransposes",
    "fuse_pair_nodes",
    "pipeline",
    "run_passes",
    "unfusable_pair_reason",
]

ALL_PASSES: tuple[type[Pass], ...] = (
    AbsorbQuantization,
    FuseConvDepthwise,
    CombineAffines,
    Decompose,
    FoldConstants,
    FuseConvSums,
    FoldScaleShift,
    FuseAttention,
    FuseEpilogues,
    InlineBranches,
    MergeSiblings,
    MoveQuantization,
    PromoteHalf,
    FoldQuantizeScales,
    RecognizeActivations,
    FuseLayerNormalization,
    RemoveNoops,
    RemoveUnused,
    SimplifyConcats,
    FoldZeroPoints,
    SinkTransposes,
)
