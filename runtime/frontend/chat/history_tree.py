"""Tree of remembered texts with their token ids. Knows no tokenizer.

A path from the root spells a text. Nodes divide it by characters; an anchor on a node says which ids lead there from
the anchor before, so ids never depend on where other texts branch off.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Iterator

_OVERHEAD_BYTES = 600  # of a node and its anchor


class HistoryAnchor:
    """Ids of a text from the end of the anchor `base`, or from the beginning, to the character `end`.

    `is_generated`: the model generated them. `is_divided`: a special token followed them in a prompt.
    """

    __slots__ = ("base", "end", "ids", "is_divided", "is_generated", "is_live", "node", "num_dependents", "number")

    def __init__(
        self, base: HistoryAnchor | None, end: int, ids: tuple[int, ...], *, is_generated: bool, is_divided: bool
    ) -> None:
        self.base = base
        self.end = end
        self.ids = ids
        self.is_generated = is_generated
        self.is_divided = is_divided
        self.num_dependents = 0
        self.node: HistoryNode | None = None  # None once another anchor has its place
        self.is_live = True  # until it is forgotten
        self.number = 0  # in the frontend's file; 0: it is not there

    @property
    def start(self) -> int:
        return 0 if self.base is None else self.base.end

    def chain(self) -> Iterator[HistoryAnchor]:
        """Iterate over the anchors from this one to the first."""
        anchor: HistoryAnchor | None = self
        while anchor is not None:
            yield anchor
            anchor = anchor.base


class HistoryNode:
    """A run of characters. All but roots have an anchor or several children."""

    __slots__ = ("anchor", "children", "parent", "text")

    def __init__(self, parent: HistoryNode | None, text: str) -> None:
        self.parent = parent
        self.text = text
        self.children: dict[str, HistoryNode] = {}  # by first character
        self.anchor: HistoryAnchor | None = None

    def whole_text(self) -> str:
        """Return the text from the root to the end of this run."""
        parts: list[str] = []
        node: HistoryNode | None = self
        while node is not None:
            parts.append(node.text)
            node = node.parent
        return "".join(reversed(parts))


class HistoryTree:
    """Texts of one owner, by namespace. `forget_oldest` removes the end of the text used least recently."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self._roots: dict[str, HistoryNode] = {}
        self._leaves: OrderedDict[HistoryAnchor, str] = OrderedDict()  # without dependents, oldest first: its namespace

    def leaves(self) -> Iterator[tuple[str, str, HistoryAnchor]]:
        """Iterate over the ends of texts, the one used last at the end: namespace, text and anchor."""
        for anchor, namespace in self._leaves.items():
            if anchor.node is not None:
                yield namespace, anchor.node.whole_text(), anchor

    def longest(self, namespace: str, text: str) -> tuple[HistoryAnchor, int] | None:
        """Return an anchor whose text begins as `text` does for the largest number of characters, and that number."""
        root = self._roots.get(namespace)
        if root is None:
            return None
        node, num = root, 0
        while num < len(text) and (child := node.children.get(text[num])) is not None:
            node = child
            shared = _num_shared(child.text, text, num)
            num += shared
            if shared < len(child.text):
                break
        while node.anchor is None:
            node = next(reversed(node.children.values()))  # the latest
        return node.anchor, num

    def add(
        self,
        namespace: str,
        text: str,
        base: HistoryAnchor | None,
        ids: tuple[int, ...],
        *,
        is_generated: bool,
        is_divided: bool = False,
    ) -> HistoryAnchor:
        """Remember that `ids` lead from the end of `base` to the end of `text`. Generated ids replace others."""
        node = self._node_at(namespace, text)
        if (known := node.anchor) is not None:
            if known.base is base and (known.ids == ids or not is_generated):
                if is_divided and not known.is_divided and known.ids == ids:
                    known.is_divided, known.number = True, 0
                self.touch(known)
                return known
            # Texts that go on from it keep its ids.
            self._detach(known)
        anchor = HistoryAnchor(base, len(text), ids, is_generated=is_generated, is_divided=is_divided)
        anchor.node, node.anchor = node, anchor
        if base is not None:
            base.num_dependents += 1
            self._leaves.pop(base, None)
        self._leaves[anchor] = namespace
        self.num_bytes += _num_bytes(anchor)
        return anchor

    def touch(self, anchor: HistoryAnchor) -> None:
        """Note that the anchor was used."""
        if anchor in self._leaves:
            self._leaves.move_to_end(anchor)

    def forget_oldest(self) -> bool:
        """Forget the anchor without dependents that was used least recently. Returns False if there is none."""
        if not self._leaves:
            return False
        anchor, namespace = self._leaves.popitem(last=False)
        self.num_bytes -= _num_bytes(anchor)
        anchor.is_live = False
        base = anchor.base
        if base is not None:
            base.num_dependents -= 1
            if not base.num_dependents:  # of the same text, so it goes next
                self._leaves[base] = namespace
                self._leaves.move_to_end(base, last=False)
        if (node := anchor.node) is not None:
            anchor.node = node.anchor = None
            self._prune(node, namespace)
        return True

    def _detach(self, anchor: HistoryAnchor) -> None:
        """Take an anchor off its node. It lives as long as others depend on it."""
        assert anchor.node is not None
        anchor.node.anchor = anchor.node = None
        if anchor in self._leaves:
            self._leaves.move_to_end(anchor, last=False)

    def _node_at(self, namespace: str, text: str) -> HistoryNode:
        """Return the node at the end of `text`; make it if there is none."""
        node = self._roots.setdefault(namespace, HistoryNode(None, ""))
        num = 0
        while num < len(text):
            child = node.children.get(text[num])
            if child is None:
                child = node.children[text[num]] = HistoryNode(node, text[num:])
                self.num_bytes += sys.getsizeof(child.text) + _OVERHEAD_BYTES
                return child
            shared = _num_shared(child.text, text, num)
            node = child if shared == len(child.text) else self._split(child, shared)
            num += shared
        return node

    def _split(self, node: HistoryNode, num: int) -> HistoryNode:
        """Divide a node after `num` characters. Returns the upper part."""
        assert node.parent is not None
        upper = HistoryNode(node.parent, node.text[:num])
        self.num_bytes += sys.getsizeof(upper.text) + _OVERHEAD_BYTES - sys.getsizeof(node.text)
        node.parent.children[upper.text[0]] = upper
        node.parent, node.text = upper, node.text[num:]
        self.num_bytes += sys.getsizeof(node.text)
        upper.children[node.text[0]] = node
        return upper

    def _prune(self, node: HistoryNode, namespace: str) -> None:
        """Remove a node that nothing needs, or join it with its only child."""
        parent = node.parent
        if node.anchor is not None or len(node.children) > 1:
            return
        if parent is None:
            if not node.children:
                self._roots.pop(namespace, None)
            return
        self.num_bytes -= sys.getsizeof(node.text) + _OVERHEAD_BYTES
        if node.children:
            [child] = node.children.values()
            self.num_bytes -= sys.getsizeof(child.text)
            child.text, child.parent = node.text + child.text, parent
            self.num_bytes += sys.getsizeof(child.text)
            parent.children[child.text[0]] = child
            return
        del parent.children[node.text[0]]
        self._prune(parent, namespace)


def _num_bytes(anchor: HistoryAnchor) -> int:
    return sys.getsizeof(anchor.ids)


def _num_shared(run: str, text: str, at: int) -> int:
    """Return how many characters of `run` the text continues with at `at`."""
    if text.startswith(run, at):
        return len(run)
    low, high = 0, len(run) - 1  # the first `low` agree, the first `high + 1` do not
    while low < high:
        middle = (low + high + 1) // 2
        if text.startswith(run[low:middle], at + low):
            low = middle
        else:
            high = middle - 1
    return low
