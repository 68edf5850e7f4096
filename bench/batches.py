"""Prompt tokens that a batch computes, against the least possible: the size of the trie of its prompts.

    python -P bench/batches.py --requests 500 --prefixes 20 --prefix-tokens 1000 --own-tokens 60 --pool 3000

Prints both, and their ratio, also for the same rows sent at once in their shuffled order.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from typing import Any

import httpx

import ramiform

URL = "/v1/completions"
PAGE = 16


def shuffled_prompts(requests: int, prefixes: int, prefix_tokens: int, own_tokens: int, vocab: int) -> list[list[int]]:
    dice = random.Random(1)
    shared = [[dice.randrange(300, vocab) for _ in range(prefix_tokens)] for _ in range(prefixes)]
    prompts = [
        [*shared[n % prefixes], *(dice.randrange(300, vocab) for _ in range(own_tokens))] for n in range(requests)
    ]
    dice.shuffle(prompts)
    return prompts


def trie_size(prompts: Sequence[Sequence[int]]) -> int:
    """The number of distinct prefixes: what has to be computed at least."""
    ordered = sorted(map(list, prompts))
    size = 0
    before: list[int] = []
    for prompt in ordered:
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, prompt, strict=False)))
        size, before = size + len(prompt) - shared, prompt
    return size


def computed(usage: dict[str, Any]) -> int:
    return int(usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"])


def as_batch(client: httpx.Client, bodies: list[dict[str, Any]]) -> int:
    """Send the bodies as a batch; return how many prompt tokens it computed."""
    rows = [{"custom_id": f"{n}", "method": "POST", "url": URL, "body": body} for n, body in enumerate(bodies)]
    form: dict[str, Any] = {"files": {"file": ("in", "\n".join(map(json.dumps, rows)))}, "data": {"purpose": "batch"}}
    asked = {"input_file_id": client.post("/v1/files", **form).json()["id"], "endpoint": URL}
    batch = client.post("/v1/batches", json=asked).json()
    while batch["status"] not in ("completed", "failed"):
        time.sleep(0.1)
        batch = client.get(f"/v1/batches/{batch['id']}").json()
    assert batch["request_counts"]["completed"] == len(bodies), batch
    lines = client.get(f"/v1/files/{batch['output_file_id']}/content").text.splitlines()
    return sum(computed(json.loads(line)["response"]["body"]["usage"]) for line in lines)


def at_once(client: httpx.Client, bodies: list[dict[str, Any]]) -> int:
    """Send the bodies as requests, in their order; return how many prompt tokens they computed."""
    with ThreadPoolExecutor(64) as pool:
        answers = list(pool.map(lambda body: client.post(URL, json=body).raise_for_status().json(), bodies))
    return sum(computed(answer["usage"]) for answer in answers)


def measure(url: str, prompts: list[list[int]], output_tokens: int) -> dict[str, float]:
    """Return the least possible number of prompt tokens, and those computed both ways, as parts of it."""
    bodies = [{"prompt": prompt, "max_tokens": output_tokens, "ignore_eos": True} for prompt in prompts]
    least = trie_size(prompts)
    with httpx.Client(base_url=url, timeout=3600) as client:
        figures: dict[str, float] = {"least": least}
        for name, send in (("batch", as_batch), ("shuffled", at_once)):
            client.post("/flush_cache").raise_for_status()
            begin = time.monotonic()
            figures[name] = send(client, bodies) / least
            figures[f"{name} seconds"] = time.monotonic() - begin
    return figures


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=None)
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--prefixes", type=int, default=20)
    parser.add_argument("--prefix-tokens", type=int, default=1000)
    parser.add_argument("--own-tokens", type=int, default=60)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--pool", type=int, default=3000, help="tokens")
    options = parser.parse_args()
    with ramiform.Runtime(options.model, port=0, num_pages=options.pool // PAGE, log_level="error") as runtime:
        assert runtime.url is not None
        vocab = httpx.get(f"{runtime.url}/get_model_info").json()["vocab_size"]
        sizes = (options.requests, options.prefixes, options.prefix_tokens, options.own_tokens, vocab)
        print(json.dumps(measure(runtime.url, shuffled_prompts(*sizes), options.output_tokens), indent=1))
