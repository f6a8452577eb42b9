"""What was queued on the streams of a driver without a GPU, and what graphs are made of."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass
class Node:
    """Work in a graph."""

    work: Callable[[], object]
    needs: list[Node]
    event: int | None = None
    """What it marks."""


@dataclass
class Queue:
    """A stream: work by the number at which it was queued."""

    is_blocking: bool
    work: deque[tuple[int, Callable[[], object]]] = field(
        default_factory=deque[tuple[int, "Callable[[], object]"]]
    )
    captured: list[Node] | None = None
    """Its nodes while it is being captured."""
    last: list[Node] = field(default_factory=list[Node])
    """On what the next node will depend."""


class Queues(dict[int, Queue]):
    """Streams by handle; other libraries' come unannounced."""

    def __missing__(self, handle: int) -> Queue:
        return self.setdefault(handle, Queue(is_blocking=handle == 0))


def perform(nodes: list[tuple[Node, Callable[[], object]]]) -> None:
    """Do a graph's work, of what may be done next always the latest."""
    done: set[int] = set()
    left = list(nodes)
    while left:
        pair = next(p for p in reversed(left) if all(id(n) in done for n in p[0].needs))
        left.remove(pair)
        pair[1]()
        done.add(id(pair[0]))
