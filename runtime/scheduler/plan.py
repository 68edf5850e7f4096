"""Plans and results of a step, as values that can be logged, replayed and broadcast.

Positions are counted from 0 at the start of a sequence. A *slot* is one token's place in the KV pool, derived from the
page table: position p of a row lives in slot `pages[p // page_size] * page_size + p % page_size`.
"""

from __future__ import annotations

import msgspec

from ..protocol.pictures import RowPicture
from ..protocol.sampling import DrawParams, TokenLogprob
from .drafts.tree import DraftTree, depths

PENDING = -1  # stands for a token that is not known yet


class Penalties(msgspec.Struct, frozen=True, kw_only=True):
    """Penalties of one row, and the tokens that they count."""

    frequency: float
    presence: float
    repetition: float
    prompt: list[int]
    output: list[int]


class Sample(DrawParams, frozen=True, kw_only=True):
    """Sampling of the token that follows the row's last one.

    `draw` is 64 random bits keyed by (seed, position), from which every token gets its own, see `kernels.draw_tokens`.
    """

    draw: int  # int64
    penalties: Penalties | None = None
    logit_bias: dict[int, float] = msgspec.field(default_factory=dict)
    dry: dict[int, float] = msgspec.field(default_factory=dict)  # subtracted of tokens' logits, after the penalties
    num_top_logprobs: int | None = None  # None: no log-probabilities wanted
    logprobs_of: tuple[int, ...] = ()  # and with them those of these tokens
    logprob_details: bool = False  # and with each its TokenDetails


class RowSampling(msgspec.Struct, frozen=True):
    """Sampling of a row whose `Row` left it open, as in `Row`."""

    sample: Sample
    mask: bytes | None = None


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """Log-probabilities of given tokens: `targets[i]` follows the row's token `first + i`.

    With `details`, each has its TokenDetails, as of a token that had to come.
    """

    first: int
    targets: list[int]
    num_top: int
    of: tuple[int, ...] = ()  # further tokens to score at each position
    details: bool = False


class DraftNode(msgspec.Struct, frozen=True, kw_only=True):
    """Sampling after one draft token, if the tokens up to it are accepted.

    It uses the row's Sample with this draw, mask and `dry`; penalties also count the draft tokens on the path. Where a
    rule of the grammar has a temperature, so has the node.
    """

    draw: int
    mask: bytes | None = None
    dry: dict[int, float] = {}
    temperature: float | None = None


class DraftSpec(msgspec.Struct, frozen=True):
    """Bounds of the tree to draft for a request's next step: at most `num_tokens` nodes, `steps` deep, with at most
    `top_k` children each, ranked by the draft's probabilities at `temperature`. A path whose score is lower than
    `least_score` need not go on."""

    steps: int
    top_k: int
    num_tokens: int
    temperature: float
    least_score: float = -1e9


class RowState(msgspec.Struct, frozen=True):
    """Recurrent state of a row: its own slot, which holds the state before the row's first token unless that is the
    sequence's first, and then the state after the row's last committed one.

    The state after the first n tokens is kept in another slot for each (n, slot) of `saves`, ascending by n.
    """

    slot: int
    saves: list[tuple[int, int]] = []


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """Part of a step that belongs to one request. A decode row has one token, a prefill chunk many, a verification a
    tree after them.

    The last `len(parents)` tokens are draft nodes; those before, at least one, are committed. `parents[i]` is the index
    of the parent node, -1 for the last committed token. Parents come first, and siblings differ. Node i's KV goes to
    the slot of index `first_position + num_committed + i`. Its position id is that of the last committed token plus its
    depth. It attends to the committed tokens, its ancestors and itself. A row with nodes has a Sample, and one `nodes`
    entry for each.

    A row that `follows` another computes the token which that row samples, and which is not known yet: `tokens` is
    [PENDING]. Its Sample and mask come later, in a `SamplingPlan`.
    """

    rid: str
    tokens: list[int]  # at least one
    first_position: int
    pages: list[int]  # page table of positions [0, first_position + len(tokens)), and of the plan's further decodes
    window_pages: list[int] = []  # likewise, of layers with a window, if these have pages of their own
    follows: int | None = None  # index of a row of the previous plan
    sample: Sample | None = None
    mask: bytes | None = None  # int32 little-endian words: bit t % 32 of word t // 32 set iff token t may come next
    score: Score | None = None
    pool_from: int | None = None  # return the sum of the hidden states of the row's tokens from this index on
    parents: list[int] | None = None  # None: no draft nodes
    nodes: list[DraftNode] = []
    draft: DraftSpec | None = None  # for the request's next step, from the engine's draft source
    state: RowState | None = None  # of a model with recurrent layers
    adapter: int = 0  # number of the LoRA adapter; 0: the base alone
    rope_length: int = 0  # as `RopeSwitch.length`
    pictures: list[RowPicture] = []  # whose features are the first layer's input in place of tokens' embeddings
    rope_offset: int = 0  # the first token's rotary position, less its own; in a picture, that of the picture's first
    draws: list[int] = []  # `Sample.draw` of the plan's further decode steps; empty: there are none, or no seed
    # True: part of a long prompt, for which layers widen weights of codes. Such rows come after the others, and are
    # computed apart from them. They have no draft nodes.
    widened: bool = False
    routes_from: int | None = None  # first position whose experts are wanted, up to the row's end; a cached one too

    @property
    def num_committed(self) -> int:
        """Number of tokens that are not draft nodes."""
        return len(self.tokens) if self.parents is None else len(self.tokens) - len(self.parents)

    def rope_offset_at(self, index: int) -> int:
        """Return `rope_offset` of the row's tokens from `index` on."""
        passed = (part.picture.rope_shift for part in self.pictures if part.start < index and part.ends_within(index))
        return self.rope_offset + sum(passed)

    @property
    def position_ids(self) -> list[int]:
        """Position id of each token, for the rotary embedding."""
        first, num_committed = self.first_position, self.num_committed
        ids = list(range(first, first + num_committed))
        return ids if self.parents is None else ids + [ids[-1] + depth for depth in depths(self.parents)]


class PageCopy(msgspec.Struct, frozen=True):
    """Copy the first `num_tokens` slots of page `source` to page `target`, in all layers, before the forward."""

    source: int
    target: int
    num_tokens: int


class StateCopy(msgspec.Struct, frozen=True, tag="copy"):
    """Copy a slot of recurrent states."""

    source: int
    target: int


class StateAdvance(msgspec.Struct, frozen=True, tag="advance"):
    """Advance a row's slot by the first `num_drafts` draft tokens of that row in the previous plan, which are its own
    now."""

    slot: int
    num_drafts: int


StateChange = StateCopy | StateAdvance


class ForwardPlan(msgspec.Struct, frozen=True, kw_only=True):
    """All work of one step."""

    step: int
    copies: list[PageCopy]
    rows: list[Row]
    # If true, the engine's draft source follows. Otherwise no row has or wants a draft, and the source is only
    # notified of the computed tokens: a step of plain decoding, at its cost.
    followed: bool = True
    states: list[StateChange] = []  # made in this order before the forward
    window_copies: list[PageCopy] = []  # likewise, copies of window pages
    # Decode steps run in turn, each on the tokens that the one before sampled. With more than one, rows have one token,
    # pages for all steps, and a Sample without mask, penalties or log-probabilities. The engine may compute fewer: none
    # after a step that sampled one of `end_tokens`, which end an output, or during which a message came.
    num_decodes: int = 1
    end_tokens: frozenset[int] = frozenset()

    @property
    def num_tokens(self) -> int:
        return sum([len(row.tokens) for row in self.rows])

    @property
    def is_open(self) -> bool:
        """True if rows left their sampling to a later SamplingPlan."""
        return any(row.follows is not None for row in self.rows)


class SamplingPlan(msgspec.Struct, frozen=True):
    """Sampling of the rows of plan `step` that follow others, in order, once the followed tokens are known.

    None: the row samples nothing, because the followed token ended the output or forced text comes after it.
    """

    step: int
    rows: list[RowSampling | None]


class RowResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one row. `tokens` are the accepted draft tokens, then the sampled one.

    The KV of accepted draft tokens has been moved to the positions after the committed tokens.
    """

    tokens: list[int] = []  # at least one if the row has a Sample and its logits are finite
    logprobs: list[TokenLogprob] = []  # one for each token, if requested
    scores: list[TokenLogprob] = []
    pooled: bytes | None = None  # float32, little-endian, if the row has a `pool_from`
    routes: bytes = b""  # int16, little-endian, [tokens, layers, chosen]: from `routes_from` to the last accepted token
    draft: DraftTree | None = None  # for the next step, from the engine's draft source
    after_nodes: list[int] = []  # tokens sampled after each draft node, right or not; -1: none
    is_finite: bool = True  # False: the logits after `tokens` are NaN or infinite, so the sampled token is missing

    @property
    def token(self) -> int | None:
        """The token sampled last, or None."""
        return self.tokens[-1] if self.tokens else None


class ForwardResult(msgspec.Struct, frozen=True, kw_only=True):
    """Results of one step, one per row of the plan, in order."""

    step: int
    rows: list[RowResult]  # one per row of the plan, in order
    seconds: float = 0.0  # of the forward; for the scheduler, from the previous step's end to this one's
    drafting: float = 0.0  # of these, in which the draft source made drafts
    catching_up: float = 0.0  # and in which it computed what it lacked of prompts, or of steps without it
    num_decodes: int = 1  # decode steps of the plan that were computed
