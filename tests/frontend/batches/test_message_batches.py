"""Anthropic's message batches before a fake core."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from ramiform.runtime.protocol.core import BACKGROUND_PRIORITY, Generate

from ..harness import run, says
from ..served import served

PATH = "/v1/messages/batches"
PARAMS = {"model": "fake", "max_tokens": 8, "messages": [{"role": "user", "content": "Hi!"}]}


def asked(num: int, **changes: Any) -> dict[str, Any]:
    return {"requests": [{"custom_id": f"row-{n}", "params": PARAMS | changes} for n in range(num)]}


async def ended(client: httpx.AsyncClient, name: str) -> Any:
    while (batch := (await client.get(f"{PATH}/{name}")).json())["processing_status"] != "ended":
        await asyncio.sleep(0.02)
    return batch


async def results(client: httpx.AsyncClient, batch: Any) -> dict[str, Any]:
    lines = (await client.get(batch["results_url"])).text.splitlines()
    return {one["custom_id"]: one["result"] for one in map(json.loads, lines)}


def test_a_message_batch_has_a_result_for_each_request() -> None:
    async def main() -> None:
        async with served(says(" ok")) as (house, client):
            body = asked(4)
            body["requests"][2]["params"] = PARAMS | {"top_p": 3}
            made = (await client.post(PATH, json=body)).json()
            assert made["processing_status"] == "in_progress"
            assert made["request_counts"]["processing"] == 4
            batch = await ended(client, made["id"])
            expected = {"processing": 0, "succeeded": 3, "errored": 1, "canceled": 0, "expired": 0}
            assert batch["request_counts"] == expected
            found = await results(client, batch)
            assert found.keys() == {f"row-{n}" for n in range(4)}
            assert found["row-0"]["message"]["content"] == [{"type": "text", "text": " ok"}]
            error = found["row-2"]["error"]
            assert (error["type"], error["error"]["type"]) == ("error", "invalid_request_error")
            assert "top_p" in error["error"]["message"]
            assert {request.priority for request in house.core.requests} == {BACKGROUND_PRIORITY}
            assert (await client.get("/v1/files")).json()["data"] == []
            assert (await client.get("/v1/batches")).json()["data"] == []
            assert (await client.get(f"/v1/batches/{made['id']}")).status_code == 404
            assert (await client.delete(f"{PATH}/{made['id']}")).json()["type"] == "message_batch_deleted"
            gone = await client.get(f"{PATH}/{made['id']}")
            assert (gone.status_code, gone.json()["error"]["type"]) == (404, "not_found_error")

    run(main())


def test_what_was_not_answered_is_cancelled_by_name() -> None:
    async def main() -> None:
        def silent(request: Generate) -> None:
            return None

        async with served(silent) as (house, client):
            name = (await client.post(PATH, json=asked(30))).json()["id"]
            while not house.core.requests:
                await asyncio.sleep(0.02)
            early = await client.get(f"{PATH}/{name}/results")
            assert (early.status_code, early.json()["type"]) == (400, "error")
            assert (await client.delete(f"{PATH}/{name}")).status_code == 400
            assert (await client.post(f"{PATH}/{name}/cancel")).json()["processing_status"] == "canceling"
            batch = await ended(client, name)
            assert batch["request_counts"]["canceled"] == 30
            assert {one["type"] for one in (await results(client, batch)).values()} == {"canceled"}
            assert batch["cancel_initiated_at"] <= batch["ended_at"]

    run(main())


def test_pages_of_message_batches_go_both_ways() -> None:
    async def main() -> None:
        async with served(says(" ok")) as (_, client):
            newest = [(await client.post(PATH, json=asked(1))).json()["id"] for _ in range(5)][::-1]

            async def page(**query: Any) -> tuple[list[str], bool]:
                listed = (await client.get(PATH, params=query)).json()
                return [one["id"] for one in listed["data"]], listed["has_more"]

            assert await page() == (newest, False)
            assert await page(limit=2) == (newest[:2], True)
            assert await page(limit=2, after_id=newest[1]) == (newest[2:4], True)
            assert await page(limit=2, before_id=newest[3]) == (newest[1:3], True)
            assert await page(limit=2, before_id=newest[2]) == (newest[:2], False)

    run(main())


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({"requests": []}, "requests"),
        ({"requests": [{"custom_id": "a b", "params": PARAMS}]}, "custom_id"),
        ({"requests": [{"custom_id": "a", "params": PARAMS}] * 2}, "another request's"),
        ({"requests": [{"custom_id": "a", "params": []}]}, "params"),
        ({"requests": [{"custom_id": "a", "params": {"x": "\ud800"}}]}, "requests"),
        ({"requests": [{"custom_id": "a", "params": PARAMS, "more": 1}]}, "more"),
    ],
)
def test_what_is_no_message_batch_is_refused_by_name(body: Any, word: str) -> None:
    async def main() -> None:
        async with served(says(" ok")) as (_, client):
            answer = await client.post(PATH, content=json.dumps(body))
            assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
            assert word in answer.json()["error"]["message"]

    run(main())
