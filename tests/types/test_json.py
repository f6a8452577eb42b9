"""JSON is bounded before a byte of it takes a hundred."""

from __future__ import annotations

import json

import pytest

from smelt.types import Limit, count_json_parts, parse_json


@pytest.mark.parametrize(
    "text",
    [
        b"[" + b"[]," * 400 + b"[]]",
        b"[" * 1001,
        b"[" + b"{}," * 999 + b"0]",
        b"[" + b"0," * 1000 + b"0]",
        b'["' + b"," * 1001 + b'"]',
        b"{" + b",".join(b'"%d":0' % i for i in range(501)) + b"}",
    ],
)
def test_text_of_too_many_parts_is_refused_by_name_unparsed(
    text: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Limit.MAX_JSON_PARTS, "most", 800)
    monkeypatch.setattr(json, "loads", None)
    with pytest.raises(ValueError, match="MAX_JSON_PARTS is 800"):
        parse_json(text)


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 100_000 + b"]" * 100_000,
        b'{"a":' * 100_000,
        b'{"a": 1, "a": 2}',
        b"1" * 5000,
        b"\xff",
        b"",
        "\ud800",
    ],
)
def test_what_is_no_sound_json_is_a_value_error(text: bytes | str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)


def test_what_python_writes_is_read() -> None:
    value = {"a": [1, 2.5, None, "ä,[{"], "b": {"c": True}}
    assert parse_json(json.dumps(value)) == parse_json(json.dumps(value).encode()) == value
    assert count_json_parts(json.dumps(value).encode()) == 13
