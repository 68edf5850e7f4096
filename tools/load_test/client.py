"""The client of a load test: sends requests in a closed or an open loop, and records when each chunk arrives."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx2
import msgspec

from ...runtime.protocol.errors import RequestError
from .workload import ANSWER_SCHEMA, LoadRequest

LAG_SECONDS = 0.02  # between two looks at the event loop's delay


class StreamedDelta(msgspec.Struct):
    """The change of a chat's chunk. Servers name the reasoning in two ways."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class StreamedChoice(msgspec.Struct):
    """A choice of a chunk: of a chat with `delta`, of a completion with `text`."""

    delta: StreamedDelta | None = None
    text: str | None = None

    @property
    def new_text(self) -> str:
        delta = self.delta or StreamedDelta()
        return self.text or delta.content or delta.reasoning_content or delta.reasoning or ""


class CachedDetails(msgspec.Struct):
    cached_tokens: int | None = None


class StreamedUsage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: CachedDetails | None = None


class StreamedChunk(msgspec.Struct):
    """A server-sent event of OpenAI's API, as far as the test reads it."""

    choices: list[StreamedChoice] = []
    usage: StreamedUsage | None = None
    error: Any = None


_decoder = msgspec.json.Decoder(StreamedChunk)


@dataclass
class Outcome:
    """One request. Times are seconds of one clock; `scheduled` is when the request should have been sent."""

    scheduled: float
    sent: float = 0.0
    ended: float = 0.0
    chunks: list[float] = field(default_factory=list)  # arrivals of chunks with text
    num_prompt: int = 0
    num_cached: int = 0
    num_output: int = 0
    is_counted: bool = False  # tokens are the number of chunks: the server sent no usage
    error: str | None = None
    is_valid: bool | None = None  # the answer fits its schema; None: it has none


@dataclass(frozen=True)
class LoadTarget:
    """A server under test."""

    url: str
    model: str
    route: Literal["chat", "completions"]
    ignore_eos: bool
    api_key: str | None = None
    timeout: float = 600.0

    def client(self, num_connections: int | None) -> httpx2.AsyncClient:
        headers = {} if self.api_key is None else {"authorization": f"Bearer {self.api_key}"}
        limits = httpx2.Limits(max_connections=num_connections, max_keepalive_connections=num_connections)
        return httpx2.AsyncClient(headers=headers, limits=limits, timeout=self.timeout, trust_env=False)


@dataclass
class Measured:
    """A round: its outcomes, its seconds, and how busy the client itself was."""

    outcomes: list[Outcome] = field(default_factory=list)
    seconds: float = 0.0
    client_cpu: float = 0.0  # share of one core
    lags: list[float] = field(default_factory=list)  # seconds that the event loop was late


async def served_model(url: str, api_key: str | None) -> str:
    """Return the first model that the server lists. Raises RequestError when it lists none."""
    async with LoadTarget(url, "", "chat", ignore_eos=False, api_key=api_key, timeout=30).client(1) as client:
        try:
            answer = await client.get(f"{url}/v1/models")
            answer.raise_for_status()
            name = answer.json()["data"][0]["id"]
        except (httpx2.HTTPError, httpx2.InvalidURL, ValueError, LookupError, TypeError) as error:
            raise RequestError(f"{url}/v1/models names no model ({_kind(error)}); give --model", param="url") from None
    return str(name)


async def run_closed(target: LoadTarget, jobs: Sequence[LoadRequest], concurrency: int, measured: Measured) -> None:
    """Keep `concurrency` requests running until all jobs are done."""
    rest = iter(jobs)

    async def work(client: httpx2.AsyncClient) -> None:
        for job in rest:
            await _send(client, target, job, time.perf_counter(), measured.outcomes.append)

    async with RoundTimer(measured), target.client(concurrency) as client:
        await asyncio.gather(*(work(client) for _ in range(min(concurrency, len(jobs)))))


async def run_open(
    target: LoadTarget, jobs: Sequence[LoadRequest], offsets: Sequence[float], measured: Measured
) -> None:
    """Send each job at its offset in seconds, however many still run."""
    async with RoundTimer(measured), target.client(None) as client, asyncio.TaskGroup() as tasks:
        began = time.perf_counter()
        for job, offset in zip(jobs, offsets, strict=True):
            await asyncio.sleep(max(0.0, began + offset - time.perf_counter()))
            tasks.create_task(_send(client, target, job, began + offset, measured.outcomes.append))


class RoundTimer:
    """Context that records seconds, CPU time and the event loop's delays of a round."""

    def __init__(self, measured: Measured) -> None:
        self._measured = measured

    async def __aenter__(self) -> None:
        self._began, self._cpu = time.perf_counter(), time.process_time()
        self._lag = asyncio.ensure_future(self._watch_lag())

    async def __aexit__(self, *_: object) -> None:
        self._lag.cancel()
        self._measured.seconds = time.perf_counter() - self._began
        self._measured.client_cpu = (time.process_time() - self._cpu) / max(self._measured.seconds, 1e-9)

    async def _watch_lag(self) -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(LAG_SECONDS)
            self._measured.lags.append(max(0.0, time.perf_counter() - before - LAG_SECONDS))


async def _send(
    client: httpx2.AsyncClient, target: LoadTarget, job: LoadRequest, scheduled: float, done: Callable[[Outcome], None]
) -> None:
    path = "/v1/chat/completions" if target.route == "chat" else "/v1/completions"
    body = job.body(target.model, target.route, ignore_eos=target.ignore_eos)
    outcome = Outcome(scheduled, sent=time.perf_counter())
    texts: list[str] = []
    try:
        async with client.stream("POST", f"{target.url}{path}", json=body) as response:
            if response.status_code != 200:
                await response.aread()
                outcome.error = f"HTTP {response.status_code}"
            else:
                await _read(response.aiter_raw(), outcome, texts)
    except (httpx2.HTTPError, OSError) as error:
        outcome.error = _kind(error)
    except ValueError:  # also of bad UTF-8
        outcome.error = "an event that is no chunk"
    outcome.ended = time.perf_counter()
    if outcome.error is None and not outcome.num_output:
        outcome.num_output, outcome.is_counted = len(outcome.chunks), True
    if job.is_structured and outcome.error is None:
        outcome.is_valid = fits_schema("".join(texts))
    done(outcome)


async def _read(parts: AsyncIterator[bytes], outcome: Outcome, texts: list[str]) -> None:
    """Read server-sent events into `outcome`; an end before `[DONE]` is an error."""
    buffer = b""
    async for part in parts:
        now = time.perf_counter()
        *lines, buffer = (buffer + part).split(b"\n")
        for line in lines:
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip()
            if data == b"[DONE]":
                return
            event = _decoder.decode(data)
            if event.error is not None:
                outcome.error = "an error in the stream"
                return
            if text := "".join(choice.new_text for choice in event.choices):
                outcome.chunks.append(now)
                texts.append(text)
            if event.usage is not None:
                outcome.num_prompt = event.usage.prompt_tokens or 0
                outcome.num_output = event.usage.completion_tokens or 0
                details = event.usage.prompt_tokens_details
                outcome.num_cached = 0 if details is None else details.cached_tokens or 0
    outcome.error = "the stream ended early"


def fits_schema(text: str) -> bool:
    """Return True if `text` is JSON that ANSWER_SCHEMA admits."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return (
        isinstance(value, dict)
        and list(value) == ANSWER_SCHEMA["required"]
        and isinstance(value["name"], str)
        and len(value["name"]) <= 24
        and type(value["count"]) is int
        and 0 <= value["count"] <= 999
        and type(value["sure"]) is bool
    )


def _kind(error: Exception) -> str:
    return type(error).__name__
