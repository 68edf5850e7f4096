"""Arguments of the device ops that take more than four, one value per op, built once per step.

To add an argument, add a field here and use it in the op sets that need it. NamedTuples are built in a third of the
time of a frozen dataclass.

Legend: T tokens of the step, R rows, P pages of the longest row, B rows of a group, L keys of a row, H query heads,
K key/value heads, D head size, V vocabulary, N penalised (row, token) pairs; of shared keys G pieces, N tokens of the
pieces, L levels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from .kv_cache import KvCache


class RowSpan(NamedTuple):
    """Queries of a row: `num_tokens` queries, whose KV has the places [first_position, first_position + num_tokens) of
    its page table.

    A place is a position, except for the last `len(tree)` queries, the nodes of a draft tree: node i is the child of
    node `tree[i]`, or of the last query before the tree when that is -1. A node sees what that query sees, its
    ancestors and itself. Its position is the query's plus its depth in the tree. Parents come before their children.
    """

    first_position: int
    num_tokens: int
    pages: np.ndarray  # int64
    tree: Sequence[int] = ()
    blocks: Sequence[tuple[int, int]] = ()  # places [first, end) of queries that see each other, later ones too


class Chunk(int):
    """A window of chunked attention: position i sees the positions [i // c * c, i], those of its chunk of c."""


def first_seen(positions: Any, window: int) -> Any:
    """Return the first position that each of `positions` sees by the window; it may be below 0. Both are integers or
    arrays of them."""
    return positions // window * window if isinstance(window, Chunk) else positions - window + 1


class AttentionArgs(NamedTuple):
    """Arguments of `Ops.attention`."""

    rows: Sequence[RowSpan]  # their tokens are concatenated in order
    kv: KvCache  # of any layer: shapes, dtypes and device are those of all
    num_heads: int  # H
    page_size: int  # slots
    window: int | None  # position i sees the positions (i - window, i], or those of its `Chunk`; None: all up to i
    dtype: torch.dtype  # of the queries


class SharedKeys(NamedTuple):
    """Keys that rows share, in pieces that some tokens see whole (`attention_groups.Pieces`), as tensors on the
    device."""

    page_table_GP: torch.Tensor  # int32; it begins with the piece's first key
    first_key_G: torch.Tensor  # int32
    num_keys_G: torch.Tensor  # int32, where the piece's keys end; 0: the piece is padding
    num_tokens_G: torch.Tensor  # int32
    tokens_N: torch.Tensor  # int32, PIECE_TOKENS for each piece: indices into the step's tokens
    places_TL: torch.Tensor  # int32, where each token stands in `tokens_N`, once for each level; -1: nowhere


class QueryTensors(NamedTuple):
    """Tokens of rows that have several, given by tensors on the device."""

    first_query_R: torch.Tensor  # int32, where the row's tokens begin among the step's
    num_queries_R: torch.Tensor  # int32
    positions_T: torch.Tensor  # int32
    # int64: bit j is set if the token sees its row's own token j; None: it sees those up to itself
    visible_T: torch.Tensor | None
    max_queries: int  # of a row


class DecodeAttentionArgs(NamedTuple):
    """Arguments of `Ops.decode_attention`: rows of one token each, or of few, given by tensors on the device."""

    page_table_RP: torch.Tensor  # int32; it begins with key `first_key_R`
    num_keys_R: torch.Tensor  # int32, the row's own token included; 0: the row is padding, its output is zeros
    kv: KvCache  # of any layer
    page_size: int  # slots
    window: int | None
    shared: SharedKeys | None = None  # None: each row's keys are all its own
    first_key_R: torch.Tensor | None = None  # int32, where the row's own keys begin, if any are shared
    queries: QueryTensors | None = None  # None: row r has token r alone; else no keys are shared


class RopeAndStoreArgs(NamedTuple):
    """Arguments of `Ops.rope_and_store` that all layers of a step share."""

    cos_T1D: torch.Tensor
    sin_T1D: torch.Tensor  # the first half is negated already, as `apply_rope` takes it
    slots_T: torch.Tensor  # int64, where each token's key and value go; -1 (Triton only): nowhere
    num_heads: int  # H
    eps: float  # of the norms of queries and keys
    positions_T: torch.Tensor | None = None  # int64; a cache with a basis needs them


class GroupRouting(NamedTuple):
    """Choice of experts that are in groups (DeepSeek-AI 2024: DeepSeek-V2, section 2.2, and DeepSeek-V3, section
    2.1.2)."""

    num_chosen: int  # experts of a token
    num_groups: int
    kept_groups: int  # of a token: it chooses among their experts
    sigmoid: bool  # affinities are sigmoids and a group's score is its best two's sum; else a softmax, and its best one
    normalised: bool  # a token's weights are divided by their sum
    scale: float  # of the weights


class RecurrenceInputs(NamedTuple):
    """Inputs of a linear recurrence, float32; T tokens, K key size, V value size. A head's state S [K, V] follows S' =
    exp(g) S + k d^T with an output S'^T q.

    d is v, or with `beta_TH` (the delta rule) beta (v - exp(g) S^T k).
    """

    q_THK: torch.Tensor
    k_THK: torch.Tensor
    v_THV: torch.Tensor
    g_TH: torch.Tensor
    beta_TH: torch.Tensor | None

    def part(self, own: slice | torch.Tensor) -> RecurrenceInputs:
        """Return those of some tokens."""
        return RecurrenceInputs(*(None if x is None else x[own] for x in self))  # type: ignore[arg-type]


NOT_FINITE = -1  # in place of a sampled token: the row's largest logit is NaN or infinite, so there is none


class PenaltyTensors(NamedTuple):
    """Penalised (row, token) pairs, all distinct, as tensors on the device. Strengths are float32."""

    rows_N: torch.Tensor  # int64
    tokens_N: torch.Tensor  # int64
    counts_N: torch.Tensor  # float32, how often the row's output holds the token
    repetition_N: torch.Tensor
    frequency_N: torch.Tensor
    presence_N: torch.Tensor
