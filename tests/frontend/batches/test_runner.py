"""Batches over HTTP before a fake core: what reaches it, in which order, and what ends a batch."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from ramiform.runtime.frontend.batches import runner
from ramiform.runtime.protocol.core import BACKGROUND_PRIORITY, Generate

from ..harness import House, run, says
from ..served import check_error, served

URL = "/v1/completions"


def row(number: int, prompt: str, url: str = URL, **fields: Any) -> dict[str, Any]:
    body = {"prompt": prompt, "max_tokens": 4} | fields
    return {"custom_id": f"row {number}", "method": "POST", "url": url, "body": body}


def lines(rows: Sequence[dict[str, Any]]) -> bytes:
    return b"\n".join(json.dumps(each).encode() for each in rows)


async def upload(client: httpx.AsyncClient, data: bytes, **fields: str) -> httpx.Response:
    return await client.post("/v1/files", data={"purpose": "batch"} | fields, files={"file": ("in.jsonl", data)})


async def create(client: httpx.AsyncClient, rows: Sequence[dict[str, Any]], **fields: Any) -> str:
    file = (await upload(client, lines(rows))).json()
    body = {"input_file_id": file["id"], "endpoint": URL, "completion_window": "24h"} | fields
    created = await client.post("/v1/batches", json=body)
    assert created.status_code == 200, created.text
    return str(created.json()["id"])


async def over(client: httpx.AsyncClient, name: str) -> Any:
    while True:
        batch = (await client.get(f"/v1/batches/{name}")).json()
        if batch["status"] in ("completed", "failed", "expired", "cancelled"):
            return batch
        await asyncio.sleep(0.02)


async def results(client: httpx.AsyncClient, file: str | None) -> list[Any]:
    if file is None:
        return []
    return [json.loads(line) for line in (await client.get(f"/v1/files/{file}/content")).text.splitlines()]


def test_rows_reach_the_core_grouped_by_prefix_at_low_priority() -> None:
    async def main() -> None:
        async with served(says(" ok")) as (house, client):
            rows = [row(n, f"{'abc'[n % 3] * 40} number {n}", priority=n - 4) for n in range(9)]
            batch = await over(client, await create(client, rows))
            assert batch["request_counts"] == {"total": 9, "completed": 9, "failed": 0}
            prompts = [house.core.tokenizer.decode(request.tokens) for request in house.core.requests]
            prefixes = "".join(text[0] for text in prompts)
            assert sorted(prefixes[start : start + 3] for start in (0, 3, 6)) == ["aaa", "bbb", "ccc"]
            assert all(request.priority == BACKGROUND_PRIORITY for request in house.core.requests)
            found = await results(client, batch["output_file_id"])
            assert {one["custom_id"] for one in found} == {each["custom_id"] for each in rows}
            assert all(one["response"]["body"]["choices"][0]["text"] == " ok" for one in found)
            assert all(one["response"]["status_code"] == 200 and one["error"] is None for one in found)

    run(main())


def test_a_row_that_is_wrong_is_an_error_of_its_own() -> None:
    async def main() -> None:
        async with served(says(" ok")) as (_, client):
            rows = [row(0, "a"), row(1, "a", top_p=2), row(2, "a", stream=True), row(3, "a", nonsense=1), row(4, "")]
            batch = await over(client, await create(client, rows))
            assert batch["request_counts"] == {"total": 5, "completed": 2, "failed": 3}
            errors = {one["custom_id"]: one["response"] for one in await results(client, batch["error_file_id"])}
            assert {name: one["body"]["error"]["param"] for name, one in errors.items()} == {
                "row 1": "top_p",
                "row 2": "stream",
                "row 3": "nonsense",
            }
            assert all(one["status_code"] == 400 for one in errors.values())

    run(main())


def test_a_file_that_is_no_batch_fails_by_its_lines() -> None:
    async def main() -> None:
        async with served(says(" ok")) as (house, client):
            rows = [row(0, "a"), row(0, "b"), row(2, "c", url="/v1/embeddings")]
            batch = await over(client, await create(client, rows))
            assert batch["status"] == "failed"
            told = [(error["code"], error["line"], error["param"]) for error in batch["errors"]["data"]]
            assert told == [("duplicate_custom_id", 2, "custom_id"), ("mismatched_endpoint", 3, "url")]
            assert batch["output_file_id"] is None
            assert house.core.requests == []

    run(main())


async def in_flight(house: House, least: int) -> None:
    while len(house.core.requests) - len(house.core.aborted) < least:
        await asyncio.sleep(0.02)


def silent(request: Generate) -> None:
    return None


@pytest.mark.parametrize(("output", "share"), [(1, runner.MOST_SHARE), (1000, runner.LEAST_SHARE)])
def test_as_many_rows_are_in_flight_as_the_pool_holds_within_bounds(output: int, share: float) -> None:
    async def main() -> None:
        async with served(silent) as (house, client):
            most = int(house.core.info.max_running * share)
            assert 1 < most < 100
            name = await create(client, [row(n, f"{n}", max_tokens=output) for n in range(100)])
            await in_flight(house, most)
            await asyncio.sleep(0.2)
            assert len(house.core.requests) == most
            await client.post(f"/v1/batches/{name}/cancel")
            assert (await over(client, name))["status"] == "cancelled"

    run(main())


def test_a_cancelled_batch_stops_its_rows_and_keeps_its_results() -> None:
    async def main() -> None:
        def script(request: Generate) -> Sequence[int] | None:
            return None if len(request.tokens) > 12 else says(" ok")(request)  # type: ignore[return-value]

        async with served(script) as (house, client):
            rows = [row(0, "short"), row(1, "very long " * 20)]
            name = await create(client, rows)
            await in_flight(house, 2)
            while (await client.get(f"/v1/batches/{name}")).json()["request_counts"]["completed"] < 1:
                await asyncio.sleep(0.02)
            await client.post(f"/v1/batches/{name}/cancel")
            batch = await over(client, name)
            assert (batch["status"], batch["request_counts"]["completed"]) == ("cancelled", 1)
            assert batch["cancelling_at"] <= batch["cancelled_at"]
            assert [one["custom_id"] for one in await results(client, batch["output_file_id"])] == ["row 0"]
            while len(house.core.aborted) < 1:
                await asyncio.sleep(0.02)
            again = (await client.post(f"/v1/batches/{name}/cancel")).json()
            assert again["status"] == "cancelled"

    run(main())


def test_an_expired_batch_says_which_rows_were_not_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with served(silent) as (house, client):
            name = await create(client, [row(n, "a") for n in range(3)], completion_window="1m")
            await in_flight(house, 1)
            with monkeypatch.context() as patch:
                patch.setattr(runner, "time", SimpleNamespace(time=lambda: 1e12, monotonic=time.monotonic))
                batch = await over(client, name)
            assert (batch["status"], batch["request_counts"]["failed"]) == ("expired", 3)
            found = await results(client, batch["error_file_id"])
            assert {one["error"]["code"] for one in found} == {"batch_expired"}
            assert sorted(one["custom_id"] for one in found) == ["row 0", "row 1", "row 2"]

    run(main())


def test_the_next_server_in_a_folder_goes_on_with_its_batches(tmp_path: Path) -> None:
    async def main() -> None:
        rows = [row(n, f"prompt {n}") for n in range(20)]
        answered = 0

        def some(request: Generate) -> Sequence[int] | None:
            nonlocal answered
            answered += 1
            return None if answered > 7 else says(" ok")(request)  # type: ignore[return-value]

        async with served(some, batch_dir=str(tmp_path)) as (house, client):
            name = await create(client, rows)
            while (await client.get(f"/v1/batches/{name}")).json()["request_counts"]["completed"] < 7:
                await asyncio.sleep(0.02)
        async with served(says(" ok"), batch_dir=str(tmp_path)) as (house, client):
            batch = await over(client, name)
            assert batch["request_counts"] == {"total": 20, "completed": 20, "failed": 0}
            found = await results(client, batch["output_file_id"])
            assert sorted(one["custom_id"] for one in found) == sorted(each["custom_id"] for each in rows)
            assert len(house.core.requests) == 13

    run(main())


@pytest.mark.parametrize("key", ["two", "root"])
def test_files_and_batches_of_a_key_are_invisible_to_others(key: str) -> None:
    async def main() -> None:
        async with served(says(" ok"), api_key="one,two", admin_key="root") as (house, client):
            client.headers["authorization"] = "Bearer one"
            name = await create(client, [row(0, "a")])
            batch = await over(client, name)
            assert house.core.requests[0].namespace.startswith("key ")  # cached prefixes are its own too
            file = f"/v1/files/{batch['output_file_id']}"
            client.headers["authorization"] = f"Bearer {key}"
            for method, path in (
                ("GET", file),
                ("GET", f"{file}/content"),
                ("DELETE", file),
                ("GET", f"/v1/batches/{name}"),
                ("POST", f"/v1/batches/{name}/cancel"),
            ):
                assert (await client.request(method, path)).status_code == 404
            body = {"input_file_id": batch["input_file_id"], "endpoint": URL, "completion_window": "24h"}
            check_error(await client.post("/v1/batches", json=body), 404, "input_file_id", "no file")
            for path in ("/v1/files", "/v1/batches"):
                assert (await client.get(path)).json()["data"] == []
            client.headers["authorization"] = "Bearer wrong"
            for method, path in (("POST", "/v1/files"), ("GET", "/v1/files"), ("POST", "/v1/batches"), ("GET", file)):
                assert (await client.request(method, path)).status_code == 401

    run(main())


def test_uploads_are_honoured_or_refused_by_name() -> None:
    async def main() -> None:
        async with served(says(" ok"), max_body_mib=1) as (_, client):
            check_error(await upload(client, b"x", purpose="fine-tune"), 400, "purpose", "fine-tune")
            check_error(await upload(client, b"x", colour="red"), 400, "file", "colour")
            check_error(
                await upload(client, b"x", **{"expires_after[seconds]": "5"}), 400, "expires_after[seconds]", "3600"
            )
            check_error(await upload(client, b"x", **{"expires_after[anchor]": "now"}), 400, "expires_after[anchor]")
            check_error(await client.post("/v1/files", data={"purpose": "batch"}), 400, "file", "form")
            check_error(await client.post("/v1/files", json={}), 400, "file", "multipart/form-data")
            assert (await upload(client, b"x" * (1 << 20))).status_code == 413
            page = await client.post(
                "/v1/files",
                data={"purpose": "batch"},
                files={"file": ("a", b"x")},
                headers={"origin": "http://evil.example"},
            )
            check_error(page, 400, None, "http://evil.example")
            kept = (await upload(client, b"abc", **{"expires_after[seconds]": "3600"})).json()
            assert (kept["bytes"], kept["expires_at"] - kept["created_at"]) == (3, 3600)
            named = await client.post("/v1/files", data={"purpose": "batch"}, files={"file": ("../../etc/a\nb", b"x")})
            assert "/" not in named.json()["filename"]
            content = await client.get(f"/v1/files/{named.json()['id']}/content")
            assert content.headers["x-content-type-options"] == "nosniff"
            assert content.headers["content-disposition"].startswith("attachment")
            body = {"input_file_id": kept["id"], "endpoint": URL}
            for fields, param in (
                ({"endpoint": "/v1/moderations"}, "endpoint"),
                ({"completion_window": "soon"}, "completion_window"),
                ({"completion_window": "31d"}, "completion_window"),
                ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "output_expires_after.seconds"),
            ):
                check_error(await client.post("/v1/batches", json=body | fields), 400, param)

    run(main())
