"""Times and counts the core's work, for `GetStats`. No decision depends on it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from threading import Lock
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from ...constrained.backends import MatcherSource, OutputMatcher
from ..models.pictures.features import PictureFeatures
from ..protocol.core import CoreReply, FromCore, Tokens
from ..protocol.errors import RequestError
from ..protocol.metrics import CoreMetrics, Histogram
from ..protocol.sampling import Constraint
from ..scheduler.plan import ForwardPlan
from .grammar_cache import GrammarCache
from .service import Service


class CoreMetricsRecorder(Service):
    """Records metrics of one core's requests and steps."""

    def __init__(self, pictures: PictureFeatures | None = None) -> None:
        """`pictures` counts what it computes itself."""
        self.measures = CoreMetrics() if pictures is None else CoreMetrics(tower=pictures.passes)
        self._pictures = pictures

    def record_step(self, plan: ForwardPlan, seconds: float) -> None:
        """Record the time and tokens of a step."""
        self.measures.step.observe(seconds / plan.num_decodes, plan.num_decodes)
        self.measures.step_tokens.observe(plan.num_tokens, plan.num_decodes)

    def note_answers(self, answers: list[FromCore]) -> None:
        """Record the timings of requests that ended."""
        for answer in answers:
            if isinstance(answer, Tokens) and answer.timings is not None:
                self.measures.queue.observe(answer.timings.queue)
                self.measures.prefill.observe(answer.timings.prefill)
                self.measures.decode.observe(answer.timings.decode)

    def count(self, reply: CoreReply) -> CoreReply:
        if self._pictures is not None:
            self.measures.num_reused_pictures = self._pictures.num_reused
        return replace(reply, measures=self.measures)


class TimedGrammarCache(GrammarCache, Service):
    """A grammar cache that times compilations and masks."""

    def __init__(
        self,
        token_bytes: Sequence[bytes | None],
        eos_ids: Iterable[int],
        measures: CoreMetrics,
        **settings: Any,
    ) -> None:
        """`settings` are those of `GrammarCache`."""
        super().__init__(token_bytes, eos_ids, **settings)
        self._measures = measures
        self._counting = Lock()  # compilations end in other threads

    def count(self, reply: CoreReply) -> CoreReply:
        """Record what the cache holds now in the measures, which the recorder adds to the reply."""
        measures = self._measures
        measures.num_grammars, measures.num_grammar_bytes, measures.num_grammar_renewals = self.totals()
        return reply

    def _compile(self, constraint: Constraint) -> Any:
        start = time.perf_counter()
        try:
            grammar = super()._compile(constraint)
        except RequestError:
            with self._counting:
                self._measures.num_bad_grammars += 1
            raise
        with self._counting:
            self._measures.grammar_compile.observe(time.perf_counter() - start)
        return _TimedGrammar(grammar, self._measures.grammar_mask)


class _TimedGrammar:
    def __init__(self, grammar: MatcherSource, times: Histogram) -> None:
        self._grammar = grammar
        self._times = times

    def matcher(self) -> Any:
        return _TimedMatcher(self._grammar.matcher(), self._times)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grammar, name)


class _TimedMatcher:
    """Times masks, prepared or not, and forwards everything else."""

    def __init__(self, matcher: OutputMatcher, times: Histogram) -> None:
        self._matcher = matcher
        self._times = times
        self._prepared = 0.0  # seconds that the next mask has taken already

    def mask(self, out: NDArray[np.int32]) -> Any:
        start = time.perf_counter()
        try:
            return self._matcher.mask(out)
        finally:
            self._times.observe(time.perf_counter() - start + self._prepared)
            self._prepared = 0.0

    def is_ready(self, *, forced: bool, new_states: bool = False) -> bool:
        start = time.perf_counter()
        is_ready = self._matcher.is_ready(forced=forced, new_states=new_states)
        self._prepared += time.perf_counter() - start
        return is_ready

    def prepare(self, *, forced: bool) -> None:
        start = time.perf_counter()
        self._matcher.prepare(forced=forced)
        self._prepared += time.perf_counter() - start

    def __getattr__(self, name: str) -> Any:
        return getattr(self._matcher, name)
