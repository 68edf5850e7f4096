"""Quotes of a text, judged by a naive reader, also for long texts."""

from __future__ import annotations

import random
import re
import unicodedata

import pytest

from ramiform.constrained import GrammarError, Substring, Vocabulary, compile_constraint
from ramiform.tests.constrained.walks import BYTES, accepts, allowed, byte_vocabulary, sample, shared_vocabulary

TEXT = 'The cat sat.  "Cats," he said,\n  sit; naïve e\u0301clairs_2 cost 3.50 \n 東京は大きい。 the cat '


def is_word(character: str) -> bool:
    spaced = not re.match("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\uf900-\ufaff]", character)
    return (unicodedata.category(character)[0] in "LNM" or character == "_") and spaced


def quotes(text: str) -> set[str]:
    """All quotes, by looking at every part of the text."""
    found = set()
    for begin in range(len(text)):
        for end in range(begin + 1, len(text) + 1):
            part = text[begin:end]
            cut_before = begin > 0 and is_word(text[begin - 1]) and is_word(text[begin])
            cut_after = end < len(text) and is_word(text[end - 1]) and is_word(text[end])
            if part == part.strip() and not cut_before and not cut_after:
                found.add(part)
    return found


def random_text(rng: random.Random) -> str:
    return "".join(rng.choice(["a", "b", "ab", " ", "  ", ".", "é", "東", "\n"]) for _ in range(rng.randint(1, 14)))


@pytest.mark.parametrize("text", [TEXT[:60], TEXT[50:], *map(random_text, map(random.Random, range(30)))])
def test_the_texts_are_the_quotes(text: str) -> None:
    expected = quotes(text)
    if not expected:
        with pytest.raises(GrammarError, match="no word to quote"):
            compile_constraint(Substring(text), byte_vocabulary())
        return
    grammar = compile_constraint(Substring(text), byte_vocabulary())
    for begin in range(len(text)):
        for end in range(begin, len(text) + 1):
            part = text[begin:end]
            assert accepts(grammar, part.encode()) is (part in expected), part
    for quote in sorted(expected)[:20]:
        assert not accepts(grammar, quote.encode() + b"z")


def test_draws_of_a_random_model_are_quotes_and_never_come_to_a_dead_end() -> None:
    grammar, expected = compile_constraint(Substring(TEXT), shared_vocabulary()), quotes(TEXT)
    found = {sample(grammar, random.Random(seed), patience=4).decode() for seed in range(60)}
    assert found <= expected
    assert len(found) > 20


def test_words_that_the_tokens_cannot_spell_are_not_quoted() -> None:
    tokens = [token for token in BYTES if token != b"x"]
    vocabulary = Vocabulary.from_tokens([*tokens, None], [255])
    grammar = compile_constraint(Substring("one axe, two (six) men"), vocabulary)
    found = {sample(grammar, random.Random(seed), vocabulary).decode() for seed in range(60)}
    assert found <= {"one", ",", ", two", ", two (", "two", "two (", "(", ")", ") men", "men"}
    assert {"one", "men"} <= found


@pytest.mark.exhaustive
def test_a_long_text_is_quoted() -> None:
    rng = random.Random(1)
    words = [f"{rng.choice('bcdfgh')}{rng.choice('aeiou')}{number}" for number in range(3000)]
    text = " ".join(rng.choice(words) for _ in range(100_000))
    grammar = compile_constraint(Substring(text), shared_vocabulary())
    assert allowed(grammar.matcher(), shared_vocabulary())
    for _ in range(5):
        begin = text.index(" ", rng.randrange(len(text) // 2)) + 1
        end = text.index(" ", begin + 300)
        assert accepts(grammar, text[begin:end].encode())
        assert not accepts(grammar, text[begin:end].encode() + b" zz")
    repeated = "ab " * 50_000
    grammar = compile_constraint(Substring(repeated), shared_vocabulary())
    assert accepts(grammar, repeated[:3000].strip().encode())


@pytest.mark.parametrize(
    ("text", "wrong"), [("", "no word"), (" \n", "no word"), ("a" * (5 << 20), "bytes"), ("\ud800", "surrogate")]
)
def test_texts_that_cannot_be_quoted_are_refused(text: str, wrong: str) -> None:
    with pytest.raises(GrammarError, match=wrong):
        compile_constraint(Substring(text), byte_vocabulary())
