"""ONNX's own test cases of its ops, run on the references: each passes or is refused as listed."""

from __future__ import annotations

import re
import warnings
import zlib
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from smelt.errors import ShapeError, SmeltError, UnsupportedError
from smelt.importers.onnx import import_onnx
from smelt.interp import interpret
from smelt.ir import verify

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from onnx.backend.test.case.test_case import TestCase

    from smelt.ir import Array, Graph

SHARDS: Final = 12
FEWEST_PASSED: Final = 0.75
"""Of the cases that are not excluded; the package adds some with every version."""

MISSING_OPS: Final = (
    "BitCast|BitwiseAnd|BitwiseOr|BitwiseXor|Col2Im|ConcatFromSequence|CumProd|DFT|"
    "DeformConv|Det|EyeLike|GridSample|ImageDecoder|MaxUnpool|MelWeightMatrix|Optional|"
    "OptionalGetElement|OptionalHasElement|RandomUniformLike|RegexFullMatch|"
    "ReverseSequence|RoiAlign|STFT|SequenceAt|SequenceConstruct|SequenceEmpty|"
    "SequenceErase|SequenceInsert|SequenceLength|SequenceMap|SplitToSequence|StringConcat|"
    "StringNormalizer|StringSplit|TensorScatter|TfIdfVectorizer|Unique"
)
"""Ops that are not supported and that no reference model needs."""

REFUSED: Final[Sequence[str]] = (
    # What the reason must be, when a case is refused.
    rf"the op ({MISSING_OPS}) is not supported( \(and \d+ more of the same kind\))?$",
    r"element type (string|u?int[24]|float[48]\w*|complex64|complex128) is not supported",
    r"has type (sequence|optional); only dense tensors are supported",
    r"Scan is not supported",
    r"ops of domain (ai\.onnx\.ml|ai\.onnx\.preview(\.training)?) are not supported",
    r"training mode",
    r"string constants are not supported",
    r"attribute '\w+' has type type_proto",
    r"blocked quantisation \(block_size\) is not supported",
    r"indices in column-major order",
    r"output \d, '\w+', is not supported",
    r"the model uses ONNX opset [1-6];",
    r"attribute mode of SpaceToDepth is not supported",
    r"ONNX removed (Upsample|Scatter|GroupNormalization)",
)

EXCLUDED: Final[Mapping[str, str]] = {
    "opset 28 shifts integers with a sign, and lets mod of floats follow the divisor": (
        r"bitshift_(left|right)_int|mod_float\w*fmod_0|mod_float\d+_mixed_sign_fmod_0"
    ),
    "its slice has bounds that only a run determines": r"loop11$",
    "ONNX Runtime takes the rounded extent too, and gives what smelt gives": (
        r"resize_downsample_scales_(linear|cubic)_align_corners$"
    ),
    "what has 16 bits is rounded after each op, not once": (
        r"attention_4d_causal_fp16|attention_\w+_bf16"
    ),
}
"""Patterns of the names of cases that do not agree, by reason."""


@pytest.mark.parametrize("shard", range(SHARDS))
@pytest.mark.slow
def test_cases_of_the_onnx_package_agree_or_are_refused_as_listed(shard: int) -> None:
    outcomes = [(name, _outcome(name)) for name in _names(shard)]
    assert [f"{name}: {text}" for name, text in outcomes if text not in ("passed", "refused")] == []


def test_most_cases_of_the_onnx_package_pass() -> None:
    passed = [name for name in _names() if _outcome(name) == "passed"]
    assert len(passed) >= FEWEST_PASSED * len(_names())


def test_every_exclusion_is_still_needed() -> None:
    for reason, pattern in EXCLUDED.items():
        names = [name for name in _cases() if re.search(pattern, name)]
        assert any(not _agrees(_cases()[name]) for name in names), reason


def _names(shard: int | None = None) -> list[str]:
    excluded = re.compile("|".join(EXCLUDED.values()))
    names = [name for name in sorted(_cases()) if not excluded.search(name)]
    return [n for n in names if shard is None or zlib.crc32(n.encode()) % SHARDS == shard]


@cache
def _cases() -> Mapping[str, TestCase]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        return {case.name: case for case in collect_testcases(None)}


@cache
def _outcome(name: str) -> str:
    try:
        _check(_cases()[name])
    except UnsupportedError as error:
        reasons = error.reasons or (str(error),)
        known = all(any(re.search(p, reason) for p in REFUSED) for reason in reasons)
        return "refused" if known else str(error)
    except (AssertionError, SmeltError) as error:
        return " ".join(f"{type(error).__name__}: {error}".split())[:300]
    return "passed"


def _agrees(case: TestCase) -> bool:
    try:
        _check(case)
    except (AssertionError, SmeltError):
        return False
    return True


def _check(case: TestCase) -> None:
    sets = case.data_sets or []
    assert case.model is not None
    graph = _import(case.model, sets[0][0])
    verify(graph)
    names = [entry.name for entry in case.model.graph.input]
    for inputs, expected in sets:
        arrays = dict(zip(names, map(_array, inputs), strict=False))
        feed = {value.name: arrays[value.name] for value in graph.inputs}
        with np.errstate(all="ignore"):
            results = interpret(graph, feed)
        for result, wanted in zip(results.values(), map(_array, expected), strict=True):
            assert result.dtype == wanted.dtype
            assert result.shape == wanted.shape
            np.testing.assert_allclose(result, wanted, case.rtol or 1e-3, max(case.atol or 0, 1e-6))


def _import(model: onnx.ModelProto, inputs: Sequence[Any]) -> Graph:
    """The case's graph; what decides shapes becomes a weight where it must be known."""
    try:
        return import_onnx(model)
    except ShapeError:
        fixed = onnx.ModelProto()
        fixed.CopyFrom(model)
        for index, (entry, given) in enumerate(zip(model.graph.input, inputs, strict=False)):
            array = _array(given)
            if index or len(inputs) == 1 or array.ndim == 0:
                fixed.graph.initializer.append(numpy_helper.from_array(array, entry.name))
        return import_onnx(fixed)


def _array(given: Any) -> Array:
    return (
        numpy_helper.to_array(given) if isinstance(given, onnx.TensorProto) else np.asarray(given)
    )
