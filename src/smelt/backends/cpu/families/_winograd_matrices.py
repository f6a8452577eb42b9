"""Transform matrices of Winograd's minimal filtering.

The Toom-Cook algorithm evaluates both factors at points, multiplies there and interpolates;
Winograd derived minimal filters from it. ``size`` results of a filter of ``taps`` cost ``size +
taps - 1`` multiplications instead of ``size * taps``. A strided filter is the sum of filters over
every ``stride``-th element, each with the taps that meet these elements.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from smelt.backends.cpu._math import multiply_add

if TYPE_CHECKING:
    from smelt.backends.cpu._emit import Emitter, Reg
    from smelt.ir import Array

Matrix = tuple[tuple[float, ...], ...]
"""A matrix as a tuple of rows."""

_POINTS: Final = (0, 1, -1, 2, -2)
"""Points at which the polynomials are evaluated, besides infinity. Zero and small powers of two
keep the rounding errors small."""


@dataclass(frozen=True, slots=True)
class WinogradScheme:
    """One axis of a tile: ``output @ ((weights @ taps) * (input @ elements))``."""

    window: int
    """Number of taps of the filter."""
    stride: int
    size: int
    """Number of results of a tile."""
    input: Matrix
    weights: Matrix
    output: Matrix

    @property
    def side(self) -> int:
        """Number of multiplications of a tile."""
        return len(self.weights)

    @property
    def reach(self) -> int:
        """Multiplications of a tile for the longest filter that a strided filter consists of.

        It determines the points in use, and with them the size of the matrices' entries.
        """
        return self.size + -(-self.window // self.stride) - 1

    @property
    def span(self) -> int:
        """Number of elements that a tile reads."""
        return len(self.input[0])

    @property
    def step(self) -> int:
        """Number of elements from the start of one tile to the start of the next."""
        return self.size * self.stride


@functools.cache
def winograd_scheme(window: int, stride: int, size: int) -> WinogradScheme:
    """Return the scheme of a strided filter of ``window`` taps, for tiles of ``size`` results."""
    span = (size - 1) * stride + window
    inputs: list[Array] = []
    weights: list[Array] = []
    outputs: list[Array] = []
    for phase in range(min(stride, window)):
        taps = len(range(phase, window, stride))
        a, g, b = _filter(size, taps)
        side = size + taps - 1
        read, met = np.zeros((side, span)), np.zeros((side, window))
        read[:, phase : phase + side * stride : stride] = b
        met[:, phase::stride] = g
        inputs.append(read)
        weights.append(met)
        outputs.append(a)
    joined = (np.concatenate(inputs), np.concatenate(weights), np.concatenate(outputs, axis=1))
    return WinogradScheme(window, stride, size, *map(_rows, joined))


def _filter(size: int, taps: int) -> tuple[Array, Array, Array]:
    """Return the matrices of results, taps and elements for a filter without stride."""
    if taps == 1:
        return np.eye(size), np.ones((size, 1)), np.eye(size)
    side = size + taps - 1
    points = np.array(_POINTS[: side - 1], np.float64)
    outputs, weights, inputs = (np.zeros(s) for s in ((size, side), (side, taps), (side, side)))
    outputs[:, :-1] = points ** np.arange(size)[:, None]
    outputs[-1, -1] = 1
    for i, point in enumerate(points):
        others = np.delete(points, i)
        weights[i] = point ** np.arange(taps) / np.prod(point - others)
        inputs[i, : side - 1] = np.poly(others)[::-1]
    weights[-1, -1] = 1
    inputs[-1] = np.poly(points)[::-1]
    return outputs, weights, inputs


def _rows(matrix: Array) -> Matrix:
    """Return a matrix as a tuple of rows of floats."""
    return tuple(tuple(float(x) for x in row) for row in matrix)


def _combine(e: Emitter, factors: Sequence[float], values: Sequence[Reg]) -> Reg:
    """Return the sum of ``values`` times the constant ``factors``.

    Terms with factor 1 come first, then those with -1, so that most need only an addition.
    """
    terms = [(f, v) for f, v in zip(factors, values, strict=True) if f != 0]
    terms.sort(key=lambda t: (t[0] != 1, abs(t[0]) != 1))
    (factor, total), *rest = terms
    if factor != 1:
        total = e.binary("fmul", total, e.constant(factor, total.type))
    for factor, value in rest:
        if abs(factor) == 1:
            total = e.binary("fadd" if factor == 1 else "fsub", total, value)
        else:
            total = multiply_add(e, value, e.constant(factor, value.type), total)
    return total


def transformed(
    e: Emitter, matrix: Sequence[Sequence[float]], read: Callable[[int, int], Reg]
) -> list[list[Reg]]:
    """Return ``matrix @ block @ matrix.T``; ``read`` loads the block column by column."""
    count = len(matrix[0])
    halves: list[list[Reg]] = []
    for column in range(count):
        values = [read(row, column) for row in range(count)]
        halves.append([_combine(e, line, values) for line in matrix])
    return [
        [_combine(e, line, [half[row] for half in halves]) for line in matrix]
        for row in range(len(matrix))
    ]
