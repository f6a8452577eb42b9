"""Networks of random layers with random parameters, most of them wrong, from the schema itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from smelt.importers.caffe import new_message
from tests.importers.caffe.builders import caffemodel, input_text, layer_text

if TYPE_CHECKING:
    import random

    from smelt.ir import Array

PARAMETERS: Final = {
    "ArgMax": "argmax",
    "BatchNorm": "batch_norm",
    "Bias": "bias",
    "Concat": "concat",
    "Convolution": "convolution",
    "Crop": "crop",
    "Deconvolution": "convolution",
    "DetectionOutput": "detection_output",
    "ELU": "elu",
    "Eltwise": "eltwise",
    "Embed": "embed",
    "Exp": "exp",
    "Flatten": "flatten",
    "InnerProduct": "inner_product",
    "Interp": "interp",
    "LRN": "lrn",
    "Log": "log",
    "MVN": "mvn",
    "Normalize": "norm",
    "PReLU": "prelu",
    "Permute": "permute",
    "Pooling": "pooling",
    "Power": "power",
    "PriorBox": "prior_box",
    "ReLU": "relu",
    "Reduction": "reduction",
    "Reshape": "reshape",
    "Scale": "scale",
    "ShuffleChannel": "shuffle_channel",
    "Slice": "slice",
    "Softmax": "softmax",
    "Threshold": "threshold",
    "Tile": "tile",
    "Upsample": "upsample",
}
"""Layer types and their parameters' field, without its ending."""
_INTEGERS: Final = (0, 1, 1, 2, 2, 3, 4, 5, 7, -1, -2, 65536, 2**20, 2**31 - 1, -(2**31), 2**32 - 1)
_FLOATS: Final = ("0", "1", "-1", "0.5", "2", "1e30", "-1e30", "nan", "inf", "1e-30")
_LAYER: Final[Any] = new_message("LayerParameter").DESCRIPTOR


def random_network(source: random.Random) -> tuple[str, bytes]:
    """A prototxt and a caffemodel."""
    first = _shape(source)
    shapes = {
        f"in{i}": first if source.random() < 0.5 else _shape(source)
        for i in range(source.choice((1, 2, 3)))
    }
    text = "".join(input_text(shape, name) for name, shape in shapes.items())
    blobs, weights = list(shapes), dict[str, list["Array"]]()
    for number in range(source.choice((1, 1, 2, 3, 5))):
        kind = source.choice(list(PARAMETERS))
        bottoms = [source.choice(blobs[-4:]) for _ in range(source.choice((1, 1, 1, 2, 2, 3)))]
        tops = source.choice(
            ([f"t{number}"], [f"t{number}"], bottoms[:1], [f"t{number}", f"u{number}"])
        )
        name = f"{PARAMETERS[kind]}_param"
        fields = _fields(
            source, _LAYER.fields_by_name[name].message_type, source.choice((0.2, 0.6))
        )
        text += layer_text(
            kind, f"{name} {{ {fields} }}", name=f"l{number}", bottoms=bottoms, tops=tops
        )
        blobs += tops
        weights[f"l{number}"] = [
            np.full(
                _shape(source)[: source.choice((1, 1, 2, 4))], source.choice((1, 0, np.nan)), "f4"
            )
            for _ in range(source.choice((1, 2, 3, 5)))
        ]
    return text, caffemodel(weights)


def _shape(source: random.Random) -> tuple[int, ...]:
    rank = source.choice((4, 4, 4, 2, 3, 1, 5))
    return tuple(source.choice((1, 1, 2, 3, 4, 6, 8)) for _ in range(rank))


def _fields(source: random.Random, kind: Any, share: float) -> str:
    words: list[str] = []
    for field in kind.fields:
        if "filler" in field.name or source.random() > share:
            continue
        repeats = isinstance(field.default_value, list)
        for _ in range(source.choice((1, 1, 2, 3, 4)) if repeats else 1):
            value = _value(source, field)
            words.append(f"{field.name} {value}" if value[0] == "{" else f"{field.name}: {value}")
    return " ".join(words)


def _value(source: random.Random, field: Any) -> str:
    if field.message_type is not None:
        return f"{{ {_fields(source, field.message_type, 0.4)} }}"
    if field.enum_type is not None:
        return str(source.choice(list(field.enum_type.values)).name)
    if field.cpp_type in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        return source.choice(_FLOATS)
    if field.cpp_type == field.CPPTYPE_BOOL:
        return source.choice(("true", "false"))
    if field.cpp_type == field.CPPTYPE_STRING:
        return '"x"'
    number = source.choice(_INTEGERS if source.random() < 0.2 else _INTEGERS[:9])
    if field.cpp_type == field.CPPTYPE_UINT32:
        return str(abs(number))
    return str(max(min(number, 2**31 - 1), -(2**31)))
