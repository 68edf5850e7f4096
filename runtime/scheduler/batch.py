"""The running requests and their pages: grants room for the next tokens, and retracts requests when there is none.

A step's prompt tokens are split by `PrefillBudget`: the most senior prompt first, but never all of them for a prompt
that needs several steps while another prompt could use the rest. So a short prompt waits for a long one's chunks no
longer than its own length takes at a quarter of the tokens.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from ...radix.cache import PrefixCache
from ...radix.lease import Lease, LeaseUser, SparePages
from ...radix.state_slots import SlotCopy
from ...radix.window_pages import WindowPages, WindowSizes
from ..protocol.config import PAGE_SIZE, CoreConfig
from .background import BackgroundShare
from .drafts.prepared_draft import PreparedDraft
from .plan import ForwardPlan, ForwardResult, PageCopy, Row, RowState, StateAdvance, StateChange, StateCopy
from .request import Request
from .rows.pictures import before_part

STATE_INTERVAL = 1024  # tokens between the recurrent states that are kept of a long sequence
SHORT_PROMPT_SHARE = 4  # one in four prompt tokens is kept from long prompts
# Seconds that the decode steps of one plan may take: a frame of a display, faster than which nobody reads. The engine
# ends a plan early for a message and for a token that ends an output, but does not look for stop strings.
CONTINUOUS_SECONDS, CONTINUOUS_SECONDS_TO_STOP_STRINGS = 0.016, 0.004
MAX_CONTINUOUS = 16  # decode steps of one plan
# The program of all background requests, for eviction: what only they have used goes first, as what a program leaves
BACKGROUND = "background"


class CacheSizes(NamedTuple):
    """Sizes of a prefix cache, which follow from the engine's memory."""

    num_pages: int
    num_host_pages: int = 0
    page_size: int = PAGE_SIZE
    num_state_slots: int = 0  # 0: the model has no recurrent layers
    windows: WindowSizes | None = None  # None: pages hold the keys and values of all layers


def make_cache(config: CoreConfig, sizes: CacheSizes, *, events: bool = False) -> PrefixCache:
    """Make the prefix cache of a scheduler with these settings."""
    return PrefixCache(
        sizes.num_pages,
        sizes.page_size,
        config.prefix_cache,
        num_host_pages=sizes.num_host_pages,
        num_state_slots=sizes.num_state_slots,
        windows=None if sizes.windows is None else WindowPages(sizes.windows, sizes.page_size),
        strategy=config.eviction,
        events=events,
    )


class PrefillBudget:
    """Prompt tokens of one step. `contended` is true when more than one prompt could use them."""

    def __init__(self, num_left: int, *, contended: bool) -> None:
        self.num_left = num_left
        self._num_prompt = num_left
        reserve = -(-num_left // SHORT_PROMPT_SHARE) if contended and num_left > 1 else 0
        self._num_left_for_long = num_left - reserve

    def offer(self, num_uncomputed: int) -> int:
        """Return the number of tokens that a prompt with `num_uncomputed` tokens to go may have."""
        if num_uncomputed > self._num_prompt:
            return self._num_left_for_long
        return min(num_uncomputed, self.num_left)

    def take(self, num_uncomputed: int, num_tokens: int) -> None:
        """Deduct the tokens granted to a prompt."""
        self.num_left -= num_tokens
        if num_uncomputed > self._num_prompt:
            self._num_left_for_long -= num_tokens
        self._num_left_for_long = min(self._num_left_for_long, self.num_left)


class ScheduledRequest(msgspec.Struct, frozen=True):
    """A request's share of a step: its next `num_tokens` tokens, and the draft to verify after them."""

    request: Request
    num_tokens: int
    draft: PreparedDraft | None = None  # to verify after them
    num_decodes: int = 1  # decode steps; each after the first adds a token

    @property
    def num_slots(self) -> int:
        return self.num_tokens + (0 if self.draft is None else len(self.draft.tree)) + self.num_decodes - 1

    @property
    def is_widened(self) -> bool:
        """True if the share is part of a prompt whose rows are `widened`."""
        return self.request.next_position < self.request.widened_end

    @property
    def samples(self) -> bool:
        """True if the next token is sampled from this share."""
        request = self.request
        return request.wants_tokens and not request.is_held and self.num_tokens == request.num_unplanned


class RunningShares(msgspec.Struct, frozen=True):
    """Shares of the running requests in a step, the requests retracted for them, and the tokens left for new ones."""

    scheduled: list[ScheduledRequest]
    retracted: list[Request]
    num_left: int
    has_chunks: bool  # of prompts, which may have more tokens than these


class DecodesPerStep:
    """Chooses how many decode steps one plan has, by their time: planning and reading each by itself costs a small
    model as much as computing it."""

    def __init__(self, *, may_repeat: bool) -> None:
        """Without `may_repeat`, it is always one."""
        self._may_repeat = may_repeat
        self._seconds = math.inf  # of a decode step, the last one that was measured
        self._num_rows = 0  # of that step

    def most(self, scheduled: Sequence[ScheduledRequest]) -> int:
        """Return how many decode steps of these rows fit into the time: 1 at least, and 1 with more rows than the
        step that was measured last, since those take longer."""
        if not self._may_repeat or len(scheduled) > self._num_rows:
            return 1
        has_stop_strings = any(item.request.stops.reads_text for item in scheduled)
        seconds = CONTINUOUS_SECONDS_TO_STOP_STRINGS if has_stop_strings else CONTINUOUS_SECONDS
        return max(1, int(min(MAX_CONTINUOUS, seconds / max(self._seconds, 1e-9))))

    def observe(self, plan: ForwardPlan, result: ForwardResult) -> None:
        """Record the time of the plan's decode steps; of other plans, do nothing."""
        if plan.num_tokens == len(plan.rows):
            self._seconds, self._num_rows = result.seconds / result.num_decodes, len(plan.rows)


def end_tokens(running: Sequence[ScheduledRequest]) -> frozenset[int]:
    """Return the tokens each of which ends one of the outputs; none for a plan of one decode step, which needs none."""
    if not running or running[0].num_decodes == 1:
        return frozenset()
    return frozenset().union(*(item.request.stops.end_tokens for item in running))


def with_one_picture(scheduled: list[ScheduledRequest]) -> list[ScheduledRequest]:
    """Shorten shares of prompts, so that one picture begins in a step on which outputs wait: a pass of the vision tower
    may take as long as many steps. A share without tokens is left out."""
    if all(item.request.next_position < item.request.num_prompt for item in scheduled):
        return scheduled
    begun: set[bytes] = set()
    kept = []
    for item in scheduled:
        first = item.request.next_position
        end = first + item.num_tokens
        for picture in item.request.message.pictures:
            if first <= picture.runs[0].first < end:
                if begun and picture.key not in begun:
                    end = picture.runs[0].first
                begun.add(picture.key)
        if end > first:
            kept.append(msgspec.structs.replace(item, num_tokens=end - first))
    return kept


def num_cached(cache: PrefixCache, request: Request) -> int:
    """Return the number of cached tokens that the request can reuse: they end in no picture."""
    tokens, limit = request.cache_tokens, request.reuse_limit
    while True:
        num_tokens = cache.match(tokens, request.namespace, limit=limit)
        if (limit := before_part(request.message.pictures, num_tokens)) == num_tokens:
            return num_tokens


class Batch:
    """Running requests, most senior first. The most senior one always gets room, so the batch always progresses."""

    def __init__(self, cache: PrefixCache, widened_from: int = 0) -> None:
        """`widened_from` is the number of a prompt's tokens to compute from which on its rows are `widened`; 0: none
        are."""
        self._cache, self._widened_from = cache, widened_from
        self._requests: list[Request] = []

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def start(self, request: Request, num_matched: int, max_tokens: int, *, spare: int) -> ScheduledRequest | None:
        """Lease the cached prefix and room for at most `max_tokens` more tokens.

        Returns None, with nothing changed, if there is no room or fewer than `spare` pages would be left for running
        requests.
        """
        assert request.lease is None
        request.decide_widening(self._widened_from, num_matched)
        max_tokens = request.whole_chunk(max_tokens, num_matched)
        lease = self._cache.acquire(
            request.cache_tokens,
            request.namespace,
            limit=num_cached(self._cache, request) if request.message.pictures else request.reuse_limit,
            num_tokens=min(num_matched + max_tokens, len(request.tokens)),
            spare=SparePages(spare, min(spare, self._window_growth(request, num_matched + max_tokens))),
            user=LeaseUser(BACKGROUND if request.is_background else request.program_id, request.message.priority),
        )
        if lease is None:
            return None
        self._cache.drop_soft_pin(request.rid)
        request.lease = lease
        request.num_computed = lease.matched
        insort(self._requests, request, key=lambda other: other.seniority)
        num_tokens = min(self._room(lease, request.next_position), max_tokens, request.num_unplanned)
        return ScheduledRequest(request, request.whole_chunk(num_tokens))

    def schedule_running(
        self, budget: int, background: BackgroundShare, *, contended: bool, may_retract: bool
    ) -> RunningShares | None:
        """Split `budget` tokens: one for each decoding request, the rest for prompts, the most senior first. Background
        requests beyond their share sit out, with their pages.

        `contended` is true when waiting requests could use what long prompts leave. Returns None if a request would
        have to be retracted and `may_retract` is false: pages that a plan in flight writes cannot be taken away.
        """
        retracted: list[Request] = []
        switches = bool(self._requests) and self._requests[0].rope is not None
        if switches or self._cache.states is not None or self._cache.windows is not None:
            retracted = [request for request in self._requests if self._has_lost_memory(request)]
        if retracted and not may_retract:
            return None
        for request in retracted:
            self.retract(request)
        num_unplanned_R = [request.num_unplanned for request in self._requests]
        num_decoding = num_unplanned_R.count(1)
        contended = contended or len(self._requests) - num_decoding > 1
        chunks = PrefillBudget(budget - num_decoding, contended=contended)
        has_chunks = False
        scheduled: list[ScheduledRequest] = []
        for request, num_unplanned in zip(list(self._requests), num_unplanned_R, strict=True):
            lease = request.lease
            if lease is None:
                continue  # retracted for a more senior request
            wanted = 1 if num_unplanned == 1 else chunks.offer(num_unplanned)
            if request.is_background:
                wanted = background.offer(wanted)
            if wanted <= 0:  # a picture may have taken more than was left
                continue
            if num_unplanned > 1:
                wanted = request.whole_chunk(wanted)
            granted: int | None = wanted
            if self._room(lease, request.next_position) < wanted:
                granted = self._make_room(request, lease, wanted, retracted if may_retract else None)
            if num_unplanned > 1:
                chunks.take(num_unplanned, granted or 0)
                has_chunks = True
            if granted is None:
                return None
            if granted:
                scheduled.append(ScheduledRequest(request, granted))
                if request.is_background:
                    background.take(granted)
                elif num_unplanned > 1:
                    background.close()
        return RunningShares(scheduled, retracted, chunks.num_left, has_chunks)

    def extend_prefills(
        self, scheduled: list[ScheduledRequest], num_tokens: int, background: BackgroundShare
    ) -> list[ScheduledRequest]:
        """Give the `num_tokens` tokens that no other request can use to the scheduled prompts, the
        most senior first."""
        extended = []
        for item in scheduled:
            request = item.request
            more = min(num_tokens, request.num_unplanned - item.num_tokens)
            if more > 0:  # a decode row never lacks any, so its room need not be found
                more = min(more, self.num_free_slots(item))
                if request.is_background:
                    more = background.extend(more)
                more = request.whole_chunk(item.num_tokens + more) - item.num_tokens
            if more > 0:
                self._extend(request, item.num_tokens + more)
                item = msgspec.structs.replace(item, num_tokens=item.num_tokens + more)
                num_tokens -= more
            extended.append(item)
        return extended

    def num_free_slots(self, item: ScheduledRequest) -> int:
        """Return the number of slots that the share could have for draft tokens without retracting a request."""
        lease = item.request.lease
        assert lease is not None
        num_available = self._cache.num_available * self._cache.page_size
        return self._room(lease, item.request.next_position) + num_available - item.num_tokens

    def add_draft(self, item: ScheduledRequest, draft: PreparedDraft) -> ScheduledRequest:
        self._extend(item.request, item.num_tokens + len(draft.tree))
        return msgspec.structs.replace(item, draft=draft)

    def add_decodes(self, scheduled: list[ScheduledRequest], most: int) -> list[ScheduledRequest]:
        """Let rows that all decode do so up to `most` times in this step, as far as each can without retracting one."""
        if most < 2 or any(item.num_tokens > 1 or item.is_widened or not item.samples for item in scheduled):
            return scheduled
        num_decodes = min([most, *(item.request.num_unconditional for item in scheduled)])
        if num_decodes < 2:
            return scheduled
        for item in scheduled:
            if self.num_free_slots(item) < num_decodes - 1:
                return scheduled
            self._extend(item.request, num_decodes)
        return [msgspec.structs.replace(item, num_decodes=num_decodes) for item in scheduled]

    def take_copies(self) -> list[PageCopy]:
        """Return the copies of pages for the next plan."""
        return [PageCopy(copy.source, copy.target, copy.num_tokens) for copy in self._cache.take_copies()]

    def take_window_copies(self) -> list[PageCopy]:
        """Return the copies of window pages for the next plan."""
        if (windows := self._cache.windows) is None:
            return []
        copies, windows.copies = windows.copies, []
        return [PageCopy(*copy) for copy in copies]

    def take_state_changes(self) -> list[StateChange]:
        """Return the changes of recurrent states for the next plan."""
        changes = [] if self._cache.states is None else self._cache.states.take_changes()
        return [StateCopy(*change) if isinstance(change, SlotCopy) else StateAdvance(*change) for change in changes]

    def publish(self, request: Request, row: Row, num_computed_before: int) -> None:
        """Publish computed tokens: all of a prompt, for which others may wait; afterwards whole pages only."""
        assert request.lease is not None
        if request.poisoned:
            return
        num_whole = request.num_computed - request.num_computed % self._cache.page_size
        is_longer = len(row.tokens) > 1 and row.num_committed > 1
        if is_longer or num_computed_before < request.num_prompt:
            self._cache.commit(request.lease, request.cache_tokens[: request.num_computed])
        elif num_whole > num_computed_before:
            self._cache.commit(request.lease, request.cache_tokens[:num_whole])

    def slide(self, request: Request, windows: WindowPages) -> None:
        """Let go of the window pages behind the request's window."""
        assert request.lease is not None
        forks = request.num_prompt - 1, *request.fork_positions  # a prompt's last token is always computed
        windows.slide(request.lease, request.num_computed, forks)

    def window_table(self, lease: Lease, num_pages: int) -> list[int]:
        """Return the window pages of the lease's first pages; none if the model has no window pages."""
        return [] if self._cache.windows is None else self._cache.windows.table(lease, num_pages)

    def row_state(self, item: ScheduledRequest) -> RowState | None:
        """Return the row's slot of recurrent states, and the states that are kept on its way: near the prompt's end,
        where other requests leave the sequence, and at intervals."""
        request, lease = item.request, item.request.lease
        assert lease is not None
        if lease.states is None:
            return None
        first, end = request.next_position, request.next_position + item.num_tokens
        saves = []
        for position, is_strong in sorted(self._kept_states(request, first, end).items()):
            if (slot := lease.states.plan(position, is_strong=is_strong)) is not None:
                saves.append((position - first, slot))
        return RowState(lease.states.slot, saves)

    def _kept_states(self, request: Request, first: int, end: int) -> dict[int, bool]:
        """Return the positions in (first, end] at which a state is kept, and whether as a strong one."""
        assert request.lease is not None
        if not self._cache.enabled or request.lease.states is None:
            return {}
        size = self._cache.page_size
        # A prompt that comes again, or goes on otherwise, is computed from its last whole page on. The last token's
        # logits are needed, so it is computed in any case.
        wanted = {(request.num_prompt - 1) // size * size}
        wanted.add(request.lease.matched + request.lease.states.num_replayed)  # where it left a cached sequence
        wanted |= request.fork_positions
        kept = dict.fromkeys(range((first // STATE_INTERVAL + 1) * STATE_INTERVAL, end + 1, STATE_INTERVAL), False)
        return kept | {position: True for position in wanted if first < position <= end}

    def remove(self, request: Request) -> None:
        """Stop running the request. It keeps its pages until `release`."""
        self._requests.remove(request)

    def release(self, request: Request) -> None:
        """Release the pages. Computed tokens stay in the cache until they are evicted, unless they are poisoned."""
        assert request.lease is not None
        if request.poisoned:
            self._cache.discard(request.lease)
        else:
            self._cache.release(request.lease, request.cache_tokens[: request.num_computed])
        request.lease = None
        request.num_computed = request.num_in_flight = 0
        request.token_in_flight = False

    def _make_room(
        self, request: Request, lease: Lease, num_tokens: int, retracted: list[Request] | None
    ) -> int | None:
        """Make room for up to `num_tokens` tokens, at least one chunk for the most senior request. Returns the number
        granted, or None if a request would have to be retracted and `retracted` is None.

        Requests are retracted from the most junior on, and only if there is no room for the least chunk. The most
        junior request itself keeps its pages and pauses: recomputing them would be waste as long as no senior request
        needs them.
        """
        page_size, held = self._cache.page_size, self._room(lease, request.next_position)
        least = request.whole_chunk(1)
        while (room := held + self._cache.num_available * page_size) < least:
            victim = self._requests[-1]
            if victim is request and request is not self._requests[0]:
                return 0
            if retracted is None:
                return None
            assert victim is not request, "a request does not fit in the pool alone: its end is wrong"
            self.retract(victim)
            retracted.append(victim)
        granted = request.whole_chunk(min(num_tokens, room))
        self._extend(request, granted)
        return granted

    def _has_lost_memory(self, request: Request) -> bool:
        """Return True if the request's recurrent state is no longer that of its computed tokens, its window pages
        begin after their window, or its tokens rotate by other angles now: it has to start again from what is
        cached."""
        lease, windows = request.lease, self._cache.windows
        if lease is None:
            return False
        if request.rope is not None and lease.namespace != request.namespace:
            return True
        if lease.states is not None:
            return lease.states.is_ahead
        return windows is not None and windows.has_lost(lease, request.num_computed)

    def _window_growth(self, starting: Request, num_tokens: int) -> int:
        """Return the window pages that the running requests and one that starts with `num_tokens` tokens may take
        besides those that they hold then."""
        if (windows := self._cache.windows) is None:
            return 0
        num_held = [len(other.lease.pages) - other.lease.window_start for other in self._requests if other.lease]
        num_held.append(self._cache.pages_for(min(num_tokens, len(starting.tokens))))
        return sum(max(0, windows.most_of_lease - held) for held in num_held)

    def _extend(self, request: Request, num_tokens: int) -> None:
        assert request.lease is not None
        extended = self._cache.extend(request.lease, request.next_position + num_tokens)
        assert extended

    @property
    def has_background(self) -> bool:
        """True if a background request runs."""
        return bool(self._requests) and self._requests[-1].is_background

    def junior_to(self, request: Request) -> Request | None:
        """Return the most junior running request, if its priority is lower than that of `request`, which waits."""
        last = self._requests[-1] if self._requests else None
        return last if last is not None and last.message.priority < request.message.priority else None

    def retract(self, request: Request) -> None:
        """Take the place and the pages away from a running request, which has to start again."""
        self.suspend(request)
        request.num_retractions += 1

    def suspend(self, request: Request) -> None:
        """Give up the place and the pages. Computed tokens are soft-pinned until the request starts again."""
        assert request.lease is not None
        self.remove(request)
        if not request.poisoned:
            self._cache.commit(request.lease, request.cache_tokens[: request.num_computed])
            self._cache.set_soft_pin(request.lease, request.rid, request.num_computed, request.rank)
        self.release(request)

    def _room(self, lease: Lease, position: int) -> int:
        """Return the number of slots that the lease has from `position` on."""
        return len(lease.pages) * self._cache.page_size - position
