"""Times candidates, keeps the timing cache, and chooses tactics and formats for the whole graph."""

from smelt.tuner._chains import Chains, Kind, Proposal, launched, propose_chains
from smelt.tuner._choose import Candidates, Choice, Timer, choose
from smelt.tuner._context import Effort, NetworkTrial, Stage
from smelt.tuner._cuda_rehearsal import CudaScene
from smelt.tuner._cuda_trial import CudaLaboratory
from smelt.tuner._hints import HintTimer
from smelt.tuner._measure import MeasuringTimer, tensor_bytes
from smelt.tuner._rehearsal import CpuScene, Rehearsal
from smelt.tuner._specimen import lower_alone, relative_error
from smelt.tuner._timings import TimingCache, check_timings
from smelt.tuner._trial import Laboratory

__all__ = [
    "Candidates",
    "Chains",
    "Choice",
    "CpuScene",
    "CudaLaboratory",
    "CudaScene",
    "Effort",
    "HintTimer",
    "Kind",
    "Laboratory",
    "MeasuringTimer",
    "NetworkTrial",
    "Proposal",
    "Rehearsal",
    "Stage",
    "Timer",
    "TimingCache",
    "check_timings",
    "choose",
    "launched",
    "lower_alone",
    "propose_chains",
    "relative_error",
    "tensor_bytes",
]
