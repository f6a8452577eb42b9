"""Pictures and pages of the report."""

from __future__ import annotations

import dataclasses
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from smelt.builder import build
from smelt.importers import network_from_onnx
from smelt.inspect import (
    EngineReport,
    TensorLife,
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
    life = TensorLife(evil, 0, 64, 0, 1)
    plan = dataclasses.replace(report.plans[0], memory=(life,))
    assert any(evil in title for title in _titles(memory_to_svg(plan)))
    page = report_to_html(dataclasses.replace(report, network=evil, plans=(plan,)))
    assert "<script" not in page


class _Tags(HTMLParser):
    """Checks that tags close, and gathers text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.fetched: list[str] = []
        self.linked: set[str] = set()
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
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
    assert "Memory over time" in text
    for layer in report.plans[0].layers:
        assert layer.name in text


def test_the_axes_of_memory_have_round_steps_and_one_unit(report: EngineReport) -> None:
    plan = dataclasses.replace(report.plans[0], steps=27, arena_bytes=2_400_000)
    labels = re.findall(r'fill="#555">([^<]*)<', memory_to_svg(plan))
    assert labels[:5] == ["0.0 MiB", "0.6 MiB", "1.1 MiB", "1.7 MiB", "2.3 MiB"]
    assert labels[5:-1] == ["0", "5", "10", "15", "20", "25"]
