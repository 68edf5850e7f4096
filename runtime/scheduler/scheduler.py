"""Decides each step's work, and turns results into answers. Pure: it does no I/O.

    answers = scheduler.handle(message, now)          # for each message
    plan = scheduler.plan(now)                        # while there is work
    answers = scheduler.answers()                     # of requests that needed no forward
    answers = scheduler.commit(plan, result, now)

While a plan is in flight the next one may be made (docs/inside/decisions/0011): `plan`, `plan`, `commit` of the first,
`sampling` of the second, `plan`, and so on.

A plan mixes decode rows and prefill chunks under one token budget. A request is, in this order: waiting; running, that
is, with a lease; possibly retracted, that is, waiting again; ended. While its grammar is compiled, it runs as far as
its prompt goes; then it is parked, without lease or place, until the grammar is ready. While the grammar works out what
may follow a token, the request keeps its lease and sits out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import Future
from functools import partial
from operator import attrgetter
from typing import Any

from msgspec.structs import replace

from ...radix.cache import PrefixCache
from ..protocol.config import DEFAULT_MAX_RUNNING, CoreConfig
from ..protocol.core import (
    Abort,
    CoreReply,
    CoreStats,
    EndStates,
    FlushCache,
    FromCore,
    Generate,
    GetStats,
    Pause,
    RequestFailed,
    ToCore,
    TurnEnded,
)
from ..protocol.errors import BusyError, ErrorInfo, ModelError, RequestError
from ..protocol.sampling import MemoryTag, RunningRequests
from .admission import Admission
from .apply_result import AppliedResult, abort_answer, apply_result, end_output, prompt_answer
from .background import BackgroundPace
from .batch import Batch, CacheSizes, DecodesPerStep, ScheduledRequest, end_tokens, make_cache, with_one_picture
from .counters import SchedulerCounters
from .drafts.drafting import Drafting
from .in_flight_plan import InFlightPlan
from .interfaces import GrammarProvider, VocabularyInfo
from .memory_forecast import OutputLengthEstimator
from .plan import ForwardPlan, ForwardResult, Row, RowResult, SamplingPlan
from .programs import LivePrograms
from .queue_policies import QUEUE_POLICIES
from .remote_prefixes import RemotePrefixes, SchedulerCalls
from .request import Request, length_limit, make_request, program_id, session_id
from .rope_switch import RopeSwitch
from .rows.mask_preparation import GrammarFollowing
from .rows.route_record import route_record
from .rows.row_builder import build_following_row, build_row, build_sampling
from .rows.weight_change import WeightChange

__all__ = ["CacheSizes", "Scheduler", "SchedulerCalls", "VocabularyInfo", "make_cache"]


class Scheduler:
    """Schedules the requests of one core."""

    def __init__(
        self,
        config: CoreConfig,
        *,
        cache: PrefixCache,
        vocabulary: VocabularyInfo,
        grammars: GrammarProvider,
        context_length: int,
        calls: SchedulerCalls,
        continuous: bool = False,
        rope: RopeSwitch | None = None,
        route_shape: tuple[int, int] | None = None,
        widened_from: int = 0,
    ) -> None:
        """With `continuous`, which takes plans one after the other, a plan may have several short decode steps. `rope`
        is that of a model whose angles change with the length, `route_shape` that of the experts which are recorded;
        `widened_from` is as in `Batch`."""
        self._cache = cache
        self._vocabulary = vocabulary
        self._grammars = grammars
        self._context_length = context_length
        self._rope, self._route_shape = rope, route_shape
        self._config = config
        self._requests: dict[str, Request] = {}
        self._compiling: dict[str, Future[Any]] = {}
        self._parked: dict[str, Request] = {}  # waiting for their grammars, without lease
        self._remote = RemotePrefixes(calls.fetch_prefix)
        self._batch = Batch(cache, widened_from)
        self._programs = LivePrograms(cache)
        self._output_lengths = OutputLengthEstimator()
        retokenise = calls.retokenise if config.jump_forward else None
        self._drafting = Drafting(config, vocabulary, at_once=calls.prepare_masks is not None, retokenise=retokenise)
        # Every running request decodes in every step, so the token budget bounds their number.
        max_running = min(config.max_running or DEFAULT_MAX_RUNNING, config.prefill_budget)
        order = QUEUE_POLICIES[config.order]
        self._waiting = Admission(
            cache, self._batch, self._programs, self._output_lengths, order, max_running=max_running
        )
        self.weights = WeightChange(self._batch, cache)
        self._in_flight: deque[InFlightPlan] = deque()  # oldest first
        self._background = BackgroundPace()
        self._decodes = DecodesPerStep(may_repeat=continuous and cache.states is None and cache.windows is None)
        self._sampling: SamplingPlan | None = None
        self._answers: list[FromCore] = []
        self._num_arrived = 0
        self._counters = SchedulerCounters()
        self._following = GrammarFollowing(retokenise, calls.prepare_masks, self._counters)

    @property
    def idle(self) -> bool:
        """True if there is nothing to compute or to answer now. Requests may still wait, for their grammars or for the
        end of a pause."""
        if self._in_flight or self._answers or not self.weights.computes:
            return not (self._in_flight or self._answers)
        return not (self._batch or (self._waiting and self.weights.admits))

    @property
    def compiling(self) -> frozenset[str]:
        """Ids of the requests whose grammars are being compiled."""
        return frozenset(self._compiling)

    @property
    def pending_grammars(self) -> bool:
        """True while grammars are compiled, masks prepared, or pages fetched."""
        return bool(self._compiling or self._following or self._remote)

    def handle(self, message: ToCore, now: float, owner: bytes = b"") -> list[FromCore]:
        """Handle a message from frontend `owner`. Returns the answers that are ready at once."""
        self._cache.forecast.now = now
        match message:
            case Generate():
                return self._arrive(message, now, owner)
            case Abort(rid=rid):
                requests = self._requests.values() if rid is None else filter(None, [self._requests.get(rid)])
                return [self._abort(request) for request in list(requests) if request.owner == owner]
            case EndStates(program=program, states=states, is_session=is_session):
                self._programs.end(session_id(program) if is_session else program_id(owner, program), states)
                return []
            case TurnEnded(rid=rid, waits_for=waits_for):
                self._programs.note_turn_ended(rid, waits_for)
                return []
            case FlushCache(call=call):
                self._cache.flush()
                self._drafting.flush()
                return [CoreReply(call)]
            case Pause(call=call, hold=hold):
                self.weights.hold = hold
                return [CoreReply(call)]
            case GetStats(call=call):
                return [CoreReply(call, stats=self.stats())]
            case _:
                raise AssertionError("the core's loop answers this")

    def plan(self, now: float) -> ForwardPlan | None:
        """Plan the next step. Returns None if there is nothing to compute, or nothing before the plan in flight is
        committed."""
        assert len(self._in_flight) < 2, "at most one plan may be in flight while the next one is made"
        if self._in_flight and (self._in_flight[-1].plan.followed or not self._drafting.can_plan_ahead(self._batch)):
            return None  # the next drafts depend on the tokens in flight
        if not self.weights.computes:
            return None
        self._cache.forecast.now = now
        for request in self._remote.take(now):
            self._waiting.add(request)
        self._take_compiled_grammars(now)
        self._settle_masks(now)
        if self._in_flight and self._waiting.needs_room:
            return None
        num_guesses = self._drafting.propose(self._batch, self._config.prefill_budget)
        background, may_retract = self._background.share(now, has_live=self._waiting.has_live), not self._in_flight
        running_shares = self._batch.schedule_running(
            self._config.prefill_budget - num_guesses,
            background,
            contended=len(self._waiting) > 0,
            may_retract=may_retract,
        )
        if running_shares is None:
            return None
        for request in running_shares.retracted:
            self._wait_again(request, now)
            self._output_lengths.record_retraction()
        admitted = self._waiting.admit(
            running_shares.num_left if self.weights.admits else 0, background, may_retract=may_retract
        )
        for request in admitted.retracted:
            self._wait_again(request, now)
        for item in admitted.scheduled:
            self._counters.count_prompt(item.request)
            item.request.clock.run(now)
            self._drafting.note_started(item.request)
        for request in admitted.fully_cached:
            self._counters.count_prompt(request)
            del self._requests[request.rid]
            self._answers.append(request.clock.timed(prompt_answer(request), now))
        for request in admitted.awaiting_grammar:
            self._park(request, now)
        kept = [item for item in running_shares.scheduled if item.request.lease is not None]
        running = self._drafting.add_drafts(kept, self._batch)
        if running_shares.has_chunks:
            running = self._batch.extend_prefills(running, admitted.num_left, background)
        if not (admitted.scheduled or self._waiting.may_start_soon or self.pending_grammars or self._drafting.is_on):
            running = self._batch.add_decodes(running, self._decodes.most(running))
        scheduled = sorted(running + admitted.scheduled, key=attrgetter("is_widened"))  # widened rows come last
        rows, requests = self._build(with_one_picture(scheduled) if self._config.picture_bytes else scheduled)
        if not rows:
            if self._following and not self._in_flight:
                self._following.wait_for_any()
            return None
        self._counters.num_steps += 1
        plan = ForwardPlan(
            step=self._counters.num_steps,
            copies=self._batch.take_copies(),
            rows=rows,
            states=self._batch.take_state_changes(),
            window_copies=self._batch.take_window_copies(),
            followed=self._drafting.source_follows(rows),
            num_decodes=running[0].num_decodes if running else 1,
            end_tokens=end_tokens(running),
        )
        self._in_flight.append(InFlightPlan(plan, requests))
        return plan

    def answers(self) -> list[FromCore]:
        """Return the answers that the last `plan` found without computing: failed grammars, prompts that are cached
        whole."""
        answers, self._answers = self._answers, []
        return answers

    def commit(self, plan: ForwardPlan, result: ForwardResult, now: float) -> list[FromCore]:
        """Apply a step's result. Returns the tokens, in the order of the plan's rows."""
        in_flight = self._in_flight.popleft()
        assert in_flight.plan is plan
        assert result.step == plan.step
        assert self._sampling is None, "`sampling` was not called after the last commit"
        answers = self.answers()
        self._cache.forecast.now = now
        for (request, row), row_result in zip(in_flight.rows, result.rows, strict=True):
            if request.leaving:
                self._let_go(request, row)
            elif row is not None:
                self._commit_row(request, row, row_result, now, plan.followed, answers)
        self._drafting.observe_step(plan, result)
        self._counters.num_steps += result.num_decodes - 1
        self._decodes.observe(plan, result)
        self._background.observe(plan, result)
        if self._in_flight and self._in_flight[0].plan.is_open:
            answers += self._complete_sampling(self._in_flight[0], now)
        return answers

    def sampling(self) -> SamplingPlan | None:
        """After a `commit`: the open sampling of the plan in flight, or None. Call at once."""
        sampling, self._sampling = self._sampling, None
        return sampling

    def num_computed(self, rid: str) -> int:
        """Return the number of tokens of a running request whose KV is there; 0 of others."""
        request = self._requests.get(rid)
        return 0 if request is None or request.lease is None else request.num_computed

    def begin_weights(self, running: RunningRequests) -> None:
        """Let running requests make room for other weights."""
        self.weights.pending = running
        if running == "abort":
            self._answers += [self._abort(request) for request in list(self._requests.values())]

    def change_weights(self, mark: str, version: str, now: float, change: Callable[[], None]) -> bool:
        """Call `change`, after which requests go on; return False if it is too early."""
        if self._in_flight or not self.weights.is_due:
            return False
        change()
        wait_again = partial(self._wait_again, now=now)
        self._answers += self.weights.take(mark, version, list(self._requests.values()), wait_again)
        return True

    def release_memory(self, tags: Collection[MemoryTag], mark: str, now: float, release: Callable[[], None]) -> bool:
        """Call `release`, after which nothing is computed before `weights.released` is empty; return False if it is too
        early."""
        if self._in_flight or not self.weights.is_due:
            return False
        self.weights.release(tags, mark, list(self._requests.values()), partial(self._wait_again, now=now))
        release()
        return True

    def stats(self) -> CoreStats:
        drafting, counts = self._drafting, self._drafting.counts
        stats = self._counters.stats(self._cache, counts, num_running=len(self._batch), num_waiting=self._num_waiting)
        is_paused = self.weights.hold != "nothing"
        return replace(
            stats,
            is_paused=is_paused,
            released=sorted(self.weights.released),
            draft_source=drafting.source,
            speculation=drafting.states,
        )

    def _wait_again(self, request: Request, now: float) -> None:
        """Let a request wait that was retracted."""
        request.clock.wait("retracted", now)
        self.weights.note(request)
        self._waiting.add(request)
        self._counters.num_retractions += 1

    @property
    def _num_waiting(self) -> int:
        return len(self._waiting) + len(self._parked) + len(self._remote)

    def _arrive(self, message: Generate, now: float, owner: bytes) -> list[FromCore]:
        assert message.rid not in self._requests, f"rid {message.rid!r} is taken"
        try:
            end = length_limit(
                message,
                vocab_size=self._vocabulary.vocab_size,
                context_length=self._context_length,
                num_slots=self._cache.num_slots,
                reads_pictures=self._config.picture_bytes > 0,
            )
            if self._num_waiting >= self._config.max_waiting:
                raise BusyError(f"{self._config.max_waiting} requests are waiting already")
            request = make_request(
                message,
                owner,
                now,
                serial=self._num_arrived,
                end=end,
                rank=self._programs.rank_of,
                vocabulary=self._vocabulary,
                rope=self._rope,
            )
            request.routes = route_record(message, self._route_shape, end)
        except (RequestError, BusyError) as error:
            return [RequestFailed(message.rid, ErrorInfo.of(error))]
        self._num_arrived += 1
        self.weights.note(request)
        self._requests[request.rid] = request
        self._programs.note_arrived(request)
        if message.sampling.constraint is not None:
            self._compiling[request.rid] = self._grammars.get(message.sampling.constraint)
            request.awaits_grammar, request.continued_due = True, message.continued > 0
        if self._remote.begin(request, now):
            return []
        if request.awaits_grammar and not self._cache.enabled:
            self._park(request, now)  # without the cache its computed tokens would be lost
        else:
            self._waiting.add(request)
        return []

    def _let_go(self, request: Request, row: Row | None) -> None:
        """Note what was computed for a request that has ended since, and release its pages."""
        # Its known tokens are computed. A token that it only followed is not part of its output.
        if row is not None and row.follows is None:
            request.num_computed += row.num_committed
        self._release(request)

    def _commit_row(
        self, request: Request, row: Row, result: RowResult, now: float, is_followed: bool, answers: list[FromCore]
    ) -> None:
        """Apply a row's result to its request, which ends, waits for its grammar, or goes on; append its answers."""
        num_computed = request.num_computed
        answer, error = self._apply(request, row, result, now, is_followed)
        if answer is not None:
            answers.append(answer)
        if error is not None:
            request.poisoned = isinstance(error, ModelError)
            self._end(request)
            answers.append(RequestFailed(request.rid, ErrorInfo.of(error)))
        elif answer is not None and answer.finish is not None:
            self._finish(request)
        elif request.awaits_grammar and not request.num_uncomputed:
            self._batch.suspend(request)
            self._park(request, now)
        else:
            self._batch.publish(request, row, num_computed)
            if self._cache.windows is not None:
                self._batch.slide(request, self._cache.windows)
            if request.is_held and not (request.num_uncomputed or request.num_in_flight):
                request.clock.wait("grammar", now)

    def _apply(self, request: Request, row: Row, result: RowResult, now: float, is_followed: bool) -> AppliedResult:
        """Append what a row's result adds to its request, and count and time it."""
        assert request.lease is not None
        num_committed = row.num_committed
        request.num_in_flight -= num_committed
        request.num_computed += num_committed
        request.token_in_flight &= row.sample is None
        verified = self._drafting.verified(row, result)
        following = self._following
        answer, error = apply_result(
            request, row, result, self._vocabulary, following.follow, following.forced_end, verified
        )
        if request.routes is not None and row.routes_from is not None:
            request.routes.cut(request.num_computed)
        if request.lease.states is not None:
            request.lease.states.advance(request.num_computed - row.first_position - num_committed)
        if is_followed:
            self._drafting.observe(request, row, result)
        if answer is not None or row.sample is not None:
            request.clock.answer(now)
        if answer is not None:
            if answer.finish is not None:
                answer = request.clock.timed(answer, now)
            self._counters.num_output_tokens += len(answer.ids)
        return answer, error

    def _finish(self, request: Request) -> None:
        """End a request whose output is complete. What it computed stays cached."""
        assert request.lease is not None
        self._output_lengths.record(request.num_output)
        if not request.poisoned:
            self._cache.commit(request.lease, request.cache_tokens[: request.num_computed])
        self._programs.update_soft_pins(request)
        self._end(request)

    def _complete_sampling(self, in_flight: InFlightPlan, now: float) -> list[FromCore]:
        """Fill in the open sampling of the plan in flight, now that the tokens are known which its rows follow."""
        self._settle_masks(now)
        build = partial(build_sampling, vocab_size=self._vocabulary.vocab_size)
        self._sampling = in_flight.complete(build, self._fail)
        return self.answers()

    def _park(self, request: Request, now: float) -> None:
        """Let a request wait for its grammar, without lease."""
        self._parked[request.rid] = request
        request.clock.wait("grammar", now)

    def _take_compiled_grammars(self, now: float) -> None:
        for rid, future in [(rid, future) for rid, future in self._compiling.items() if future.done()]:
            del self._compiling[rid]
            request = self._requests[rid]
            error = future.exception()
            if error is None:
                request.matcher = future.result().matcher()
                try:
                    self._following.start(request)
                except RequestError as too_hard:
                    error = too_hard
                if error is None and not request.awaits_mask:
                    self._start_grammar(request, now)
            if error is not None:
                self._drop_with_error(request, error)

    def _settle_masks(self, now: float) -> None:
        """Let the requests go on whose masks have become ready."""
        for request, error in self._following.settle():
            if error is not None:
                self._drop_with_error(request, error)
            elif request.awaits_grammar:
                self._start_grammar(request, now)
            elif request.lease is not None:
                request.clock.run(now)
                self._end_if_complete(request, now)

    def _end_if_complete(self, request: Request, now: float) -> None:
        """End a request whose output can only end, as its mask tells now."""
        if not request.num_output or any(request in in_flight for in_flight in self._in_flight):
            return
        if (end := self._following.forced_end(request, self._vocabulary)) is None:
            return
        answer, error = end_output(request, end, self._vocabulary)
        if answer is not None:
            self._answers.append(request.clock.timed(answer, now))
            self._counters.num_output_tokens += len(answer.ids)
        if error is not None:
            self._fail(request, error)
        else:
            self._finish(request)

    def _start_grammar(self, request: Request, now: float) -> None:
        """Let a request go on whose grammar is compiled, and whose first mask is ready."""
        request.awaits_grammar = False
        if self._parked.pop(request.rid, None) is not None:
            request.clock.wait("queue", now)
            self._waiting.add(request)

    def _drop_with_error(self, request: Request, error: BaseException) -> None:
        self._drop(request)
        self._answers.append(RequestFailed(request.rid, ErrorInfo.of(error)))

    def _abort(self, request: Request) -> FromCore:
        if (future := self._compiling.pop(request.rid, None)) is not None:
            assert request.message.sampling.constraint is not None
            self._grammars.release(request.message.sampling.constraint, future)
        self._drop(request)
        answer = abort_answer(request)
        self._counters.num_output_tokens += len(answer.ids)
        return answer

    def _drop(self, request: Request) -> None:
        """End a request in any state."""
        if request.lease is not None:
            self._end(request)
            return
        self._following.forget(request)
        del self._requests[request.rid]
        self._drafting.note_ended(request)
        if self._remote.drop(request) or self._parked.pop(request.rid, None) is not None:
            self._cache.drop_soft_pin(request.rid)
        else:
            self._waiting.remove(request)

    def _end(self, request: Request) -> None:
        """End a running request."""
        self._following.forget(request)
        self._batch.remove(request)
        del self._requests[request.rid]
        self._drafting.note_ended(request)
        request.leaving = True
        self._release(request)

    def _release(self, request: Request) -> None:
        """Release the request's pages, unless a plan in flight may write to them: then the last such plan's commit
        does."""
        if not any(request in in_flight for in_flight in self._in_flight):
            self._batch.release(request)

    def _fail(self, request: Request, error: RequestError | ModelError) -> None:
        """End a running request with an error."""
        self._end(request)
        self._answers.append(RequestFailed(request.rid, ErrorInfo.of(error)))

    def _build(self, scheduled: list[ScheduledRequest]) -> tuple[list[Row], list[Request]]:
        """Build the rows, and list their requests. A request whose grammar is at a dead end fails instead."""
        rows, requests = [], []
        for item in scheduled:
            try:
                rows.append(self._row(item))
                requests.append(item.request)
            except RequestError as error:
                self._fail(item.request, error)
        return rows, requests

    def _row(self, item: ScheduledRequest) -> Row:
        request, page_size = item.request, self._cache.page_size
        if request.token_in_flight:
            return build_following_row(request, self._in_flight[-1].row_index(request), page_size, self._batch)
        want = self._drafting.draft_spec(item) if self._drafting.is_on and item.samples else None
        return build_row(item, self._vocabulary.vocab_size, page_size, want, self._batch)
