"""Calls of a model's endpoint: authorised, repeated when they may succeed later, within rate limits, counted."""

from __future__ import annotations

import json
import math
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypedDict

from ....runtime.protocol.errors import RamiformError, RequestError, RuntimeFailed
from ..http_client import Exchange, HttpClient, events_to, read_json
from ..http_errors import HttpFailure
from ..model import ModelCall
from .rate_limits import RateLimiter
from .usage import CountedTokens, TokenUsage

SHORTEST_SECRET = 8  # a shorter key is a placeholder, and would be found in any message


class EndpointOptions(TypedDict, total=False):
    """Keyword arguments that every backend on an endpoint takes; `EndpointSettings` says what they mean."""

    timeout: float
    max_retries: int
    max_concurrency: int
    requests_per_minute: int | None
    tokens_per_minute: int | None
    default_headers: Mapping[str, str]
    extra_body: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class EndpointSettings:
    """`timeout`: seconds for a call with its retries; the wait for a rate limit does not count.

    `max_concurrency`: calls at once. `requests_per_minute` and `tokens_per_minute` are kept for this backend alone;
    a request counts as its prompt and `max_tokens` until the answer says its tokens. `extra_body` are further fields
    of every request, in place of this backend's own. Raises RequestError for a value that is not positive, and for
    fields that are no JSON.
    """

    timeout: float = 600.0
    max_retries: int = 4
    max_concurrency: int = 64
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    default_headers: Mapping[str, str] = field(default_factory=dict)
    extra_body: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not (isinstance(self.timeout, int | float) and self.timeout > 0 and math.isfinite(self.timeout)):
            raise RequestError(f"timeout must be a positive number of seconds, got {self.timeout!r}", param="timeout")
        if not isinstance(self.max_retries, int) or self.max_retries < 0:
            raise RequestError(f"max_retries must be an int from 0, got {self.max_retries!r}", param="max_retries")
        for name in ("max_concurrency", "requests_per_minute", "tokens_per_minute"):
            value = getattr(self, name)
            if (value is None and name == "max_concurrency") or (
                value is not None and (not isinstance(value, int) or value < 1)
            ):
                raise RequestError(f"{name} must be a positive int, got {value!r}", param=name)
        for header, text in self.default_headers.items():
            if not (isinstance(text, str) and f"{header}{text}".isascii() and f"{header}{text}".isprintable()):
                raise RequestError(
                    f"default_headers must be printable ASCII strings, got {header!r}: {text!r}",
                    param="default_headers",
                )
        try:
            json.dumps(dict(self.extra_body))
        except (TypeError, ValueError) as error:
            raise RequestError(
                f"extra_body must be a mapping of JSON, got {self.extra_body!r}: {error}", param="extra_body"
            ) from None


@dataclass(frozen=True)
class Credentials:
    """Authorisation of calls: `header` takes `prefix` and the key. `source` says where the key comes from.

    `renew` forgets a key that the server refused; the call is then repeated once with the next.
    """

    header: str
    key: Callable[[], str | None]
    source: str
    prefix: str = ""
    required: bool = False
    renew: Callable[[], None] | None = None


@dataclass(frozen=True)
class RetryPolicy:
    """`max_retries` calls after the first. Waits double from `first_delay` to `max_delay` seconds."""

    max_retries: int = 4
    first_delay: float = 0.5
    max_delay: float = 16.0

    def delay(self, num_failed: int, failure: HttpFailure, draw: float) -> float | None:
        """Return the seconds to wait after `num_failed` calls, None if the call is not to be repeated.

        `draw` from [0, 1) spreads the calls of many clients: a half to the whole of the back-off. It never shortens
        the time that the server asked for.
        """
        if not failure.may_repeat or num_failed > self.max_retries:
            return None
        if failure.retry_after is not None:
            return failure.retry_after * (1 + 0.1 * draw)
        longest = min(self.first_delay * 2.0 ** min(num_failed - 1, 30), self.max_delay)
        return longest * (0.5 + 0.5 * draw)


class EventReader(Protocol):
    """Collects the events of a stream. Once it `has_text` the call is not repeated."""

    has_text: bool

    def take(self, event: Any) -> Literal["end", "leave"] | None:
        """Take an event, as `OnEvent` does."""
        ...

    def answer(self) -> Any:
        """Return what the endpoint would have answered without streaming."""
        ...


class EndpointClient:
    """A client of one endpoint. `counts_of` reads the tokens of an answer, None if it does not say them.

    Calls raise RequestError, BusyError or RuntimeFailed; the message has the address, the status, the server's words
    and the request's id, and never the key.
    """

    def __init__(
        self,
        url: str,
        settings: EndpointSettings,
        credentials: Credentials,
        counts_of: Callable[[Any], CountedTokens | None],
        *,
        query: str = "",
    ) -> None:
        self.usage = TokenUsage()
        self._http = HttpClient(url, None, settings.timeout)
        self.settings = settings
        self._credentials = credentials
        self._counts_of = counts_of
        self._query = query
        self._policy = RetryPolicy(settings.max_retries)
        self._limiter = RateLimiter(settings.requests_per_minute, settings.tokens_per_minute)

    def post(self, path: str, body: Any, call: ModelCall, *, num_tokens: int) -> Any:
        """Return the answer's JSON. `num_tokens` is an estimate of the tokens of prompt and answer."""
        return self._call(path, body, call, read_json, lambda: True, num_tokens)

    def stream(self, path: str, body: Any, call: ModelCall, reader: EventReader, *, num_tokens: int) -> Any:
        """Give each event to `reader`, and return its answer."""

        def read(response: Any) -> Any:
            events_to(reader.take)(response)
            return reader.answer()

        return self._call(path, body, call, read, lambda: not reader.has_text, num_tokens)

    def close(self) -> None:
        self._http.close()

    def _call(
        self,
        path: str,
        body: Any,
        call: ModelCall,
        use: Exchange,
        may_repeat: Callable[[], bool],
        num_tokens: int,
    ) -> Any:
        body = {**body, **self.settings.extra_body}
        left = self.settings.timeout
        num_failed, was_renewed = 0, False
        while True:
            permit = self._limiter.acquire(num_tokens, call)
            key, headers = self._authorised()
            self.usage.count_request(is_retry=num_failed > 0)
            began = time.monotonic()
            try:
                answer = self._http.exchange(
                    "POST", path + self._query, body, call, use, headers=headers, timeout=max(left, 0.001)
                )
            except HttpFailure as failure:
                self._limiter.settle(permit, 0)
                left -= time.monotonic() - began
                num_failed += 1
                if failure.status == 401 and self._credentials.renew is not None and not was_renewed:
                    self._credentials.renew()
                    was_renewed = True
                    continue
                delay = self._policy.delay(num_failed, failure, random.random()) if may_repeat() else None
                if delay is None or delay > left:
                    raise self._error(path, failure, num_failed, key, delay) from failure
                left -= delay
                _wait(delay, call)
            except BaseException:
                self._limiter.settle(permit, 0)
                raise
            else:
                counts = self._counts_of(answer)
                self.usage.count_answer(counts)
                if counts is not None:
                    self._limiter.settle(permit, counts.prompt + counts.completion)
                return answer

    def _authorised(self) -> tuple[str | None, dict[str, str]]:
        key = self._credentials.key()
        if key is None:
            if self._credentials.required:
                raise RequestError(
                    f"{self._http.url} needs an API key: set {self._credentials.source}, or pass api_key",
                    param="api_key",
                    code="missing_api_key",
                )
            return None, dict(self.settings.default_headers)
        if not key.isascii() or not key.isprintable():
            raise RequestError(
                f"the API key of {self._credentials.source} has characters that no header may have", param="api_key"
            )
        own = {self._credentials.header: self._credentials.prefix + key}
        return key, own | dict(self.settings.default_headers)

    def _error(
        self, path: str, failure: HttpFailure, num_failed: int, key: str | None, delay: float | None
    ) -> RamiformError:
        is_secret = key is not None and len(key) >= SHORTEST_SECRET
        said = failure.message.replace(str(key), "***") if is_secret else failure.message
        parts = [f"{self._http.url}{path}: " + (said if failure.status is None else f"{failure.status} {said}")]
        if failure.request_id is not None:
            parts.append(f"(request {failure.request_id})")
        if failure.status == 401:
            parts.append(
                f"(the key comes from {self._credentials.source})"
                if key
                else f"(no key was sent: set {self._credentials.source})"
            )
        if delay is not None:  # the call would be repeated, but for its timeout
            asked = "" if failure.retry_after is None else f"asked to wait {failure.retry_after:g} s, "
            parts.append(f"({asked}beyond the timeout of {self.settings.timeout:g} s)")
        elif num_failed > 1:
            parts.append(f"(after {num_failed} attempts)")
        return failure.to_error(" ".join(parts))


def settings_of(kind: str, given: Mapping[str, Any]) -> EndpointSettings:
    """Return the settings of a backend's keyword arguments. Raises RequestError for one that it does not have."""
    for name in given:
        if name not in EndpointOptions.__annotations__:
            known = ", ".join(EndpointOptions.__annotations__)
            raise RequestError(f"{kind} has no argument {name!r}; for the endpoint it takes {known}", param=name)
    return EndpointSettings(**given)


def estimated_tokens(prompt: Any, num_completion: int) -> int:
    """Return about how many tokens a request takes: four characters of its prompt count as one."""
    return len(str(prompt)) // 4 + num_completion


def _wait(seconds: float, call: ModelCall) -> None:
    """Sleep. Raises RuntimeFailed at once when the call is cancelled."""
    cancelled = threading.Event()
    with call.aborted_by(cancelled.set):
        if cancelled.wait(seconds):
            raise RuntimeFailed("the call was cancelled")
