"""Turns of counted work: one job at a time, short ones past long ones, none starves, and a lock keeps nobody out."""

from __future__ import annotations

import json
import random
import re
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ramiform
from ramiform.constrained import Vocabulary
from ramiform.constrained.budget import cached_property, count
from ramiform.runtime.core import turns as turns_module
from ramiform.runtime.core.grammar_cache import GrammarCache
from ramiform.runtime.core.turns import OLDEST_SHARE, TURN_STEPS, Turns
from ramiform.runtime.protocol.errors import RequestError
from ramiform.runtime.protocol.sampling import Constraint

TOKENS: list[bytes | None] = [*(bytes([byte]) for byte in range(256)), b'": "', b'", "', b"12", b"abc", b"</s>"]
EOS = len(TOKENS) - 1
PATIENCE = 120  # seconds after which a test fails that would never end


@pytest.fixture
def turns() -> Iterator[Turns]:
    made = Turns("turns under test")
    yield made
    made.close()


def work(num_turns: int) -> None:
    for _ in range(num_turns):
        count(TURN_STEPS)


def held_up(turns: Turns) -> threading.Event:
    """Begin a job that keeps its turn until the event is set, so that others can line up."""
    go = threading.Event()
    turns.submit("held up", lambda: go.wait(PATIENCE))
    return go


def test_one_job_is_at_work_at_a_time_and_those_of_a_line_in_order(turns: Turns) -> None:
    rng = random.Random(1)
    at_work: list[int] = []
    ended: dict[int, list[int]] = {}

    def job(number: int, line: int, num_counts: int) -> int:
        for _ in range(num_counts):
            at_work.append(number)
            assert at_work == [number], "another job is at work"
            at_work.remove(number)
            count(rng.randrange(TURN_STEPS))
        ended.setdefault(line, []).append(number)
        return number

    lines = [rng.randrange(12) for _ in range(200)]
    futures = [
        turns.submit(line, lambda number=number, line=line: job(number, line, rng.randrange(12)))
        for number, line in enumerate(lines)
    ]
    assert [future.result(PATIENCE) for future in futures] == list(range(200))
    assert ended == {line: [number for number in range(200) if lines[number] == line] for line in set(lines)}


@pytest.mark.slow
def test_a_short_job_passes_long_ones(turns: Turns) -> None:
    go, ended = held_up(turns), []
    long = [turns.submit(number, lambda: work(500)) for number in range(40)]
    short = turns.submit("short", lambda: work(2))
    for future in (*long, short):
        future.add_done_callback(lambda _: ended.append(sum(one.done() for one in long)))
    go.set()
    short.result(PATIENCE)
    for future in long:
        future.result(PATIENCE)
    assert ended[0] == 0, "a long one ended before the short one"


def test_short_jobs_that_keep_coming_do_not_starve_a_long_one(turns: Turns) -> None:
    go, num_short = held_up(turns), 0

    def short() -> None:
        nonlocal num_short
        num_short += 1
        if not long.done():
            turns.submit(("short", num_short), short)
        work(1)

    long = turns.submit("long", lambda: work(100))
    for number in range(3):
        turns.submit(number, short)
    go.set()
    long.result(PATIENCE)
    assert num_short <= 2 * OLDEST_SHARE * 100


def test_a_line_that_had_much_work_goes_behind_a_new_one(turns: Turns) -> None:
    turns.submit("greedy", lambda: work(200)).result(PATIENCE)
    go, ended = held_up(turns), []
    greedy = turns.submit("greedy", lambda: ended.append("greedy"))
    fresh = turns.submit("fresh", lambda: ended.append("fresh"))
    turns._num_turns = 0  # of the next ones none is the oldest job's
    go.set()
    greedy.result(PATIENCE)
    fresh.result(PATIENCE)
    assert ended == ["fresh", "greedy"]


def test_a_job_that_fails_fails_alone(turns: Turns) -> None:
    def fail() -> None:
        work(2)
        raise ValueError("mine")

    other, failing = turns.submit(1, lambda: work(5)), turns.submit(2, fail)
    with pytest.raises(ValueError, match="mine"):
        failing.result(PATIENCE)
    other.result(PATIENCE)


def endless() -> None:
    while True:
        count(TURN_STEPS)


def test_a_job_that_is_stopped_ends_and_others_go_on(turns: Turns) -> None:
    begun = threading.Event()
    job = turns.submit("endless", lambda: (begun.set(), endless()))
    other = turns.submit("other", lambda: work(100))
    assert begun.wait(PATIENCE)
    turns.stop("endless", job)
    with pytest.raises(CancelledError):
        job.result(PATIENCE)
    other.result(PATIENCE)


def test_closing_ends_all_jobs(turns: Turns) -> None:
    begun = threading.Event()
    jobs = [turns.submit(number, lambda: (begun.set(), endless())) for number in range(100)]
    assert begun.wait(PATIENCE)
    turns.close()
    for job in jobs:
        with pytest.raises(CancelledError):
            job.result(PATIENCE)


def test_closing_again_does_nothing(turns: Turns) -> None:
    begun = [threading.Event() for _ in range(3)]
    jobs = [turns.submit(number, lambda event=event: (event.set(), endless())) for number, event in enumerate(begun)]
    assert all(event.wait(PATIENCE) for event in begun)
    with turns._lock:  # so that no job ends in between
        turns._close()
        turns._close()
    for job in jobs:
        with pytest.raises(CancelledError):
            job.result(PATIENCE)


def hostile(number: int) -> Constraint:
    """Return one of several kinds of expensive constraints, which use the same kinds of states."""
    match number % 5:
        case 0:
            options = [
                {"properties": {"k": {"pattern": f"^{n}_{number}[a-z]*$"}, "n": {"minimum": n}}} for n in range(80)
            ]
            schema: Any = {"anyOf": [{"type": "object", "required": ["k"], **option} for option in options]}
        case 1:
            schema = {"enum": [{"name": f"n{n}_{number}", "value": n} for n in range(200)]}
        case 2:
            conditions = [
                {"if": {"properties": {"a": {"const": f"x{n}"}}}, "then": {"required": [f"b{n}"]}} for n in range(20)
            ]
            properties = {"a": {"type": "string"}, f"c{number}": {}}
            schema = {"type": "object", "properties": properties, "allOf": conditions}
        case 3:
            members = {f"^[a-{last}]{{2,}}{number}": {"type": "integer"} for last in "efgh"}
            schema = {"type": "object", "properties": {"k": {"type": "string"}}, "required": ["k"]}
            schema["patternProperties"] = members
        case _:
            schema = {"type": "array", "items": {"enum": list(range(number, number + 12))}, "uniqueItems": True}
    return Constraint("json_schema", json.dumps(schema), "any", "schema")


def walk(grammar: Any, prepare: Callable[[Callable[[], None]], None]) -> list[bytes]:
    """Sample an output; return its masks."""
    vocabulary = Vocabulary.from_tokens(TOKENS, [EOS])
    matcher, rng = grammar.matcher(), random.Random(1)
    masks: list[bytes] = []
    accepted: list[bool] = []
    for _ in range(20):
        prepare(lambda: matcher.prepare(forced=False))
        out = np.zeros(vocabulary.num_words, np.int32)
        matcher.mask(out)
        masks.append(out.tobytes())
        tokens = np.flatnonzero(np.unpackbits(out.view(np.uint8), bitorder="little")).tolist()
        token = rng.choice(tokens)
        prepare(lambda token=token: accepted.append(matcher.accept(token)))
        assert accepted[-1]
        if token == EOS:
            break
    return masks


@pytest.mark.exhaustive
def test_grammars_that_give_way_at_every_step_are_those_compiled_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a job holds while others are at work, none waits for it; nor do they share what is half made."""
    constraints = [hostile(number) for number in range(15)]
    alone = GrammarCache(TOKENS, {EOS})
    expected = [walk(alone.get(constraint).result(PATIENCE), lambda work: work()) for constraint in constraints]
    alone.close()
    constraints = [*constraints, *constraints[:5]]  # some twice: matchers of one grammar
    monkeypatch.setattr(turns_module, "TURN_STEPS", 1)
    monkeypatch.setattr(turns_module, "FIRST_STEPS", 1)
    together = GrammarCache(TOKENS, {EOS})
    found: list[Any] = [None] * len(constraints)

    def run(number: int) -> None:
        grammar = together.get(constraints[number]).result(PATIENCE)
        found[number] = walk(grammar, lambda work: together.prepare(constraints[number], work).result(PATIENCE))

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(len(constraints))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    together.close()
    assert found == [*expected, *expected[:5]]


@pytest.mark.exhaustive
def test_a_plain_schema_is_compiled_before_the_hostile_ones_that_came_first() -> None:
    grammars = GrammarCache(TOKENS, {EOS})
    grammars.warm_up().result(PATIENCE)
    go = held_up(grammars._turns)
    before: list[Future[Any]] = [grammars.get(hostile(5 * number)) for number in range(100, 112)]
    plain = grammars.get(Constraint("json_schema", '{"type": "object", "properties": {"a": {"type": "integer"}}}'))
    num_ended: list[int] = []
    plain.add_done_callback(lambda _: num_ended.append(sum(future.done() for future in before)))
    go.set()
    plain.result(PATIENCE)
    for future in before:
        future.result(PATIENCE)
    grammars.close()
    assert num_ended == [0]


class Holder:
    @cached_property
    def value(self) -> int:
        work(3)
        return 5


def test_a_property_that_is_computed_holds_no_lock_that_others_need(turns: Turns) -> None:
    holders = [turns.submit(number, lambda: Holder().value) for number in range(3)]
    assert [future.result(PATIENCE) for future in holders] == [5, 5, 5]


@pytest.mark.parametrize("folder", ["schema", "regex", "grammar", "tags"])
def test_no_property_of_what_gives_way_is_the_standard_librarys(folder: str) -> None:
    files = (Path(ramiform.__file__).parent / "constrained" / folder).rglob("*.py")
    assert not [file for file in files if re.search(r"from functools import .*cached_property", file.read_text())]


def test_an_error_that_is_cached_keeps_nothing_of_the_compilation() -> None:
    grammars = GrammarCache(TOKENS, {EOS})
    error = grammars.get(Constraint("regex", "[a-c]{3}(")).exception(PATIENCE)
    grammars.close()
    assert isinstance(error, RequestError)
    assert error.__context__ is None
    names = [frame.f_code.co_name for frame, _ in traceback.walk_tb(error.__traceback__)]
    assert "_compile" in names
    assert not any("regex" in name or "parse" in name for name in names)
