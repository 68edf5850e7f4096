"""Times and counts the core's work beside it, for `GetStats`. Nothing that it knows decides anything."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from threading import Lock
from typing import Any

from ..protocol.config import GrammarBackendName
from ..protocol.core import FromCore, Tokens
from ..protocol.errors import RequestError
from ..protocol.metrics import CoreMetrics, Histogram
from ..protocol.sampling import AdditionalProperties, Constraint
from ..scheduler.interfaces import Bitmask, GrammarMatcher, MatcherFactory
from ..scheduler.plan import ForwardPlan
from .grammar_cache import GrammarCache


class CoreMetricsRecorder:
    """Of one core's requests and steps."""

    def __init__(self) -> None:
        self.measures = CoreMetrics()

    def computed(self, plan: ForwardPlan, seconds: float) -> None:
        self.measures.step.observe(seconds)
        self.measures.step_tokens.observe(plan.num_tokens)

    def answered(self, messages: Iterable[FromCore]) -> None:
        for message in messages:
            if isinstance(message, Tokens) and message.timings is not None:
                self.measures.queue.observe(message.timings.queue)
                self.measures.prefill.observe(message.timings.prefill)
                self.measures.decode.observe(message.timings.decode)


class TimedGrammarCache(GrammarCache):
    """Grammars whose compilation and masks are timed into `measures`."""

    def __init__(
        self,
        token_bytes: Sequence[bytes | None],
        eos_ids: Iterable[int],
        measures: CoreMetrics,
        *,
        engine: GrammarBackendName,
        additional_properties: AdditionalProperties,
    ) -> None:
        super().__init__(token_bytes, eos_ids, engine=engine, additional_properties=additional_properties)
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
    def __init__(self, grammar: MatcherFactory, times: Histogram) -> None:
        self._grammar = grammar
        self._times = times

    def matcher(self) -> Any:
        return _TimedMatcher(self._grammar.matcher(), self._times)


class _TimedMatcher:
    """Times `mask`; everything else is the matcher's own."""

    def __init__(self, matcher: GrammarMatcher, times: Histogram) -> None:
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
