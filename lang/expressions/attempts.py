"""Checks of generated values: what makes an attempt invalid, and what the next attempt is told."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from ...runtime.protocol import session
from ...runtime.protocol.errors import RequestError
from ..operations.operation_log import OperationLog
from ..types.result_types import ResultType

MAX_RETRIES = 100
MAX_SHOWN_ATTEMPT = 500  # characters of each attempt and of each error, in errors and in what the model is told

OnInvalid = Literal["again", "tell", "raise"] | Callable[[str, str], str]


@dataclass(frozen=True)
class GenCheck:
    """The check of a gen: a value is valid if it has the gen's type and `function`, if any, does not refuse it.

    `function` refuses by an exception or by a false result other than None; it may be async.
    """

    function: Callable[[Any], Any] | None
    retries: int
    on_invalid: OnInvalid

    def check_operation(self, operation: session.Gen) -> None:
        """Raise RequestError if the gen's attempts cannot be checked, or would all be the same."""
        if operation.n > 1:
            raise RequestError(f"a gen with check or retries makes one text, not n = {operation.n}", param="n")
        if self.retries and self.on_invalid == "again" and operation.sampling.temperature == 0:
            raise RequestError(
                "at temperature 0 every attempt is the same: give a temperature, or on_invalid='tell'",
                param="temperature",
            )


def check_of(check: Any, retries: Any, on_invalid: Any, *, is_typed: bool) -> GenCheck | None:
    """Return the check that these arguments of `gen` describe. None: nothing is checked before the value is read.

    `is_typed`: a text can be invalid without a check. Raises RequestError naming the argument that is wrong.
    """
    if check is None and retries is None and on_invalid is None:
        return None
    if check is not None and not callable(check):
        raise RequestError(f"check must be a function of the value, got {check!r}", param="check")
    retries = 0 if retries is None else retries
    if type(retries) is not int or not 0 <= retries <= MAX_RETRIES:
        raise RequestError(f"retries must be an int from 0 to {MAX_RETRIES}, got {retries!r}", param="retries")
    if on_invalid is None:
        on_invalid = "again" if retries else "raise"
    if on_invalid not in ("again", "tell", "raise") and not callable(on_invalid):
        raise RequestError(
            f"on_invalid must be 'again', 'tell', 'raise' or a function of text and error, got {on_invalid!r}",
            param="on_invalid",
        )
    if (on_invalid == "raise") is bool(retries):
        told = "'raise' makes no further attempt" if retries else "needs retries"
        raise RequestError(f"on_invalid = {on_invalid!r} with retries = {retries}: {told}", param="on_invalid")
    if check is None and not is_typed:
        raise RequestError("nothing can be invalid: give check, dtype, schema or json_schema", param="retries")
    return GenCheck(check, retries, on_invalid)


@dataclass
class CheckedAttempts:
    """The attempts of one checked gen. Called with each of them, it accepts it by a text, or returns the next one.

    `before` are the logs that make up the state's text before the gen, each with its number of operations in it.
    """

    check: GenCheck
    gen: session.Gen
    result: ResultType
    name: str | None
    open_role: str | None
    before: Sequence[tuple[OperationLog, int]] = ()
    attempts: list[dict[str, str | None]] = field(default_factory=list)  # text and error of each

    def __call__(self, attempted: session.Attempted) -> str | session.Retry | Coroutine[Any, Any, str | session.Retry]:
        text = attempted.sequence.text
        try:
            value = self.result.value(text, is_cut=attempted.sequence.finish.type == "length")
            with self.before[-1][0].being_checked():
                outcome = None if self.check.function is None else self.check.function(value)
        except Exception as error:
            return self._go_on(attempted.sequence, error)
        if inspect.isawaitable(outcome):
            return self._go_on_later(attempted.sequence, outcome)
        return self._go_on(attempted.sequence, self._refusal(outcome))

    async def _go_on_later(self, sequence: session.Sequence, outcome: Any) -> str | session.Retry:
        try:
            with self.before[-1][0].being_checked():
                error = self._refusal(await outcome)
        except Exception as raised:
            error = raised
        return self._go_on(sequence, error)

    def _refusal(self, outcome: Any) -> Exception | None:
        if outcome is None or outcome:
            return None
        name = getattr(self.check.function, "__name__", "<lambda>")
        return ValueError(f"{'the check' if name == '<lambda>' else name} returned {outcome!r}")

    def _go_on(self, sequence: session.Sequence, error: Exception | None) -> str | session.Retry:
        """Return "" to accept, or the next attempt. Raises RequestError after the last one."""
        if error is None:
            self.attempts.append({"text": sequence.text, "error": None})
            return ""
        reason = _short(str(error) or type(error).__name__)
        if sequence.finish.type == "length":
            reason = f"cut off at max_tokens: {reason}"
        self.attempts.append({"text": sequence.text, "error": reason})
        if len(self.attempts) > self.check.retries:
            raise RequestError(self._summary(), param=self.name, code="invalid_result")
        gen = self.gen
        if gen.sampling.seed is not None:
            seed = derived_seed(gen.sampling.seed, len(self.attempts))
            gen = msgspec.structs.replace(gen, sampling=msgspec.structs.replace(gen.sampling, seed=seed))
        return session.Retry(gen=gen, operations=[] if self.check.on_invalid == "again" else self._told())

    def _told(self) -> list[session.Text | session.RoleBegin | session.RoleEnd]:
        """Return the attempts so far and what is said about each, to be appended before the next one."""
        in_chat = self.open_role == "assistant"
        message = _message_so_far(self.before) if in_chat else ""
        operations: list[session.Text | session.RoleBegin | session.RoleEnd] = []
        for attempt in self.attempts:
            text, reason = attempt["text"] or "", attempt["error"] or ""
            if callable(self.check.on_invalid):
                told = self.check.on_invalid(text, reason)
                if not isinstance(told, str):
                    raise RequestError(f"on_invalid must return a string, got {told!r}", param="on_invalid")
            else:
                told = f"That is not valid: {reason}. Try again."
                told = told if in_chat else f"\n({told})\n"
            operations.append(session.Text(text))
            if in_chat:
                operations += [session.RoleEnd(), session.RoleBegin("user"), session.Text(told)]
                operations += [session.RoleEnd(), session.RoleBegin("assistant"), session.Text(message)]
            else:
                operations.append(session.Text(told))
        return operations

    def _summary(self) -> str:
        made = "; ".join(f"{_short(repr(one['text']))}: {one['error']}" for one in self.attempts)
        name = "the gen" if self.name is None else f"gen {self.name!r}"
        count = len(self.attempts)
        return f"{name} made no valid {self.result.name} in {count} attempt{'s' * (count > 1)}: {made}"


def derived_seed(seed: int, index: int) -> int:
    """Return the seed of a further draw: fixed by both numbers, and another one for each index."""
    digest = hashlib.blake2b(f"{seed}:{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 2


def with_derived_seed(defaults: Mapping[str, Any], index: int) -> Mapping[str, Any]:
    """Return a state's defaults for its branch `index`: their seed, if there is one, is derived."""
    seed = defaults.get("seed")
    return defaults if seed is None else {**defaults, "seed": derived_seed(seed, index)}


def _message_so_far(before: Sequence[tuple[OperationLog, int]]) -> str:
    """Return the text of the open message before the gen."""
    texts: list[str] = []
    for log, end in reversed(before):
        for index in reversed(log.visible(0, end)):
            if isinstance(log.operations[index], session.RoleBegin):
                return "".join(reversed(texts))
            texts.append(log.done[index].text)
    return "".join(reversed(texts))


def _short(text: str) -> str:
    return text if len(text) <= MAX_SHOWN_ATTEMPT else f"{text[: MAX_SHOWN_ATTEMPT - 3]}..."
