"""What an engine's report says."""

from __future__ import annotations

import dataclasses
import json
import re
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smelt.builder import TuningEffort, build
from smelt.errors import BindingError
from smelt.importers import network_from_onnx
from smelt.inspect import (
    SECTIONS,
    EngineReport,
    PassNote,
    PassSummary,
    PlanReport,
    report_of,
    report_to_html,
    report_to_json,
    report_to_text,
)
from smelt.interp import interpret
from smelt.tuner import InNetworkEffort
from smelt.types import format_number
from tests.support.engines import affine_header
from tests.support.small_models import boxes_model, inception_model

if TYPE_CHECKING:
    from smelt.engine import EngineHeader
    from smelt.runtime import Engine


@pytest.fixture(scope="module")
def engine() -> Engine:
    return build(network_from_onnx(inception_model()), tune=0.5)


@pytest.fixture(scope="module")
def report(engine: Engine) -> EngineReport:
    return report_of(engine)


@pytest.fixture(scope="module")
def plan(report: EngineReport) -> PlanReport:
    return report.plans[0]


def _notes(plan: PlanReport, name: str) -> list[tuple[tuple[str, ...], tuple[str, ...], bool]]:
    return [
        (note.before, note.after, note.applied)
        for one in plan.passes
        if one.name == name
        for note in one.notes
    ]


@pytest.mark.requirement("G-24")
def test_a_layer_that_nobody_reads_is_reported_as_removed_and_is_gone(plan: PlanReport) -> None:
    assert (("dead",), (), True) in _notes(plan, "remove-unused")
    assert ("dead", "sigmoid") in plan.source_nodes
    assert not any("dead" in layer.name for layer in plan.layers)


@pytest.mark.requirement("G-24", "G-59")
def test_a_convolution_with_its_bias_and_relu_is_one_layer_named_after_both(
    plan: PlanReport,
) -> None:
    fused = next(layer for layer in plan.layers if layer.name == "conv1 + relu1")
    assert fused.steps == 1
    node = next(node for node in plan.nodes if node.name == fused.node)
    assert node.op == "conv | relu"
    assert node.layers == ("conv1", "relu1")


def test_a_packed_weight_names_what_it_follows_from_and_refit_takes_these_names(
    engine: Engine, report: EngineReport
) -> None:
    (packed,) = [w for w in report.weights if set(w.sources) == {"conv1.weight"}]
    assert packed.refittable
    with pytest.raises(BindingError, match=r"the new conv1\.weight float32\[3\] does not fit"):
        engine.refit({"conv1.weight": np.zeros(3, np.float32)})


@pytest.mark.requirement("G-24")
def test_siblings_become_one_layer_and_a_refused_one_says_why(plan: PlanReport) -> None:
    assert any("middle + middle_relu + right" in layer.name for layer in plan.layers)
    refused = [note for one in plan.passes for note in one.notes if not note.applied]
    assert [(n.before[0], "concatenation" in n.detail) for n in refused] == [("left", True)]


@pytest.mark.requirement("G-24")
def test_a_concatenation_is_no_layer_because_its_inputs_are_written_in_place(
    plan: PlanReport,
) -> None:
    assert not any(layer.kind == "concat" for layer in plan.layers)
    written = [f"concat: {name} is written in place" for name in ("left_relu", "wide_relu")]
    assert [note for note in plan.storage if note in written] == written


@pytest.mark.requirement("G-24")
def test_all_these_optimisations_together_change_no_result(engine: Engine) -> None:
    model = inception_model()
    image = np.random.default_rng(3).standard_normal((1, 3, 16, 16)).astype(np.float32)
    wanted = interpret(network_from_onnx(model).graph, {"image": image})["prob"]
    with engine.create_context() as context:
        got = context.run({"image": image})["prob"]
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5)


@pytest.mark.requirement("G-33")
def test_every_layer_and_every_tensor_of_the_graph_has_a_name(report: EngineReport) -> None:
    for plan in report.plans:
        assert all(layer.name for layer in plan.layers)
        assert all(node.name and all(node.outputs) for node in plan.nodes)
        assert all(life.name for life in plan.memory)
    assert [b.name for b in report.bindings] == ["image", "prob"]


def test_the_counts_of_layers_are_those_before_and_after_the_passes(plan: PlanReport) -> None:
    assert len(plan.source_nodes) == 18
    assert len(plan.nodes) < 13
    names = [layer.name for layer in plan.layers]
    assert len(names) == len(set(names)) == plan.steps


def test_an_engine_without_references_is_one_native_segment(report: EngineReport) -> None:
    (plan,) = report.plans
    assert (plan.segments, plan.native_segments, plan.host_segments) == (1, 1, 0)
    assert report.reference_steps == 0
    assert report.reference_ops == ()


def test_reference_steps_are_counted_and_named() -> None:
    report = report_of(build(network_from_onnx(boxes_model()), tune="none"))
    assert report.reference_steps == 1
    assert report.reference_ops == ("non_max_suppression",)
    (layer,) = report.plans[0].layers
    assert layer.is_reference
    assert report_to_json(report)["reference_steps"] == 1


def test_a_layer_shows_its_candidates_fastest_first_and_which_was_chosen(plan: PlanReport) -> None:
    layer = next(layer for layer in plan.layers if layer.name == "conv1 + relu1")
    assert [c.tactic for c in layer.candidates if c.chosen] == [layer.tactic]
    seconds = [c.seconds for c in layer.candidates if c.seconds is not None]
    assert seconds == sorted(seconds)
    assert len(layer.candidates) > 1
    assert layer.output_formats == ("float32/channels_last",)


def test_candidates_that_differ_in_formats_tell_them_and_times_tell_what_they_are() -> None:
    made = report_of(build(network_from_onnx(inception_model()), tune="none"))
    (plan,) = made.plans
    for layer in plan.layers:
        rivals = [c for c in layer.candidates if not c.tactic.startswith("reference(")]
        assert len({(c.tactic, c.formats) for c in rivals}) == len(rivals)
        assert sum(c.chosen for c in layer.candidates) == bool(layer.candidates)
    chosen = [c for layer in plan.layers for c in layer.candidates if c.chosen]
    assert any(c.formats.endswith("-> float32/channels_last") for c in chosen)
    assert "times are cost estimates, because no tactic was timed" in report_to_text(
        made, ["tactics"], width=300
    )
    assert "format conversions" in report_to_html(made)
    assert made.tuned_on == ""
    assert "<p>Tactics were chosen by cost estimates: none was timed.</p>" in report_to_html(made)
    timed = dataclasses.replace(made, tuned_on="a GPU")
    assert "<p>Tactics were timed on a GPU.</p>" in report_to_html(timed)


def test_the_page_tells_a_processor_as_shortly_as_the_text(report: EngineReport) -> None:
    detail = (
        report_to_text(report, []).splitlines()[0].partition(" for cpu, ")[2].split(", linux")[0]
    )
    assert f"An engine for cpu: {detail}, linux" in report_to_html(report)


def test_the_page_sums_up_what_a_pass_says_of_many_layers(report: EngineReport) -> None:
    names = [f"conv{number}" for number in range(9)]
    notes = tuple(PassNote((name,), (name,), "computed in float32", applied=True) for name in names)
    summary = PassSummary("promote-half", 9, 9, 0.0, notes)
    plan = dataclasses.replace(report.plans[0], passes=(summary,))
    page = report_to_html(dataclasses.replace(report, plans=(plan,)))
    assert page.count("computed in float32") == 1
    assert "<summary>9 layers</summary><ul><li>conv0</li><li>conv1</li>" in page


def test_what_was_tried_in_the_network_is_told_beside_what_it_took_alone() -> None:
    effort = TuningEffort(network=InNetworkEffort(min_plan_seconds=0.0, runs=2))
    made = report_of(build(network_from_onnx(inception_model()), tune=effort))
    detail = [
        (candidate.chosen, candidate.network_seconds)
        for layer in made.plans[0].layers
        for candidate in layer.candidates
        if candidate.network_seconds is not None
    ]
    assert len(detail) > 1
    assert any(chosen for chosen, _ in detail)
    text = report_to_text(made, ["tactics"])
    assert all(
        f"in the network {format_number(seconds * 1e6, 1)} us" in text for _, seconds in detail
    )


def test_tensors_that_live_at_once_never_share_bytes(plan: PlanReport) -> None:
    live_ranges = plan.memory
    for index, a in enumerate(live_ranges):
        for b in live_ranges[:index]:
            apart_in_time = a.last_step < b.first_step or b.last_step < a.first_step
            apart = a.offset + a.size_bytes <= b.offset or b.offset + b.size_bytes <= a.offset
            assert apart_in_time or apart, (a, b)
    assert max(life.offset + life.size_bytes for life in live_ranges) <= plan.arena_bytes
    assert plan.arena_lower_bound_bytes <= plan.arena_bytes


@pytest.mark.parametrize(
    ("feature", "known"),
    [
        ("cublaslt=130102", {"libraries": ["cuBLASLt 13.1.2"]}),
        ("multiprocessors=66", {"multiprocessors": 66}),
        *((f, {"features": [f]}) for f in ("tf32", "cudnn=", "cudnn=1" + 99 * "0", "sm=3", "=")),
    ],
)
def test_features_are_told_apart_from_libraries_and_what_was_tuned_for(
    report: EngineReport, engine: Engine, feature: str, known: dict[str, object]
) -> None:
    print_ = dataclasses.replace(engine.header.fingerprint, device="cuda", features=(feature,))
    header = dataclasses.replace(engine.header, fingerprint=print_)
    read: Any = SimpleNamespace(header=header, code=b"")
    detail = report_of(read)
    assert detail.network == report.network
    nothing: dict[str, object] = {"features": [], "libraries": [], "multiprocessors": None}
    data = json.loads(json.dumps(report_to_json(detail)))
    assert {name: data[name] for name in nothing} == nothing | known
    page = report_to_html(detail)
    assert (f" with {feature}" in page) == ("features" in known)
    assert ("cuBLASLt 13.1.2" in page, "66 multiprocessors" in page) == (
        "libraries" in known,
        "multiprocessors" in known,
    )


@pytest.mark.parametrize(
    ("number", "digits", "detail"),
    [
        (0, 2, "0.00"),
        (1234.5, 1, "1,234.5"),
        (1.0, 2, "1.00"),
        (0.0042, 2, "0.0042"),
        (0.004, 3, "0.004"),
        (4.2e-7, 4, "4.2e-07"),
        (-0.003, 2, "-0.003"),
        (3.0, 0, "3"),
    ],
)
def test_no_number_but_zero_is_shown_as_zero(number: float, digits: int, detail: str) -> None:
    assert format_number(number, digits) == detail


def test_the_json_report_has_its_documented_keys_and_is_standard_json(
    report: EngineReport,
) -> None:
    data = json.loads(json.dumps(report_to_json(report), allow_nan=False))
    assert set(data) == {
        "network",
        "device",
        "architecture",
        "features",
        "libraries",
        "multiprocessors",
        "tuned_on",
        "system",
        "version",
        "max_batch_size",
        "reference_steps",
        "reference_ops",
        "reference_layers",
        "host_copy_bytes",
        "weight_bytes",
        "bindings",
        "plans",
        "weights",
        "kernels",
        "partitions",
        "signer",
        "peaks",
        "no_sources",
        "is_retunable",
    }
    assert {f.name for f in dataclasses.fields(PlanReport)} == set(data["plans"][0])
    assert data["bindings"][0] == {
        "name": "image",
        "is_input": True,
        "dtype": "float32",
        "shape": [1, 3, 16, 16],
    }


def test_each_plan_of_an_engine_has_layers_of_its_own() -> None:
    network = network_from_onnx(inception_model("n"))
    shapes = {"image": [(1, 3, 16, 16), (4, 3, 16, 16)]}
    report = report_of(build(network, shapes=shapes, tune="none"))
    first, second = report.plans
    assert {layer.index for layer in first.layers}.isdisjoint(x.index for x in second.layers)
    assert all(layer.outputs == () or "[1, " in layer.outputs[0] for layer in first.layers)
    assert all(layer.outputs == () or "[4, " in layer.outputs[0] for layer in second.layers)


@pytest.mark.parametrize("section", SECTIONS)
def test_each_section_of_the_text_stands_alone(report: EngineReport, section: str) -> None:
    text = report_to_text(report, [section])
    assert "reference steps: 0" in text
    assert len(text.splitlines()) > len(report_to_text(report, []).splitlines())


def test_names_in_the_text_give_no_orders_to_a_terminal() -> None:
    class Source:
        header = dataclasses.replace(affine_header(), name="a\x1b]0;title\x1b\\ b\x9bc")
        code = b""

    assert report_to_text(report_of(Source())).startswith("a\ufffd]0;title\ufffd\\ b\ufffdc:")


def test_the_page_scrolls_no_table_but_in_a_frame_of_its_own(report: EngineReport) -> None:
    page = report_to_html(report)
    inner = re.sub(r"<details>.*?</details>", "", page, flags=re.DOTALL)
    assert inner.count("<table>") == inner.count('<div class="wide">') > 3


def test_one_of_a_kind_is_no_plural(report: EngineReport, plan: PlanReport) -> None:
    one = dataclasses.replace(plan, nodes=plan.nodes[:1], memory=plan.memory[:1], steps=1)
    detail = report_to_text(dataclasses.replace(report, plans=(one,)), SECTIONS, width=200)
    assert "graph after: 1 node\n" in detail
    assert " 1 step, " in detail
    assert "memory: 1 tensor takes" in detail


def test_names_with_colons_are_no_pictures(report: EngineReport) -> None:
    named = dataclasses.replace(report, network="a:1234:b")
    assert report_to_text(named).startswith("a:1234:b: an engine")


def test_the_text_says_what_became_of_layers_and_why_not(report: EngineReport) -> None:
    text = report_to_text(report, ["passes", "tactics"], width=200)
    assert "dead -> (nothing): no output depends on it" in text
    assert "left + left_relu: kept: not merged" in text
    assert "us  conv(" in text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                [
                    "passes",
                    "nodes",
                    "memory",
                    "candidates",
                    "in_network",
                    "formats",
                    "notes",
                    "storage",
                    "source",
                    "before",
                    "conv",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(st.one_of(st.text(max_size=20), JSON.map(json.dumps)))
def test_a_hostile_build_report_is_left_out_and_never_believed(text: str) -> None:
    class Source:
        header: EngineHeader = affine_header(report=text)
        code = b""

    report = report_of(Source())
    json.dumps(report_to_json(report), allow_nan=False)
    assert [layer.name for layer in report.plans[0].layers] == ["scale1 + relu1", "shift1"]
    report_to_text(report, SECTIONS)


def test_an_engine_without_a_report_still_shows_its_memory() -> None:
    class Source:
        header: EngineHeader = affine_header()
        code = b""

    plan = report_of(Source()).plans[0]
    assert [(life.offset, life.first_step, life.last_step) for life in plan.memory] == [(64, 0, 1)]
    assert plan.arena_lower_bound_bytes == plan.memory[0].size_bytes


@pytest.mark.shared
def test_a_trained_network_shows_its_fusions_and_no_reference(shared: Any) -> None:
    path = shared / "models" / "mnist_cntk_onnx" / "mnist.onnx"
    report = report_of(build(network_from_onnx(path), tune="none"))
    assert report.reference_steps == 0
    assert any(" + " in layer.name for layer in report.plans[0].layers)


def test_a_weight_of_an_impossible_size_is_shown() -> None:
    """Nobody has checked the arrays of a file that is only read: 2**2016 elements are no float."""
    from smelt.inspect._text import format_bytes

    assert format_bytes(3 << 30) == "3.00 GiB"
    assert format_bytes((1 << 63) ** 32) == "10**607 B"
