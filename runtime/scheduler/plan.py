"""One step's work as a value: what to compute and sample, and what came of it. It can be logged, replayed, broadcast.

Positions are counted from 0 at the start of a sequence. A *slot* is one token's place in the KV pool; slots are
derived: position p of a row lives in slot `pages[p // page_size] * page_size + p % page_size`.
"""

from __future__ import annotations

import msgspec

from ..protocol.sampling import DrawParams, TokenLogprob
from ..speculation.tree import DraftTree, depths

PENDING = -1  # in the place of a token that is not known yet


class Penalties(msgspec.Struct, frozen=True, kw_only=True):
    frequency: float
    presence: float
    repetition: float
    prompt: list[int]
    output: list[int]


class Sample(DrawParams, frozen=True, kw_only=True):
    """How to draw the token that follows the row's last one. `draw` is the row's randomness, 64 bits keyed by
    (seed, position); every token's luck in the draw comes of it, see `kernels.draw_tokens`."""

    draw: int  # int64
    penalties: Penalties | None = None
    logit_bias: dict[int, float] = msgspec.field(default_factory=dict)
    num_top_logprobs: int | None = None  # None: no log-probabilities wanted
    logprobs_of: tuple[int, ...] = ()  # and with them those of these tokens


class RowSampling(msgspec.Struct, frozen=True):
    """How a row samples, and among which tokens: as in `Row`."""

    sample: Sample
    mask: bytes | None = None


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """Log-probabilities of given tokens: `targets[i]` is the token that follows the row's token `first + i`."""

    first: int
    targets: list[int]
    num_top: int
    of: tuple[int, ...] = ()  # further tokens whose log-probability is wanted at each position


class DraftNode(msgspec.Struct, frozen=True, kw_only=True):
    """How to draw the token that follows a draft token, if everything up to it is right: by the row's Sample, with this
    draw and mask, the tokens on the way to it and it itself counted by the penalties."""

    draw: int
    mask: bytes | None = None


class DraftSpec(msgspec.Struct, frozen=True):
    """A tree that the request will verify in its next step: at most `num_tokens` nodes, `steps` deep, with at most
    `top_k` children each, ranked by the draft's probabilities at `temperature`."""

    steps: int
    top_k: int
    num_tokens: int
    temperature: float


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One request's part of a step. A decode row has one token, a prefill chunk many, a verification a tree after them.

    The last `len(parents)` tokens are draft nodes; those before, at least one, are committed. `parents[i]` is an index
    among the nodes, -1 for the last committed token; parents come first, siblings differ. Node i's KV goes to the slot
    of index `first_position + num_committed + i`; its position id is that of the last committed token plus its depth,
    and it sees the committed tokens, its ancestors and itself. A row with nodes has a Sample; `nodes` has one entry for
    each.

    A row that `follows` another computes the token which that one samples, and which is not known yet: `tokens` is
    [PENDING]. What may come after it is not known either, so its Sample and mask come later, in a `SamplingPlan`.
    """

    rid: str
    tokens: list[int]  # at least one
    first_position: int
    pages: list[int]  # the page table of positions [0, first_position + len(tokens))
    follows: int | None = None  # the index of a row of the plan before
    sample: Sample | None = None
    mask: bytes | None = None  # int32 little-endian words: bit t % 32 of word t // 32 set iff token t may come next
    score: Score | None = None
    pool_from: int | None = None  # the sum of the hidden states of the row's tokens from this one on is wanted
    parents: list[int] | None = None  # None: no token is a guess
    nodes: list[DraftNode] = []
    draft: DraftSpec | None = None  # for the next step of the request; from the engine's source, if it has one

    @property
    def num_committed(self) -> int:
        return len(self.tokens) - len(self.parents or ())

    @property
    def position_ids(self) -> list[int]:
        first, num_committed = self.first_position, self.num_committed
        ids = list(range(first, first + num_committed))
        return ids if self.parents is None else ids + [ids[-1] + depth for depth in depths(self.parents)]


class PageCopy(msgspec.Struct, frozen=True):
    """Copy the first `num_tokens` slots of page `source` to page `target`, in all layers, before the forward."""

    source: int
    target: int
    num_tokens: int


class ForwardPlan(msgspec.Struct, frozen=True, kw_only=True):
    step: int
    copies: list[PageCopy]
    rows: list[Row]
    # Whether the engine's draft source, if it has one, follows. If not, no row has guesses or wants any, and the source
    # is only told which tokens were computed: the step is one of plain decoding, at the price of one.
    followed: bool = True

    @property
    def num_tokens(self) -> int:
        return sum(len(row.tokens) for row in self.rows)

    @property
    def is_open(self) -> bool:
        """Whether a SamplingPlan belongs to it."""
        return any(row.follows is not None for row in self.rows)


class SamplingPlan(msgspec.Struct, frozen=True):
    """What the rows of plan `step` sample that follow others, one entry for each of them, in order, now that those
    others' tokens are known. None: nothing, because that token was the output's last or forced text comes after it."""

    step: int
    rows: list[RowSampling | None]


class RowResult(msgspec.Struct, frozen=True, kw_only=True):
    """`tokens` are the draft tokens that proved right, then the one sampled after them. The KV of the former has been
    moved to the positions that follow the committed tokens'."""

    tokens: list[int] = []  # at least one, when the row had a Sample
    logprobs: list[TokenLogprob] = []  # one for each of them, when wanted
    scores: list[TokenLogprob] = []
    pooled: bytes | None = None  # float32, little-endian, when the row had a `pool_from`
    draft: DraftTree | None = None  # what the engine's source guesses to come next

    @property
    def token(self) -> int | None:
        """The one sampled last, if any was."""
        return self.tokens[-1] if self.tokens else None


class ForwardResult(msgspec.Struct, frozen=True, kw_only=True):
    step: int
    rows: list[RowResult]  # one per row of the plan, in order
    seconds: float = 0.0  # that the step took: the engine; for the scheduler, from the step before's end to its own
