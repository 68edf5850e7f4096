"""Prompt tokens computed in a pool far smaller than the prefixes. Judge: the size of the trie of the prompts."""

from __future__ import annotations

import random
from collections.abc import Iterator

import httpx
import pytest

import ramiform
from ramiform import gen
from ramiform.bench.batches import as_batch, shuffled_prompts, trie_size

POOL = 40 * 16  # tokens; the prefixes below have 1,600
MOST = 1.05  # of the least possible
WORDS = "one red house by the old sea and a long way home from here to all that was".split()


@pytest.fixture(scope="module")
def runtime() -> Iterator[ramiform.Runtime]:
    with ramiform.Runtime(port=0, num_pages=POOL // 16, log_level="error") as one:
        yield one


@pytest.fixture
def client(runtime: ramiform.Runtime) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=runtime.url or "", timeout=120) as one:
        one.post("/flush_cache").raise_for_status()
        yield one


def test_a_batch_computes_each_prefix_once(client: httpx.Client) -> None:
    vocab = client.get("/get_model_info").json()["vocab_size"]
    prompts = shuffled_prompts(40, 8, 200, 12, vocab)
    bodies = [{"prompt": prompt, "max_tokens": 6, "ignore_eos": True} for prompt in prompts]
    assert as_batch(client, bodies) <= MOST * trie_size(prompts)


def test_compiled_programs_compute_each_prefix_once(runtime: ramiform.Runtime, client: httpx.Client) -> None:
    dice = random.Random(1)
    shared = [" ".join(dice.choices(WORDS, k=60)) for _ in range(24)]
    items = [(shared[n % 24], " ".join(dice.choices(WORDS, k=4))) for n in range(96)]
    dice.shuffle(items)

    @ramiform.function
    def ask(s: ramiform.ProgramState, context: str, question: str) -> None:
        s += f"{context}\n{question}:" + gen("x", max_tokens=2, ignore_eos=True)

    ask.compile()
    prompts = [
        client.post("/tokenize", json={"prompt": f"{context}\n{question}:"}).json()["tokens"]
        for context, question in items
    ]
    before = client.get("/get_server_info").json()
    texts = [state.text() for state in ask.run_batch(items, backend=runtime, num_threads=8)]
    after = client.get("/get_server_info").json()
    assert all(
        text.startswith(f"{context}\n{question}:") for text, (context, question) in zip(texts, items, strict=True)
    )
    queried, cached = (after[name] - before[name] for name in ("num_prompt_tokens", "num_cached_tokens"))
    assert queried == sum(map(len, prompts))
    assert queried - cached <= MOST * trie_size(prompts)
