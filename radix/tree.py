"""Radix tree of cached prefixes. A node is a run of whole KV pages, reference-counted by pins.

The path from the root to a node spells a prefix whose KV the nodes' pages hold. Nodes begin and end at page boundaries;
only a leaf's last page may be unfinished. Siblings may therefore share their first tokens, fewer than a page: sequences
that diverge inside a page have a page each, and a third one that follows either of them copies the shared part (see
`PrefixMatch.boundary`). The upper part of a path may be on the device and the rest on the host, never the other way
round.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple, Protocol

from .child_index import ParentNode
from .packed_tokens import TOKEN_BYTES, common_prefix_length, pack, unpack

FIRST_PACKED_TOKENS = 128  # a match packs this many tokens first, then twice as many as long as they agree


class TreeRoot(ParentNode["TreeNode"]):
    """Root of a namespace."""

    __slots__ = ("namespace", "number")

    def __init__(self, namespace: str) -> None:
        super().__init__()
        self.namespace = namespace
        self.number: int | None = None  # as for nodes


class TreeNode(ParentNode["TreeNode"]):
    """A run of pages of a cached prefix, all on one tier, with the inputs of the eviction strategies."""

    __slots__ = (
        "attached",
        "checkpoints",
        "hashes",
        "key",
        "last_used",
        "num_hits",
        "number",
        "on_host",
        "pages",
        "parent",
        "priority",
        "program_id",
        "queued_group",
        "queued_key",
        "ref_count",
        "run",
        "saved_keys",
        "soft_pins",
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
        self.ref_count = 0  # leases whose deepest node this is, and pinned children
        self.checkpoints: dict[int, int] = {}  # number of the node's tokens -> slot of the recurrent state after them
        # Inputs of the eviction strategies
        self.last_used = 0  # by the cache's clock
        self.num_hits = 0
        self.priority = 0  # the highest of its users
        self.program_id: str | None = None  # of its only user; None: several users, or none
        self.soft_pins: dict[Hashable, int] | None = None  # owner -> rank, of the prefix that ends here
        # Bookkeeping of the eviction heap and the event log
        self.ticket: int | None = None
        self.queued_group: Hashable = None
        self.queued_key: tuple[float, ...] = ()
        self.hashes: list[int] = []
        self.saved_keys: list[bytes] = []  # of the first pages, those that are saved below memory
        self.number: int | None = None  # of viewers, which give it to a node that they first see

    @property
    def num_tokens(self) -> int:
        return len(self.run) // TOKEN_BYTES

    @property
    def evictable(self) -> bool:
        """True if the node's last page can leave its tier."""
        if self.ref_count or not self.attached:
            return False
        return not self.children if self.on_host else not self.num_device_children

    def note_use(self, program_id: str | None, priority: int) -> None:
        """Record that a request of `program_id` with this priority uses the node."""
        if program_id != self.program_id:
            self.program_id = None
        if priority > self.priority:
            self.priority = priority


class CheckpointLedger(Protocol):
    """Record of the nodes' checkpoints, which follows the changes of the tree (`state_slots`, which imports it)."""

    def split(self, node: TreeNode, upper: TreeNode) -> None:
        """Move the checkpoints of the first tokens of `node`, which `upper` has got."""

    def move(self, node: TreeNode, heir: TreeNode, shift: int) -> None:
        """Move a node's checkpoints to `heir`, in which the same tokens come `shift` tokens later."""

    def cut(self, node: TreeNode) -> None:
        """Drop the checkpoints beyond the end of a node that was cut."""

    def drop(self, slots: Sequence[int]) -> None:
        """Drop checkpoints that their nodes no longer hold."""


class PrefixMatch(NamedTuple):
    """Longest cached prefix: whole nodes, then whole pages of one more node, then the first tokens of one more page."""

    nodes: list[TreeNode]
    last: TreeNode | None  # where the prefix ends inside a node
    num_last_pages: int  # whole pages of `last` that match
    num_boundary_tokens: int  # matching tokens of the page after them, less than a page
    num_tokens: int  # in all

    @property
    def boundary(self) -> int | None:
        """The page of which only the first tokens match, or None."""
        if self.last is None or not self.num_boundary_tokens:
            return None
        return self.last.pages[self.num_last_pages]

    @property
    def num_host_tokens(self) -> int:
        """Matched tokens that are on the host."""
        num_whole = sum(node.num_tokens for node in self.nodes)
        num_tokens = sum(node.num_tokens for node in self.nodes if node.on_host)
        if self.last is not None and self.last.on_host:
            num_tokens += self.num_tokens - num_whole
        return num_tokens

    def count_pages(self) -> tuple[int, int]:
        """Count the whole pages matched that are on the host, and those on the device that nobody pins yet."""
        num_on_host = num_unpinned = 0
        last = self.last
        if last is not None and last.on_host:
            num_on_host = self.num_last_pages
        elif last is not None and not last.ref_count:
            num_unpinned = self.num_last_pages
        for node in reversed(self.nodes):
            if node.on_host:
                num_on_host += len(node.pages)
            elif node.ref_count:
                break  # its ancestors are pinned too
            else:
                num_unpinned += len(node.pages)
        return num_on_host, num_unpinned

    def whole_pages(self) -> PrefixMatch:
        """Return the match without the tokens after its last whole page."""
        return self._replace(num_boundary_tokens=0, num_tokens=self.num_tokens - self.num_boundary_tokens)

    def first(self, num_tokens: int, page_size: int) -> PrefixMatch:
        """Return the match of the first `num_tokens` tokens, in the same nodes. A new match might end in a sibling that
        shares as many tokens of its first page."""
        assert num_tokens <= self.num_tokens
        num_above, nodes = 0, list[TreeNode]()
        for node in self.nodes if self.last is None else (*self.nodes, self.last):
            if num_above + node.num_tokens > num_tokens or node is self.last:
                num_pages, num_more = divmod(num_tokens - num_above, page_size)
                last = node if num_tokens > num_above else None
                return PrefixMatch(nodes, last, num_pages, num_more, num_tokens)
            nodes.append(node)
            num_above += node.num_tokens
        return PrefixMatch(nodes, None, 0, 0, num_tokens)


class RadixTree:
    """Cached prefixes by namespace. Pinning a node pins its path to the root."""

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.num_nodes = 0
        self.num_device_pages = 0
        self.num_host_pages = 0
        self.num_pinned_pages = 0  # on the device
        self.changed: set[TreeNode] | None = None  # nodes that changed, while somebody follows the tree
        self.unsaved: dict[TreeNode, None] | None = None  # nodes with new pages, while somebody saves them below memory
        self.wrong_keys: list[bytes] = []  # of saved pages whose KV may be wrong
        self.states: CheckpointLedger | None = None  # of models with recurrent layers
        self._page_bytes = page_size * TOKEN_BYTES
        self._roots: dict[str, TreeRoot] = {}

    def roots(self) -> list[TreeRoot]:
        return list(self._roots.values())

    def nodes(self) -> Iterator[TreeNode]:
        """Return all nodes, parents before their children."""
        return self.below(*self._roots.values())

    def below(self, *branches: ParentNode[TreeNode]) -> Iterator[TreeNode]:
        """Return the nodes below some branches, parents before their children."""
        stack = list(branches)
        while stack:
            children = stack.pop().children.values()
            yield from children
            stack.extend(children)

    def path_tokens(self, node: TreeNode) -> tuple[str, list[int]]:
        """Return the namespace of a node, and the tokens from the root to its end."""
        runs: list[bytearray] = []
        above: ParentNode[TreeNode] = node
        while isinstance(above, TreeNode):
            runs.append(above.run)
            above = above.parent
        assert isinstance(above, TreeRoot)
        return above.namespace, unpack(b"".join(reversed(runs)))

    def root(self, namespace: str) -> TreeRoot:
        """Return the root of a namespace. It is in the tree as long as it has children."""
        return self._roots.get(namespace) or TreeRoot(namespace)

    def match(self, tokens: Sequence[int], namespace: str, limit: int) -> PrefixMatch:
        """Return the longest cached prefix of `tokens[:limit]`.

        Costs one look-up per node on the path and one comparison of the matched bytes, however much else is cached.
        """
        page_bytes = self._page_bytes
        branch: ParentNode[TreeNode] = self.root(namespace)
        nodes: list[TreeNode] = []
        packed = pack(tokens[: min(FIRST_PACKED_TOKENS, limit)])
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

    def covered_leaves(self, branch: ParentNode[TreeNode], key: bytes) -> list[TreeNode]:
        """Return the unpinned leaves whose own keys are proper prefixes of `key`: they hold nothing that the new page
        does not."""
        found = []
        before = branch.last_key_before(key)
        while before is not None and key.startswith(before):
            node = branch.children[before]
            if node.evictable:
                found.append(node)
            before = branch.last_key_before(before)
        return found

    def is_covered(self, node: TreeNode) -> bool:
        """Return True if a sibling's key starts with the node's whole key. In sorted order such a sibling comes
        next."""
        if len(node.key) == self._page_bytes:
            return False
        following = node.parent.first_key_after(node.key)
        return following is not None and following.startswith(node.key)

    def insert(self, branch: ParentNode[TreeNode], run: bytes, pages: list[int]) -> TreeNode:
        """Insert a leaf of device pages below `branch`, and return it."""
        assert len(pages) == -(-len(run) // self._page_bytes) > 0
        if isinstance(branch, TreeRoot):
            self._roots[branch.namespace] = branch
        node = TreeNode(run[: self._page_bytes], bytearray(run), pages, branch, on_host=False)
        branch.attach(node)
        self.num_nodes += 1
        self.num_device_pages += len(pages)
        self._note_new_pages(node)
        return node

    def grow(self, leaf: TreeNode, run: bytes, pages: list[int]) -> None:
        """Append `run` to the leaf: it first fills the unfinished page, if there is one, and then `pages`."""
        assert leaf.attached
        assert leaf.ref_count
        assert not leaf.children
        if len(leaf.key) < self._page_bytes:
            leaf.parent.detach(leaf)
            leaf.key = leaf.key + run[: self._page_bytes - len(leaf.key)]
            leaf.parent.attach(leaf)
        leaf.run += run
        leaf.pages += pages
        self.num_device_pages += len(pages)
        self.num_pinned_pages += len(pages)
        self._note_new_pages(leaf)
        assert len(leaf.pages) == -(-len(leaf.run) // self._page_bytes)

    def split(self, node: TreeNode, num_pages: int) -> TreeNode:
        """Move the node's first `num_pages` pages into a new node above it, which is returned.

        The given node stays the deeper part, so every lease on it still pins the whole path. The new node inherits the
        users' data but no soft pins, because those are of the prefix that ends with the deeper part.
        """
        assert 0 < num_pages < len(node.pages)
        at = num_pages * self._page_bytes
        upper = TreeNode(node.key, node.run[:at], node.pages[:num_pages], node.parent, node.on_host)
        upper.ref_count = int(node.ref_count > 0)
        upper.last_used = node.last_used
        upper.num_hits = node.num_hits
        upper.priority = node.priority
        upper.program_id = node.program_id
        upper.hashes = node.hashes[:num_pages]
        upper.saved_keys = node.saved_keys[:num_pages]
        if self.unsaved is not None and node in self.unsaved:
            self.unsaved[upper] = None
        node.parent.replace(node, upper)
        del node.run[:at]
        del node.pages[:num_pages]
        del node.hashes[:num_pages]
        del node.saved_keys[:num_pages]
        node.key = bytes(node.run[: self._page_bytes])
        node.parent = upper
        upper.attach(node)
        if self.states is not None:
            self.states.split(node, upper)
        self.num_nodes += 1
        if self.changed is not None:
            self.changed.update((upper, node))
        return upper

    def join(self, node: TreeNode) -> None:
        """Undo a split: merge the only child into the node."""
        (child,) = node.children.values()
        assert not child.ref_count
        assert not node.ref_count
        assert child.on_host == node.on_host
        node.detach(child)
        if self.states is not None:
            self.states.move(child, node, node.num_tokens)
        node.run += child.run
        node.pages += child.pages
        node.hashes += child.hashes
        node.saved_keys += child.saved_keys
        if self.unsaved is not None and child in self.unsaved:
            del self.unsaved[child]
            self.unsaved[node] = None
        for grandchild in list(child.children.values()):
            child.detach(grandchild)
            grandchild.parent = node
            node.attach(grandchild)
        child.attached = False
        self.num_nodes -= 1
        if self.changed is not None:
            self.changed.update((node, child, *node.children.values()))

    def truncate(self, leaf: TreeNode, num_pages: int) -> list[int]:
        """Remove the last `num_pages` pages, not all, from a leaf, and return them."""
        assert leaf.evictable
        assert not leaf.children
        num_left = len(leaf.pages) - num_pages
        assert 0 < num_left < len(leaf.pages)
        pages = leaf.pages[num_left:]
        del leaf.pages[num_left:]
        del leaf.run[num_left * self._page_bytes :]
        del leaf.saved_keys[num_left:]
        if self.states is not None:
            self.states.cut(leaf)
        self._count(leaf, -num_pages)
        if self.changed is not None:
            self.changed.add(leaf)
        return pages

    def remove(self, leaf: TreeNode) -> list[int]:
        """Remove a leaf from the tree, and return its pages."""
        assert leaf.evictable
        assert not leaf.children
        parent = leaf.parent
        parent.detach(leaf)
        if self.states is not None:
            self.states.drop(list(leaf.checkpoints.values()))
            leaf.checkpoints = {}
        leaf.attached = False
        if self.unsaved is not None:
            self.unsaved.pop(leaf, None)
        self.num_nodes -= 1
        self._count(leaf, -len(leaf.pages))
        if self.changed is not None:
            self.changed.add(leaf)
        if isinstance(parent, TreeRoot) and not parent.children:
            del self._roots[parent.namespace]
        return leaf.pages

    def move(self, node: TreeNode, pages: list[int]) -> list[int]:
        """Change the node's tier: its content is in `pages` of the other tier now. Returns the pages it leaves."""
        assert len(pages) == len(node.pages)
        self._count(node, -len(pages))
        left, node.pages = node.pages, pages
        node.on_host = not node.on_host
        self._count(node, len(pages))
        node.parent.num_device_children += -1 if node.on_host else 1
        if self.changed is not None:
            self.changed.add(node)
        return left

    def pin(self, node: TreeNode) -> None:
        """Increment the node's reference count; a node that becomes pinned pins its parent."""
        assert node.attached
        branch: ParentNode[TreeNode] = node
        while isinstance(branch, TreeNode):
            branch.ref_count += 1
            if branch.ref_count > 1:
                return
            if self.changed is not None:
                self.changed.add(branch)
            if not branch.on_host:
                self.num_pinned_pages += len(branch.pages)
            branch = branch.parent

    def unpin(self, node: TreeNode, clock: int) -> None:
        """Decrement the node's reference count. Nodes that become unpinned get `clock` as their time of last use."""
        branch: ParentNode[TreeNode] = node
        while isinstance(branch, TreeNode):
            assert branch.ref_count > 0
            branch.ref_count -= 1
            if branch.ref_count:
                return
            branch.last_used = clock
            if self.changed is not None:
                self.changed.add(branch)
            if not branch.on_host:
                self.num_pinned_pages -= len(branch.pages)
            branch = branch.parent

    def _note_new_pages(self, node: TreeNode) -> None:
        if self.changed is not None:
            self.changed.add(node)
        if self.unsaved is not None:
            self.unsaved[node] = None

    def _count(self, node: TreeNode, num_pages: int) -> None:
        if node.on_host:
            self.num_host_pages += num_pages
        else:
            self.num_device_pages += num_pages
            if node.ref_count:
                self.num_pinned_pages += num_pages


def _pack_next(tokens: Sequence[int], packed: bytes, limit: int) -> bytes:
    """Pack the next tokens of `tokens[:limit]`, as many again as are packed."""
    num_packed = len(packed) // TOKEN_BYTES
    return pack(tokens[num_packed : min(2 * num_packed, limit)])
