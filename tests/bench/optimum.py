"""Upper bounds of cache hits, over all schedules and evictions, computed from the requests of a run.

The bounds are over single tokens, without pages or leases.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from ramiform.bench.scheduling.programs import Asked, Event

NEVER = 1 << 62


class Trie:
    """Numbers every prefix: equal prefixes, equal numbers."""

    def __init__(self) -> None:
        self._children: dict[tuple[int, int], int] = {}

    def nodes(self, tokens: Iterable[int]) -> Iterator[int]:
        node = 0
        for token in tokens:
            node = self._children.setdefault((node, token), len(self._children) + 1)
            yield node


def optimal_hits(requests: Iterable[Asked]) -> int:
    """Return the maximum of prompt tokens that can be hit, with endless memory and in any order of requests.

    Token by token: somebody has to compute each one, all others may hit it. The last token of a prompt is computed in
    any case, for its logits, and an output is; whoever has one of these as part of a longer prompt may hit it.
    """
    trie = Trie()
    num_hittable: Counter[int] = Counter()
    computed_anyway: set[int] = set()
    for request in requests:
        for place, node in enumerate(trie.nodes(request.computed)):
            if place < request.num_hittable:
                num_hittable[node] += 1
            else:
                computed_anyway.add(node)
    return sum(num - (node not in computed_anyway) for node, num in num_hittable.items())


def bounded_hits(events: Sequence[Event], num_slots: int) -> int:
    """Return an upper bound of hits with room for `num_slots` tokens, if the requests run as in `events`.

    Belady's MIN (A study of replacement algorithms for a virtual-storage computer, 1966) over single tokens: what is
    hit again soonest is kept. A bound and not a policy, since three things are granted: a token may be kept without
    those before it, what running requests hold takes no room, and they hold all of it from the start.
    """
    trie = Trie()
    nodes_of = {id(request): list(trie.nodes(request.computed)) for _, request in events}
    uses: dict[int, list[int]] = {}  # when a request with this token starts, the next time on top
    for index in range(len(events) - 1, -1, -1):
        kind, request = events[index]
        if kind == "starts":
            for place, node in enumerate(nodes_of[id(request)]):
                # To keep a token until somebody computes it anyway is of no use.
                uses.setdefault(node, []).append(index if place < request.num_hittable else NEVER)
    held: Counter[int] = Counter()  # by running requests
    kept: dict[int, int] = {}  # by nobody; and when it is hit
    latest: list[tuple[int, int]] = []  # the same, the most distant hit on top; some entries are stale
    hits = 0
    for kind, request in events:
        nodes = nodes_of[id(request)]
        if kind == "starts":
            hits += sum(held[node] > 0 or node in kept for node in nodes[: request.num_hittable])
            for node in nodes:
                uses[node].pop()
                kept.pop(node, None)
            held.update(nodes)
            continue
        held.subtract(nodes)
        for node in nodes:
            next_hit = uses[node][-1] if uses[node] else NEVER
            if held[node] == 0 and next_hit < NEVER:
                kept[node] = next_hit
                heapq.heappush(latest, (-next_hit, node))
        while len(kept) > num_slots:
            next_hit, node = heapq.heappop(latest)
            if kept.get(node) == -next_hit:
                del kept[node]
    return hits
