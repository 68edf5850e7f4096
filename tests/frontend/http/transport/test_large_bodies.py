"""Large bodies over a scripted core: refused early, read in threads, cancelled with their client.

The tests record the texts that the tokenizer encodes.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect

from ramiform.runtime.frontend.api import score
from ramiform.runtime.frontend.api.chat_messages import MAX_MESSAGES
from ramiform.runtime.frontend.text.encoding import LONG_TEXT
from ramiform.runtime.frontend.text.offload import CancellationToken
from ramiform.runtime.protocol.sampling import SamplingParams
from ramiform.runtime.protocol.session import Failed, Gen, RoleBegin, Select
from ramiform.runtime.protocol.session import Text as TextOperation
from ramiform.runtime.tokenizer.interface import Tokenizer
from ramiform.tests.frontend.harness import house, run, says, shipped_tokenizer
from ramiform.tests.frontend.served import check_error, served

TOKENIZER = shipped_tokenizer()
TEXT = "a b " * 100_000  # beyond 13 bytes for each token of the context; of each of 65,536 that /tokenize takes
LONGER = TEXT * 3
USER = {"role": "user", "content": TEXT}
QUESTIONS = [{"type": "predicate", "instructions": "Is it?"}]
OVERFLOW = "context_length_exceeded"
GEN = Gen(sampling=SamplingParams(max_new_tokens=8, temperature=0.0))

# Route, body, the parameter that the error names, its code.
TOO_LONG: list[tuple[str, dict[str, Any], str, str]] = [
    ("/generate", {"text": TEXT}, "text", OVERFLOW),
    ("/generate", {"text": ["a", TEXT]}, "text", OVERFLOW),
    ("/v1/completions", {"model": "fake", "prompt": TEXT}, "prompt", OVERFLOW),
    ("/v1/completions", {"model": "fake", "prompt": ["a", TEXT], "echo": True}, "prompt", OVERFLOW),
    ("/v1/completions", {"model": "fake", "prompt": TEXT, "add_special_tokens": False}, "prompt", OVERFLOW),
    ("/v1/chat/completions", {"model": "fake", "messages": [USER]}, "messages", OVERFLOW),
    ("/v1/chat/completions", {"model": "fake", "messages": [{**USER, "role": "assistant"}]}, "messages", OVERFLOW),
    ("/v1/chat/completions", {"model": "fake", "messages": [{**USER, "content": "a b"}] * 9000}, "messages", OVERFLOW),
    ("/v1/completions", {"prompt": TEXT, "max_tokens": 5}, "prompt", OVERFLOW),
    ("/v1/chat/completions", {"messages": [USER], "max_tokens": 5}, "messages", OVERFLOW),
    ("/v1/responses", {"model": "fake", "input": TEXT}, "input", OVERFLOW),
    ("/v1/responses", {"model": "fake", "input": [USER]}, "input", OVERFLOW),
    ("/v1/responses/compact", {"model": "fake", "input": TEXT}, "input", OVERFLOW),
    ("/v1/responses/input_tokens", {"model": "fake", "input": TEXT}, "input", OVERFLOW),
    ("/v1/constrained", {"prompt": TEXT, "regex": "a"}, "prompt", OVERFLOW),
    ("/v1/constrained", {"messages": [USER], "regex": "a"}, "messages", OVERFLOW),
    ("/v1/embeddings", {"model": "fake", "input": TEXT}, "input", OVERFLOW),
    ("/v1/embeddings", {"model": "fake", "input": ["a", TEXT]}, "input", OVERFLOW),
    ("/v1/score", {"prompt": TEXT, "continuations": ["a"]}, "prompt", OVERFLOW),
    ("/v1/score", {"prompt": "a", "continuations": [TEXT]}, "prompt", OVERFLOW),
    ("/v1/decisions", {"model": "fake", "input": TEXT, "questions": QUESTIONS}, "input", OVERFLOW),
    ("/tokenize", {"prompt": LONGER}, "prompt", "text_too_long"),
    ("/tokenize", {"prompt": ["a", LONGER]}, "prompt", "text_too_long"),
    ("/tokenize", {"messages": [{**USER, "content": LONGER}]}, "messages", "text_too_long"),
]


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that were tokenised."""
    texts: list[str] = []
    encode = Tokenizer.encode

    def noting(self: Tokenizer, text: str, **options: Any) -> list[int]:
        texts.append(text)
        return encode(self, text, **options)

    monkeypatch.setattr(Tokenizer, "encode", noting)
    return texts


def name(value: Any) -> str:
    return str(value)[:50]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("path", "body", "param", "code"), TOO_LONG, ids=name)
def test_a_text_that_cannot_fit_is_refused_before_it_is_tokenised(
    path: str, body: dict[str, Any], param: str, code: str, encoded: list[str]
) -> None:
    async def main() -> None:
        async with served() as (built, client):
            response = await client.post(path, json=body)
            check_error(response, 400, param, "at least")
            assert response.json()["error"]["code"] == code
            assert ("5 in the completion" in response.text) == ("max_tokens" in body)
            assert max(map(len, encoded), default=0) < 100
            assert not built.core.requests

    run(main())


@pytest.mark.exhaustive
def test_ids_that_cannot_fit_are_refused_before_they_are_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr(score, "Continuation", lambda *given: made.append(given))

    async def main() -> None:
        async with served() as (_, client):
            body = {"prompt": [7] * 5000, "continuations": [[7]] * 10}
            check_error(await client.post("/v1/score", json=body), 400, "prompt", "5001 tokens")
            assert not made

    run(main())


@pytest.mark.slow
def test_a_socket_refuses_a_text_that_cannot_fit_and_goes_on(encoded: list[str]) -> None:
    async def main() -> None:
        async with house(says(" fine."), http=True) as built:
            address = built.url.replace("http", "ws", 1) + "/v1/responses"
            async with connect(address, open_timeout=120, max_size=None) as socket:
                await socket.send(json.dumps({"type": "response.create", "model": "fake", "input": TEXT}))
                error = json.loads(await socket.recv())["error"]
                assert (error["code"], error["param"]) == (OVERFLOW, "input")
                assert max(map(len, encoded), default=0) < 100
                await socket.send(json.dumps({"type": "response.create", "model": "fake", "input": "a"}))
                assert json.loads(await socket.recv())["type"] == "response.created"

    run(main())


@pytest.mark.parametrize("last", [GEN, Select(choices=["a", "b"])], ids=["gen", "select"])
def test_a_program_whose_text_cannot_fit_is_told_before_it_is_tokenised(last: Any, encoded: list[str]) -> None:
    async def main() -> None:
        async with house(says(" fine.")) as built:
            program = built.client()
            await program.open(1, 2)
            [*_, failed] = await program.play(1, RoleBegin("user"), TextOperation(TEXT), last)
            assert isinstance(failed, Failed)
            assert failed.error.code == OVERFLOW
            assert "at least" in failed.error.message
            assert max(map(len, encoded), default=0) < 100
            [_, fine] = await program.play(2, TextOperation("a"), GEN)
            assert fine.text == " fine."

    run(main())


@pytest.mark.slow
def test_a_text_that_may_fit_is_counted_in_pieces_and_given_up_once_it_has_too_many_tokens(encoded: list[str]) -> None:
    context, text = 100_000, " x" * 600_000

    async def main() -> None:
        async with served(ready=False) as (built, client):
            built.core.load(context_length=context)
            await built.frontend.core_ready()
            assert TOKENIZER.bound.least_tokens([text]) <= context
            check_error(await client.post("/generate", json={"text": text}), 400, "text", "at least")
            assert max(map(len, encoded)) <= LONG_TEXT
            assert sum(map(len, encoded)) < len(text)

    run(main())


@pytest.mark.slow
def test_a_text_that_fits_is_never_refused_and_has_the_ids_of_the_whole(encoded: list[str]) -> None:
    text = max((data.decode() for data in TOKENIZER.token_bytes if data and data.isalpha()), key=len) * 60_000

    async def main() -> None:
        async with served(ready=False) as (built, client):
            built.core.load(context_length=60_000)
            await built.frontend.core_ready()
            answer = await client.post("/tokenize", json={"prompt": text, "add_special_tokens": False})
            assert max(map(len, encoded)) == len(text) > LONG_TEXT  # some of it was counted before
            assert len(encoded) > 1
            encoded.clear()
            assert answer.json()["tokens"] == TOKENIZER.encode(text)

    run(main())


class Gate:
    """Holds the tokenizer back at each long text until it is opened."""

    def __init__(self) -> None:
        self.num_entered = 0
        self._open = threading.Event()

    def open(self) -> None:
        self._open.set()

    def pass_through(self) -> None:
        self.num_entered += 1
        assert self._open.wait(120)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    gate = Gate()
    encode = Tokenizer.encode

    def held(self: Tokenizer, text: str, **options: Any) -> list[int]:
        if len(text) >= LONG_TEXT:
            gate.pass_through()
        return encode(self, text, **options)

    monkeypatch.setattr(Tokenizer, "encode", held)
    return gate


@asynccontextmanager
async def opened(let_go: Callable[[], None]) -> AsyncIterator[None]:
    """Let held threads go on at the end: a test that fails must not wait for them."""
    try:
        yield
    finally:
        let_go()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {"text": ""}),
        ("/v1/completions", {"model": "fake", "prompt": ""}),
        ("/v1/chat/completions", {"model": "fake", "messages": [{"role": "user", "content": ""}]}),
        ("/v1/responses", {"model": "fake", "input": ""}),
        ("/v1/embeddings", {"model": "fake", "input": ""}),
        ("/v1/score", {"prompt": "", "continuations": ["a"]}),
        ("/tokenize", {"prompt": ""}),
    ],
)
def test_abandoned_work_stops_and_counts_against_its_key_until_it_has_ended(
    path: str, body: dict[str, Any], gate: Gate
) -> None:
    text = " x" * 600_000  # many pieces
    sent = json.loads(json.dumps(body).replace('""', json.dumps(text)))
    small = {"prompt": "a"}

    async def main() -> None:
        async with served(ready=False, api_key="key", max_requests_per_key=1) as (built, client), opened(gate.open):
            built.core.load(context_length=100_000)
            await built.frontend.core_ready()
            client.headers["authorization"] = "Bearer key"
            asking = asyncio.create_task(client.post(path, json=sent))
            await until(lambda: gate.num_entered > 0)
            asking.cancel()
            await asyncio.wait({asking})
            for _ in range(20):  # it is not over, however often one asks
                assert (await client.post("/tokenize", json=small)).status_code == 429
            gate.open()
            while (answer := await client.post("/tokenize", json=small)).status_code == 429:
                await asyncio.sleep(0.01)
            assert answer.status_code == 200
            assert gate.num_entered == 1  # of about twenty pieces

    run(main())


@pytest.mark.exhaustive
def test_a_request_that_times_out_while_it_is_tokenised_ends_after_its_work(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = " x" * 600_000
    told = threading.Event()
    cancel = CancellationToken.cancel

    def noting(self: CancellationToken) -> None:
        told.set()
        cancel(self)

    monkeypatch.setattr(CancellationToken, "cancel", noting)

    async def main() -> None:
        async with served(ready=False, request_timeout=2.5) as (built, client), opened(gate.open):
            built.core.load(context_length=100_000)
            await built.frontend.core_ready()
            asking = asyncio.create_task(client.post("/v1/completions", json={"model": "fake", "prompt": text}))
            await until(lambda: gate.num_entered > 0)
            await until(told.is_set)
            await client.get("/health")
            assert not asking.done()
            gate.open()
            check_error(await asking, 504, None, "2.5 s")
            assert gate.num_entered == 1

    run(main())


LARGE_WRONG: list[tuple[str, bytes, str | None, str]] = [
    ("/generate", b'{"input_ids": [%s7]}' % (b"7," * 2_000_000), "input_ids", "numbers"),
    ("/generate", b'{"text": ["a"%s]}' % (b',"a"' * 1_000_000), "text", "entries"),
    ("/generate", b'{"text": ["a"%s]}' % (b',"a"' * 100_000), "text", "1 to 4096"),
    (
        "/v1/chat/completions",
        b'{"model": "fake", "messages": [%s]}' % b",".join([b'{"role": "user", "content": "a"}'] * (MAX_MESSAGES + 1)),
        "messages",
        "at most",
    ),
    ("/v1/chat/completions", b'{"model": "fake", "messages": [%s5]}' % (b"[[]]," * 600_000), "messages", "more than"),
    ("/generate", b'{"text": "a", "bogus": "%s"}' % (b"a" * 300_000), "bogus", "unknown parameter"),
    ("/generate", b'{"text": "\\ud800%s"}' % (b"a" * 300_000), "text", "Unicode"),
    ("/generate", b'{"text": "%s' % (b"a" * 300_000), None, "(line 1, column 10)"),
    ("/generate", b'{"text": "\xff%s"}' % (b"a" * 300_000), None, "utf-8"),
    ("/generate", b"[" * 300_000, None, "too deep"),
    ("/generate", b'{"text": %s}' % (b"1" * 300_000), None, "digits"),
    ("/generate", b'["%s"]' % (b"a" * 300_000), None, "body"),
]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("path", "content", "param", "word"), LARGE_WRONG, ids=name)
def test_a_large_body_that_is_wrong_is_refused_in_the_shape_of_small_ones(
    path: str, content: bytes, param: str | None, word: str
) -> None:
    async def main() -> None:
        async with served() as (_, client):
            headers = {"content-type": "application/json"}
            check_error(await client.post(path, content=content, headers=headers), 400, param, word)

    run(main())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["application/json", "application/json; charset=utf-8", "application/vnd.a+json"])
def test_a_large_body_that_is_right_is_answered(kind: str) -> None:
    body = {"text": ["a"] * 4, "return_text_in_logprobs": True, "extra_key": "ü" * 200_000}

    async def main() -> None:
        async with served(says(" fine.")) as (_, client):
            content = json.dumps(body, ensure_ascii=False).encode()
            response = await client.post("/generate", content=content, headers={"content-type": kind})
            assert [answer["text"] for answer in response.json()] == [" fine."] * 4

    run(main())


@pytest.mark.slow
def test_a_large_body_that_is_no_json_by_its_type_is_refused() -> None:
    async def main() -> None:
        async with served() as (_, client):
            response = await client.post("/generate", content=b"a" * 300_000, headers={"content-type": "text/plain"})
            check_error(response, 400, None, "body")

    run(main())


@pytest.mark.slow
def test_others_are_answered_while_a_large_body_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    from ramiform.runtime.frontend.http.transport.body_route import BodyRoute

    entered, may_go_on = threading.Event(), threading.Event()
    validated = BodyRoute._validated

    def held(self: BodyRoute, *given: Any) -> Any:
        entered.set()
        assert may_go_on.wait(120)
        return validated(self, *given)

    monkeypatch.setattr(BodyRoute, "_validated", held)

    async def main() -> None:
        async with served(says(" fine.")) as (_, client), opened(may_go_on.set):
            body = {"input_ids": [[7] * 1000] * 200}
            asking = asyncio.create_task(client.post("/generate", json=body, timeout=httpx.Timeout(120)))
            await until(entered.is_set)
            answer = await client.post("/generate", json={"text": "a"})
            assert answer.json()["text"] == " fine."
            assert not asking.done()
            may_go_on.set()
            assert len((await asking).json()) == 200

    run(main())
