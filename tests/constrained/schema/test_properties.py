"""Properties of all schemas: masks allow exactly valid outputs, and agree with steps, ends and rollback."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ramiform.constrained import CompiledGrammar, GrammarError, JsonSchema, Matcher, compile_constraint, fill_batch
from ramiform.tests.constrained.strategies import SEEDS, combined, many
from ramiform.tests.constrained.walks import EOS, accepts, allowed, shared_vocabulary

from .oracle_jsonschema import (
    NAMES,
    Draft,
    Guesser,
    Whitespace,
    has_reference_cycle,
    in_draft,
    is_valid,
    judge,
    schemas,
    spelled,
)

WHITESPACE = st.sampled_from(["compact", "bounded", "any"])
DRAFTS = st.sampled_from(get_args(Draft))
SLOW = many(80)


def compiled(schema: Any, whitespace: Whitespace, order: str = "any") -> CompiledGrammar | None:
    """Compile a schema; None if no value is valid. Schemas that are refused as too complex are skipped."""
    try:
        return compile_constraint(JsonSchema(schema), shared_vocabulary(), whitespace=whitespace, order=order)
    except GrammarError as error:
        if "no text at all" in str(error):
            return None
        assume(False)
        raise


@pytest.mark.exhaustive
@SLOW
@given(schema=schemas(), whitespace=WHITESPACE, seed=SEEDS, draft=DRAFTS)
def test_a_text_is_accepted_exactly_when_its_value_is_valid(
    schema: Any, whitespace: Whitespace, seed: int, draft: Draft
) -> None:
    assume(not has_reference_cycle(schema))
    # jsonschema does not count what additionalProperties and others have evaluated in that draft.
    assume(draft != "2019-09" or "unevaluated" not in str(schema))
    rng = random.Random(seed)
    guesser = Guesser(schema, rng)
    schema = in_draft(schema, draft)
    grammar, validator = compiled(schema, whitespace), judge(schema, draft)
    for _ in range(15):
        text = spelled(guesser.guess(), whitespace, rng)
        assert accepts(grammar, text.encode()) == is_valid(validator, text), text


@pytest.mark.exhaustive
@SLOW
@given(schema=schemas(), whitespace=WHITESPACE, seed=SEEDS, order=st.sampled_from(["any", "schema"]), draft=DRAFTS)
def test_outputs_drawn_from_masks_are_valid(
    schema: Any, whitespace: Whitespace, seed: int, order: str, draft: Draft
) -> None:
    assume(not has_reference_cycle(schema))
    schema = in_draft(schema, draft)
    grammar = compiled(schema, whitespace, order)
    assume(grammar is not None)
    validator, rng = judge(schema, draft), random.Random(seed)
    for _ in range(3):
        text = drawn(grammar, rng)
        if text is not None:
            assert is_valid(validator, text.decode()), text


def drawn(grammar: CompiledGrammar, rng: random.Random, patience: int = 12) -> bytes | None:
    """Draw an output uniformly from masks, steered to an end after `patience` tokens. None if it takes too long."""
    matcher, output = grammar.matcher(), b""
    names = [b'"%s":' % name.encode() for name in NAMES]
    moves = [b"}", b"]", b'"', b"0", b"1", b"null", b"{}", b"[]", b'""', b'"a"', b"true", b",", *names]
    for step in range(400):
        tokens = allowed(matcher, shared_vocabulary())
        assert tokens, f"a mask is empty after {output!r}"
        assert matcher.is_accepting() == (EOS in tokens)
        if EOS in tokens and (step >= patience or rng.random() < 0.2):
            return output
        moves[5:] = rng.sample(moves[5:], len(moves) - 5)
        wanted = [matcher.forced(), *moves] if step >= patience else []
        taken = next((move for move in wanted if move and rng.random() < 0.8 and _takes(matcher, move)), None)
        if taken is None:
            token = rng.choice([token for token in tokens if token != EOS] or tokens)
            assert matcher.accept(token), (output, shared_vocabulary().tokens[token])
            if token == EOS:
                return output
            taken = shared_vocabulary().tokens[token] or b""
        output += taken
    return None


def _takes(matcher: Matcher, data: bytes) -> bool:
    """Accept all bytes, or none of them."""
    for count, byte in enumerate(data):
        if not matcher.accept(byte):
            matcher.rollback(count)
            return False
    return True


@pytest.mark.exhaustive
@SLOW
@given(schema=schemas(), whitespace=WHITESPACE, seed=SEEDS, backs=st.lists(st.integers(0, 6), max_size=6))
def test_masks_steps_ends_forced_bytes_and_rollback_agree(
    schema: Any, whitespace: Whitespace, seed: int, backs: list[int]
) -> None:
    assume(not has_reference_cycle(schema))
    grammar = compiled(schema, whitespace)
    assume(grammar is not None)
    rng, matcher, fresh = random.Random(seed), grammar.matcher(), grammar.matcher()
    tokens: list[int] = []
    masks = [allowed(matcher, shared_vocabulary())]
    for back in [*backs, 0, 0]:
        for _ in range(4):
            if not masks[-1]:
                break
            may = set(masks[-1])
            for token in rng.sample(range(len(shared_vocabulary())), 40):
                assert matcher.accept(token) == (token in may)
                if token in may:
                    matcher.rollback(1)
            forced = matcher.forced()
            for token in may - {EOS}:
                data = shared_vocabulary().tokens[token] or b""
                assert forced.startswith(data) or data.startswith(forced)
            assert not (forced and matcher.is_accepting())
            token = rng.choice(masks[-1])
            assert matcher.accept(token)
            tokens.append(token)
            masks.append(allowed(matcher, shared_vocabulary()))
        back = min(back, len(tokens))
        matcher.rollback(back)
        del tokens[len(tokens) - back :], masks[len(masks) - back :]
        assert allowed(matcher, shared_vocabulary()) == masks[-1]
    assert all(fresh.accept(token) for token in tokens)
    assert allowed(fresh, shared_vocabulary()) == masks[-1]
    out = np.zeros((3, shared_vocabulary().num_words), np.int32)
    single = np.zeros_like(out[0])
    fill_batch([matcher, None, fresh], out)
    matcher.mask(single)
    assert (out == [single, np.full_like(single, -1), single]).all()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("regex", "((((a))))"),
        ("idn-hostname", "примерпримерпримерпример.рф"),
        ("email", "a@a.b.c.d.e.f.g.h"),
        ("email", f'"{"a" * 40}"@a.b'),
        ("iri", "a:?\U00100000"),
    ],
)
@pytest.mark.parametrize("around", ["not", "oneOf", "if"])
def test_texts_that_a_format_omits_are_not_accepted_by_its_negation(name: str, text: str, around: str) -> None:
    """If a format is narrower than the oracle's, its negation is refused or narrower too."""
    shapes: dict[str, Any] = {
        "not": {"type": "string", "not": {"format": name}},
        "oneOf": {"oneOf": [{"format": name}, {"const": text}]},
        "if": {"if": {"format": name}, "then": False},
    }
    written = json.dumps(text, ensure_ascii=False)
    assert not is_valid(judge(shapes[around]), written)
    try:
        grammar = compile_constraint(JsonSchema(shapes[around]), shared_vocabulary())
    except GrammarError:
        return
    assert not accepts(grammar, written.encode())


STRINGS = combined(
    st.sampled_from(["a", "^b", "b$", "^a*$", "ab|ba", "^.{3}$", "^(..)*$"]).map(lambda p: {"pattern": p}),
    8,
)
NUMBERS = combined(
    st.integers(2, 12).map(lambda n: {"multipleOf": n})
    | st.sampled_from(["minimum", "exclusiveMaximum"]).flatmap(lambda k: st.integers(-9, 60).map(lambda n: {k: n})),
    8,
)
WORDS = ["".join(word) for length in range(5) for word in itertools.product("ab", repeat=length)]


@pytest.mark.exhaustive
@SLOW
@given(schema=STRINGS.map(lambda s: {"type": "string", **s}) | NUMBERS.map(lambda s: {"type": "integer", **s}))
def test_combined_string_and_number_keywords_accept_exactly_valid_values(schema: Any) -> None:
    """All short words and small numbers are tried. Exactly the unsatisfiable schemas are refused as such."""
    grammar, validator = compiled(schema, "compact"), judge(schema)
    texts = [json.dumps(word) for word in WORDS] if schema["type"] == "string" else [str(n) for n in range(-30, 90)]
    assert [accepts(grammar, text.encode()) for text in texts] == [is_valid(validator, text) for text in texts]
