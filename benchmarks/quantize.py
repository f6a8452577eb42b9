"""Quantised twins of the benchmark models: static QuantizeLinear and DequantizeLinear pairs.

Activations are uint8 with a zero point, weights int8 with a scale for each output channel. Scales
come from a few random inputs: what is measured is speed, and random weights have no accuracy.
"""

from __future__ import annotations

import importlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

    Inputs = Mapping[str, NDArray[Any]]

SAMPLES: Final = 4
"""Inputs that scales are found from."""


def quantized_model(file: Path, folder: Path, draw: Callable[[int], Inputs]) -> Path:
    """Return the quantised twin of a model, made when it is not in ``folder`` yet.

    Args:
        file: a float32 model.
        folder: where twins are kept.
        draw: random inputs for a seed.
    """
    made = folder / f"{file.stem}.int8.onnx"
    if made.exists():
        return made
    folder.mkdir(parents=True, exist_ok=True)
    quantization = cast("Any", importlib.import_module("onnxruntime.quantization"))
    prepare = cast("Any", importlib.import_module("onnxruntime.quantization.shape_inference"))
    with tempfile.TemporaryDirectory() as scratch:
        prepared, quantized = Path(scratch) / "prepared.onnx", Path(scratch) / made.name
        prepare.quant_pre_process(str(file), str(prepared), skip_symbolic_shape=True)
        quantization.quantize_static(
            str(prepared),
            str(quantized),
            _samples(draw, quantization.CalibrationDataReader)(),
            quant_format=quantization.QuantFormat.QDQ,
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
            per_channel=True,
        )
        made.write_bytes(quantized.read_bytes())
    return made


def _samples(draw: Callable[[int], Inputs], base: Any) -> Any:
    """A reader of random inputs, as the quantiser wants one."""

    class Samples(base):  # type: ignore[misc]
        def __init__(self) -> None:
            self._left: Iterator[Inputs] = (draw(seed) for seed in range(1, SAMPLES + 1))

        def get_next(self) -> Inputs | None:
            return next(self._left, None)

    return Samples
