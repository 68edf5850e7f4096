"""Leases: the pages that sequences hold, and the values that `PrefixCache.acquire` takes."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

from .state_slots import LeaseStates
from .tree import TreeNode


class LeaseUser(NamedTuple):
    """Requester of a lease, for the strategies `program` and `priority`."""

    program_id: str | None = None  # None: it belongs to no program
    priority: int = 0


NO_USER = LeaseUser()


class SparePages(NamedTuple):
    """Pages that a new lease has to leave for others."""

    pages: int = 0
    window_pages: int = 0


NO_SPARE_PAGES = SparePages()


@dataclass(eq=False, slots=True)
class Lease:
    """Pages that a sequence holds, from `PrefixCache.acquire` to `release`.

    `pages` is the page table: position p lives in page `pages[p // page_size]`.
    """

    # [0, num_published)    in the tree, pinned through `node`, the deepest; an unfinished page is the lease's own
    # [num_published, end)  the lease's alone
    namespace: str
    user: LeaseUser
    matched: int  # tokens at the start whose KV was cached, counting what the pending copies bring
    pages: list[int]
    node: TreeNode | None
    num_published: int  # tokens
    continues: list[Hashable] = field(default_factory=list)  # owners of soft pins that end where the prefix did
    leaf: TreeNode | None = None  # last inserted; grows as long as it is a leaf and nobody else pins it
    live: bool = True
    states: LeaseStates | None = None  # of a model with recurrent layers
    num_cached: int = 0  # tokens at the start that were cached, also those that could not be reused
    window_start: int = 0  # index of the first page whose window page the lease holds, besides those of sinks

    @property
    def may_grow_leaf(self) -> bool:
        leaf = self.leaf
        if leaf is None or leaf is not self.node:
            return False
        return leaf.ref_count == 1 and not leaf.children and not leaf.soft_pins
