"""Times candidates, keeps the timing cache, and chooses tactics and formats for the whole graph."""

from smelt.tuner._choose import Candidates, Choice, Timer, choose
from smelt.tuner._hints import HintTimer
from smelt.tuner._timings import TimingCache
from smelt.tuner._trial import Laboratory, MeasuringTimer, relative_error

__all__ = [
    "Candidates",
    "Choice",
    "HintTimer",
    "Laboratory",
    "MeasuringTimer",
    "Timer",
    "TimingCache",
    "choose",
    "relative_error",
]
