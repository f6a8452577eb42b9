"""Small Caffe files made in the tests, and OpenCV's answers to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from smelt.importers.caffe import import_caffe, new_message
from smelt.interp import interpret
from smelt.ir import verify

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from smelt.ir import Array

Weights = dict[str, list["Array"]]


def random_array(*shape: int, seed: int = 0, low: float = -1.0, high: float = 1.0) -> Array:
    """Reproducible float32 numbers."""
    source = np.random.default_rng([seed, *shape])
    return source.uniform(low, high, shape).astype(np.float32)


def input_text(shape: Sequence[int], name: str = "data") -> str:
    """An Input layer."""
    dims = " ".join(f"dim: {d}" for d in shape)
    return (
        f'layer {{ name: "{name}" type: "Input" top: "{name}" '
        f"input_param {{ shape {{ {dims} }} }} }}\n"
    )


def layer_text(
    kind: str,
    parameters: str = "",
    *,
    name: str = "out",
    bottoms: Sequence[str] = ("data",),
    tops: Sequence[str] = ("out",),
) -> str:
    """One layer in the current format."""
    wires = " ".join([*(f'bottom: "{b}"' for b in bottoms), *(f'top: "{t}"' for t in tops)])
    return f'layer {{ name: "{name}" type: "{kind}" {wires} {parameters} }}\n'


def caffemodel(
    weights: Mapping[str, Sequence[Array]], kinds: Mapping[str, str] | None = None
) -> bytes:
    """A caffemodel in the current format."""
    net = new_message("NetParameter")
    for name, arrays in weights.items():
        layer = net.layer.add(name=name, type=(kinds or {}).get(name, "Convolution"))
        for array in arrays:
            blob = layer.blobs.add()
            blob.shape.dim.extend(array.shape)
            blob.data.extend(array.ravel().tolist())
    data: bytes = net.SerializeToString()
    return data


def evaluate(
    prototxt: str, weights: Weights, inputs: Mapping[str, Array], **options: Any
) -> dict[str, Array]:
    """Import a network, run it on the references and return its outputs by name."""
    model = caffemodel(weights) if weights else None
    graph, _ = import_caffe(prototxt, model, **options)
    verify(graph)
    return dict(interpret(graph, inputs))


def evaluate_with_opencv(
    prototxt: str, model: bytes, inputs: Mapping[str, Array], outputs: Sequence[str]
) -> list[Array]:
    """OpenCV's outputs of a network."""
    cv2: Any = pytest.importorskip("cv2")
    net = cv2.dnn.readNetFromCaffe(
        np.frombuffer(prototxt.encode(), np.uint8), np.frombuffer(model, np.uint8)
    )
    for name, array in inputs.items():
        net.setInput(array, name)
    return list(net.forward(list(outputs)))


def relative_error(actual: Array, wanted: Array) -> float:
    """The largest difference, relative to the largest magnitude that is wanted."""
    wanted = np.asarray(wanted)
    difference = np.abs(np.asarray(actual).reshape(wanted.shape) - wanted).max()
    return float(difference / max(float(np.abs(wanted).max()), 1e-30))


def f32(values: object) -> Array:
    """Numbers as a float32 array."""
    return np.array(values, np.float32)
