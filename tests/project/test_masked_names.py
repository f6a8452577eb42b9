"""Names in a stranger's file give no orders: to a terminal, a log, a page or whoever reads JSON."""

from __future__ import annotations

import json
import logging
import sys
import unicodedata
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np
import pytest

import smelt
from smelt import errors, ops
from smelt.engine import (
    Signer,
    add_trusted_key,
    read_engine,
    remove_trusted_key,
    show_trusted_keys,
)
from smelt.errors import (
    GraphError,
    InternalError,
    SmeltError,
    UnsupportedError,
    escape_controls,
    sanitize_name,
)
from smelt.inspect import graph_to_svg, memory_to_svg, report_of, report_to_html, report_to_text
from smelt.ir import Graph
from smelt.types import DType, SymbolicDim, TensorType
from tests.cli.conftest import Smelt
from tests.engine.test_signing_keys import line_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from smelt import Engine

HOSTILE = (
    "x\nERROR: all is well\n  - forged\n    forged"
    "\u202egpj.exe\ud800\x1b[2J\x9b\u2028\ufeff\U000e0041\r\t"
)
HARMLESS = "Grüße, 世界 \N{ROCKET} a/b:0"


def _is_shown_safely(text: str) -> bool:
    text.encode()  # fails for half a letter
    lines = text.split("\n")
    hidden = [c for c in text if not c.isprintable() and c not in "\n\t"]
    forged = [line for line in lines if line.startswith(("ERROR", "  - forged", "    forged"))]
    return not hidden and not forged


def test_what_is_harmless_stays() -> None:
    assert sanitize_name(HARMLESS) == HARMLESS
    assert errors.remove_controls(f"a\n\t{HARMLESS}") == f"a\n\t{HARMLESS}"


def test_every_control_format_and_half_letter_is_masked() -> None:
    for number in range(sys.maxunicode + 1):
        if unicodedata.category(chr(number)) in {"Cc", "Cf", "Cs", "Zl", "Zp"}:
            assert sanitize_name(chr(number)) == "\ufffd", hex(number)
    assert sanitize_name(HOSTILE).isprintable()


@pytest.mark.parametrize("name", [HOSTILE, HARMLESS, "\x7f\x85", "\udfff"])
def test_json_stays_exact_and_says_nothing_to_a_terminal(name: str) -> None:
    text = escape_controls(json.dumps({name: [name]}, indent=1, ensure_ascii=False))
    assert json.loads(text) == {name: [name]}
    assert _is_shown_safely(text)


_KINDS = [kind for kind in SmeltError.__subclasses__() if kind.__module__ == errors.__name__]


@pytest.mark.parametrize("kind", [*_KINDS, InternalError])
def test_each_error_masks_what_it_names(kind: type[Exception]) -> None:
    assert _is_shown_safely(str(kind(f"{HOSTILE}: wrong")))


def test_an_error_has_lines_of_its_own_and_is_one_line_within_another() -> None:
    error = UnsupportedError(f"{HOSTILE}: no", reasons=["one", HOSTILE])
    assert str(error).count("\n") == 2
    assert _is_shown_safely(str(error))
    assert "\n" not in f"{error}"
    assert _is_shown_safely(str(SmeltError(f"outer: {error}")))
    assert str(SmeltError(f"outer: {error}")).endswith(f"(one; {sanitize_name(HOSTILE)})")


def _graph() -> Graph:
    graph = Graph(HOSTILE)
    batch = SymbolicDim.symbol("batch")
    x = graph.add_input(HOSTILE, TensorType(DType.FLOAT32, (batch, 4)))
    w = graph.add_constant(np.ones((4, 4), np.float32), f"w{HOSTILE}")
    (y,) = graph.add(
        ops.MatMul(), x, w, name=f"n{HOSTILE}", output_names=[f"y{HOSTILE}"], layers=(HOSTILE,)
    ).outputs
    graph.outputs = [y]
    return graph


@pytest.fixture(scope="module")
def engine() -> Engine:
    return smelt.build(_graph(), tune="none", max_batch_size=2)


def _wrong_calls(engine: Engine) -> dict[str, Callable[[], Any]]:
    x = np.ones((1, 4), np.float32)

    def run(inputs: dict[str, Any]) -> Any:
        with engine.create_context(threads=1) as context:
            return context.run(inputs)

    def refit(name: str, *shape: int) -> None:
        engine.refit({name: np.ones(shape, np.float32)})

    return {
        "no input": lambda: run({}),
        "another input": lambda: run({"z\u202e": x}),
        "another shape": lambda: run({HOSTILE: x[0]}),
        "another dtype": lambda: run({HOSTILE: x.astype(np.float64)}),
        "a larger batch": lambda: run({HOSTILE: np.ones((3, 4), np.float32)}),
        "no binding": lambda: engine.binding_index(HOSTILE + "z"),
        "no weight": lambda: refit(HOSTILE, 4, 4),
        "another weight": lambda: refit(f"w{HOSTILE}", 4, 5),
        "other shapes": lambda: smelt.build(_graph(), shapes={HOSTILE: (1, 5)}, tune="none"),
        "shapes of nobody": lambda: smelt.build(_graph(), shapes={"z": (1, 5)}, tune="none"),
        "a wrong layer": lambda: _graph().add(ops.MatMul(), *_graph().inputs, name=HOSTILE),
        "no network": lambda: smelt.load(HOSTILE),
        "no key": lambda: add_trusted_key(HOSTILE),
        "a damaged engine": lambda: read_engine(engine.serialize()[:-1]),
    }


@pytest.mark.parametrize("call", _wrong_calls(None))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
def test_an_error_about_a_name_masks_it(engine: Engine, call: str) -> None:
    with pytest.raises((SmeltError, InternalError, ValueError)) as caught:
        _wrong_calls(engine)[call]()
    assert _is_shown_safely(str(caught.value)) or isinstance(caught.value, ValueError)


def test_a_node_in_an_error_is_one_line() -> None:
    error = GraphError("wrong", node=HOSTILE)
    assert "\n" not in str(error)
    assert error.node == HOSTILE


def test_reports_mask_names_and_stay_well_formed(engine: Engine) -> None:
    report = report_of(engine)
    text = report_to_text(report, ["layers", "tactics", "memory", "weights", "kernels", "passes"])
    assert _is_shown_safely(text)
    page = report_to_html(report)
    assert _is_shown_safely(page)
    for svg in (graph_to_svg(report.plans[0], report.bindings), memory_to_svg(report.plans[0])):
        assert _is_shown_safely(svg)
        ElementTree.fromstring(svg)  # noqa: S314  (our own)


def test_logs_mask_names(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "smelt"):
        smelt.build(_graph(), tune="none")
    assert "best of" in caplog.text
    for record in caplog.records:
        assert _is_shown_safely(record.getMessage()), record


def test_labels_of_keys_are_masked() -> None:
    key = add_trusted_key(line_of(Signer(b"masked".ljust(32)), "him\u202e\x1b[2J"))
    assert _is_shown_safely(key.label)
    try:
        assert all(_is_shown_safely(key.text) for key in show_trusted_keys())
    finally:
        remove_trusted_key(key.key_id)  # other tests share this home


def test_commands_mask_names(engine: Engine, tmp_path: Path) -> None:
    path = tmp_path / "m.engine"
    engine.save(path)
    command = Smelt()
    shown = [
        command("inspect", path, "--all"),
        command("inspect", path, "--json"),
        command("run", path),
        command("run", path, "--input", "z=zeros"),
        command("bench", path, "--layers", "--seconds", "0.01"),
    ]
    for answer in shown:
        assert _is_shown_safely(answer.out)
        assert _is_shown_safely(answer.err)
    assert shown[1].json["bindings"][0]["name"] == HOSTILE
