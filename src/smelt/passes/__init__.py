"""Graph passes that preserve results, one per file, and the pipeline in which they run.

``ALL_PASSES`` lists every pass.
"""

from smelt.passes._base import Note, Pass, PassResult
from smelt.passes._pair_fusion import fuse_pair_nodes, unfusable_pair_reason
from smelt.passes._pass_manager import PassPipelineReport, PassRecord, run_passes
from smelt.passes.assign_precision import assign_precision
from smelt.passes.decompose import Decompose
from smelt.passes.fold_constants import FoldConstants
from smelt.passes.inline_branches import InlineBranches
from smelt.passes.merge_siblings import MergeSiblings
from smelt.passes.pipeline import DEFAULT_PIPELINE, pipeline
from smelt.passes.promote_half import PromoteHalf
from smelt.passes.remove_unused import RemoveUnused

__all__ = [
    "ALL_PASSES",
    "DEFAULT_PIPELINE",
    "Decompose",
    "FoldConstants",
    "InlineBranches",
    "MergeSiblings",
    "Note",
    "Pass",
    "PassRecord",
    "PassPipelineReport",
    "PassResult",
    "PromoteHalf",
    "RemoveUnused",
    "assign_precision",
    "fuse_pair_nodes",
    "pipeline",
    "run_passes",
    "unfusable_pair_reason",
]

ALL_PASSES: tuple[type[Pass], ...] = tuple(dict.fromkeys(map(type, DEFAULT_PIPELINE)))
"""Every pass, in the order of the pipeline."""
