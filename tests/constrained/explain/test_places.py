"""Places in a text, compared with the standard library's reading of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramiform.constrained.explain.places import JsonPlaces, Span, excerpt, line_and_column
from ramiform.constrained.schema.keywords import child

NAMES = st.text(st.sampled_from('ab/~"\\é🙂\n'), max_size=3)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | NAMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)


def pointers(value: Any, pointer: str = "") -> dict[str, Any]:
    found = {pointer: value}
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, each in inner:
        found |= pointers(each, child(pointer, name))
    return found


@pytest.mark.slow
@given(VALUES, st.sampled_from([None, 1]), st.booleans())
def test_every_value_and_name_is_found_by_its_pointer(value: Any, indent: int | None, ascii_only: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    places = JsonPlaces(text)
    for pointer, each in pointers(value).items():
        found, span = places.find(pointer)
        assert found == pointer
        assert json.loads(text[span.begin : span.end]) == each
        if isinstance(each, str):
            spans = [places.character(span, number) for number in range(len(each))]
            assert [json.loads(f'"{text[s.begin : s.end]}"', strict=False) for s in spans] == list(each)
        for name in each if isinstance(each, dict) else ():
            span = places.name(child(pointer, name))
            assert json.loads(text[span.begin : span.end]) == name
    assert places.find(f"{pointer}/x/y")[0] == pointer


@pytest.mark.parametrize(
    ("text", "pointer", "in_name"),
    [
        ("", "", False),
        ("{", "", True),
        ('{"a', "", True),
        ('{"a"', "", True),
        ('{"a":', "/a", False),
        ('{"a": [1, {"b": "x', "/a/1/b", False),
        ('{"a": [1, {"b": 2}', "/a/1", False),
        ('{"a": [1, {"b": 2},', "/a/2", False),
        ('{"a": [1], "b/c": {"d": 1,', "/b~1c", True),
        ('[[], "a\\"]', "/1", False),
    ],
)
def test_the_value_that_is_being_written_is_known(text: str, pointer: str, in_name: bool) -> None:
    places = JsonPlaces(text)
    assert (places.open, places.in_name) == (pointer, in_name)


@pytest.mark.slow
@given(st.text(st.sampled_from("ab\t\n"), max_size=300), st.data())
def test_the_caret_is_under_the_character(text: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(text)))
    line, column = line_and_column(text, at)
    assert [line - 1, column - 1] == [text[:at].count("\n"), len(text[:at].split("\n")[-1])]
    shown, carets = excerpt(text, Span(at, at + 1))
    assert carets.strip() == "^"
    if text[at : at + 1].strip():
        assert shown[carets.index("^")] == text[at]
