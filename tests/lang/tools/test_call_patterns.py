"""Predictions of calls from earlier ones."""

from __future__ import annotations

import json
import sys

from ramiform.lang.tools.call_patterns import (
    MAX_ARGUMENTS,
    MAX_CONSTANT,
    MAX_LINKS,
    MAX_SOURCES,
    PROMPT,
    CallPatterns,
    CallRecord,
)


def searched(what: str, *ids: int) -> CallRecord:
    return CallRecord("search", {"what": what}, json.dumps({"hits": [{"id": one} for one in ids], "unit": "cm"}))


def test_arguments_come_from_the_place_where_they_stood_before() -> None:
    patterns = CallPatterns()
    for what, id in (("tea", 7), ("salt", 9)):
        assert patterns.predict([searched(what, id)]) == []
        patterns.learn([searched(what, id)], [("read", {"id": id, "about": what, "unit": "cm"})])
    assert patterns.predict([searched("ink", 3, 4)]) == [("read", {"id": 3, "about": "ink", "unit": "cm"})]
    assert patterns.predict([CallRecord("other", {}, "")]) == []


def test_nothing_is_predicted_whose_arguments_came_from_nowhere() -> None:
    patterns = CallPatterns()
    for id in range(5):
        patterns.learn([searched("tea", 1)], [("read", {"id": 100 + id})])
    assert patterns.predict([searched("tea", 1)]) == []


def test_what_follows_less_than_half_of_the_time_is_not_predicted() -> None:
    patterns = CallPatterns()
    for num in range(4):
        patterns.learn([searched("tea", num)], [("read", {"id": num})])
    assert patterns.predict([searched("ink", 8)]) == [("read", {"id": 8})]
    for num in range(4):
        patterns.learn([searched("tea", num)], [])
    assert patterns.predict([searched("ink", 8)]) == []


def test_optional_arguments_are_left_out_unless_most_calls_had_them() -> None:
    patterns = CallPatterns()
    patterns.learn([PROMPT], [("list", {"path": ".", "all": True})])
    patterns.learn([PROMPT], [("list", {"path": "."})])
    patterns.learn([PROMPT], [("list", {"path": "."})])
    assert patterns.predict([PROMPT]) == [("list", {"path": "."})]


def test_results_that_are_no_json_and_deep_ones_are_text() -> None:
    patterns = CallPatterns()
    deep = "[" * sys.getrecursionlimit() * 2
    for text in ("plain", deep, "plain"):
        patterns.learn([CallRecord("a", {}, text)], [("b", {"x": text})])
    assert patterns.predict([CallRecord("a", {}, "other")]) == [("b", {"x": "other"})]


def test_what_is_kept_is_bounded() -> None:
    patterns = CallPatterns()
    for num in range(2 * MAX_LINKS):
        patterns.learn([PROMPT], [(f"tool {num}", {"x": 1})])
    assert len(patterns._links) == MAX_LINKS
    patterns = CallPatterns()
    for num in range(2 * MAX_SOURCES):
        patterns.learn([PROMPT], [("a", {"x": num})])
    assert len(patterns._links["", "a"].sources["x"]) == MAX_SOURCES
    for num in range(2 * MAX_ARGUMENTS):
        patterns.learn([PROMPT], [("b", {f"x{num}": 1, "text": "a" * MAX_CONSTANT})])
    sources = patterns._links["", "b"].sources
    assert len(sources) == MAX_ARGUMENTS
    assert not sources["text"]
