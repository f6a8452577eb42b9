"""The ways to build for this machine that must all be right: processors, Winograd or not."""

from __future__ import annotations

import itertools
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from smelt.backends import NodeRefusedError
from smelt.backends.cpu import target_named
from smelt.backends.cpu.families.conv import ConvFamily
from smelt.backends.cpu.families.winograd import WinogradFamily
from smelt.engine import detect_host

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from smelt.backends import Tactic
    from smelt.backends.cpu import CpuTarget
    from smelt.ir import Node


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to build."""

    processor: str
    winograd: bool
    """Winograd wherever it can be, or nowhere: not where it is thought to be faster."""

    @property
    def name(self) -> str:
        return f"{self.processor}-winograd-{'on' if self.winograd else 'off'}"

    @property
    def device(self) -> str:
        return f"cpu:{self.processor}"

    @contextmanager
    def held(self) -> Generator[None]:
        """What is built meanwhile is built so; skips where this machine would not run it."""
        if not set(target_named(self.processor).features) <= set(detect_host().features):
            pytest.skip(f"this processor does not run {self.processor}")
        with pytest.MonkeyPatch.context() as patch:
            if self.winograd:
                patch.setattr(ConvFamily, "tactics", _tactics_but_for_winograds)
            else:
                patch.setattr(WinogradFamily, "tactics", _no_tactics)
            yield


VARIANTS = tuple(
    Variant(processor, winograd)
    for processor, winograd in itertools.product(("x86-64-v4", "x86-64-v3"), (True, False))
)

_direct = ConvFamily.tactics


def _tactics_but_for_winograds(
    family: ConvFamily, node: Node, target: CpuTarget
) -> Iterator[Tactic]:
    theirs: list[Tactic] = []
    with suppress(NodeRefusedError):
        theirs += WinogradFamily().tactics(node, target)
    if not theirs:
        yield from _direct(family, node, target)


def _no_tactics(*_: Any) -> tuple[()]:
    return ()
