"""Masks of many outputs at once, and what is prepared in another thread, against one output at a time."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from ramiform.constrained import JsonSchema, Matcher, Regex, compile_constraint, fill_batch
from ramiform.constrained.automaton import walks
from ramiform.constrained.automaton.batch import prepare_together

from ..walks import EOS, allowed, shared_vocabulary

CONSTRAINTS = [
    JsonSchema(
        {"type": "object", "properties": {"name": {"type": "string", "maxLength": 5}, "n": {"type": "integer"}}}
    ),
    JsonSchema({"enum": ["abc", "abcabd", {"a": [1, 2]}, {"a": [1, 3]}]}),
    JsonSchema({"type": "array", "items": {"enum": ["a", "ab", "b"]}, "uniqueItems": True}),
    JsonSchema({"type": "object", "additionalProperties": {"type": "boolean"}, "maxProperties": 4}),
    JsonSchema({"type": "array", "items": {"multipleOf": 7, "type": "integer"}}),
    Regex("(ab|c)*[0-9]{3}"),
]


def alone(matcher: Matcher) -> bytes:
    out = np.zeros(shared_vocabulary().num_words, np.int32)
    matcher.mask(out)
    return out.tobytes()


def walking(rng: random.Random, num_rows: int, num_steps: int) -> Iterator[list[tuple[Matcher, Matcher]]]:
    """Yield pairs of matchers before each token: of the same outputs, but of two compilations of their grammars."""
    grammars = [[compile_constraint(one, shared_vocabulary()) for one in CONSTRAINTS] for _ in range(2)]
    numbers = [rng.randrange(len(CONSTRAINTS)) for _ in range(num_rows)]
    pairs = [(grammars[0][number].matcher(), grammars[1][number].matcher()) for number in numbers]
    for _ in range(num_steps):
        yield pairs
        for pair in pairs:
            if tokens := allowed(pair[1], shared_vocabulary()):
                token = rng.choice(tokens)
                assert [matcher.accept(token) for matcher in pair] == [True, True]
                if rng.random() < 0.1:
                    for matcher in pair:
                        matcher.rollback(1)


@pytest.mark.parametrize("num_rows", [1, 5, 40])
def test_a_batch_gets_the_masks_that_each_output_gets_alone(num_rows: int) -> None:
    out = np.zeros((num_rows + 1, shared_vocabulary().num_words), np.int32)
    for pairs in walking(random.Random(num_rows), num_rows, 25):
        fill_batch([*(pair[0] for pair in pairs), None], out)
        for row, pair in zip(out, pairs, strict=False):
            assert row.tobytes() == alone(pair[1])
        assert (out[-1] == -1).all()


def test_threads_share_the_walks_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walks, "MIN_SHARE", 2)
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    threads = set()
    submit = walks._threads().submit

    def counting(*args: object) -> object:
        threads.add(len(args))
        return submit(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(walks._threads(), "submit", counting)
    test_a_batch_gets_the_masks_that_each_output_gets_alone(40)
    assert threads


def test_what_takes_a_walk_is_prepared_together_and_new_states_are_not() -> None:
    seen = {"ready": 0, "not ready": 0}
    for pairs in walking(random.Random(7), 12, 25):
        ready_before = [pair[0].is_ready(forced=False) for pair in pairs]
        sizes = [pair[0].generation.automaton.tables.num_states for pair in pairs]
        prepare_together([pair[0] for pair in pairs])
        assert sizes == [pair[0].generation.automaton.tables.num_states for pair in pairs]
        for (one, other), was_ready in zip(pairs, ready_before, strict=True):
            is_ready = one.is_ready(forced=False)
            assert is_ready >= was_ready
            seen["ready" if is_ready else "not ready"] += 1
            if is_ready:
                assert alone(one) == alone(other)
            else:
                one.prepare(forced=False)
                assert one.is_ready(forced=False)
                assert alone(one) == alone(other)
    assert all(seen.values())


def test_forced_text_is_known_after_it_was_prepared_and_accepted_along_it() -> None:
    schema = {"type": "object", "properties": {"kind": {"const": "long text"}}, "additionalProperties": False}
    constraint = JsonSchema(schema | {"required": ["kind"]})
    grammar, other = (compile_constraint(constraint, shared_vocabulary(), whitespace="compact") for _ in range(2))
    matcher, judge = grammar.matcher(), other.matcher()
    assert not matcher.is_ready(forced=True)
    matcher.prepare(forced=True)
    with grammar.generation.lock:
        assert matcher.is_ready(forced=True)
    forced = matcher.forced()
    assert forced == judge.forced()
    assert forced.startswith(b'{"kind":')
    for place, byte in enumerate(forced):
        if place == 5:  # a walk in between uses the cells
            assert alone(matcher) == alone(judge)
            matcher.rollback(2)
            judge.rollback(2)
            assert [each.accept(token) for each in (matcher, judge) for token in forced[3:5]] == [True] * 4
        assert [each.accept(byte) for each in (matcher, judge)] == [True, True]
        assert matcher.forced() == judge.forced() == forced[place + 1 :]
    assert alone(matcher) == alone(judge)
    assert json.loads(forced) == {"kind": "long text"}


def test_nothing_waits_for_another_thread_at_once() -> None:
    grammar = compile_constraint(Regex("[ab]+c"), shared_vocabulary())
    matcher, is_held, may_end = grammar.matcher(), threading.Event(), threading.Event()

    def hold() -> None:
        with grammar.generation.lock:
            is_held.set()
            assert may_end.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    assert is_held.wait(30)
    assert matcher.accept_at_once(ord("a")) is None
    assert not matcher.is_ready(forced=False)
    assert matcher.accept_at_once(ord("a"), new_states=True) is None
    assert not matcher.is_ready(forced=False, new_states=True)
    prepare_together([matcher])
    assert not matcher.is_ready(forced=False)
    may_end.set()
    thread.join()
    assert not matcher.is_ready(forced=False), "the first state does not exist yet"
    other = compile_constraint(Regex("[ab]+c"), shared_vocabulary()).matcher()
    assert other.accept_at_once(ord("a")) is None
    assert other.accept_at_once(ord("a"), new_states=True) is True
    assert other.is_ready(forced=False, new_states=True)
    matcher.prepare(forced=False)
    assert matcher.is_ready(forced=False)
    assert matcher.accept_at_once(ord("a")) is True
    assert matcher.accept_at_once(ord("x")) is False
    assert matcher.accept(ord("c"))
    assert matcher.accept(EOS)
    assert matcher.is_ready(forced=True)
