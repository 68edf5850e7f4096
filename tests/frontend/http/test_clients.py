"""Bodies and fields that clients send and other servers read, each kind as its clients send it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import msgspec
import pytest

from ramiform.runtime.protocol.core import Finish, Timings, Tokens
from ramiform.tests.frontend.harness import run
from ramiform.tests.frontend.served import served

PROBES = [("GET", "/health"), ("GET", "/v1/health"), ("GET", "/ping"), ("POST", "/ping")]
KEYS: list[dict[str, Any]] = [
    {},
    {"api_key": "one"},
    {"api_key": "one,two"},
    {"api_key": "one", "admin_key": "root"},
    {"api_key": "one,two", "admin_key": "root"},
    {"admin_key": "root"},
]
HI = [{"role": "user", "content": "Hi"}]
BODIES: dict[str, Any] = {
    "/api/chat": {"messages": HI, "stream": False},
    "/api/generate": {"prompt": "Hi", "stream": False},
    "/v1/chat/completions": {"messages": HI},
    "/v1/messages": {"messages": HI, "max_tokens": 4, "model": ""},
    "/v1/responses": {"input": "Hi"},
    "/generate": {"text": "Hi"},
}


@pytest.mark.slow
@pytest.mark.parametrize("settings", KEYS, ids=str)
def test_every_probe_answers_under_every_mode_of_keys_and_limits(settings: dict[str, Any]) -> None:
    async def main() -> None:
        limits = {"requests_per_minute_per_key": 1, "max_requests_per_key": 1}
        async with served(**settings, **limits) as (_, client):
            for _ in range(2):
                for method, path in PROBES:
                    assert (await client.request(method, path)).status_code == 200, path
            keys = [key for setting in settings.values() for key in setting.split(",")]
            for key in keys or [""]:
                headers = {"authorization": f"Bearer {key}"} if key else {}
                answer = await client.get("/health_generate", headers=headers)
                assert answer.status_code == 200, answer.text
            if "api_key" in settings:
                assert (await client.get("/health_generate")).status_code == 401

    run(main())


@pytest.mark.slow
def test_a_body_of_any_type_is_read_unless_a_page_of_another_origin_sends_it() -> None:
    async def main() -> None:
        async with served(cors_origins="https://listed.example") as (built, client):
            own = str(built.url)
            for path, body in BODIES.items():
                for kind in ("", "text/plain", "application/octet-stream", "application/x-www-form-urlencoded"):
                    for origin, status in (
                        (None, 200),
                        (own, 200),
                        ("https://listed.example", 200),
                        ("https://other.example", 400),
                        ("null", 400),
                    ):
                        headers = {"content-type": kind} | ({} if origin is None else {"origin": origin})
                        if not kind:
                            del headers["content-type"]
                        content = json.dumps(body) + " " * (400_000 if path == "/generate" else 0)  # read by a thread
                        answer = await client.post(path, content=content, headers=headers)
                        assert answer.status_code == status, (path, kind, origin, answer.text)
                wrong = await client.post(path, content=b"a=b", headers={"content-type": "text/plain"})
                assert wrong.status_code == 400

    run(main())


@pytest.mark.slow
def test_the_tool_runner_of_anthropics_sdk_is_told_that_there_are_no_threads() -> None:
    async def main() -> None:
        async with served() as (_, client):
            body = BODIES["/v1/messages"] | {"thread": {"type": "create"}}
            headers = {"anthropic-version": "2026-10-21", "anthropic-beta": "message-threads-2026-08-12"}
            for path in ("/v1/messages", "/v1/messages/count_tokens"):
                sent = {name: value for name, value in body.items() if path == "/v1/messages" or name != "max_tokens"}
                answer = await client.post(path, json=sent, headers=headers)
                assert answer.status_code == 400
                error = answer.json()["error"]
                assert error["type"] == "invalid_request_error"
                assert error["details"] == {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
            body["thread"] = None
            assert (await client.post("/v1/messages", json=body)).status_code == 200
            other = await client.post("/v1/messages", json=BODIES["/v1/messages"] | {"max_tokens": 0})
            assert "details" not in other.json()["error"]

    run(main())


@pytest.mark.slow
def test_items_of_stored_responses_are_named_in_a_later_input() -> None:
    """Send the second turn of the AI SDK: its own messages, and references in place of the answers."""

    async def ask(client: httpx.AsyncClient, key: str, items: list[Any], **fields: Any) -> httpx.Response:
        body = {"input": items} | fields
        return await client.post("/v1/responses", json=body, headers={"authorization": f"Bearer {key}"})

    async def main() -> None:
        async with served(api_key="one,two") as (built, client):
            first = (await ask(client, "one", HI)).json()
            [item] = first["output"]
            reference = {"type": "item_reference", "id": item["id"]}
            again = {"role": "user", "content": "And?"}
            assert (await ask(client, "one", [*HI, reference, again])).status_code == 200
            assert (await ask(client, "one", [*HI, item, again])).status_code == 200
            assert built.core.requests[-2].tokens == built.core.requests[-1].tokens
            for key, name in (("two", item["id"]), ("one", "msg_none")):
                answer = await ask(client, key, [*HI, {"type": "item_reference", "id": name}])
                assert answer.status_code == 400
                error = answer.json()["error"]
                assert (error["param"], error["code"]) == ("input[1].id", "item_not_found")
            unkept = (await ask(client, "one", HI, store=False)).json()["output"][0]["id"]
            assert (await ask(client, "one", [*HI, {"type": "item_reference", "id": unkept}])).status_code == 400

    run(main())


@pytest.mark.slow
def test_a_false_that_asks_for_something_is_honoured_or_refused() -> None:
    async def main() -> None:
        async with served() as (_, client):
            chat = BODIES["/v1/chat/completions"]
            for thinks in (True, False, None):
                answer = await client.post("/v1/chat/completions", json=chat | {"enable_thinking": thinks})
                assert answer.status_code == 200, answer.text
            contradiction = {"enable_thinking": False, "thinking": {"type": "enabled"}}
            answer = await client.post("/v1/chat/completions", json=chat | contradiction)
            assert answer.json()["error"]["param"] == "enable_thinking"
            for path, name in (
                ("/v1/chat/completions", "think"),
                ("/v1/chat/completions", "do_sample"),
                ("/v1/responses", "enable_thinking"),
            ):
                for value in (True, False):
                    answer = await client.post(path, json=BODIES[path] | {name: value})
                    assert answer.status_code == 400, (path, name, value)
                    assert answer.json()["error"]["param"] == name

    run(main())


@pytest.mark.slow
def test_ollamas_defaults_may_be_spelled_out_and_numbers_may_have_a_point() -> None:
    async def main() -> None:
        async with served() as (built, client):
            options = {"num_predict": 4.0, "repeat_last_n": 64, "top_k": 40.0, "num_ctx": 2048.0, "seed": 3.0}
            for path in ("/api/chat", "/api/generate"):
                body = BODIES[path] | {"truncate": True, "shift": True, "options": options}
                answer = await client.post(path, json=body)
                assert answer.status_code == 200, answer.text
                assert built.core.requests[-1].sampling.max_new_tokens == 4
                for wrong in ({"num_predict": 4.5}, {"repeat_last_n": 64, "repeat_penalty": 1.1}):
                    answer = await client.post(path, json=body | {"options": wrong})
                    assert answer.status_code == 400

    run(main())


@pytest.mark.slow
def test_ollamas_clients_find_it_alive_and_browsers_a_page() -> None:
    async def main() -> None:
        for page in (True, False):
            async with served(page=page) as (_, client):
                for accept in ("*/*", "application/json, text/plain, */*"):
                    answer = await client.get("/", headers={"accept": accept})
                    assert (answer.status_code, answer.text) == (200, "Ollama is running")
                    assert (await client.head("/", headers={"accept": accept})).status_code == 200
                answer = await client.get("/", headers={"accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
                assert answer.text.lower().startswith("<!doctype html>")

    run(main())


@pytest.mark.slow
def test_the_list_of_models_has_anthropics_pages_and_fields() -> None:
    async def main() -> None:
        async with served(ready=False) as (built, client):
            built.core.info = msgspec.structs.replace(
                built.core.info, name="a", aliases=("b", "c"), dtype="bfloat16", quantisation="Q4_K_M"
            )
            built.core.loaded.set()
            await built.frontend.core_ready()
            details = (await client.get("/api/tags")).json()["models"][0]["details"]
            assert details["quantization_level"] == "Q4_K_M"
            for query, ids, has_more in (
                ("", "abc", False),
                ("?limit=2", "ab", True),
                ("?after_id=a", "bc", False),
                ("?after_id=a&limit=1", "b", True),
                ("?after_id=c", "", False),
                ("?before_id=c", "ab", False),
                ("?before_id=c&limit=1", "b", True),
            ):
                listed = (await client.get(f"/v1/models{query}")).json()
                assert [each["id"] for each in listed["data"]] == list(ids)
                assert listed["has_more"] is has_more
                assert (listed["first_id"], listed["last_id"]) == ((ids[0], ids[-1]) if ids else (None, None))
                for each in listed["data"]:
                    assert (each["type"], each["lifecycle"]) == ("model", "active")
                    assert each["max_input_tokens"] == each["max_tokens"] > 0
            for query in ("after_id=x", "before_id=x", "limit=0", "limit=1001"):
                assert (await client.get(f"/v1/models?{query}")).status_code == 400

    run(main())


@pytest.mark.slow
def test_the_timings_of_an_answer_in_bulk_are_the_cores_own() -> None:
    """Answer by one message, which says that the first token came 40 ms before it."""

    async def main() -> None:
        async with served(lambda request: None) as (built, client):
            for number, path in enumerate(("/v1/chat/completions", "/api/chat", "/v1/completions")):
                body = {"prompt": "Hi"} if path == "/v1/completions" else BODIES[path]
                asked = asyncio.create_task(client.post(path, json=body))
                await built.core.until(lambda count=number: len(built.core.requests) > count)
                await asyncio.sleep(0.05)
                end = Tokens(
                    rid=built.core.requests[-1].rid,
                    ids=[300, 301],
                    num_cached=0,
                    finish=Finish("length"),
                    timings=Timings(queue=0.0, prefill=0.01, decode=0.04),
                    since_first=0.04,
                )
                built.core.send(end)
                answer = (await asked).json()
                decode = answer["timings"]["predicted_ms"] if "timings" in answer else answer["eval_duration"] / 1e6
                assert decode >= 40
                prefill = (
                    answer["timings"]["prompt_ms"] if "timings" in answer else answer["prompt_eval_duration"] / 1e6
                )
                assert prefill >= 0

    run(main())


@pytest.mark.exhaustive
def test_anthropics_clients_are_told_what_a_breakpoint_keeps_and_get_their_errors() -> None:
    async def main() -> None:
        async with served() as (built, client):
            marked = {"type": "text", "text": "Be brief. " * 20, "cache_control": {"type": "ephemeral"}}
            body = BODIES["/v1/messages"] | {"system": [marked]}
            usage = (await client.post("/v1/messages", json=body)).json()["usage"]
            total = len(built.core.requests[-1].tokens)
            num_kept = built.core.requests[-1].retain[0].num_tokens
            assert usage["cache_creation_input_tokens"] > 0
            assert usage["cache_creation_input_tokens"] + usage["cache_read_input_tokens"] == num_kept
            assert usage["input_tokens"] == total - num_kept > 0
            del marked["cache_control"]
            usage = (await client.post("/v1/messages", json=body)).json()["usage"]
            assert usage["cache_creation_input_tokens"] == 0
            assert usage["input_tokens"] + usage["cache_read_input_tokens"] == total
            for headers, names in (({"anthropic-version": "2023-06-01"}, {"type", "error"}), ({}, {"error"})):
                answer = await client.get("/v1/models/none", headers=headers)
                assert answer.status_code == 404
                assert set(answer.json()) == names

    run(main())
