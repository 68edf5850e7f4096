"""Actions that affect other users need an admin key, or a server with a single user."""

from __future__ import annotations

import asyncio
import hmac
from typing import Any

import httpx
import pytest

import ramiform
from ramiform import RequestError
from ramiform.lang.backends.runtimes.http_runtime import HttpRuntime
from ramiform.runtime.frontend.http.middleware import auth
from ramiform.runtime.protocol.core import Generate
from ramiform.tests.frontend.harness import House, run, says
from ramiform.tests.frontend.served import check_error, served

ACTIONS: list[tuple[str, str, dict[str, Any] | None]] = [
    ("GET", "/flush_cache", None),
    ("POST", "/flush_cache", None),
    ("POST", "/abort_request", {"abort_all": True}),
]


# What only an admin may do to the weights and the memory of all users' model.
OF_THE_MODEL: list[tuple[str, dict[str, Any] | None]] = [
    ("/update_weights_from_disk", {"model_path": "/weights"}),
    ("/update_weights_from_tensor", {"shared_memory": "weights"}),
    ("/release_memory_occupation", {}),
    ("/resume_memory_occupation", {}),
    ("/sleep", None),
    ("/wake_up", None),
    ("/destroy_weights_update_group", {}),
    ("/update_weights_from_distributed", {"names": ["a"], "dtypes": ["float32"], "shapes": [[1]]}),
    (
        "/init_weights_update_group",
        {"master_address": "127.0.0.1", "master_port": 1, "rank_offset": 1, "world_size": 2},
    ),
]


async def act(client: httpx.AsyncClient, key: str | None) -> list[httpx.Response]:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    return [await client.request(method, path, json=body, headers=headers) for method, path, body in ACTIONS]


def silent(request: Generate) -> None:
    """Script of a model that generates nothing until it is aborted."""


async def someone_else_s(
    built: House, client: httpx.AsyncClient, settings: dict[str, str]
) -> asyncio.Task[httpx.Response]:
    """Run a request of another client."""
    headers = {"authorization": f"Bearer {settings['api_key'].split(',')[-1]}"} if "api_key" in settings else {}
    running = asyncio.create_task(client.post("/generate", json={"text": "a"}, headers=headers))
    await built.core.until(lambda: len(built.core.requests) == 1)
    return running


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({}, None),
        ({"api_key": "mine"}, "mine"),
        ({"admin_key": "boss"}, "boss"),
        ({"api_key": "a,b", "admin_key": "boss,chief"}, "chief"),
        ({"api_key": "a,b", "admin_key": "b"}, "b"),
    ],
)
def test_who_has_an_admin_key_or_the_server_alone_may_act_on_others(settings: dict[str, str], key: str | None) -> None:
    async def main() -> None:
        async with served(silent, **settings) as (built, client):
            running = await someone_else_s(built, client, settings)
            assert [answer.status_code for answer in await act(client, key)] == [200] * 3
            assert built.core.num_flushes == 2
            await built.core.until(lambda: len(built.core.aborted) == 1)
            assert (await running).status_code == 200

    run(main())


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"api_key": "a,b", "admin_key": "boss"}, {"api_key": "a,b"}])
def test_a_user_among_others_may_not(settings: dict[str, str]) -> None:
    async def main() -> None:
        async with served(silent, **settings) as (built, client):
            running = await someone_else_s(built, client, settings)
            for answer in await act(client, "a"):
                check_error(answer, 403, None, "admin key")
                assert answer.json()["error"]["type"] == "permission_error"
                assert answer.json()["error"]["code"] == "admin_key_required"
            for key in ("wrong", None):
                for answer in await act(client, key):
                    check_error(answer, 401, None, "API key")
            for path, body in OF_THE_MODEL:
                answer = await client.post(path, json=body, headers={"authorization": "Bearer a"})
                check_error(answer, 403, None, "admin key")
            mine = {"authorization": "Bearer a"}
            assert (await client.post("/abort_request", json={"rid": "mine"}, headers=mine)).status_code == 200
            assert (await client.get("/server_info", headers=mine)).status_code == 200
            assert built.core.num_flushes == 0
            assert not built.core.aborted
            built.core.send_end(built.core.requests[0].rid)
            assert (await running).status_code == 200

    run(main())


@pytest.mark.slow
def test_an_admin_key_alone_leaves_everything_else_open() -> None:
    async def main() -> None:
        async with served(admin_key="boss") as (built, client):
            for key in (None, "wrong"):
                for answer in await act(client, key):
                    check_error(answer, 401, None, "admin key")
                    assert answer.headers["www-authenticate"] == "Bearer"
            assert (await client.get("/server_info")).status_code == 200
            assert built.core.num_flushes == 0

    run(main())


@pytest.mark.slow
def test_an_admin_key_is_an_api_key_too() -> None:
    async def main() -> None:
        async with served(says(" fine."), api_key="a", admin_key="boss") as (_, client):
            headers = {"authorization": "Bearer boss"}
            answer = await client.post("/v1/completions", json={"model": "fake", "prompt": "a"}, headers=headers)
            assert answer.status_code == 200

    run(main())


@pytest.mark.slow
def test_a_program_over_http_flushes_with_an_admin_key_only() -> None:
    def flush(url: str, key: str) -> None:
        runtime = HttpRuntime(url, key)
        try:
            ramiform.flush_cache(runtime)
        finally:
            runtime.close()

    async def main() -> None:
        async with served(api_key="a", admin_key="boss") as (built, _):
            await asyncio.to_thread(flush, built.url, "boss")
            assert built.core.num_flushes == 1
            with pytest.raises(RequestError, match="admin key") as error:
                await asyncio.to_thread(flush, built.url, "a")
            assert error.value.code == "admin_key_required"
            assert built.core.num_flushes == 1

    run(main())


def test_a_header_is_compared_with_every_key_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bytes] = []
    compare = hmac.compare_digest

    def noting(header: bytes, known: bytes) -> bool:
        compared.append(known)
        return compare(header, known)

    monkeypatch.setattr(auth.hmac, "compare_digest", noting)
    keys = auth.ApiKeys(["one", "two"], ["boss"])
    for header, found in ((b"Bearer one", "one"), (b"Bearer boss", "boss"), (b"Bearer on", None), (b"", None)):
        compared.clear()
        assert keys.find(header) == found
        assert sorted(compared) == [b"Bearer boss", b"Bearer one", b"Bearer two"]
