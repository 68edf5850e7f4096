"""Who of the waiting goes first: each order is a place that a request keeps, and an arrangement of those in front.

Knows requests, how much of each is cached, and who runs; knows no pages. Priority precedes everything in all of them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..protocol.config import OrderName
from .request import Request

MAX_PROGRAM_SHARES = 8  # into which the places are split, lest the branches of one program come singly when many wait


@dataclass(frozen=True)
class QueueContext:
    """What an arrangement may ask. `num_cached` costs a match."""

    num_cached: Callable[[Request], int]
    has_started: Callable[[Request], bool]  # whether its program has had a place before
    running: Sequence[Request]
    max_running: int
    page_size: int


@dataclass(frozen=True)
class QueuePolicy:
    """`place` stays as it is while a request waits. `arrange` sees those in front, by place."""

    key: Callable[[Request], tuple[int, ...]]
    arrange: Callable[[list[Request], QueueContext], list[Request]]


def _arrival_key(request: Request) -> tuple[int, ...]:
    return -request.message.priority, request.serial


def _program_key(request: Request) -> tuple[int, ...]:
    return -request.message.priority, request.rank, request.serial


def _first_come_first_served(front: list[Request], context: QueueContext) -> list[Request]:
    return front


def _longest_prefix_first(front: list[Request], context: QueueContext) -> list[Request]:
    """What is cached is used before it can be evicted (SGLang, arXiv:2312.07104, section 3)."""
    return sorted(front, key=lambda request: (-request.message.priority, -context.num_cached(request), request.serial))


def _depth_first(front: list[Request], context: QueueContext) -> list[Request]:
    """In the order of a walk through the tree, so that requests with a cached prefix in common follow one another;
    where it branches, the branch with the most requests comes first (section 3, Theorem 3.1)."""
    paths = [(request.message.namespace, request.tokens[: context.num_cached(request)], request) for request in front]
    walked = _depth_first_walk(sorted(paths, key=lambda path: (*path[:2], path[2].serial)), None)
    return sorted(walked, key=lambda request: -request.message.priority)


CachedPath = tuple[str, list[int], Request]  # namespace, cached tokens, whose


def _depth_first_walk(paths: list[CachedPath], depth: int | None) -> list[Request]:
    """Sorted paths that are equal up to `depth` tokens; None: not even in their namespaces."""
    if depth is not None:
        first, last = paths[0][1], paths[-1][1]
        # Sorted, so what the first and the last share, all share.
        depth += shared_prefix_length(first[depth:], last[depth:])
    here = [path[2] for path in paths if depth is not None and len(path[1]) == depth]
    branches: defaultdict[str | int, list[CachedPath]] = defaultdict(list)
    for path in paths[len(here) :]:
        branches[path[0] if depth is None else path[1][depth]].append(path)
    heaviest_first = sorted(
        branches.values(), key=lambda branch: (-len(branch), min(path[2].serial for path in branch))
    )
    return here + [request for branch in heaviest_first for request in _depth_first_walk(branch, depth or 0)]


def _fair_by_program(front: list[Request], context: QueueContext) -> list[Request]:
    """First programs that have begun, those with the fewest generations to come before the others, as far as it is
    known, and else the one that came first. Then those that have not, what is cached of them before it can be evicted.

    A long program that has begun is passed only by programs that began beside it: no other begins before it goes on.

    While others wait, what a program asks for beyond its share of the places comes after what is within another's.
    """
    num_held = Counter(_program_or_request(request) for request in context.running)
    num_programs = len(num_held.keys() | {_program_or_request(request) for request in front})
    share = -(-context.max_running // max(1, min(num_programs, MAX_PROGRAM_SHARES)))

    def key(request: Request) -> tuple[int, ...]:
        num_held[_program_or_request(request)] += 1
        is_beyond_share = num_held[_program_or_request(request)] > share
        has_started = context.has_started(request)
        tie_break = _remaining_generations(request) if has_started else (-context.num_cached(request),)
        return -request.message.priority, is_beyond_share, not has_started, *tie_break, request.rank, request.serial

    return sorted(front, key=key)


def _remaining_generations(request: Request) -> tuple[int, ...]:
    """Generations of the request's program, when all of them are known: those that are not come after all others."""
    progress = request.message.outlook
    return (0, progress.num_generations) if progress is not None and progress.complete else (1, 0)


def _program_or_request(request: Request) -> str:
    return request.program_id or request.rid


def shared_prefix_length(a: Sequence[int], b: Sequence[int]) -> int:
    """How many first elements are equal, by halving: slices compare fast."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


QUEUE_POLICIES: dict[OrderName, QueuePolicy] = {
    "fcfs": QueuePolicy(_arrival_key, _first_come_first_served),
    "lpm": QueuePolicy(_arrival_key, _longest_prefix_first),
    "dfs": QueuePolicy(_arrival_key, _depth_first),
    "program": QueuePolicy(_program_key, _fair_by_program),
}
