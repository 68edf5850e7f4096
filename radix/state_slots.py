"""Slots of recurrent states: those of running sequences, and checkpoints of cached prefixes.

A state stands for a whole prefix, so it has one position in the tree and cannot be cut: a prefix is reused up to its
deepest checkpoint, and the tokens after that are computed again. A slot is exactly one of: free, a lease's own, or the
checkpoint of one position. Changes are a log in the order of the decisions, as copies of pages are (`tiers.Copy`): so a
checkpoint may be given away while a copy still has to read it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .child_index import ParentNode
from .packed_tokens import pack
from .tree import PrefixMatch, RadixTree, TreeNode


class SlotCopy(NamedTuple):
    """Copy the state in slot `source` to slot `target`."""

    source: int
    target: int


class SlotAdvance(NamedTuple):
    """Advance the state in a slot by the first `num_drafts` draft tokens that were computed with it last."""

    slot: int
    num_drafts: int


class StateToKeep(NamedTuple):
    """A state of a prefix of a lease's tokens that a planned step leaves in a slot."""

    num_tokens: int
    slot: int
    is_strong: bool


@dataclass(eq=False)
class LeaseStates:
    """Slots of one lease: its sequence's own, and those that become checkpoints once their tokens are published."""

    slots: StateSlots
    namespace: str
    slot: int
    num_replayed: int  # tokens that were cached, but have no state: they come after the reused prefix
    planned: list[StateToKeep] = field(default_factory=list)  # ascending
    is_ahead: bool = False  # the state counts a token that has to be computed again; states do not go back

    def plan(self, num_tokens: int, *, is_strong: bool) -> int | None:
        """Take a slot for the state after `num_tokens` tokens, which the step that is planned leaves there. Returns
        None without a slot to spare: only a strong one may take the place of another strong one."""
        if (slot := self.slots.take(evicts_strong=is_strong)) is not None:
            self.planned.append(StateToKeep(num_tokens, slot, is_strong))
        return slot

    def advance(self, num_drafts: int) -> None:
        """Note that the first `num_drafts` draft tokens that the last step computed belong to the sequence. Fewer than
        none: it has lost tokens that are not drafts."""
        self.is_ahead |= num_drafts < 0
        if num_drafts > 0:
            self.slots.changes.append(SlotAdvance(self.slot, num_drafts))

    def publish(self, tokens: Sequence[int]) -> None:
        """Make checkpoints of the planned states of `tokens`, which are published."""
        while self.planned and self.planned[0].num_tokens <= len(tokens):
            num_tokens, slot, is_strong = self.planned.pop(0)
            self.slots.keep(slot, tokens, num_tokens, self.namespace, is_strong=is_strong)

    def end(self, tokens: Sequence[int]) -> None:
        """End a lease: its own state, which is that of `tokens`, becomes a checkpoint; without tokens it is lost."""
        self.slots.keep(self.slot, tokens, 0 if self.is_ahead else len(tokens), self.namespace, is_strong=True)
        for planned in self.planned:
            self.slots.free(planned.slot)


@dataclass
class StateStats:
    """Cumulative counters of checkpoints."""

    num_kept: int = 0  # checkpoints made
    num_evicted: int = 0  # of them given away for want of slots
    num_replayed_tokens: int = 0  # cached tokens that were computed again, after the deepest checkpoint


class StateSlots:
    """Slots [0, num_slots), with the checkpoints in a tree. Checkpoints that are used last are evicted last; weak ones,
    made at intervals, before strong ones."""

    def __init__(self, num_slots: int, tree: RadixTree) -> None:
        self.num_slots = num_slots
        self.changes: list[SlotCopy | SlotAdvance] = []
        self.stats = StateStats()
        self._tree = tree
        self._free = list(range(num_slots - 1, -1, -1))
        # Slots of checkpoints and the nodes that hold them, those used last at the end.
        self._weak: OrderedDict[int, TreeNode] = OrderedDict()
        self._strong: OrderedDict[int, TreeNode] = OrderedDict()
        tree.states = self

    @property
    def num_checkpoints(self) -> int:
        return len(self._weak) + len(self._strong)

    def figures(self) -> dict[str, Any]:
        """Return the counts by their names in the runtime's statistics."""
        return {
            "num_checkpoints": self.num_checkpoints,
            "num_kept_states": self.stats.num_kept,
            "num_evicted_states": self.stats.num_evicted,
            "num_replayed_tokens": self.stats.num_replayed_tokens,
        }

    @property
    def num_available(self) -> int:
        """Slots that `take` can return: free ones, and checkpoints."""
        return len(self._free) + self.num_checkpoints

    def take(self, *, evicts_strong: bool = True) -> int | None:
        """Take a free slot, or that of a checkpoint; None if there is none."""
        if not self._free:
            kind = self._weak or (self._strong if evicts_strong else None)
            if not kind:
                return None
            slot, node = next(iter(kind.items()))
            offset = next(offset for offset, own in node.checkpoints.items() if own == slot)
            del node.checkpoints[offset]
            self.stats.num_evicted += 1
            self.drop([slot])
        return self._free.pop()

    def begin(self, namespace: str, reused: PrefixMatch, num_cached: int) -> LeaseStates:
        """Take a slot, of which there is one, for a sequence that begins with the state of a match that ends at a
        checkpoint. `num_cached` of its tokens are cached."""
        source = self.deepest(reused)
        assert (0 if source is None else source[0]) == reused.num_tokens
        if source is not None:
            self.touch(source[1])
        slot = self.take()
        assert slot is not None
        if source is not None and source[1] != slot:
            self.changes.append(SlotCopy(source[1], slot))
        self.stats.num_replayed_tokens += num_cached - reused.num_tokens
        return LeaseStates(self, namespace, slot, num_cached - reused.num_tokens)

    def take_changes(self) -> list[SlotCopy | SlotAdvance]:
        """Return the changes decided since the last call, to be made in this order."""
        changes, self.changes = self.changes, []
        return changes

    def free(self, slot: int) -> None:
        """Give back a slot that is a lease's own."""
        assert slot not in self._free
        assert slot not in self._weak
        assert slot not in self._strong
        self._free.append(slot)

    def drop(self, slots: Sequence[int]) -> None:
        """Free the slots of checkpoints that their nodes no longer hold."""
        for slot in slots:
            if self._weak.pop(slot, None) is None:
                del self._strong[slot]
            self._free.append(slot)

    def deepest(self, found: PrefixMatch) -> tuple[int, int] | None:
        """Return the length of the longest prefix of the match that has a checkpoint, and its slot."""
        num_above = sum(node.num_tokens for node in found.nodes)
        if found.last is not None and found.last.checkpoints:
            offsets = [offset for offset in found.last.checkpoints if num_above + offset <= found.num_tokens]
            if offsets:
                return num_above + max(offsets), found.last.checkpoints[max(offsets)]
        for node in reversed(found.nodes):
            num_above -= node.num_tokens
            if node.checkpoints:
                offset = max(node.checkpoints)
                return num_above + offset, node.checkpoints[offset]
        return None

    def reusable(self, found: PrefixMatch, tokens: Sequence[int] = ()) -> PrefixMatch:
        """Return the match of `tokens` up to its deepest checkpoint, which may be on a sibling of the match's nodes;
        without `tokens` on these alone."""
        deepest = self.deepest(found)
        num_tokens = 0 if deepest is None else deepest[0]
        beside = self._beside(found, tokens, num_tokens) if tokens else None
        return beside or found.first(num_tokens, self._tree.page_size)

    def _beside(self, found: PrefixMatch, tokens: Sequence[int], least: int) -> PrefixMatch | None:
        """Return the match up to the deepest checkpoint of more than `least` tokens on siblings of the match's nodes.

        Sequences that diverge inside a page have a page each, and the state of what they share is kept once, on any of
        them. There are few checkpoints, so all are looked at.
        """
        place_of: dict[ParentNode[TreeNode], tuple[int, int]] = {}  # branch -> nodes and tokens above its children
        num_above = 0
        path = found.nodes if found.last is None else [*found.nodes, found.last]
        for place, node in enumerate(path):
            place_of[node.parent] = place, num_above
            num_above += node.num_tokens
        best: PrefixMatch | None = None
        for node in dict.fromkeys((*self._weak.values(), *self._strong.values())):
            if node.parent not in place_of:
                continue
            place, num_above = place_of[node.parent]
            for offset in node.checkpoints:
                num_tokens = num_above + offset
                if (
                    offset < self._tree.page_size
                    and least < num_tokens <= found.num_tokens
                    and node.key.startswith(pack(tokens[num_above:num_tokens]))
                ):
                    best, least = PrefixMatch(found.nodes[:place], node, 0, offset, num_tokens), num_tokens
        return best

    def touch(self, slot: int) -> None:
        """Note the use of a checkpoint, which makes it strong."""
        node = self._weak.pop(slot, None) or self._strong.pop(slot)
        self._strong[slot] = node

    def keep(self, slot: int, tokens: Sequence[int], num_tokens: int, namespace: str, *, is_strong: bool) -> None:
        """Make a lease's own slot the checkpoint of the first `num_tokens` of its tokens; free it if these are not
        cached, or have one already."""
        found = self._tree.match(tokens, namespace, len(tokens))
        if not num_tokens or found.num_tokens < num_tokens:
            self.free(slot)
            return
        beside = self._beside(found, tokens[:num_tokens], num_tokens - 1)
        found = beside or found.first(num_tokens, self._tree.page_size)
        offset = num_tokens - sum(node.num_tokens for node in found.nodes)
        node = found.last
        if not offset:
            node = found.nodes[-1]
            offset = node.num_tokens
        assert node is not None
        if offset in node.checkpoints:
            if is_strong:
                self.touch(node.checkpoints[offset])
            self.free(slot)
            return
        node.checkpoints[offset] = slot
        (self._strong if is_strong else self._weak)[slot] = node
        self.stats.num_kept += 1

    def move(self, node: TreeNode, heir: TreeNode, shift: int = 0) -> None:
        """Move a node's checkpoints to `heir`, in which the same tokens come `shift` tokens later."""
        for offset, slot in node.checkpoints.items():
            if offset + shift in heir.checkpoints:
                self.drop([slot])
                continue
            heir.checkpoints[offset + shift] = slot
            (self._weak if slot in self._weak else self._strong)[slot] = heir
        node.checkpoints = {}

    def pass_on(self, node: TreeNode) -> None:
        """Move the checkpoints of a leaf to a sibling that has its tokens too: in order it comes next."""
        if node.checkpoints:
            following = node.parent.first_key_after(node.key)
            assert following is not None
            self.move(node, node.parent.children[following])

    def split(self, node: TreeNode, upper: TreeNode) -> None:
        """Move the checkpoints of the first tokens of `node`, which `upper` has got, and renumber the others."""
        own, num_above = node.checkpoints, upper.num_tokens
        node.checkpoints = {offset: slot for offset, slot in own.items() if offset <= num_above}
        self.move(node, upper)
        node.checkpoints = {offset - num_above: slot for offset, slot in own.items() if offset > num_above}

    def cut(self, node: TreeNode) -> None:
        """Free the checkpoints beyond the end of a node that was cut."""
        beyond = [offset for offset in node.checkpoints if offset > node.num_tokens]
        self.drop([node.checkpoints.pop(offset) for offset in beyond])
