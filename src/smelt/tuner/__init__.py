"""Tactic tuning: benches, the timing cache, and the choice of tactics and tensor formats."""

from smelt.tuner._benchmark_timer import BenchmarkTimer, is_not_timed, tensor_bytes
from smelt.tuner._cost_model_timer import CostModelTimer
from smelt.tuner._cpu_bench import CpuBench
from smelt.tuner._cuda_bench import CudaBench
from smelt.tuner._cuda_plan_fixture import CudaPlanFixture
from smelt.tuner._fused_pairs import (
    EquivalentPairs,
    FusedPairTimings,
    PairProposal,
    propose_fused_pairs,
    with_pair_pdl,
)
from smelt.tuner._in_network_trial import CpuPlanFixture, InNetworkTrial
from smelt.tuner._in_network_tuner import InNetworkEffort, InNetworkTuner
from smelt.tuner._isolated_node import largest_error, lower_isolated_node, relative_error
from smelt.tuner._tactic_choice import Candidates, TacticChoice, Timer, choose
from smelt.tuner._timing_cache import TimingCache, check_timings

__all__ = [
    "Candidates",
    "FusedPairTimings",
    "TacticChoice",
    "CpuPlanFixture",
    "CudaBench",
    "CudaPlanFixture",
    "InNetworkEffort",
    "CostModelTimer",
    "EquivalentPairs",
    "CpuBench",
    "BenchmarkTimer",
    "InNetworkTuner",
    "PairProposal",
    "InNetworkTrial",
    "Timer",
    "TimingCache",
    "check_timings",
    "choose",
    "is_not_timed",
    "with_pair_pdl",
    "largest_error",
    "lower_isolated_node",
    "propose_fused_pairs",
    "relative_error",
    "tensor_bytes",
]
