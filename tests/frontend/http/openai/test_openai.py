"""The OpenAI routes over a scripted core: API keys, aborts, and the status of each error."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI

from ramiform.runtime.frontend.api.validation import validated
from ramiform.runtime.frontend.http.openai.completions import CompletionBody
from ramiform.runtime.protocol.errors import RamiformError, RequestError, RuntimeFailed
from ramiform.tests.frontend.fake_core import BUSY
from ramiform.tests.frontend.harness import House, house, run, says, shipped_tokenizer

FINE = shipped_tokenizer().encode(" fine.", continues=True)
MESSAGES: list[Any] = [{"role": "user", "content": "a"}]
TOOL = {"type": "function", "function": {"name": "f"}}
ROUTES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"model": "fake", "prompt": "a"}),
    ("/v1/completions", {"model": "fake", "prompt": ["a", "b"], "n": 2}),
    ("/v1/chat/completions", {"model": "fake", "messages": MESSAGES}),
    ("/v1/chat/completions", {"model": "fake", "messages": MESSAGES, "n": 3}),
    ("/v1/chat/completions", {"model": "fake", "messages": MESSAGES, "tools": [TOOL]}),
    ("/v1/responses", {"model": "fake", "input": "a"}),
    ("/generate", {"text": "a", "sampling_params": {"n": 2}}),
]
WHOLE_ROUTES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/constrained", {"prompt": "a", "regex": "a"}),
    ("/v1/chat/completions", {"model": "fake", "messages": MESSAGES, "tools": [TOOL], "tool_choice": "required"}),
]


def official(built: House, key: str = "none") -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{built.url}/v1", api_key=key, max_retries=0, timeout=120)


def ids(value: Any) -> str:
    return str(value)[:60]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("path", "body"), [*((p, b | {"stream": True}) for p, b in ROUTES), *ROUTES, *WHOLE_ROUTES], ids=ids
)
def test_a_client_that_leaves_before_the_answer_has_it_aborted(path: str, body: dict[str, Any]) -> None:
    async def main() -> None:
        async with (
            house(lambda request: None, http=True) as built,
            httpx.AsyncClient(base_url=built.url, timeout=120) as client,
        ):
            asking = asyncio.create_task(client.post(path, json=body))
            await built.core.until(lambda: bool(built.core.requests))
            asking.cancel()
            await asyncio.wait({asking})
            await built.core.until(lambda: {request.rid for request in built.core.requests} <= set(built.core.aborted))

    run(main())


@pytest.mark.slow
@pytest.mark.parametrize(("path", "body"), [route for route in ROUTES if '"n"' in json.dumps(route)], ids=ids)
def test_a_client_that_leaves_a_stream_has_the_rest_aborted(path: str, body: dict[str, Any]) -> None:
    """The first output ends at once, which begins the stream; the others never end."""

    async def main() -> None:
        def script(request: Any) -> list[int] | None:
            return FINE if len(built.core.requests) == 1 else None

        async with house(script, http=True) as built, httpx.AsyncClient(base_url=built.url, timeout=120) as client:
            async with client.stream("POST", path, json=body | {"stream": True}) as response:
                assert await anext(response.aiter_bytes())
                await built.core.until(lambda: len(built.core.requests) > 1)
            waiting = {request.rid for request in built.core.requests[1:]}
            assert waiting
            await built.core.until(lambda: waiting <= set(built.core.aborted))

    run(main())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RequestError("the prompt is wrong", param="prompt", code="bad"), openai.BadRequestError),
        (BUSY, openai.RateLimitError),
        (RuntimeFailed("the core is gone"), openai.InternalServerError),
    ],
)
def test_errors_of_the_core_are_the_clients_exceptions(error: RamiformError, kind: type[openai.APIStatusError]) -> None:
    async def main() -> None:
        async with house(lambda request: error, http=True) as built, official(built) as client:
            for stream in (False, True):
                for asking in (
                    client.completions.create(model="fake", prompt="a", stream=stream),
                    client.chat.completions.create(model="fake", messages=MESSAGES, stream=stream, n=2),
                    client.responses.create(model="fake", input="a", stream=stream),
                ):
                    with pytest.raises(kind, match=str(error)) as caught:
                        await asking
                    if kind is not openai.BadRequestError:
                        assert caught.value.response.headers["retry-after"]

    run(main())


@pytest.mark.slow
def test_an_error_in_the_middle_of_a_stream_is_raised_and_ends_it() -> None:
    async def main() -> None:
        def script(request: Any) -> list[int] | None:
            return FINE if len(built.core.requests) == 1 else None

        async with house(script, http=True) as built, official(built) as client:
            stream = await client.completions.create(model="fake", prompt="a", n=2, stream=True)
            built.core.fail(RuntimeFailed("the core is gone"))
            with pytest.raises(openai.APIError, match="the core is gone"):
                async for _ in stream:
                    pass

    run(main())


@pytest.mark.exhaustive
def test_a_response_that_fails_on_the_way_says_so() -> None:
    async def main() -> None:
        async with (
            house(lambda request: None, http=True) as built,
            httpx.AsyncClient(base_url=built.url, timeout=120) as client,
        ):
            body = {"model": "fake", "input": "a", "background": True}
            made = (await client.post("/v1/responses", json=body)).json()
            assert made["status"] in ("queued", "in_progress")
            await built.core.until(lambda: bool(built.core.requests))
            built.core.fail(RuntimeFailed("the core is gone"))
            while (found := (await client.get(f"/v1/responses/{made['id']}")).json())["status"] != "failed":
                await asyncio.sleep(0)
            assert found["error"]["message"] == "the core is gone"

    run(main())


@pytest.mark.slow
def test_every_key_opens_and_no_other() -> None:
    async def main() -> None:
        async with house(http=True, api_key="first, second") as built:
            for key in ("first", "second"):
                async with official(built, key) as client:
                    assert (await client.models.list()).data[0].id == "fake"
            for key in ("third", "first,", "first, second", "firs"):
                async with official(built, key) as client:
                    with pytest.raises(openai.AuthenticationError) as caught:
                        await client.models.list()
                    assert caught.value.code == "invalid_api_key"

    run(main())


@pytest.mark.slow
def test_other_origins_may_ask_only_when_allowed() -> None:
    async def main() -> None:
        asked = {"origin": "http://page.example", "access-control-request-method": "POST"}
        for settings, allowed in (({}, None), ({"cors_origins": "http://page.example, http://b"}, asked["origin"])):
            async with (
                house(http=True, api_key="key", **settings) as built,
                httpx.AsyncClient(base_url=built.url, timeout=120) as client,
            ):
                preflight = await client.options("/v1/chat/completions", headers=asked)
                assert preflight.headers.get("access-control-allow-origin") == allowed
                other = await client.get("/health", headers={"origin": "http://evil.example"})
                assert "access-control-allow-origin" not in other.headers

    run(main())


@pytest.mark.slow
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"a"',
        b"[" * 100_000,
        b'{"messages":' * 20_000,
        b'{"model": "fake", "messages": [{"role": "user", "content": "a"}], "tools": ' + b"[" * 50_000,
        b"\xff\xfe",
        b'{"model": "fake", "messages": NaN}',
        b'{"model": "fake", "prompt": 1e999}',
        b'{"model": "\\ud800"}',
    ],
    ids=lambda data: repr(data[:30]),
)
def test_bodies_that_are_no_request_are_a_400(data: bytes) -> None:
    async def main() -> None:
        async with house(says("."), http=True) as built, httpx.AsyncClient(base_url=built.url, timeout=120) as client:
            for path in ("completions", "chat/completions", "responses", "decisions", "embeddings", "score"):
                headers = {"content-type": "application/json"}
                response = await client.post(f"/v1/{path}", content=data, headers=headers)
                assert response.status_code == 400, (path, response.text)
                error = response.json()["error"]
                assert error["type"] == "invalid_request_error"
                assert error["message"]

    run(main())


@pytest.mark.exhaustive
def test_deep_schemas_and_messages_are_answered() -> None:
    deep: Any = {"type": "integer"}
    for _ in range(200):
        deep = {"type": "array", "items": deep}

    async def main() -> None:
        async with house(says("."), http=True) as built, httpx.AsyncClient(base_url=built.url, timeout=120) as client:
            format_ = {"type": "json_schema", "json_schema": {"name": "d", "schema": deep}}
            body = {"model": "fake", "messages": MESSAGES, "response_format": format_}
            response = await client.post("/v1/chat/completions", content=json.dumps(body))
            assert response.status_code in (200, 400)
            assert response.headers["x-request-id"]

    run(main())


@pytest.mark.slow
def test_a_socket_needs_a_key_and_its_end_aborts_what_it_makes() -> None:
    from websockets.asyncio.client import connect
    from websockets.exceptions import InvalidStatus

    async def main() -> None:
        async with house(lambda request: None, http=True, api_key="key") as built:
            address = built.url.replace("http", "ws", 1) + "/v1/responses"
            with pytest.raises(InvalidStatus):
                await connect(address, open_timeout=120)
            headers = {"authorization": "Bearer key"}
            async with connect(address, additional_headers=headers, open_timeout=120) as socket:
                await socket.send(json.dumps({"type": "response.create", "model": "fake", "input": "a"}))
                await built.core.until(lambda: bool(built.core.requests))
            await built.core.until(lambda: [request.rid for request in built.core.requests] == built.core.aborted)

    run(main())


@pytest.mark.parametrize("token", [-1, 1 << 31])
def test_an_id_out_of_range_is_told_as_a_number(token: int) -> None:
    with pytest.raises(RequestError, match=r"prompt\[0\]: Input should be (greater|less) than") as caught:
        validated(CompletionBody, {"model": "", "prompt": [token]})
    assert caught.value.param == "prompt[0]"
