"""Back-off, Retry-After and rate limits as values: no clock, no sockets."""

from __future__ import annotations

import email.utils
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramiform.lang.backends.endpoints.endpoint_client import RetryPolicy
from ramiform.lang.backends.endpoints.rate_limits import WINDOW_SECONDS, SlidingWindow
from ramiform.lang.backends.http_errors import HttpFailure, failure_of_answer, failure_of_event
from ramiform.runtime.protocol.errors import BusyError, RequestError, RuntimeFailed

REPEATABLE = HttpFailure("later", status=503, may_repeat=True)


def test_waits_double_up_to_a_limit_and_end_after_the_last_retry() -> None:
    policy = RetryPolicy(max_retries=6, first_delay=0.5, max_delay=4.0)
    assert [policy.delay(n, REPEATABLE, 1.0) for n in range(1, 8)] == [0.5, 1.0, 2.0, 4.0, 4.0, 4.0, None]


@given(st.floats(0, 1, exclude_max=True), st.integers(1, 4))
def test_jitter_takes_at_most_half_of_a_wait(draw: float, num_failed: int) -> None:
    policy = RetryPolicy()
    longest = policy.delay(num_failed, REPEATABLE, 1.0)
    delay = policy.delay(num_failed, REPEATABLE, draw)
    assert longest is not None
    assert delay is not None
    assert longest / 2 <= delay <= longest


@given(st.floats(0, 1, exclude_max=True), st.floats(0, 1e6))
def test_jitter_never_shortens_what_the_server_asks_for(draw: float, seconds: float) -> None:
    failure = HttpFailure("later", status=429, may_repeat=True, retry_after=seconds)
    delay = RetryPolicy().delay(1, failure, draw)
    assert delay is not None
    assert delay >= seconds


@pytest.mark.parametrize(
    ("status", "headers", "body", "may_repeat"),
    [
        (408, {}, {}, True),
        (409, {}, {}, True),
        (429, {}, {}, True),
        (500, {}, {}, True),
        (529, {}, {}, True),
        (400, {}, {}, False),
        (401, {}, {}, False),
        (404, {}, {}, False),
        (500, {"x-should-retry": "false"}, {}, False),
        (400, {"x-should-retry": "true"}, {}, True),
        (429, {}, {"error": {"code": "insufficient_quota", "message": "no credit"}}, False),
    ],
)
def test_which_answers_are_repeated(
    status: int, headers: dict[str, str], body: dict[str, object], may_repeat: bool
) -> None:
    assert failure_of_answer(status, headers, json.dumps(body).encode()).may_repeat is may_repeat


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.25"}, 0.25),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
    ],
)
def test_retry_after_is_seconds_or_a_date(headers: dict[str, str], seconds: float | None) -> None:
    assert failure_of_answer(429, headers, b"").retry_after == seconds


def test_a_date_to_come_is_the_seconds_until_then() -> None:
    date = email.utils.formatdate(time.time() + 3600, usegmt=True)
    seconds = failure_of_answer(503, {"retry-after": date}, b"").retry_after
    assert seconds is not None
    assert 0 < seconds <= 3601


@pytest.mark.parametrize(
    ("data", "status", "kind", "message"),
    [
        ({"type": "error", "error": {"type": "overloaded_error", "message": "full"}}, 529, BusyError, "full"),
        ({"error": {"type": "invalid_request_error", "message": "bad"}}, 400, RequestError, "bad"),
        ({"error": {"code": 503, "message": "gone", "status": "UNAVAILABLE"}}, 503, RuntimeFailed, "gone"),
        ({"error": {"message": "what"}}, 500, RuntimeFailed, "what"),
    ],
)
def test_events_report_errors_in_each_apis_format(
    data: dict[str, object], status: int, kind: type[Exception], message: str
) -> None:
    failure = failure_of_event(json.dumps(data).encode())
    assert (failure.status, failure.message) == (status, message)
    assert isinstance(failure.to_error(), kind)


def test_googles_errors_may_be_a_list_of_one() -> None:
    body = [{"error": {"code": 400, "message": "API key not valid", "status": "INVALID_ARGUMENT"}}]
    failure = failure_of_answer(400, {}, json.dumps(body).encode())
    assert failure.message == "API key not valid"


requests = st.lists(st.tuples(st.floats(0, 20), st.integers(1, 50), st.integers(0, 80)), max_size=40)


@pytest.mark.slow
@given(requests, st.integers(1, 5), st.integers(50, 200))
def test_no_minute_has_more_than_its_limits(
    arrivals: list[tuple[float, int, int]], max_requests: int, max_tokens: int
) -> None:
    """Judge: every window of a minute is summed, with the tokens as they were counted in the end."""
    window = SlidingWindow(max_requests, max_tokens)
    now, sent = 0.0, []
    for pause, estimate, counted in arrivals:
        now += pause
        while delay := window.delay(now, estimate):
            assert delay > 0
            now += delay
        permit = window.take(now, estimate)
        permit.num_tokens = min(counted, estimate)
        sent.append((now, permit.num_tokens))
    for end, _ in sent:
        # Rounding: a permit that is exactly a minute old no longer counts.
        inside = [tokens for began, tokens in sent if end - WINDOW_SECONDS + 1e-6 < began <= end]
        assert len(inside) <= max_requests
        assert sum(inside) <= max_tokens


def test_a_window_without_limits_lets_everything_through() -> None:
    window = SlidingWindow(None, None)
    for _ in range(100):
        assert window.delay(0.0, 10**9) == 0.0
        window.take(0.0, 10**9)
