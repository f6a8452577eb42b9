"""Networks that nothing was tuned for: onnx's own light models, given seeded random weights.

Their weights come from ConstantOfShape there: one number everywhere, on which nothing is timed.
"""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

LIGHT: Final = (
    "bvlc_alexnet",
    "densenet121",
    "inception_v1",
    "inception_v2",
    "shufflenet",
    "vgg19",
    "zfnet512",
)
_INITIALIZERS_APART: Final = 4
"""Before this version shape inference knows only such initializers as are inputs, too."""
_PRODUCTS: Final = frozenset({"Conv", "Gemm", "MatMul"})
_FACTORS: Final = {("BatchNormalization", 1), ("BatchNormalization", 4), ("Mul", 0), ("Mul", 1)}
"""Operands that are near one: scales, variances."""


def build_light(name: str, file: Path) -> None:
    """Write a light model with random weights."""
    onnx = cast("Any", importlib.import_module("onnx"))
    root = Path(str(onnx.__file__)).parent
    model = onnx.load(str(root / "backend" / "test" / "data" / "light" / f"light_{name}.onnx"))
    graph = model.graph
    known = {t.name: onnx.numpy_helper.to_array(t) for t in graph.initializer}
    users = {
        used: (node.op_type, place)
        for node in reversed(graph.node)
        for place, used in enumerate(node.input)
    }
    random = np.random.default_rng(0)
    kept: list[Any] = []
    for node in graph.node:
        if node.op_type != "ConstantOfShape" or node.input[0] not in known:
            kept.append(node)
            continue
        array = _weights(tuple(map(int, known[node.input[0]])), node.output[0], users, random)
        graph.initializer.append(onnx.numpy_helper.from_array(array, node.output[0]))
    del graph.node[:]
    graph.node.extend(kept)
    model.ir_version = max(model.ir_version, _INITIALIZERS_APART)
    onnx.save(model, str(file))


def _weights(
    shape: tuple[int, ...],
    name: str,
    users: Mapping[str, tuple[str, int]],
    random: np.random.Generator,
) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Numbers for what a weight is used for, such that nothing grows or fades on the way."""
    op, place = users.get(name, ("", 0))
    if op in _PRODUCTS and place == 1:
        spread = math.sqrt(2.0 / max(1, math.prod(shape[1:])))
        return np.asarray(random.normal(0.0, spread, shape), np.float32)
    if (op, place) in _FACTORS:
        return np.asarray(random.uniform(0.8, 1.2, shape), np.float32)
    return np.asarray(random.normal(0.0, 0.05, shape), np.float32)
