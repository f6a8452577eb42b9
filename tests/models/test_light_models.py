"""The onnx package's networks without trained weights: the outputs that come with them.

VGG-19, half a gigabyte of AlexNet's kinds of layers, is read elsewhere and not built.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx.backend.test
import pytest
from onnx import TensorProto, numpy_helper

import smelt
from tests.support.real_models import arena_ratio, reference_steps, run_engine

_FOLDER = Path(onnx.backend.test.__file__).parent / "data" / "light"
_NAMES = (
    "bvlc_alexnet",
    "densenet121",
    "inception_v1",
    "inception_v2",
    "resnet50",
    "shufflenet",
    "squeezenet",
    "vgg19",
    "zfnet512",
)


def test_the_package_has_these_networks_and_no_others() -> None:
    assert {path.stem for path in _FOLDER.glob("*.onnx")} == {f"light_{name}" for name in _NAMES}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in _NAMES if name != "vgg19"])
def test_a_light_model_gives_the_expected_output_on_any_threads_in_kernels_alone_in_little_memory(
    name: str,
) -> None:
    engine = smelt.build(smelt.network_from_onnx(_FOLDER / f"light_{name}.onnx"), tune="none")
    assert reference_steps(engine) == []
    assert arena_ratio(engine) <= 1.1
    (binding,) = engine.inputs
    shape = tuple(int(str(extent)) for extent in binding.shape)
    count = int(np.prod(shape))
    given = (np.arange(count) / count).reshape(shape).astype(np.float32)
    runs = (run_engine(engine, {binding.name: given}, threads) for threads in (1, 2, 3, 4))
    mine, *others = (array for run in runs for array in run.values())
    for made in others:
        np.testing.assert_array_equal(made, mine)
    message = TensorProto.FromString((_FOLDER / f"light_{name}_output_0.pb").read_bytes())
    np.testing.assert_allclose(mine, numpy_helper.to_array(message), rtol=1e-3, atol=1e-5)
