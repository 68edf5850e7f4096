"""Masks, accepted tokens, ends and forced bytes, compared with the list of all texts of a finite language."""

from __future__ import annotations

import random
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramiform.constrained import Choices, GrammarError, JsonSchema, Regex, Vocabulary, compile_constraint
from ramiform.constrained.automaton.layout import MAX_DEPTH
from ramiform.tests.constrained.walks import EOS, TOKENS, allowed, sample, shared_vocabulary

WORDS = st.lists(st.text(st.sampled_from('ab"é東🙂:'), max_size=5), min_size=1, max_size=6)
VOCABULARIES = st.lists(
    st.sampled_from([b"a", b"b", b"ab", b"ba", b"abb", b"aa", b'"', b'"a', b":", None, b""]), min_size=1
)


def spelled(text: bytes, tokens: list[bytes]) -> bool:
    """Return True if the text is a concatenation of tokens."""
    ways = [True] + [False] * len(text)
    for end in range(1, len(text) + 1):
        ways[end] = any(text[:end].endswith(token) and ways[end - len(token)] for token in tokens)
    return ways[-1]


@pytest.mark.slow
@given(words=WORDS, seed=st.integers(0, 2**32), pieces=VOCABULARIES | st.none())
def test_a_token_is_allowed_if_some_text_continues_with_it(
    words: list[str], seed: int, pieces: list[bytes | None] | None
) -> None:
    """Vocabularies that cannot spell every text are included: no token leads into a dead end."""
    tokens = TOKENS if pieces is None else [*pieces, None]
    eos = EOS if pieces is None else len(pieces)
    vocabulary = Vocabulary.from_tokens(tokens, [eos])
    texts = {word.encode() for word in words}
    useful = [token for number, token in enumerate(tokens) if token and number != eos]
    try:
        grammar = compile_constraint(Choices(words), vocabulary)
    except GrammarError:
        assert not any(spelled(text, useful) for text in texts)
        return
    rng = random.Random(seed)
    matcher, output = grammar.matcher(), b""
    while True:
        expected = {
            number
            for number, token in enumerate(tokens)
            if token and number != eos
            for text in texts
            if text.startswith(output + token) and spelled(text[len(output + token) :], useful)
        }
        expected |= {eos} if output in texts else set()
        assert set(allowed(matcher, vocabulary)) == expected
        assert matcher.is_accepting() == (output in texts)
        for number in range(len(tokens)):
            assert matcher.accept(number) == (number in expected)
            if number in expected:
                matcher.rollback(1)
        choice = rng.choice(sorted(expected))
        assert matcher.accept(choice)
        if choice == eos:
            break
        output += tokens[choice] or b""
    assert matcher.is_accepting()
    assert allowed(matcher, vocabulary) == []
    assert not any(matcher.accept(number) for number in range(len(tokens)))


@pytest.mark.slow
@given(words=WORDS, data=st.data())
def test_forced_bytes_are_what_all_texts_share(words: list[str], data: st.DataObject) -> None:
    grammar = compile_constraint(Choices(words), shared_vocabulary())
    texts = {word.encode() for word in words}
    text = data.draw(st.sampled_from(sorted(texts)))
    taken = data.draw(st.integers(0, len(text)))
    matcher = grammar.matcher()
    assert all(matcher.accept(byte) for byte in text[:taken])
    possible = [other[taken:] for other in texts if other.startswith(text[:taken])]
    shared = min(possible, key=len)
    while not all(other.startswith(shared) for other in possible):
        shared = shared[:-1]
    assert matcher.forced() == shared


@pytest.mark.slow
@given(seed=st.integers(0, 2**32), back=st.integers(0, 5))
def test_rollback_undoes_any_number_of_tokens_even_the_end(seed: int, back: int) -> None:
    rng = random.Random(seed)
    matcher = compile_constraint(JsonSchema({"enum": ["abc", 12, None, [True]]}), shared_vocabulary()).matcher()
    seen = [allowed(matcher, shared_vocabulary())]
    while seen[-1]:
        assert matcher.accept(rng.choice(seen[-1]))
        seen.append(allowed(matcher, shared_vocabulary()))
    back = min(back, len(seen) - 1)
    matcher.rollback(back)
    assert allowed(matcher, shared_vocabulary()) == seen[len(seen) - 1 - back]
    with pytest.raises(AssertionError):
        matcher.rollback(len(seen))


@pytest.mark.slow
@given(seed=st.integers(0, 2**32), back=st.integers(0, 9))
def test_text_is_followed_byte_by_byte_as_by_its_tokens(seed: int, back: int) -> None:
    rng = random.Random(seed)
    schema = JsonSchema(
        {"properties": {"a": {"maxLength": 3, "type": "string"}, "b": {"type": "array", "maxItems": 2}}}
    )
    grammar = compile_constraint(schema, shared_vocabulary())
    by_tokens, by_bytes, seen = grammar.matcher(), grammar.matcher(), []
    for _ in range(12):
        token = rng.choice(allowed(by_tokens, shared_vocabulary()))
        if token == EOS:
            break
        assert by_tokens.accept(token)
        for byte in TOKENS[token] or b"":
            assert by_bytes.accept_byte(byte)
            seen.append(allowed(by_bytes, shared_vocabulary()))
        assert seen[-1] == allowed(by_tokens, shared_vocabulary())
        assert not by_bytes.accept_byte(0xFF)
    back = min(back, len(seen) - 1)
    if seen:
        by_bytes.rollback(back)
        assert allowed(by_bytes, shared_vocabulary()) == seen[len(seen) - 1 - back]


def test_special_and_unknown_tokens_are_never_accepted() -> None:
    matcher = compile_constraint(Regex(r"[\s\S]*"), shared_vocabulary()).matcher()
    assert not matcher.accept(len(TOKENS))
    assert not matcher.accept(-1)
    assert allowed(matcher, shared_vocabulary()) == [
        number
        for number, token in enumerate(TOKENS)
        if number == EOS or (token and b"\xff" not in token and _begins_text(token))
    ]


def _begins_text(token: bytes) -> bool:
    """Return True if the token is a prefix of some UTF-8 text: its last character can be completed."""
    ends = [b"", b"\x80", b"\xbf", b"\x9f", *(bytes([a, b]) for a in (0x80, 0x90, 0xA0, 0x8F, 0x9F) for b in (0x80,))]
    ends += [bytes([a, 0x80, 0x80]) for a in (0x80, 0x90, 0xA0)]
    for end in ends:
        try:
            (token + end).decode()
        except UnicodeDecodeError:
            continue
        return True
    return False


def test_many_ends_of_sequence_are_allowed_together() -> None:
    vocabulary = Vocabulary.from_tokens([b"a", b"</s>", None, b"b"], [1, 2])
    matcher = compile_constraint(Regex("a?"), vocabulary).matcher()
    assert allowed(matcher, vocabulary) == [0, 1, 2]
    assert matcher.accept(2)


def test_masks_overwrite_the_buffer_and_are_shared_by_outputs() -> None:
    grammar = compile_constraint(Regex("a+"), shared_vocabulary())
    first, second = grammar.matcher(), grammar.matcher()
    out = np.full(-(-len(TOKENS) // 32), -1, np.int32)
    first.mask(out)
    kept = out.copy()
    out[:] = 0
    second.mask(out)
    assert (out == kept).all()
    out[:] = 0
    first.mask(out)
    assert (out == kept).all()


@pytest.mark.exhaustive
def test_a_large_vocabulary_is_walked_as_a_naive_loop_would() -> None:
    rng = random.Random(1)
    tokens: list[bytes | None] = [bytes([byte]) for byte in range(256)]
    tokens += ["".join(rng.choices('ab1"{}:, é東', k=rng.randint(1, 9))).encode() for _ in range(3000)]
    vocabulary = Vocabulary.from_tokens([*tokens, None], [len(tokens)])
    schema = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}, "required": ["b"]}
    grammar = compile_constraint(JsonSchema(schema), vocabulary)
    for _ in range(10):
        matcher = grammar.matcher()
        for _ in range(rng.randint(0, 8)):
            naive = []
            for number, token in enumerate(tokens):  # token by token, byte by byte
                steps = next((n for n, byte in enumerate(token or b"") if not matcher.accept(byte)), len(token or b""))
                if token and steps == len(token):
                    naive.append(number)
                matcher.rollback(steps)
            assert [token for token in allowed(matcher, vocabulary) if token < len(tokens)] == naive
            if not naive:
                break
            assert matcher.accept(rng.choice(naive))
    assert sample(grammar, rng, vocabulary)


def test_importing_the_package_imports_neither_torch_nor_numba() -> None:
    code = (
        "import sys, ramiform.constrained; sys.exit(any(m in sys.modules for m in ('torch', 'numba', 'transformers')))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd="/", check=False).returncode == 0


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")], ids=["arrays", "objects"])
def test_values_are_nested_up_to_a_limit_and_can_always_be_closed(opening: bytes, closing: bytes) -> None:
    vocabulary = shared_vocabulary()
    matcher = compile_constraint(JsonSchema({}), vocabulary, whitespace="compact").matcher()
    depth = 0
    while all(matcher.accept(byte) for byte in opening):
        depth += 1
        assert depth <= MAX_DEPTH
    assert depth >= 200
    for token in allowed(matcher, vocabulary):
        assert not any(byte in b"[{" for byte in vocabulary.tokens[token] or b""), vocabulary.tokens[token]
    # The shortest way out is open at every step.
    for _ in range(4 * depth):
        if matcher.is_accepting():
            break
        tokens = allowed(matcher, vocabulary)
        assert matcher.accept(next(byte for byte in (closing[0], *b'1":a') if byte in tokens))
    assert matcher.is_accepting()
