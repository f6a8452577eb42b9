"""``smelt run``: arrays in, and pictures made into arrays as the help says."""

from __future__ import annotations

import os
import tracemalloc
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from smelt import ops
from smelt.builder import build, load
from smelt.cli._image_preprocessing import ImagePreprocessing, image_to_array
from smelt.errors import SmeltError
from smelt.importers.caffe import new_message
from smelt.ir import Graph
from smelt.types import DType, TensorType
from tests.support.small_models import save_model, two_inputs_model

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from tests.cli.conftest import Smelt

FLOAT = np.dtype(np.float32)
OPEN = (1, 3, None, None)


def _pixels(path: Path) -> NDArray[np.float32]:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"), np.float32)


def _prepared(path: Path, shape: tuple[int | None, ...], **options: Any) -> NDArray[Any]:
    return image_to_array(str(path), shape, FLOAT, ImagePreprocessing(**options))


def test_without_labels_there_is_no_column_for_them(smelt: Smelt, engine: Path) -> None:
    lines = smelt("run", engine, "--input", "image=zeros").out.splitlines()
    assert [line.split() for line in lines if "class" in line] == [["class", "score"]]


def test_an_engine_answers_with_its_best_classes_and_their_labels(
    smelt: Smelt, engine: Path, picture: Path, tmp_path: Path
) -> None:
    labels = tmp_path / "labels.txt"
    labels.write_text("\n".join(f"class {i}" for i in range(10)))
    answer = smelt(
        "run", engine, "--image", picture, "--labels", labels, "--top", 3, "--scale", "1/255",
        "--json",
    )  # fmt: skip
    detail = answer.json["outputs"]["prob"]
    assert [row["label"] for row in detail["top"]] == [f"class {r['index']}" for r in detail["top"]]
    scores = [row["score"] for row in detail["top"]]
    assert scores == sorted(scores, reverse=True)
    assert len(scores) == 3

    image = _prepared(picture, (1, 3, 16, 16), scale=(1 / 255,))
    with load(engine) as loaded, loaded.create_context() as context:
        wanted = context.run({"image": image})["prob"][0]
    assert detail["top"][0]["index"] == int(wanted.argmax())
    np.testing.assert_allclose(detail["values"][0], wanted, rtol=1e-6)


def test_the_json_answer_has_its_documented_keys(smelt: Smelt, engine: Path, picture: Path) -> None:
    detail = smelt("run", engine, "--image", picture, "--json").json
    assert set(detail) == {
        "engine", "network", "image", "preparation", "milliseconds", "outputs",
    }  # fmt: skip
    assert detail["preparation"] == {
        "input": "image", "resize": "exact", "filter": "area", "crop": "auto", "channels": "bgr",
        "mean": "0", "scale": "1", "array": "float32[1, 3, 16, 16]",
    }  # fmt: skip
    assert set(detail["outputs"]["prob"]) == {
        "dtype", "shape", "min", "max", "mean", "not_finite", "top", "values",
    }  # fmt: skip


def test_of_a_strangers_engine_it_is_told_once_that_its_code_is_not_run(
    smelt: Smelt,
    engine: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("SMELT_HOME", str(tmp_path / "another user"))
    assert smelt("run", engine, "--input", "image=zeros").code == 0
    (detail,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert "which is not trusted" in detail.getMessage()
    assert "its kernels are compiled here" in detail.getMessage()


def test_the_text_answer_is_a_table_of_classes(smelt: Smelt, engine: Path, picture: Path) -> None:
    text = smelt("run", engine, "--image", picture, "--top", "2").out
    assert "prob  float32[1, 10]" in text
    assert "score" in text
    assert "as image: resize exact, filter area, crop auto, channels bgr, mean 0, scale 1" in text


@pytest.mark.parametrize(
    ("arguments", "detail"),
    [
        (("--input", "image=cat.jpg"), "cat.jpg is a picture, but --input takes a .npy file"),
        (("--input", "image=zeros", "--labels", "nope"), "nope cannot be read: No such file"),
    ],
)
def test_what_is_misplaced_or_missing_is_told_in_plain_words(
    smelt: Smelt, engine: Path, arguments: tuple[str, ...], detail: str
) -> None:
    answer = smelt("run", engine, *arguments)
    assert answer.code == 1
    assert detail in answer.err
    assert "Errno" not in answer.err


def test_a_model_instead_of_an_engine_is_built_first(
    smelt: Smelt, model: Path, picture: Path
) -> None:
    answer = smelt(
        "run", model, "--tune", "none", "--image", picture, "--output", "relu1", "--json"
    )
    assert list(answer.json["outputs"]) == ["relu1"]


def test_inputs_may_be_files_zeros_or_random_and_outputs_saved(
    smelt: Smelt, tmp_path: Path
) -> None:
    path = save_model(two_inputs_model(), tmp_path / "two.onnx")
    a = np.random.default_rng(1).standard_normal((2, 6)).astype(np.float32)
    np.save(tmp_path / "a.npy", a.astype(np.float64))
    saved = tmp_path / "out.npz"
    options = ("--tune", "none", "--shape", "a=2x6", "--shape", "b=2x4")
    answer = smelt(
        "run", path, *options, "--input", f"a={tmp_path / 'a.npy'}", "--input", "b=zeros",
        "--save", saved, "--json",
    )  # fmt: skip
    assert answer.code == 0, answer.err
    with np.load(saved) as archive:
        np.testing.assert_allclose(archive["y"], answer.json["outputs"]["y"]["values"])
        assert (archive["y"] >= 0).all()
    assert "top" not in answer.json["outputs"]["y"]


def test_files_hold_bfloat16_as_two_bytes_each(smelt: Smelt, tmp_path: Path) -> None:
    graph = Graph("twice")
    x = graph.add_input("x", TensorType(DType.BFLOAT16, (3,)))
    graph.outputs.append(graph.add(ops.Add(), x, x, name="y").output)
    build(graph, tune="none").save(tmp_path / "twice.engine")
    numbers = np.array([1, -2.5, 300]).astype(DType.BFLOAT16.numpy)
    np.save(tmp_path / "x.npy", numbers)
    saved = tmp_path / "out.npz"
    given = f"x={tmp_path / 'x.npy'}"
    answer = smelt("run", tmp_path / "twice.engine", "--input", given, "--save", saved, "--json")
    assert answer.json["outputs"]["y"]["values"] == [2, -5, 600]
    with np.load(saved) as made:
        assert (made["y"].view(numbers.dtype) == 2 * numbers).all()


@pytest.mark.parametrize(
    ("options", "code", "detail"),
    [
        ([], 1, "1 input has no value: give --input image=FILE.npy (or --image FILE for an image)"),
        (["--input", "picture=random"], 1, "no input 'picture'; it has: image"),
        (["--input", "image"], 2, "is not of the form NAME=VALUE"),
        (["--input", "image=none.npy"], 1, "none.npy cannot be read as a .npy array"),
        (
            ["--output", "scores", "--input", "image=zeros"],
            1,
            "it has: prob. To have other tensors",
        ),
        (["--image", "none.jpg"], 1, "none.jpg cannot be read: No such file"),
        (["--labels", "none.txt", "--input", "image=zeros"], 1, "--labels none.txt cannot be read"),
        (["--precision", "float16"], 2, "already built; --precision cannot change it"),
        (["--mean", "a,b"], 1, "is neither a list of numbers"),
        (["--mean", "1,2"], 1, "--mean has 2 numbers; the input has 3 channels"),
        (["--scale", "1/0"], 2, "is not a number"),
        (["--resize", "large"], 2, "'large' is not valid; it must be exact"),
        (["--resize", "none", "--crop", "40"], 1, "40x32"),
        (["--crop", "round"], 2, "'round' is not valid; it must be auto"),
    ],
)
def test_what_cannot_be_run_is_told_in_one_line(
    smelt: Smelt, engine: Path, picture: Path, options: list[str], code: int, detail: str
) -> None:
    if any(option in ("--mean", "--resize", "--crop", "--scale") for option in options):
        options = ["--image", str(picture), *options]
    answer = smelt("run", engine, *options)
    assert answer.code == code
    assert answer.out == ""
    if detail != "40x32":
        assert detail in answer.err
    assert code == 2 or answer.err.count("\n") == 1


def test_a_text_is_no_picture(smelt: Smelt, engine: Path, tmp_path: Path) -> None:
    path = tmp_path / "cat.jpg"
    path.write_text("a cat")
    answer = smelt("run", engine, "--image", path)
    assert answer.code == 1
    assert "is not a valid picture in one of the formats PNG, JPEG" in answer.err


def test_a_picture_cut_off_is_an_error(smelt: Smelt, engine: Path, picture: Path) -> None:
    path = picture.with_name("cut.png")
    path.write_bytes(picture.read_bytes()[:-40])
    answer = smelt("run", engine, "--image", path)
    assert answer.code == 1
    assert answer.err.count("\n") == 1


# ---- preparation, step by step


def test_without_resizing_pixels_stand_in_bgr_planes(picture: Path) -> None:
    array = _prepared(picture, OPEN, resize="none")
    np.testing.assert_array_equal(array[0], _pixels(picture)[:, :, ::-1].transpose(2, 0, 1))


def test_the_channel_order_may_be_rgb(picture: Path) -> None:
    array = _prepared(picture, OPEN, resize="none", channel_order="rgb")
    np.testing.assert_array_equal(array[0, 0], _pixels(picture)[:, :, 0])


def test_the_mean_in_the_networks_order_is_subtracted_before_the_scale(picture: Path) -> None:
    array = _prepared(picture, OPEN, resize="none", mean="104,117,123", scale=(0.5, 1.0, 2.0))
    bgr = _pixels(picture)[:, :, ::-1]
    wanted = (bgr - [104, 117, 123]) * [0.5, 1, 2]
    np.testing.assert_allclose(array[0], wanted.transpose(2, 0, 1))


def test_the_shorter_side_is_resized_and_the_centre_cropped(picture: Path) -> None:
    array = _prepared(picture, (1, 3, 12, 12), resize="shorter:16", channel_order="rgb")
    half = _pixels(picture).reshape(16, 2, 24, 2, 3).mean((1, 3))
    np.testing.assert_allclose(array[0], half[2:14, 6:18].transpose(2, 0, 1), atol=1.0)


def test_exactly_the_inputs_size_is_the_default_and_areas_are_averaged(picture: Path) -> None:
    array = _prepared(picture, (1, 3, 16, 24), channel_order="rgb")
    half = _pixels(picture).reshape(16, 2, 24, 2, 3).mean((1, 3))
    np.testing.assert_allclose(array[0], half.transpose(2, 0, 1), atol=1.0)


@pytest.mark.parametrize("size", [(256, 341), (37, 53), (640, 800)])
def test_areas_are_averaged_as_opencv_does(tmp_path: Path, size: tuple[int, int]) -> None:
    cv2: Any = pytest.importorskip("cv2")
    pixels = np.random.default_rng(4).integers(0, 256, (375, 500, 3)).astype(np.uint8)
    Image.fromarray(pixels[:, :, ::-1].copy()).save(tmp_path / "noise.png")
    height, width = size
    array = _prepared(tmp_path / "noise.png", (1, 3, height, width))
    wanted = cv2.resize(pixels, (width, height), interpolation=cv2.INTER_AREA)
    np.testing.assert_allclose(array[0], wanted.transpose(2, 0, 1), atol=1.0)
    assert np.abs(array[0] - wanted.transpose(2, 0, 1)).mean() < 0.1  # its fixed-point rounding


def test_a_tall_picture_takes_memory_for_its_pixels_and_no_matrix_of_rows(tmp_path: Path) -> None:
    Image.new("RGB", (1, 60000), (9, 8, 7)).save(tmp_path / "tall.png")
    tracemalloc.start()
    try:
        array = _prepared(tmp_path / "tall.png", (1, 3, 512, 4), channel_order="rgb")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    np.testing.assert_allclose(array[0, :, 100, 2], (9, 8, 7))
    assert peak < 16 << 20


@pytest.mark.parametrize("size", [(1, 70000), (70000, 1)])
def test_a_picture_with_a_side_beyond_the_limit_is_refused(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    Image.new("L", size).save(tmp_path / "long.png")
    with pytest.raises(SmeltError, match="MAX_IMAGE_EXTENT is 65,536"):
        _prepared(tmp_path / "long.png", (1, 3, 8, 8))
    Image.new("L", (2, 2)).save(tmp_path / "small.png")
    with pytest.raises(SmeltError, match="MAX_IMAGE_EXTENT is 65,536"):
        _prepared(tmp_path / "small.png", OPEN, resize=f"{size[0]}x{size[1]}")


def test_a_size_may_be_given_as_width_by_height(picture: Path) -> None:
    assert _prepared(picture, OPEN, resize="24x8").shape == (1, 3, 8, 24)
    assert _prepared(picture, OPEN, resize="none", crop="10x6").shape == (1, 3, 6, 10)
    assert _prepared(picture, OPEN, resize="none", crop="10").shape == (1, 3, 10, 10)


def test_channels_may_stand_last(picture: Path) -> None:
    array = _prepared(picture, (1, 32, 48, 3), channel_order="rgb")
    np.testing.assert_array_equal(array[0], _pixels(picture))
    again = _prepared(picture, (1, 32, 48, 3), channel_order="rgb", layout="nhwc")
    np.testing.assert_array_equal(array, again)


def test_an_input_of_one_channel_gets_a_grey_picture(picture: Path) -> None:
    array = _prepared(picture, (1, 1, 32, 48))
    with Image.open(picture) as image:
        np.testing.assert_array_equal(array[0, 0], np.asarray(image.convert("L")))


def test_integers_are_rounded_and_kept_in_range(picture: Path) -> None:
    options = ImagePreprocessing(resize="none", mean="100", scale=(2.0,), channel_order="rgb")
    array = image_to_array(str(picture), OPEN, np.dtype(np.uint8), options)
    wanted = np.clip((_pixels(picture) - 100) * 2, 0, 255).astype(np.uint8)
    np.testing.assert_array_equal(array[0], wanted.transpose(2, 0, 1))


def test_a_picture_that_lies_on_its_side_is_turned_as_its_exif_says(
    picture: Path, tmp_path: Path
) -> None:
    path = tmp_path / "turned.png"
    with Image.open(picture) as image:
        exif = image.getexif()
        exif[0x0112] = 6  # to be turned by a quarter
        image.save(path, exif=exif)
    assert _prepared(path, OPEN, resize="none").shape == (1, 3, 48, 32)


@pytest.mark.parametrize("shape", [(3, 40, 50), (1, 3, 40, 50), (40, 50, 3)])
def test_a_mean_image_is_cropped_around_its_centre(
    picture: Path, tmp_path: Path, shape: tuple[int, ...]
) -> None:
    planes = np.arange(3 * 40 * 50, dtype=np.float32).reshape(3, 40, 50) / 60
    mean = planes.transpose(1, 2, 0) if shape[-1] == 3 else planes.reshape(shape)
    np.save(tmp_path / "mean.npy", mean)
    array = _prepared(picture, OPEN, resize="none", mean=str(tmp_path / "mean.npy"))
    bgr = _pixels(picture)[:, :, ::-1].transpose(2, 0, 1)
    np.testing.assert_allclose(array[0], bgr - planes[:, 4:36, 1:49])


def test_a_mean_may_be_caffes_binaryproto(picture: Path, tmp_path: Path) -> None:
    blob: Any = new_message("BlobProto")
    blob.num, blob.channels, blob.height, blob.width = 1, 3, 32, 48
    blob.data.extend([7.0] * (3 * 32 * 48))
    (tmp_path / "mean.binaryproto").write_bytes(blob.SerializeToString())
    array = _prepared(picture, OPEN, resize="none", mean=str(tmp_path / "mean.binaryproto"))
    np.testing.assert_array_equal(array[0, 2], _pixels(picture)[:, :, 0] - 7)


def test_a_mean_image_that_is_too_small_is_refused(picture: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "mean.npy", np.zeros((3, 8, 9), np.float32))
    detail = r"shape \[3, 8, 9\] and does not cover a picture of 32x48x3"
    with pytest.raises(SmeltError, match=detail):
        _prepared(picture, OPEN, resize="none", mean=str(tmp_path / "mean.npy"))


def test_a_pickle_in_place_of_an_array_is_not_read(picture: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "mean.npy", np.array([{"evil": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(SmeltError, match=r"cannot be read as a \.npy array"):
        _prepared(picture, OPEN, resize="none", mean=str(tmp_path / "mean.npy"))


@pytest.mark.parametrize("shape", [(1, 10), (1, 5, 16, 16), (1, 2, 3, 4, 5)])
def test_an_input_that_is_no_picture_refuses_one(picture: Path, shape: tuple[int, ...]) -> None:
    with pytest.raises(SmeltError, match=r"--input NAME=file\.npy"):
        _prepared(picture, shape)


def test_labels_may_be_a_printed_dictionary(smelt: Smelt, engine: Path, tmp_path: Path) -> None:
    path = tmp_path / "labels.txt"
    path.write_text("\n".join(f" {i}: 'class {i}'," for i in range(10)) + "}")
    detail = smelt("run", engine, "--input", "image=random", "--labels", path, "--json").json
    best = detail["outputs"]["prob"]["top"][0]
    assert best["label"] == f"class {best['index']}"


@pytest.mark.shared
def test_a_photograph_is_recognised_with_caffes_preparation(smelt: Smelt, shared: Path) -> None:
    folder = shared / "models" / "squeezenet_v1.0"
    answer = smelt(
        "run", folder / "SqueezeNet_deploy.prototxt",
        "--weights", next(folder.glob("*.caffemodel")), "--tune", "none",
        "--image", shared / "data" / "imagenet" / "images" / "n01820546_lorikeet.JPEG",
        "--resize", "shorter:256", "--mean", "104,117,123", "--top", "5",
        "--labels", shared / "data" / "imagenet" / "imagenet1000_clsidx_to_labels.txt",
        "--json",
    )  # fmt: skip
    (output,) = answer.json["outputs"].values()
    assert output["top"][0]["label"] == "lorikeet"


def test_too_few_labels_are_told(smelt: Smelt, engine: Path, tmp_path: Path) -> None:
    path = tmp_path / "labels.txt"
    path.write_text("cat\ndog\n")
    answer = smelt("run", engine, "--input", "image=zeros", "--labels", path)
    assert answer.code == 0
    assert "has 2 names, but prob has 10 classes" in answer.err


def test_an_engine_where_a_model_is_needed_is_called_one(smelt: Smelt, engine: Path) -> None:
    for command in (["build"], ["compare"]):
        answer = smelt(*command, engine)
        assert answer.code == 1
        assert "is an engine, not a model; give the model" in answer.err


def test_what_is_no_array_is_never_called_a_pickle(
    smelt: Smelt, engine: Path, tmp_path: Path
) -> None:
    path = tmp_path / "x.npy"
    path.write_text("not an array")
    answer = smelt("run", engine, "--input", f"image={path}")
    assert answer.code == 1
    assert "pickle" not in answer.err


def test_results_that_are_no_numbers_are_told(smelt: Smelt, engine: Path, tmp_path: Path) -> None:
    path = tmp_path / "nan.npy"
    np.save(path, np.full((1, 3, 16, 16), np.nan, np.float32))
    answer = smelt("run", engine, "--input", f"image={path}", "--json")
    assert answer.json["outputs"]["prob"]["not_finite"] == 10
    answer = smelt("run", engine, "--input", f"image={path}")
    assert answer.err == "prob: 10 elements are infinite or NaN\n"


@pytest.mark.parametrize(
    "array", [np.array(["a"]), np.float32(3), np.zeros(3, complex), np.zeros(3, [("a", "f4")])]
)
def test_a_mean_is_real_numbers(
    smelt: Smelt, engine: Path, picture: Path, tmp_path: Path, array: NDArray[Any]
) -> None:
    np.save(tmp_path / "mean.npy", array)
    answer = smelt("run", engine, "--image", picture, "--mean", tmp_path / "mean.npy")
    assert answer.code == 1
    assert "real numbers" in answer.err


def test_a_label_of_no_possible_number_is_a_line_like_others(
    smelt: Smelt, engine: Path, tmp_path: Path
) -> None:
    labels = tmp_path / "labels.txt"
    labels.write_text(f"0: 'a'\n1{5000 * '0'}: 'b'\n")
    assert smelt("run", engine, "--input", "image=zeros", "--labels", labels).code == 0


@pytest.mark.parametrize("command", ["run", "bench"])
def test_an_input_of_another_rank_is_refused(
    smelt: Smelt, engine: Path, tmp_path: Path, command: str
) -> None:
    np.save(tmp_path / "flat.npy", np.zeros((48, 16), np.float32))
    answer = smelt(command, engine, "--input", f"image={tmp_path / 'flat.npy'}")
    assert "flat.npy has shape [48, 16], but input image takes [1, 3, 16, 16]" in answer.err


def test_an_engine_is_known_by_its_content_whatever_it_is_called(
    smelt: Smelt, engine: Path, tmp_path: Path
) -> None:
    path = tmp_path / "engine.onnx"
    path.write_bytes(engine.read_bytes())
    assert smelt("run", path, "--input", "image=zeros").code == 0
    assert "--tune cannot change it" in smelt("run", path, "--tune", "none").err


def test_a_file_of_another_width_is_converted_and_that_is_said(
    smelt: Smelt, engine: Path, tmp_path: Path
) -> None:
    for dtype in (np.float32, np.float64):
        np.save(tmp_path / f"{dtype.__name__}.npy", np.zeros((1, 3, 16, 16), dtype))
    wide = smelt("run", engine, "--input", f"image={tmp_path / 'float64.npy'}")
    assert wide.code == 0
    assert "float64.npy is converted from float64 to float32, the type of input image" in wide.err
    assert (
        "converted" not in smelt("run", engine, "--input", f"image={tmp_path / 'float32.npy'}").err
    )


def test_a_label_of_nothing_but_spaces_is_read_at_once(
    smelt: Smelt, engine: Path, picture: Path, tmp_path: Path
) -> None:
    labels = tmp_path / "labels.txt"
    labels.write_text("0: ''" + " " * 200_000 + "x")
    assert smelt("run", engine, "--image", picture, "--labels", labels).code == 0


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
@pytest.mark.parametrize("option", ["--image", "--labels", "--mean", "--input", "ENGINE"])
def test_a_pipe_in_place_of_a_file_is_refused_without_waiting(
    option: str, smelt: Smelt, engine: Path, picture: Path, tmp_path: Path
) -> None:
    pipe = tmp_path / "pipe.npy"
    os.mkfifo(pipe)
    options: dict[str, object] = {"ENGINE": engine, "--image": picture}
    options |= {option: f"image={pipe}" if option == "--input" else pipe}
    if option == "--input":
        del options["--image"]
    words = [word for pair in options.items() for word in pair if word != "ENGINE"]
    answer = smelt("run", *words)
    assert answer.code != 0
    assert "it is a pipe; it must be a regular file" in answer.err


def test_a_picture_that_only_pillow_calls_too_large_is_decoded_without_a_word(
    picture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    assert _prepared(picture, OPEN, resize="none").shape == (1, 3, 32, 48)


def test_a_label_ends_at_a_line_feed_alone(smelt: Smelt, engine: Path, tmp_path: Path) -> None:
    names = ["a\u2028b", "a\rb", "a\x0bb", "a\x85b", *(f"class {i}" for i in range(4, 10))]
    path = tmp_path / "labels.txt"
    path.write_bytes("".join(f"{name}\r\n" for name in names).encode())
    detail = smelt(
        "run", engine, "--input", "image=random", "--labels", path, "--top", 10, "--json"
    )
    best = detail.json["outputs"]["prob"]["top"]
    assert [row["label"] for row in best] == [names[row["index"]] for row in best]


@pytest.mark.parametrize("option", ["--save", "--save-inputs"])
@pytest.mark.parametrize("name", ["out.txt", "out.npy", "out"])
def test_an_archive_under_another_name_is_refused(
    smelt: Smelt, engine: Path, tmp_path: Path, option: str, name: str
) -> None:
    answer = smelt("run", engine, "--input", "image=zeros", option, tmp_path / name)
    assert answer.code == 1
    assert f"name it {tmp_path / 'out.npz'}" in answer.err
    assert not (tmp_path / name).exists()
