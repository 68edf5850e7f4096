"""A frontend on a real port, and checks of its responses."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from .fake_core import Script
from .harness import House, house


@asynccontextmanager
async def served(script: Script | None = None, **options: Any) -> AsyncIterator[tuple[House, httpx.AsyncClient]]:
    async with (
        house(script, http=True, **options) as built,
        httpx.AsyncClient(base_url=built.url, timeout=120) as client,
    ):
        yield built, client


def events(text: str) -> list[Any]:
    """Return the values of a stream, which must end with [DONE]."""
    lines = [line for line in text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def check_error(response: httpx.Response, status: int, param: str | None, *words: str) -> None:
    assert response.status_code == status, response.text
    body = response.json()
    assert list(body) == ["error"]
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["param"] == param
    for word in words:
        assert word in body["error"]["message"]
