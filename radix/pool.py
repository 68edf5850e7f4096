"""The pages of one tier as numbers: which are free. Knows nothing of tokens, of the tree, or of what a page holds."""

from __future__ import annotations

from collections.abc import Sequence


class PagePool:
    """Pages [first, first + num_pages), each either free or taken by exactly one owner."""

    def __init__(self, num_pages: int, first: int = 0) -> None:
        self.num_pages = num_pages
        self._free = list(range(first + num_pages - 1, first - 1, -1))  # a stack: what is given back last goes first
        self._taken: set[int] = set()

    @property
    def num_free(self) -> int:
        return len(self._free)

    def free_pages(self) -> frozenset[int]:
        return frozenset(self._free)

    def take(self, num_pages: int) -> list[int]:
        assert 0 <= num_pages <= len(self._free)
        at = len(self._free) - num_pages
        pages = self._free[at:]
        del self._free[at:]
        self._taken.update(pages)
        pages.reverse()
        return pages

    def give_back(self, pages: Sequence[int]) -> None:
        num_left = len(self._taken) - len(pages)
        self._taken.difference_update(pages)
        assert len(self._taken) == num_left, f"of the pages {list(pages)} some are given back twice"
        self._free.extend(pages)
