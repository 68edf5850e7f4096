"""The runtime's cache of grammars: compiled aside, once, with errors that a client can act on."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from ramiform.constrained.backends import OutputMatcher
from ramiform.runtime.core import grammar_cache
from ramiform.runtime.core.grammar_cache import GrammarCache, JsonDefaults
from ramiform.runtime.protocol.errors import RequestError
from ramiform.runtime.protocol.sampling import Constraint

from .walks import EOS, TOKENS, accepts


@pytest.fixture
def grammars(monkeypatch: pytest.MonkeyPatch) -> Iterator[GrammarCache]:
    monkeypatch.setattr(grammar_cache, "MAX_GRAMMARS", 2)
    made = GrammarCache(TOKENS, {EOS})
    yield made
    made.close()


@pytest.mark.parametrize(
    ("constraint", "text"),
    [
        (Constraint("regex", r"\d+"), "12"),
        (Constraint("json_schema", '{"type": "integer"}'), "-12"),
        (Constraint("choices", json.dumps(["yes", "nö"])), "nö"),
    ],
)
def test_each_kind_is_compiled(grammars: GrammarCache, constraint: Constraint, text: str) -> None:
    assert accepts(grammars.get(constraint).result(), text.encode())


def test_the_order_of_properties_is_part_of_a_constraint(grammars: GrammarCache) -> None:
    schema = '{"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 2}}}'
    in_any, in_schema = (
        grammars.get(Constraint("json_schema", schema, order, "schema")).result() for order in ("any", "schema")
    )
    for text, in_order in (('{"a": 1, "b": 2}', True), ('{"b": 2, "a": 1}', False)):
        assert accepts(in_any, text.encode())
        assert accepts(in_schema, text.encode()) is in_order


def test_how_objects_end_is_part_of_a_constraint(grammars: GrammarCache) -> None:
    schema = '{"type": "object", "properties": {"a": {"type": "integer"}}}'
    silent, closed, free = (
        grammars.get(Constraint("json_schema", schema, "any", reading)) for reading in (None, "closed", "schema")
    )
    assert silent is closed  # the default: one grammar, however it is asked for
    for text, is_closed in (('{"a": 1}', True), ('{"a": 1, "b": 2}', False)):
        assert accepts(closed.result(), text.encode()) is is_closed
        assert accepts(free.result(), text.encode())
    assert not accepts(free.result(), b'{"a": 1.0}')


def test_the_default_is_the_servers() -> None:
    grammars = GrammarCache(TOKENS, {EOS}, defaults=JsonDefaults("schema"))
    asked = Constraint("json_schema", '{"type": "object", "properties": {"a": {}}}')
    assert accepts(grammars.get(asked).result(), b'{"b": 1}')
    grammars.close()


def test_what_nobody_waits_for_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads compile; while both are busy, others come, and leave."""
    grammars = GrammarCache(TOKENS, {EOS})
    go, compiled = threading.Event(), []

    def compile_once_told(constraint: Constraint) -> Any:
        assert go.wait(30)
        compiled.append(constraint.source)
        return None

    monkeypatch.setattr(grammars, "_compile", compile_once_told)
    busy = [grammars.get(Constraint("regex", source)) for source in ("a", "b")]
    left, shared = Constraint("regex", "left"), Constraint("regex", "shared")
    first, second = grammars.get(left), [grammars.get(shared) for _ in range(2)]
    grammars.release(left, first)
    grammars.release(shared, second[0])
    grammars.release(Constraint("regex", "a"), busy[0])  # has begun: it goes on
    again = grammars.get(left)
    grammars.release(left, first)  # it was the one before that was let go
    go.set()
    for future in (*busy, second[1], again):
        assert future.result(30) is None
    assert first.cancelled()
    assert sorted(compiled) == ["a", "b", "left", "shared"]
    grammars.close()


def test_warming_up_keeps_no_grammar(grammars: GrammarCache) -> None:
    first = grammars.get(Constraint("regex", "a"))
    grammars.get(Constraint("regex", "b"))
    grammars.warm_up().result()
    assert grammars.get(Constraint("regex", "a")) is first


def test_equal_constraints_share_a_grammar_until_it_is_the_least_recently_used(grammars: GrammarCache) -> None:
    first = grammars.get(Constraint("regex", "a"))
    assert grammars.get(Constraint("regex", "a")) is first
    grammars.get(Constraint("regex", "b"))
    assert grammars.get(Constraint("regex", "a")) is first
    grammars.get(Constraint("regex", "c"))
    assert grammars.get(Constraint("regex", "a")) is first
    grammars.get(Constraint("regex", "d"))
    grammars.get(Constraint("regex", "e"))
    assert grammars.get(Constraint("regex", "a")) is not first


def test_the_sources_of_grammars_count() -> None:
    """A schema's descriptions are kept though no automaton needs them, as a text and as they were parsed."""
    grammars = GrammarCache(TOKENS, {EOS}, max_bytes=1 << 20)
    for number in range(20):
        text = f"{number} " * 50_000
        grammars.get(Constraint("json_schema", f'{{"type": "boolean", "description": "{text}"}}')).result()
    num_grammars, num_bytes, _ = grammars.totals()
    assert 1 <= num_grammars < 20
    assert 200_000 < num_bytes <= 1 << 20
    grammars.close()


def test_the_cache_is_bounded_in_bytes_and_running_outputs_go_on() -> None:
    def filled(source: str) -> OutputMatcher:
        """Compile, and fill the masks of some places."""
        matcher = grammars.get(Constraint("regex", source)).result().matcher()
        for byte in b"abcdefgh":
            matcher.mask(out)
            assert matcher.accept(byte)
        return matcher

    out = np.zeros(-(-len(TOKENS) // 32), np.int32)
    grammars = GrammarCache(TOKENS, {EOS})
    filled("a[a-z]{20}0")
    [one] = {grammars.totals().num_bytes}
    masks = 8 * out.nbytes
    grammars = GrammarCache(TOKENS, {EOS}, max_bytes=4 * one - masks)
    matchers = [filled(f"a[a-z]{{20}}{number}") for number in range(3)]
    assert grammars.totals().num_bytes == 3 * one
    matchers.append(filled("a[a-z]{20}3"))
    assert grammars.totals() == (4, 4 * one - masks, 0), "only masks were dropped, those of one grammar"
    matchers += [filled(f"a[a-z]{{20}}{number}") for number in range(4, 12)]
    num_grammars, num_bytes, _ = grammars.totals()
    assert num_grammars < 6
    assert num_bytes <= 4 * one - masks
    for number, matcher in enumerate(matchers):
        assert all(matcher.accept(byte) for byte in b"abcdefghijklm" + str(number).encode())
        assert matcher.is_accepting()
    grammars.close()


@pytest.mark.parametrize(
    ("constraint", "words"),
    [
        (Constraint("regex", "a(b"), ["position 1", "    a(b\n     ^"]),
        (Constraint("json_schema", '{"properties": {"x": {"not": 3}}}'), ["/properties/x/not", "'not'"]),
        (Constraint("json_schema", "nonsense"), ["no JSON"]),
        (Constraint("choices", "[]"), ["not empty"]),
        (Constraint("choices", "[1]"), ["strings"]),
        (Constraint("choices", "{"), ["no JSON"]),
        (Constraint("choices", '["\\ud800"]'), ["surrogate"]),
        (Constraint("grammar", "start: A"), ["'A'", "not defined"]),
        (Constraint("grammar", "root = 1"), ["grammar"]),
        (Constraint("grammar", "root ::= other"), ["other"]),
        (Constraint("structural_tag", "{}"), ["structural_tag", "'structures' is missing"]),
    ],
)
def test_what_is_wrong_is_the_clients_mistake_and_says_where(
    grammars: GrammarCache, constraint: Constraint, words: list[str]
) -> None:
    error = grammars.get(constraint).exception()
    assert isinstance(error, RequestError)
    assert error.param == constraint.kind
    assert error.code == "invalid_grammar"
    assert all(word in str(error) for word in words), str(error)
