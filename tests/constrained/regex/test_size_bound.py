"""Bounds of automata, against the automata themselves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramiform.constrained.budget import CompileBudget
from ramiform.constrained.regex.subset import char_dfa
from ramiform.constrained.regex.syntax.parser import containing, parse_regex
from ramiform.constrained.regex.syntax.size_bound import size_bound

ATOMS = st.sampled_from(["a", "b", "ab", "-", r"\d", r"\w", "[^a]", "[a-cé]", "[0-9_]", "."])
PATTERNS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=4).map("".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: f"({'|'.join(parts)})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{2,}", "{0,2}"])).map(
            lambda pair: f"({pair[0]}){pair[1]}"
        ),
    ),
    max_leaves=7,
)


@pytest.mark.slow
@given(PATTERNS, st.sampled_from(["^", ""]), st.sampled_from(["$", ""]))
def test_an_automaton_is_within_its_bound_and_matches_some_text(pattern: str, start: str, end: str) -> None:
    expression = parse_regex(f"{start}{pattern}{end}", "ecma")
    if (bound := size_bound(expression)) is not None:
        found = char_dfa(containing(expression), CompileBudget())
        assert found.num_states <= bound.states
        assert len(found.alphabet.starts) <= bound.intervals
        assert not found.is_empty


@pytest.mark.parametrize(
    ("pattern", "is_small"),
    [
        ("^[a-z0-9]+(-[a-z0-9]+)*$", True),
        (r"^\d{4}-\d{2}-\d{2}$", True),
        ("abc", True),
        ("^(a|b)*a(a|b){12}$", False),  # 4,096 states
        ("a^b", False),  # matches nothing
        ("^(?!a)b$", False),
        (r"\p{L}{40}", False),
        (r"^\uD800$", False),  # no character, so no text
        (r"a?\p{Cs}", False),
        (r"^[\uD800a]$", True),
    ],
)
def test_patterns_with_and_without_a_bound(pattern: str, is_small: bool) -> None:
    assert (size_bound(parse_regex(pattern, "ecma")) is not None) == is_small
