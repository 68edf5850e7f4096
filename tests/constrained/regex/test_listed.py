"""The smallest automata of listed texts accept exactly these, with their labels."""

from __future__ import annotations

import random
import re
from decimal import Decimal
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramiform.constrained import Choices, Vocabulary, compile_constraint
from ramiform.constrained.budget import CompileBudget
from ramiform.constrained.errors import GrammarError
from ramiform.constrained.regex import listed
from ramiform.constrained.regex.byte_dfa import byte_dfa
from ramiform.constrained.regex.dfa import START
from ramiform.constrained.regex.listed import listed_chars, listed_dfa
from ramiform.constrained.regex.subset import char_dfa
from ramiform.constrained.regex.syntax.expression import alternation, literal
from ramiform.constrained.schema.number_parts import listed_numbers_dfa
from ramiform.tests.constrained.walks import BYTES, byte_vocabulary

WORDS = st.text("ab0é🙂", max_size=5)


@pytest.mark.slow
@given(texts=st.dictionaries(WORDS.map(str.encode), st.integers(0, 3), max_size=12), others=st.lists(WORDS))
def test_every_text_ends_with_its_label_and_no_other_text_is_accepted(
    texts: dict[bytes, int], others: list[str]
) -> None:
    dfa, labels = listed_dfa(texts)
    for text in {*texts, *(other.encode() for other in others)}:
        assert labels[dfa.walk(START, text)] == texts.get(text, -1)
    assert (dfa.accepting == (labels >= 0)).all()


@pytest.mark.slow
@given(
    texts=st.dictionaries(WORDS.map(str.encode), st.integers(0, 2), max_size=8),
    repeated=st.sets(WORDS.map(str.encode)),
    zeros=st.integers(0, 4),
)
def test_repeated_bytes_keep_the_label_of_their_text(texts: dict[bytes, int], repeated: set[bytes], zeros: int) -> None:
    dfa, labels = listed_dfa(texts, repeated, ord("0"))
    for text in texts:
        longer = text + b"0" * zeros
        # The longest listed text that zeros may follow decides, unless the whole text is listed.
        begun = [
            each
            for each in texts
            if each in repeated and longer.startswith(each) and not longer[len(each) :].strip(b"0")
        ]
        expected = texts.get(longer, texts[max(begun, key=len)] if begun else -1)
        assert labels[dfa.walk(START, longer)] == expected


@given(texts=st.sets(WORDS, min_size=1, max_size=12))
def test_the_automaton_is_the_smallest(texts: set[str]) -> None:
    dfa, _ = listed_dfa({text.encode(): 0 for text in texts})
    # States of the smallest automaton are the distinct sets of what may follow a beginning of a text.
    data = [text.encode() for text in texts]
    begun = {text[:end] for text in data for end in range(len(text) + 1)}
    rests = {frozenset(text[len(start) :] for text in data if text.startswith(start)) for start in begun}
    assert dfa.num_states == len(rests) + 1


@pytest.mark.slow
@given(texts=st.sets(WORDS, max_size=12), others=st.lists(WORDS))
def test_characters_are_read_as_by_the_subset_construction(texts: set[str], others: list[str]) -> None:
    chars = listed_chars(texts)
    judge = char_dfa(alternation(literal(text) for text in texts), CompileBudget())
    spelled, expected = byte_dfa(chars, "json_string"), byte_dfa(judge, "json_string")
    for text in {*texts, *others}:
        assert chars.accepts(text) == judge.accepts(text) == (text in texts)
        assert spelled.accepts(text.encode()) == expected.accepts(text.encode())


def test_too_many_states_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listed, "MAX_LISTED_STATES", 50)
    listed_dfa({b"a" * 40: 0})
    with pytest.raises(GrammarError, match="more than 50 states"):
        listed_dfa({b"a" * 60: 0})


@pytest.mark.slow
@given(choices=st.lists(WORDS, min_size=1, max_size=12), others=st.lists(WORDS))
def test_choices_are_all_that_is_allowed(choices: list[str], others: list[str]) -> None:
    grammar = compile_constraint(Choices(choices), Vocabulary.from_tokens([*BYTES, "é".encode(), b"b0", None], [258]))
    for text in {*choices, *others}:
        matcher = grammar.matcher()
        assert (all(map(matcher.accept, text.encode())) and matcher.is_accepting()) == (text in choices)


@pytest.mark.exhaustive
def test_fifty_thousand_random_choices_are_allowed() -> None:
    numbers = random.Random(0)
    choices = [str(UUID(int=numbers.getrandbits(128))) for _ in range(50_000)]
    grammar = compile_constraint(Choices(choices), byte_vocabulary())
    for text in choices[::5000]:
        matcher = grammar.matcher()
        assert all(map(matcher.accept, text.encode()))
        assert matcher.is_accepting()


def test_fifty_thousand_choices_need_few_states() -> None:
    choices = [f"choice number {number} of many" for number in range(50_000)]
    grammar = compile_constraint(Choices(choices), byte_vocabulary())
    for text in (choices[0], choices[12_345], choices[-1]):
        matcher = grammar.matcher()
        for byte in text.encode():
            assert matcher.accept(byte)
        assert matcher.is_accepting()
    matcher = grammar.matcher()
    assert not all(matcher.accept(byte) for byte in b"choice number 50000 of many")
    assert grammar.generation.automaton.tables.num_states < 200


@pytest.mark.slow
@given(
    values=st.dictionaries(
        st.decimals(-1000, 1000, places=2)
        | st.integers(-(10**25), 10**25).map(Decimal)
        | st.floats(-1e30, 1e30).map(str).map(Decimal),
        st.integers(0, 5),
        max_size=8,
    ),
    digits=st.booleans(),
    zeros=st.integers(0, 3),
)
def test_listed_numbers_end_with_the_label_of_their_value(values: dict[Decimal, int], digits: bool, zeros: int) -> None:
    dfa, labels = listed_numbers_dfa(values, digits)
    spelled = [str(int(value)) for value in values if value == int(value)]
    plain = {format(value, "f").rstrip("0") if "." in format(value, "f") else format(value, "f") for value in values}
    spelled += [text for text in plain if not text.endswith((".", "-0"))]
    spelled += [text + "0" * zeros if "." in text else f"{text}.0{'0' * zeros}" for text in spelled]
    spelled += [repr(float(value)) for value in values]
    for text in spelled:
        found = int(labels[dfa.walk(START, text.encode())])
        value = Decimal(text)
        if found >= 0:
            assert values[value] == found
            assert not (digits and value == int(value) and re.search(r"\.", text) and "e" not in text)
        elif value in values and "e" not in text and not text.startswith("-0"):
            assert digits, text
            assert value == int(value), text
            assert "." in text


def test_five_thousand_numbers_are_read() -> None:
    values = {Decimal(number * 10): number for number in range(5000)}
    dfa, labels = listed_numbers_dfa(values, digits=False)
    assert [int(labels[dfa.walk(START, str(value).encode())]) for value in values] == list(values.values())
    assert labels[dfa.walk(START, b"49990.000")] == 4999
    assert not dfa.accepts(b"49991")
    assert np.unique(labels).size == 5001
