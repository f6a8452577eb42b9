"""Quantised twins of the benchmark models: static QuantizeLinear and DequantizeLinear pairs.

Activations are uint8 with a zero point, weights int8 with a scale for each output channel. Scales
come from a few random inputs: what is measured is speed, and random weights have no accuracy.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from benchmarks.support.models import CACHE, load_inputs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    Inputs = Mapping[str, NDArray[Any]]

SAMPLES: Final = 4
"""Inputs that scales are found from."""


def quantized_model(file: Path, inputs: Path) -> Path:
    """Return the quantised twin of a float32 model, made when it is not there yet.

    Args:
        file: the model.
        inputs: a file of its inputs by name: scales are found from random ones like them.
    """
    digest = hashlib.sha256(file.read_bytes()).hexdigest()[:12]
    made = CACHE / "int8" / f"{file.stem}-{digest}.onnx"
    if made.exists():
        return made
    made.parent.mkdir(parents=True, exist_ok=True)
    quantization = cast("Any", importlib.import_module("onnxruntime.quantization"))
    prepare = cast("Any", importlib.import_module("onnxruntime.quantization.shape_inference"))
    with tempfile.TemporaryDirectory() as scratch:
        prepared, quantized = str(Path(scratch) / "prepared.onnx"), Path(scratch) / made.name
        prepare.quant_pre_process(str(file), prepared, skip_symbolic_shape=True)
        quantization.quantize_static(
            prepared,
            str(quantized),
            _Samples(load_inputs(inputs)),
            quant_format=quantization.QuantFormat.QDQ,
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
            per_channel=True,
        )
        part = made.with_name(f".{made.name}.{os.getpid()}")
        part.write_bytes(quantized.read_bytes())
        part.replace(made)
    return made


class _Samples:
    """What the quantiser reads inputs from, one after the other, until there is None."""

    def __init__(self, inputs: Inputs) -> None:
        self._left = self._draw(inputs)

    def get_next(self) -> Inputs | None:
        """The next inputs."""
        return next(self._left, None)

    def __iter__(self) -> Iterator[Inputs]:
        """The inputs that are left."""
        return self._left

    @staticmethod
    def _draw(inputs: Inputs) -> Iterator[Inputs]:
        for seed in range(1, SAMPLES + 1):
            random = np.random.default_rng(seed)
            yield {
                name: random.standard_normal(array.shape).astype(array.dtype)
                if array.dtype.kind == "f"
                else array
                for name, array in inputs.items()
            }
