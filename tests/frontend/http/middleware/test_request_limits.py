"""Limits per client, and the answers to internal errors, over a scripted core."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from ramiform.runtime.frontend.http.middleware import request_limits as limits
from ramiform.runtime.frontend.http.openai.models import ModelsApi
from ramiform.runtime.protocol.core import Generate
from ramiform.tests.frontend.harness import house, run, shipped_tokenizer

FINE = shipped_tokenizer().encode(" fine.", continues=True)
BODY = {"model": "fake", "prompt": "a"}


def silent(request: Generate) -> None:
    """Script of a model that generates nothing until it is aborted."""


class Clock:
    """Time limit of one request that expires when the test says so."""

    def __init__(self) -> None:
        self.seconds: float | None = None
        self._limit: asyncio.Timeout | None = None

    def timeout(self, seconds: float | None) -> asyncio.Timeout:
        limit = asyncio.timeout(None)
        if seconds != limits.BODY_STALL_SECONDS:
            self.seconds, self._limit = seconds, limit
        return limit

    def expire(self) -> None:
        assert self._limit is not None
        self._limit.reschedule(asyncio.get_running_loop().time())


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(limits, "asyncio", SimpleNamespace(timeout=clock.timeout))
    return clock


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.mark.slow
def test_a_key_has_so_many_requests_at_once_and_no_more() -> None:
    async def main() -> None:
        async with (
            house(silent, http=True, api_key="first,second", max_requests_per_key=2) as built,
            httpx.AsyncClient(base_url=built.url, timeout=120) as client,
        ):

            async def ask(key: str) -> httpx.Response:
                return await client.post("/v1/completions", json=BODY, headers=bearer(key))

            running = [asyncio.create_task(ask("first")) for _ in range(2)]
            await built.core.until(lambda: len(built.core.requests) == 2)
            refused = await ask("first")
            assert refused.status_code == 429
            assert refused.json()["error"]["code"] == "too_many_requests"
            assert refused.headers["retry-after"]
            assert (await client.get("/health")).status_code == 200
            other = asyncio.create_task(ask("second"))
            await built.core.until(lambda: len(built.core.requests) == 3)
            for rid in [request.rid for request in built.core.requests]:
                built.core.send_end(rid)
            for task in (*running, other):
                assert (await task).status_code == 200
            again = asyncio.create_task(ask("first"))  # they are over: there is room again
            await built.core.until(lambda: len(built.core.requests) == 4)
            built.core.send_end(built.core.requests[-1].rid)
            assert (await again).status_code == 200

    run(main())


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/generate"])
def test_an_answer_that_takes_too_long_is_a_504_and_aborted(path: str, clock: Clock) -> None:
    bodies: dict[str, dict[str, Any]] = {
        "/v1/completions": BODY,
        "/v1/chat/completions": {"model": "fake", "messages": [{"role": "user", "content": "a"}]},
        "/generate": {"text": "a"},
    }

    async def main() -> None:
        def script(request: Generate) -> list[int] | None:
            return FINE if len(built.core.requests) == 1 else None

        async with (
            house(script, http=True, request_timeout=0.5) as built,
            httpx.AsyncClient(base_url=built.url, timeout=120) as client,
        ):
            assert (await client.post(path, json=bodies[path])).status_code == 200
            asking = asyncio.create_task(client.post(path, json=bodies[path]))
            await built.core.until(lambda: len(built.core.requests) == 2)
            assert clock.seconds == 0.5
            clock.expire()
            response = await asking
            assert response.status_code == 504
            assert (response.json()["error"]["type"], response.json()["error"]["code"]) == ("timeout_error", "timeout")
            _, request = built.core.requests
            await built.core.until(lambda: built.core.aborted == [request.rid])

    run(main())


@pytest.mark.slow
def test_a_stream_that_takes_too_long_ends_with_an_event_that_says_so(clock: Clock) -> None:
    async def main() -> None:
        def script(request: Generate) -> list[int] | None:
            return FINE if len(built.core.requests) == 1 else None

        async with (
            house(script, http=True, request_timeout=0.5) as built,
            httpx.AsyncClient(base_url=built.url, timeout=120) as client,
        ):
            async with client.stream("POST", "/v1/completions", json=BODY | {"n": 2, "stream": True}) as response:
                assert response.status_code == 200
                await built.core.until(lambda: len(built.core.requests) == 2)
                clock.expire()
                text = (await response.aread()).decode()
            *_, last, done, empty = text.split("\n\n")
            assert (done, empty) == ("data: [DONE]", "")
            assert json.loads(last.removeprefix("data: "))["error"]["code"] == "timeout"
            await built.core.until(lambda: bool(built.core.aborted))

    run(main())


@pytest.mark.slow
def test_a_body_that_does_not_come_is_a_408(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BODY_STALL_SECONDS", 0.05)

    async def main() -> None:
        async with house(http=True) as built:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(built.url.rpartition(":")[2]))
            head = ("POST /v1/completions HTTP/1.1", "host: a", "content-type: application/json", "content-length: 9")
            writer.write("\r\n".join((*head, "", "{")).encode())
            assert b" 408 " in await reader.readline()
            writer.close()

    run(main())


@pytest.mark.slow
def test_a_body_that_comes_in_crumbs_is_a_408(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each piece comes in time, but the average rate is too low."""
    monkeypatch.setattr(limits, "BODY_STALL_SECONDS", 0.5)
    monkeypatch.setattr(limits, "MIN_BODY_RATE", 1 << 20)

    async def main() -> None:
        async with house(http=True) as built:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(built.url.rpartition(":")[2]))
            head = ("POST /v1/completions HTTP/1.1", "host: a", "content-type: application/json", "content-length: 999")
            writer.write("\r\n".join((*head, "", "{")).encode())
            answered = asyncio.create_task(reader.readuntil(b"\r\n\r\n"))
            while not answered.done():
                writer.write(b" ")
                await asyncio.sleep(0.01)
            assert b" 408 " in await answered
            writer.close()

    run(main())


@pytest.mark.slow
def test_an_error_of_ours_is_a_500_in_the_same_shape_with_the_requests_id(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("what another client said")

    monkeypatch.setattr(ModelsApi, "_entry", fail)

    async def main() -> None:
        async with (
            house(http=True) as built,
            httpx.AsyncClient(base_url=built.url, timeout=120) as client,
        ):
            response = await client.get("/v1/models", headers={"x-request-id": "mine"})
            assert response.status_code == 500
            assert response.headers["x-request-id"] == "mine"
            assert response.json()["error"] == {
                "message": "internal server error (ZeroDivisionError)",
                "type": "internal_error",
                "param": None,
                "code": "internal_error",
            }

    run(main())
