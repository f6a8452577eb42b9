"""Values that are sound nearly nowhere, and doors: public functions with sound arguments.

A door is made afresh for each call, for a call may change what it is on. Its parameters come from
its signature, so one that is added is covered.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

import smelt

if TYPE_CHECKING:
    from collections.abc import Callable

_HUGE: Final = 1 << 70

ODD: Final[tuple[Any, ...]] = (
    *(None, True, False, ..., object(), 1 + 1j, math.nan, math.inf, -math.inf, 1e308),
    *(-1, 0, 1.5, 3.0, _HUGE, -_HUGE, 10**5000, 1 << 33, (1 << 63) - 1),
    *("", "3", "h", "\0", "\ud800", "\u0663", "float32", "x" * 5000, "1,2", b"", b"3", b"\xff"),
    *([], (), {}, set[int](), [[]], [1, [2, 3]], (1, None), [1.5, 2], ["a", "b"], [math.nan, 1]),
    *((-1, -1), (0, 0), (_HUGE, _HUGE), (1 << 33, 1 << 33), [True, True], (1, 2, 3, 4, 5), (1,)),
    *((3, "h", 8), (3, -8, 8), ("3", "8", "8"), [None], [object()], [{}], ([1], [2], [3])),
    *({1: 2}, {"data": None}, {"data": (1, "h")}, {"data": [[1, 2], 3]}, {"data": object()}),
    *(np.int64(1), np.int64(-1), np.uint8(200), np.float32(math.nan), np.bool_(True), np.array(1)),  # noqa: FBT003
    *(np.array([1, 2]), np.array([1.5, 2]), np.zeros(0), np.zeros((2, 2)), np.array([None, 1])),
    *(np.array(["a"]), np.array(1 + 1j), np.array([1], "M8[s]"), np.zeros(3, [("a", "i4")])),
)
"""Values of wrong types, out of range, ragged, nested, not finite, not of this library."""


@dataclasses.dataclass(frozen=True)
class Door:
    """A function that a user calls, and arguments with which it works."""

    name: str
    make: Callable[[], tuple[Callable[..., Any], dict[str, Any]]]
    like: Callable[..., Any] | None = None
    """What has the parameters, where the function passes all on."""
    skipped: int = 0
    """Parameters of ``like`` that come first and are not asked about."""

    def arguments(self) -> list[str]:
        """The parameters that have a name."""
        function, _ = self.make()
        kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        shape = inspect.signature(self.like or function)
        return [p.name for p in shape.parameters.values() if p.kind not in kinds][self.skipped :]

    def call(self, **changed: Any) -> object:
        """Call it with sound arguments, but for those that are given."""
        function, sound = self.make()
        return function(**{**sound, **changed})


def method_door(owner: Callable[[], object], method: str, **sound: Any) -> Door:
    """The door that a method is, on an object made afresh."""
    name = f"{type(owner()).__name__}.{method}"
    return Door(name, lambda: (getattr(owner(), method), dict(sound)))


def value_door(name: str, act: Callable[[Any], object], sound: object) -> Door:
    """A door for one value."""

    def call(value: Any) -> object:
        return act(value)

    return Door(name, lambda: (call, {"value": sound}))


# ---- what doors are on

WEIGHTS: Final = np.ones((4, 2, 3, 3), np.float32)


def network() -> tuple[smelt.NetworkDefinition, smelt.Tensor]:
    """A network with an input of two channels, and one layer."""
    net = smelt.NetworkDefinition("odd")
    x = net.add_input("data", "float32", (2, 6, 6))
    weights = WEIGHTS.reshape(2, 4, 3, 3)[:, :2]
    y = net.add_convolution(x, 2, 3, weights, np.zeros(2, np.float32), padding=1, name="conv")
    net.mark_output(y)
    return net, x


def engine() -> smelt.Engine:
    """Its engine, which computes nothing."""
    return smelt.build(network()[0], device="null", tune="none")
