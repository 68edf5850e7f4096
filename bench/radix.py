"""What the prefix cache costs: microseconds of CPU for a request's match, insert and eviction, beside two baselines.

    python -P bench/radix.py [--size 1.0] [--repeat 5] [--json FILE]

Three caches see the same requests in turn, in one process. `ours` is `PrefixCache` from `acquire` to `release`, exact
to the token. `blocks` hashes chains of whole pages into one dictionary with an LRU order, as block caches do: it shares
whole pages only. `trie` has a node for every token. The baselines keep no pins and no copies, so they do less.
"""

from __future__ import annotations

import gc
import json
import math
import random
import statistics
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Protocol

import typer

from ramify.bench.report import table
from ramify.radix.cache import PrefixCache

PAGE = 16
Tokens = list[int]


class Cache(Protocol):
    def serve(self, tokens: Tokens) -> int:
        """Match the prompt, keep all of it, evict what does not fit. Returns how many tokens were there."""


class Ours:
    def __init__(self, num_pages: int) -> None:
        self._cache = PrefixCache(num_pages, PAGE)

    @property
    def num_resident(self) -> int:
        return self._cache.tree.num_nodes

    def serve(self, tokens: Tokens) -> int:
        lease = self._cache.acquire(tokens, limit=len(tokens) - 1, num_tokens=len(tokens))
        assert lease is not None
        self._cache.take_copies()
        self._cache.release(lease, tokens)
        return lease.matched


class Blocks:
    """A page is found by the hash of its tokens and of the page before it."""

    def __init__(self, num_pages: int) -> None:
        self._num_pages = num_pages
        self._pages: OrderedDict[int, None] = OrderedDict()

    @property
    def num_resident(self) -> int:
        return len(self._pages)

    def serve(self, tokens: Tokens) -> int:
        chain, hashes = 0, []
        for start in range(0, len(tokens) - len(tokens) % PAGE, PAGE):
            chain = hash((chain, *tokens[start : start + PAGE]))
            hashes.append(chain)
        num_matched = next((i for i, name in enumerate(hashes) if name not in self._pages), len(hashes))
        for name in reversed(hashes):  # a prefix outlives what follows it
            self._pages[name] = None
            self._pages.move_to_end(name)
        while len(self._pages) > self._num_pages:
            self._pages.popitem(last=False)
        return num_matched * PAGE


class Trie:
    """A dictionary for every token; the least recently used leaf is found by looking at all leaves' ages in order."""

    def __init__(self, num_pages: int) -> None:
        self._num_tokens = num_pages * PAGE
        self._root: dict[int, Any] = {}
        self._leaves: OrderedDict[int, tuple[list[dict[int, Any]], Tokens]] = OrderedDict()
        self._num_kept = 0

    @property
    def num_resident(self) -> int:
        return self._num_kept

    def serve(self, tokens: Tokens) -> int:
        path, num_matched = [self._root], 0
        for token in tokens:
            child = path[-1].get(token)
            if child is None:
                child = path[-1][token] = {}
                self._num_kept += 1
            elif num_matched == len(path) - 1:
                num_matched += 1
            path.append(child)
        self._leaves[id(path[-1])] = path, tokens
        self._leaves.move_to_end(id(path[-1]))
        while self._num_kept > self._num_tokens and len(self._leaves) > 1:
            _, (old, spelled) = self._leaves.popitem(last=False)
            for depth in range(len(spelled), 0, -1):
                if old[depth]:
                    break
                if old[depth - 1].pop(spelled[depth - 1], None) is not None:
                    self._num_kept -= 1
        return num_matched


CACHES: dict[str, Callable[[int], Any]] = {"ours": Ours, "blocks": Blocks, "trie": Trie}


# Traces: what is served untimed first, then what is timed


def random_tree(draw: random.Random, num_nodes: int, num_tokens: int) -> Iterator[Tokens]:
    """Paths of a random tree, visited at random: many, of all depths."""
    paths: list[Tokens] = [[]]
    for _ in range(num_nodes):
        paths.append(draw.choice(paths) + draw.choices(range(50_000), k=num_tokens // num_nodes))
    while True:
        yield draw.choice(paths[1:]) + draw.choices(range(50_000), k=8)


def chats(draw: random.Random, num_systems: int = 20) -> Iterator[Tokens]:
    """Turns of many conversations in random order, each the history and some more."""
    systems = [draw.choices(range(50_000), k=256) for _ in range(num_systems)]
    alive: list[Tokens] = []
    while True:
        if len(alive) < 400:
            alive.append(draw.choice(systems).copy())
        at = draw.randrange(len(alive))
        alive[at] += draw.choices(range(50_000), k=draw.randrange(40, 160))
        yield alive[at].copy()
        if len(alive[at]) > 2000:
            alive.pop(at)


def prompts(draw: random.Random, length: int, num_shared: int) -> Iterator[Tokens]:
    """New prompts that share their beginning with one that came before, so that there is something to match."""
    heads = [draw.choices(range(50_000), k=num_shared) for _ in range(50)]
    while True:
        yield draw.choice(heads) + draw.choices(range(50_000), k=length - num_shared)


def cost(caches: Sequence[Cache], trace: Iterator[Tokens], num_warm: int, num_timed: int) -> list[float]:
    """Microseconds of CPU a request, one figure for each cache; they take turns at every request."""
    for _ in range(num_warm):
        tokens = next(trace)
        for cache in caches:
            cache.serve(tokens.copy())
    gc.collect()
    gc.disable()  # or the smallest cache pays for the largest one's garbage
    seconds = [0.0] * len(caches)
    for _ in range(num_timed):
        tokens = next(trace)
        for place, cache in enumerate(caches):
            own = tokens.copy()
            began = time.process_time_ns()
            cache.serve(own)
            seconds[place] += time.process_time_ns() - began
    gc.enable()
    return [each / num_timed / 1e3 for each in seconds]


def measure(
    name: str,
    trace: Callable[[random.Random], Iterator[Tokens]],
    num_pages: int,
    warm: int,
    timed: int,
    repeat: int,
    names: Sequence[str] = tuple(CACHES),
) -> dict[str, Any]:
    """A row of medians; of a cache that is not among `names`, not-a-number."""
    runs, resident = [], 0
    for seed in range(repeat):
        caches = [CACHES[each](num_pages) for each in names]
        runs.append(cost(caches, trace(random.Random(seed)), warm, timed))
        resident = caches[0].num_resident
    us = dict.fromkeys(CACHES, math.nan)
    us |= {each: statistics.median(column) for each, column in zip(names, zip(*runs, strict=True), strict=True)}
    row: dict[str, Any] = {"requests": name, "nodes": resident} | {f"{each} us": us[each] for each in CACHES}
    return row | {f"{each} / ours": us[each] / us["ours"] for each in CACHES if each != "ours"}


def main(
    size: Annotated[float, typer.Option(help="of the traces and the trees")] = 1.0,
    repeat: Annotated[int, typer.Option(help="fresh caches and traces of every kind")] = 3,
    output: Annotated[Path | None, typer.Option("--json", help="write the figures here")] = None,
) -> None:
    def num(count: int) -> int:
        return max(4, round(count * size))

    rows = [
        measure(
            "random tree, 400 nodes, 1M tokens",
            lambda draw: random_tree(draw, num(400), num(1_000_000)),
            num(40_000),
            num(300),
            num(300),
            repeat,
        ),
        measure("chats, evicting", chats, num(20_000), num(5_000), num(2_000), repeat),
    ]
    for nodes in (1_000, 10_000, 100_000):
        # Each prompt of 1,024 tokens, half of it shared, leaves a node. The trie would need 12 GB.
        rows.append(
            measure(
                f"1k prompts, {num(nodes):,} resident",
                lambda draw: prompts(draw, 1024, 512),
                num(nodes) * 32 + 10_000,
                num(nodes),
                num(1_000),
                repeat,
                names=("ours", "blocks"),
            )
        )
    for length in (128, 512, 2048, 8192):
        rows.append(
            measure(
                f"{length} tokens, half matched",
                lambda draw, length=length: prompts(draw, length, length // 2),
                num(40_000),
                num(500),
                num(200),
                repeat,
            )
        )
    print(table(rows))
    if output is not None:
        output.write_text(json.dumps(rows))


if __name__ == "__main__":
    typer.run(main)
