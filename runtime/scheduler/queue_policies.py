"""Policies of the waiting queue: `fcfs`, `lpm`, `dfs` and `program`.

Each has a key that a request keeps while it waits, and an arrangement of the requests in front. Priority precedes
everything in all of them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..protocol.config import OrderName
from .request import Request

MAX_PROGRAM_SHARES = 8  # so that the branches of a program are not admitted singly when many programs wait


@dataclass(frozen=True)
class QueueContext:
    """Inputs of an arrangement. Each call of `num_cached` costs a match in the prefix cache."""

    num_cached: Callable[[Request], int]
    has_started: Callable[[Request], bool]  # true if its program has run before
    running: Sequence[Request]
    max_running: int
    page_size: int


@dataclass(frozen=True)
class QueuePolicy:
    """Order of waiting requests. `key` is constant while a request waits; `arrange` reorders the requests in front."""

    key: Callable[[Request], tuple[int, ...]]
    arrange: Callable[[list[Request], QueueContext], list[Request]]


def _arrival_key(request: Request) -> tuple[int, ...]:
    return -request.message.priority, request.serial


def _program_key(request: Request) -> tuple[int, ...]:
    return -request.message.priority, request.rank, request.serial


def _first_come_first_served(front: list[Request], context: QueueContext) -> list[Request]:
    return front


def _longest_prefix_first(front: list[Request], context: QueueContext) -> list[Request]:
    """Return the requests with the longest cached prefix first, before it can be evicted (SGLang, arXiv:2312.07104,
    section 3)."""
    return sorted(front, key=lambda request: (-request.message.priority, -context.num_cached(request), request.serial))


def _depth_first(front: list[Request], context: QueueContext) -> list[Request]:
    """Depth-first order of the radix tree, so that requests with a common cached prefix follow one another.

    Where the tree branches, the branch with the most requests comes first (arXiv:2312.07104, section 3, Theorem 3.1).
    """
    paths = [(request.namespace, request.cache_tokens[: context.num_cached(request)], request) for request in front]
    walked = _depth_first_walk(sorted(paths, key=lambda path: (*path[:2], path[2].serial)), None)
    return sorted(walked, key=lambda request: -request.message.priority)


CachedPath = tuple[str, list[int], Request]  # namespace, cached tokens, request


def _depth_first_walk(paths: list[CachedPath], depth: int | None) -> list[Request]:
    """Order sorted paths that agree in their first `depth` tokens; None: not even in their namespaces."""
    if depth is not None:
        first, last = paths[0][1], paths[-1][1]
        # Sorted: what the first and the last share, all share.
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
    """Started programs first: those with the fewest known generations to come, then those with the fewest tokens to
    compute now, since what is computed may be lost while they wait, then the oldest. Then new programs, those with the
    longest cached prefix first.

    No new program starts before a started one continues. While others wait, requests beyond their program's share of
    the places come after those within their program's share.
    """
    num_held = Counter(_program_or_request(request) for request in context.running)
    num_programs = len(num_held.keys() | {_program_or_request(request) for request in front})
    share = -(-context.max_running // max(1, min(num_programs, MAX_PROGRAM_SHARES)))
    # Of all requests of a program: a join waits for all branches. So none counts while another branch of it runs.
    num_uncached: Counter[str] = Counter()
    num_running = num_held.copy()
    for request in front:
        if (name := _program_or_request(request)) not in num_running and context.has_started(request):
            num_uncached[name] += len(request.tokens) - context.num_cached(request)

    def key(request: Request) -> tuple[int, ...]:
        tie_break: tuple[int, ...]
        num_held[_program_or_request(request)] += 1
        is_beyond_share = num_held[_program_or_request(request)] > share
        has_started = context.has_started(request)
        if has_started:
            tie_break = *_remaining_generations(request), num_uncached[_program_or_request(request)]
        else:
            tie_break = (-context.num_cached(request),)
        return -request.message.priority, is_beyond_share, not has_started, *tie_break, request.rank, request.serial

    return sorted(front, key=key)


def _remaining_generations(request: Request) -> tuple[int, ...]:
    """Sort key for the number of generations left in the request's program; programs where it is
    not known come last."""
    progress = request.message.progress
    return (0, progress.num_generations) if progress is not None and progress.complete else (1, 0)


def _program_or_request(request: Request) -> str:
    return request.program_id or request.rid


def shared_prefix_length(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the length of the common prefix of two sequences, by bisection: slices compare fast."""
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
