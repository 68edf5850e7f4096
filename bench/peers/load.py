"""Load of the comparison: scenarios, their prompts, and one run of them against any OpenAI-compatible server.

Prompts are token ids, answers are streamed, greedy, and have exactly as many tokens as were asked for, which the
server's own count has to confirm.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ramiform.bench.raw_http import RawClient

RESERVED = 16  # the first ids of a vocabulary are special tokens


@dataclass(frozen=True)
class Scenario:
    """`num_requests` at once, whose prompts share their first `num_shared` tokens. `counts` says what is measured:
    output tokens a second, prompt tokens a second until the first token comes, or seconds until all is answered."""

    name: str
    num_requests: int
    prompt_tokens: int
    output_tokens: int
    num_shared: int = 0
    counts: Literal["output tok/s", "prompt tok/s", "s"] = "output tok/s"


@dataclass(frozen=True)
class Run:
    """Cost of one run. `cpu_seconds` are of all the engine's processes; `whole` is False if it was given up."""

    scenario: Scenario
    seconds: float
    ttft: float  # of the median request
    cpu_seconds: float
    whole: bool = True

    @property
    def figure(self) -> float:
        scenario = self.scenario
        match scenario.counts:
            case "output tok/s":
                return scenario.num_requests * scenario.output_tokens / self.seconds
            case "prompt tok/s":
                return scenario.prompt_tokens / self.ttft
            case "s":
                return self.seconds

    @property
    def speed(self) -> float:
        """Higher is better, whatever the figure is."""
        return 1 / self.figure if self.scenario.counts == "s" else self.figure


def scenarios(*, small: bool) -> list[Scenario]:
    """Return the scenarios; those of the large model have fewer tokens, because it is a hundred times as slow."""
    return [
        Scenario("single stream", 1, 32, 128 if small else 32),
        Scenario("batch 8", 8, 32, 64 if small else 24),
        Scenario("batch 32", 32, 32, 64 if small else 24),
        Scenario("prefill 2k", 1, 2048, 1, counts="prompt tok/s"),
        Scenario(
            f"{64 if small else 16} over a shared 1,024", 64 if small else 16, 1056, 8, num_shared=1024, counts="s"
        ),
    ]


def prompts(scenario: Scenario, vocab_size: int, seed: int) -> list[list[int]]:
    """Draw prompts: new ones for each seed, so that no cache has them; the same for each engine."""
    draw = random.Random(f"{scenario.name} {seed}")
    ids = range(RESERVED, vocab_size)
    shared = draw.choices(ids, k=scenario.num_shared)
    return [
        shared + draw.choices(ids, k=scenario.prompt_tokens - scenario.num_shared) for _ in range(scenario.num_requests)
    ]


async def send(url: str, model: str, scenario: Scenario, batch: Sequence[list[int]]) -> tuple[float, float]:
    """Return the seconds until all are answered, and the median request's until its first token.

    Raises RuntimeError if an answer is an error or shorter than was asked.
    """
    clients = [await RawClient(url).__aenter__() for _ in batch]
    try:
        start = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(_ask(client, model, scenario, prompt))
                for client, prompt in zip(clients, batch, strict=True)
            ]
        seconds = time.perf_counter() - start
        return seconds, statistics.median(task.result() for task in tasks)
    finally:
        for client in clients:
            await client.__aexit__()


async def _ask(client: RawClient, model: str, scenario: Scenario, prompt: list[int]) -> float:
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": scenario.output_tokens,
        "temperature": 0.0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    times, answer = await client.stream("/v1/completions", body)
    usage = next((event["usage"] for event in _events_from_the_end(answer) if event.get("usage")), None)
    expected = (len(prompt), scenario.output_tokens)
    if usage is None or (usage["prompt_tokens"], usage["completion_tokens"]) != expected:
        raise RuntimeError(f"{expected} tokens were asked for, not {usage}: {answer[-300:]!r}")
    return times[0]


def _events_from_the_end(answer: bytes) -> Iterator[dict[str, Any]]:
    for line in reversed(answer.splitlines()):
        if line.startswith(b"data: {"):
            yield json.loads(line.removeprefix(b"data: "))
