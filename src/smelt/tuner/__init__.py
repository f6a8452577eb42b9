"""Times candidates, keeps the timing cache, and chooses tactics and formats for the whole graph."""

from smelt.tuner._choose import Candidates, Choice, Timer, choose
from smelt.tuner._context import Effort, NetworkTrial, Stage
from smelt.tuner._hints import HintTimer
from smelt.tuner._measure import MeasuringTimer
from smelt.tuner._rehearsal import Rehearsal
from smelt.tuner._timings import TimingCache
from smelt.tuner._trial import Laboratory, relative_error

__all__ = [
    "Candidates",
    "Choice",
    "Effort",
    "HintTimer",
    "Laboratory",
    "MeasuringTimer",
    "NetworkTrial",
    "Rehearsal",
    "Stage",
    "Timer",
    "TimingCache",
    "choose",
    "relative_error",
]
