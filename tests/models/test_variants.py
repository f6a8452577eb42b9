"""Every model built in every way: AVX-512 and AVX2, Winograd on and off, one to four threads.

Small models run always, the others with the slow tests.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx.backend.test
import pytest

from tests.support.answers import IMAGENET, classes_of_pictures, digits_read
from tests.support.real_models import ALL_MODELS, Arrays, RealModel, relative_error, run_engine
from tests.support.variants import VARIANTS, Variant

if TYPE_CHECKING:
    from smelt import Engine

pytestmark = pytest.mark.shared

_LIGHT = Path(onnx.backend.test.__file__).parent / "data" / "light"
_SMALL = {"lenet", "cifar10_quick", "mnist_cntk", "mtcnn_r", "mtcnn_o_onnx"}


def _light_model(path: Path) -> RealModel:
    inputs = onnx.ModelProto.FromString(path.read_bytes()).graph.input
    (name,) = (i.name for i in inputs if i.name.endswith("data_0"))
    ramp = (np.arange(3 * 224 * 224, dtype=np.float32) / (3 * 224 * 224)).reshape(1, 3, 224, 224)
    return RealModel(path.stem, lambda _: (path,), lambda _: {name: ramp})


MODELS = (*ALL_MODELS, *(_light_model(path) for path in sorted(_LIGHT.glob("*.onnx"))))


@dataclass(frozen=True, slots=True)
class _Built:
    model: RealModel
    engine: Engine
    alone: Arrays
    """What it gives on one thread."""


def _params() -> list[object]:
    return [
        pytest.param(
            (model, variant),
            id=f"{model.name}-{variant.name}",
            marks=[] if model.name in _SMALL else [pytest.mark.slow],
        )
        for model, variant in itertools.product(MODELS, VARIANTS)
    ]


@pytest.fixture(scope="module", params=_params())
def built(request: pytest.FixtureRequest, shared: Path) -> _Built:
    model, variant = request.param
    with variant.held():
        engine = model.build(shared, device=variant.device)
    return _Built(model, engine, run_engine(engine, model.inputs(shared), threads=1))


def test_it_computes_what_the_other_engine_computes(built: _Built, shared: Path) -> None:
    for name, array in built.model.peer(shared).items():
        wanted = array[:, :, array[0, 0, :, 2] > 0] if name == "detection_out" else array
        assert relative_error(built.alone[name], wanted) <= built.model.tolerance, name


@pytest.mark.parametrize("threads", [2, 3, 4])
def test_it_gives_the_same_bits_on_more_threads(built: _Built, threads: int, shared: Path) -> None:
    made = run_engine(built.engine, built.model.inputs(shared), threads)
    for name, array in built.alone.items():
        np.testing.assert_array_equal(made[name], array, err_msg=name)


_every_variant = pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.name)


@_every_variant
def test_lenet_reads_9914_of_the_10000_digits(variant: Variant, shared: Path) -> None:
    with variant.held():
        assert digits_read(shared, device=variant.device) == 9914


@pytest.mark.slow
@_every_variant
@pytest.mark.parametrize("key", IMAGENET)
def test_the_five_best_classes_of_fifty_pictures_stay(
    key: str, variant: Variant, shared: Path
) -> None:
    with variant.held():
        found = classes_of_pictures(key, shared, device=variant.device)
    assert [entry for entry in found if set(entry[0]) != set(entry[1])] == []
    assert [entry for entry in found if entry[0][0] != entry[1][0]] == []
