"""Texts that a model with random weights writes under a constraint, and whether a constraint admits a text."""

from __future__ import annotations

import random
from functools import cache

import numpy as np

from ramiform.lang.types.adapter import JsonAdapter
from ramiform.runtime.core.grammar_cache import GrammarCache, JsonDefaults
from ramiform.runtime.protocol.sampling import Constraint


@cache
def runtime_grammars() -> GrammarCache:
    """Compile constraints as the runtime does without a limit of digits, over single bytes; the last token ends."""
    return GrammarCache([*(bytes([byte]) for byte in range(256)), None], [256], defaults=JsonDefaults(number_digits=0))


def written(constraint: Constraint, seed: int) -> str:
    """A text drawn from the masks; after 60 bytes rather one that ends."""
    matcher, rng, text = runtime_grammars().get(constraint).result().matcher(), random.Random(seed), b""
    bits = np.zeros(9, np.int32)
    while True:
        matcher.mask(bits)
        tokens = np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")).tolist()
        if len(text) > 60 and rng.random() < 0.9:
            tokens = [token for token in tokens if token == 256 or token in b'"}]'] or tokens
        token = rng.choice(tokens)
        assert matcher.accept(token)
        if token == 256:
            return text.decode()
        text += bytes([token])


def constraint_of(adapter: JsonAdapter) -> Constraint:
    """Return the constraint that a gen with the adapter's type has."""
    return Constraint("json_schema", adapter.schema_text, "any", "closed")


def admits(constraint: Constraint, text: str) -> bool:
    """Return True if the text is a whole text of the constraint."""
    matcher = runtime_grammars().get(constraint).result().matcher()
    return all(map(matcher.accept, text.encode())) and matcher.is_accepting()
