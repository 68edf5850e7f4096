"""Vocabularies, and outputs drawn from masks: what a model with random weights would write."""

from __future__ import annotations

import random

import numpy as np

from ramify.constrained import (
    CompiledGrammar,
    Constraint,
    GrammarError,
    Matcher,
    Vocabulary,
    WhitespacePolicy,
    compile_constraint,
)

BYTES: list[bytes | None] = [bytes([byte]) for byte in range(256)]
CHUNKS = ['": ', '", "', ", ", ": "]
CHUNKS += """{" "} ": ":" "," ," [" "] ]} {} [] true false null 12 123 00 -1 0. .5 1e e+ ab abc aa aab
\\" \\n \\u \\u00 \\\\ é 東京 🙂 2024- -0 :00 Z" name" {"a a" "b @a.b :// ::1""".split()
SPECIAL: list[bytes | None] = [None, b"", b"</s>", "é".encode()[:1] + b'"']
TOKENS = BYTES + [chunk.encode() for chunk in CHUNKS] + ["🙂".encode()[:2], "🙂".encode()[2:], b'"', b"a"] + SPECIAL
EOS = len(TOKENS) - 2  # its bytes are no text
VOCABULARY = Vocabulary.from_tokens(TOKENS, [EOS])


def compiled_or_none(
    constraint: Constraint, vocabulary: Vocabulary, whitespace: WhitespacePolicy = "bounded"
) -> CompiledGrammar | None:
    """None when nothing satisfies the constraint."""
    try:
        return compile_constraint(constraint, vocabulary, whitespace=whitespace)
    except GrammarError as error:
        if "no text at all" not in str(error):
            raise
        return None


def allowed(matcher: Matcher, vocabulary: Vocabulary) -> list[int]:
    """The tokens in the mask."""
    out = np.zeros(-(-len(vocabulary) // 32), np.int32)
    matcher.mask(out)
    bits = np.unpackbits(out.view(np.uint8), bitorder="little")
    assert not bits[len(vocabulary) :].any()
    return np.flatnonzero(bits).tolist()


def accepts(grammar: CompiledGrammar, data: bytes) -> bool:
    """Whether the bytes, one token each, lead to an accepting end."""
    matcher = grammar.matcher()
    return all(matcher.accept(byte) for byte in data) and matcher.is_accepting()


def sample(
    grammar: CompiledGrammar, rng: random.Random, vocabulary: Vocabulary = VOCABULARY, patience: int = 60
) -> bytes:
    """An output drawn uniformly from the masks; after `patience` tokens it takes the shortest way to the end."""
    matcher = grammar.matcher()
    output = b""
    distance: np.ndarray | None = None
    for step in range(10_000):
        tokens = allowed(matcher, vocabulary)
        assert tokens, "a mask is empty"
        assert matcher.is_accepting() == any(token in vocabulary.eos_ids for token in tokens)
        if step >= patience:
            distance = _distances(grammar) if distance is None else distance
            states = [grammar.dfa.walk(1, output + (vocabulary.tokens[token] or b"")) for token in tokens]
            costs = [-1 if t in vocabulary.eos_ids else int(distance[s]) for t, s in zip(tokens, states, strict=True)]
            tokens = [tokens[costs.index(min(costs))]]
        token = rng.choice(tokens)
        assert matcher.accept(token)
        if token in vocabulary.eos_ids:
            return output
        data = vocabulary.tokens[token]
        assert data
        output += data
    raise AssertionError("the output does not end")


def _distances(grammar: CompiledGrammar) -> np.ndarray:
    """Bytes from each state to an accepting one."""
    dfa = grammar.dfa
    distance = np.where(dfa.accepting, 0, 1 << 30)
    while True:
        through = distance[dfa.table]
        through[dfa.table == 0] = 1 << 30
        closer = np.minimum(distance, 1 + through.min(axis=1, initial=1 << 30))
        if (closer == distance).all():
            return distance
        distance = closer
