"""How many pictures and digits a network knows, however it was built."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.support.real_models import imagenet_picture, mnist, model_named

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.real_models import Array


def digits_read(shared: Path, **options: Any) -> int:
    """How many of the 10,000 digits LeNet reads."""
    images, labels = mnist(shared)
    engine = model_named("lenet").build(shared, max_batch_size=512, **options)
    with engine.create_context() as context:
        parts = [
            context.run({"data": images[at : at + 512] / 256})["prob"]
            for at in range(0, len(images), 512)
        ]
    answers = np.concatenate(parts).reshape(len(images), 10).argmax(axis=1)
    return int((answers == labels).sum())


IMAGENET: dict[str, tuple[str, Callable[[Path], Array]]] = {
    "squeezenet_v1.0_caffe": (
        "squeezenet_v1.0",
        lambda path: imagenet_picture(path, 227, area=True, mean=(104, 117, 123)),
    ),
    "squeezenet1.1_fp16_onnx": (
        "squeezenet1.1_fp16",
        lambda path: imagenet_picture(path, 224, area=True, mean=(104, 117, 123)).astype(
            np.float16
        ),
    ),
    "efficientnet_lite0_onnx": (
        "efficientnet_lite0",
        lambda path: imagenet_picture(path, 224, area=True, mean=127, scale=1 / 128, rgb=True),
    ),
}
"""The networks whose best classes are on record, and how they want their pictures."""


def classes_of_pictures(
    key: str, shared: Path, **options: Any
) -> list[tuple[list[int], list[int]]]:
    """For each of fifty pictures the five best classes, and those of the other engines."""
    name, prepare = IMAGENET[key]
    folder = shared / "data/imagenet"
    known = json.loads((folder / "reference_top5_1000.json").read_text())
    wanted = dict(zip(known["files"], known["top5"][key], strict=True))
    engine = model_named(name).build(shared, **options)
    (binding,) = engine.inputs
    pictures = sorted((folder / "images").iterdir())
    assert len(pictures) == 50
    found: list[tuple[list[int], list[int]]] = []
    with engine.create_context() as context:
        for path in pictures:
            (scores,) = context.run({binding.name: prepare(path)}).values()
            # Of equal scores, and half precision has them, the last class was listed first.
            best = np.argsort(scores.reshape(-1), kind="stable")[::-1][:5].tolist()
            found.append((best, wanted[path.name]))
    return found
