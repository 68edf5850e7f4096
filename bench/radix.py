"""The prefix cache alone: microseconds of CPU per request, beside a flat hash-of-blocks cache and a per-token trie.

    python -P bench/radix.py [--json FILE]

A request is a match, an insertion and the evictions that make room for it. Every cache gets the same requests and the
same capacity, in batches that take turns; the medians' ratios are what counts, microseconds depend on the machine and
on who else uses it. The caches are not equals: the flat one reuses whole pages only, forgets without regard to what
hangs on what, and neither of the two has leases, pins or copies.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, Protocol

import msgspec
import typer

from ramiform.bench.harness import Json, table, write_json
from ramiform.radix.cache import PrefixCache

PAGE_SIZE = 16
VOCAB_SIZE = 32_000
NUM_NEW = 128  # tokens of a prompt that are not cached, where it is not the trace that says
Batches = Iterator[list[list[int]]]


class Served(Protocol):
    """A cache of some tokens' capacity."""

    def serve(self, tokens: list[int]) -> int:
        """Look up, store, make room. Returns how many tokens were found."""
        ...


class Ramiform:
    def __init__(self, capacity: int) -> None:
        self.cache = PrefixCache(capacity // PAGE_SIZE, PAGE_SIZE)

    def serve(self, tokens: list[int]) -> int:
        lease = self.cache.acquire(tokens, num_tokens=len(tokens))
        assert lease is not None
        self.cache.take_copies()
        self.cache.commit(lease, tokens)
        self.cache.release(lease, tokens)
        return lease.matched


class FlatBlocks:
    """Whole pages by the hash of all tokens up to their end, the least recently used forgotten first."""

    def __init__(self, capacity: int) -> None:
        self.free = list(range(capacity // PAGE_SIZE))
        self.pages: OrderedDict[int, int] = OrderedDict()

    def serve(self, tokens: list[int]) -> int:
        pages = self.pages
        chain = 0
        hashes = []
        for at in range(0, len(tokens) - PAGE_SIZE + 1, PAGE_SIZE):
            chain = hash((chain, tuple(tokens[at : at + PAGE_SIZE])))
            hashes.append(chain)
        found = 0
        while found < len(hashes) and hashes[found] in pages:
            found += 1
        for name in reversed(hashes[:found]):  # tails before heads
            pages.move_to_end(name)
        for name in reversed(hashes[found:]):
            if name not in pages:
                pages[name] = self.free.pop() if self.free else pages.popitem(last=False)[1]
        return found * PAGE_SIZE


class TrieNode:
    __slots__ = ("children", "parent", "token")

    def __init__(self, token: int, parent: TrieNode | None) -> None:
        self.token = token
        self.parent = parent
        self.children: dict[int, TrieNode] | None = None


class TokenTrie:
    """A node for each token; the leaf that was used least recently is forgotten first."""

    def __init__(self, capacity: int) -> None:
        self.num_free = capacity
        self.root = TrieNode(-1, None)
        self.leaves: OrderedDict[TrieNode, None] = OrderedDict()

    def serve(self, tokens: list[int]) -> int:
        node = self.root
        found = 0
        for token in tokens:
            child = node.children.get(token) if node.children else None
            if child is None:
                break
            node = child
            found += 1
        # What was found must not go.
        self.leaves.pop(node, None)
        for token in tokens[found:]:
            if not self.num_free:
                self.forget(node)
            child = TrieNode(token, node)
            if node.children is None:
                node.children = {}
            node.children[token] = child
            self.num_free -= 1
            node = child
        if not node.children:
            self.leaves[node] = None
        return found

    def forget(self, used: TrieNode) -> None:
        leaf, _ = self.leaves.popitem(last=False)
        parent = leaf.parent
        assert parent is not None
        assert parent.children is not None
        del parent.children[leaf.token]
        self.num_free += 1
        if not parent.children and parent is not self.root and parent is not used:
            self.leaves[parent] = None
            self.leaves.move_to_end(parent, last=False)  # as old as what hung from it


CACHES: dict[str, Callable[[int], Served]] = {"ramiform": Ramiform, "flat blocks": FlatBlocks, "token trie": TokenTrie}


class Scenario(msgspec.Struct, frozen=True):
    """A workload: `fill` is stored first, then `batches` are timed, in caches of `capacity` tokens."""

    name: str
    capacity: int
    fill: Callable[[], Iterator[list[int]]]
    batches: Callable[[], Batches]


def draw_tokens(draw: random.Random, num_tokens: int) -> list[int]:
    return draw.choices(range(VOCAB_SIZE), k=num_tokens)


def fresh(tokens: list[int]) -> list[int]:
    """Integers of the request's own, as they come from a socket: equal ones are not the same objects."""
    return [token + VOCAB_SIZE for token in tokens]


def grow_tree(draw: random.Random, num_nodes: int, mean: int, most: int) -> list[list[int]]:
    """Prefixes, one for each node of a random tree: runs of `mean` tokens, up to `most` in all."""
    prefixes: list[list[int]] = []
    open_: list[list[int]] = [[]]
    while len(prefixes) < num_nodes:
        prefix = draw.choice(open_)
        prefixes.append(prefix + draw_tokens(draw, draw.randrange(mean // 2, 3 * mean // 2)))
        if len(prefixes[-1]) + 3 * mean // 2 <= most:
            open_.append(prefixes[-1])
    return prefixes


def random_tree(num_nodes: int, num_tokens: int, num_requests: int, num_batches: int) -> Scenario:
    """Prompts that follow a random tree and part from it anywhere."""
    draw = random.Random(0)
    mean = num_tokens // num_nodes
    prefixes = grow_tree(draw, num_nodes, mean, 8 * mean)

    def batches() -> Batches:
        for _ in range(num_batches):
            chosen = draw.choices(prefixes, k=num_requests // num_batches)
            yield [fresh(prefix[: draw.randrange(len(prefix))] + draw_tokens(draw, 64)) for prefix in chosen]

    name = f"random tree, {num_nodes:,} nodes, {num_tokens:,} tokens"
    return Scenario(name, num_tokens, lambda: map(fresh, prefixes), batches)


def chats(num_requests: int, num_batches: int, capacity: int) -> Scenario:
    """Turns of many conversations at once: a system prompt of a few, then message and answer in turns."""
    draw = random.Random(1)
    systems = [draw_tokens(draw, draw.randrange(200, 800)) for _ in range(8)]
    open_ = [list(draw.choice(systems)) for _ in range(200)]

    def turn() -> list[int]:
        which = draw.randrange(len(open_))
        if len(open_[which]) > 2500 or draw.random() < 0.1:
            open_[which] = list(draw.choice(systems))
        open_[which] += draw_tokens(draw, draw.randrange(40, 300))
        return fresh(open_[which])

    def batches() -> Batches:
        for _ in range(num_batches):
            yield [turn() for _ in range(num_requests // num_batches)]

    return Scenario(f"chats, {num_requests:,} turns", capacity, lambda: (turn() for _ in range(400)), batches)


def resident(num_nodes: int, num_matched: int, num_requests: int, num_batches: int) -> Scenario:
    """Prompts that follow any path of a large tree, seven nodes or so, and then go on by themselves for a while."""
    draw = random.Random(2)
    mean = num_matched // 7
    # More than that: some go for want of room, and some are one node with what goes on from them.
    prefixes = grow_tree(draw, num_nodes * 5 // 4, mean, 9 * mean)
    paths = [prefix[:num_matched] for prefix in prefixes if len(prefix) >= num_matched]
    paths = paths or [max(prefixes, key=len)]

    def batches() -> Batches:
        for _ in range(num_batches):
            chosen = draw.choices(paths, k=num_requests // num_batches)
            yield [fresh(path + draw_tokens(draw, NUM_NEW)) for path in chosen]

    name = f"{num_nodes:,} nodes, {num_matched:,} of {num_matched + NUM_NEW:,} tokens stored"
    # No room for the unfinished pages: something has to go from the beginning.
    capacity = max(len(prefixes) * mean, 2 * (num_matched + NUM_NEW))
    return Scenario(name, capacity, lambda: map(fresh, prefixes), batches)


def measure(scenario: Scenario, names: list[str]) -> dict[str, float | str]:
    """CPU microseconds per request: the batches' median for each cache."""
    gc.collect()  # the last scenario's caches
    caches = {name: CACHES[name](scenario.capacity) for name in names}
    for tokens in scenario.fill():
        for cache in caches.values():
            cache.serve(tokens)
    gc.disable()  # it would walk one cache's objects on another's account; none of them leaves cycles behind
    ours = caches["ramiform"]
    assert isinstance(ours, Ramiform)
    num_evicted = ours.cache.stats.num_evicted_pages
    times: dict[str, list[float]] = {name: [] for name in names}
    num_hits = dict.fromkeys(names, 0)
    num_tokens = num_requests = 0
    for batch in scenario.batches():
        num_tokens += sum(map(len, batch))
        num_requests += len(batch)
        for name, cache in caches.items():
            start = time.process_time()
            for tokens in batch:
                num_hits[name] += cache.serve(tokens)
            times[name].append((time.process_time() - start) / len(batch) * 1e6)
    row: dict[str, float | str] = {
        "scenario": scenario.name,
        "nodes": ours.cache.tree.num_nodes,
        "tokens/request": num_tokens / num_requests,
    }
    for name in CACHES:
        row[f"{name} µs"] = statistics.median(times[name]) if name in times else "-"
        row[f"{name} hit %"] = 100 * num_hits[name] / num_tokens if name in times else "-"
    row["evicted pages/request"] = (ours.cache.stats.num_evicted_pages - num_evicted) / num_requests
    gc.enable()
    return row


def main(
    tree_nodes: Annotated[int, typer.Option(help="of the random prefix tree")] = 400,
    tree_tokens: Annotated[int, typer.Option(help="of the random prefix tree")] = 1_000_000,
    turns: Annotated[int, typer.Option(help="of the chats' trace")] = 100_000,
    chat_tokens: Annotated[int, typer.Option(help="capacity for the chats")] = 400_000,
    nodes: Annotated[int, typer.Option(help="resident in the largest tree")] = 100_000,
    requests: Annotated[int, typer.Option(help="timed in each other scenario")] = 4_000,
    batches: Annotated[int, typer.Option(help="that take turns, in each scenario")] = 20,
    output: Json = None,
) -> None:
    everybody = list(CACHES)
    paged = everybody[:2]  # a trie node for each token of the larger trees takes gigabytes
    scenarios: list[tuple[Callable[[], Scenario], list[str]]] = [
        (lambda: random_tree(tree_nodes, tree_tokens, requests, batches), everybody),
        (lambda: chats(turns, batches, chat_tokens), everybody),
        *((partial(resident, num, 896, requests, batches), paged) for num in (nodes // 100, nodes // 10, nodes)),
        *((partial(resident, nodes // 100, num, requests, batches), paged) for num in (128, 512, 2048, 8192)),
    ]
    rows = [measure(scenario(), names) for scenario, names in scenarios]
    print(table(rows))
    write_json({"page_size": PAGE_SIZE, "batches": batches, "rows": rows}, output)


if __name__ == "__main__":
    typer.run(main)
