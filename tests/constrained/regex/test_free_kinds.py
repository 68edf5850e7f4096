"""Byte kinds that keep a state alive, checked with every text of them up to the stated length."""

from __future__ import annotations

import numpy as np
import pytest

from ramiform.constrained import JsonSchema, Vocabulary, compile_constraint
from ramiform.constrained.regex.dfa import DEAD, KIND, NUM_KINDS, START, free_kinds
from ramiform.constrained.schema.strings.string_dfas import pattern_dfa

PATTERNS = [
    "^[a-z]+$",
    "^[a-z0-9-]{3,12}$",
    "^[0-9a-f]{4}(-[0-9a-f]{2}){2}$",
    "^(?:[^@ ]{1,9}@)?[a-z.]+$",
    "^([0-9]+|[A-F]+)_?$",
    "ab",
    "^$",
    r"^\S+( \S+){0,3}$",
    "^(?!.*xx)[x-z]*$",
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_text_of_the_kinds_stays_alive(pattern: str) -> None:
    dfa = pattern_dfa(pattern)
    free, lengths = free_kinds(dfa)
    for state in range(START, dfa.num_states):
        data = [byte for byte in range(256) if KIND[byte] < NUM_KINDS and free[state] >> KIND[byte] & 1]
        assert not free[state] >> NUM_KINDS
        reached = {state}
        for _ in range(min(int(lengths[state]), dfa.num_states) if data else 0):
            reached = {int(dfa.table[source, dfa.class_of[byte]]) for source in reached for byte in data}
            assert DEAD not in reached


def test_the_kinds_that_a_pattern_repeats_are_found() -> None:
    free, lengths = free_kinds(pattern_dfa("^[a-z]{5,40}$"))
    letters = {int(KIND[byte]) for byte in b"abcdefghijklmnopqrstuvwxyz"}
    assert {kind for kind in range(NUM_KINDS) if free[START] >> kind & 1} == letters
    assert lengths[START] == 40


@pytest.mark.parametrize("most", [3, 7, 40])
def test_a_branch_of_the_trie_is_accepted_only_up_to_the_allowed_length(most: int) -> None:
    words = [b"a" * length for length in range(1, 30)] + [b"ab" * length for length in range(1, 15)]
    tokens: list[bytes | None] = [b'"', *words, b"1", b"a1", b'a"', None]
    vocabulary = Vocabulary.from_tokens(tokens, [len(tokens) - 1])
    for schema in ({"pattern": f"^[a-z]{{0,{most}}}$"}, {"pattern": "^[a-z]*$", "maxLength": most}):
        grammar = compile_constraint(JsonSchema({"type": "string", **schema}), vocabulary)
        matcher, out = grammar.matcher(), np.zeros(vocabulary.num_words, np.int32)
        assert matcher.accept(0)
        assert matcher.accept(1)
        matcher.mask(out)
        allowed = np.flatnonzero(np.unpackbits(out.view(np.uint8), bitorder="little")).tolist()
        expected = [n for n, data in enumerate(tokens) if data in words and len(data or b"") <= most - 1]
        assert allowed == [0, *expected, *([tokens.index(b'a"')] if most > 1 else [])]
