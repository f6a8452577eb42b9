"""How lines are broken for a screen."""

from __future__ import annotations

import pytest

from smelt.errors import sanitize_name
from smelt.types import TextTable, count_cells, wrap_words


@pytest.mark.parametrize(
    ("line", "width", "broken"),
    [
        ("", 10, [""]),
        ("  in  data: float32[1, 3]", 80, ["  in  data: float32[1, 3]"]),
        ("one two three", 7, ["one two", "   thre", "   e"]),
        ("  one two three", 8, ["  one", "      tw", "    o", "      th", "    ree"]),
        ("conv(tile=(8, 16), warps=4)", 18, ["conv(tile=(8, 16),", "      warps=4)"]),
        (
            "read /a/path/that/is/long now",
            8,
            ["read", "    /a/p", "    ath/", "    that", "    /is/", "    long", "    now"],
        ),
        ("one\ntwo three", 5, ["one", "two", "  thr", "  ee"]),
        ("猫 and 犬 too", 8, ["猫 and", "    犬", "    too"]),
    ],
)
def test_lines_are_broken_where_words_end_and_stand_in_what_they_belong_to(
    line: str, width: int, broken: list[str]
) -> None:
    assert wrap_words(line, width) == broken


def test_a_letter_of_the_far_east_takes_two_places_and_an_accent_none() -> None:
    assert (count_cells("abc"), count_cells("猫"), count_cells("e\u0301")) == (3, 2, 1)


def test_the_rest_of_a_long_name_is_never_a_line_of_ours() -> None:
    """Ours begin with at most four spaces; what is broken goes on behind more."""
    for start in ("", "  ", "    "):
        for length in (70, 80, 81, 200):
            first, *later = wrap_words(f"{start}{'x' * length}signed by nobody", 80)
            assert first.startswith(f"{start}x")
            assert all(line.startswith(f"{start}      ") for line in later)
            assert max(map(count_cells, (first, *later))) <= 80
    for blank in "\u115f\u1160\u2800\u3164\uffa0\U0001d159":
        assert sanitize_name(f"x{blank}y") == "x\ufffdy"


@pytest.mark.parametrize("width", [None, 80, 1000])
@pytest.mark.parametrize(("numbers", "names"), [("", ""), ("", "a b"), ("a b", "")])
def test_one_long_cell_does_not_widen_the_other_rows(
    width: int | None, numbers: str, names: str
) -> None:
    long = "x" * 100_000
    rows = [*([["y", "z", i] for i in range(50)]), [long, long, 1]]
    lines = list(TextTable(["a", "b", "count"], rows, f"{numbers} count", names).lines(width))
    assert sum(line.count("x") for line in lines) == 2 * len(long), "it is shown whole"
    rule = next(line for line in lines if "─" in line)
    assert sum(map(len, lines)) - len(rule) < 3 * len(long)


def test_columns_that_a_screen_has_are_aligned() -> None:
    rows = [["x" * 200, 1], ["y", 22]]
    lines = list(TextTable(["a", "count"], rows, "count", "a").lines(240))
    assert {len(line) for line in lines if line} == {1 + 200 + 3 + 5}


def test_a_cell_of_a_table_that_is_longer_than_the_screen_goes_on_behind_lines_of_ours() -> None:
    table = TextTable(["name", "count"], [["x" * 79 + "signed by nobody", 1]], "count", "name")
    lines = list(table.lines(80))
    assert max(map(count_cells, lines)) <= 80
    assert [line for line in lines if line.lstrip().startswith("signed")] == [
        "       signed by nobody"
    ]
