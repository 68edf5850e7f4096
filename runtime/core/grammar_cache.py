"""Compiles constraints to grammars, in threads that take turns, and caches them by content."""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import starmap
from threading import Lock
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np

from ... import loops
from ...constrained import (
    Choices,
    Grammar,
    GrammarError,
    GrammarSource,
    JsonSchema,
    JsonString,
    Prefixed,
    Regex,
    SchemaOptions,
    StructuralTag,
    Substring,
    Vocabulary,
)
from ...constrained.backends import BackendName, MatcherSource, backend
from ..protocol.config import CoreConfig
from ..protocol.errors import RequestError
from ..protocol.sampling import (
    DEFAULT_NUMBER_DIGITS,
    AdditionalProperties,
    Constraint,
    ConstraintKind,
    JsonWhitespace,
)
from .turns import Turns

_GBNF_RULE = re.compile(r"^\s*[\w-]+\s*::=", re.MULTILINE)  # a Lark rule has one colon
MAX_INTERPRETED_TOKENS = 40_000  # of a vocabulary whose masks take milliseconds, not seconds, without compiled loops
_LOOPS = "ramiform.constrained"
MAX_GRAMMARS = 256  # cached; the least recently used are dropped first
MAX_GRAMMAR_BYTES = 512 << 20  # that cached grammars take together
_WARM_UP_GRAMMARS = (  # one of each kind of parser and automaton
    Regex("[a-z]+"),
    JsonSchema('{"type": "object", "properties": {"a": {"type": "integer"}}}', SchemaOptions("closed", "digits")),
    Grammar('start: "a" start | "b"', syntax="lark"),
)


@dataclass
class _CacheEntry:
    future: Future[MatcherSource]
    num_waiting: int = 0  # callers that have not released it; meaningless once it is compiled


class JsonDefaults(NamedTuple):
    """Options of JSON for constraints that do not say."""

    additional_properties: AdditionalProperties = "closed"
    number_digits: int = DEFAULT_NUMBER_DIGITS
    whitespace: JsonWhitespace = "bounded"

    @classmethod
    def of(cls, config: CoreConfig) -> JsonDefaults:
        return cls(config.additional_properties, config.number_digits, config.json_whitespace)


class GrammarTotals(NamedTuple):
    """Number and bytes of the grammars in a `GrammarCache`, and how often large automata were renewed."""

    num_grammars: int
    num_bytes: int
    num_renewals: int


class GrammarCache:
    """Compiles a constraint once, however many requests ask for it, also at the same time.

    Integers are written as digits. Raises RequestError when the package of `engine` is not installed.
    """

    def __init__(
        self,
        token_bytes: Sequence[bytes | None],
        eos_ids: Iterable[int],
        *,
        special_ids: Mapping[str, int] | None = None,
        engine: BackendName = "native",
        defaults: JsonDefaults | None = None,
        max_bytes: int = MAX_GRAMMAR_BYTES,
        wait_for_loops: Callable[[], None] | None = None,
    ) -> None:
        """`special_ids` are special tokens by name.

        `wait_for_loops` is called in a thread when a grammar needs the compiled loops and they are postponed.
        """
        vocabulary = Vocabulary.from_tokens(token_bytes, eos_ids, special_ids)
        try:
            self._compile_source = backend(engine, vocabulary)
        except ImportError as error:
            raise RequestError(str(error), param="grammar_backend", code="missing_package") from None
        self._wait_for_loops = wait_for_loops
        self._num_words = -(-len(token_bytes) // 32)
        self._max_bytes = max_bytes
        self._num_renewals = 0  # of grammars that have been dropped
        self._defaults = (defaults or JsonDefaults())._asdict()
        # Compilations and masks take turns: they hold the interpreter most of the time, so two threads at once would
        # not be faster, but steps would wait for one more. The jobs of one constraint are a line: they share a lock.
        self._turns = Turns("grammar")
        self._entries: OrderedDict[Constraint, _CacheEntry] = OrderedDict()
        self._lock = Lock()

    def get(self, constraint: Constraint) -> Future[MatcherSource]:
        """Return the future of the compiled grammar. Do not cancel it: others may wait for it too.

        Its exception is a RequestError (param: the kind of constraint, code "invalid_grammar") that names the fault.
        """
        constraint = self._with_default(constraint)
        with self._lock:
            entry = self._entries.get(constraint)
            if entry is None:
                future = self._turns.submit(constraint, partial(self._compile, constraint))
                entry = self._entries[constraint] = _CacheEntry(future)
            entry.num_waiting += 1
            self._entries.move_to_end(constraint)
            while len(self._entries) > MAX_GRAMMARS:
                self._drop_oldest()
            self._fit()
            return entry.future

    def release(self, constraint: Constraint, future: Future[Any]) -> None:
        """Say that one caller of `get` no longer waits for `future`. A compilation that nobody waits for ends."""
        constraint = self._with_default(constraint)
        with self._lock:
            entry = self._entries.get(constraint)
            if entry is None or entry.future is not future:
                return
            entry.num_waiting -= 1
            if not entry.num_waiting and not future.done():
                del self._entries[constraint]
                if not future.cancel():
                    self._turns.stop(constraint, future)

    def totals(self) -> GrammarTotals:
        """Count the cached grammars, the bytes that they take, and the renewals of their automata so far."""
        with self._lock:
            self._fit()
            compiled = self._compiled()
            num_renewals = self._num_renewals + sum(_num_renewals(grammar) for _, grammar in compiled)
            return GrammarTotals(len(self._entries), sum(starmap(_num_bytes, compiled)), num_renewals)

    def _compiled(self) -> list[tuple[Constraint, Any]]:
        """Return the grammars that are compiled, the least recently used first. Call under the lock."""
        return [
            (constraint, entry.future.result())
            for constraint, entry in self._entries.items()
            if entry.future.done() and not entry.future.cancelled() and entry.future.exception() is None
        ]

    def _fit(self) -> None:
        """Free memory beyond the bound: masks first, because they are computed again without a new compilation.

        The most recently used grammar is kept. Grammars grow while outputs follow them, so this is done again and
        again. Outputs that follow a grammar keep it until they end, dropped or not. Call under the lock.
        """
        compiled = self._compiled()
        excess = sum(starmap(_num_bytes, compiled)) - self._max_bytes
        for step in (_drop_masks, None):
            for constraint, grammar in compiled[:-1]:
                if excess <= 0:
                    return
                before = _num_bytes(constraint, grammar)
                if step is not None:
                    step(grammar)
                    excess -= before - _num_bytes(constraint, grammar)
                elif before:
                    self._num_renewals += _num_renewals(grammar)
                    del self._entries[constraint]
                    excess -= before

    def _drop_oldest(self) -> None:
        _, entry = self._entries.popitem(last=False)
        if entry.future.done() and not entry.future.cancelled() and entry.future.exception() is None:
            self._num_renewals += _num_renewals(entry.future.result())

    def prepare(self, constraint: Constraint, work: Callable[[], None]) -> Future[None]:
        """Run what the grammar of a constraint has to work out for an output, in a thread."""
        return self._turns.submit(self._with_default(constraint), work)

    def warm_up(self) -> Future[None]:
        """Load what compiling and following grammars needs, in a thread, so that the first request does not wait for
        it."""
        return self._turns.submit(None, self._warm_up)

    def close(self) -> None:
        """Cancel the compilations that have not started, and end the others soon."""
        self._turns.close()

    def _with_default(self, constraint: Constraint) -> Constraint:
        """Fill in the defaults, so that a constraint that states them is the same one."""
        missing = {name: value for name, value in self._defaults.items() if getattr(constraint, name) is None}
        return msgspec.structs.replace(constraint, **missing) if missing else constraint

    def _warm_up(self) -> None:
        for source in _WARM_UP_GRAMMARS:
            with suppress(GrammarError):  # not every engine supports every kind
                matcher = self._compile_source(source, "any").matcher()
                matcher.mask(np.full(self._num_words, -1, np.int32))
                matcher.forced()

    def _compile(self, constraint: Constraint) -> MatcherSource:
        if not loops.ready(_LOOPS) and 32 * self._num_words > MAX_INTERPRETED_TOKENS:
            self._wait()
        try:
            return self._compile_source(grammar_source(constraint), constraint.order)
        except GrammarError as error:
            message = str(error)
        # Raised here, the error that is cached refers to nothing of the compilation.
        raise _invalid_grammar(constraint.kind, message)

    def _wait(self) -> None:
        if self._wait_for_loops is not None:
            self._wait_for_loops()


# Peers neither say what their grammars take, nor renew them.
def _num_bytes(constraint: Constraint, grammar: Any) -> int:
    """Return what a cached grammar takes: beside its automaton the source, as a text and as it was parsed."""
    return 2 * len(constraint.source) + getattr(grammar, "num_bytes", 0)


def _num_renewals(grammar: Any) -> int:
    return getattr(grammar, "num_renewals", 0)


def _drop_masks(grammar: Any) -> None:
    if hasattr(grammar, "drop_masks"):
        grammar.drop_masks()


def grammar_source(constraint: Constraint) -> GrammarSource:
    """Convert a request's constraint. Raises RequestError (code "invalid_grammar") for choices that are no list of
    texts."""
    source = _source_behind_lead(constraint)
    return Prefixed(constraint.lead, source) if constraint.lead else source


def _source_behind_lead(constraint: Constraint) -> GrammarSource:
    digits = DEFAULT_NUMBER_DIGITS if constraint.number_digits is None else constraint.number_digits
    options = SchemaOptions(
        constraint.additional_properties or "closed", "digits", digits or None, constraint.whitespace
    )
    match constraint.kind:
        case "regex":
            return Regex(constraint.source)
        case "json_schema":
            return JsonSchema(constraint.source, options)
        case "choices":
            return Choices(_choices(constraint.source))
        case "substring":
            return Substring(constraint.source)
        case "grammar":
            return Grammar(constraint.source, syntax=grammar_syntax(constraint.source))
        case "structural_tag":
            return StructuralTag(constraint.source, options)
        case "tool_input":  # written by a frontend
            asked = json.loads(constraint.source)
            text = asked["definition"]
            content = Regex(text) if asked["syntax"] == "regex" else Grammar(text, syntax="lark")
            return JsonString(content, asked["before"], asked["after"])


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
