"""A function of your own in the middle of a network, in two ways that give the same result.

usage: python own_op.py

1. Two engines with your function between them, all three on one stream.
2. One engine: the function is an op, made known with smelt.register_op.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, cast

import numpy as np

import smelt
from smelt.errors import ShapeError
from smelt.ir import Case, Op
from smelt.types import override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from smelt.ir import Array, Operand
    from smelt.network import Tensor
    from smelt.types import ValueType

BATCH = 4
IMAGE = (3, 16, 16)
FEATURES = (8, 14, 14)
CLASSES = 5


# ---- the function, and the op that it is


def squash(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Shorten each pixel's vector of channels to below one, keeping its direction."""
    square: NDArray[np.float32] = (x * x).sum(axis=1, keepdims=True)
    return x * np.sqrt(square) / (1 + square)


@smelt.register_op
@dataclass(frozen=True)
class Squash(Op):
    """`squash` as an op: fields would be its attributes, and it has none."""

    name: ClassVar[str] = "squash"

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        """The result has the input's type."""
        if len(inputs) != 1 or inputs[0] is None or inputs[0].tensor.rank < 2:
            raise ShapeError("Squash takes one tensor with a batch and channels")
        return (inputs[0].type,)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """What runs: plain numpy."""
        return tuple(squash(x) for x in inputs if x is not None)

    @classmethod
    @override
    def cases(cls) -> Iterator[Case]:
        """Examples on which conformance tests try the op."""
        yield Case("ones", cls(), (np.ones((1, 4, 2, 2), np.float32),))


# ---- the network, in two parts


def numbers(*shape: int) -> NDArray[np.float32]:
    """Weights of a fixed seed."""
    source = np.random.default_rng(shape)
    return source.standard_normal(shape, np.float32) / np.float32(np.prod(shape[1:]) ** 0.5)


def before(network: smelt.NetworkDefinition, x: Tensor) -> Tensor:
    """What comes before the function: image to features."""
    x = network.add_convolution(x, FEATURES[0], 3, numbers(FEATURES[0], 3, 3, 3), name="conv")
    return network.add_activation(x, "relu", name="relu")


def after(network: smelt.NetworkDefinition, x: Tensor) -> Tensor:
    """What comes after it: features to odds."""
    weights = numbers(CLASSES, int(np.prod(FEATURES)))
    x = network.add_fully_connected(x, CLASSES, weights, name="classes")
    return network.add_softmax(x, name="odds")


def run_two_engines(images: NDArray[np.float32]) -> NDArray[np.float32]:
    """Engine A, the function, engine B: each waits for what was queued before it."""
    first, second = smelt.NetworkDefinition("a"), smelt.NetworkDefinition("b")
    first.mark_output(before(first, first.add_input("image", "float32", IMAGE)))
    second.mark_output(after(second, second.add_input("features", "float32", FEATURES)))
    engine_a = smelt.build(first, max_batch_size=BATCH)
    engine_b = smelt.build(second, max_batch_size=BATCH)
    from_a, to_b = (np.zeros((BATCH, *FEATURES), np.float32) for _ in range(2))
    odds = np.zeros((BATCH, CLASSES, 1, 1), np.float32)

    def your_layer() -> None:
        to_b[:] = squash(from_a)

    with (
        engine_a.create_context() as context_a,
        engine_b.create_context() as context_b,
        smelt.Stream("cpu") as stream,
    ):
        context_a.enqueue(BATCH, [images, from_a], stream)
        stream.submit(your_layer)
        context_b.enqueue(BATCH, [to_b, odds], stream)
        stream.synchronize()  # nothing above has waited for anything
    return odds


def run_one_engine(images: NDArray[np.float32]) -> NDArray[np.float32]:
    """The whole network with the op in it; the engine names the op and holds none of its code."""
    network = smelt.NetworkDefinition("whole")
    features = before(network, network.add_input("image", "float32", IMAGE))
    squashed = cast("Tensor", network.add(Squash(), features, name="squash"))
    network.mark_output(after(network, squashed))
    data = smelt.build(network, max_batch_size=BATCH).serialize()
    engine = smelt.load(data)
    print("layers of the one engine:", ", ".join(layer.name for layer in engine.layers))
    with engine.create_context() as context:
        odds: NDArray[np.float32] = context.run({"image": images})["odds"]
    return odds


def main() -> None:
    """Run both and compare."""
    images = np.random.default_rng(7).random((BATCH, *IMAGE), np.float32)
    two, one = run_two_engines(images), run_one_engine(images)
    print("classes by two engines:", two.reshape(BATCH, -1).argmax(1).tolist())
    print("classes by one engine: ", one.reshape(BATCH, -1).argmax(1).tolist())
    difference = float(np.abs(two - one).max())
    print(f"largest difference:     {difference:.1e}")
    if difference > 1e-6:
        raise SystemExit("they differ")


if __name__ == "__main__":
    main()
