"""Errors of the APIs that are not OpenAI's: missing keys, bodies too long, expired requests, and the core's end in a
stream.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from ramiform.runtime.protocol.core import Tokens
from ramiform.runtime.protocol.errors import RuntimeFailed
from ramiform.tests.frontend.harness import House, house, run, shipped_tokenizer

MESSAGES = [{"role": "user", "content": "Hello"}]
FINE = shipped_tokenizer().encode(" fine.", continues=True)
ANTHROPIC = ("/v1/messages", {"model": "fake", "max_tokens": 9, "messages": MESSAGES})
OLLAMA = ("/api/chat", {"model": "fake", "messages": MESSAGES})
APIS = pytest.mark.parametrize(("path", "body"), [ANTHROPIC, OLLAMA], ids=["anthropic", "ollama"])


def message_of(path: str, answer: Any, kind: str) -> str:
    """Return the message of an error in the API's shape; Anthropic's errors have the type `kind`."""
    if path.startswith("/api"):
        assert set(answer) == {"error"}
        return str(answer["error"])
    assert answer["type"] == "error"
    assert answer["error"]["type"] == kind
    return str(answer["error"]["message"])


@pytest.mark.slow
@APIS
def test_a_missing_key_and_a_body_too_long_have_the_api_s_errors(path: str, body: dict[str, Any]) -> None:
    async def main() -> None:
        async with (
            house(http=True, api_key="secret", max_body_mib=1) as built,
            httpx.AsyncClient(base_url=built.url, timeout=120) as client,
        ):
            response = await client.post(path, json=body)
            assert response.status_code == 401
            assert "API key" in message_of(path, response.json(), "authentication_error")
            long = body | {"messages": [{"role": "user", "content": "a" * (2 << 20)}]}
            response = await client.post(path, json=long, headers={"x-api-key": "secret"})
            assert response.status_code == 413
            assert "longer than" in message_of(path, response.json(), "request_too_large")

    run(main())


@pytest.mark.slow
@APIS
def test_a_request_that_expires_has_the_api_s_error(path: str, body: dict[str, Any]) -> None:
    async def main() -> None:
        async with (
            house(lambda request: None, http=True, request_timeout=0.2) as built,
            httpx.AsyncClient(base_url=built.url, timeout=120) as client,
        ):
            response = await client.post(path, json=body | {"stream": False})
            assert response.status_code == 504
            assert message_of(path, response.json(), "timeout_error")

    run(main())


@pytest.mark.slow
@APIS
def test_the_core_s_end_in_a_stream_is_an_error_of_the_api(path: str, body: dict[str, Any]) -> None:
    async def main() -> None:
        async with (
            house(lambda request: None, http=True) as built,
            httpx.AsyncClient(base_url=built.url, timeout=120) as client,
        ):

            async def begin() -> None:
                await built.core.until(lambda: bool(built.core.requests))
                built.core.send(Tokens(rid=built.core.requests[0].rid, ids=FINE, num_cached=0))

            beginning = asyncio.create_task(begin())
            async with client.stream("POST", path, json=body | {"stream": True}) as response:
                await beginning
                lines = [line async for line in until_end(response.aiter_lines(), built)]
            assert any("fine" in line for line in lines)
            last = json.loads(lines[-1].removeprefix("data: "))
            assert message_of(path, last, "overloaded_error") == "the core is gone"

    run(main())


async def until_end(lines: AsyncIterator[str], built: House) -> AsyncIterator[str]:
    """Yield the data lines of a stream, whose core fails once the first one is there."""
    is_first = True
    async for line in lines:
        if line and not line.startswith("event:"):
            if is_first:
                built.core.fail(RuntimeFailed("the core is gone"))
            is_first = False
            yield line
