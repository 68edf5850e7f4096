"""One sequence's hold on its pages. Knows nodes and page numbers; decides nothing."""

from __future__ import annotations

from dataclasses import dataclass

from .tree import TreeNode


@dataclass(eq=False, slots=True)
class Lease:
    """From `acquire` to `release`. `pages` is the page table: position p lives in `pages[p // page_size]`."""

    # [0, num_published)    in the tree, held by us through `node`, the deepest; an unfinished page is our own
    # [num_published, end)  ours alone
    namespace: str
    family: str | None
    priority: int
    matched: int  # tokens at the start whose KV was there, or is once the copies are made
    pages: list[int]
    node: TreeNode | None
    num_published: int  # tokens
    leaf: TreeNode | None = None  # what we last put into the tree; as long as it is a leaf and only ours, it grows
    live: bool = True

    @property
    def may_grow_leaf(self) -> bool:
        leaf = self.leaf
        return leaf is not None and leaf is self.node and leaf.holds == 1 and not leaf.children and not leaf.claims
