"""Window pages: memory of the layers that attend to a sliding window only.

A model whose layers are of both kinds has two pools. A page of the cache stands for a place in the pool of full layers
and, as long as its tokens may be looked at, for a window page in the other pool. A lease holds the window pages of its
last `window` tokens. Those behind stay with pages of the tree until their room is needed: a prefix can be reused up to
any token before which the whole window is still there. So a page may have lost its window page while its prefix is
still cached, and no node is split for that.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import NamedTuple

from .lease import Lease
from .tiers import Copy, PagePool
from .tree import PrefixMatch, TreeNode

_SLACK = 1  # pages that a lease holds behind its window, since forced text may take a sequence back by some tokens


class WindowSizes(NamedTuple):
    """Sizes of the memory of layers with a window, where it has pages of its own."""

    num_pages: int
    window: int  # tokens that a token attends to, its own included: the longest of the layers' windows
    num_sinks: int = 0  # first tokens of a sequence that it always attends to


class WindowPages:
    """Window pages [0, num_pages) of the cache's pages. Those before places where sequences are likely to go on (ends,
    forks, what a match used) are given up after all others, and of each kind those first that have not been held for
    longest."""

    def __init__(self, sizes: WindowSizes, page_size: int) -> None:
        self.num_pages = sizes.num_pages
        self.copies: list[Copy] = []
        self.num_given_up = 0  # window pages that cached prefixes lost for want of room
        self._window, self._page_size = sizes.window, page_size
        self._num_first = -(-sizes.num_sinks // page_size)  # pages of sinks
        self._pool = PagePool(sizes.num_pages)
        self._of: dict[int, int] = {}  # page -> its window page
        self._holds: dict[int, int] = {}  # page -> number of leases that hold its window page, if any do
        # Pages whose window pages nobody holds, those held last at the end.
        self._weak: OrderedDict[int, None] = OrderedDict()
        self._strong: OrderedDict[int, None] = OrderedDict()

    @property
    def num_available(self) -> int:
        """Window pages that can be taken now: free ones, and those that nobody holds."""
        return self._pool.num_free + len(self._weak) + len(self._strong)

    @property
    def num_held(self) -> int:
        """Window pages that leases hold."""
        return len(self._holds)

    @property
    def most_of_lease(self) -> int:
        """Number of window pages that a lease holds at most, besides those of the step being computed."""
        return self._num_first + _SLACK + 2 + (self._window - 1) // self._page_size

    def start(self, num_tokens: int) -> int:
        """Return the index of the first page that the token after `num_tokens` tokens looks at, sinks aside."""
        return max(0, num_tokens - self._window + 1) // self._page_size

    def reusable(self, found: PrefixMatch) -> PrefixMatch:
        """Return the longest part of a match before whose end the whole window is there."""
        pages, end = _pages(found), found.num_tokens
        while end:
            num_pages, first = -(-end // self._page_size), self.start(end)
            needed = (*range(num_pages - 1, first - 1, -1), *range(min(self._num_first, first)))
            missing = next((index for index in needed if pages[index] not in self._of), None)
            if missing is None:
                break
            end = missing * self._page_size
        return found if end == found.num_tokens else found.first(end, self._page_size)

    def fits(self, found: PrefixMatch, num_new: int) -> bool:
        """Return True if a lease can hold the window of a match, and take `num_new` window pages besides."""
        pages, first = _pages(found), self.start(found.num_tokens)
        held = (*pages[: min(self._num_first, first)], *pages[first:])
        return num_new <= self.num_available - sum(page not in self._holds for page in held)

    def begin(self, lease: Lease, nodes: Sequence[TreeNode], num_cached: int) -> None:
        """Hold the window of a lease that begins with the pages of `nodes`; `num_cached` of its tokens are cached."""
        lease.num_cached = num_cached
        matched = [page for node in nodes for page in node.pages]
        lease.window_start = min(self.start(lease.matched), len(matched))
        self.hold(self._held(lease, matched))

    def hold(self, pages: Sequence[int]) -> None:
        """Hold pages' window pages once more."""
        for page in pages:
            count = self._holds.get(page, 0)
            self._holds[page] = count + 1
            if not count:
                (self._weak if page in self._weak else self._strong).pop(page)

    def let_go(self, pages: Sequence[int], *, is_strong: bool) -> None:
        """Hold pages' window pages once less. Those that nobody holds then stay until their room is needed."""
        for page in pages:
            count = self._holds.pop(page)
            if count > 1:
                self._holds[page] = count - 1
            else:
                (self._strong if is_strong else self._weak)[page] = None

    def attach(self, pages: Sequence[int]) -> None:
        """Give new pages, a lease's own, their window pages, which the caller has made sure of."""
        while self._pool.num_free < len(pages):
            page, _ = (self._weak or self._strong).popitem(last=False)
            self._pool.free([self._of.pop(page)])
            self.num_given_up += 1
        for page, own in zip(pages, self._pool.allocate(len(pages)), strict=True):
            self._of[page] = own
            self._holds[page] = 1

    def copy(self, source: int, target: int, num_tokens: int) -> None:
        """Decide on the copy of the first tokens of a page's window page to another page's."""
        self.copies.append(Copy(self._of[source], self._of[target], num_tokens))

    def slide(self, lease: Lease, num_tokens: int, forks: Collection[int] = ()) -> None:
        """Let go of what a lease with `num_tokens` computed tokens no longer looks at. Others are likely to go on from
        its first `forks` tokens, and from where it left a cached prefix."""
        old, new = lease.window_start, self.start(num_tokens) - _SLACK
        if new <= old:
            return
        lease.window_start = new
        num_matched, num_published = lease.matched // self._page_size, lease.num_published // self._page_size
        windows = [(self.start(fork), -(-fork // self._page_size)) for fork in {lease.num_cached, *forks}]
        for index in range(max(old, self._num_first), new):
            page = lease.pages[index]
            if index < num_published:
                is_strong = index < num_matched or any(first <= index < end for first, end in windows)
                self.let_go([page], is_strong=is_strong)
            else:
                del self._holds[page]
                self._pool.free([self._of.pop(page)])

    def has_lost(self, lease: Lease, num_tokens: int) -> bool:
        """Return True if the token after `num_tokens` tokens looks at window pages that the lease no longer holds."""
        return self.start(num_tokens) < lease.window_start

    def adopt(self, lease: Lease, first: int, pages: Sequence[int]) -> None:
        """Hold the window pages of pages that replace a lease's own from index `first` on; where they have lost
        theirs, they get those of the lease's pages, whose tokens are the same."""
        for index, page in enumerate(pages, first):
            if self._num_first <= index < lease.window_start:
                continue
            own = lease.pages[index]
            del self._holds[own]
            if page in self._of:
                self.hold([page])
            else:
                self._of[page] = self._of.pop(own)
                self._holds[page] = 1

    def end(self, lease: Lease, num_published: int) -> None:
        """Let go of all that a lease holds; its first `num_published` pages are in the tree, others will be freed."""
        for page in lease.pages[num_published:]:
            self._holds.pop(page, None)
        self.let_go(self._held(lease, lease.pages[:num_published]), is_strong=True)

    def forget(self, pages: Sequence[int]) -> None:
        """Free the window pages of pages that are freed."""
        for page in pages:
            assert page not in self._holds
            self._weak.pop(page, None)
            self._strong.pop(page, None)
            if (own := self._of.pop(page, None)) is not None:
                self._pool.free([own])

    def table(self, lease: Lease, num_pages: int) -> list[int]:
        """Return the window page of each of a lease's first `num_pages` pages; those behind the window, which are not
        read, name the window's first one."""
        of, start = self._of, lease.window_start
        own = [of[page] for page in lease.pages[start:num_pages]]
        first = [of[page] for page in lease.pages[: min(self._num_first, start)]]
        return first + own[:1] * (start - len(first)) + own

    def _held(self, lease: Lease, pages: Sequence[int]) -> Sequence[int]:
        """Return those of a lease's first pages whose window pages it holds."""
        start = lease.window_start
        return (*pages[: min(self._num_first, start)], *pages[start:])


def _pages(found: PrefixMatch) -> list[int]:
    """Return the pages of a match, the one of which only the first tokens match included."""
    pages = [page for node in found.nodes for page in node.pages]
    if found.last is not None:
        pages += found.last.pages[: found.num_last_pages + (found.num_boundary_tokens > 0)]
    return pages
