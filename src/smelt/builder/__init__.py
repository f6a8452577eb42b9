"""Network and options to engine: the one room that sees everything below it."""

from smelt.builder._build import build
from smelt.builder._load import load
from smelt.builder._options import EFFORTS, BuildOptions, Progress, TuningEffort
from smelt.builder._shapes import Bounds, ShapeSpec, boxes_of

__all__ = [
    "EFFORTS",
    "Bounds",
    "BuildOptions",
    "Progress",
    "ShapeSpec",
    "TuningEffort",
    "boxes_of",
    "build",
    "load",
]
