"""A request gets the same tokens alone and in a batch: greedy and seeded, constrained or not."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import httpx
import pytest

WORDS = "the capital of France is a river in spring and Ada lives near seven spiders under blue lamps".split()


def requests(num: int) -> list[dict[str, Any]]:
    """A mix: lengths, temperatures, stops, constraints, penalties, samples."""
    draw = random.Random(7)
    mix = []
    for index in range(num):
        text = " ".join(draw.choices(WORDS, k=draw.choice([2, 12, 60, 200])))
        params: dict[str, Any] = {"max_new_tokens": draw.choice([1, 8, 40]), "temperature": 0.0}
        match index % 6:
            case 1:
                params |= {"temperature": 0.9, "top_p": 0.9, "sampling_seed": index}
            case 2:
                params |= {"stop": ["e", " the"]}
            case 3:
                params |= {"regex": r"[a-z]{3,12}( [0-9]+)?"}
            case 4:
                params |= {"frequency_penalty": 0.6, "repetition_penalty": 1.2}
            case 5:
                params |= {"temperature": 1.0, "top_k": 20, "n": 2, "sampling_seed": index}
        mix.append({"text": text, "sampling_params": params})
    return mix


def texts(answer: Any) -> list[str]:
    return [part["text"] for part in (answer if isinstance(answer, list) else [answer])]


async def ask(client: httpx.AsyncClient, body: dict[str, Any]) -> list[str]:
    response = await client.post("/generate", json=body)
    assert response.status_code == 200, response.text
    return texts(response.json())


@pytest.mark.exhaustive
def test_32_mixed_requests_answer_as_they_do_alone(url: str) -> None:
    async def run() -> None:
        async with httpx.AsyncClient(base_url=url, timeout=120) as client:
            mix = requests(32)
            alone = []
            for body in mix:
                await client.post("/flush_cache")
                alone.append(await ask(client, body))
            await client.post("/flush_cache")
            together = await asyncio.gather(*(ask(client, body) for body in mix))
            warm = await asyncio.gather(*(ask(client, body) for body in mix))
        assert together == alone
        assert warm == alone

    asyncio.run(run())


def test_a_follow_up_turn_reuses_all_but_one_token(url: str) -> None:
    with httpx.Client(base_url=url, timeout=120) as client:
        client.post("/flush_cache")
        ids = client.post("/tokenize", json={"prompt": "Question: What is the capital of France?\nAnswer:"}).json()[
            "tokens"
        ]
        greedy = {"temperature": 0.0, "max_new_tokens": 21, "ignore_eos": True}
        first = client.post("/generate", json={"input_ids": ids, "sampling_params": greedy}).json()
        history = ids + first["output_ids"]
        second = client.post("/generate", json={"input_ids": [*history, ids[1]], "sampling_params": greedy}).json()
        assert second["meta_info"]["cached_tokens"] == len(history) - 1
