"""Counted repeats, dropped under a limit of the length or subsumed by each other, judged by `re` and a naive reader."""

from __future__ import annotations

import json
import random
import re
from itertools import product

import pytest

from ramiform.constrained import JsonSchema, compile_constraint
from ramiform.constrained.budget import CompileBudget
from ramiform.constrained.regex.subset import char_dfa
from ramiform.constrained.regex.syntax.length_limits import length_limits
from ramiform.constrained.regex.syntax.parser import containing, parse_regex
from ramiform.constrained.schema.strings.string_dfas import pattern_chars
from ramiform.tests.constrained.walks import accepts, byte_vocabulary

TEXTS = ["".join(letters) for length in range(7) for letters in product("ab.", repeat=length)]
# Of an issue of JSONSchemaBench: host names. `re` takes exponential time for most texts that do not match.
HOST_NAME = r"^(?!.*://)(?=.{1,255}$)((.{1,63}\.){1,127}(?![0-9]*$)[a-z0-9-]+\.?)$"


def random_pattern(rng: random.Random, depth: int = 3) -> str:
    """Return a pattern of counted repeats in each other, with look-ahead inside."""
    if not depth:
        return rng.choice(["a", "b", ".", r"\.", "[ab]", "ab", "(?![ab]*$).", "(?=.?b)."])
    inner = random_pattern(rng, depth - 1)
    if rng.random() < 0.6:
        return f"({inner}){rng.choice(['{1,3}', '{0,2}', '{2,4}', '{1,5}?', '{2,}', '+', '+?', '?', '*', '{2}'])}"
    return (
        f"({inner}|{random_pattern(rng, depth - 1)})" if rng.random() < 0.3 else inner + random_pattern(rng, depth - 1)
    )


@pytest.mark.slow
def test_random_counted_repeats_match_as_re_does() -> None:
    rng = random.Random(3)
    for _ in range(60):
        pattern = f"^{random_pattern(rng)}$"
        found = char_dfa(containing(parse_regex(pattern, "ecma")), CompileBudget())
        judge = re.compile(pattern)
        for text in TEXTS:
            assert found.accepts(text) == bool(judge.search(text)), (pattern, text)


@pytest.mark.slow
def test_random_patterns_under_a_limit_match_as_re_does() -> None:
    rng, num_limited = random.Random(4), 0
    for _ in range(150):
        least, most = rng.choice([0, 1, 2]), rng.choice([3, 4, 5])
        looks = [rf"(?={rng.choice(['.', '[a.]'])}{{{least},{most}}}$)", rng.choice(["", "(?!.*bb)", "(?=.{2,4}$)"])]
        rng.shuffle(looks)
        pattern = f"^{''.join(looks)}{random_pattern(rng)}{rng.choice(['$', '', '$'])}"
        limits = length_limits(pattern)
        num_limited += limits.most is not None
        found, judge = pattern_chars(limits.pattern), re.compile(pattern)
        for text in TEXTS:
            is_within = limits.least <= len(text) <= (len(text) if limits.most is None else limits.most)
            assert (is_within and found.accepts(text)) == bool(judge.search(text)), (pattern, limits, text)
    assert num_limited > 40


@pytest.mark.parametrize(
    ("pattern", "most_states"),
    [
        (r"^(?=.{1,255}$)(.{1,63}\.){1,127}[a-z0-9-]+$", 200),
        (r"^(?=.{1,255}$)(?!.*://)((.{1,63}\.){1,127}(?![0-9]*$)[a-z0-9-]+\.?)$", 500),
        (r"^(a[ab]{0,90})*c$", 100),  # sets of counts, of which the least holds all others
    ],
)
def test_counts_take_states_in_proportion(pattern: str, most_states: int) -> None:
    assert pattern_chars(length_limits(pattern).pattern).num_states <= most_states


def test_a_limit_that_decides_no_count_stays_in_the_pattern() -> None:
    for pattern in (
        r"^(?=.{1,255}$)a{2,9}$",
        r"^(?=.{3,}$)(ab){1,5}$",
        r"(?=.{1,5}$)(ab){1,9}$",
        "^(ab){1,9}$",
        "^(?=(",
    ):
        assert length_limits(pattern) == (0, None, pattern)


def is_host_name(text: str) -> bool:
    """Return True if a text matches HOST_NAME, which is read label by label."""
    if not 1 <= len(text) <= 255 or "://" in text:
        return False
    ends = {0: 0}  # after which characters a label may end with its point, after how many labels at least
    for end in range(2, len(text) + 1):
        before = [ends[begin] for begin in range(max(0, end - 64), end - 1) if begin in ends]
        if text[end - 1] == "." and before and min(before) < 127:
            ends[end] = min(before) + 1
    rests = (text[end:] for end in ends if end)
    return any(re.fullmatch(r"(?![0-9]*$)[a-z0-9-]+\.?", rest) for rest in rests)


@pytest.mark.slow
def test_host_names_are_read_as_a_naive_reader_does() -> None:
    grammar = compile_constraint(JsonSchema({"type": "string", "pattern": HOST_NAME}), byte_vocabulary())
    rng, num_valid = random.Random(5), 0
    for _ in range(200):
        labels = []
        for _ in range(rng.choice([1, 2, 3, 20, 120, 126, 127, 128])):
            long = rng.choice("a1.") * rng.choice([2, 62, 63, 64])
            labels.append(rng.choice(["a", "1", "é", " ", *(["..", long, ":", "://"] if rng.random() < 0.05 else "b")]))
        text = ".".join(labels) + rng.choice(["", ".", ".x", ".12", ".12.", ".1a."])
        num_valid += is_host_name(text)
        assert accepts(grammar, json.dumps(text, ensure_ascii=False).encode()) == is_host_name(text), text
    assert 50 < num_valid < 150
