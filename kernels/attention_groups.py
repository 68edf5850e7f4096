"""Grouping of rows by the pages with which their page tables begin, so that keys that rows share are read once.

Forks, samples of one prompt and requests with one system prompt have the same pages at their start. Their queries meet
the shared keys together, then each row's own keys; the partial results are merged by their log-sums (Juravsky et al.
2024, Hydragen, section 3; "cascade" inference of nested prefixes in FlashInfer's documentation).

Knows page ids and numbers of tokens; knows nothing of devices.

Legend: R rows, P pages, B blocks of pages, G pieces, N tokens of pieces, T tokens of the step, L levels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

PIECE_TOKENS = 16  # tokens that meet shared keys together; a row of more tokens gains nothing from company
LEVELS = 3  # prefixes within prefixes
SHARED_KEYS = 64  # shared keys are cut to a multiple of this

# Costs in reads of a key by a tile of queries: estimates, to be measured by bench/gpu/kernels.py on a GPU.
MERGE_KEYS = 32  # writing and merging one more partial result of a row
PASS_KEYS = 2048  # one more launch


class SharedPrefix(NamedTuple):
    """Rows whose page tables agree up to block `end`, and nowhere behind it all of them."""

    rows: tuple[int, ...]  # two or more
    first: int  # the block where the enclosing prefix ends
    end: int
    parent: int | None  # index of the enclosing prefix in the same list


def shared_prefixes(pages_R: Sequence[np.ndarray], block: int) -> list[SharedPrefix]:
    """Return every prefix that rows share, in whole blocks of `block` pages; enclosing prefixes come first.

    `pages_R` are the page ids of each row, none negative, as far as they may be shared. A row belongs to one chain of
    nested prefixes. Takes some 0.1 ms for 64 rows of 64 pages that share some, and 0.02 ms where no page is shared.
    """
    alike: dict[int, list[int]] = {}
    for row, pages in enumerate(pages_R):
        if len(pages) >= block:
            alike.setdefault(int(pages[0]), []).append(row)
    candidates = [row for rows in alike.values() if len(rows) > 1 for row in rows]
    if not candidates:
        return []
    lengths_R = np.array([len(pages_R[row]) for row in candidates]) // block * block
    shared = [pages_R[row][:length] for row, length in zip(candidates, lengths_R.tolist(), strict=True)]
    place_P = np.arange(lengths_R.max())
    table_RP = np.empty((len(shared), len(place_P)), dtype=np.int64)
    table_RP[:] = np.arange(-len(shared), 0)[:, None]  # what is no page equals nothing
    table_RP[place_P < lengths_R[:, None]] = np.concatenate(shared)
    # Sorted by their bytes, rows with a common prefix are neighbours.
    packed, stride = table_RP.tobytes(), table_RP.strides[0]
    keys = [packed[start : start + stride] for start in range(0, len(packed), stride)]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    table_RP = table_RP[order]
    same_RP = np.zeros((len(shared) - 1, len(place_P) + 1), dtype=np.bool_)
    np.equal(table_RP[1:], table_RP[:-1], out=same_RP[:, :-1])
    common_R = same_RP.argmin(1) // block
    sorted_rows = [candidates[index] for index in order]
    return _nested(sorted_rows, _intervals(common_R.tolist()))


def _intervals(common_R: list[int]) -> list[tuple[int, int, int]]:
    """Return (first row, end row, blocks) of the prefixes of sorted rows, given the blocks that neighbours share."""
    found: list[tuple[int, int, int]] = []
    open_: list[tuple[int, int]] = []  # first row, blocks
    for row, common in enumerate([*common_R, 0]):
        first = row
        while open_ and open_[-1][1] > common:
            first, blocks = open_.pop()
            found.append((first, row + 1, blocks))
        if common and (not open_ or open_[-1][1] < common):
            open_.append((first, common))
    return sorted(found, key=lambda one: (one[0], -one[1]))


def _nested(sorted_rows: list[int], intervals: list[tuple[int, int, int]]) -> list[SharedPrefix]:
    prefixes: list[SharedPrefix] = []
    enclosing: list[tuple[int, int]] = []  # index, end row
    for first_row, end_row, blocks in intervals:
        while enclosing and enclosing[-1][1] <= first_row:
            enclosing.pop()
        parent = enclosing[-1][0] if enclosing else None
        first = 0 if parent is None else prefixes[parent].end
        rows = tuple(sorted(sorted_rows[first_row:end_row]))
        enclosing.append((len(prefixes), end_row))
        prefixes.append(SharedPrefix(rows, first, blocks, parent))
    return prefixes


def worthwhile(
    prefixes: Sequence[SharedPrefix],
    num_tokens_R: Sequence[int],
    seen_from_R: Sequence[int],
    *,
    block_keys: int,
    levels: int = LEVELS,
) -> list[SharedPrefix]:
    """Return the prefixes that save more reads of keys than they cost, of at most `levels` within each other.

    `num_tokens_R` are the rows' tokens, `seen_from_R` the first keys that a window lets them see. Where a prefix is
    left out, those within it begin where the next one around it ends.
    """
    chosen: list[SharedPrefix] = []
    level: list[int] = []
    around: list[int | None] = []  # of each prefix: the innermost chosen one, itself included
    saved = 0
    for prefix in prefixes:
        above = None if prefix.parent is None else around[prefix.parent]
        first, depth = (0, 0) if above is None else (chosen[above].end, level[above] + 1)
        seen = prefix.end * block_keys - max(first * block_keys, min(seen_from_R[row] for row in prefix.rows))
        num_tiles = -(-sum(num_tokens_R[row] for row in prefix.rows) // PIECE_TOKENS)
        gain = (len(prefix.rows) - num_tiles) * seen - MERGE_KEYS * len(prefix.rows)
        if gain > 0 and depth < levels:
            saved += gain
            above = len(chosen)
            chosen.append(
                prefix._replace(first=first, parent=around[prefix.parent] if prefix.parent is not None else None)
            )
            level.append(depth)
        around.append(above)
    return chosen if saved > PASS_KEYS else []


class SharedTokens(NamedTuple):
    """Tokens that all see the keys [first_key, end_key) of `pages`."""

    tokens: list[int]  # indices into the step's tokens
    pages: np.ndarray  # those of the keys, the first key's first
    first_key: int
    end_key: int
    level: int  # of its tokens, how many others hold keys before these


class Pieces(NamedTuple):
    """The tables of `SharedKeys` (kernels/arguments.py) as arrays."""

    page_table_GP: np.ndarray  # int32
    first_key_G: np.ndarray  # int32
    num_keys_G: np.ndarray  # int32
    num_tokens_G: np.ndarray  # int32
    tokens_N: np.ndarray  # int32
    places_TL: np.ndarray  # int32


def pieces_of(groups: Sequence[SharedTokens], num_tokens: int) -> Pieces:
    """Cut groups into pieces of at most `PIECE_TOKENS` tokens. `num_tokens` is T."""
    cut = [
        (group, group.tokens[first : first + PIECE_TOKENS])
        for group in groups
        for first in range(0, len(group.tokens), PIECE_TOKENS)
    ]
    G = len(cut)
    table_GP = np.zeros((G, max(len(group.pages) for group in groups)), dtype=np.int32)
    tokens_GN = np.zeros((G, PIECE_TOKENS), dtype=np.int32)
    places_TL = np.full((num_tokens, LEVELS), -1, dtype=np.int32)
    for index, (group, tokens) in enumerate(cut):
        table_GP[index, : len(group.pages)] = group.pages
        tokens_GN[index, : len(tokens)] = tokens
        places_TL[tokens, group.level] = index * PIECE_TOKENS + np.arange(len(tokens))
    first_G, num_keys_G, num_tokens_G = np.array(
        [(group.first_key, group.end_key, len(tokens)) for group, tokens in cut], dtype=np.int32
    ).T.copy()
    return Pieces(table_GP, first_G, num_keys_G, num_tokens_G, tokens_GN.ravel(), places_TL)


def shared_tokens(
    pages_R: Sequence[np.ndarray],
    starts_R: Sequence[int],
    num_tokens_R: Sequence[int],
    seen_from_R: Sequence[int],
    *,
    page_size: int,
    keys: int = SHARED_KEYS,
    levels: int = LEVELS,
) -> tuple[list[SharedTokens], list[int]]:
    """Return the groups of tokens that share keys worth sharing, and where each row's own keys begin.

    `pages_R` are as in `shared_prefixes`; those of a row that takes no part are empty. Row r has the step's tokens
    [starts_R[r], starts_R[r] + num_tokens_R[r]). Shared keys end at multiples of `keys`; `seen_from_R` and `levels` are
    as in `worthwhile`.
    """
    block = max(1, keys // page_size)
    first_key_R = [0] * len(pages_R)
    prefixes = shared_prefixes(pages_R, block)
    if prefixes:
        prefixes = worthwhile(prefixes, num_tokens_R, seen_from_R, block_keys=block * page_size, levels=levels)
    groups: list[SharedTokens] = []
    for prefix in prefixes:
        tokens = [t for row in prefix.rows for t in range(starts_R[row], starts_R[row] + num_tokens_R[row])]
        pages = pages_R[prefix.rows[0]][prefix.first * block : prefix.end * block]
        first_key, end_key = prefix.first * block * page_size, prefix.end * block * page_size
        level = 0 if prefix.parent is None else groups[prefix.parent].level + 1
        groups.append(SharedTokens(tokens, pages, first_key, end_key, level))
        for row in prefix.rows:
            first_key_R[row] = end_key
    return groups, first_key_R
