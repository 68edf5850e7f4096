"""Static buffers that captured steps read: tokens, page tables and shared keys, written by one copy before a replay.

The page table stays on the device. The host keeps what it holds, and a step brings its changes only: a decode step adds
a page to one row in sixteen.

Legend: R rows, P pages of a sequence, T tokens, D changes of the page table, G pieces of shared keys, N their tokens,
L levels.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from ....kernels import DecodeAttentionArgs, KvCache, QueryTensors, SharedKeys, to_buffer, to_device
from ....kernels.attention_groups import LEVELS, PIECE_TOKENS, SharedTokens, pieces_of, shared_tokens
from ....kernels.reference.attention_layout import ancestors
from ....kernels.transfer import packed_size, unpack
from ...scheduler.drafts.tree import is_chain
from ...scheduler.plan import Row
from ..inputs import row_arrays
from ..kv_pool import PAGE_SIZE
from ..last_tokens import LastTokens


class GraphShape(NamedTuple):
    """Sizes of the steps that one graph computes."""

    rows: int  # of the page table; missing ones are padding
    tokens: int
    queries: int  # tokens of a row, at most; 1: all rows decode
    shares: bool = False  # rows share keys

    @property
    def changes(self) -> int:
        """Changes of the page table that the graph writes; more are written before."""
        return max(64, 2 * self.rows)


class StepTensors(NamedTuple):
    """A graph's inputs as views of the static buffer, in the order in which they are packed."""

    ids_T: torch.Tensor  # int64
    positions_T: torch.Tensor  # int64
    slots_T: torch.Tensor  # int64; -1: the token is padding
    follows_T: torch.Tensor  # int64, index of the last step's token that the token is; -1: it is `ids_T`
    wanted_T: torch.Tensor  # int64, tokens whose hidden states are read; 0: padding
    visible_T: torch.Tensor  # int64, as in `QueryTensors`
    places_D: torch.Tensor  # int64, in the flat page table
    pages_D: torch.Tensor  # int32
    num_keys_R: torch.Tensor  # int32
    first_key_R: torch.Tensor  # int32
    first_query_R: torch.Tensor  # int32
    num_queries_R: torch.Tensor  # int32
    # Of layers with a window that have pages of their own; else empty.
    window_slots_T: torch.Tensor  # int64
    window_places_D: torch.Tensor  # int64
    window_pages_D: torch.Tensor  # int32


def _step_arrays(shape: GraphShape, *, has_windows: bool) -> list[np.ndarray]:
    """Return the arrays of `StepTensors` for a step of padding."""
    R, T, D = shape.rows, shape.tokens, shape.changes
    longs = [*np.zeros((2, T), np.int64), *np.full((2, T), -1), *np.zeros((2, T), np.int64)]
    arrays = [*longs, np.zeros(D, np.int64), np.zeros(D, np.int32), *np.zeros((4, R), np.int32)]
    if not has_windows:
        T = D = 0
    return [*arrays, np.full(T, -1), np.zeros(D, np.int64), np.zeros(D, np.int32)]


class PageTables:
    """The rows' page tables on a device, with one more row as target of padding, and what the host knows of them."""

    def __init__(self, max_rows: int, num_pages: int, device: torch.device) -> None:
        self.table_RP = torch.zeros((max_rows + 1, num_pages), dtype=torch.int32, device=device)
        self._padding = max_rows * num_pages  # where padding of the changes is written
        self._sent_RP = np.zeros((max_rows, num_pages), dtype=np.int32)  # what the device holds
        self._full_RP = np.zeros((max_rows, num_pages), dtype=np.int32)
        self._pages: list[list[int]] = [[] for _ in range(max_rows)]  # those in `_full_RP`
        self._first = [0] * max_rows  # index of the page with which the device's row begins
        self._changed: dict[int, int] = {}  # rows, with the index of the first changed page

    def update(self, row: int, pages: list[int]) -> bool:
        """Note the pages of a row; return False unless they begin with those noted before."""
        known = self._pages[row]
        if pages == known:
            return True
        count, old = len(pages), len(known)
        extends = 0 < old < count and pages[:old] == known
        first = old if extends else 0
        self._full_RP[row, first:count] = pages[first:]
        self._pages[row] = pages
        self._changed[row] = min(first, self._changed.get(row, first))
        return extends

    def update_window(self, row: int, pages: list[int]) -> None:
        """Note the window pages of a row. Those behind its window, which are not read, all name the first one that is:
        the device keeps what it holds of them."""
        if pages == self._pages[row]:
            return
        own = np.array(pages, dtype=np.int32)
        start = max(0, int((own != own[0]).argmax()) - 1) if (own != own[0]).any() else len(own) - 1
        self._full_RP[row, :start] = self._sent_RP[row, :start]
        self._full_RP[row, start : len(own)] = own[start:]
        self._pages[row] = pages
        self._changed[row] = 0

    def pages(self, row: int) -> np.ndarray:
        """Return the pages noted for a row."""
        return self._full_RP[row, : len(self._pages[row])]

    def changes(self, first_pages: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Return places in the flat table and the pages to write there, so that row r lists its pages from index
        `first_pages[r]` on."""
        for row, first in enumerate(first_pages):
            if self._first[row] != first:
                self._first[row] = first
                self._changed[row] = 0
        width, places, values = self._sent_RP.shape[1], [], []
        for row, start in self._changed.items():
            own = self.pages(row)[self._first[row] :]
            start = max(0, start - self._first[row])
            sent = self._sent_RP[row, start : len(own)]
            own = own[start:]
            if start == 0:
                differs = np.flatnonzero(sent != own)
                places.append(row * width + differs)
                values.append(own[differs])
            else:
                places.append(np.arange(row * width + start, row * width + start + len(own)))
                values.append(own.copy())
            sent[:] = own
        self._changed.clear()
        if not places:
            return np.empty(0, np.int64), np.empty(0, np.int32)
        return np.concatenate(places), np.concatenate(values)

    def write(self, places_D: torch.Tensor, pages_D: torch.Tensor) -> None:
        """Queue the changes on the device."""
        self.table_RP.view(-1).index_copy_(0, places_D, pages_D)

    def padded(self, places: np.ndarray, pages: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the changes, padded to `size`; if they are more, as when rows change places, the whole table is copied
        at once."""
        places_D, pages_D = np.full(size, self._padding, np.int64), np.zeros(size, np.int32)
        if len(places) > size:
            to_buffer([self._sent_RP], self.table_RP[:-1].view(-1).view(torch.uint8))
        else:
            places_D[: len(places)], pages_D[: len(pages)] = places, pages
        return places_D, pages_D


class SharedTables:
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


class TokenSegment(NamedTuple):
    """Consecutive tokens of a row that one row of the page table computes."""

    row: int
    first: int  # among the row's tokens
    count: int


def segments(rows: Sequence[Row], most: int) -> list[TokenSegment] | None:
    """Cut rows into segments of at most `most` tokens, a tree in one; None if a tree is larger."""
    cut: list[TokenSegment] = []
    for index, row in enumerate(rows):
        count = len(row.tokens)
        if count <= most:
            cut.append(TokenSegment(index, 0, count))
            continue
        num_tree = 0 if row.parents is None or is_chain(row.parents) else len(row.parents)
        if num_tree > most:
            return None
        whole = count - num_tree
        cut += [TokenSegment(index, first, min(most, whole - first)) for first in range(0, whole, most)]
        if num_tree:
            cut.append(TokenSegment(index, whole, num_tree))
    return cut


class StaticInputs:
    """Buffers of all graphs of a model, for steps of at most `max_rows` rows and `max_tokens` tokens."""

    def __init__(
        self,
        largest: Sequence[GraphShape],
        num_places: int,
        device: torch.device,
        *,
        finds_shared: bool,
        has_windows: bool = False,
    ) -> None:
        """`has_windows`: layers with a window have pages of their own."""
        num_pages, max_rows = -(-num_places // PAGE_SIZE), max(shape.rows for shape in largest)
        self._arrays = partial(_step_arrays, has_windows=has_windows)
        size = max(packed_size(self._arrays(shape)) for shape in largest)
        self._buffer = torch.zeros(size, dtype=torch.uint8, device=device)
        self._last_O = torch.zeros(max(shape.tokens for shape in largest), dtype=torch.int64, device=device)
        self.tables = PageTables(max_rows, num_pages, device)
        self.window_tables = PageTables(max_rows, num_pages, device) if has_windows else None
        max_decoding = max(shape.rows for shape in largest if shape.queries == 1)
        self._shared = SharedTables(max_decoding, num_pages, device) if finds_shared else None
        self._groups: list[SharedTokens] | None = None  # those in `_shared`; None: to be found again
        self._first_keys: list[int] = []
        self._num_decoding = 0  # rows of the last step that only decoded

    def ids(self, step: StepTensors) -> torch.Tensor:
        """Return a step's tokens, those that it follows included."""
        return torch.where(step.follows_T < 0, step.ids_T, self._last_O[step.follows_T.clamp(min=0)])

    def _follow(
        self, rows: Sequence[Row], starts_R: Sequence[int], last_tokens: LastTokens, follows_T: np.ndarray
    ) -> None:
        """Copy the last step's tokens, and write to `follows_T` which of them the rows follow."""
        following = [r for r, row in enumerate(rows) if row.follows is not None]
        if not following:
            return
        sources = [last_tokens.index[follows] for row in rows if (follows := row.follows) is not None]
        tokens_O = last_tokens.tokens_O
        if len(tokens_O) > len(self._last_O):  # a step of more outputs than any graph has tokens
            tokens_O, sources = tokens_O[to_device([np.array(sources)], tokens_O.device)[0]], list(range(len(sources)))
        # In place of a token there may be NOT_FINITE, as in `LastTokens.fill`.
        torch.clamp(tokens_O, min=0, out=self._last_O[: len(tokens_O)])
        follows_T[[starts_R[r] for r in following]] = sources

    def tensors(self, shape: GraphShape) -> StepTensors:
        """Return the inputs of steps of a shape."""
        arrays = self._arrays(shape)
        return StepTensors(*unpack(arrays, self._buffer[: packed_size(arrays)]))

    def attention(self, shape: GraphShape, kv: KvCache, window: int | None) -> DecodeAttentionArgs:
        """Return the arguments of attention of steps of a shape."""
        step, R = self.tensors(shape), shape.rows
        queries = None
        if shape.queries > 1:
            positions_T = step.positions_T.to(torch.int32)
            queries = QueryTensors(step.first_query_R, step.num_queries_R, positions_T, step.visible_T, shape.queries)
        if window is not None and self.window_tables is not None:
            table_RP = self.window_tables.table_RP[:R]
            return DecodeAttentionArgs(table_RP, step.num_keys_R, kv, PAGE_SIZE, window, queries=queries)
        return DecodeAttentionArgs(
            self.tables.table_RP[:R],
            step.num_keys_R,
            kv,
            PAGE_SIZE,
            window,
            self._shared.of_size(R) if shape.shares and self._shared is not None else None,
            step.first_key_R if shape.shares else None,
            queries,
        )

    def fill_padding(self, shape: GraphShape) -> None:
        """Write a step without rows."""
        arrays = self._arrays(shape)
        arrays[6:8] = self.tables.padded(arrays[6][:0], arrays[7][:0], shape.changes)
        if self.window_tables is not None:
            arrays[13:] = self.window_tables.padded(arrays[13][:0], arrays[14][:0], shape.changes)
        to_buffer(arrays, self._buffer)

    def fill_decode(self, rows: Sequence[Row], last_tokens: LastTokens, shape: GraphShape) -> bool:
        """Write a step whose rows have one token each; return True if they share keys."""
        ids_T, positions_T, slots_T, follows_T, wanted_T, visible_T, _, _, *columns = self._arrays(shape)
        tables, count = self.tables, len(rows)
        places = [row.first_position for row in rows]
        same = count == self._num_decoding
        for r, (row, place) in enumerate(zip(rows, places, strict=True)):
            if not tables.update(r, row.pages[: place // PAGE_SIZE + 1]):
                same = False
        self._num_decoding = count
        if self._groups is None or not same:
            self._find_groups(count, shape.rows)
        places_R = np.array(places)
        last_R = np.array([row.pages[place // PAGE_SIZE] for row, place in zip(rows, places, strict=True)])
        ids_T[:count] = [row.tokens[0] for row in rows]
        positions_T[:count] = places_R
        slots_T[:count] = last_R * PAGE_SIZE + places_R % PAGE_SIZE
        self._follow(rows, range(count), last_tokens, follows_T)
        num_keys_R, first_key_R = columns[:2]
        num_keys_R[:count], first_key_R[:count] = places_R + 1, self._first_keys
        changes = tables.changes([key // PAGE_SIZE for key in self._first_keys])
        changed = tables.padded(*changes, shape.changes)
        if self.window_tables is not None:
            slots = [_window_pages(row)[place // PAGE_SIZE] for row, place in zip(rows, places, strict=True)]
            columns[4][:count] = np.array(slots) * PAGE_SIZE + places_R % PAGE_SIZE
            for r, (row, place) in enumerate(zip(rows, places, strict=True)):
                self.window_tables.update_window(r, _window_pages(row)[: place // PAGE_SIZE + 1])
            columns[5:] = self.window_tables.padded(*self.window_tables.changes([0] * count), shape.changes)
        to_buffer([ids_T, positions_T, slots_T, follows_T, wanted_T, visible_T, *changed, *columns], self._buffer)
        return bool(self._groups)

    def _find_groups(self, count: int, size: int) -> None:
        """Find the groups of rows that share keys, and write them to their buffers.

        They stay valid while every row's pages only grow: pages that rows share were computed before.
        """
        self._groups, self._first_keys = [], [0] * count
        if self._shared is None or count < 2:
            return
        whole_R = [self.tables.pages(r)[:-1] for r in range(count)]  # the last page holds the row's own token
        self._groups, self._first_keys = shared_tokens(
            whole_R, range(count), [1] * count, [0] * count, page_size=PAGE_SIZE
        )
        if self._groups:
            self._shared.fill(self._groups, size)

    def fill_rows(
        self,
        rows: Sequence[Row],
        cut: Sequence[TokenSegment],
        wanted: np.ndarray,
        last_tokens: LastTokens,
        shape: GraphShape,
    ) -> None:
        """Write a step of any rows, cut into segments; `wanted` are the tokens whose hidden states are read."""
        arrays = self._arrays(shape)
        ids_T, positions_T, slots_T, follows_T, wanted_T, visible_T = arrays[:6]
        num_keys_R, _, first_query_R, num_queries_R, window_slots_T = arrays[8:13]
        step = row_arrays(rows)
        count, starts_R = len(step.ids_T), step.starts_R.tolist()
        ids_T[:count], slots_T[:count], wanted_T[: len(wanted)] = step.ids_T, step.slots_T, wanted
        positions_T[:count] = step.positions_T
        if self.window_tables is not None:
            window_slots_T[:count] = step.slots_T if step.window_slots_T is None else step.window_slots_T
        self._follow(rows, starts_R, last_tokens, follows_T)
        for r, (index, first, num) in enumerate(cut):
            row, start = rows[index], starts_R[index] + first
            end = row.first_position + first + num
            self.tables.update(r, row.pages[: -(-end // PAGE_SIZE)])
            if self.window_tables is not None:
                self.window_tables.update_window(r, _window_pages(row)[: -(-end // PAGE_SIZE)])
            num_keys_R[r], first_query_R[r], num_queries_R[r] = end, start, num
            visible_T[start : start + num] = _visible(row, first, num)
        # Padding has tokens too: attention writes zeros for them, where memory may hold no numbers.
        for r, start in enumerate(range(count, shape.tokens, shape.queries), len(cut)):
            first_query_R[r], num_queries_R[r] = start, min(shape.queries, shape.tokens - start)
        self._groups = None
        arrays[6:8] = self.tables.padded(*self.tables.changes([0] * len(cut)), shape.changes)
        if self.window_tables is not None:
            changes = self.window_tables.changes([0] * len(cut))
            arrays[13:] = self.window_tables.padded(*changes, shape.changes)
        to_buffer(arrays, self._buffer)


def _window_pages(row: Row) -> list[int]:
    return row.window_pages or row.pages  # a row of the warm-up has none of its own


def _visible(row: Row, first: int, num: int) -> np.ndarray:
    """Return the bitmask of each token of a segment: which of its tokens the token sees, int64."""
    bits = _CAUSAL[:num]
    num_tree = 0 if row.parents is None or is_chain(row.parents) else len(row.parents)
    if not num_tree or first + num <= len(row.tokens) - num_tree:
        return bits.view(np.int64)
    bits, num_before = bits.copy(), num - num_tree
    assert row.parents is not None
    visible_NN, _ = ancestors(row.parents)
    weights_N = np.left_shift(np.uint64(1), np.arange(num_before, num, dtype=np.uint64))
    committed = np.uint64((1 << num_before) - 1)
    bits[num_before:] = (visible_NN * weights_N).sum(axis=1, dtype=np.uint64) | committed
    return bits.view(np.int64)


_CAUSAL = np.left_shift(np.uint64(2), np.arange(64, dtype=np.uint64)) - np.uint64(1)
