"""The disk under the prefix cache: saves its new pages between steps, and fetches the prefixes of requests.

It also notes which sequences programs and sessions are likely to continue. A new process reads these ahead, before
their requests come: into free pages only, and while no request's own pages are read.

Everything here runs between steps but what two small pools of threads do: one thread writes, others read and check.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray

from ...radix.cache import PrefixCache
from ...radix.child_index import ParentNode
from ...radix.packed_tokens import pack, unpack
from ...radix.tree import TreeNode, TreeRoot
from ..engine.kv_pool import PAGE_SIZE
from ..scheduler.request import Request
from ..transfer.pages import CachePages
from .page_keys import PAGE_TOKEN_BYTES, PageKeys
from .segment import DiskPage
from .store import PageStore

_SAVE_SECONDS = 0.25  # between two looks at what is new
_PART_BYTES = 16 << 20  # taken from memory, or brought there, between two steps
_MAX_UNWRITTEN_BYTES = 256 << 20  # taken from memory and not yet written; until then new pages wait in the tree
_READ_THREADS = 4
_PARTS_AHEAD = 4  # of a fetch
_FETCHES_AT_ONCE = 4
_HELD_SECONDS = 30.0  # for a request to start whose pages have come: until then they count as held
_REFRESH_SECONDS = 1.0  # between two looks at what another process has written
_NOTE_SECONDS = 5.0  # between two notes of the sequences that are likely to go on
_MAX_NOTED = 64  # sequences
_MAX_OWNERS = 1024  # those whose requests ended last, of which the likeliest to return are noted


@dataclass(eq=False)
class DiskFetch:
    """Pages of a request's prompt that come from the disk. `keys` are those that are to come; the first of them is page
    `first` of `tokens`, whole pages."""

    request: Request | None  # None: they are read ahead
    waiter: Future[None]
    namespace: str
    tokens: list[int]
    first: int
    keys: list[bytes]
    packed: bytes  # tokens of the pages of `keys`
    parts: deque[Future[NDArray[np.uint8]]] = field(default_factory=deque)  # being read, in order
    num_asked: int = 0  # pages of `keys` that are read or have come
    followers: list[tuple[Request, Future[None]]] = field(default_factory=list)  # wait for a part of its pages

    @property
    def is_ahead(self) -> bool:
        """True while no request wants any of the pages."""
        return self.request is None and self._has_left

    @property
    def num_to_come(self) -> int:
        return len(self.tokens) // PAGE_SIZE - self.first

    @property
    def is_wanted(self) -> bool:
        return self.request is None or not (self.waiter.cancelled() and self._has_left)

    @property
    def _has_left(self) -> bool:
        return all(waiter.cancelled() for _, waiter in self.followers)


class DiskTier:
    """The disk tier of one core."""

    def __init__(
        self, store: PageStore, keys: PageKeys, cache: PrefixCache, pages: CachePages, clock: Callable[[], float]
    ) -> None:
        """`clock` gives seconds."""
        assert cache.states is None
        assert cache.windows is None
        self.store = store
        self.num_hit_tokens = 0  # of requests, that came from the disk
        self.num_ahead_tokens = 0  # that were read before a request asked for them
        self._keys, self._cache, self._pages, self._clock = keys, cache, pages, clock
        self._part = max(1, _PART_BYTES // pages.shape.page_bytes)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="disk-write")
        self._readers = ThreadPoolExecutor(_READ_THREADS, thread_name_prefix="disk-read")
        self._writes: deque[tuple[Future[None], int]] = deque()  # with their bytes
        self._unwritten: set[bytes] = set()  # keys of pages that are being written
        self._fetches: list[DiskFetch] = []  # those behind wait for room
        self._fetched: list[tuple[Request, int, float]] = []  # requests with pages that came for them, and when
        self._next_save = self._next_refresh = self._next_note = 0.0
        self._noted: list[tuple[TreeNode, int]] = []  # sequences and their tokens, as of the last note
        self._is_note_due = False  # pages have been saved since
        # Namespaces and tokens of sequences that are to be read ahead
        self._ahead: deque[tuple[str, bytes]] = deque(self.store.read_sequences() if self.store.is_writer else ())
        self._ahead_keys: set[bytes] = set()  # of pages that were, and that no request has used
        self._follow_tree()

    @property
    def is_fetching(self) -> bool:
        return bool(self._fetches or self._ahead)

    @property
    def seconds_to_save(self) -> float | None:
        """Seconds until `save` has something to do; None: nothing is new."""
        due = [self._next_save] if self._unsaved else [self._next_note] if self._is_note_due else []
        return max(0.0, due[0] - self._clock()) if due else None

    @property
    def _unsaved(self) -> dict[TreeNode, None]:
        """Nodes with new pages; empty where nothing is written."""
        return self._cache.tree.unsaved or {}

    def _follow_tree(self) -> None:
        """Take all pages of the tree for new, if this process writes."""
        tree = self._cache.tree
        for node in tree.nodes():
            node.saved_keys = []
        writes = self.store.is_writer and not self.store.has_failed
        tree.unsaved = dict.fromkeys(tree.nodes()) if writes else None

    def clear(self) -> None:
        """Remove every page from the disk; fetches end."""
        self._ahead.clear()
        self._noted = []
        for fetch in list(self._fetches):
            self._end(fetch, goes_on=False)
        self._writer.submit(self.store.clear).result()
        self._follow_tree()

    def close(self) -> None:
        """Save what is new, end the threads, and let another process write."""
        while self._unsaved and not self.store.has_failed:
            self._next_save = 0.0
            self.save()
            self._writer.submit(lambda: None).result()
        if self._is_note_due:
            self._note_sequences()
        for pool in (self._writer, self._readers):
            pool.shutdown()
        self.store.close()

    # Saving

    def save(self) -> None:
        """Give the pages that have been published since the last call to the thread that writes."""
        if self._cache.tree.wrong_keys:
            wrong, self._cache.tree.wrong_keys = self._cache.tree.wrong_keys, []
            self._writer.submit(self.store.strike, wrong)
        now = self._clock()
        if self._is_note_due and now >= self._next_note:
            self._note_sequences()
        if now < self._next_save or not self._unsaved:
            return
        self._next_save = now + _SAVE_SECONDS
        if self.store.has_failed:
            self._follow_tree()
            return
        while self._writes and self._writes[0][0].done():
            self._writes.popleft()[0].result()
        if sum(num_bytes for _, num_bytes in self._writes) > _MAX_UNWRITTEN_BYTES:
            return
        found = self._take_unsaved(self._part)
        self._is_note_due = True
        if len(found) == self._part:
            self._next_save = now  # the rest after the next step
        if found:
            self._write(found)

    def _take_unsaved(self, most: int) -> list[tuple[bytes, bytes, int]]:
        """Return key, tokens and memory page of up to `most` pages to be written, and note their keys on the nodes."""
        found: list[tuple[bytes, bytes, int]] = []
        for node in list(self._unsaved):
            path = [node]
            while isinstance(above := path[-1].parent, TreeNode) and above in self._unsaved:
                path.append(above)
            self._note_use(path[-1])
            for part in reversed(path):
                if part in self._unsaved and not self._take_pages(part, most, found):
                    return found
        return found

    def _take_pages(self, node: TreeNode, most: int, found: list[tuple[bytes, bytes, int]]) -> bool:
        """Add the node's new pages to `found`, until that has `most`. Returns False if some are left."""
        first = len(node.saved_keys)
        for key in self._keys.following(self._key_before(node), node.run[first * PAGE_TOKEN_BYTES :]):
            at = len(node.saved_keys)
            if key not in self.store and key not in self._unwritten:
                if len(found) == most:
                    return False
                found.append(
                    (key, bytes(node.run[at * PAGE_TOKEN_BYTES : (at + 1) * PAGE_TOKEN_BYTES]), node.pages[at])
                )
                self._unwritten.add(key)
            node.saved_keys.append(key)
        del self._unsaved[node]
        return True

    def _key_before(self, node: TreeNode) -> bytes:
        """Return the key before the node's first page that is not saved. All pages above the node are saved."""
        if node.saved_keys:
            return node.saved_keys[-1]
        above = node.parent
        if isinstance(above, TreeNode):
            return above.saved_keys[-1]
        assert isinstance(above, TreeRoot)
        return self._keys.root(above.namespace)

    def _note_use(self, node: ParentNode[TreeNode]) -> None:
        """Note that what the new pages of a node continue is in use: some pages tell the segments."""
        while isinstance(node, TreeNode):
            self.store.note_use([*node.saved_keys[::64], *node.saved_keys[-1:]])
            node = node.parent

    def _write(self, found: list[tuple[bytes, bytes, int]]) -> None:
        keys, tokens, pages = zip(*found, strict=True)
        content_PB = self._pages.read_places(pages).numpy()
        taken = [DiskPage(*page) for page in zip(keys, tokens, content_PB, strict=True)]
        written = self._writer.submit(self.store.append, taken)
        written.add_done_callback(lambda _: self._unwritten.difference_update(keys))
        self._writes.append((written, content_PB.nbytes))

    def _note_sequences(self) -> None:
        """Have the disk note the sequences that programs and sessions are likely to continue, the likeliest first."""
        cache, self._is_note_due = self._cache, False
        self._next_note = self._clock() + _NOTE_SECONDS
        likely: dict[TreeNode, float] = {}
        for owner in cache.tiers.soft_pins.owners()[-_MAX_OWNERS:]:
            wait = cache.forecast.wait(owner)
            rate = cache.forecast.rate(wait.group, wait.since)
            for node in cache.tiers.soft_pins.nodes_of(owner):
                likely[node] = max(rate, likely.get(node, 0.0))
        sequences: list[tuple[str, bytes]] = []
        noted: list[tuple[TreeNode, int]] = []
        seen: set[TreeNode] = set()
        room = cache.num_pages
        for node in sorted(likely, key=lambda each: (-likely[each], -each.last_used)):
            branch: ParentNode[TreeNode] = node
            path: list[TreeNode] = []
            while isinstance(branch, TreeNode):
                path.append(branch)
                branch = branch.parent
            room -= sum(len(part.pages) for part in path if part not in seen)
            if room < 0 or len(noted) == _MAX_NOTED:
                break
            if node not in seen:
                assert isinstance(branch, TreeRoot)
                sequences.append((branch.namespace, b"".join(part.run for part in reversed(path))))
                noted.append((node, sum(part.num_tokens for part in path)))
            seen.update(path)
        if noted != self._noted:
            self._noted = noted
            self._writer.submit(self.store.note_sequences, sequences)

    # Fetching

    def fetch(self, request: Request) -> Future[None] | None:
        """Begin to fetch what the disk has of the prompt of a request that has just arrived. Returns None for nothing.

        The future ends when the pages are cached, or will not come.
        """
        waiter: Future[None] = Future()
        return waiter if self._begin(request, waiter) else None

    def advance(self) -> None:
        """Cache the pages that have been read, up to _PART_BYTES of them, and read on. Never waits."""
        self._fetched = [
            each for each in self._fetched if each[0].num_cached is None and self._clock() - each[2] < _HELD_SECONDS
        ]
        for fetch in list(self._fetches):
            if not fetch.is_wanted or (fetch.is_ahead and fetch.num_to_come > self._cache.num_free):
                self._end(fetch)
        while self._ahead and not self._fetches:
            self._read_ahead(*self._ahead.popleft())
        for fetch in islice(self._allowed(), _FETCHES_AT_ONCE):
            self._read_on(fetch)
        ready = next((fetch for fetch in self._fetches if fetch.parts and fetch.parts[0].done()), None)
        if ready is not None:
            self._take(ready)

    def _begin(self, request: Request, waiter: Future[None]) -> bool:
        """Begin to fetch for a request, or let it wait for another one's fetch. Returns False if there is nothing."""
        if not self.store.is_writer and self._clock() >= self._next_refresh:
            self._next_refresh = self._clock() + _REFRESH_SECONDS
            self.store.refresh()
            if self.store.is_writer:
                self._follow_tree()
        namespace = request.namespace
        tokens = request.cache_tokens[: request.reuse_limit // PAGE_SIZE * PAGE_SIZE]
        cached, keys = self._find(tokens, namespace)
        if self._ahead_keys:
            used = self._ahead_keys.intersection(keys[:cached])
            self.num_hit_tokens += len(used) * PAGE_SIZE
            self._ahead_keys -= used
        if len(keys) == cached:
            return False
        for running in self._fetches:
            if keys[cached] in running.keys:
                running.followers.append((request, waiter))
                return True
        self._fetches.append(self._make_fetch(request, waiter, namespace, tokens, cached, keys))
        return True

    def _read_ahead(self, namespace: str, packed: bytes) -> None:
        """Begin to read a sequence that a program or session may continue, if there are free pages for it."""
        tokens = unpack(packed[: len(packed) // PAGE_TOKEN_BYTES * PAGE_TOKEN_BYTES])
        cached, keys = self._find(tokens, namespace)
        if 0 < len(keys) - cached <= self._cache.num_free:
            self._fetches.append(self._make_fetch(None, Future(), namespace, tokens, cached, keys))

    def _find(self, tokens: list[int], namespace: str) -> tuple[int, list[bytes]]:
        """Return how many whole pages of `tokens` are cached, and the keys of these and of those that the disk has
        after them."""
        cached = self._pages.num_cached(tokens, namespace)
        if (cached * PAGE_SIZE == len(tokens) and not self._ahead_keys) or not self.store.num_pages:
            return 0, []
        keys: list[bytes] = []
        for at, key in enumerate(self._keys.following(self._keys.root(namespace), pack(tokens))):
            if at >= cached and key not in self.store:
                break
            keys.append(key)
        return cached, keys

    def _make_fetch(
        self,
        request: Request | None,
        waiter: Future[None],
        namespace: str,
        tokens: list[int],
        cached: int,
        keys: list[bytes],
    ) -> DiskFetch:
        tokens = tokens[: len(keys) * PAGE_SIZE]
        packed = pack(tokens[cached * PAGE_SIZE :])
        return DiskFetch(request, waiter, namespace, tokens, cached, keys[cached:], packed)

    def _allowed(self) -> Iterable[DiskFetch]:
        """Yield the fetches that may read: those whose pages memory has room for beside others that have come, and
        whose requests have not started."""
        room = self._cache.num_pages // 2 - sum(num_pages for _, num_pages, _ in self._fetched)
        asked = [fetch for fetch in self._fetches if not fetch.is_ahead]
        for at, fetch in enumerate(asked or self._fetches):
            num_pages = len(fetch.tokens) // PAGE_SIZE
            if num_pages > room and (at or self._fetched):
                return
            room -= num_pages
            yield fetch

    def _read_on(self, fetch: DiskFetch) -> None:
        while len(fetch.parts) < (1 if fetch.is_ahead else _PARTS_AHEAD) and fetch.num_asked < len(fetch.keys):
            part = slice(fetch.num_asked, min(len(fetch.keys), fetch.num_asked + self._part))
            tokens = fetch.packed[part.start * PAGE_TOKEN_BYTES : part.stop * PAGE_TOKEN_BYTES]
            fetch.parts.append(self._readers.submit(self.store.read, fetch.keys[part], tokens))
            fetch.num_asked = part.stop

    def _take(self, fetch: DiskFetch) -> None:
        """Cache the pages of a part that has been read."""
        pages_PB = fetch.parts.popleft().result()
        num_sought = min(self._part, fetch.num_to_come)
        until = fetch.first + len(pages_PB)
        request = fetch.request
        pin = None if request is None or fetch.waiter.cancelled() else (request.rid, request.rank)
        is_cached = 0 < len(pages_PB) <= (self._cache.num_free if fetch.is_ahead else self._cache.num_pages)
        is_cached = is_cached and self._pages.write(
            fetch.tokens[: until * PAGE_SIZE], fetch.namespace, fetch.first, torch.from_numpy(pages_PB), pin
        )
        if is_cached:
            if request is None:
                self.num_ahead_tokens += len(pages_PB) * PAGE_SIZE
                at = len(fetch.keys) - fetch.num_to_come
                self._ahead_keys.update(fetch.keys[at : at + len(pages_PB)])
            else:
                self.num_hit_tokens += len(pages_PB) * PAGE_SIZE
                self._ahead_keys.difference_update(fetch.keys)
            fetch.first = until
        if not is_cached or len(pages_PB) < num_sought or until * PAGE_SIZE == len(fetch.tokens):
            self._end(fetch)

    def _end(self, fetch: DiskFetch, *, goes_on: bool = True) -> None:
        """Let the requests of a fetch go on; those that waited for a part of it fetch the rest."""
        self._fetches.remove(fetch)
        if fetch.request is not None:
            self._fetched.append((fetch.request, fetch.first, self._clock()))
        if not fetch.waiter.cancelled():
            fetch.waiter.set_result(None)
        for request, waiter in fetch.followers:
            if not waiter.cancelled() and not (goes_on and self._begin(request, waiter)):
                waiter.set_result(None)
