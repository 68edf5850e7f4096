"""Make the plan of a step's compiled attention: which queries meet which blocks of keys, in which order, as one array.

A row's place p is the p-th key of its page table. Keys are cut into blocks of BLOCK places, from place 0 on, and every
query meets its blocks in ascending order. Rows whose page tables begin with the same pages share those blocks: a block
is gathered once, then multiplied with the queries of all its rows. So rows are sorted into a tree by their pages, and a
segment (some queries, some blocks) is a node of it.

A node of a draft tree meets the blocks before the tree's like any token of its row. From the first block with places of
the tree on, it meets keys of its own: the committed ones, its ancestors and itself, placed as in plain decoding.

Legend: T tokens, R rows, P pages of all rows, N nodes of all draft trees, Q queries in the order of the tree of rows
(tokens of a row stay together).
"""

from __future__ import annotations

import numpy as np

from ..compiled import Ints, compiled
from .inner import BLOCK

# The plan's array begins with these numbers; COST is that of all tiles for one key/value head, in pairs of a query head
# and a key. HEADS is the number of key/value heads of a task, where it divides their number. Then come its tables, each
# at the place that its number gives:
# tiles [tiles, 4]: first and end query, first and end segment; the most expensive tile first.
# segments [.., 7]: first and end query, first and end block, slot unit, table, number of keys. Key p of the segment has
#     the slot unit * array[table + p // unit] + p % unit.
# tokens [Q], begins [Q], ends [Q]: token of each query, and the places [begin, end) that it sees.
NUM_TILES, MAX_QUERIES, GROUP, HEADS, COST, TILES, SEGMENTS, TOKENS, BEGINS, ENDS, HEADER = range(11)
TILE_FIELDS, SEGMENT_FIELDS = 4, 7
TILE_ROWS = 256  # rows (a query of one head) of a tile: their queries and sums stay in the second cache
_TILES_OF_THREAD = 8  # at least, before short ones are merged
_PIECE = 4  # queries of a tile at least, where tiles are made smaller to occupy all threads
_GATHER_ROWS = 8  # rows whose products take the time of gathering a block


@compiled("boolean(int64[::1], int64[::1], int64, int64, int64, int64)")
def _same_pages(pages_P: Ints, starts_R: Ints, row: int, other: int, block: int, page_size: int) -> bool:
    """Return True if two rows, both of which have all places of the block, have the same pages for it."""
    first, last = block * BLOCK // page_size, (block * BLOCK + BLOCK - 1) // page_size
    x, y = starts_R[row], starts_R[other]
    num_equal = 0
    for page in range(first, last + 1):
        num_equal += pages_P[x + page] == pages_P[y + page]
    return num_equal == last + 1 - first  # type: ignore[no-any-return]


@compiled("int64(int64[::1], int64[::1], int64[::1], int64[::1], int64, int64[:,::1], int64[::1], int64[::1])")
def _sort_rows(
    first_R: Ints,
    num_R: Ints,
    pages_P: Ints,
    starts_R: Ints,
    page_size: int,
    shared: Ints,
    order_R: Ints,
    own_R: Ints,
) -> int:
    """Sort the rows into a tree by their pages. Write the shared segments to `shared` [R, 4] (first and end row of the
    order, first and end block; parents first), the order of the rows, and the first block of each that it shares with
    none; return the number of shared segments.

    Rows share blocks that end before their first new token, so that all their queries see all of them.
    """
    R = len(first_R)
    for r in range(R):
        order_R[r] = r
    own_R[:] = 0
    stack = np.empty((R + 1, 3), dtype=np.int64)
    stack[0, 0], stack[0, 1], stack[0, 2] = 0, R, 0
    depth, found = 1, 0
    while depth > 0:
        low, high, block = stack[depth - 1]
        if low == high:
            depth -= 1
            continue
        leader = order_R[low]
        middle = low + 1
        if first_R[leader] // BLOCK > block:
            for place in range(low + 1, high):
                row = order_R[place]
                if first_R[row] // BLOCK > block and _same_pages(pages_P, starts_R, leader, row, block, page_size):
                    order_R[place], order_R[middle] = order_R[middle], row
                    middle += 1
        stack[depth - 1, 0] = middle
        if middle == low + 1:
            own_R[leader] = block
            continue
        end = block + 1
        least = first_R[leader] // BLOCK
        for place in range(low + 1, middle):
            least = min(least, first_R[order_R[place]] // BLOCK)
        same = True
        while same and end < least:
            for place in range(low + 1, middle):
                same = same and _same_pages(pages_P, starts_R, leader, order_R[place], end, page_size)
            end += same
        shared[found, 0], shared[found, 1], shared[found, 2], shared[found, 3] = low, middle, block, end
        found += 1
        stack[depth, 0], stack[depth, 1], stack[depth, 2] = low, middle, end
        depth += 1
    return found


@compiled("int64(int64, int64, int64, int64)")
def _num_pieces(num_queries: int, group: int, tile_rows: int, least: int) -> int:
    """Return the number of tiles of a root's queries, at least `least` unless they are few."""
    return min(max(-(-num_queries * group // tile_rows), min(num_queries // _PIECE, least)), num_queries)


@compiled("void(int64[:,::1], int64, int64, int64, int64, int64)")
def _add_segment(segments: Ints, index: int, first: int, end: int, block: int, end_block: int) -> None:
    """Write a segment's queries and blocks."""
    segments[index, 0], segments[index, 1], segments[index, 2], segments[index, 3] = first, end, block, end_block


@compiled("void(int64[:,::1], int64, int64, int64, int64)")
def _set_keys(segments: Ints, index: int, unit: int, table: int, num_keys: int) -> None:
    """Write where a segment's keys are."""
    segments[index, 4], segments[index, 5], segments[index, 6] = unit, table, num_keys


@compiled("void(int64[::1], int64, int64[::1])")
def _copy(to: Ints, at: int, values: Ints) -> None:
    """Copy values to a place of an array. An assignment to a slice takes numba long to compile: it contains the code
    that formats a message about shapes."""
    for i in range(len(values)):
        to[at + i] = values[i]


@compiled("int64(int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1])")
def _measure_trees(
    first_R: Ints,
    num_R: Ints,
    parents_N: Ints,
    num_nodes_R: Ints,
    depth_N: Ints,
    node_starts_R: Ints,
    token_starts_R: Ints,
) -> int:
    """Write the depth of each node, and where each row's nodes and tokens start. Return the number of slots of the
    nodes' own keys."""
    num_slots = nodes = tokens = 0
    for r in range(len(first_R)):
        node_starts_R[r], token_starts_R[r] = nodes, tokens
        tree_start = first_R[r] + num_R[r] - num_nodes_R[r]
        for node in range(num_nodes_R[r]):
            parent = parents_N[nodes + node]
            depth_N[nodes + node] = 1 + (depth_N[nodes + parent] if parent >= 0 else 0)
            num_slots += tree_start % BLOCK + depth_N[nodes + node]
        nodes, tokens = nodes + num_nodes_R[r], tokens + num_R[r]
    return num_slots


@compiled(
    "void(int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64, int64[:,::1],"
    " int64[::1])"
)
def _order_queries(
    order_R: Ints,
    first_R: Ints,
    num_R: Ints,
    num_nodes_R: Ints,
    depth_N: Ints,
    node_starts_R: Ints,
    token_starts_R: Ints,
    window: int,
    queries_3Q: Ints,
    starts_Q: Ints,
) -> None:
    """Write the queries in the order of the rows: their tokens, and where the keys that they see begin and end.
    `starts_Q` gets the first query of each row in that order, and where all end."""
    q = 0
    for place in range(len(order_R)):
        r = order_R[place]
        starts_Q[place] = q
        num_plain = num_R[r] - num_nodes_R[r]
        for t in range(num_R[r]):
            ancestors = depth_N[node_starts_R[r] + t - num_plain] if t >= num_plain else t - num_plain + 1
            end = first_R[r] + num_plain + ancestors
            begin = max(end - window, 0) if window > 0 else 0
            if window < 0:
                begin = (end - 1) // -window * -window
            queries_3Q[0, q], queries_3Q[1, q], queries_3Q[2, q] = token_starts_R[r] + t, begin, end
            q += 1
    starts_Q[len(order_R)] = q


@compiled(
    "int64(int64[::1], int64, int64, int64, int64, int64, int64, int64[::1], int64[::1], int64[::1], int64,"
    " int64[:,::1], int64)"
)
def _add_tree(
    pages_P: Ints,
    page_size: int,
    tree_start: int,
    common_end: int,
    first_query: int,
    num_nodes: int,
    slots_at: int,
    parents_N: Ints,
    depth_N: Ints,
    slots: Ints,
    num_slots: int,
    segments: Ints,
    num_segments: int,
) -> int:
    """Add a segment for each node of a row's tree, with the slots of the keys that the node sees behind the blocks that
    all of the row's queries see. Return the number of slots. `pages_P`, `parents_N` and `depth_N` are the row's."""
    base = common_end * BLOCK
    for node in range(num_nodes):
        num_keys, query = tree_start + depth_N[node], first_query + node
        _add_segment(segments, num_segments + node, query, query + 1, common_end, -(-num_keys // BLOCK))
        _set_keys(segments, num_segments + node, 1, slots_at + num_slots - base, num_keys)
        for p in range(base, tree_start):
            slots[num_slots + p - base] = pages_P[p // page_size] * page_size + p % page_size
        ancestor = node
        for p in range(num_keys - 1, tree_start - 1, -1):
            at = tree_start + ancestor
            slots[num_slots + p - base] = pages_P[at // page_size] * page_size + at % page_size
            ancestor = parents_N[ancestor]
        num_slots += num_keys - base
    return num_slots


@compiled("int64(int64[::1], int64, int64, int64, int64)")
def _merge_roots(root_of: Ints, num_roots: int, group: int, threads: int, tile_rows: int) -> int:
    """Make one of several roots where there are many, so that a block is fetched while the one before is computed.
    Return how many are left. `root_of` has the first query of each, and where all end."""
    end, num_merged, most_roots = root_of[num_roots], 0, num_roots // (_TILES_OF_THREAD * threads) + 1
    for root in range(num_roots):
        if root % most_roots == 0 or (root_of[root + 1] - root_of[num_merged - 1]) * group > tile_rows:
            root_of[num_merged] = root_of[root]
            num_merged += 1
    root_of[num_merged] = end
    return num_merged


@compiled(
    "Tuple((int64[:,::1], int64))(int64[:,::1], int64, int64[::1], int64, int64[:,::1], int64, int64, int64,"
    " int64[:,::1], int64[::1])"
)
def _cut_tiles(
    segments: Ints,
    num_segments: int,
    root_of: Ints,
    num_roots: int,
    queries_3Q: Ints,
    group: int,
    tile_rows: int,
    least: int,
    tiles: Ints,
    cost: Ints,
) -> tuple[Ints, int]:
    """Write the tiles, each root's queries in pieces of nearly one size, and what each costs. Return the parts of the
    root's segments that the pieces have, and the number of these parts."""
    capacity = num_segments + len(tiles)
    clipped = np.empty((capacity, SEGMENT_FIELDS), dtype=np.int64)
    num_clipped = tile = segment = 0
    for root in range(num_roots):
        low, high = root_of[root], root_of[root + 1]
        last = segment
        while last < num_segments and segments[last, 0] < high:
            last += 1
        pieces = _num_pieces(high - low, group, tile_rows, least)
        for piece in range(pieces):
            first_q, end_q = low + (high - low) * piece // pieces, low + (high - low) * (piece + 1) // pieces
            tiles[tile, 0], tiles[tile, 1], tiles[tile, 2] = first_q, end_q, num_clipped
            cost[tile] = 0
            for s in range(segment, last):
                start, stop = max(segments[s, 0], first_q), min(segments[s, 1], end_q)
                if start >= stop:
                    continue
                earliest, latest = queries_3Q[1, start], queries_3Q[2, start]
                for q in range(start, stop):
                    earliest, latest = min(earliest, queries_3Q[1, q]), max(latest, queries_3Q[2, q])
                block = max(segments[s, 2], earliest // BLOCK)
                end = min(segments[s, 3], -(-latest // BLOCK))
                if block >= end:
                    continue
                if num_clipped == capacity:
                    capacity *= 2
                    larger = np.empty((capacity, SEGMENT_FIELDS), dtype=np.int64)
                    for old in range(num_clipped):
                        _copy(larger[old], 0, clipped[old])
                    clipped = larger
                _copy(clipped[num_clipped], 0, segments[s])
                _add_segment(clipped, num_clipped, start, stop, block, end)
                num_clipped += 1
                cost[tile] += ((stop - start) * group + _GATHER_ROWS) * (end - block)
            tiles[tile, 3] = num_clipped
            tile += 1
        segment = last
    return clipped, num_clipped


@compiled(
    "int64[::1](int64[:,::1], int64[::1], int64[:,::1], int64[:,::1], int64[::1], int64[::1], int64, int64, int64)"
)
def _write_plan(
    tiles: Ints,
    cost: Ints,
    segments: Ints,
    queries_3Q: Ints,
    pages_P: Ints,
    slots: Ints,
    group: int,
    heads: int,
    threads: int,
) -> Ints:
    """Return the array of a plan: header, tiles by falling cost, segments, queries, pages and the slots of nodes."""
    num_tiles, num_segments, T = len(tiles), len(segments), queries_3Q.shape[1]
    plan = np.empty(
        HEADER + num_tiles * TILE_FIELDS + num_segments * SEGMENT_FIELDS + 3 * T + len(pages_P) + len(slots),
        dtype=np.int64,
    )
    most = 0
    for tile in range(num_tiles):
        most = max(most, tiles[tile, 1] - tiles[tile, 0])
    plan[NUM_TILES], plan[MAX_QUERIES], plan[GROUP], plan[COST] = num_tiles, most, group, cost.sum() * BLOCK
    plan[HEADS] = heads if cost.max() * threads * 4 <= cost.sum() * 5 else 1
    plan[TILES] = HEADER
    plan[SEGMENTS] = plan[TILES] + num_tiles * TILE_FIELDS
    plan[TOKENS] = plan[SEGMENTS] + num_segments * SEGMENT_FIELDS
    plan[BEGINS], plan[ENDS] = plan[TOKENS] + T, plan[TOKENS] + 2 * T
    pages_at = plan[TOKENS] + 3 * T
    by_cost = np.argsort(-cost, kind="mergesort")
    for tile in range(num_tiles):
        _copy(plan, HEADER + tile * TILE_FIELDS, tiles[by_cost[tile]])
    for s in range(num_segments):
        segments[s, 5] += pages_at
        _copy(plan, plan[SEGMENTS] + s * SEGMENT_FIELDS, segments[s])
    for kind in range(3):
        _copy(plan, plan[TOKENS] + kind * T, queries_3Q[kind])
    _copy(plan, pages_at, pages_P)
    _copy(plan, pages_at + len(pages_P), slots)
    return plan


@compiled(
    "int64[::1](int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64, int64, int64,"
    " int64, int64, int64)"
)
def make_plan(
    first_R: Ints,
    num_R: Ints,
    pages_P: Ints,
    page_starts_R: Ints,
    parents_N: Ints,
    num_nodes_R: Ints,
    page_size: int,
    window: int,
    group: int,
    heads: int,
    threads: int,
    tile_rows: int,
) -> Ints:
    """Return the array of an `AttentionPlan`."""
    R, T, N = len(first_R), num_R.sum(), len(parents_N)
    order_R, own_R = np.empty(R, dtype=np.int64), np.empty(R, dtype=np.int64)
    shared = np.empty((R, 4), dtype=np.int64)
    num_shared = _sort_rows(first_R, num_R, pages_P, page_starts_R, page_size, shared, order_R, own_R)
    depth_N, queries_3Q = np.empty(N, dtype=np.int64), np.empty((3, T), dtype=np.int64)
    node_starts_R, token_starts_R = np.empty(R, dtype=np.int64), np.empty(R, dtype=np.int64)
    num_slots = _measure_trees(first_R, num_R, parents_N, num_nodes_R, depth_N, node_starts_R, token_starts_R)
    slots, starts_Q = np.empty(num_slots, dtype=np.int64), np.empty(R + 1, dtype=np.int64)
    _order_queries(
        order_R, first_R, num_R, num_nodes_R, depth_N, node_starts_R, token_starts_R, window, queries_3Q, starts_Q
    )

    # Segments of the tree of rows, in the order of their first queries, parents first.
    segments = np.empty((num_shared + 2 * R + N, SEGMENT_FIELDS), dtype=np.int64)
    first_page, num_pages = page_starts_R[0], page_starts_R[R] - page_starts_R[0]
    num_segments = num_slots = next_shared = 0
    root_of = np.empty(R + 1, dtype=np.int64)  # first query of each root, of which queries lie in no common segment
    num_roots = root_end = 0
    for place in range(R):
        r = order_R[place]
        table = page_starts_R[r] - first_page
        if place >= root_end:
            root_of[num_roots] = starts_Q[place]
            num_roots += 1
            root_end = place + 1
        while next_shared < num_shared and shared[next_shared, 0] == place:
            low, high, block, end = shared[next_shared]
            next_shared += 1
            root_end = max(root_end, high)
            _add_segment(segments, num_segments, starts_Q[low], starts_Q[high], block, end)
            _set_keys(segments, num_segments, page_size, table, end * BLOCK)
            num_segments += 1
        tree_start = first_R[r] + num_R[r] - num_nodes_R[r]
        start, middle, stop = starts_Q[place], starts_Q[place + 1] - num_nodes_R[r], starts_Q[place + 1]
        plain_end = -(-tree_start // BLOCK)
        common_end = tree_start // BLOCK if num_nodes_R[r] else plain_end
        _add_segment(segments, num_segments, start, stop, own_R[r], common_end)
        _set_keys(segments, num_segments, page_size, table, tree_start)
        num_segments += 1
        if num_nodes_R[r] == 0:
            continue
        # A row's shared blocks end before its first new token, so `common_end` is not before `own_R`.
        _add_segment(segments, num_segments, start, middle, common_end, plain_end)
        _set_keys(segments, num_segments, page_size, table, tree_start)
        nodes = node_starts_R[r]
        num_slots = _add_tree(
            pages_P[page_starts_R[r] :], page_size, tree_start, common_end, middle, num_nodes_R[r], num_pages,
            parents_N[nodes:], depth_N[nodes:], slots, num_slots, segments, num_segments + 1,
        )  # fmt: skip
        num_segments += 1 + num_nodes_R[r]
    root_of[num_roots] = T

    num_roots = _merge_roots(root_of, num_roots, group, threads, tile_rows)
    least = threads if heads > 1 and num_roots < threads else 1
    num_tiles = 0
    for root in range(num_roots):
        num_tiles += _num_pieces(root_of[root + 1] - root_of[root], group, tile_rows, least)
    tiles, cost = np.empty((num_tiles, TILE_FIELDS), dtype=np.int64), np.empty(num_tiles, dtype=np.int64)
    clipped, num_clipped = _cut_tiles(
        segments, num_segments, root_of, num_roots, queries_3Q, group, tile_rows, least, tiles, cost
    )
    pages = pages_P[first_page : first_page + num_pages]
    return _write_plan(tiles, cost, clipped[:num_clipped], queries_3Q, pages, slots[:num_slots], group, heads, threads)


@compiled(
    "int64[::1](int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64, int64, int64,"
    " int64, int64, int64, int64[::1])"
)
def make_wanted_plan(
    first_R: Ints,
    num_R: Ints,
    pages_P: Ints,
    page_starts_R: Ints,
    parents_N: Ints,
    num_nodes_R: Ints,
    page_size: int,
    window: int,
    group: int,
    heads: int,
    threads: int,
    tile_rows: int,
    wanted_O: Ints,
) -> Ints:
    """Return the array of `AttentionPlan.array_of`."""
    R, T = len(first_R), num_R.sum()
    is_wanted_T, tokens_T = np.zeros(T, dtype=np.int64), np.empty(T, dtype=np.int64)
    for o in range(len(wanted_O)):
        is_wanted_T[wanted_O[o]] = 1
    later_R, fewer_R = np.empty(R, dtype=np.int64), np.empty(R, dtype=np.int64)
    start = num_kept = 0
    for r in range(R):
        # A draft tree keeps all of its nodes, and the token before them.
        most = num_R[r] if num_nodes_R[r] == 0 else max(num_R[r] - num_nodes_R[r] - 1, 0)
        skipped = 0
        while skipped < most and is_wanted_T[start + skipped] == 0:
            skipped += 1
        later_R[r], fewer_R[r] = first_R[r] + skipped, num_R[r] - skipped
        for t in range(skipped, num_R[r]):
            tokens_T[num_kept] = start + t
            num_kept += 1
        start += num_R[r]
    plan = make_plan(
        later_R, fewer_R, pages_P, page_starts_R, parents_N, num_nodes_R, page_size, window, group, heads, threads,
        tile_rows,
    )  # fmt: skip
    for q in range(plan[TOKENS], plan[TOKENS] + num_kept):
        plan[q] = tokens_T[plan[q]]
    return plan
