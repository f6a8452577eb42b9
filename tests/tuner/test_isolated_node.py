"""What a trial puts in, and what must come out."""

from __future__ import annotations

import numpy as np
import pytest

from smelt import ops
from smelt.ir import Graph, Node
from smelt.tuner._isolated_node import random_inputs_and_reference
from smelt.types import DType, TensorType


def _conv(batch: int) -> Node:
    graph = Graph()
    x = graph.add_input("x", TensorType(DType.FLOAT32, (batch, 3, 5, 5)))
    weights = np.random.default_rng(1).standard_normal((4, 3, 3, 3)).astype(np.float32)
    return graph.add(ops.Conv((3, 3)), x, graph.add_constant(weights, "w"), name="conv")


@pytest.mark.parametrize("batch", [1, 4, 17])
def test_results_are_the_references_whatever_the_batch(batch: int) -> None:
    node = _conv(batch)
    arrays, (wanted,) = random_inputs_and_reference(
        node, {}, np.random.default_rng(0), DType.FLOAT16
    )
    assert arrays[0] is not None
    assert arrays[0].shape == (batch, 3, 5, 5)
    assert np.array_equal(arrays[0], arrays[0].astype(np.float16))
    np.testing.assert_allclose(wanted, node.op.reference(*arrays)[0], rtol=1e-5, atol=1e-5)


def test_the_images_of_a_large_batch_are_a_few_in_random_order() -> None:
    arrays, _ = random_inputs_and_reference(_conv(17), {}, np.random.default_rng(0), DType.FLOAT32)
    assert arrays[0] is not None
    images = [image.tobytes() for image in arrays[0]]
    assert len(set(images)) == 4
    assert images[:8] != images[4:12]


def test_a_batch_whose_rows_may_depend_on_each_other_is_random_throughout() -> None:
    graph = Graph()
    x = graph.add_input("x", TensorType(DType.FLOAT32, (17, 3, 5)))
    node = graph.add(ops.Softmax(0), x, name="softmax")
    arrays, _ = random_inputs_and_reference(node, {}, np.random.default_rng(0), DType.FLOAT32)
    assert arrays[0] is not None
    assert len({row.tobytes() for row in arrays[0]}) == 17


def test_indices_are_in_range_of_an_axis_of_one_element() -> None:
    graph = Graph()
    x = graph.add_input("x", TensorType(DType.FLOAT32, (1, 3)))
    i = graph.add_input("i", TensorType(DType.INT64, (64,)))
    node = graph.add(ops.Gather(), x, i, name="pick")
    arrays, (made,) = random_inputs_and_reference(node, {}, np.random.default_rng(0), DType.FLOAT32)
    assert arrays[1] is not None
    assert not arrays[1].any()
    assert made.shape == (64, 3)
