"""Malformed, mismatched and hostile files: each an error of our tree, no crash and no hang."""

from __future__ import annotations

import contextlib
import random
import time
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from smelt.errors import GraphError, ModelFormatError, ShapeError, SmeltError, UnsupportedError
from smelt.importers.caffe import import_caffe, new_message, read_mean
from tests.importers.caffe.builders import caffemodel, f32, input_text, layer_text, random_array
from tests.importers.caffe.random_networks import random_network

if TYPE_CHECKING:
    from pathlib import Path

CONV = "convolution_param { num_output: 2 kernel_size: 3 }"
TEXT = input_text((1, 3, 6, 6)) + layer_text("Convolution", CONV, name="conv")
MODEL = caffemodel({"conv": [random_array(2, 3, 3, 3), random_array(2)]})


def layers(*texts: str) -> str:
    return input_text((1, 3, 6, 6)) + "".join(texts)


def test_every_unsupported_layer_is_reported_at_once_with_name_type_and_reason() -> None:
    text = layers(
        layer_text("ROIPooling", name="roi", tops=("a",)),
        layer_text("Pooling", "pooling_param { pool: STOCHASTIC kernel_size: 2 }", name="pool"),
        layer_text("Python", name="mine", tops=("b",)),
        layer_text(
            "BatchNorm", "batch_norm_param { use_global_stats: false }", name="bn", tops=("c",)
        ),
    )
    with pytest.raises(UnsupportedError) as caught:
        import_caffe(text)
    roi, pool, mine, norm = caught.value.reasons
    assert roi == "ROIPooling layer 'roi': layers of this type are not supported"
    assert "'pool'" in pool
    assert "random" in pool
    assert "'mine'" in mine
    assert "use_global_stats" in norm


def test_refusals_that_need_shapes_are_gathered_too() -> None:
    text = layers(
        layer_text("Reduction", name="r1", tops=("a",)),
        layer_text("ReLU", name="after", bottoms=("a",), tops=("a2",)),
        layer_text("Reduction", name="r2", tops=("b",)),
    )
    with pytest.raises(UnsupportedError) as caught:
        import_caffe(text)
    assert [reason.split(":")[0] for reason in caught.value.reasons] == [
        "Reduction layer 'r1'",
        "Reduction layer 'r2'",
    ]


BAD_NETWORKS: list[tuple[str, type[SmeltError], str]] = [
    (
        layers(layer_text("ReLU", name="r", bottoms=("x",))),
        GraphError,
        r"layer 'r'.*'x'.*the top of a layer",
    ),
    (
        layers(
            layer_text("ReLU", name="r1", bottoms=("b",), tops=("a",)),
            layer_text("ReLU", name="r2", bottoms=("a",), tops=("b",)),
        ),
        GraphError,
        r"layer 'r1'.*'b'.*layer 'r2' computes",
    ),
    (layers(layer_text("ReLU", name="r", bottoms=("s",), tops=("s",))), GraphError, "'r'.*own top"),
    (
        layers(
            layer_text("ReLU", name="r", tops=("a",)), layer_text("ReLU", name="r", tops=("b",))
        ),
        GraphError,
        r"layer 'r': .*two layers of this name",
    ),
    (
        layers(
            layer_text("ReLU", name="r1", tops=("a",)), layer_text("ReLU", name="r2", tops=("a",))
        ),
        GraphError,
        r"layer 'r2': the layer overwrites the blob 'a'",
    ),
    (layers('layer { name: "r" type: "ReLU" bottom: "data" }'), GraphError, "'r'.*no top"),
    (layers(layer_text("ReLU", tops=("a", "b"), name="r")), GraphError, "'r'.*2 tops"),
    (layers(layer_text("Eltwise", name="e")), GraphError, "'e'.*two bottoms"),
    (
        layers(layer_text("Crop", name="e")),
        GraphError,
        "'e'.*has 1 bottom; its type, Crop, requires 2",
    ),
    (layers('layer { name: "r" bottom: "data" top: "a" }'), ModelFormatError, "'r' has no type"),
    (
        layers(layer_text("Softmax", "softmax_param { axis: 7 }", name="s")),
        ShapeError,
        "'s'.*axis 7",
    ),
    (
        layers(layer_text("Pooling", "pooling_param { kernel_size: 2 pad: 2 }", name="p")),
        ShapeError,
        "'p'.*pad",
    ),
    (layers(layer_text("Pooling", "", name="p")), ShapeError, "'p'.*kernel_size is missing"),
    (
        layers(layer_text("Pooling", "pooling_param { kernel_size: 9 }", name="p")),
        ShapeError,
        "'p'.*window of 9",
    ),
    (
        layers(layer_text("Pooling", "pooling_param { kernel_size: 1 stride: 4 }", name="p")),
        ShapeError,
        "'p'.*undefined",
    ),
    (
        layers(layer_text("Pooling", "pooling_param { kernel_size: 2 stride: 0 }", name="p")),
        ShapeError,
        "'p'.*stride",
    ),
    (layers(layer_text("LRN", "lrn_param { local_size: 4 }", name="l")), ShapeError, "'l'.*odd"),
    (
        layers(layer_text("Reshape", "reshape_param { shape { dim: 0 dim: 5 } }", name="r")),
        ShapeError,
        "'r'",
    ),
    (
        layers(layer_text("Reshape", "reshape_param { shape { dim: -1 dim: -1 } }", name="r")),
        ShapeError,
        "'r'",
    ),
    (layers(layer_text("Slice", name="s", tops=("a", "b"))), ShapeError, "'s'.*3 elements"),
    (
        layers(layer_text("Permute", "permute_param { order: 9 }", name="p")),
        ShapeError,
        "'p'.*order",
    ),
    (
        layers(
            layer_text("Eltwise", "eltwise_param { coeff: 1 }", name="e", bottoms=("data", "data"))
        ),
        ShapeError,
        "'e'.*coeff has 1 number",
    ),
    (
        layers(layer_text("Scale", "scale_param { num_axes: 9 }", name="s")),
        ShapeError,
        "'s'.*num_axes 9",
    ),
    (layers(layer_text("Exp", "exp_param { base: -3 }", name="e")), ShapeError, "'e'.*base"),
    (layers(layer_text("Tile", "tile_param { tiles: 0 }", name="t")), ShapeError, "'t'.*tiles"),
    (
        layers(layer_text("ShuffleChannel", "shuffle_channel_param { group: 2 }", name="s")),
        ShapeError,
        "'s'.*group is 2",
    ),
    (
        layers(layer_text("Crop", "crop_param { offset: 9 }", name="c", bottoms=("data", "data"))),
        ShapeError,
        "'c'.*does not fit",
    ),
    (
        layers(layer_text("Flatten", "flatten_param { axis: 2 end_axis: 1 }", name="f")),
        ShapeError,
        "'f'.*end_axis",
    ),
    (
        layers(layer_text("Concat", "concat_param { axis: 1 concat_dim: 1 }", name="c")),
        ShapeError,
        "'c'.*keep axis",
    ),
    (
        layers(layer_text("Interp", "interp_param { pad_beg: 1 }", name="i")),
        ShapeError,
        "'i'.*pad_beg",
    ),
    (
        layers(layer_text("Upsample", "upsample_param { scale: 65536 }", name="u")),
        ShapeError,
        "'u'.*height and width",
    ),
    (
        layers(
            layer_text("InnerProduct", "inner_product_param { num_output: 2 axis: 0 }", name="i")
        ),
        ShapeError,
        "'i'",
    ),
    (
        layers(layer_text("Convolution", "convolution_param { kernel_size: 3 }", name="c")),
        ShapeError,
        "'c'.*num_output is missing",
    ),
    (
        layers(layer_text("PriorBox", "", name="p", bottoms=("data", "data"))),
        UnsupportedError,
        "'p'.*min_size",
    ),
    (
        layers(layer_text("ArgMax", "argmax_param { top_k: 2 }", name="a")),
        UnsupportedError,
        "'a'.*top_k",
    ),
    (
        layers(layer_text("Convolution", "convolution_param { axis: 2 }", name="c")),
        UnsupportedError,
        "'c'.*axis 2",
    ),
    (
        layers(layer_text("Pooling", "pooling_param { kernel_size: 2 kernel_h: 2 }", name="p")),
        ShapeError,
        "'p'.*given together with",
    ),
    (
        layers(
            layer_text(
                "Pooling",
                "pooling_param { kernel_size: 1 kernel_size: 1 kernel_size: 1 }",
                name="p",
            )
        ),
        ShapeError,
        r"'p'.*each spatial axis of the input \(2\)",
    ),
    (
        layers('layer { name: "i" type: "Input" top: "i" }'),
        ModelFormatError,
        "'i' has 1 top and 0 shapes",
    ),
    (
        layers(layer_text("ReLU", "include { phase: TEST } exclude { phase: TRAIN }", name="r")),
        ModelFormatError,
        "'r'.*include",
    ),
    ("layer {", ModelFormatError, "prototxt cannot be parsed at line:column 1"),
    ("layer { name: 3 }", ModelFormatError, "1:15"),
    ('layer { name: "a" }\nlayers { name: "b" type: RELU }', ModelFormatError, "mixes"),
    ("layers { type: NOTHING_KNOWN }", ModelFormatError, "NOTHING_KNOWN"),
    ('layers { layer { name: "a" type: "conv" } }', ModelFormatError, "V0"),
    ("net: 'train.prototxt'\nbase_lr: 0.1", ModelFormatError, "solver"),
    ('input: "data"\n' + layer_text("ReLU"), ModelFormatError, "1 input but gives 0 shapes"),
    (input_text((1, 0, 3)) + layer_text("ReLU"), ShapeError, "extents, each from 1 to"),
    (input_text((1, 2)) + input_text((1, 2)), GraphError, "two layers of this name"),
    (
        'layer { name: "d" type: "Data" top: "data" }\n' + layer_text("ReLU"),
        ModelFormatError,
        "Input layer",
    ),
    ("a { " * 5000, ModelFormatError, "prototxt"),
]


@pytest.mark.parametrize(("text", "kind", "message"), BAD_NETWORKS)
def test_bad_network_is_refused_with_what_and_where(
    text: str, kind: type[SmeltError], message: str
) -> None:
    with pytest.raises(kind, match=f"(?s){message}"):
        import_caffe(text)


def _with_blob(**fields: Any) -> bytes:
    net = new_message("NetParameter")
    blob = net.layer.add(name="conv", type="Convolution").blobs.add()
    shape = fields.pop("shape", None)
    for name, value in fields.items():
        if isinstance(value, list):
            getattr(blob, name).extend(value)
        else:
            setattr(blob, name, value)
    if shape is not None:
        blob.shape.dim.extend(shape)
    data: bytes = net.SerializeToString()
    return data


BAD_MODELS = [
    (None, "'conv' needs weights, but no caffemodel was given; .*--weights"),
    (
        caffemodel({"conv1": [random_array(2)]}),
        "'conv' needs weights.*no layer of that name.*'conv1'",
    ),
    (caffemodel({"conv": [random_array(2, 3, 3, 3)]}), "needs more weights.* has only 1 blob for"),
    (caffemodel({"conv": [random_array(2, 3, 5, 3)]}), r"'conv'.*\[2, 3, 5, 3\].*\[2, 3, 3, 3\]"),
    (_with_blob(data=[1.0], shape=[1 << 40, 1 << 40]), "declares .* elements, but has 1"),
    (
        _with_blob(data=[1.0], shape=[-1, -1]),
        "its extents must be from 0 to 2147483647, and its rank at most",
    ),
    (
        _with_blob(shape=[1] * 40, data=[1.0]),
        "its extents must be from 0 to 2147483647, and its rank at most",
    ),
    (
        _with_blob(shape=[0, (1 << 63) - 1]),
        "its extents must be from 0 to 2147483647, and its rank at most",
    ),
    (_with_blob(data=[1.0], num=3), "but has 1"),
    (_with_blob(raw_data=b"1234", raw_data_type=3, shape=[1]), "raw_data_type 3"),
    (b"", "has no layers"),
    (b"\x00\x01", "invalid number 0"),
    (b"\xff" * 20, "a varint is cut off, or longer than 10 bytes"),
    (b"\xa2\x06\xff\xff\xff\xff\x0f", r"a field declares \d+ bytes, but the data has 0 bytes left"),
    (b"\xa3\x06", "wire type 3"),
    (b"\x12\x02\x0a\x00", "V0"),
    (b"\x08\x01" * 1_000_001, "1,000,001 fields; the limit MAX_WEIGHT_FIELDS is 1,000,000"),
    (TEXT.encode(), "is text, not a caffemodel: are the prototxt and the caffemodel swapped"),
]


@pytest.mark.parametrize(("model", "message"), BAD_MODELS, ids=range(len(BAD_MODELS)))
def test_bad_caffemodel_is_refused_with_what_and_where(model: bytes | None, message: str) -> None:
    with pytest.raises((ModelFormatError, ShapeError), match=f"(?s){message}"):
        import_caffe(TEXT, model)


def test_swapped_files_are_told(tmp_path: Path) -> None:
    prototxt, model = tmp_path / "net.prototxt", tmp_path / "net.caffemodel"
    prototxt.write_text(TEXT)
    model.write_bytes(MODEL)
    with pytest.raises(
        ModelFormatError, match=r"net\.caffemodel is not text.*Give the prototxt first"
    ):
        import_caffe(model, prototxt)
    import_caffe(prototxt, str(model))


def test_missing_files_are_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing.prototxt"
    with pytest.raises(ModelFormatError, match=r"prototxt .*missing.prototxt: No such file"):
        import_caffe(missing)
    with pytest.raises(ModelFormatError, match=r"caffemodel .*missing.prototxt: No such file"):
        import_caffe(TEXT, str(missing))
    with pytest.raises(ModelFormatError, match="directory"):
        import_caffe(tmp_path)
    with pytest.raises(ModelFormatError, match="mean"):
        read_mean(missing)
    with pytest.raises(ModelFormatError, match="null"):
        import_caffe("a\0b")


def test_bad_mean_is_refused() -> None:
    for data in (b"", b"\x08\x01", b"\x2a\x05abcde", b"text"):
        with pytest.raises(ModelFormatError, match="mean"):
            read_mean(data)


def test_long_unpacked_runs_and_many_short_ones_take_linear_time() -> None:
    start = time.perf_counter()
    alternating = (b"\x2d0000" + b"\x41" + b"0" * 8) * 20_000
    with contextlib.suppress(ModelFormatError):
        read_mean(alternating)
    with contextlib.suppress(ModelFormatError):
        read_mean(b"\x2d0000" * 4_000_000)
    assert time.perf_counter() - start < 5


NET = (
    input_text((1, 3, 6, 6))
    + layer_text("Convolution", CONV, name="conv", tops=("c",))
    + layer_text("BatchNorm", name="bn", bottoms=("c",), tops=("c",))
    + layer_text("Scale", "scale_param { bias_term: true }", name="s", bottoms=("c",), tops=("c",))
    + layer_text(
        "Pooling",
        "pooling_param { kernel_size: 2 stride: 2 }",
        name="p",
        bottoms=("c",),
        tops=("p",),
    )
    + layer_text(
        "InnerProduct",
        "inner_product_param { num_output: 2 }",
        name="ip",
        bottoms=("p",),
        tops=("ip",),
    )
    + layer_text(
        "Reshape",
        "reshape_param { shape { dim: 0 dim: -1 dim: 1 } }",
        name="r",
        bottoms=("ip",),
        tops=("r",),
    )
)
NET_MODEL = caffemodel(
    {
        "conv": [random_array(2, 3, 3, 3), random_array(2)],
        "bn": [random_array(2), random_array(2), f32([1])],
        "s": [random_array(2), random_array(2)],
        "ip": [random_array(2, 8), random_array(2)],
    }
)


def _damage(data: bytes, cut: int, flips: list[tuple[int, int]]) -> bytes:
    damaged = bytearray(data[: cut % (len(data) + 1)])
    for position, bit in flips:
        if damaged:
            damaged[position % len(damaged)] ^= 1 << bit
    return bytes(damaged)


FLIPS = st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 7)), max_size=6)


@given(st.one_of(st.just(len(NET_MODEL)), st.integers(0, len(NET_MODEL))), FLIPS)
@example(len(NET_MODEL), [])
def test_damaged_caffemodel_is_read_or_refused(cut: int, flips: list[tuple[int, int]]) -> None:
    with contextlib.suppress(SmeltError):
        import_caffe(NET, _damage(NET_MODEL, cut, flips))


@given(st.one_of(st.just(len(NET)), st.integers(0, len(NET))), FLIPS)
@example(len(NET), [])
def test_damaged_prototxt_is_read_or_refused(cut: int, flips: list[tuple[int, int]]) -> None:
    with contextlib.suppress(SmeltError):
        import_caffe(_damage(NET.encode(), cut, flips), NET_MODEL)


NUMBERS = (
    "0",
    "-1",
    "1",
    "3",
    "4294967295",
    "9223372036854775807",
    "-9223372036854775808",
    "1e30",
    "nan",
)


@given(st.data())
def test_prototxt_with_other_numbers_is_read_or_refused(data: st.DataObject) -> None:
    words = NET.split(" ")
    places = [i for i, word in enumerate(words) if word.isdigit()]
    for place in data.draw(st.lists(st.sampled_from(places), min_size=1, max_size=3)):
        words[place] = data.draw(st.sampled_from(NUMBERS))
    with contextlib.suppress(SmeltError):
        import_caffe(" ".join(words), NET_MODEL)


def test_networks_of_random_layers_are_read_or_refused() -> None:
    source, read = random.Random(7), 0  # noqa: S311  (no secret)
    for _ in range(1500):
        text, model = random_network(source)
        with contextlib.suppress(SmeltError):
            import_caffe(text, model)
            read += 1
    # Enough of them are sound for the rest to fail late as well as early.
    assert read > 50


@given(st.binary(max_size=200))
def test_random_bytes_are_refused_as_caffemodel_and_mean(data: bytes) -> None:
    with contextlib.suppress(ModelFormatError):
        import_caffe(TEXT, data)
    with contextlib.suppress(ModelFormatError):
        read_mean(data)
