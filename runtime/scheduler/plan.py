"""One step's work as a value: what to compute and sample, and what came of it. It can be logged, replayed, broadcast.

Positions are counted from 0 at the start of a sequence. A *slot* is one token's place in the KV pool; slots are
derived: position p of a row lives in slot `pages[p // page_size] * page_size + p % page_size`.
"""

from __future__ import annotations

import msgspec

from ..protocol.sampling import TokenLogprob


class Penalties(msgspec.Struct, frozen=True, kw_only=True):
    frequency: float
    presence: float
    repetition: float
    prompt: list[int]
    output: list[int]


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """How to draw the token that follows the row's last one. `draw` is the row's randomness, 64 bits keyed by
    (seed, position); every token's luck in the draw comes of it, see `kernels.draw_tokens`."""

    temperature: float  # 0: greedy
    top_k: int | None
    top_p: float
    min_p: float
    draw: int  # int64
    penalties: Penalties | None = None
    logit_bias: dict[int, float] = {}
    num_top_logprobs: int | None = None  # None: no log-probabilities wanted
    logprobs_of: tuple[int, ...] = ()  # and with them those of these tokens


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """Log-probabilities of given tokens: `targets[i]` is the token that follows the row's token `first + i`."""

    first: int
    targets: list[int]
    num_top: int
    of: tuple[int, ...] = ()  # further tokens whose log-probability is wanted at each position


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One request's part of a step. A decode row has one token, a prefill chunk many."""

    rid: str
    tokens: list[int]  # at least one
    first_position: int
    pages: list[int]  # the page table of positions [0, first_position + len(tokens))
    sample: Sample | None = None
    mask: bytes | None = None  # int32 little-endian words: bit t % 32 of word t // 32 set iff token t may come next
    score: Score | None = None
    pool_from: int | None = None  # the sum of the hidden states of the row's tokens from this one on is wanted


class PageCopy(msgspec.Struct, frozen=True):
    """Copy the first `num_tokens` slots of page `source` to page `target`, in all layers, before the forward."""

    source: int
    target: int
    num_tokens: int


class ForwardPlan(msgspec.Struct, frozen=True, kw_only=True):
    step: int
    copies: list[PageCopy]
    rows: list[Row]

    @property
    def num_tokens(self) -> int:
        return sum(len(row.tokens) for row in self.rows)


class RowResult(msgspec.Struct, frozen=True, kw_only=True):
    token: int | None = None  # the sampled one, when the row had a Sample
    logprob: TokenLogprob | None = None
    scores: list[TokenLogprob] = []
    pooled: bytes | None = None  # float32, little-endian, when the row had a `pool_from`


class ForwardResult(msgspec.Struct, frozen=True, kw_only=True):
    step: int
    rows: list[RowResult]  # one per row of the plan, in order
