"""How lines are broken for a screen."""

from __future__ import annotations

import pytest

from smelt.types import count_cells, wrap_words


@pytest.mark.parametrize(
    ("line", "width", "told"),
    [
        ("", 10, [""]),
        ("  in  data: float32[1, 3]", 80, ["  in  data: float32[1, 3]"]),
        ("one two three", 7, ["one two", "  three"]),
        ("  one two three", 8, ["  one", "    two", "    three"]),
        ("conv(tile=(8, 16), warps=4)", 18, ["conv(tile=(8, 16),", "  warps=4)"]),
        ("read /a/path/that/is/long now", 8, ["read", "  /a/path/that/is/long", "  now"]),
        ("one\ntwo three", 5, ["one", "two", "  three"]),
        ("猫 and 犬 too", 8, ["猫 and", "  犬 too"]),
    ],
)
def test_lines_are_broken_where_words_end_and_stand_in_what_they_belong_to(
    line: str, width: int, told: list[str]
) -> None:
    assert wrap_words(line, width) == told


def test_a_letter_of_the_far_east_takes_two_places_and_an_accent_none() -> None:
    assert (count_cells("abc"), count_cells("猫"), count_cells("e\u0301")) == (3, 2, 1)
