"""Small networks with seeded weights, of every kind of layer that shares memory or threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import smelt
from smelt.interp import interpret

if TYPE_CHECKING:
    from numpy.typing import NDArray

SHAPE = (3, 20, 20)


def weights(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    """Normal weights that keep magnitudes."""
    rng = np.random.default_rng(seed)
    fan = max(1, int(np.prod(shape[1:])))
    return np.asarray(rng.standard_normal(shape) / fan**0.5, np.float32)


def small_network(
    first: NDArray[np.float32] | None = None, **options: Any
) -> smelt.NetworkDefinition:
    """Convolution, pooling, two branches that are joined, a product, and a softmax."""
    net = smelt.NetworkDefinition("small", **options)
    x = net.add_input("data", "float32", SHAPE)
    filters = weights(16, 3, 3, 3) if first is None else first
    y = net.add_convolution(x, 16, (3, 3), filters, weights(16), padding=1, name="conv1")
    y = net.add_activation(y, "relu", name="relu1")
    y = net.add_pooling(y, "max", 2, stride=2, name="pool1")
    left = net.add_convolution(y, 8, 1, weights(8, 16, 1, 1, seed=1), name="left")
    right = net.add_convolution(y, 24, 3, weights(24, 16, 3, 3, seed=2), padding=1, name="right")
    y = net.add_concatenation([left, right], name="join")
    y = net.add_fully_connected(y, 10, weights(10, 3200, seed=3), weights(10, seed=4), name="fc")
    net.mark_output(net.add_softmax(y, name="prob"))
    return net


def pictures(count: int, seed: int = 0) -> NDArray[np.float32]:
    """Input of the small network."""
    return np.random.default_rng(seed).standard_normal((count, *SHAPE)).astype(np.float32)


def answers(network: smelt.NetworkDefinition, images: NDArray[np.float32]) -> NDArray[np.float32]:
    """What the references make of the input."""
    (made,) = interpret(network.graph, {"data": images}).values()
    return np.asarray(made, np.float32)


def network_of_differences() -> smelt.NetworkDefinition:
    """Sums that are nearly alike, what they differ by, and layers that err as others do.

    Half a step of float16 in the sums is some hundredths of their differences.
    """
    net = smelt.NetworkDefinition("differences")
    y = net.add_input("data", "float32", (4, 6, 6))
    alike = 0.5 + weights(8, 4, 1, 1) / 64
    y = net.add_convolution(y, 8, 1, alike, weights(8) / 64, name="sums")
    y = net.add_activation(y, "relu", name="sums_relu")
    by_one = 64 * (np.eye(8) - np.eye(8, k=1) - np.eye(8, k=-7)).astype(np.float32)
    y = net.add_convolution(y, 8, 1, by_one.reshape(8, 8, 1, 1), name="differences")
    for number in range(3):
        filters = weights(8, 8, 3, 3, seed=number)
        y = net.add_convolution(y, 8, 3, filters, padding=1, name=f"body{number}")
        y = net.add_activation(y, "relu", name=f"body{number}_relu")
    net.mark_output(net.add_convolution(y, 4, 1, weights(4, 8, 1, 1), name="head"))
    return net
