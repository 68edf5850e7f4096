"""CUDA graphs of decode steps: one launch for all kernels of a step.

A graph repeats its launches on the same memory. So there is one graph for each of some numbers of rows, and a step's
rows are written to static buffers. Missing rows are padding: they have no keys, and slot -1, which is not written to.
The decoder's own forward is captured; a `Capture` only decides how it is replayed.

A step in which rows share keys worth sharing has a graph of its own, with one more launch in each layer. The tables of
shared keys are static buffers too, large enough for any step.

Legend: R rows, P pages of a sequence, E hidden size, G pieces of shared keys, N their tokens, T tokens (one a row), L
levels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch

from ...kernels import Attention, DecodeAttentionArgs, KvCache, SharedKeys, quantised_products, to_device
from ...kernels.attention_groups import LEVELS, PIECE_TOKENS, SharedTokens, pieces_of, shared_tokens
from ..models.decoder import Decoder, DecoderInputs
from ..scheduler.plan import Row
from .kv_pool import PAGE_SIZE
from .last_tokens import NO_LAST_TOKENS, LastTokens

Forward = Callable[[], None]
Capture = Callable[[Forward], Forward]  # takes a forward, may run it, and returns its replay


class CudaCapture:
    """Captures CUDA graphs that share one memory pool, because no two run at the same time."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, forward: Forward) -> Forward:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            forward()  # compilation and one-time allocations must not be in the graph
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            forward()
        return graph.replay


def graph_sizes(max_rows: int) -> list[int]:
    """Return the numbers of rows that get a graph, ascending. Padding is at most three rows, or half of the rows."""
    sizes = (1, 2, 4, 8, 12, 16, *range(24, 65, 8), *range(80, max_rows, 16))
    return [*(size for size in sizes if size < max_rows), max_rows]


def _captures_quantised(model: Decoder) -> bool:
    """Return True if no product of the model's quantised layers reads a value back from its device."""
    config, products = model.config, quantised_products(model.device)
    assert config.quantisation is not None
    if config.experts is None:
        return products is not None
    kind = torch.float8_e4m3fn if config.quantisation.scheme.kind == "fp8" else torch.int8
    return products is not None and products.reads(kind, model.device) and not model.ops.deterministic


class _SharedTables:
    """Static buffers of the keys that a step's rows share."""

    def __init__(self, max_rows: int, num_pages: int, device: torch.device) -> None:
        G = self._num_pieces(max_rows)

        def zeros(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=torch.int32, device=device)

        self._buffers = SharedKeys(
            zeros(G, num_pages), zeros(G), zeros(G), zeros(G), zeros(G * PIECE_TOKENS), zeros(max_rows, LEVELS) - 1
        )

    @staticmethod
    def _num_pieces(num_rows: int) -> int:
        return LEVELS * (num_rows // 2)  # a piece has at least two of the rows, and at most one of a level has a row

    def of_size(self, num_rows: int) -> SharedKeys:
        """Return the part of the buffers that steps of so many rows use."""
        G = self._num_pieces(num_rows)
        *pieces, tokens_N, places_TL = self._buffers
        return SharedKeys(*(buffer[:G] for buffer in pieces), tokens_N[: G * PIECE_TOKENS], places_TL[:num_rows])

    def fill(self, groups: Sequence[SharedTokens], num_rows: int) -> None:
        pieces = pieces_of(groups, num_rows)
        missing = self._num_pieces(num_rows) - len(pieces.num_keys_G)
        columns = [np.pad(column_G, (0, missing)) for column_G in pieces[1:4]]  # those missing have no keys
        arrays = [pieces.page_table_GP, *columns, pieces.tokens_N, pieces.places_TL]
        for buffer, new in zip(self.of_size(num_rows), to_device(arrays, self._buffers.tokens_N.device), strict=True):
            buffer[tuple(slice(length) for length in new.shape)].copy_(new)


class DecodeGraphs:
    """Graphs for decode steps of at most `max_rows` rows, each of at most `num_places` tokens.

    `captures` are the hidden states that the decoder captures, for a draft source.
    """

    def __init__(
        self,
        model: Decoder,
        kv: Sequence[KvCache],
        *,
        max_rows: int,
        num_places: int,
        captures: Sequence[int],
        capture: Capture,
    ) -> None:
        device, num_pages = model.device, -(-num_places // PAGE_SIZE)
        self._model, self._kv, self._captures, self._capture = model, kv, captures, capture
        self._sizes = graph_sizes(max_rows)
        self._ids_R, self._positions_R = torch.zeros(2, max_rows, dtype=torch.int64, device=device)
        self._slots_R = torch.full((max_rows,), -1, dtype=torch.int64, device=device)
        self._num_keys_R = torch.zeros(max_rows, dtype=torch.int32, device=device)
        self._first_key_R = torch.zeros(max_rows, dtype=torch.int32, device=device)
        self._page_table_RP = torch.zeros((max_rows, num_pages), dtype=torch.int32, device=device)
        # Deterministic results are the same without it.
        self._shared = None if model.ops.deterministic else _SharedTables(max_rows, num_pages, device)
        self._graphs: dict[tuple[int, bool], Forward] = {}  # by rows, and whether they share keys
        self._outputs: dict[tuple[int, bool], tuple[torch.Tensor, torch.Tensor | None]] = {}

    @staticmethod
    def supports(model: Decoder, kv: Sequence[KvCache]) -> bool:
        """Return True if a forward of the model never reads a value back from its device."""
        config = model.config
        if not config.is_native:
            return False  # what transformers' code does is not known
        if config.experts is not None and not model.ops.groups_experts:
            return False
        if config.quantisation is not None and not _captures_quantised(model):
            return False
        empty = torch.zeros((1, 1), dtype=torch.int32, device=model.device)
        args = DecodeAttentionArgs(empty, empty[0], kv[0], PAGE_SIZE, window=None)
        return model.ops.decode_attention(args) is not None

    def fits(self, rows: Sequence[Row]) -> bool:
        """Return True if all rows only decode, and there are not too many."""
        return len(rows) <= self._sizes[-1] and all(
            len(row.tokens) == 1
            and (row.sample is not None or row.follows is not None)
            and row.score is None
            and row.pool_from is None
            for row in rows
        )

    def capture_all(self) -> None:
        """Capture all graphs, the largest first, so that the others reuse its memory."""
        for size in reversed(self._sizes):
            self._fill([], size, NO_LAST_TOKENS)
            for shares in (True, False) if self._shared is not None and size > 1 else (False,):
                forward = partial(self._forward, size, shares)
                self._graphs[size, shares] = self._capture(forward)

    def hidden_and_features(
        self, rows: Sequence[Row], last_tokens: LastTokens, *, features: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Run the graph of the rows, which fit, and return what `Decoder.hidden_and_features` returns.

        The hidden states are valid until the next call. Features, if wanted, are copies, since a draft source keeps
        them for later. `last_tokens` are those of the last step.
        """
        size = next(size for size in self._sizes if size >= len(rows))
        key = size, self._fill(rows, size, last_tokens)
        self._graphs[key]()
        hidden_RE, features_RE = self._outputs[key]
        kept_RE = features_RE[: len(rows)].clone() if features and features_RE is not None else None
        return hidden_RE[: len(rows)], kept_RE

    def _fill(self, rows: Sequence[Row], size: int, last_tokens: LastTokens) -> bool:
        """Write a step's rows to the buffers; return True if they share keys."""
        ids, positions = np.zeros((2, size), dtype=np.int64)
        slots, (num_keys, first_keys) = np.full(size, -1, dtype=np.int64), np.zeros((2, size), dtype=np.int32)
        pages_R = [np.array(row.pages[: row.first_position // PAGE_SIZE + 1], dtype=np.int32) for row in rows]
        groups = self._shared_tokens(pages_R, size, first_keys)
        table = np.zeros((size, max(map(len, pages_R), default=1)), dtype=np.int32)
        for r, (row, pages) in enumerate(zip(rows, pages_R, strict=True)):
            place = row.first_position
            ids[r], positions[r], num_keys[r] = row.tokens[0], place, place + 1
            slots[r] = pages[-1] * PAGE_SIZE + place % PAGE_SIZE
            own = pages[first_keys[r] // PAGE_SIZE :]
            table[r, : len(own)] = own
        buffers = (self._ids_R, self._positions_R, self._slots_R, self._num_keys_R, self._first_key_R)
        *columns, new_table = to_device([ids, positions, slots, num_keys, first_keys, table], self._model.device)
        for buffer_R, column in zip(buffers, columns, strict=True):
            buffer_R[:size].copy_(column)
        self._page_table_RP[:size, : new_table.shape[1]].copy_(new_table)
        last_tokens.fill(self._ids_R, rows, range(len(rows)))
        return bool(groups)

    def _shared_tokens(
        self, pages_R: Sequence[np.ndarray], size: int, first_key_R: np.ndarray
    ) -> Sequence[SharedTokens]:
        """Return the groups of rows that share keys, written to the buffers, and write where their own keys begin."""
        if self._shared is None or len(pages_R) < 2:
            return []
        R = len(pages_R)
        whole_R = [pages[:-1] for pages in pages_R]  # the last page holds the row's own token
        groups, own_keys = shared_tokens(whole_R, range(R), [1] * R, [0] * R, page_size=PAGE_SIZE)
        first_key_R[:R] = own_keys
        if groups:
            self._shared.fill(groups, size)
        return groups

    def _forward(self, size: int, shares: bool) -> None:
        model, positions_R = self._model, self._positions_R[:size]
        inputs = DecoderInputs(
            ids_T=self._ids_R[:size],
            positions_T=positions_R,
            angles=model.angles(positions_R, positions_R + 1),
            slots_T=self._slots_R[:size],
            attention={window: self._attention(size, window, shares) for window in set(model.config.windows)},
            wanted_O=None,
        )
        self._outputs[size, shares] = model.hidden_and_features(inputs, self._kv, self._captures)

    def _attention(self, size: int, window: int | None, shares: bool) -> Attention:
        args = DecodeAttentionArgs(
            self._page_table_RP[:size],
            self._num_keys_R[:size],
            self._kv[0],
            PAGE_SIZE,
            window,
            self._shared.of_size(size) if shares and self._shared is not None else None,
            self._first_key_R[:size] if shares else None,
        )
        attention = self._model.ops.decode_attention(args)
        assert attention is not None
        return attention
