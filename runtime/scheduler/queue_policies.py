"""Who of the waiting goes first: each order is a place that a request keeps, and an arrangement of those in front.

Knows requests, how much of each is cached, and who runs; knows no pages. Priority precedes everything in all of them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..protocol.config import OrderName
from .request import Request
from .sharing import common_prefix

MAX_SHARES = 8  # into which the places are split, lest the branches of one program come singly when many wait


@dataclass(frozen=True)
class View:
    """What an arrangement may ask. `num_cached` costs a match."""

    num_cached: Callable[[Request], int]
    has_begun: Callable[[Request], bool]  # whether its program has had a place before
    running: Sequence[Request]
    max_running: int
    page_size: int


@dataclass(frozen=True)
class Order:
    """`place` stays as it is while a request waits. `arrange` sees those in front, by place."""

    place: Callable[[Request], tuple[int, ...]]
    arrange: Callable[[list[Request], View], list[Request]]


def _by_arrival(request: Request) -> tuple[int, ...]:
    return -request.message.priority, request.serial


def _by_program(request: Request) -> tuple[int, ...]:
    return -request.message.priority, request.rank, request.serial


def _as_they_come(front: list[Request], view: View) -> list[Request]:
    return front


def _longest_prefix_first(front: list[Request], view: View) -> list[Request]:
    """What is cached is used before it can be evicted (SGLang, arXiv:2312.07104, section 3)."""
    return sorted(front, key=lambda request: (-request.message.priority, -view.num_cached(request), request.serial))


def _depth_first(front: list[Request], view: View) -> list[Request]:
    """In the order of a walk through the tree, so that requests with a cached prefix in common follow one another;
    where it branches, the branch with the most requests comes first (section 3, Theorem 3.1)."""
    paths = [(request.message.namespace, request.tokens[: view.num_cached(request)], request) for request in front]
    walked = _walk(sorted(paths, key=lambda path: (*path[:2], path[2].serial)), None)
    return sorted(walked, key=lambda request: -request.message.priority)


Path = tuple[str, list[int], Request]  # namespace, cached tokens, whose


def _walk(paths: list[Path], depth: int | None) -> list[Request]:
    """Sorted paths that are equal up to `depth` tokens; None: not even in their namespaces."""
    if depth is not None:
        first, last = paths[0][1], paths[-1][1]
        # Sorted, so what the first and the last share, all share.
        depth += common_prefix(first[depth:], last[depth:])
    here = [path[2] for path in paths if depth is not None and len(path[1]) == depth]
    branches: defaultdict[str | int, list[Path]] = defaultdict(list)
    for path in paths[len(here) :]:
        branches[path[0] if depth is None else path[1][depth]].append(path)
    heaviest_first = sorted(
        branches.values(), key=lambda branch: (-len(branch), min(path[2].serial for path in branch))
    )
    return here + [request for branch in heaviest_first for request in _walk(branch, depth or 0)]


def _fairly_by_program(front: list[Request], view: View) -> list[Request]:
    """First programs that have begun, those with the fewest generations to come before the others, as far as it is
    known, and else the one that came first. Then those that have not, what is cached of them before it can be evicted.

    A long program that has begun is passed only by programs that began beside it: no other begins before it goes on.

    While others wait, what a program asks for beyond its share of the places comes after what is within another's.
    """
    held = Counter(_program(request) for request in view.running)
    num_programs = len(held.keys() | {_program(request) for request in front})
    share = -(-view.max_running // max(1, min(num_programs, MAX_SHARES)))

    def key(request: Request) -> tuple[int, ...]:
        held[_program(request)] += 1
        is_beyond = held[_program(request)] > share
        has_begun = view.has_begun(request)
        then = _to_come(request) if has_begun else (-view.num_cached(request),)
        return -request.message.priority, is_beyond, not has_begun, *then, request.rank, request.serial

    return sorted(front, key=key)


def _to_come(request: Request) -> tuple[int, ...]:
    """Generations of the request's program, when all of them are known: those that are not come after all others."""
    outlook = request.message.outlook
    return (0, outlook.num_generations) if outlook is not None and outlook.complete else (1, 0)


def _program(request: Request) -> str:
    return request.family or request.rid


ORDERS: dict[OrderName, Order] = {
    "fcfs": Order(_by_arrival, _as_they_come),
    "lpm": Order(_by_arrival, _longest_prefix_first),
    "dfs": Order(_by_arrival, _depth_first),
    "program": Order(_by_program, _fairly_by_program),
}
