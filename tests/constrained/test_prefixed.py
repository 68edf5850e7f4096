"""A text before a constraint, judged by the constraint alone behind it."""

from __future__ import annotations

import numpy as np
import pytest

from ramiform.constrained import (
    Choices,
    Grammar,
    GrammarError,
    GrammarSource,
    JsonSchema,
    Prefixed,
    Regex,
    StructuralTag,
    Substring,
    Vocabulary,
    compile_constraint,
)

TOKENS = [
    b"is ",
    b" [",
    b" a",
    b"a",
    b" 1",
    b"1",
    b"aa",
    b'"a',
    b'"',
    b"s a",
    b"]",
    b"ab",
    b" ",
    b"i",
    b"s",
    b"b",
    b"[",
]
VOCABULARY = Vocabulary.from_tokens([*TOKENS, None], [len(TOKENS)])
SOURCES = [
    Regex("a*b?"),
    Choices(["a", "ab"]),
    JsonSchema({"type": "array", "items": {"enum": [1, "a"]}, "maxItems": 2}),
    Grammar('root ::= "a" root? "b"', "gbnf"),
    Grammar('start: "a" start? "b"'),
    Substring("a b ab a"),
    StructuralTag({"format": {"type": "sequence", "elements": [{"type": "regex", "pattern": "a+"}]}}),
]


@pytest.mark.parametrize("source", SOURCES, ids=lambda one: type(one).__name__)
def test_texts_behind_a_lead_are_those_of_the_constraint_in_any_tokens(source: GrammarSource) -> None:
    lead = "is "
    alone, led = (compile_constraint(one, VOCABULARY) for one in (source, Prefixed(lead, source)))
    todo: list[tuple[int, ...]] = [()]
    mask = np.zeros(1, np.int32)
    num_crossing = 0
    while todo:
        tokens = todo.pop()
        text = b"".join(TOKENS[token] for token in tokens)
        matcher = led.matcher()
        assert all(matcher.accept(token) for token in tokens)
        matcher.mask(mask)
        bytes_behind = alone.matcher()
        behind = text[len(lead) :]
        assert all(bytes_behind.accept_byte(byte) for byte in behind)
        assert matcher.is_accepting() == (len(text) >= len(lead) and bytes_behind.is_accepting())
        for token, data in enumerate(TOKENS):
            whole = text + data
            other = alone.matcher()
            expected = lead.encode().startswith(whole) or (
                whole.startswith(lead.encode()) and all(other.accept_byte(byte) for byte in whole[len(lead) :])
            )
            assert bool(mask[0] >> token & 1) == expected, (text, data)
            if expected and len(tokens) < 4:
                num_crossing += len(text) < len(lead) < len(whole)
                todo.append((*tokens, token))
    assert num_crossing


def test_a_lead_that_no_token_spells_is_refused() -> None:
    with pytest.raises(GrammarError, match="no tokens spell the text 'xy'"):
        compile_constraint(Prefixed("xy", Regex("a")), VOCABULARY)
    grammar = compile_constraint(Prefixed("", Regex("a")), VOCABULARY)
    assert grammar.matcher().accept(TOKENS.index(b"a"))
