"""A session's next turn after a restart, from the disk cache and computed; and what the disk cache costs without hits.

    python -P bench/serving/restart.py [--tokens 100000] [--computed 4096] [--layers 24] [--repeat 5] [--out FILE]

The model has random weights in Qwen2-0.5B's shape (bfloat16). The session's keys and values are random numbers that are
put into the prefix cache and saved by the tier: reading and checking them takes what it takes for any. Then the files
are dropped from the system's page cache, a runtime starts on the folder, and answers the session with 48 more tokens.
It has noted that the session may go on. So once more: the files are dropped, a runtime starts, reads the session ahead,
and answers it with another 48 tokens.

Computing the whole session would take half an hour on two cores. So prompts of `--computed` tokens are computed, and
the rate of those, which longer ones do not reach, gives the least that the session would take.

Without hits: prompts that nobody has sent before, 512 tokens and 16 more each, 4 at once, in turn on a runtime with an
empty disk cache and on one without; medians of tokens a second. `--repeat 0` leaves out what is computed.
"""

from __future__ import annotations

import os
import random
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import httpx
import torch
import typer

import ramiform
from ramiform.bench.harness import Out, Repeat, interleaved, report, table
from ramiform.bench.random_models import qwen2_shaped
from ramiform.runtime.core.disk_cache import open_disk_cache
from ramiform.runtime.core.load import load_core
from ramiform.runtime.protocol.config import PAGE_SIZE, CoreConfig
from ramiform.runtime.transfer.pages import CachePages

VOCABULARY = 151936
TURN = 48  # new tokens of the next turn
PROMPT, OUTPUT, AT_ONCE, BATCH = 512, 16, 4, 8


def save_session(model: Path, folder: Path, tokens: list[int], settings: dict[str, Any]) -> float:
    """Put random keys and values of a session on the disk as the runtime would. Returns the GiB of its files."""
    core = load_core(CoreConfig(model=str(model), **settings))
    pages = CachePages(core.cache, core.engine)
    disk = open_disk_cache(
        CoreConfig(model=str(model), disk_cache=str(folder), **settings), core.info, core.cache, pages
    )
    step = 256 * PAGE_SIZE
    for start in range(0, len(tokens), step):
        end = min(len(tokens), start + step)
        content = torch.randint(0, 60, ((end - start) // PAGE_SIZE, pages.shape.page_bytes), dtype=torch.uint8)
        assert pages.write(tokens[:end], "", start // PAGE_SIZE, content)
    disk.close()
    return sum(file.stat().st_size for file in folder.glob("*/*")) / 2**30


def drop_from_memory(folder: Path) -> None:
    """Have the system forget the content of the files."""
    for file in folder.glob("*/*"):
        fd = os.open(file, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def ask(url: str, tokens: list[int], num_output: int) -> tuple[float, dict[str, Any]]:
    """Return the seconds of an answer, and its facts."""
    sampling = {"temperature": 0.0, "max_new_tokens": num_output, "ignore_eos": True}
    start = time.monotonic()
    answer = httpx.post(f"{url}/generate", json={"input_ids": tokens, "sampling_params": sampling}, timeout=3600)
    answer.raise_for_status()
    return time.monotonic() - start, answer.json()["meta_info"]


def wait_for_read_ahead(url: str) -> tuple[float, int]:
    """Return the seconds until a runtime that has just started has read ahead what it will, and the tokens."""
    start, num_tokens, last = time.monotonic(), 0, time.monotonic()
    while time.monotonic() - last < 2.0:
        now = httpx.get(f"{url}/get_server_info").raise_for_status().json()["disk"]["num_ahead_tokens"]
        if now != num_tokens:
            num_tokens, last = now, time.monotonic()
        time.sleep(0.05)
    return last - start, num_tokens


def throughput(url: str, seed: int) -> float:
    """Return tokens a second of prompts that nobody has sent before."""
    draw = random.Random(seed)
    prompts = [draw.choices(range(1000, VOCABULARY), k=PROMPT) for _ in range(BATCH)]
    start = time.monotonic()
    with ThreadPoolExecutor(AT_ONCE) as threads:
        list(threads.map(lambda prompt: ask(url, prompt, OUTPUT), prompts))
    return BATCH * (PROMPT + OUTPUT) / (time.monotonic() - start)


def compare_computing(
    model: Path, empty: Path, served: dict[str, Any], from_disk: float, computed: int, repeat: int
) -> list[dict[str, str]]:
    """Return rows on computing beside `from_disk`, tokens a second, and on throughput with and without a disk cache."""
    with (
        ramiform.Runtime(str(model), **served) as off,
        ramiform.Runtime(str(model), disk_cache=str(empty), **served) as on,
    ):
        rates = [
            computed / ask(str(off.url), random.Random(seed).choices(range(1000, VOCABULARY), k=computed), 1)[0]
            for seed in range(3)
        ]
        ways = {
            "off": lambda seed: throughput(str(off.url), seed),
            "on": lambda seed: throughput(str(on.url), seed),
        }
        found = {way: statistics.median(values) for way, values in interleaved(repeat, ways).items()}
    rate = statistics.median(rates)
    return [
        {"": f"computing, tokens/s (prompts of {computed:,})", "value": f"{rate:.0f}"},
        {"": "times faster, at least", "value": f"{from_disk / rate:.0f}"},
        {"": "throughput without hits, on / off", "value": f"{found['on'] / found['off']:.3f}"},
    ]


def main(
    tokens: Annotated[int, typer.Option(help="of the session")] = 100_000,
    computed: Annotated[int, typer.Option(help="tokens of a prompt that is computed")] = 4096,
    layers: Annotated[int, typer.Option(help="of the model")] = 24,
    repeat: Repeat = 5,
    out: Out = None,
) -> None:
    tokens = tokens // PAGE_SIZE * PAGE_SIZE
    context = max(tokens, computed) + 1024
    settings: dict[str, Any] = {"num_pages": context // PAGE_SIZE + 64, "context_length": context, "dtype": "bfloat16"}
    session = random.Random(0).choices(range(1000, VOCABULARY), k=tokens)
    turn, turn_after = (random.Random(seed).choices(range(1000, VOCABULARY), k=TURN) for seed in (1, 2))
    served = settings | {"port": 0, "log_level": "error", "wait_for_loops": True}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "cache"
        model = qwen2_shaped(
            Path(name) / "model", VOCABULARY, max_position_embeddings=context, num_hidden_layers=layers
        )
        num_gib = save_session(model, folder, session, settings)
        drop_from_memory(folder)
        started = time.monotonic()
        with ramiform.Runtime(str(model), disk_cache=str(folder), **served) as runtime:
            started = time.monotonic() - started
            assert runtime.url is not None
            seconds, facts = ask(runtime.url, [*session, *turn], 1)
        drop_from_memory(folder)
        with ramiform.Runtime(str(model), disk_cache=str(folder), **served) as runtime:
            assert runtime.url is not None
            seconds_ahead, num_ahead = wait_for_read_ahead(runtime.url)
            seconds_after, facts_after = ask(runtime.url, [*session, *turn, *turn_after], 1)
        rows = (
            compare_computing(model, Path(name) / "empty", served, tokens / seconds, computed, repeat) if repeat else []
        )
    facts_of_session = [
        {"": "tokens of the session", "value": f"{tokens:,}"},
        {"": "GiB on disk", "value": f"{num_gib:.2f}"},
        {"": "start of the runtime, s", "value": f"{started:.1f}"},
        {"": "next turn from the disk, s", "value": f"{seconds:.2f}"},
        {"": "of it pages from the disk, s", "value": f"{facts['transfer_time']:.2f}"},
        {"": "share of the session from the disk", "value": f"{facts['cached_tokens'] / tokens:.4f}"},
        {"": "read ahead after the start, s", "value": f"{seconds_ahead:.2f}"},
        {"": "share of the session read ahead", "value": f"{num_ahead / tokens:.4f}"},
        {"": "next turn, read ahead, s", "value": f"{seconds_after:.2f}"},
        {"": "its share from the cache", "value": f"{facts_after['cached_tokens'] / tokens:.4f}"},
    ]
    report("A restart with a disk cache", table([*facts_of_session, *rows]), out=out)


if __name__ == "__main__":
    typer.run(main)
