"""The real models: how to read them, what to feed them, and what other engines make of it."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime
from PIL import Image

import smelt
from smelt.engine import HostCall
from smelt.inspect import report_of
from tests.support import downloads
from tests.support.noise import noise

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from smelt import Engine, NetworkDefinition
    from smelt.engine import Json

Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]

DATA_DEPENDENT = frozenset({"non_max_suppression", "prior_box", "detection_output", "if", "loop"})
"""The ops that may run as references: sorting, boxes and branches are no kernels."""


@dataclass(frozen=True, slots=True)
class RealModel:
    """One trained network and its peer."""

    name: str
    files: Callable[[Path], tuple[Path, ...]]
    """The ONNX file, or the prototxt and the caffemodel."""
    inputs: Callable[[Path], Arrays]
    outputs: tuple[str, ...] = ()
    """Blobs to compare; empty for all outputs."""
    tolerance: float = 1e-4
    shapes: Mapping[str, Any] | None = None

    def network(self, shared: Path) -> NetworkDefinition:
        """The imported network."""
        files = self.files(shared)
        if len(files) == 1:
            return smelt.network_from_onnx(files[0])
        network, _ = smelt.network_from_caffe(files[0], files[1])
        return network

    def build(self, shared: Path, tune: str = "none", **options: Any) -> Engine:
        """An engine for the shapes of the model's example."""
        options.setdefault("shapes", self.shapes)
        return smelt.build(self.network(shared), tune=tune, **options)

    def peer(self, shared: Path) -> Arrays:
        """What ONNX Runtime, or OpenCV for Caffe, makes of the example."""
        files, given = self.files(shared), self.inputs(shared)
        if len(files) == 1:
            return run_onnxruntime(str(files[0]), given)
        network = smelt.network_from_caffe(files[0], files[1])[0]
        return run_opencv(files, given, [tensor.name for tensor in network.outputs])


@functools.lru_cache(maxsize=1)
def onnxruntime_session(path: str) -> Any:
    """ONNX Runtime's session for a model."""
    options: Any = onnxruntime.SessionOptions()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    options.log_severity_level = 3
    options.intra_op_num_threads = 2
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def run_onnxruntime(path: str, given: Arrays) -> Arrays:
    """Every output of a model, by name."""
    session = onnxruntime_session(path)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, given), strict=True))


def run_opencv(files: tuple[Path, ...], given: Arrays, outputs: list[str]) -> Arrays:
    """The named blobs of a Caffe network."""
    cv2: Any = importlib.import_module("cv2")
    network = cv2.dnn.readNetFromCaffe(*map(str, files))
    network.setPreferableBackend(cv2.dnn.DNN_BACKEND_OPENCV)
    for name, array in given.items():
        network.setInput(array, name)
    return dict(zip(outputs, network.forward(outputs), strict=True))


def run_engine(engine: Engine, given: Arrays, threads: int | None = None) -> Arrays:
    """Every output of an engine, by name."""
    with engine.create_context(threads=threads) as context:
        return context.run(given)


def relative_error(mine: Array, theirs: Array) -> float:
    """Largest difference relative to the largest magnitude."""
    assert mine.size == theirs.size, (mine.shape, theirs.shape)
    a = mine.astype(np.float64).reshape(theirs.shape)
    b = theirs.astype(np.float64)
    return float(np.abs(a - b).max(initial=0.0) / (np.abs(b).max(initial=0.0) or 1.0))


def reference_steps(engine: Engine) -> list[str]:
    """The ops that an engine runs in Python without need."""
    steps = (step for plan in engine.header.plans for step in plan.steps)
    names = [_op_name(step.op) for step in steps if isinstance(step, HostCall)]
    return [name for name in names if name not in DATA_DEPENDENT]


def arena_ratio(engine: Engine) -> float:
    """How many times the least possible memory the tensors of an engine's plans take at most."""
    plans = report_of(engine).plans
    return max(plan.arena_bytes / max(plan.arena_lower_bound_bytes, 1) for plan in plans)


def _op_name(op: Json) -> str:
    """The name in the op codec's form: ``("op", name, ...)``, or another kind of entry."""
    return str(op[1] if isinstance(op, tuple) and op[0] == "op" else op)


# ---- inputs


def picture(path: Path) -> NDArray[np.uint8]:
    """A picture, blue first; without OpenCV another decoder's, which may differ in last bits."""
    if (cv2 := _opencv()) is None:
        return np.asarray(Image.open(path).convert("RGB"), np.uint8)[:, :, ::-1]
    image = cv2.imread(str(path), cv2.IMREAD_COLOR)
    assert image is not None, path
    return np.asarray(image, np.uint8)


def _opencv() -> Any:
    """OpenCV, or None: not every machine with a GPU has it."""
    return importlib.import_module("cv2") if importlib.util.find_spec("cv2") else None


def resized(
    image: NDArray[np.uint8], size: tuple[int, int], *, area: bool = False
) -> NDArray[np.uint8]:
    """A picture of another (width, height)."""
    if (cv2 := _opencv()) is not None:
        kind = cv2.INTER_AREA if area else cv2.INTER_LINEAR
        return np.asarray(cv2.resize(image, size, interpolation=kind), np.uint8)
    kind = Image.Resampling.BOX if area else Image.Resampling.BILINEAR
    return np.asarray(Image.fromarray(np.ascontiguousarray(image)).resize(size, kind), np.uint8)


def astronaut(
    shared: Path, size: tuple[int, int], mean: Any, scale: float = 1.0, *, rgb: bool = False
) -> NDArray[np.float32]:
    """The astronaut as ``[1, 3, height, width]``; ``size`` is (width, height)."""
    image = resized(picture(shared / "data/images/astronaut.png"), size)
    values = (image.astype(np.float32) - np.asarray(mean, np.float32)) * np.float32(scale)
    values = values[:, :, ::-1] if rgb else values
    return np.ascontiguousarray(values.transpose(2, 0, 1)[None])


def mnist(shared: Path) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """The 10,000 test digits, ``[10000, 1, 28, 28]`` from 0 to 255, and their labels."""
    import gzip

    folder = shared / "data/mnist"
    pixels = gzip.decompress((folder / "t10k-images-idx3-ubyte.gz").read_bytes())[16:]
    labels = gzip.decompress((folder / "t10k-labels-idx1-ubyte.gz").read_bytes())[8:]
    images = np.frombuffer(pixels, np.uint8).reshape(-1, 1, 28, 28).astype(np.float32)
    return images, np.frombuffer(labels, np.uint8)


def imagenet_picture(
    path: Path, crop: int, *, area: bool, mean: Any, scale: float = 1.0, rgb: bool = False
) -> NDArray[np.float32]:
    """A picture with its shorter side 256, cut out of the middle."""
    image: Array = picture(path)
    height, width = image.shape[:2]
    factor = 256 / min(height, width)
    image = resized(image, (round(width * factor), round(height * factor)), area=area)
    top, left = (image.shape[0] - crop) // 2, (image.shape[1] - crop) // 2
    image = image[top : top + crop, left : left + crop]
    image = image[:, :, ::-1] if rgb else image
    values = (image.astype(np.float32) - np.asarray(mean, np.float32)) * np.float32(scale)
    return np.ascontiguousarray(values.transpose(2, 0, 1)[None])


def wave(path: Path) -> NDArray[np.float32]:
    """Sound as one channel of 16,000 samples a second, from -1 to 1."""
    import wave as waves

    with waves.open(str(path)) as file:
        rate, channels = file.getframerate(), file.getnchannels()
        raw = np.frombuffer(file.readframes(file.getnframes()), np.int16)
    mono: Array = raw.reshape(-1, channels).mean(axis=1).astype(np.float32) / 32768
    count = int(mono.size * 16000 / rate)
    places: Array = np.arange(count) * rate / 16000
    return np.asarray(np.interp(places, np.arange(mono.size), mono), np.float32)


def speech_windows(path: Path) -> NDArray[np.float32]:
    """Windows of 512 samples, each behind the 64 samples before it."""
    samples = np.concatenate([np.zeros(64, np.float32), wave(path)])
    count = (samples.size - 64) // 512
    return np.stack([samples[i * 512 : i * 512 + 576] for i in range(count)])


def tokens(batch: int, length: int) -> Arrays:
    """Word pieces for MiniLM, the last sentence shorter than the others."""
    ids = np.random.default_rng(3).integers(1000, 20000, (batch, length))
    mask = np.ones((batch, length), np.int64)
    mask[-1, length // 2 :] = 0
    return {
        "input_ids": ids.astype(np.int64),
        "attention_mask": mask,
        "token_type_ids": np.zeros((batch, length), np.int64),
    }


def _caffe(folder: str, prototxt: str, weights: str) -> Callable[[Path], tuple[Path, ...]]:
    return lambda shared: (
        shared / "models" / folder / prototxt,
        shared / "models" / folder / weights,
    )


def _onnx(path: str) -> Callable[[Path], tuple[Path, ...]]:
    return lambda shared: (shared / "models" / path,)


def _speech(shared: Path) -> Arrays:
    windows = speech_windows(shared / "data/audio/Front_Center.wav")
    zeros = np.zeros((1, 1, 128), np.float32)
    return {"input": windows[:40], "h": zeros, "c": zeros.copy()}


def _cifar(shared: Path) -> Arrays:
    mean = np.load(shared / "models/cifar10_quick/mean_from_3000_train_images_rgb.npy")
    return {"data": astronaut(shared, (32, 32), 0, rgb=True) - mean.reshape(1, 3, 32, 32)}


_BGR = (104, 117, 123)

CAFFE_MODELS = (
    RealModel(
        "lenet",
        _caffe("lenet_bvlc", "lenet.prototxt", "lenet_iter_10000.caffemodel"),
        lambda shared: {"data": mnist(shared)[0][:1] / 256},
    ),
    RealModel(
        "cifar10_quick",
        _caffe("cifar10_quick", "cifar10_quick.prototxt", "cifar10_quick_iter_5000.caffemodel"),
        _cifar,
    ),
    RealModel(
        "squeezenet_v1.0",
        _caffe(
            "squeezenet_v1.0", "SqueezeNet_deploy.prototxt", "SqueezeNet_v1.0_decoded.caffemodel"
        ),
        lambda shared: {"data": astronaut(shared, (227, 227), _BGR)},
    ),
    RealModel(
        "mtcnn_p",
        _caffe("mtcnn_caffe", "det1.prototxt", "det1.caffemodel"),
        lambda shared: {"data": astronaut(shared, (12, 12), 127.5, 1 / 128)},
    ),
    RealModel(
        "mtcnn_r",
        _caffe("mtcnn_caffe", "det2.prototxt", "det2.caffemodel"),
        lambda shared: {"data": astronaut(shared, (24, 24), 127.5, 1 / 128)},
    ),
    RealModel(
        "mtcnn_o",
        _caffe("mtcnn_caffe", "det3.prototxt", "det3.caffemodel"),
        lambda shared: {"data": astronaut(shared, (48, 48), 127.5, 1 / 128)},
    ),
    RealModel(
        "ultraface_caffe",
        _caffe("ultraface", "RFB-320.prototxt", "RFB-320.caffemodel"),
        lambda shared: {"input": astronaut(shared, (320, 240), 127, 1 / 128, rgb=True)},
    ),
    RealModel(
        "face_ssd",
        lambda _: downloads.face_detector(),
        lambda shared: {"data": astronaut(shared, (300, 300), (104, 177, 123))},
    ),
)

ONNX_MODELS = (
    RealModel(
        "mnist_cntk",
        _onnx("mnist_cntk_onnx/mnist.onnx"),
        lambda shared: {"Input3": mnist(shared)[0][:1]},
    ),
    RealModel(
        "squeezenet1.1_fp16",
        _onnx("squeezenet1.1_fp16_onnx/SqueezeNet_fp16.onnx"),
        lambda shared: {"data_0": astronaut(shared, (224, 224), _BGR).astype(np.float16)},
        tolerance=3e-3,
    ),
    RealModel(
        "mtcnn_p_onnx",
        _onnx("mtcnn_onnx/pnet.onnx"),
        lambda _: {"input_1": noise(1, 40, 50, 3)},
        shapes={"input_1": (1, 40, 50, 3)},
    ),
    RealModel(
        "mtcnn_r_onnx",
        _onnx("mtcnn_onnx/rnet.onnx"),
        lambda _: {"input_2": noise(3, 24, 24, 3)},
        shapes={"input_2": (3, 24, 24, 3)},
    ),
    RealModel(
        "mtcnn_o_onnx",
        _onnx("mtcnn_onnx/onet.onnx"),
        lambda _: {"input_3": noise(2, 48, 48, 3)},
        shapes={"input_3": ((1, 48, 48, 3), (2, 48, 48, 3), (4, 48, 48, 3))},
    ),
    RealModel(
        "ultraface",
        _onnx("ultraface/version-RFB-320.onnx"),
        lambda shared: {"input": astronaut(shared, (320, 240), 127, 1 / 128, rgb=True)},
    ),
    RealModel(
        "ultraface_simplified",
        _onnx("ultraface/version-RFB-320_simplified.onnx"),
        lambda shared: {"input": astronaut(shared, (320, 240), 127, 1 / 128, rgb=True)},
    ),
    RealModel(
        "fastestdet",
        _onnx("fastestdet_coco/FastestDet.onnx"),
        lambda shared: {"input.1": astronaut(shared, (352, 352), 0, 1 / 255)},
    ),
    RealModel(
        "ppocr_cls",
        _onnx("ppocrv4_cls/ch_ppocr_mobile_v2.0_cls_infer.onnx"),
        lambda shared: {"x": astronaut(shared, (192, 48), 127.5, 1 / 127.5)},
        shapes={"x": (1, 3, 48, 192)},
    ),
    RealModel(
        "silero",
        _onnx("silero_vad/silero_vad_16k_sequence.onnx"),
        _speech,
        shapes={"input": ((1, 576), (40, 576), (400, 576))},
    ),
    RealModel(
        "efficientnet_lite0",
        lambda shared: (downloads.efficientnet_lite0(shared),),
        lambda shared: {"input": astronaut(shared, (224, 224), 127, 1 / 128, rgb=True)},
        shapes={"input": (1, 3, 224, 224)},
    ),
    RealModel(
        "minilm",
        lambda shared: (downloads.minilm(shared),),
        lambda _: tokens(2, 12),
        shapes=dict.fromkeys(
            ("input_ids", "attention_mask", "token_type_ids"), ((1, 1), (2, 12), (4, 64))
        ),
    ),
)

ALL_MODELS = CAFFE_MODELS + ONNX_MODELS


def model_named(name: str) -> RealModel:
    """The model called so."""
    return {model.name: model for model in ALL_MODELS}[name]
