"""Tree messages, applied as a viewer applies them, give the tree."""

from __future__ import annotations

import random

import pytest

from ramiform.radix.cache import PrefixCache
from ramiform.radix.lease import LeaseUser
from ramiform.radix.tree import TreeNode
from ramiform.runtime.core.tree_view import FOLLOW_SECONDS, SLICE_SECONDS, TreeViewer
from ramiform.runtime.protocol.core import CoreReply
from ramiform.runtime.protocol.tree import GetTree, GetTreeNode, TreeMessage, TreeNodeView, label_of
from ramiform.runtime.scheduler.request import program_id, session_id

PAGE = 16


class Clock:
    """A clock that a test moves, and that ticks a little at each look."""

    def __init__(self, tick: float = 0.0) -> None:
        self.now = 1000.0
        self.tick = tick

    def __call__(self) -> float:
        self.now += self.tick
        return self.now


def serve(cache: PrefixCache, tokens: list[int], namespace: str = "", program: str | None = None) -> None:
    lease = cache.acquire(tokens, namespace, num_tokens=len(tokens), user=LeaseUser(program))
    assert lease is not None
    cache.release(lease, tokens)


def ask(viewer: TreeViewer, question: GetTree | GetTreeNode) -> CoreReply:
    viewer.ask(b"owner", question)
    while not (answers := viewer.work()):
        pass
    [(owner, reply)] = answers
    assert owner == b"owner"
    return reply


def tree(viewer: TreeViewer, **fields: int) -> TreeMessage:
    message = ask(viewer, GetTree(call=1, **fields)).tree
    assert message is not None
    return message


class View:
    """A viewer's copy, kept by the messages as the page keeps it."""

    def __init__(self) -> None:
        self.nodes: dict[int, TreeNodeView] = {}

    def take(self, message: TreeMessage) -> None:
        if message.full:
            self.nodes.clear()
        for number in message.removed:
            del self.nodes[number]
        for node in message.nodes:
            # In a new message a parent comes first.
            assert node.parent is None or node.parent in self.nodes
            self.nodes[node.id] = node

    def check(self, cache: PrefixCache, limit: int) -> None:
        assert len(self.nodes) <= limit
        sources = {node.number: node for node in cache.tree.nodes()}
        for number, node in self.nodes.items():
            if node.namespace is not None:
                continue
            source = sources[number]
            assert node.tokens == source.num_tokens
            assert node.hits == source.num_hits
            assert node.parent == source.parent.number  # type: ignore[attr-defined]
            assert (node.state == "leased") == bool(source.ref_count)
            assert node.hidden == self.hidden(source)
        shown = sum(node.tokens + node.hidden[1] for node in self.nodes.values())
        if sum(node.namespace is not None for node in self.nodes.values()) == len(cache.tree.roots()):
            assert shown == sum(node.num_tokens for node in sources.values())

    def hidden(self, source: TreeNode) -> tuple[int, int]:
        nodes = tokens = 0
        for child in source.children.values():
            if child.number not in self.nodes:
                below = self.hidden(child)
                nodes += 1 + below[0]
                tokens += child.num_tokens + below[1]
        return nodes, tokens


@pytest.mark.parametrize("limit", [4, 12, 1000])
def test_the_messages_add_up_to_the_tree(limit: int) -> None:
    clock = Clock()
    cache = PrefixCache(60, PAGE, num_host_pages=20)
    viewer, view, draw = TreeViewer(cache, clock), View(), random.Random(1)
    leases, is_first = [], True
    for step in range(400):
        clock.now += 1
        tokens = [draw.randint(0, 1)] * draw.randint(1, 60) + draw.choices([3, 4], k=draw.randint(0, 9))
        lease = cache.acquire(tokens, draw.choice(["", "other"]), num_tokens=len(tokens), user=LeaseUser(str(step % 3)))
        if lease is not None:
            leases.append((lease, tokens))
        if len(leases) > 3 or lease is None:
            cache.release(*leases.pop(0))
        if draw.random() < 0.3:
            message = tree(viewer, watch=1, limit=limit)
            assert message.full == is_first
            is_first = False
            view.take(message)
            view.check(cache, limit)


def test_leased_nodes_and_those_above_them_are_shown_first() -> None:
    cache = PrefixCache(256, PAGE)
    for number in range(8):
        serve(cache, [1] * PAGE + [10 + number] * PAGE * (number + 2))
    lease = cache.acquire([1] * PAGE + [10] * PAGE, num_tokens=2 * PAGE)
    assert lease is not None
    message = tree(TreeViewer(cache), limit=4)
    assert [(node.tokens, node.state) for node in message.nodes] == [(0, "cached"), (16, "leased"), (16, "leased")]
    assert message.nodes[1].hidden[0] == 7


def test_a_subtree_may_be_asked_for_and_a_node_for_its_tokens() -> None:
    cache = PrefixCache(256, PAGE)
    for number in range(3):
        serve(cache, [1] * PAGE + [10 + number] * PAGE, program="one")
    viewer = TreeViewer(cache)
    whole = tree(viewer, limit=100)
    [shared] = [node for node in whole.nodes if node.parent is not None and node.parent == whole.nodes[0].id]
    below = tree(viewer, limit=100, root=shared.id)
    assert [node.tokens for node in below.nodes] == [16, 16, 16, 16]
    assert below.nodes[0].parent is None
    content = ask(viewer, GetTreeNode(call=2, node=below.nodes[1].id)).tree_node
    assert content is not None
    assert content.depth_tokens == 16
    assert content.ids in ([10] * PAGE, [11] * PAGE, [12] * PAGE)
    for question in (GetTreeNode(call=3, node=9999), GetTree(call=3, root=9999, limit=10)):
        error = ask(viewer, question).error
        assert error is not None
        assert "9999" in error.message


def test_events_are_counted_since_the_last_message() -> None:
    cache = PrefixCache(4, PAGE)
    viewer = TreeViewer(cache)
    tree(viewer, watch=1, limit=100)
    serve(cache, [1] * PAGE * 3)
    serve(cache, [1] * PAGE * 3)
    events = tree(viewer, watch=1, limit=100).events
    assert (events.hit_tokens, events.computed_tokens, events.evicted_tokens) == (48, 48, 0)
    serve(cache, [2] * PAGE * 3)
    assert tree(viewer, watch=1, limit=100).events.evicted_tokens == 2 * PAGE
    assert tree(viewer, watch=1, limit=100).events.evicted_tokens == 0


def test_the_age_of_a_node_is_that_of_its_last_release() -> None:
    clock, cache = Clock(), PrefixCache(64, PAGE)
    viewer = TreeViewer(cache, clock)
    serve(cache, [1] * PAGE)
    viewer.note_time()
    clock.now += 30
    serve(cache, [2] * PAGE)
    viewer.note_time()
    clock.now += 5
    ages = sorted(node.used for node in tree(viewer, limit=10).nodes if node.parent is not None)
    assert ages == [5.0, 35.0]


def test_names_of_namespaces_and_programs_are_not_told() -> None:
    cache = PrefixCache(64, PAGE)
    serve(cache, [1] * PAGE, namespace="a secret salt", program="a secret program")
    message = tree(TreeViewer(cache), limit=10)
    assert "secret" not in repr(message)
    assert message.nodes[0].namespace


def test_a_program_has_the_label_of_the_name_that_its_frontend_gave_it() -> None:
    cache = PrefixCache(64, PAGE)
    serve(cache, [1] * PAGE, program=program_id(b"a frontend", "http:7/8"))
    serve(cache, [2] * PAGE, program=program_id(b"another", "c0:3"))
    serve(cache, [3] * PAGE, program=session_id("c0:3/c0:3"))
    labels = {node.program for node in tree(TreeViewer(cache), limit=10).nodes if node.parent is not None}
    assert labels == {label_of("http:7/8"), label_of("c0:3"), label_of(session_id("c0:3/c0:3"))}
    assert len(labels) == 3


def test_a_large_tree_is_answered_in_slices_while_it_changes() -> None:
    clock = Clock(tick=SLICE_SECONDS / 20)
    cache = PrefixCache(8192, PAGE)
    for number in range(2000):
        serve(cache, [number % 7] * PAGE + [number] * PAGE)
    viewer, view = TreeViewer(cache, clock), View()
    viewer.ask(b"owner", GetTree(call=1, watch=1, limit=100_000))
    num_slices = 0
    while not (answers := viewer.work()):
        serve(cache, [num_slices % 7] * PAGE + [5000 + num_slices] * PAGE)
        num_slices += 1
    assert num_slices > 3
    message = answers[0][1].tree
    assert message is not None
    view.take(message)
    view.take(tree(viewer, watch=1, limit=100_000))
    view.check(cache, 100_000)


def test_the_tree_is_not_followed_any_more_when_nobody_asks() -> None:
    clock, cache = Clock(), PrefixCache(64, PAGE)
    viewer = TreeViewer(cache, clock)
    assert not viewer.active
    serve(cache, [1] * PAGE)
    assert cache.tree.changed is None
    first = tree(viewer, watch=1, limit=10)
    assert viewer.active
    serve(cache, [2] * PAGE)
    assert cache.tree.changed
    clock.now += FOLLOW_SECONDS + 1
    assert viewer.work() == []
    assert cache.tree.changed is None
    assert not viewer.active
    again = tree(viewer, watch=1, limit=10)
    assert again.full
    assert {node.id for node in first.nodes} <= {node.id for node in again.nodes}


def test_a_viewer_who_left_is_forgotten_while_others_look() -> None:
    clock, cache = Clock(), PrefixCache(64, PAGE)
    viewer = TreeViewer(cache, clock)
    tree(viewer, watch=1, limit=10)
    for number in range(4):
        clock.now += FOLLOW_SECONDS / 2
        serve(cache, [number] * PAGE)
        assert tree(viewer, watch=2, limit=10).full == (number == 0)
    assert len(viewer._watches) == len(viewer._mirror.watches) == 1
    assert tree(viewer, watch=1, limit=10).full
