"""Every model built in every way: AVX-512 and AVX2, Winograd on and off, one to four threads.

Small models run always and in all of them, the others with the slow tests: on both processors, and
by turns with Winograd on the one or on the other. Networks without trained weights, some of
hundreds of megabytes, are built for AVX2 alone, by turns with Winograd and without;
`test_light_models.py` builds them for this machine.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx.backend.test
import pytest

from tests.support.answers import IMAGENET, classes_of_pictures, digits_read
from tests.support.real_models import ALL_MODELS, RealModel, relative_error, run_engine
from tests.support.variants import VARIANTS, Variant

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.shared

_LIGHT = Path(onnx.backend.test.__file__).parent / "data" / "light"
_FOR_AVX2 = tuple(variant for variant in VARIANTS if variant.processor == "x86-64-v3")
_LIKE_ALEXNET = {"light_vgg19", "light_zfnet512"}
"""Their layers are alike, and they have up to half a gigabyte of weights to pack."""
_CROSSED = (VARIANTS[0], VARIANTS[3]), (VARIANTS[1], VARIANTS[2])
"""Both processors, and both ways with Winograd, in two builds of four."""
_SMALL = {"lenet", "cifar10_quick", "mnist_cntk", "mtcnn_r", "mtcnn_o_onnx"}


def _light_model(path: Path) -> RealModel:
    inputs = onnx.ModelProto.FromString(path.read_bytes()).graph.input
    (name,) = (i.name for i in inputs if i.name.endswith("data_0"))
    ramp = (np.arange(3 * 224 * 224, dtype=np.float32) / (3 * 224 * 224)).reshape(1, 3, 224, 224)
    return RealModel(path.stem, lambda _: (path,), lambda _: {name: ramp})


def _ways() -> Iterator[tuple[RealModel, Variant]]:
    small = [model for model in ALL_MODELS if model.name in _SMALL]
    yield from itertools.product(small, VARIANTS)
    for number, model in enumerate(model for model in ALL_MODELS if model.name not in _SMALL):
        yield from ((model, variant) for variant in _CROSSED[number % 2])
    light = [path for path in sorted(_LIGHT.glob("*.onnx")) if path.stem not in _LIKE_ALEXNET]
    for number, path in enumerate(light):
        yield _light_model(path), _FOR_AVX2[number % 2]


def _params() -> list[object]:
    return [
        pytest.param(
            model,
            variant,
            id=f"{model.name}-{variant.name}",
            marks=[] if model.name in _SMALL else [pytest.mark.slow],
        )
        for model, variant in _ways()
    ]


@pytest.mark.parametrize(("model", "variant"), _params())
def test_it_computes_what_the_other_engine_computes_with_the_same_bits_on_more_threads(
    model: RealModel, variant: Variant, shared: Path
) -> None:
    with variant.held():
        engine = model.build(shared, device=variant.device)
    given = model.inputs(shared)
    alone, *others = (run_engine(engine, given, threads) for threads in (1, 2, 3, 4))
    for made in others:
        for name, array in alone.items():
            np.testing.assert_array_equal(made[name], array, err_msg=name)
    for name, array in model.peer(shared).items():
        wanted = array[:, :, array[0, 0, :, 2] > 0] if name == "detection_out" else array
        assert relative_error(alone[name], wanted) <= model.tolerance, name


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
