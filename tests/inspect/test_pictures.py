"""Pictures and pages of the report."""

from __future__ import annotations

import dataclasses
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


def test_edges_of_the_graph_lead_downwards(report: EngineReport) -> None:
    root = ElementTree.fromstring(graph_to_svg(report.plans[0], report.bindings))  # noqa: S314
    paths = [
        path.get("d", "").replace("C", "").replace("M", "") for path in root.iter(f"{SVG}path")
    ]
    assert len(paths) >= len(report.plans[0].nodes)
    for path in paths:
        numbers = [float(number) for number in path.split()]
        assert numbers[1] < numbers[-1]


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

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "meta":
            self.open.append(tag)
        self.fetched += [name for name, _ in attrs if name in ("src", "href")]

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
    text = " ".join(tags.texts)
    assert "Memory over time" in text
    for layer in report.plans[0].layers:
        assert layer.name in text
