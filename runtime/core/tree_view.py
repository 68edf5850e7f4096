"""Answers viewers' questions about the radix tree, in slices of time between the steps of the core's loop.

Nothing is kept while nobody asks: the tree is followed from a question on, until FOLLOW_SECONDS after the last one.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Iterable, Iterator
from operator import itemgetter
from typing import TypeVar

from ...radix.cache import CacheStats, PrefixCache
from ...radix.mirror import MirrorNode, TreeMirror
from ...radix.packed_tokens import TOKEN_BYTES, unpack
from ...radix.tree import TreeNode, TreeRoot
from ..protocol.core import CoreReply, ToCore
from ..protocol.errors import ErrorInfo, RequestError
from ..protocol.tree import (
    MAX_CONTENT_TOKENS,
    GetTree,
    GetTreeNode,
    NodeContent,
    NodeState,
    TreeEvents,
    TreeMessage,
    TreeNodeView,
    TreeTotals,
    label_of,
)
from ..scheduler.request import program_name
from .service import Reply, Service

SLICE_SECONDS = 0.001  # of one turn of the loop
FOLLOW_SECONDS = 60.0  # a viewer who reads slowly takes seconds for a large tree before it asks again
SELECTION_SHARE = 0.005  # of the core's time, for choosing the nodes of a tree that is larger than the view
MAX_WATCHES = 64
MAX_CLOCK_TIMES = 4096
NODES_PER_YIELD = 32

T = TypeVar("T")
_Work = Generator[None, None, T]
_Sent = tuple[object, ...]  # what a viewer knows of a node
_Question = tuple[bytes, GetTree | GetTreeNode]


class _ClockTimes:
    """Times at which the cache's clock was seen, so that a node's last use has a time."""

    def __init__(self) -> None:
        self._seen: list[tuple[int, float]] = []  # each clock, and when it was seen first

    def note(self, clock: int, now: float) -> None:
        if self._seen and self._seen[-1][0] == clock:
            return
        self._seen.append((clock, now))
        if len(self._seen) > MAX_CLOCK_TIMES:
            del self._seen[: MAX_CLOCK_TIMES // 2 : 2]

    def seconds_since(self, clock: int, now: float) -> float:
        at = bisect_left(self._seen, clock, key=itemgetter(0))
        return round(now - self._seen[min(at, len(self._seen) - 1)][1], 1)


class _Watch:
    """Tree data that one viewer has."""

    def __init__(self, question: GetTree, stats: CacheStats) -> None:
        self.root_number = question.root
        self.limit = question.limit
        self.shown: dict[MirrorNode, _Sent | None] = {}
        self.touched: set[MirrorNode] = set()
        self.version = -1  # of the mirror, when it was last sent
        self.asked_at = 0.0
        self.select_at = 0.0  # not before
        self.stats = _counts(stats)


class TreeViewer(Service):
    """Answers `GetTree` and `GetTreeNode` about a cache, while steps go on."""

    def __init__(self, cache: PrefixCache, clock: Callable[[], float] = time.monotonic) -> None:
        self._cache = cache
        self._clock = clock
        self._mirror = TreeMirror(cache.tree)
        self._times = _ClockTimes()
        self._watches: OrderedDict[tuple[bytes, int], _Watch] = OrderedDict()
        self._questions: deque[_Question] = deque()
        self._job: _Work[CoreReply] | None = None  # of the first question
        self._last_asked = 0.0
        self._slice_began = 0.0
        self._worked = 0.0  # seconds, in earlier slices

    @property
    def wait_ms(self) -> int | None:
        return 0 if self._questions else None

    @property
    def active(self) -> bool:
        """True while there is something to do: questions, or a tree to stop following."""
        return bool(self._questions) or self._mirror.follows

    def handle(self, owner: bytes, message: ToCore) -> ToCore | list[Reply]:
        if not isinstance(message, GetTree | GetTreeNode):
            return message
        self.ask(owner, message)
        return []

    def after_step(self) -> list[tuple[bytes, CoreReply]]:
        return self.work() if self.active else []

    def count(self, reply: CoreReply) -> CoreReply:
        self.note_time()
        return reply

    def note_time(self) -> None:
        """Note the time of the cache's clock. The more often, the better viewers know when a node was used."""
        self._times.note(self._cache.clock, self._clock())

    def ask(self, owner: bytes, question: GetTree | GetTreeNode) -> None:
        self._last_asked = self._clock()
        self._questions.append((owner, question))

    def work(self) -> list[tuple[bytes, CoreReply]]:
        """Work for SLICE_SECONDS at most. Returns the answers that are ready, with whom they are for."""
        self._slice_began = self._clock()
        answers = self._answer_until(self._slice_began + SLICE_SECONDS)
        if self._mirror.follows and not self._questions and self._clock() - self._last_asked > FOLLOW_SECONDS:
            self._watches.clear()
            self._mirror.watches.clear()
            self._mirror.stop()
        self._worked = self._spent()
        return answers

    def _spent(self) -> float:
        """Return the seconds of work until now, without those of the core's steps in between."""
        return self._worked + self._clock() - self._slice_began

    def _answer_until(self, until: float) -> list[tuple[bytes, CoreReply]]:
        answers: list[tuple[bytes, CoreReply]] = []
        while self._questions:
            owner, question = self._questions[0]
            if self._job is None:
                self._job = self._answer(owner, question)
            reply = _advance(self._job, until, self._clock)
            if reply is None:
                return answers
            self._job = None
            self._questions.popleft()
            answers.append((owner, reply))
        return answers

    def _answer(self, owner: bytes, question: GetTree | GetTreeNode) -> _Work[CoreReply]:
        if self._mirror.follows:
            yield from self._mirror.catch_up()
        else:
            yield from self._mirror.follow()
            yield from self._mirror.catch_up()
        self.note_time()
        try:
            if isinstance(question, GetTreeNode):
                return CoreReply(question.call, tree_node=self._content(question.node))
            message = yield from self._view(question, *self._watch(owner, question))
            return CoreReply(question.call, tree=message)
        except RequestError as error:
            return CoreReply(question.call, error=ErrorInfo.of(error))

    def _watch(self, owner: bytes, question: GetTree) -> tuple[_Watch, bool]:
        """Return what the viewer knows, and whether it is new."""
        if question.watch is None:
            return _Watch(question, self._cache.stats), True
        key, now = (owner, question.watch), self._clock()
        watch = self._watches.get(key)
        is_new = watch is None or (watch.root_number, watch.limit) != (question.root, question.limit)
        if watch is None or is_new:
            watch = self._watches[key] = _Watch(question, self._cache.stats)
        watch.asked_at = now
        self._watches.move_to_end(key)
        self._forget_watches(now)
        return watch, is_new

    def _forget_watches(self, now: float) -> None:
        """Forget what those were sent who have not asked for long: the nodes that changed for them would pile up."""
        while len(self._watches) > MAX_WATCHES or next(iter(self._watches.values())).asked_at < now - FOLLOW_SECONDS:
            self._watches.popitem(last=False)
        self._mirror.watches[:] = [each.touched for each in self._watches.values()]

    def _view(self, question: GetTree, watch: _Watch, is_new: bool) -> _Work[TreeMessage]:
        mirror, root = self._mirror, None
        if question.root is not None:
            root = mirror.nodes.get(question.root)
            if root is None:
                raise RequestError(f"the tree has no node {question.root}", param="root", code="not_found")
        nodes: list[TreeNodeView] = []
        removed: list[int] = []
        if watch.version != mirror.version:
            shown = yield from self._choose(watch, root, is_new)
            removed = [node.number for node, sent in watch.shown.items() if node not in shown and sent is not None]
            watch.shown, watch.version = shown, mirror.version
            nodes = yield from self._changed(watch, root)
        counts = _counts(self._cache.stats)
        before, watch.stats = watch.stats, counts
        tree, page_size = self._cache.tree, self._cache.page_size
        return TreeMessage(
            version=mirror.version,
            full=is_new,
            page_size=page_size,
            totals=TreeTotals(
                tree.num_nodes,
                sum(top.num_tokens for top in mirror.roots),
                tree.num_device_pages,
                tree.num_host_pages,
                tree.num_pinned_pages,
            ),
            nodes=nodes,
            removed=removed,
            events=TreeEvents(
                counts[0] - before[0],
                counts[1] - before[1],
                (counts[2] - before[2]) * page_size,
                (counts[3] - before[3]) * page_size,
            ),
        )

    def _choose(self, watch: _Watch, root: MirrorNode | None, is_new: bool) -> _Work[dict[MirrorNode, _Sent | None]]:
        """Return the nodes to show: those shown before, those that came into use, or a new selection."""
        touched, now, spent = set(watch.touched), self._clock(), self._spent()
        watch.touched.clear()
        num_all = root.num_nodes + 1 if root is not None else sum(top.num_nodes + 1 for top in self._mirror.roots)
        shown = {node: sent for node, sent in watch.shown.items() if node.alive}
        for node in touched:
            if node.alive and (num_all <= watch.limit or node in self._mirror.in_use):
                _show(node, root, shown, watch.limit)
        if not is_new and (now < watch.select_at or len(shown) == num_all):
            return shown
        # A part of the room is left for nodes that come into use before the next selection.
        limit = watch.limit if num_all <= watch.limit else max(1, watch.limit * 4 // 5)
        chosen = yield from self._mirror.select(root, limit)
        watch.select_at = now + (self._spent() - spent) / SELECTION_SHARE
        return {node: watch.shown.get(node) for node in chosen}

    def _changed(self, watch: _Watch, root: MirrorNode | None) -> _Work[list[TreeNodeView]]:
        """Return the shown nodes that differ from what the viewer knows, parents first."""
        shown = watch.shown
        below: dict[MirrorNode | None, list[int]] = {}  # counts of the children that are shown
        for node in shown:
            counts = below.setdefault(node.parent, [0, 0])
            counts[0] += node.num_nodes
            counts[1] += node.num_tokens
        changed: dict[MirrorNode, tuple[int, int]] = {}
        for index, (node, sent) in enumerate(shown.items()):
            num_nodes, num_tokens = below.get(node, (0, 0))
            own = int(isinstance(node.source, TreeNode))
            hidden = (node.num_nodes - own - num_nodes, node.num_tokens - node.own_tokens - num_tokens)
            known = self._known(node, hidden)
            if known != sent:
                shown[node] = known
                changed[node] = hidden
            if index % NODES_PER_YIELD == 0:
                yield
        now = self._clock()
        views = []
        for index, node in enumerate(_parents_first(changed)):
            views.append(self._node_view(node, changed[node], now, is_top=node is root))
            if index % NODES_PER_YIELD == 0:
                yield
        return views

    def _known(self, node: MirrorNode, hidden: tuple[int, int]) -> _Sent:
        source, parent = node.source, node.parent
        if isinstance(source, TreeRoot):
            return hidden
        assert parent is not None
        return (
            *hidden,
            parent.number,
            node.own_tokens,
            _state(source),
            source.program_id,
            source.num_hits,
            source.last_used,
        )

    def _node_view(self, node: MirrorNode, hidden: tuple[int, int], now: float, *, is_top: bool) -> TreeNodeView:
        source = node.source
        if isinstance(source, TreeRoot):
            return TreeNodeView(
                id=node.number,
                parent=None,
                tokens=0,
                state="cached",
                program=None,
                hits=0,
                used=0.0,
                hidden=hidden,
                namespace=label_of(source.namespace),
            )
        assert node.parent is not None
        return TreeNodeView(
            id=node.number,
            parent=None if is_top else node.parent.number,
            tokens=node.own_tokens,
            state=_state(source),
            program=_program_label(source),
            hits=source.num_hits,
            used=self._used(source, now),
            hidden=hidden,
        )

    def _used(self, node: TreeNode, now: float) -> float:
        return 0.0 if node.ref_count else self._times.seconds_since(node.last_used, now)

    def _content(self, number: int) -> NodeContent:
        node = self._mirror.nodes.get(number)
        if node is None or not isinstance(node.source, TreeNode):
            raise RequestError(f"the tree has no node {number} with tokens", param="node", code="not_found")
        source, depth, above = node.source, 0, node.parent
        assert above is not None
        while above.parent is not None:
            depth, above = depth + above.own_tokens, above.parent
        assert isinstance(above.source, TreeRoot)
        return NodeContent(
            id=number,
            namespace=above.source.namespace,
            tokens=source.num_tokens,
            depth_tokens=depth,
            ids=unpack(source.run[: MAX_CONTENT_TOKENS * TOKEN_BYTES]),
            program=_program_label(source),
            hits=source.num_hits,
            used=self._used(source, self._clock()),
            state=_state(source),
        )


def _advance(job: _Work[T], until: float, clock: Callable[[], float]) -> T | None:
    """Run a job until its end, whose value is returned, or until that time."""
    while True:
        try:
            next(job)
        except StopIteration as end:
            value: T = end.value
            return value
        if clock() >= until:
            return None


def _show(node: MirrorNode, root: MirrorNode | None, shown: dict[MirrorNode, _Sent | None], limit: int) -> None:
    """Add a node and those above it, up to the root of the view; nothing if that is not above it, or the view full."""
    missing: list[MirrorNode] = []
    above: MirrorNode | None = node
    while above is not None and above not in shown:
        missing.append(above)
        if above is root:
            break
        above = above.parent
    if (above is None and root is not None) or len(shown) + len(missing) > limit:
        return
    for each in reversed(missing):
        shown[each] = None


def _parents_first(nodes: Iterable[MirrorNode]) -> Iterator[MirrorNode]:
    """Iterate over the nodes so that each comes after its parent, if that is one of them."""
    left = set(nodes)
    for start in list(nodes):
        way: list[MirrorNode] = []
        node: MirrorNode | None = start
        while node is not None and node in left:
            left.remove(node)
            way.append(node)
            node = node.parent
        yield from reversed(way)


def _state(node: TreeNode) -> NodeState:
    if node.ref_count:
        return "leased"
    if node.on_host:
        return "host"
    return "pinned" if node.soft_pins else "cached"


def _counts(stats: CacheStats) -> tuple[int, int, int, int]:
    computed = stats.num_queried_tokens - stats.num_hit_tokens
    return stats.num_hit_tokens, computed, stats.num_evicted_pages, stats.num_demoted_pages


def _program_label(node: TreeNode) -> str | None:
    return None if node.program_id is None else label_of(program_name(node.program_id))
