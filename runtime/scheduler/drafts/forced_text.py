"""Puts text that a grammar forces into draft trees, as jump-forward decoding appends it to outputs.

A draft mostly ends where its tokens meet forced text: a source that knows no grammar writes it in other tokens, or in
other words. Here the forced tokens come from the grammar, cost no guess, and the draft goes on behind them.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import takewhile
from typing import NamedTuple

from ....constrained.errors import GrammarError
from ..jump_forward import CONTEXT_TOKENS, Retokenise, all_equal
from ..request import Request
from .prepared_draft import StateBudget
from .tree import DraftTree

MAX_FORCED = 16  # nodes of a tree that are forced
MIN_SCORE = math.log(0.05)  # of a node after which a draft goes on beyond its tree

GoOn = Callable[[Sequence[int]], DraftTree | None]  # tokens after those of the request -> what may come next


def can_force(request: Request) -> bool:
    """Return True if a draft may hold forced tokens: not where they are scored by themselves, or may end the output."""
    return request.matcher is not None and request.message.logprobs is None and not request.stops.reads_text


def with_forced_text(
    request: Request,
    tree: DraftTree,
    retokenise: Retokenise,
    bounds: DraftBounds,
    *,
    budget: StateBudget | None,
    go_on: GoOn | None = None,
) -> DraftTree:
    """Return the likeliest nodes of `tree` that the request's grammar accepts, and the tokens that it forces after
    them.

    Where a path of the tree ends, and behind forced tokens that it has not, comes what `go_on` returns. With a
    `budget`, text for which the grammar would have to make more new states than that allows is left out. The matcher's
    state is restored.
    """
    began = time.perf_counter()
    end = None if budget is None else began + budget.balance
    growth = _Growth(request, retokenise, bounds, end, go_on)
    growth.grow(tree)
    if budget is not None:
        budget.balance -= time.perf_counter() - began
    return DraftTree(growth.tokens, growth.parents, growth.scores, frozenset(growth.forced))


@dataclass(frozen=True)
class DraftBounds:
    """Bounds the size of a draft: its nodes that are not forced, and the children of a node."""

    num_guesses: int
    top_k: int


class _NextNode(NamedTuple):
    """A node that may be added: node `source` of `tree`, after node `parent` and the tokens on the way to it."""

    cost: float  # minus its score; the least comes first
    number: int
    parent: int
    path: tuple[int, ...]
    tree: DraftTree
    source: int


@dataclass
class _Growth:
    request: Request
    retokenise: Retokenise
    bounds: DraftBounds
    end: float | None  # time after which no new states are made; None: it does not matter
    go_on: GoOn | None
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    forced: set[int] = field(default_factory=set)
    _heap: list[_NextNode] = field(default_factory=list)
    _num_candidates: int = 0
    _followed: list[int] = field(default_factory=list)  # what the matcher has accepted beyond the request's text

    def grow(self, tree: DraftTree) -> None:
        """Add the nodes, the likeliest first: so few are added that none has to go again."""
        self._push(tree, -1, -1, (), 0.0)
        num_children: Counter[int] = Counter()
        while self._heap and len(self.tokens) - len(self.forced) < self.bounds.num_guesses:
            at = heappop(self._heap)
            token = at.tree.tokens[at.source]
            full = num_children[at.parent] >= self.bounds.top_k
            if full or not self._follow(at.path) or not self._accepts(token):
                continue
            num_children[at.parent] += 1
            node = self._add(token, at.parent, -at.cost)
            path = (*at.path, token)
            forced = self._forced(path)
            for each in forced:
                node = self._add(each, node, -at.cost)
                self.forced.add(node)
            path += tuple(forced)
            rest = at.tree.find(forced, at.source)
            if rest is not None and rest in at.tree.parents:
                self._push(at.tree, rest, node, path, -at.cost - at.tree.scores[at.source])
            elif self.go_on is not None and -at.cost > MIN_SCORE and (more := self.go_on(path)) is not None:
                self._push(more, -1, node, path, -at.cost)
        self._follow(())

    def _push(self, tree: DraftTree, source: int, parent: int, path: tuple[int, ...], score: float) -> None:
        """Make candidates of the children of `tree`'s node `source`; `score` is that of the tree's root."""
        for node, above in enumerate(tree.parents):
            if above == source:
                self._num_candidates += 1
                cost = -(score + tree.scores[node])
                heappush(self._heap, _NextNode(cost, self._num_candidates, parent, path, tree, node))

    def _follow(self, path: Sequence[int]) -> bool:
        """Let the matcher be behind `path`, which it accepted before."""
        matcher = self.request.matcher
        assert matcher is not None
        num_same = sum(1 for _ in takewhile(all_equal, zip(self._followed, path, strict=False)))
        matcher.rollback(len(self._followed) - num_same)
        del self._followed[num_same:]
        return all(self._accepts(token) for token in path[num_same:])

    def _add(self, token: int, parent: int, score: float) -> int:
        self.tokens.append(token)
        self.parents.append(parent)
        self.scores.append(score)
        return len(self.tokens) - 1

    def _accepts(self, token: int) -> bool:
        matcher = self.request.matcher
        assert matcher is not None
        try:
            if self.end is None:
                accepted = matcher.accept(token)
            else:
                accepted = bool(matcher.accept_at_once(token, new_states=time.perf_counter() < self.end))
        except GrammarError:
            return False  # too complex; plain decoding reports it if it gets there
        if accepted:
            self._followed.append(token)
        return accepted

    def _forced(self, path: Sequence[int]) -> list[int]:
        """Return the tokens that would be appended to the output after `path`, and let the matcher accept them."""
        request, matcher = self.request, self.request.matcher
        assert matcher is not None
        room = min(MAX_FORCED - len(self.forced), request.end - 1 - len(request.tokens) - len(path))
        accepted: list[int] = []
        try:
            if room <= 0 or not (
                self.end is None or matcher.is_ready(forced=True, new_states=time.perf_counter() < self.end)
            ):
                return []
            text = matcher.forced()
            before = [*request.tokens[-CONTEXT_TOKENS:], *path]
            for token in self.retokenise(before, text)[:room] if text else []:
                if not self._may_be_appended(token, [*path, *accepted]) or not self._accepts(token):
                    break
                accepted.append(token)
        except GrammarError:
            pass  # as above
        return accepted

    def _may_be_appended(self, token: int, path: Sequence[int]) -> bool:
        stops, num_output = self.request.stops, self.request.num_output + len(path)
        rules = self.request.rules
        if rules is not None and not rules.allows(token, [*self.request.recent_output, *path]):
            return False
        return token not in stops.suppressed(num_output) and not stops.can_end(token)
