"""What fuzzing has found, once each, so that it stays mended."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from smelt import ops
from smelt.backends.cpu import CpuBackend, target_named
from smelt.builder._plan_recipe import regenerated_header
from smelt.engine import EngineFile, Launch, add_trusted_key, as_json
from smelt.errors import BindingError, EngineFormatError, GraphError, TrustError
from smelt.inspect import report_of
from smelt.ir import Constant, Recipe, compute_untrusted
from smelt.ops import op_from_json, op_to_json
from smelt.runtime._refit import refitted_weights
from smelt.types import DType
from tests.fuzz import seeds
from tests.fuzz.user_op import Fuzzed, make_known
from tests.support.graph_text import parse_graph

if TYPE_CHECKING:
    from smelt.engine import EngineHeader


@dataclass(frozen=True, slots=True)
class _File:
    header: EngineHeader
    code: bytes = b""


def _header() -> EngineHeader:
    return seeds.header_of(next(seeds.graph_seeds()))[0]


@pytest.mark.parametrize("buffer", [-1000, -1, 99, 1 << 40])
def test_a_view_on_no_buffer_is_left_out_of_the_report(buffer: int) -> None:
    header = replace(_header(), report="[]")
    plan = header.plans[0]
    (step,) = [s for s in plan.steps if isinstance(s, Launch)][:1]
    views = tuple(replace(view, buffer=buffer) for view in step.operands)
    plan = replace(plan, steps=(replace(step, operands=views),))
    report = report_of(_File(replace(header, plans=(plan,))))
    assert report.plans[0].memory == ()


@pytest.mark.parametrize("layer", [-3, 99, 1 << 40])
def test_a_step_of_no_layer_is_left_out_of_the_report(layer: int) -> None:
    header = _header()
    plan = header.plans[0]
    lost = replace(plan, steps=tuple(replace(step, layer=layer) for step in plan.steps))
    report = report_of(_File(replace(header, plans=(plan, lost))))
    known = range(len(header.layers))
    assert all(detail.index in known for one in report.plans for detail in one.layers)


Change = tuple[tuple[str | int, ...], object]
WRONG: tuple[Change, ...] = (
    (("bounds",), []),
    (("bounds",), {"batch": "1 +"}),
    (("inputs",), 3),
    (("nodes", 0, "tactic"), []),
    (("nodes", 0, "inputs"), [["node", 0, 0]]),
    (("nodes", 0, "op"), None),
)


def _changed(path: tuple[str | int, ...], value: object) -> EngineHeader:
    header = _header()
    program = json.loads(header.program)
    place: Any = program["plans"][0]
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return replace(header, program=json.dumps(program))


@pytest.mark.parametrize(("path", "value"), WRONG)
def test_a_program_of_the_wrong_form_is_refused_with_what_to_do(
    path: tuple[str | int, ...], value: object
) -> None:
    empty = np.zeros(0, np.uint8)
    file = EngineFile(_changed(path, value), empty, b"", b"", None, "some.engine")
    with pytest.raises(
        EngineFormatError, match=r"its program is not valid.*download the engine again"
    ):
        regenerated_header(file, CpuBackend(), target_named(seeds.TARGET))


def test_a_key_whose_path_has_a_zero_byte_is_refused() -> None:
    with pytest.raises(TrustError, match="null byte"):
        add_trusted_key("a\0b")


def test_names_of_any_length_leave_messages_short() -> None:
    make_known()
    region = next(seeds.text_graphs())
    data: Any = json.loads(json.dumps(op_to_json(Fuzzed(region=region))))
    text = json.dumps(data).replace('"product"', json.dumps("long" * 50_000), 1)
    text = text.replace('["tuple", 2', '["tuple", 7')
    damaged = json.loads(text)
    nodes = next(value for name, value in damaged[2] if name == "region")[4]
    nodes[0][2] = [0, 0]
    with pytest.raises(EngineFormatError) as caught:
        op_from_json(damaged)
    assert len(str(caught.value)) < 1000


HUGE = (
    "const %a: float32[1] [1]\nconst %r: int64[1] [99999999999]\nconst %d = Tile %a, %r",
    "const %r: int64[1] [99999999999]\nconst %d = ConstantOfShape %r",
    "const %a: float32[1] [1]\nconst %r: int64[2] [99999, 9999999]\nconst %d = Expand %a, %r",
    "const %d = Relu _",
    "const %a: float32[1] [1]\nconst %d = Relu [7] %a",
    # Each step is small beside the one before, all together are not.
    "const %r: int64[1] [60]\nconst %a0: float32[1] [1]\n"
    + "\n".join(f"const %a{n + 1} = Tile %a{n}, %r" for n in range(9)),
)


def test_an_infinite_stride_in_a_text_is_refused() -> None:
    text = (
        "graph g {\ninput %x: float32[1, 1, 4]\n"
        "%y: float32[1, 1, 4] = MaxPool(kernel_shape=[1], strides=[-inf]) %x\nreturn %y\n}"
    )
    with pytest.raises(GraphError, match="strides of max_pool is"):
        parse_graph(text, {op.__name__: op for op in ops.ALL_OPS})


@pytest.mark.parametrize("body", HUGE, ids=range(len(HUGE)))
def test_a_recipe_that_makes_much_of_little_is_refused_before_it_is_computed(body: str) -> None:
    text = f"graph g {{\n{body}\ninput %x: float32[2]\nreturn %x\n}}"
    with pytest.raises(GraphError):
        parse_graph(text, {op.__name__: op for op in ops.ALL_OPS})


def test_a_recipe_of_thousands_of_steps_is_computed() -> None:
    constant = Constant("w", np.ones(2, np.float32))
    for _ in range(5000):
        constant = Constant("d", recipe=Recipe(ops.Relu(), (constant,), 0))
    compute_untrusted(constant)
    assert constant.array.tolist() == [1, 1]


def test_a_hostile_recipe_in_an_engine_fails_its_refit_alone() -> None:
    header = _header()
    size = base64.b64encode(np.array([1 << 38], np.int64).tobytes()).decode()
    made = op_to_json(ops.ConstantOfShape(dtype=DType.FLOAT32, value=0))
    entries = [["source", "w"], ["inline", "s", ["array", "int64", [1], size]]]
    recipe = as_json(["recipe", [*entries, ["derived", "d", made, [1], 0]]])
    weight = replace(header.weights[0], recipe=recipe)
    memory = np.zeros(1 << 12, np.uint8)
    with pytest.raises(BindingError, match="are allowed"):
        refitted_weights(
            [replace(header, weights=(weight,))], [memory], {"w": np.ones((8, 4), np.float32)}
        )
