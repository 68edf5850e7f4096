"""Replays a plan log: checks that every plan comes out the same, or runs the requests under other settings.

A token depends on its request and position and not on the schedule, so a log has the answers for any schedule.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ...radix.window_pages import WindowPages, WindowSizes
from ..core.grammar_cache import GrammarCache, JsonDefaults
from ..protocol.core import Abort, CoreStats, FromCore, Generate, GetStats, RequestFailed, Tokens
from ..protocol.errors import RequestError
from ..protocol.sampling import Constraint, TokenLogprob
from ..scheduler.jump_forward import CONTEXT_TOKENS
from ..scheduler.plan import ForwardPlan, ForwardResult, Row, RowResult
from ..scheduler.plan_log import LogEntry, LoggedMessage, LoggedPlan, LoggedResult, LoggedRetokenisation, LogHeader
from ..scheduler.scheduler import Scheduler, SchedulerCalls, make_cache


@dataclass
class ReplayFigures:
    """Figures of a run. Waits are from a request's arrival to its first row, in steps."""

    num_computed: int = 0
    waits: list[int] = field(default_factory=list)
    stats: CoreStats | None = None

    @property
    def mean_wait(self) -> float:
        return sum(self.waits) / len(self.waits) if self.waits else 0.0


class PlanMismatch(Exception):
    """A plan differs from the logged one."""


def replay(entries: Iterable[LogEntry]) -> ReplayFigures:
    """Plan everything again. Raises PlanMismatch at the first plan that differs, RequestError for
    an inconsistent log."""
    scheduler = _ReplayScheduler(*_split_header(iter(entries)))
    in_flight: dict[int, ForwardPlan] = {}
    for entry in scheduler.retokeniser.learn(scheduler.entries):
        if isinstance(entry, LoggedMessage | LoggedPlan | LoggedResult):
            scheduler.now = entry.now
        match entry:
            case LoggedMessage(owner=owner, message=message):
                scheduler.handle(message, owner)
            case LoggedPlan(plan=logged, settled=settled):
                scheduler.grammars.settle(settled)
                plan = scheduler.plan()
                if plan != logged:
                    raise PlanMismatch(_describe_mismatch(plan, logged))
                if plan is not None:
                    in_flight[plan.step] = plan
            case LoggedResult(result=result):
                if result.step not in in_flight:
                    raise RequestError(f"the log has a result of step {result.step} without its plan", param="file")
                scheduler.commit(in_flight.pop(result.step), result)
            case _:
                raise RequestError("the log has two headers", param="file")
    return scheduler.figures()


def what_if(entries: Sequence[LogEntry], **changes: Any) -> ReplayFigures:
    """Run the logged requests under other settings: fields of CoreConfig, None for those that stay.

    Requests arrive at the steps at which they did. An aborted one ends with the last token that the log has.
    """
    header, rest = _split_header(iter(entries))
    overrides = {name: value for name, value in changes.items() if value is not None}
    num_pages = overrides.get("num_pages") or header.num_pages
    config = msgspec.structs.replace(header.config, **overrides)
    windows = _window_pages(header, num_pages)
    changed = msgspec.structs.replace(header, config=config, num_pages=num_pages, windows=windows)
    scheduler = _ReplayScheduler(changed, iter(rest))
    results = _LoggedResults()
    arrivals: list[tuple[int, LoggedMessage]] = []
    num_steps = 0
    in_flight: dict[int, ForwardPlan] = {}
    for entry in scheduler.retokeniser.learn(scheduler.entries):
        match entry:
            case LoggedMessage(message=Abort() | GetStats()):
                pass
            case LoggedMessage():
                arrivals.append((num_steps, entry))
            case LoggedPlan(plan=plan) if plan is not None:
                num_steps += 1
                in_flight[plan.step] = plan
            case LoggedResult(result=result) if result.step in in_flight:
                results.learn(in_flight.pop(result.step), result)
    arrivals.reverse()
    while arrivals or not scheduler.scheduler.idle:
        if scheduler.scheduler.idle:
            scheduler.num_steps = max(scheduler.num_steps, arrivals[-1][0])
        while arrivals and arrivals[-1][0] <= scheduler.num_steps:
            _, entry = arrivals.pop()
            scheduler.now = entry.now
            scheduler.handle(entry.message, entry.owner)
        scheduler.grammars.settle(scheduler.scheduler.compiling)
        plan = scheduler.plan()
        if plan is None:
            continue
        for row in plan.rows:
            if not results.has(row):
                scheduler.handle(Abort(row.rid), scheduler.owners[row.rid])
        scheduler.commit(plan, ForwardResult(step=plan.step, rows=[results.result_of(row) for row in plan.rows]))
    return scheduler.figures()


def _window_pages(header: LogHeader, num_pages: int) -> WindowSizes | None:
    """Return the window pages beside `num_pages` pages: as many for each as in the log, and enough for a request."""
    if (windows := header.windows) is None:
        return None
    least = WindowPages(windows, header.page_size).most_of_lease + 1
    return windows._replace(num_pages=max(least, windows.num_pages * num_pages // header.num_pages))


class _ReplayScheduler:
    """A scheduler as the log's, and the state of the run."""

    def __init__(self, header: LogHeader, entries: Iterable[LogEntry]) -> None:
        vocabulary = header.vocabulary()
        self.entries = entries
        self.retokeniser = _LoggedRetokeniser()
        self.grammars = _ReplayGrammars(
            GrammarCache(
                vocabulary.token_bytes,
                vocabulary.eos_ids,
                special_ids=vocabulary.special_ids,
                engine=header.config.grammar_backend,
                defaults=JsonDefaults.of(header.config),
            )
        )
        self.scheduler = Scheduler(
            header.config,
            cache=make_cache(header.config, header.cache_sizes()),
            vocabulary=vocabulary,
            grammars=self.grammars,
            context_length=header.context_length,
            calls=SchedulerCalls(self.retokeniser),
            rope=header.rope,
            widened_from=header.widened_from,
        )
        self.owners: dict[str, bytes] = {}
        self.num_steps = 0
        self.now = 0.0  # seconds, by the clock of the log
        self._arrived: dict[str, int] = {}
        self._figures = ReplayFigures()

    def handle(self, message: Any, owner: bytes) -> None:
        if isinstance(message, Generate):
            self.grammars.rid = message.rid
            self.owners[message.rid] = owner
            self._arrived[message.rid] = self.num_steps
        self._end(self.scheduler.handle(message, self.now, owner))

    def plan(self) -> ForwardPlan | None:
        plan = self.scheduler.plan(self.now)
        self._end(self.scheduler.answers())
        if plan is not None:
            self._figures.num_computed += plan.num_tokens
            for row in plan.rows:
                if (step := self._arrived.pop(row.rid, None)) is not None:
                    self._figures.waits.append(self.num_steps - step)
            self.num_steps += 1
        return plan

    def commit(self, plan: ForwardPlan, result: ForwardResult) -> None:
        self._end(self.scheduler.commit(plan, result, self.now))
        self.scheduler.sampling()  # determined by the commit

    def figures(self) -> ReplayFigures:
        self._figures.stats = self.scheduler.stats()
        return self._figures

    def _end(self, answers: list[FromCore]) -> None:
        for answer in answers:
            if isinstance(answer, RequestFailed) or (isinstance(answer, Tokens) and answer.finish is not None):
                self.owners.pop(answer.rid, None)
                self._arrived.pop(answer.rid, None)


class _ReplayGrammars:
    """Grammars that become ready when the log says so. Set `rid` to the request before its grammar is requested."""

    def __init__(self, grammars: GrammarCache) -> None:
        self._grammars = grammars
        self._waiting: dict[str, tuple[Constraint, Future[Any]]] = {}
        self.rid = ""

    def get(self, constraint: Constraint) -> Future[Any]:
        future: Future[Any] = Future()
        self._waiting[self.rid] = constraint, future
        return future

    def release(self, constraint: Constraint, future: Future[Any]) -> None:
        """Ignored: the log does not mention it."""

    def settle(self, rids: Iterable[str]) -> None:
        for rid in rids:
            constraint, future = self._waiting.pop(rid)
            compiled = self._grammars.get(constraint)
            error = compiled.exception()
            if error is None:
                future.set_result(compiled.result())
            else:
                future.set_exception(error)


class _LoggedRetokeniser:
    """Returns the logged tokenizer output; what was never requested is left to the model."""

    def __init__(self) -> None:
        self._ids: dict[tuple[tuple[int, ...], bytes], list[int]] = {}

    def __call__(self, before: Sequence[int], data: bytes) -> list[int]:
        return self._ids.get((tuple(before[-CONTEXT_TOKENS:]), data), [])

    def learn(self, entries: Iterable[LogEntry]) -> Iterator[LogEntry]:
        """Iterate over the other entries, each after the tokenizer output that belongs to it."""
        held: LogEntry | None = None
        for entry in entries:
            if isinstance(entry, LoggedRetokenisation):
                self._ids[tuple(entry.before), entry.data] = entry.ids
                continue
            if held is not None:
                yield held
            held = entry
        if held is not None:
            yield held


class _LoggedResults:
    """Logged results by request and position."""

    def __init__(self) -> None:
        self._tokens: dict[tuple[str, int], tuple[int, TokenLogprob | None]] = {}
        self._scores: dict[tuple[str, int], TokenLogprob] = {}
        self._sizes: dict[str, int] = {}  # of embeddings; plans depend on nothing else of them

    def learn(self, plan: ForwardPlan, result: ForwardResult) -> None:
        for row, row_result in zip(plan.rows, result.rows, strict=True):
            for at, token in enumerate(row.tokens[: row.num_committed], row.first_position):
                self._tokens.setdefault((row.rid, at), (token, None))  # a draft may hold what was forced here
            for at, token in enumerate(row_result.tokens):
                logprob = row_result.logprobs[at] if row_result.logprobs else None
                self._tokens[row.rid, _end(row) + at] = token, logprob
            if row.score is not None:
                for at, score in enumerate(row_result.scores, row.first_position + row.score.first):
                    self._scores[row.rid, at] = score
            if row_result.pooled is not None:
                self._sizes[row.rid] = len(row_result.pooled)

    def has(self, row: Row) -> bool:
        return (row.sample is None or (row.rid, _end(row)) in self._tokens) and all(
            (row.rid, at) in self._scores for at in _scored(row)
        )

    def result_of(self, row: Row) -> RowResult:
        """Return the result of a row. Unknown values are made up: that request has been aborted."""
        scores = [self._scores.get((row.rid, at), TokenLogprob(0.0, 0)) for at in _scored(row)]
        pooled = None if row.pool_from is None else bytes(self._sizes.get(row.rid, 0))
        if row.sample is None:
            return RowResult(scores=scores, pooled=pooled)
        guesses = {
            (parent, token): node
            for node, (parent, token) in enumerate(zip(row.parents or (), row.tokens[row.num_committed :], strict=True))
        }
        found = [self._tokens.get((row.rid, _end(row)), (0, None))]
        node: int | None = -1
        while node is not None and (node := guesses.get((node, found[-1][0]))) is not None:
            found.append(self._tokens.get((row.rid, _end(row) + len(found)), (0, None)))
        logprobs = [logprob for _, logprob in found if logprob is not None]
        return RowResult(tokens=[token for token, _ in found], logprobs=logprobs, scores=scores, pooled=pooled)


def _end(row: Row) -> int:
    return row.first_position + row.num_committed


def _scored(row: Row) -> range:
    if row.score is None:
        return range(0)
    first = row.first_position + row.score.first
    return range(first, first + len(row.score.targets))


def _split_header(entries: Any) -> tuple[LogHeader, Iterable[LogEntry]]:
    header = next(entries, None)
    if not isinstance(header, LogHeader):
        raise RequestError("the log is empty", param="file")
    return header, entries


def _describe_mismatch(plan: ForwardPlan | None, logged: ForwardPlan | None) -> str:
    """Describe where two plans differ."""
    if plan is None or logged is None:
        there, here = ("nothing" if each is None else f"step {each.step}" for each in (logged, plan))
        return f"logged: {there}; now: {here}"
    if plan.copies != logged.copies:
        return f"step {logged.step}: copies\n  logged {logged.copies}\n  now    {plan.copies}"
    if plan.window_copies != logged.window_copies:
        return f"step {logged.step}: copies of window pages differ"
    for place, (row, before) in enumerate(zip(plan.rows, logged.rows, strict=False)):
        for name in Row.__struct_fields__:
            if getattr(row, name) != getattr(before, name):
                return (
                    f"step {logged.step}, row {place}, request {before.rid!r}: {name}\n"
                    f"  logged {_shorten(getattr(before, name))}\n  now    {_shorten(getattr(row, name))}"
                )
    return f"step {logged.step}: {len(logged.rows)} rows logged, {len(plan.rows)} now"


def _shorten(value: object, width: int = 200) -> str:
    text = repr(value)
    return text if len(text) <= width else f"{text[:width]}..."
