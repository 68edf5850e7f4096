"""Compiles constraints to grammars, in threads, and caches them by content."""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import Any, Literal

import msgspec
import numpy as np

from ... import loops
from ...constrained import (
    Choices,
    Grammar,
    GrammarError,
    JsonSchema,
    Regex,
    SchemaOptions,
    StructuralTag,
    Vocabulary,
    WhitespacePolicy,
)
from ...constrained import Constraint as GrammarSource
from ...constrained.backends import BackendName, MatcherSource, backend
from ..protocol.errors import RequestError
from ..protocol.sampling import AdditionalProperties, Constraint, ConstraintKind

_GBNF_RULE = re.compile(r"^\s*[\w-]+\s*::=", re.MULTILINE)  # a Lark rule has one colon
MAX_INTERPRETED_TOKENS = 40_000  # of a vocabulary whose masks take milliseconds, not seconds, without compiled loops
_LOOPS = "ramiform.constrained"
MAX_GRAMMARS = 256  # cached; the least recently used are dropped first
NUM_THREADS = 2
_WARM_UP_GRAMMARS = (  # one of each kind of parser and automaton
    Regex("[a-z]+"),
    JsonSchema('{"type": "object", "properties": {"a": {"type": "integer"}}}', SchemaOptions("closed", "digits")),
    Grammar('start: "a" start | "b"', syntax="lark"),
)


@dataclass
class _CacheEntry:
    future: Future[MatcherSource]
    num_waiting: int = 0  # callers that have not released it; meaningless once it is compiled


class GrammarCache:
    """Compiles a constraint once, however many requests ask for it, also at the same time.

    Integers are written as digits. `additional_properties` is for constraints that do not say. Raises RequestError when
    the package of `engine` is not installed.
    """

    def __init__(
        self,
        token_bytes: Sequence[bytes | None],
        eos_ids: Iterable[int],
        *,
        engine: BackendName = "native",
        whitespace: WhitespacePolicy = "bounded",
        additional_properties: AdditionalProperties = "closed",
        max_grammars: int = MAX_GRAMMARS,
        wait_for_loops: Callable[[], None] | None = None,
    ) -> None:
        """`wait_for_loops` is called in a thread when a grammar needs the compiled loops and they are postponed."""
        vocabulary = Vocabulary.from_tokens(token_bytes, eos_ids)
        try:
            self._compile_source = backend(engine, vocabulary, whitespace=whitespace)
        except ImportError as error:
            raise RequestError(str(error), param="grammar_backend", code="missing_package") from None
        self._wait_for_loops = wait_for_loops
        self._num_words = -(-len(token_bytes) // 32)
        self._max_grammars = max_grammars
        self._additional_properties = additional_properties
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="grammar")
        self._entries: OrderedDict[Constraint, _CacheEntry] = OrderedDict()
        self._lock = Lock()

    def get(self, constraint: Constraint) -> Future[MatcherSource]:
        """Future of the compiled grammar. Do not cancel it: others may wait for it too.

        Its exception is a RequestError (param: the kind of constraint, code "invalid_grammar") that names the fault.
        """
        constraint = self._with_default(constraint)
        with self._lock:
            entry = self._entries.get(constraint)
            if entry is None:
                entry = self._entries[constraint] = _CacheEntry(self._threads.submit(self._compile, constraint))
            entry.num_waiting += 1
            self._entries.move_to_end(constraint)
            while len(self._entries) > self._max_grammars:
                self._entries.popitem(last=False)
            return entry.future

    def release(self, constraint: Constraint, future: Future[Any]) -> None:
        """Say that one caller of `get` no longer waits for `future`. A compilation that nobody waits for is not
        started."""
        constraint = self._with_default(constraint)
        with self._lock:
            entry = self._entries.get(constraint)
            if entry is None or entry.future is not future:
                return
            entry.num_waiting -= 1
            if not entry.num_waiting and future.cancel():
                del self._entries[constraint]

    def warm_up(self) -> Future[None]:
        """Load what compiling and following grammars needs, in a thread, so that the first request does not wait for
        it."""
        return self._threads.submit(self._warm_up)

    def close(self) -> None:
        """Cancel the compilations that have not started."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _with_default(self, constraint: Constraint) -> Constraint:
        """Fill in the default, so that a constraint that states it is the same one."""
        if constraint.additional_properties is not None:
            return constraint
        return msgspec.structs.replace(constraint, additional_properties=self._additional_properties)

    def _warm_up(self) -> None:
        for source in _WARM_UP_GRAMMARS:
            with suppress(GrammarError):  # not every engine supports every kind
                matcher = self._compile_source(source, "any").matcher()
                matcher.mask(np.full(self._num_words, -1, np.int32))
                matcher.forced()

    def _compile(self, constraint: Constraint) -> MatcherSource:
        is_interpreted = self._wait_for_loops is not None and not loops.ready(_LOOPS)
        if is_interpreted and 32 * self._num_words > MAX_INTERPRETED_TOKENS:
            self._wait()
        try:
            try:
                return self._compile_source(_grammar_source(constraint), constraint.order)
            except GrammarError:
                if not is_interpreted:
                    raise
                self._wait()  # perhaps the budget of time was used up by interpreting
                return self._compile_source(_grammar_source(constraint), constraint.order)
        except GrammarError as error:
            raise _invalid_grammar(constraint.kind, str(error)) from None

    def _wait(self) -> None:
        if self._wait_for_loops is not None:
            self._wait_for_loops()


def _grammar_source(constraint: Constraint) -> GrammarSource:
    options = SchemaOptions(constraint.additional_properties or "closed", "digits")
    match constraint.kind:
        case "regex":
            return Regex(constraint.source)
        case "json_schema":
            return JsonSchema(constraint.source, options)
        case "choices":
            return Choices(_choices(constraint.source))
        case "grammar":
            return Grammar(constraint.source, syntax=grammar_syntax(constraint.source))
        case "structural_tag":
            return StructuralTag(constraint.source, options)


def grammar_syntax(text: str) -> Literal["gbnf", "lark"]:
    """Guess the notation of a grammar."""
    return "gbnf" if _GBNF_RULE.search(text) else "lark"


def _choices(source: str) -> list[str]:
    try:
        values = json.loads(source)
    except (ValueError, RecursionError) as error:
        raise _invalid_grammar("choices", f"the choices are no JSON: {error}") from None
    if not isinstance(values, list) or not values or not all(isinstance(value, str) for value in values):
        raise _invalid_grammar(
            "choices", f"choices must be a JSON array of strings that is not empty, not {source[:100]}"
        )
    return values


def _invalid_grammar(kind: ConstraintKind, message: str) -> RequestError:
    return RequestError(f"invalid {kind}: {message}", param=kind, code="invalid_grammar")
