"""What detection ops share: greedy suppression of overlapping boxes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from smelt.ir import Array


def overlaps(box: Array, boxes: Array) -> Array:
    """Overlap of one box ``[x0, y0, x1, y1]`` with each of many: intersection over union."""
    low, high = np.maximum(box[:2], boxes[:, :2]), np.minimum(box[2:], boxes[:, 2:])
    shared = np.prod(np.maximum(high - low, 0), axis=1)
    area = np.prod(np.maximum(box[2:] - box[:2], 0))
    areas = np.prod(np.maximum(boxes[:, 2:] - boxes[:, :2], 0), axis=1)
    union = area + areas - shared
    return np.where(union > 0, shared / np.where(union > 0, union, 1), 0)


def suppress(
    boxes: Array, ranking: Array, threshold: float, limit: int, eta: float = 1.0
) -> list[int]:
    """The boxes that stay, at most ``limit``, best first.

    ``ranking`` holds indices of boxes, best first; a box goes when it overlaps a better one that
    stays by more than the threshold. Below 1, ``eta`` shrinks a threshold above one half after
    every box that stays.
    """
    kept: list[int] = []
    waiting = ranking
    while waiting.size and len(kept) < limit:
        best = int(waiting[0])
        kept.append(best)
        waiting = waiting[1:]
        if eta == 1.0:
            waiting = waiting[overlaps(boxes[best], boxes[waiting]) <= threshold]
        else:
            # The threshold that counts for a box is the one in force when its turn comes.
            if threshold > 0.5:
                threshold *= eta
            while waiting.size and overlaps(boxes[waiting[0]], boxes[kept]).max() > threshold:
                waiting = waiting[1:]
    return kept
