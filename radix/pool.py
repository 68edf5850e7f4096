"""The KV pool's pages as numbers: which are free. Knows nothing of tokens, of the tree, or of what a page holds."""

from __future__ import annotations


class PagePool:
    """Pages [0, num_pages), each either free or taken by exactly one owner."""

    def __init__(self, num_pages: int) -> None:
        assert num_pages > 0
        self.num_pages = num_pages
        self._free = list(range(num_pages - 1, -1, -1))  # a stack: the page given back last is taken first
        self._is_free = [True] * num_pages

    @property
    def num_free(self) -> int:
        return len(self._free)

    def free_pages(self) -> frozenset[int]:
        return frozenset(self._free)

    def take(self) -> int:
        page = self._free.pop()
        self._is_free[page] = False
        return page

    def give_back(self, page: int) -> None:
        assert not self._is_free[page], f"page {page} is given back twice"
        self._is_free[page] = True
        self._free.append(page)
