"""What trained networks are for: their answers on real data."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

import smelt
from tests.support import downloads
from tests.support.answers import IMAGENET, classes_of_pictures, digits_read
from tests.support.real_models import (
    mnist,
    model_named,
    picture,
    relative_error,
    resized,
    run_engine,
    run_onnxruntime,
    speech_windows,
)

if TYPE_CHECKING:
    from pathlib import Path

    from smelt import Engine
    from tests.support.real_models import Array, Arrays

pytestmark = pytest.mark.shared


def test_lenet_reads_9914_of_the_10000_digits_in_batches(shared: Path) -> None:
    assert digits_read(shared) == 9914


def test_lenet_reads_as_many_digits_in_bfloat16(shared: Path) -> None:
    assert digits_read(shared, precision="bfloat16") >= 9900


@pytest.mark.slow
def test_cntks_network_reads_9891_of_the_10000_digits(shared: Path) -> None:
    images, labels = mnist(shared)
    engine = model_named("mnist_cntk").build(shared)
    with engine.create_context(threads=1) as context:
        answers = [
            int(context.run({"Input3": image[None]})["Plus214_Output_0"].argmax())
            for image in images
        ]
    assert int((np.array(answers) == labels).sum()) == 9891


@pytest.mark.parametrize("key", IMAGENET)
def test_the_five_best_classes_of_fifty_pictures_are_those_of_the_other_engines(
    key: str, shared: Path
) -> None:
    found = classes_of_pictures(key, shared)
    assert [entry for entry in found if set(entry[0]) != set(entry[1])] == []
    assert [entry for entry in found if entry[0][0] != entry[1][0]] == []


@pytest.mark.parametrize("key", IMAGENET)
def test_the_best_class_of_at_least_48_pictures_is_the_same_in_bfloat16(
    key: str, shared: Path
) -> None:
    found = classes_of_pictures(key, shared, precision="bfloat16")
    assert sum(best[0] == wanted[0] for best, wanted in found) >= 48


def test_ultraface_answers_alike_from_caffe_and_from_onnx(shared: Path) -> None:
    caffe, onnx = (
        run_engine(model.build(shared), model.inputs(shared))
        for model in map(model_named, ("ultraface_caffe", "ultraface_simplified"))
    )
    for name in ("scores", "boxes"):
        assert relative_error(caffe[name], onnx[name]) <= 1e-4


def test_ultraface_sees_the_astronauts_face(shared: Path) -> None:
    model = model_named("ultraface")
    found = run_engine(model.build(shared), model.inputs(shared))
    best = int(found["scores"][0, :, 1].argmax())
    assert found["scores"][0, best, 1] > 0.99
    left, top, right, bottom = found["boxes"][0, best]
    assert left < 0.45 < right
    assert top < 0.22 < bottom


@pytest.mark.parametrize("number", [0, 1, 3])
def test_fastestdet_finds_in_a_picture_what_onnx_runtime_finds(number: int, shared: Path) -> None:
    model = model_named("fastestdet")
    image = resized(picture(shared / f"data/images/{number}.jpg"), (352, 352))
    given = {"input.1": image.transpose(2, 0, 1)[None].astype(np.float32) / 255}
    (mine,) = run_engine(_engine("fastestdet", shared), given).values()
    (theirs,) = run_onnxruntime(str(model.files(shared)[0]), given).values()
    assert relative_error(mine, theirs) <= 1e-4
    assert _cells(mine) == _cells(theirs)
    assert _cells(mine)


def _cells(output: Array) -> list[tuple[int, int]]:
    """(cell, class) of what FastestDet is sure of."""
    rows = output[0].reshape(85, -1)
    sure = np.flatnonzero(rows[0] ** 0.6 * rows[5:].max(axis=0) ** 0.4 > 0.65)
    return [(int(cell), int(rows[5:, cell].argmax())) for cell in sure]


def test_pp_ocr_tells_a_text_from_a_text_upside_down(shared: Path) -> None:
    image: Array = picture(shared / "data/images/text.png")
    height, width = image.shape[:2]
    image = resized(image, (min(192, round(48 * width / height)), 48))
    values = np.zeros((2, 3, 48, 192), np.float32)
    for row, turned in enumerate((image, image[::-1, ::-1])):
        scaled = turned.transpose(2, 0, 1).astype(np.float32) / 127.5 - 1
        values[row, :, :, : scaled.shape[2]] = scaled
    engine = model_named("ppocr_cls").build(shared, shapes={"x": (2, 3, 48, 192)})
    (scores,) = run_engine(engine, {"x": values}).values()
    assert scores[0, 0] > 0.999
    assert scores[1, 1] > 0.999


@pytest.mark.parametrize(
    ("sound", "low", "high"),
    [("Front_Center", 0.99, 1.0), ("Rear_Left", 0.99, 1.0), ("Noise", 0.0, 0.1)],
)
def test_silero_hears_speech_and_no_speech_in_noise(
    sound: str, low: float, high: float, shared: Path
) -> None:
    zeros = np.zeros((1, 1, 128), np.float32)
    windows = speech_windows(shared / f"data/audio/{sound}.wav")
    given = {"input": windows, "h": zeros, "c": zeros}
    mine = run_engine(_engine("silero", shared), given)
    assert low <= float(mine["speech_probs"].max()) <= high
    theirs = run_onnxruntime(str(model_named("silero").files(shared)[0]), given)
    for name, array in theirs.items():
        assert relative_error(mine[name], array) <= 1e-4, name


@pytest.mark.parametrize(
    ("caffe", "onnx", "blobs"),
    [
        ("mtcnn_p", "mtcnn_p_onnx", {"conv4-2": "conv2d_4", "prob1": "softmax"}),
        ("mtcnn_r", "mtcnn_r_onnx", {"conv5-2": "dense_2", "prob1": "softmax_1"}),
        (
            "mtcnn_o",
            "mtcnn_o_onnx",
            {"conv6-2": "dense_5", "conv6-3": "dense_6", "prob1": "softmax_2"},
        ),
    ],
)
def test_mtcnn_answers_alike_from_caffe_and_from_onnx(
    caffe: str, onnx: str, blobs: dict[str, str], shared: Path
) -> None:
    first, second = model_named(caffe), model_named(onnx)
    given = first.inputs(shared)["data"]
    (name,) = second.inputs(shared)
    moved = np.ascontiguousarray(given.transpose(0, 2, 3, 1))
    theirs = run_engine(second.build(shared, shapes={name: moved.shape}), {name: moved})
    mine = run_engine(first.build(shared), {"data": given})
    for one, two in blobs.items():
        array = theirs[two].transpose(0, 3, 1, 2) if theirs[two].ndim == 4 else theirs[two]
        assert relative_error(mine[one], array) <= 1e-5, (one, two)


_SENTENCES = (
    "that is a happy person",
    "that is a happy dog",
    "that is a very happy person",
    "today is a sunny day",
)


def test_minilm_finds_sentences_alike_as_onnx_runtime_does(shared: Path) -> None:
    model = model_named("minilm")
    engine = model.build(shared)
    given = _tokens(_SENTENCES)
    mine = run_engine(engine, given)["sentence_embedding"]
    theirs = run_onnxruntime(str(model.files(shared)[0]), given)["sentence_embedding"]
    likeness = mine[1:] @ mine[0]
    np.testing.assert_allclose(likeness, theirs[1:] @ theirs[0], atol=1e-5)
    assert likeness[1] > likeness[0] > likeness[2]


def test_minilm_takes_any_batch_and_length_of_its_range(shared: Path) -> None:
    model = model_named("minilm")
    engine = model.build(shared)
    path = str(model.files(shared)[0])
    with engine.create_context() as context:
        for count, words in ((1, 1), (4, 5), (2, 4), (3, 2)):
            given = _tokens([" ".join(text.split()[:words]) for text in _SENTENCES[:count]])
            mine, theirs = context.run(given), run_onnxruntime(path, given)
            for name, array in theirs.items():
                assert mine[name].shape == array.shape
                assert relative_error(mine[name], array) <= 1e-4, (name, count, words)


def test_minilm_is_refused_for_texts_longer_than_its_table_of_positions(shared: Path) -> None:
    ranges = dict.fromkeys(
        ("input_ids", "attention_mask", "token_type_ids"), ((1, 1), (1, 12), (1, 513))
    )
    with pytest.raises(smelt.ShapeError, match="513 and 512 differ"):
        model_named("minilm").build(shared, shapes=ranges)


def _tokens(sentences: list[str] | tuple[str, ...]) -> Arrays:
    """Word pieces of sentences whose words are all in the vocabulary."""
    index = {piece: number for number, piece in enumerate(downloads.minilm_vocabulary())}
    rows = [[index[w] for w in ("[CLS]", *text.split(), "[SEP]")] for text in sentences]
    longest = max(map(len, rows))
    ids = np.array([row + [0] * (longest - len(row)) for row in rows], np.int64)
    return {
        "input_ids": ids,
        "attention_mask": (ids != 0).astype(np.int64),
        "token_type_ids": np.zeros_like(ids),
    }


def test_the_face_detector_is_sure_of_the_astronauts_face(shared: Path) -> None:
    model = model_named("face_ssd")
    (rows,) = run_engine(model.build(shared), model.inputs(shared)).values()
    assert rows[0, 0, 0, 2] > 0.9999
    left, top, right, bottom = rows[0, 0, 0, 3:]
    assert 0.3 < left < 0.45 < right < 0.6
    assert 0.0 < top < 0.22 < bottom < 0.45


def test_a_detector_that_finds_nothing_gives_no_row(shared: Path) -> None:
    engine = model_named("face_ssd").build(shared)
    (rows,) = run_engine(engine, {"data": np.zeros((1, 3, 300, 300), np.float32)}).values()
    assert rows.shape[:2] == (1, 1)
    assert rows.shape[3] == 7
    assert rows.shape[2] <= 200
    assert (rows[0, 0, :, 2] > 0.01).all()


_ENGINES: dict[str, Engine] = {}


def _engine(name: str, shared: Path) -> Engine:
    if name not in _ENGINES:
        _ENGINES[name] = model_named(name).build(shared)
    return _ENGINES[name]
