"""Greedy non-maximum suppression of boxes for the detection ops."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from smelt.ir import Array


def overlaps(box: Array, boxes: Array) -> Array:
    """Return the intersection over union of a box ``[x0, y0, x1, y1]`` with each of ``boxes``."""
    low, high = np.maximum(box[:2], boxes[:, :2]), np.minimum(box[2:], boxes[:, 2:])
    shared = np.prod(np.maximum(high - low, 0), axis=1)
    area = np.prod(np.maximum(box[2:] - box[:2], 0))
    areas = np.prod(np.maximum(boxes[:, 2:] - boxes[:, :2], 0), axis=1)
    union = area + areas - shared
    return np.where(union > 0, shared / np.where(union > 0, union, 1), 0)


def suppress(
    boxes: Array, ranking: Array, threshold: float, limit: int, eta: float = 1.0
) -> list[int]:
    """Return the indices of at most ``limit`` boxes that are kept, best first.

    ``ranking`` holds the indices of boxes, best first. A box is suppressed if its overlap with a
    better box that is kept exceeds the threshold. After each kept box, a threshold above 0.5 is
    multiplied by ``eta``.
    """
    kept: list[int] = []
    candidates = ranking
    while candidates.size and len(kept) < limit:
        best = int(candidates[0])
        kept.append(best)
        candidates = candidates[1:]
        if eta == 1.0:
            candidates = candidates[overlaps(boxes[best], boxes[candidates]) <= threshold]
        else:
            # A box is compared with the threshold at the time when it is the next candidate.
            if threshold > 0.5:
                threshold *= eta
            while candidates.size and overlaps(boxes[candidates[0]], boxes[kept]).max() > threshold:
                candidates = candidates[1:]
    return kept
