"""The radix tree of cached prefixes: nodes are runs of whole pages. Knows pins; knows no policy and no pool.

A node's path from its root spells a prefix whose KV its pages hold. Nodes begin and end at page boundaries; only a
leaf's last page may be unfinished. Siblings may therefore share their first tokens, fewer than a page: sequences that
part inside a page have a page each, and a third one that follows either for a while copies the part it shares (see
`Match.boundary`). Paths begin on the device and may end on the host, never the other way round.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

from .child_index import ParentNode
from .packed_tokens import TOKEN_BYTES, common_prefix_length, pack

FIRST_PACKED_TOKENS = 128  # tokens that a match looks at, doubled as long as they agree


class TreeRoot(ParentNode["TreeNode"]):
    __slots__ = ("namespace",)

    def __init__(self, namespace: str) -> None:
        super().__init__()
        self.namespace = namespace


class TreeNode(ParentNode["TreeNode"]):
    """A run of pages of a cached prefix, all on one tier, and what the strategies go by."""

    __slots__ = (
        "attached",
        "claims",
        "family",
        "hashes",
        "holds",
        "key",
        "last_used",
        "num_hits",
        "on_host",
        "pages",
        "parent",
        "priority",
        "queued_as",
        "run",
        "ticket",
    )

    def __init__(
        self, key: bytes, run: bytearray, pages: list[int], parent: ParentNode[TreeNode], on_host: bool
    ) -> None:
        super().__init__()
        self.key = key  # the tokens of the first page, packed
        self.run = run  # all tokens, packed
        self.pages = pages
        self.parent = parent
        self.on_host = on_host
        self.attached = True  # False once removed from the tree
        self.holds = 0  # leases whose deepest node this is, and children that are held
        # Of those who used it
        self.last_used = 0  # the cache's clock
        self.num_hits = 0
        self.priority = 0  # the highest
        self.family: str | None = None  # the only one; None: several, or none
        self.claims: dict[Hashable, int] | None = None  # claimants of the prefix that ends here, with their ranks
        # The eviction heap's and the events' notes
        self.ticket: int | None = None
        self.queued_as: tuple[int, ...] = ()
        self.hashes: list[int] = []

    @property
    def num_tokens(self) -> int:
        return len(self.run) // TOKEN_BYTES

    @property
    def evictable(self) -> bool:
        """Whether its last page can leave its tier."""
        if self.holds or not self.attached:
            return False
        return not self.children if self.on_host else not self.num_device_children

    def note_use(self, family: str | None, priority: int) -> None:
        if family != self.family:
            self.family = None
        if priority > self.priority:
            self.priority = priority


class PrefixMatch(NamedTuple):
    """The longest cached prefix: whole nodes, then whole pages of one more, then the first tokens of a page."""

    nodes: list[TreeNode]
    last: TreeNode | None  # where the prefix ends inside a node
    num_last_pages: int  # of `last`, matched whole
    num_boundary_tokens: int  # matched of the page after them, less than a page
    num_tokens: int  # all of it

    @property
    def boundary(self) -> int | None:
        """The page of which only the first tokens match."""
        if self.last is None or not self.num_boundary_tokens:
            return None
        return self.last.pages[self.num_last_pages]

    def whole_pages(self) -> PrefixMatch:
        return self._replace(num_boundary_tokens=0, num_tokens=self.num_tokens - self.num_boundary_tokens)


class RadixTree:
    """Prefixes by namespace. Who holds a node holds its way to the root."""

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.num_nodes = 0
        self.num_device_pages = 0
        self.num_host_pages = 0
        self.num_held_pages = 0  # on the device
        self._page_bytes = page_size * TOKEN_BYTES
        self._roots: dict[str, TreeRoot] = {}

    def roots(self) -> list[TreeRoot]:
        return list(self._roots.values())

    def nodes(self) -> Iterator[TreeNode]:
        """All nodes, parents before their children."""
        stack: list[ParentNode[TreeNode]] = list(self._roots.values())
        while stack:
            children = stack.pop().children.values()
            yield from children
            stack.extend(children)

    def root(self, namespace: str) -> TreeRoot:
        """The root of a namespace; it exists as long as something hangs from it."""
        return self._roots.get(namespace) or TreeRoot(namespace)

    def match(self, tokens: Sequence[int], namespace: str, limit: int) -> PrefixMatch:
        """The longest cached prefix of `tokens[:limit]`. Costs one look-up per node passed and a comparison of what
        is matched, however much is cached beside it."""
        page_bytes = self._page_bytes
        branch: ParentNode[TreeNode] = self.root(namespace)
        nodes: list[TreeNode] = []
        packed = pack(tokens[: min(FIRST_PACKED_TOKENS, limit)])  # as far as we looked
        end = limit * TOKEN_BYTES
        at = 0  # bytes of `packed` that are matched
        while True:
            while len(packed) - at < page_bytes and len(packed) < end:
                packed += _pack_next(tokens, packed, limit)
            first = packed[at : at + page_bytes]
            child = branch.children.get(first)
            if child is None or len(first) < page_bytes:
                last, num_shared = branch.nearest(first) if first else (None, 0)
                return PrefixMatch(nodes, last, 0, num_shared, at // TOKEN_BYTES + num_shared)
            run = child.run
            stop = at + len(run)
            if stop > end:
                stop = end
            while (agrees := run.startswith(packed[at:stop])) and len(packed) < stop:
                packed += _pack_next(tokens, packed, limit)
            if not agrees or stop - at < len(run) or len(run) % page_bytes:
                num_agreed = common_prefix_length(packed[at:stop], run)
                num_pages, num_more = divmod(num_agreed, self.page_size)
                return PrefixMatch(nodes, child, num_pages, num_more, at // TOKEN_BYTES + num_agreed)
            nodes.append(child)
            branch = child
            at = stop

    def covered(self, branch: ParentNode[TreeNode], key: bytes) -> list[TreeNode]:
        """Unpinned leaves next to `key` whose own keys are proper prefixes of it: nothing is lost without them."""
        found = []
        before = branch.before(key)
        while before is not None and key.startswith(before):
            node = branch.children[before]
            if node.evictable:
                found.append(node)
            before = branch.before(before)
        return found

    def superseded(self, node: TreeNode) -> bool:
        """Whether a sibling's key goes on where the node's ends. Sorted, such a sibling comes next."""
        if len(node.key) == self._page_bytes:
            return False
        following = node.parent.after(node.key)
        return following is not None and following.startswith(node.key)

    def insert(self, branch: ParentNode[TreeNode], run: bytes, pages: list[int]) -> TreeNode:
        """A new leaf of device pages below `branch`."""
        assert len(pages) == -(-len(run) // self._page_bytes) > 0
        if isinstance(branch, TreeRoot):
            self._roots[branch.namespace] = branch
        node = TreeNode(run[: self._page_bytes], bytearray(run), pages, branch, on_host=False)
        branch.attach(node)
        self.num_nodes += 1
        self.num_device_pages += len(pages)
        return node

    def grow(self, leaf: TreeNode, run: bytes, pages: list[int]) -> None:
        """The leaf goes on with `run`, which fills its unfinished page first, if it has one, and then `pages`."""
        assert leaf.attached
        assert leaf.holds
        assert not leaf.children
        if len(leaf.key) < self._page_bytes:
            leaf.parent.detach(leaf)
            leaf.key = leaf.key + run[: self._page_bytes - len(leaf.key)]
            leaf.parent.attach(leaf)
        leaf.run += run
        leaf.pages += pages
        self.num_device_pages += len(pages)
        self.num_held_pages += len(pages)
        assert len(leaf.pages) == -(-len(leaf.run) // self._page_bytes)

    def split(self, node: TreeNode, num_pages: int) -> TreeNode:
        """Put the node's first `num_pages` pages into a node of their own, above it, which is returned.

        The node itself stays the deeper part, so whoever holds it holds what it held. The new node inherits what is
        known of its users, but claims are of the prefix that ends with the deeper part.
        """
        assert 0 < num_pages < len(node.pages)
        at = num_pages * self._page_bytes
        upper = TreeNode(node.key, node.run[:at], node.pages[:num_pages], node.parent, node.on_host)
        upper.holds = int(node.holds > 0)
        upper.last_used = node.last_used
        upper.num_hits = node.num_hits
        upper.priority = node.priority
        upper.family = node.family
        upper.hashes = node.hashes[:num_pages]
        node.parent.replace(node, upper)
        del node.run[:at]
        del node.pages[:num_pages]
        del node.hashes[:num_pages]
        node.key = bytes(node.run[: self._page_bytes])
        node.parent = upper
        upper.attach(node)
        self.num_nodes += 1
        return upper

    def join(self, node: TreeNode) -> None:
        """Undo a split: take the only child into the node."""
        (child,) = node.children.values()
        assert not child.holds
        assert not node.holds
        assert child.on_host == node.on_host
        node.detach(child)
        node.run += child.run
        node.pages += child.pages
        node.hashes += child.hashes
        for grandchild in list(child.children.values()):
            child.detach(grandchild)
            grandchild.parent = node
            node.attach(grandchild)
        child.attached = False
        self.num_nodes -= 1

    def cut(self, leaf: TreeNode, num_pages: int) -> list[int]:
        """Take the last `num_pages` pages, not all, from a leaf."""
        assert leaf.evictable
        assert not leaf.children
        num_left = len(leaf.pages) - num_pages
        assert 0 < num_left < len(leaf.pages)
        pages = leaf.pages[num_left:]
        del leaf.pages[num_left:]
        del leaf.run[num_left * self._page_bytes :]
        self._count(leaf, -num_pages)
        return pages

    def remove(self, leaf: TreeNode) -> list[int]:
        """Take the whole leaf, and its pages, out of the tree."""
        assert leaf.evictable
        assert not leaf.children
        parent = leaf.parent
        parent.detach(leaf)
        leaf.attached = False
        self.num_nodes -= 1
        self._count(leaf, -len(leaf.pages))
        if isinstance(parent, TreeRoot) and not parent.children:
            del self._roots[parent.namespace]
        return leaf.pages

    def move(self, node: TreeNode, pages: list[int]) -> list[int]:
        """Change the node's tier: its content is in `pages` of the other one now. Returns the pages it leaves."""
        assert len(pages) == len(node.pages)
        self._count(node, -len(pages))
        left, node.pages = node.pages, pages
        node.on_host = not node.on_host
        self._count(node, len(pages))
        node.parent.num_device_children += -1 if node.on_host else 1
        return left

    def hold(self, node: TreeNode) -> None:
        assert node.attached
        branch: ParentNode[TreeNode] = node
        while isinstance(branch, TreeNode):
            branch.holds += 1
            if branch.holds > 1:
                return
            if not branch.on_host:
                self.num_held_pages += len(branch.pages)
            branch = branch.parent

    def let_go(self, node: TreeNode, clock: int) -> None:
        """End a hold. What nobody holds any more was used until now."""
        branch: ParentNode[TreeNode] = node
        while isinstance(branch, TreeNode):
            assert branch.holds > 0
            branch.holds -= 1
            if branch.holds:
                return
            branch.last_used = clock
            if not branch.on_host:
                self.num_held_pages -= len(branch.pages)
            branch = branch.parent

    def _count(self, node: TreeNode, num_pages: int) -> None:
        if node.on_host:
            self.num_host_pages += num_pages
        else:
            self.num_device_pages += num_pages
            if node.holds:
                self.num_held_pages += num_pages


def _pack_next(tokens: Sequence[int], packed: bytes, limit: int) -> bytes:
    """As much again as was looked at, of `tokens[:limit]`."""
    num_packed = len(packed) // TOKEN_BYTES
    return pack(tokens[num_packed : min(2 * num_packed, limit)])
