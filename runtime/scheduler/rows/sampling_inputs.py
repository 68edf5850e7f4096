"""Inputs of sampling at one position: the mask of allowed tokens, and random bits.

The random bits come from a counter-based generator keyed by (seed, position): the n-th output of SplitMix64 (Steele,
Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014), which needs none of those before it. Seeds are
mixed first, so that neighbouring seeds give unrelated streams instead of shifted ones.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ....constrained.backends import OutputMatcher
from ....constrained.errors import GrammarError
from ...protocol.errors import RequestError
from ..request import Request
from .token_rules import TokenRules

_MASK_64 = (1 << 64) - 1
_SPLITMIX_GAMMA = 0x9E3779B97F4A7C15


def splitmix64(seed: int, n: int) -> int:
    """Return the n-th output (64 bits), counted from 0, of the generator seeded with `seed`."""
    z = (seed + (n + 1) * _SPLITMIX_GAMMA) & _MASK_64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK_64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK_64
    return z ^ (z >> 31)


def random_bits(seed: int, position: int) -> int:
    """Return the random bits of the token at `position`: 64 bits, as a signed number."""
    word = splitmix64(_mixed(seed), position)
    return word - (1 << 64) if word >> 63 else word


@lru_cache(4096)  # the seeds of the running requests come again in each step
def _mixed(seed: int) -> int:
    return splitmix64(seed, 0)


def token_mask(
    matcher: OutputMatcher | None,
    suppressed: Collection[int],
    vocab_size: int,
    rules: TokenRules | None = None,
    output: Sequence[int] = (),
) -> bytes | None:
    """Return the bitmask of the tokens that may be sampled, as words of a Row's mask; None if all may.

    Suppressed tokens are removed only if others remain: the grammar wins. Raises RequestError when the grammar, or
    `rules` after `output`, leave no token at all.
    """
    if matcher is None and not suppressed and rules is None:
        return None
    allowed = _all_tokens(vocab_size)
    if matcher is not None:
        try:
            matcher.mask(allowed)
        except GrammarError as error:
            raise grammar_too_complex(error) from None
        if not allowed.any():
            raise RequestError(
                "no token of the vocabulary can continue the constrained output", param="constraint", code="dead_end"
            )
    if rules is not None:
        if not rules.restrict(allowed, output) and matcher is None and not suppressed:
            return None
        if not allowed.any():
            raise RequestError(
                "bad_words and allowed_token_ids leave no token to continue the output",
                param="bad_words" if rules.num_bans else "allowed_token_ids",
                code="dead_end",
            )
    if suppressed:
        kept = allowed.copy()
        for token in suppressed:
            kept[token // 32] &= ~_bit(token)
        allowed = kept if kept.any() else allowed
    return allowed.astype("<i4", copy=False).tobytes()


def request_mask(request: Request, vocab_size: int) -> bytes | None:
    """Mask of the next token, cached with the request. Raises what `token_mask` raises."""
    num_tokens = len(request.tokens)
    if request.mask is None or request.mask[0] != num_tokens:
        suppressed = request.stops.suppressed(num_tokens - request.num_prompt)
        if request.matcher is None and request.rules is None and not suppressed:
            request.mask = None
            return None
        mask = token_mask(request.matcher, suppressed, vocab_size, request.rules, request.recent_output)
        mask = request.stops.with_one_end(mask)
        temperature = None if request.matcher is None else request.matcher.temperature
        request.mask = num_tokens, mask, temperature
    return request.mask[1]


def next_temperature(request: Request) -> float:
    """Return the temperature of the next token, whose mask has been made: that of the grammar's rule, if it has one."""
    of_rule = None if request.mask is None else request.mask[2]
    return request.sample.temperature if of_rule is None else of_rule


def grammar_too_complex(error: GrammarError) -> RequestError:
    """Make the error for a valid grammar that costs too much to follow from here."""
    return RequestError(f"the constrained output cannot go on: {error}", param="constraint", code="too_complex")


def _all_tokens(vocab_size: int) -> NDArray[np.int32]:
    words = np.full(-(-vocab_size // 32), -1, np.int32)
    if vocab_size % 32:
        words[-1] = (1 << vocab_size % 32) - 1
    return words


def _bit(token: int) -> np.int32:
    return np.uint32(1 << token % 32).view(np.int32)
