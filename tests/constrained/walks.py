"""Vocabularies, and outputs sampled from masks, as by a model with random weights."""

from __future__ import annotations

import json
import random
import re
from functools import cache
from typing import Any

import numpy as np

from ramiform.constrained import (
    CompiledGrammar,
    GrammarError,
    GrammarSource,
    JsonSchema,
    Matcher,
    PropertyOrder,
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
EOS = len(TOKENS) - 2  # its bytes are not text


@cache
def shared_vocabulary() -> Vocabulary:
    """Return the vocabulary of TOKENS, built on first use, so that an error fails a test and not the import."""
    return Vocabulary.from_tokens(TOKENS, [EOS])


@cache
def byte_vocabulary() -> Vocabulary:
    """Return the vocabulary of single bytes, with the end as token 256."""
    return Vocabulary.from_tokens([*BYTES, None], [256])


def compiled_or_none(
    constraint: GrammarSource,
    vocabulary: Vocabulary,
    whitespace: WhitespacePolicy = "bounded",
    order: PropertyOrder = "any",
) -> CompiledGrammar | None:
    """Compile a constraint; return None if no text satisfies it."""
    try:
        return compile_constraint(constraint, vocabulary, whitespace=whitespace, order=order)
    except GrammarError as error:
        if "no text at all" not in str(error):
            raise
        return None


def compiled(schema: Any, order: PropertyOrder = "any") -> CompiledGrammar:
    """Compile a JSON schema for compact texts over the shared vocabulary."""
    return compile_constraint(JsonSchema(schema), shared_vocabulary(), whitespace="compact", order=order)


def text_of(value: Any) -> bytes:
    """Write a value as compact JSON."""
    return json.dumps(value, separators=(",", ":")).encode()


def allowed(matcher: Matcher, vocabulary: Vocabulary) -> list[int]:
    """Return the tokens in the mask."""
    out = np.zeros(-(-len(vocabulary) // 32), np.int32)
    matcher.mask(out)
    bits = np.unpackbits(out.view(np.uint8), bitorder="little")
    assert not bits[len(vocabulary) :].any()
    return np.flatnonzero(bits).tolist()


def accepts(grammar: CompiledGrammar | None, data: bytes) -> bool:
    """Return True if the bytes, one token each, are accepted as a whole text: never without a grammar."""
    if grammar is None:
        return False
    matcher = grammar.matcher()
    return all(matcher.accept(byte) for byte in data) and matcher.is_accepting()


def sample(
    grammar: CompiledGrammar, rng: random.Random, vocabulary: Vocabulary | None = None, patience: int = 60
) -> bytes:
    """Sample an output uniformly from the masks; after `patience` tokens prefer tokens that end strings and objects."""
    vocabulary = shared_vocabulary() if vocabulary is None else vocabulary
    matcher = grammar.matcher()
    output = b""
    for step in range(20_000):
        tokens = allowed(matcher, vocabulary)
        assert tokens, f"a mask is empty after {output!r}"
        assert matcher.is_accepting() == any(token in vocabulary.eos_ids for token in tokens)
        if step >= patience:
            ends = [[t for t in tokens if t in vocabulary.eos_ids]]
            in_string = re.sub(rb"\\.", b"", output).count(b'"') % 2
            ends += [
                [t for t in tokens if vocabulary.tokens[t] == end] for end in ((b'"',) if in_string else (b"}", b"]"))
            ]
            # Sometimes another token, because the preferred one may loop for ever.
            tokens = next((group for group in ends if group and rng.random() < 0.9), tokens)
        token = rng.choice(tokens)
        assert matcher.accept(token)
        if token in vocabulary.eos_ids:
            return output
        data = vocabulary.tokens[token]
        assert data
        output += data
    raise AssertionError(f"the output does not end: {output[-200:]!r}")
