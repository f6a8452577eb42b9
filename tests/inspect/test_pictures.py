"""Pictures and pages of the report."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import re
from html.parser import HTMLParser
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from smelt.builder import build
from smelt.importers import network_from_onnx
from smelt.inspect import (
    EngineReport,
    PlanReport,
    TensorLifetime,
    graph_to_svg,
    memory_to_svg,
    report_of,
    report_to_html,
)
from tests.support.small_models import boxes_model, inception_model

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def report() -> EngineReport:
    return report_of(build(network_from_onnx(inception_model()), tune="none"))


def _titles(svg: str) -> list[str]:
    root = ElementTree.fromstring(svg)  # noqa: S314  (our own)
    assert root.tag == f"{SVG}svg"
    return [title.text or "" for title in root.iter(f"{SVG}title")]


def test_the_picture_of_memory_has_a_box_for_every_tensor(report: EngineReport) -> None:
    plan = report.plans[0]
    titles = _titles(memory_to_svg(plan))
    for life in plan.memory:
        assert any(title.startswith(f"{life.name}: ") for title in titles)


def test_no_box_leaves_the_picture(report: EngineReport) -> None:
    root = ElementTree.fromstring(memory_to_svg(report.plans[0]))  # noqa: S314  (our own)
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    for rect in root.iter(f"{SVG}rect"):
        x, y = float(rect.get("x", 0)), float(rect.get("y", 0))
        assert x >= 0
        assert y >= 0
        assert x + float(rect.get("width", 0)) <= width
        assert y + float(rect.get("height", 0)) <= height


def test_the_picture_of_the_graph_has_a_box_for_every_node_and_binding(
    report: EngineReport,
) -> None:
    plan = report.plans[0]
    titles = _titles(graph_to_svg(plan, report.bindings))
    assert len(titles) == 1 + len(plan.nodes) + len(report.bindings)
    assert any("conv | relu  conv1" in title for title in titles)


def _places(path: str) -> list[tuple[float, float]]:
    """The points through which a path of M, C and V runs."""
    x, places, words = 0.0, list[tuple[float, float]](), path.replace("M", "M ").split()
    text = " ".join(words).replace("C", " C ").replace("V", " V ").split()
    while text:
        kind = text.pop(0)
        count = {"M": 2, "C": 6, "V": 1}[kind]
        numbers = [float(text.pop(0)) for _ in range(count)]
        x = numbers[-2] if kind != "V" else x
        places.append((x, numbers[-1]))
    return places


def test_lines_lead_downwards_and_pass_no_box(report: EngineReport) -> None:
    svg = graph_to_svg(report.plans[0], report.bindings)
    root = ElementTree.fromstring(svg)  # noqa: S314  (our own)
    boxes = [
        (float(r.get("x", 0)), float(r.get("y", 0)), float(r.get("width", 0)))
        for group in root.iter(f"{SVG}g")
        for r in group.iter(f"{SVG}rect")
    ]
    paths = [_places(path.get("d", "")) for path in root.iter(f"{SVG}path")]
    assert len(paths) >= len(report.plans[0].nodes)
    assert any(len(path) > 2 for path in paths), "no line passes a row"
    for path in paths:
        heights = [y for _, y in path]
        assert heights == sorted(heights)
        for x, y in path[1:-1]:
            assert not any(left <= x <= left + w and top <= y <= top + 44 for left, top, w in boxes)


def test_names_are_escaped_in_pictures_and_pages(report: EngineReport) -> None:
    evil = '<script>"&'
    life = TensorLifetime(evil, 0, 64, 0, 1)
    plan = dataclasses.replace(report.plans[0], memory=(life,))
    assert any(evil in title for title in _titles(memory_to_svg(plan)))
    page = report_to_html(dataclasses.replace(report, network=evil, plans=(plan,)))
    assert page.count("<script") == 1


@pytest.mark.parametrize(
    "evil",
    [
        "</script><script>alert(1)</script>",
        "</title></svg><img src=x onerror=alert(1)>",
        "\"><svg onload='alert(1)'>",
        "]]>--><style>*{}</style>",
    ],
)
def test_no_name_becomes_a_tag_of_the_page(report: EngineReport, evil: str) -> None:
    usual = _Tags()
    usual.feed(report_to_html(report))
    plan, kernel = report.plans[0], report.kernels[0]
    node = dataclasses.replace(plan.nodes[0], name=evil, op=evil, layers=(evil,), tactic=evil)
    layer = dataclasses.replace(plan.layers[0], name=evil, op=evil, tactic=evil)
    hostile = dataclasses.replace(
        report,
        network=evil,
        bindings=tuple(dataclasses.replace(b, name=evil) for b in report.bindings),
        plans=(
            dataclasses.replace(
                plan, nodes=(node, *plan.nodes[1:]), layers=(layer, *plan.layers[1:])
            ),
        ),
        kernels=(dataclasses.replace(kernel, symbol=evil, family=evil), *report.kernels[1:]),
    )
    tags = _Tags()
    tags.feed(report_to_html(hostile))
    assert tags.open == []
    assert tags.names == usual.names
    assert tags.names.count("script") == 1
    assert not any(name.startswith("on") for name in tags.attributes)


def test_the_browser_is_told_to_run_our_script_alone(report: EngineReport) -> None:
    page = report_to_html(report)
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert policy.startswith("default-src 'none'; ")
    assert f"script-src 'sha256-{digest}'" in policy
    assert "innerHTML" not in script
    assert "eval" not in script


def test_what_the_page_searches_and_shows_is_in_every_box(report: EngineReport) -> None:
    root = ElementTree.fromstring(graph_to_svg(report.plans[0], report.bindings))  # noqa: S314  (our own)
    boxes = list(root.iter(f"{SVG}g"))
    assert len(boxes) == len(report.plans[0].nodes) + len(report.bindings)
    for box in boxes:
        assert box[0].tag == f"{SVG}title"
        assert box.find(f"{SVG}rect") is not None
    for node in report.plans[0].nodes:
        words = (node.name, node.op, *node.types, *node.layers, node.tactic)
        assert any(all(word in (box[0].text or "") for word in words) for box in boxes)


def test_the_graph_can_be_searched_and_zoomed_by_keys_and_buttons(report: EngineReport) -> None:
    page = report_to_html(report)
    assert page.count('<figure class="graph">') == len(report.plans)
    assert '<input type="search"' in page
    assert '<div class="view" tabindex="0"' in page
    script = page.rpartition("<script>")[2]
    for action in re.findall(r'<button type="button" value="(\w+)"', page):
        assert re.search(rf"^ +{action}(:|,)", script, re.MULTILINE), action


def test_a_graph_that_is_too_large_to_draw_says_so(
    report: EngineReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "are drawn" not in report_to_html(report)
    monkeypatch.setattr("smelt.inspect._svg_graph.MAX_GRAPH_BOXES", 5)
    page = report_to_html(report)
    boxes = len(report.plans[0].nodes) + len(report.bindings)
    assert f"The graph has {boxes} boxes, of which the first 5 are drawn." in page
    assert page.count("<g><title>") == 5


def _dense(report: EngineReport, count: int, window: int) -> PlanReport:
    """A plan of nodes, each of which reads the results of all that are a window before it."""
    nodes = tuple(
        dataclasses.replace(
            report.plans[0].nodes[0],
            name=f"n{i}",
            inputs=tuple(f"t{j}" for j in range(max(0, i - window), i)),
            outputs=(f"t{i}",),
        )
        for i in range(count)
    )
    return dataclasses.replace(report.plans[0], nodes=nodes, memory=())


def _count_pieces(svg: str) -> int:
    """Lines between two rows that the picture has."""
    return sum(path.count("C") for path in re.findall(r'<path d="([^"]*)"', svg))


def test_the_lines_of_a_picture_are_bounded_and_the_shortest_are_drawn(
    report: EngineReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = _dense(report, 40, 10)
    assert "drawn" not in graph_to_svg(plan, ())
    monkeypatch.setattr("smelt.inspect._svg_graph.MAX_PAGE_PIECES", 120)
    svg = graph_to_svg(plan, ())
    assert _count_pieces(svg) == 39 + 2 * 38 + 3 * ((120 - 39 - 2 * 38) // 3)
    assert svg.count("<g><title>") == 40
    (title, *_) = _titles(svg)
    assert title.endswith(" The longest 267 of 345 lines are not drawn.")


def test_a_dense_graph_of_thousands_of_boxes_is_no_large_picture(report: EngineReport) -> None:
    svg = graph_to_svg(_dense(report, 3000, 30), ())
    assert _count_pieces(svg) <= 1 << 17
    assert len(svg) < 20_000_000


def test_the_graphs_of_a_page_share_what_it_draws(
    report: EngineReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("smelt.inspect._svg_graph.MAX_PAGE_PIECES", 500)
    monkeypatch.setattr("smelt.inspect._svg_graph.MAX_PAGE_BOXES", 100)
    many = dataclasses.replace(report, plans=(_dense(report, 40, 10),) * 4, bindings=())
    page = report_to_html(dataclasses.replace(many, partitions=(many,)))
    assert _count_pieces(page) <= 500
    assert page.count("<g><title>") == 100
    assert (
        page.count("The graph has 40 boxes, of which the first 20 are drawn.") == 2
    )  # title, note
    assert page.count("The graph has 40 boxes, of which none is drawn.") == 2 * 5


def test_the_graph_of_a_thousand_nodes_is_drawn(report: EngineReport) -> None:
    plan = report.plans[0]
    names = [report.bindings[0].name, *(f"t{i}" for i in range(1500))]
    nodes = tuple(
        dataclasses.replace(
            plan.nodes[0], name=name, inputs=(before, names[max(0, i - 8)]), outputs=(name,)
        )
        for i, (before, name) in enumerate(pairwise(names))
    )
    page = report_to_html(
        dataclasses.replace(report, plans=(dataclasses.replace(plan, nodes=nodes),))
    )
    assert page.count("<g><title>") == len(nodes) + len(report.bindings)
    assert len(page) < 2_000_000


class _Tags(HTMLParser):
    """Checks that tags close, and gathers text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.names: list[str] = []
        self.attributes: set[str] = set()
        self.texts: list[str] = []
        self.fetched: list[str] = []
        self.linked: set[str] = set()
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag != "meta":
            self.open.append(tag)
        targets = [value or "" for name, value in attrs if name in ("src", "href")]
        self.fetched += [target for target in targets if not target.startswith("#")]
        self.linked |= {target[1:] for target in targets if target.startswith("#")}
        self.anchors |= {value or "" for name, value in attrs if name == "id"}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Drawings close themselves."""

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.mark.parametrize("model", [inception_model(), boxes_model()], ids=["inception", "boxes"])
def test_the_page_is_well_formed_and_fetches_nothing(model: object) -> None:
    report = report_of(build(network_from_onnx(model), tune="none"))  # type: ignore[arg-type]
    tags = _Tags()
    tags.feed(report_to_html(report))
    assert tags.open == []
    assert tags.fetched == []
    assert tags.linked <= tags.anchors
    text = " ".join(tags.texts)
    assert ("Memory over time" in text) == bool(report.plans[0].memory)
    for layer in report.plans[0].layers:
        assert layer.name in text


def test_a_plan_without_an_arena_has_no_picture_of_memory(report: EngineReport) -> None:
    plan = dataclasses.replace(report.plans[0], memory=(), arena_bytes=0)
    text = report_to_html(dataclasses.replace(report, plans=(plan,)))
    assert "Memory over time" not in text
    assert "Graph after the passes" in text


def test_the_axes_of_memory_have_round_steps_and_one_unit(report: EngineReport) -> None:
    plan = dataclasses.replace(report.plans[0], steps=27, arena_bytes=2_400_000)
    labels = re.findall(r'fill="#555">([^<]*)<', memory_to_svg(plan))
    assert labels[:5] == ["0.0 MiB", "0.6 MiB", "1.1 MiB", "1.7 MiB", "2.3 MiB"]
    assert labels[5:-1] == ["0", "5", "10", "15", "20", "25"]
