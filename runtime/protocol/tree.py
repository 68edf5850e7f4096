"""Messages about the prefix cache's radix tree, for viewers: what the core answers, and JSON of the page's routes."""

from __future__ import annotations

from hashlib import blake2b
from typing import Literal

import msgspec

NodeState = Literal["leased", "pinned", "cached", "host"]
MAX_TREE_NODES = 10_000  # of one view
MAX_CONTENT_TOKENS = 2048  # of one node


def label_of(name: str) -> str:
    """Return a short label that tells names of programs and namespaces apart, and tells nothing of them."""
    return name and blake2b(name.encode(), digest_size=4).hexdigest()


class GetTree(msgspec.Struct, frozen=True, kw_only=True, tag="get_tree"):
    """Request the tree below node `root`, or of all namespaces. Answered by `CoreReply` with a `TreeMessage`.

    With `watch`, a number of the sender's, the first answer is full and the following ones say what changed since.
    """

    call: int
    watch: int | None = None
    root: int | None = None
    limit: int = 2000


class GetTreeNode(msgspec.Struct, frozen=True, kw_only=True, tag="get_tree_node"):
    """Request the tokens of node `node`. Answered by `CoreReply` with a `NodeContent`."""

    call: int
    node: int


class TreeNodeView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node as viewers see it. The root of a namespace is a node without tokens, whose `parent` is null."""

    id: int
    parent: int | None
    tokens: int
    state: NodeState
    program: str | None  # of its only user: `label_of` the name that its frontend gave it, or of a session's id
    hits: int
    used: float  # seconds since its last use; 0 while in use
    hidden: tuple[int, int]  # nodes and tokens below it that are not shown
    namespace: str | None = None  # of a namespace's root: a short opaque label, "" for the default one


class TreeTotals(msgspec.Struct, frozen=True):
    """Sizes of the whole tree."""

    nodes: int
    tokens: int
    device_pages: int
    host_pages: int
    leased_pages: int


class TreeEvents(msgspec.Struct, frozen=True):
    """Counts of tokens since the last message to a viewer; evicted and demoted ones are whole pages."""

    hit_tokens: int = 0
    computed_tokens: int = 0
    evicted_tokens: int = 0
    demoted_tokens: int = 0


class TreeMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The tree, or what changed of it. A node's parent is sent before it. `removed` nodes are no longer shown."""

    version: int
    full: bool
    page_size: int
    totals: TreeTotals
    nodes: list[TreeNodeView]
    removed: list[int]
    events: TreeEvents


class NodeContent(msgspec.Struct, frozen=True, kw_only=True):
    """A node's tokens: `ids` are the first MAX_CONTENT_TOKENS of `tokens`; `depth_tokens` come before them.

    `namespace` is the request's own, not a label: it is for the frontend, which knows whose it is.
    """

    id: int
    namespace: str
    tokens: int
    depth_tokens: int
    ids: list[int]
    program: str | None
    hits: int
    used: float
    state: NodeState
