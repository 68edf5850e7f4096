"""Steps that only decode, as graphs: one launch for all of a step's kernels. Knows a model and its memory, not what
becomes of its hidden states.

A graph repeats its launches on the same memory. So there is one for each of some numbers of rows, a step's rows are
written to buffers that stay, and rows that are missing stand for none: no keys, and slot -1, which is not written to.
What is captured is the decoder's own forward; `Capture` only decides how it is run again.

Legend: R rows, P pages of a sequence, E hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from ...kernels import Attention, DecodeAttentionArgs, KvCache, to_device
from ..models.decoder import Decoder, DecoderInputs
from ..scheduler.plan import Row
from .kv_pool import PAGE_SIZE
from .last_tokens import NO_LAST_TOKENS, LastTokens

Forward = Callable[[], None]
Capture = Callable[[Forward], Forward]  # runs it, perhaps, and says how it is run again


class CudaCapture:
    """CUDA graphs over one pool of memory: they never run at the same time."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, forward: Forward) -> Forward:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            forward()  # what is compiled or allocated once must not be in the graph
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            forward()
        return graph.replay


def graph_sizes(max_rows: int) -> list[int]:
    """Numbers of rows that get a graph, rising: padding is at most three rows, or half as many as there are."""
    sizes = (1, 2, 4, 8, 12, 16, *range(24, 65, 8), *range(80, max_rows, 16))
    return [*(size for size in sizes if size < max_rows), max_rows]


class DecodeGraphs:
    """For at most `max_rows` rows of at most `num_places` tokens. `captures` are as the decoder takes them."""

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
        self._page_table_RP = torch.zeros((max_rows, num_pages), dtype=torch.int32, device=device)
        self._graphs: dict[int, Forward] = {}
        self._outputs: dict[int, tuple[torch.Tensor, torch.Tensor | None]] = {}

    @staticmethod
    def serve(model: Decoder, kv: Sequence[KvCache]) -> bool:
        """Whether a forward of this model never asks its device for a number."""
        config = model.config
        if config.quantisation is not None or (config.experts is not None and not model.ops.groups_experts):
            return False
        none = torch.zeros((1, 1), dtype=torch.int32, device=model.device)
        args = DecodeAttentionArgs(none, none[0], kv[0], PAGE_SIZE, window=None)
        return model.ops.decode_attention(args) is not None

    def fits(self, rows: Sequence[Row]) -> bool:
        """Whether the rows only decode, and are not too many."""
        return len(rows) <= self._sizes[-1] and all(
            len(row.tokens) == 1
            and (row.sample is not None or row.follows is not None)
            and row.score is None
            and row.pool_from is None
            for row in rows
        )

    def capture_all(self) -> None:
        """The largest first: the others find room in its memory."""
        for size in reversed(self._sizes):
            self._fill([], size, NO_LAST_TOKENS)
            self._graphs[size] = self._capture(lambda size=size: self._forward(size))  # type: ignore[misc]

    def hidden_and_features(
        self, rows: Sequence[Row], sampled: LastTokens, *, features: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """As the decoder's, for rows that fit. The hidden states are valid until the next call; features, if wanted,
        are the caller's, since a draft source keeps them for later. `sampled` is what the step before sampled."""
        size = next(size for size in self._sizes if size >= len(rows))
        self._fill(rows, size, sampled)
        self._graphs[size]()
        hidden_RE, features_RE = self._outputs[size]
        kept_RE = features_RE[: len(rows)].clone() if features and features_RE is not None else None
        return hidden_RE[: len(rows)], kept_RE

    def _fill(self, rows: Sequence[Row], size: int, sampled: LastTokens) -> None:
        ids, positions = np.zeros((2, size), dtype=np.int64)
        slots, num_keys = np.full(size, -1, dtype=np.int64), np.zeros(size, dtype=np.int32)
        num_pages = [row.first_position // PAGE_SIZE + 1 for row in rows]
        table = np.zeros((size, max(num_pages, default=1)), dtype=np.int32)
        for r, (row, own) in enumerate(zip(rows, num_pages, strict=True)):
            place = row.first_position
            ids[r], positions[r], num_keys[r] = row.tokens[0], place, place + 1
            slots[r] = row.pages[own - 1] * PAGE_SIZE + place % PAGE_SIZE
            table[r, :own] = row.pages[:own]
        buffers = (self._ids_R, self._positions_R, self._slots_R, self._num_keys_R)
        *columns, new_table = to_device([ids, positions, slots, num_keys, table], self._model.device)
        for buffer_R, column in zip(buffers, columns, strict=True):
            buffer_R[:size].copy_(column)
        self._page_table_RP[:size, : new_table.shape[1]].copy_(new_table)
        sampled.fill(self._ids_R, rows, range(len(rows)))

    def _forward(self, size: int) -> None:
        model, positions_R = self._model, self._positions_R[:size]
        cos, sin = model.rope.angles(positions_R, positions_R + 1)
        inputs = DecoderInputs(
            ids_T=self._ids_R[:size],
            cos_T1D=cos,
            sin_T1D=sin,
            slots_T=self._slots_R[:size],
            attention={window: self._attention(size, window) for window in set(model.config.windows)},
            wanted_O=None,
        )
        self._outputs[size] = model.hidden_and_features(inputs, self._kv, self._captures)

    def _attention(self, size: int, window: int | None) -> Attention:
        page_table_RP, num_keys_R = self._page_table_RP[:size], self._num_keys_R[:size]
        args = DecodeAttentionArgs(page_table_RP, num_keys_R, self._kv[0], PAGE_SIZE, window)
        attention = self._model.ops.decode_attention(args)
        assert attention is not None
        return attention
