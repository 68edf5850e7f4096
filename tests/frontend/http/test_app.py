"""Behaviour that all routes share: health, keys, request ids, limits, one error shape, tokenisation in threads."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from ramiform.runtime.frontend.http.openai.responses.service import ResponseService
from ramiform.runtime.frontend.http.transport.listener import listen
from ramiform.runtime.frontend.text.encoding import LONG_TEXT
from ramiform.runtime.protocol.config import ServeConfig
from ramiform.runtime.protocol.errors import RamiformError
from ramiform.tests.frontend.harness import run, shipped_tokenizer
from ramiform.tests.frontend.served import check_error, served

TOKENIZER = shipped_tokenizer()
BROWSER = {"accept": "text/html,*/*"}
MAX_BODY_BYTES = ServeConfig(socket_dir="").max_body_mib << 20
BOS = [TOKENIZER.bos_id] if TOKENIZER.adds_bos and TOKENIZER.bos_id is not None else []


@pytest.mark.slow
def test_health_follows_the_model() -> None:
    async def main() -> None:
        async with served(ready=False, page=False) as (built, client):
            for path in ("/health", "/health_generate", "/get_model_info", "/server_info"):
                check_error(await client.get(path), 503, None, "loading")
            check_error(await client.post("/generate", json={"text": "a"}), 503, None, "loading")
            page = await client.get("/", headers=BROWSER)
            assert (page.status_code, page.headers["retry-after"]) == (503, "1")
            assert "The model is not loaded" in page.text
            assert (await client.get("/docs")).status_code == 200
            built.core.loaded.set()
            await built.frontend.core_ready()
            for path in ("/health", "/health_generate"):
                assert (await client.get(path)).status_code == 200

    run(main())


@pytest.mark.slow
def test_facts_and_cache() -> None:
    async def main() -> None:
        async with served() as (built, client):
            info = (await client.get("/get_model_info")).json()
            assert (info["model_path"], info["is_generation"]) == ("/models/fake", True)
            server = (await client.get("/get_server_info")).json()
            assert server == (await client.get("/server_info")).json()
            assert (server["page_size"], server["max_total_num_tokens"], server["num_running"]) == (16, 1024, 0)
            for method in ("GET", "POST"):
                assert (await client.request(method, "/flush_cache")).status_code == 200
            assert built.core.num_flushes == 2

    run(main())


@pytest.mark.slow
def test_tokens_there_and_back() -> None:
    async def main() -> None:
        async with served() as (_, client):
            text = "Hello, wörld"
            answer = (await client.post("/tokenize", json={"prompt": text})).json()
            assert answer == {
                "tokens": BOS + TOKENIZER.encode(text),
                "count": len(answer["tokens"]),
                "max_model_len": 2048,
            }
            bare = (await client.post("/tokenize", json={"prompt": [text], "add_special_tokens": False})).json()
            assert bare["tokens"] == [TOKENIZER.encode(text)]
            back = await client.post("/detokenize", json={"tokens": answer["tokens"]})
            assert back.json() == {"text": text, "prompt": text}
            both = await client.post("/detokenize", json={"tokens": [answer["tokens"], []]})
            assert both.json()["text"] == [text, ""]
            assert TOKENIZER.chat is not None
            about = (await client.get("/tokenizer_info")).json()
            assert (about["chat_template"], about["vocab_size"]) == (TOKENIZER.chat.source, TOKENIZER.vocab_size)
            wrong = await client.post("/detokenize", json={"tokens": [TOKENIZER.vocab_size]})
            check_error(wrong, 400, "tokens", str(TOKENIZER.vocab_size))

    run(main())


@pytest.mark.exhaustive
def test_long_texts_are_tokenised_where_nobody_waits_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokenisation runs in a thread; on the event loop it would block every client."""
    told: list[tuple[str, bool]] = []
    encode, decode = TOKENIZER.encode, TOKENIZER.decode

    def note(work: Any, name: str) -> Any:
        def noting(what: Any, **options: Any) -> Any:
            if len(what) > LONG_TEXT:
                told.append((name, threading.current_thread() is threading.main_thread()))
            return work(what, **options)

        return noting

    monkeypatch.setattr(TOKENIZER, "encode", note(encode, "encode"))
    monkeypatch.setattr(TOKENIZER, "decode", note(decode, "decode"))

    async def main() -> None:
        async with served(ready=False, page=False) as (built, client):
            built.core.load(context_length=1 << 20)
            await built.frontend.core_ready()
            text = "a b " * LONG_TEXT
            for add in (True, False):
                for path, field in (
                    ("/tokenize", "prompt"),
                    ("/v1/completions", "prompt"),
                    ("/v1/embeddings", "input"),
                ):
                    await client.post(path, json={"model": "fake", field: text, "add_special_tokens": add})
            await client.post("/detokenize", json={"tokens": [1] * (LONG_TEXT + 1)})
        assert told == [("encode", False)] * 6 + [("decode", False)]

    run(main())


@pytest.mark.slow
def test_a_response_in_the_background_that_fails_on_our_side_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(self: ResponseService, body: Any, ask: Any, entry: Any) -> AsyncIterator[Any]:
        raise ZeroDivisionError("ours")
        yield

    monkeypatch.setattr(ResponseService, "events", broken)

    async def main() -> None:
        async with served() as (_, client):
            body = {"model": "fake", "input": "Hello", "background": True}
            made = (await client.post("/v1/responses", json=body)).json()
            while made["status"] in ("queued", "in_progress"):
                made = (await client.get(f"/v1/responses/{made['id']}")).json()
            assert made["status"] == "failed"
            assert made["error"]["message"] == "internal server error (ZeroDivisionError)"

    run(main())


@pytest.mark.slow
def test_a_key_is_asked_for_everywhere_but_at_health() -> None:
    async def main() -> None:
        async with served(api_key="sécret") as (_, client):
            assert (await client.get("/health")).status_code == 200
            for given in (None, "Bearer wrong", "sécret", "Bearer sécre", "bearer x"):
                headers = {} if given is None else {"authorization": given.encode()}
                for path in ("/server_info", "/nowhere"):
                    response = await client.get(path, headers=headers)
                    check_error(response, 401, None, "API key")
            headers = {"authorization": "Bearer sécret".encode()}
            assert (await client.get("/server_info", headers=headers)).status_code == 200

    run(main())


@pytest.mark.slow
def test_unknown_paths_and_methods_have_the_same_error_shape() -> None:
    async def main() -> None:
        async with served() as (_, client):
            check_error(await client.get("/nowhere"), 404, None, "/nowhere")
            response = await client.get("/generate")
            check_error(response, 405, None, "GET")
            assert "POST" in response.headers["allow"]

    run(main())


@pytest.mark.slow
def test_a_body_beyond_the_limit_is_refused() -> None:
    async def main() -> None:
        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(MAX_BODY_BYTES // (1 << 20) + 1):
                yield b" " * (1 << 20)

        async with served() as (built, client):
            headers = {"content-type": "application/json"}
            check_error(await client.post("/generate", content=chunks(), headers=headers), 413, None, "longer than")
            # A client that waits for consent gets the answer before it sends.
            reader, writer = await asyncio.open_connection("127.0.0.1", built.frontend.http_port)
            head = b"POST /generate HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n"
            writer.write(head % (MAX_BODY_BYTES + 1))
            assert b" 413 " in await reader.readline()
            writer.close()
            assert (await client.get("/health")).status_code == 200

    run(main())


@pytest.mark.slow
def test_a_request_id_is_echoed_or_made() -> None:
    async def main() -> None:
        async with served() as (_, client):
            response = await client.get("/nowhere", headers={"x-request-id": "abc-1"})
            assert response.headers["x-request-id"] == "abc-1"
            made = [(await client.get("/health")).headers["x-request-id"] for _ in range(2)]
            assert len(set(made)) == 2

    run(main())


@pytest.mark.slow
def test_a_port_that_is_taken_is_an_error_that_names_it() -> None:
    async def main() -> None:
        async with served() as (built, _):
            port = built.frontend.http_port
            assert port is not None
            with pytest.raises(RamiformError, match=str(port)):
                listen(ServeConfig(socket_dir="", port=port))

    run(main())


@pytest.mark.exhaustive
def test_the_api_describes_itself() -> None:
    async def main() -> None:
        async with served() as (_, client):
            response = await client.get("/openapi.json")
            described = response.json()
            paths, schemas = described["paths"], described["components"]["schemas"]
            assert {"/generate", "/health", "/tokenize", "/abort_request"} <= set(paths)
            assert set(re.findall(r'"#/components/schemas/(\w+)"', response.text)) <= set(schemas)
            assert list(paths["/flush_cache"]["post"]["responses"]["400"]["content"]) == ["application/json"]

    run(main())


def test_answers_do_not_wait_for_acknowledgements() -> None:
    listening = listen(ServeConfig(socket_dir="", port=0))
    assert listening is not None
    with listening, socket.create_connection(listening.getsockname()):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
