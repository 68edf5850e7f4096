"""Grammars that age: automata are renewed behind running matchers, and no verdict changes."""

from __future__ import annotations

import gc
import json
import random
import weakref
from collections.abc import Iterator

import numpy as np
import pytest

from ramiform.constrained import (
    Choices,
    CompiledGrammar,
    Grammar,
    GrammarError,
    GrammarSource,
    JsonSchema,
    Matcher,
    Regex,
    StructuralTag,
    Vocabulary,
    compile_constraint,
)
from ramiform.constrained.automaton import automaton as automaton_module
from ramiform.constrained.automaton import matcher as matcher_module

NAMES = [f"m{number}" for number in range(20)]
SCHEMA = {
    "type": "object",
    "properties": {name: {"type": "string", "pattern": f"^[a-h]{{1,{2 + n % 4}}}$"} for n, name in enumerate(NAMES)},
    "additionalProperties": False,
}
TOKENS = [*(bytes([byte]) for byte in range(32, 127)), b'","m', b'":"', b'{"m', b"abc"]
VOCABULARY = Vocabulary.from_tokens([*TOKENS, None], [len(TOKENS)])
END = len(TOKENS)
NEVER = 1 << 60


def text(rng: random.Random) -> str:
    names = rng.sample(NAMES, rng.randint(8, 20))
    return json.dumps({name: "".join(rng.choices("abcdefgh", k=2)) for name in names}, separators=(",", ":"))


def ids(text: str) -> Iterator[int]:
    data, place = text.encode(), 0
    while place < len(data):
        token = max((token for token in TOKENS if data.startswith(token, place)), key=len)
        yield TOKENS.index(token)
        place += len(token)


def mask(matcher: Matcher) -> bytes:
    out = np.zeros(VOCABULARY.num_words, np.int32)
    matcher.mask(out)
    return out.tobytes()


def grammar(
    monkeypatch: pytest.MonkeyPatch, renewal_bytes: int, constraint: GrammarSource | None = None
) -> CompiledGrammar:
    """Compile a constraint to a grammar whose automata are renewed when they take so much."""
    monkeypatch.setattr(matcher_module, "RENEWAL_BYTES", renewal_bytes)
    return compile_constraint(constraint or JsonSchema(SCHEMA), VOCABULARY)


@pytest.mark.exhaustive
def test_renewed_automata_allow_what_one_automaton_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matcher_module, "MIN_OUTPUTS", 4)
    renewed, kept = grammar(monkeypatch, 1 << 20), grammar(monkeypatch, NEVER)
    rng = random.Random(1)
    sizes = []
    for _ in range(200):
        pair = renewed.matcher(), kept.matcher()
        for token in ids(text(rng)):
            assert mask(pair[0]) == mask(pair[1])
            assert pair[0].forced() == pair[1].forced()
            assert [matcher.accept(token) for matcher in pair] == [True, True]
        assert [matcher.accept(END) for matcher in pair] == [True, True]
        sizes.append(renewed.num_bytes)
    assert renewed.num_renewals > 3
    assert kept.num_renewals == 0
    assert max(sizes) < 4 << 20 < kept.num_bytes


@pytest.mark.exhaustive
def test_matchers_run_and_roll_back_across_renewals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matcher_module, "MIN_OUTPUTS", 4)
    renewed, kept = grammar(monkeypatch, 1 << 19), grammar(monkeypatch, NEVER)
    rng = random.Random(2)
    outputs = [list(ids(text(rng))) for _ in range(12)]
    pairs = [(renewed.matcher(), kept.matcher()) for _ in outputs]
    generations = [{id(renewed.generation)} for _ in outputs]
    for place in range(max(map(len, outputs))):
        for output, pair, seen in zip(outputs, pairs, generations, strict=True):
            if place >= len(output):
                continue
            assert mask(pair[0]) == mask(pair[1])
            seen.add(id(pair[0]._generation))
            assert [matcher.accept(output[place]) for matcher in pair] == [True, True]
            if rng.random() < 0.1:
                num_back = rng.randint(1, place + 1)
                for matcher in pair:
                    matcher.rollback(num_back)
                for token in output[place + 1 - num_back : place + 1]:
                    assert mask(pair[0]) == mask(pair[1])
                    assert [matcher.accept(token) for matcher in pair] == [True, True]
        other = renewed.matcher()  # other outputs make the automaton grow
        for token in ids(text(rng)):
            mask(other)
            assert other.accept(token)
    assert renewed.num_renewals > 3
    assert min(map(len, generations)) > 1
    for pair in pairs:
        assert [matcher.is_accepting() for matcher in pair] == [True, True]
        assert [matcher.accept(END) for matcher in pair] == [True, True]
        renewed.replace(renewed.generation)
        for matcher in pair:
            matcher.rollback(1)
        assert mask(pair[0]) == mask(pair[1])


def test_a_generation_is_freed_with_its_last_matcher(monkeypatch: pytest.MonkeyPatch) -> None:
    renewed = grammar(monkeypatch, NEVER)
    matcher = renewed.matcher()
    output = list(ids('{"m0":"a","m1":"b"}'))
    for token in output[:8]:
        assert matcher.accept(token)
    matcher._num_replayed = len(output)  # as if it had moved lately: it stays
    gone = weakref.ref(renewed.generation)
    renewed.replace(renewed.generation)
    for token in output[8:]:
        mask(matcher)
        assert matcher.accept(token)
    gc.collect()
    assert gone() is not None
    del matcher
    gc.collect()
    assert gone() is None


@pytest.mark.slow
def test_what_a_generation_held_is_freed_without_a_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    """A collection of all objects stops every thread, for longer the more states there are."""

    def num_states() -> int:
        return sum(type(each).__name__ in ("ObjectState", "MemberStart") for each in gc.get_objects())

    renewed = grammar(monkeypatch, NEVER)
    before, rng = num_states(), random.Random(5)
    gc.collect()
    gc.disable()
    try:
        for _ in range(10):
            matcher = renewed.matcher()
            for token in ids(text(rng)):
                mask(matcher)
                assert matcher.accept(token)
        grown = num_states()
        assert grown > before + 500
        renewed.replace(renewed.generation)
        del matcher
        assert num_states() < before + 100
    finally:
        gc.enable()


@pytest.mark.slow
def test_an_output_that_needs_too_much_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = grammar(monkeypatch, 1 << 19)
    monkeypatch.setattr(automaton_module, "_MAX_BYTES", 1 << 20)
    monkeypatch.setattr(automaton_module, "_MEASURE_INTERVAL", 8)
    rng = random.Random(3)
    member = matcher_module.Matcher(shared)
    assert all(member.accept(token) for token in ids('{"m0":"a'))
    large = {"type": "array", "items": SCHEMA}
    long_output = grammar(monkeypatch, 1 << 19, JsonSchema(large))
    greedy = long_output.matcher()

    def follow(matcher: Matcher, output: str) -> None:
        for token in ids(output):
            mask(matcher)
            assert matcher.accept(token)

    with pytest.raises(GrammarError, match="too complex"):
        follow(greedy, "[" + ",".join(text(rng) for _ in range(500)))
    for grammar_of, begin, end in ((long_output, "[", "]"), (shared, "", "")):
        for _ in range(30):  # many outputs, each of which needs little
            matcher = grammar_of.matcher()
            follow(matcher, begin + text(rng) + end)
            assert matcher.accept(END)
    assert all(member.accept(token) for token in ids('b"}'))
    assert member.is_accepting()


@pytest.mark.parametrize(
    "constraint",
    [
        Regex("(a|b)*a(a|b){6}"),
        Choices(["abc", "abd", "hello"]),
        Grammar('start: "a" start "b" | "c"+', syntax="lark"),
        StructuralTag(
            {
                "type": "structural_tag",
                "format": {
                    "type": "tag",
                    "begin": "<a>",
                    "content": {"type": "regex", "pattern": "[a-c]+"},
                    "end": "</a>",
                },
            }
        ),
        JsonSchema({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}),
    ],
    ids=lambda constraint: type(constraint).__name__,
)
def test_every_kind_of_constraint_is_renewed(constraint: GrammarSource, monkeypatch: pytest.MonkeyPatch) -> None:
    renewed, kept = grammar(monkeypatch, NEVER, constraint), grammar(monkeypatch, NEVER, constraint)
    rng = random.Random(4)
    for _ in range(20):
        pair = renewed.matcher(), kept.matcher()
        for place in range(12):
            bits = mask(pair[0])
            assert bits == mask(pair[1])
            allowed = np.flatnonzero(np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little"))
            token = int(rng.choice(allowed))
            assert [matcher.accept(token) for matcher in pair] == [True, True]
            if token == END:
                break
            if place % 4 == 1:
                renewed.replace(renewed.generation)
    assert renewed.num_renewals > 3


def test_a_large_automaton_is_counted_after_its_first_state(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = grammar(monkeypatch, NEVER, JsonSchema({"type": "string", "pattern": "^.*a.{9}$"}))
    matcher = counted.matcher()
    assert all(matcher.accept(token) for token in ids('"a'))
    tables = counted.generation.automaton.tables
    assert tables.num_states > 10_000
    assert counted.num_bytes > tables.num_bytes > 1 << 20
