"""Times and counts the core's work beside it, for `GetStats`. Nothing that it knows decides anything."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

from .grammars import Grammars
from .protocol.core import FromCore, RequestFailed, Tokens
from .protocol.errors import RequestError
from .protocol.measures import CoreMeasures, Distribution
from .protocol.sampling import Constraint
from .scheduler.grammar import Bitmask, CompiledGrammar, Matcher
from .scheduler.plan import ForwardPlan


@dataclass
class _Times:
    arrived: float
    started: float | None = None
    first_token: float | None = None


class Meter:
    """Of one core's requests and steps. All times are on the monotonic clock."""

    def __init__(self) -> None:
        self.measures = CoreMeasures()
        self._live: dict[str, _Times] = {}

    def arrived(self, rid: str, now: float) -> None:
        self._live[rid] = _Times(now)

    def planned(self, plan: ForwardPlan, now: float) -> None:
        for row in plan.rows:
            times = self._live.get(row.rid)
            if times is not None and times.started is None:
                times.started = now
                self.measures.queue.observe(now - times.arrived)

    def computed(self, plan: ForwardPlan, seconds: float) -> None:
        self.measures.step.observe(seconds)
        self.measures.step_tokens.observe(plan.num_tokens)

    def answered(self, messages: Iterable[FromCore], now: float) -> None:
        for message in messages:
            match message:
                case Tokens(rid=rid, finish=finish):
                    self._told(self._live.get(rid) if finish is None else self._live.pop(rid, None), message, now)
                case RequestFailed(rid=rid):
                    self._live.pop(rid, None)

    def _told(self, times: _Times | None, message: Tokens, now: float) -> None:
        if times is None or times.started is None:
            return
        if times.first_token is None and message.ids:
            times.first_token = now
            self.measures.prefill.observe(now - times.started)
        if message.finish is not None and times.first_token is not None:
            self.measures.decode.observe(now - times.first_token)


class TimedGrammars(Grammars):
    """Grammars whose compilation and masks are timed into `measures`."""

    def __init__(self, token_bytes: Sequence[bytes | None], eos_ids: Iterable[int], measures: CoreMeasures) -> None:
        super().__init__(token_bytes, eos_ids)
        self._measures = measures
        self._counting = Lock()  # compilations end in threads

    def _compile(self, constraint: Constraint) -> Any:
        began = time.perf_counter()
        try:
            grammar = super()._compile(constraint)
        except RequestError:
            with self._counting:
                self._measures.num_bad_grammars += 1
            raise
        with self._counting:
            self._measures.grammar_compile.observe(time.perf_counter() - began)
        return _TimedGrammar(grammar, self._measures.grammar_mask)


class _TimedGrammar:
    def __init__(self, grammar: CompiledGrammar, times: Distribution) -> None:
        self._grammar = grammar
        self._times = times

    def matcher(self) -> Any:
        return _TimedMatcher(self._grammar.matcher(), self._times)


class _TimedMatcher:
    """Times `mask`; everything else is the matcher's own."""

    def __init__(self, matcher: Matcher, times: Distribution) -> None:
        self._matcher = matcher
        self._times = times

    def mask(self, out: Bitmask) -> Any:
        began = time.perf_counter()
        try:
            return self._matcher.mask(out)
        finally:
            self._times.observe(time.perf_counter() - began)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._matcher, name)
