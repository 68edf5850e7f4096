"""One engine on one case: what it accepts and refuses, and the CPU time of every mask and step.

Times are of this thread's CPU clock, so that neighbours on the machine do not count; the clock's own cost is taken off.
"""

from __future__ import annotations

import statistics
import time
import traceback
from collections.abc import Callable
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from ramiform.bench.grammar.cases import Case, Instance, Spelling, Whitespace
from ramiform.bench.grammar.engines import Engine, Refused, Session
from ramiform.bench.grammar.tokens import Tokens

Outcome = Literal["compiled", "refused", "crashed", "timeout"]
SHOWN = 60  # characters around the place where an instance went wrong


class Failure(msgspec.Struct, frozen=True):
    """An instance judged wrongly. `over`: a valid one was refused, after `at` bytes; `under`: an invalid one accepted;
    `unlike`: the mask and the step contradict each other."""

    kind: Literal["over", "under", "unlike"]
    instance: int
    at: int
    shown: str
    spelling: Spelling = "raw"


class Result(msgspec.Struct):
    """Result of one engine on one case. Times are in microseconds; `forced` of `total` tokens of valid instances."""

    case: str
    engine: str
    outcome: Outcome = "compiled"
    reason: str = ""
    first_mask: float = 0.0
    masks: list[float] = []
    advances: list[float] = []
    failures: list[Failure] = []
    forced: int = 0
    total: int = 0

    def failed(self, kind: str, spelling: Spelling = "raw") -> list[Failure]:
        return [failure for failure in self.failures if (failure.kind, failure.spelling) == (kind, spelling)]

    @property
    def passes(self) -> bool:
        """Compiled, every valid instance accepted to an end, every invalid one refused, as MaskBench counts."""
        return self.outcome == "compiled" and not any(failure.spelling == "raw" for failure in self.failures)


class Options(msgspec.Struct, frozen=True):
    """`masks`: fill one before every token; without, only the steps are taken. `escaped`: judge the \\u spelling too.
    `forced`: count the forced tokens."""

    whitespace: Whitespace = "any"
    masks: bool = True
    escaped: bool = True
    forced: bool = False


def clock_cost() -> float:
    """Return the microseconds between two readings of the clock."""
    gaps = []
    for _ in range(2000):
        first = time.thread_time_ns()
        gaps.append((time.thread_time_ns() - first) / 1000)
    return statistics.median(gaps)


class Measurer:
    """Runs one engine. Keeps nothing of a case."""

    def __init__(self, engine: Engine, tokens: Tokens, options: Options) -> None:
        self._engine, self._tokens, self._options = engine, tokens, options
        self._bits: NDArray[np.uint8] = engine.bits.reshape(-1).view(np.uint8)
        self._clock = clock_cost()

    def run(self, name: str, case: Case) -> Result:
        """Run a case. An exception of the engine is recorded as a crash, with its reason."""
        result = Result(case.name, name, masks=[], advances=[], failures=[])
        try:
            start = self._compile(case.schema, result)
            for number, instance in enumerate(case.instances):
                self._judge(start, number, instance, "raw", result)
                if self._options.escaped and instance.text("any", "escaped") != _raw(instance):
                    self._judge(start, number, instance, "escaped", result)
                if self._options.forced and instance.valid:
                    self._count_forced(start, instance, result)
        except Refused as refusal:
            result.outcome, result.reason = "refused", str(refusal)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic in Rust is no Exception
            place = traceback.extract_tb(error.__traceback__)[-1]
            result.outcome = "crashed"
            result.reason = f"{type(error).__name__}: {error} ({place.filename.rsplit('/', 1)[-1]}:{place.lineno})"
        return result

    def _compile(self, schema: Any, result: Result) -> Callable[[], Session]:
        first = time.thread_time_ns()
        start = self._engine.compile(schema, self._options.whitespace)
        start().mask()
        result.first_mask = (time.thread_time_ns() - first) / 1000
        return start

    def _judge(
        self, start: Callable[[], Session], number: int, instance: Instance, spelling: Spelling, result: Result
    ) -> None:
        """Feed an instance token by token, until it is refused or ends."""
        try:
            text = instance.text(self._options.whitespace, spelling)
        except ValueError:
            return  # half a surrogate pair has no raw spelling
        tokens = self._tokens.encode(text)
        data = [self._tokens.data[token] or b"" for token in tokens]
        session, length = start(), 0
        is_timed = self._options.masks and spelling == "raw"
        for token, added in zip(tokens, data, strict=True):
            if is_timed:
                may, did = self._timed_step(session, token, result)
                if may != did:
                    shown = f"the mask says {may}, the step {did}: {text[:length]!r} + {added!r}"
                    result.failures.append(Failure("unlike", number, length, shown))
                    return
            else:
                did = session.advance(token)
            if not did:
                if instance.valid:
                    result.failures.append(Failure("over", number, length, _around(text, length, added), spelling))
                return
            length += len(added)
        if self._ends(session, is_timed, result) != instance.valid:
            kind: Literal["over", "under"] = "over" if instance.valid else "under"
            shown = _around(text, length, b"<end>") if instance.valid else text[: 4 * SHOWN]
            result.failures.append(Failure(kind, number, length, shown, spelling))

    def _timed_step(self, session: Session, token: int, result: Result) -> tuple[bool, bool]:
        """Return if the mask allows the token, and if the step accepts it.

        A peer is given no token that its mask refuses: some enter an error state."""
        clock = time.thread_time_ns
        first = clock()
        session.mask()
        middle = clock()
        result.masks.append(max(0.0, (middle - first) / 1000 - self._clock))
        may = self._allows(token)
        if not may:
            return False, result.engine.startswith("native") and session.advance(token)
        first = clock()
        did = session.advance(token)
        result.advances.append(max(0.0, (clock() - first) / 1000 - self._clock))
        return True, did

    def _ends(self, session: Session, with_mask: bool, result: Result) -> bool:
        if not with_mask:
            return session.accepting()
        first = time.thread_time_ns()
        session.mask()
        result.masks.append(max(0.0, (time.thread_time_ns() - first) / 1000 - self._clock))
        return self._allows(self._tokens.eos)

    def _allows(self, token: int) -> bool:
        return bool(self._bits[token >> 3] >> (token & 7) & 1)

    def _count_forced(self, start: Callable[[], Session], instance: Instance, result: Result) -> None:
        """Count the tokens that need no sampling: those inside the bytes that the engine returns as forced."""
        session = start()
        if session.forced is None:
            return
        tokens = self._tokens.encode(instance.text(self._options.whitespace))
        held, forced = b"", 0
        for token in tokens:
            data = self._tokens.data[token] or b""
            if not held:
                held = session.forced()
            if held.startswith(data):
                held, forced = held[len(data) :], forced + 1
            else:
                held = b""
            if not session.advance(token):
                return
        result.forced += forced
        result.total += len(tokens)


def _raw(instance: Instance) -> str:
    try:
        return instance.text("any", "raw")
    except ValueError:
        return ""


def _around(text: str, at: int, token: bytes) -> str:
    data = text.encode()
    before = data[max(0, at - SHOWN) : at].decode(errors="replace")
    after = data[at + len(token) : at + len(token) + SHOWN // 2].decode(errors="replace")
    return f"{before}⟦{token.decode(errors='replace')}⟧{after}"
