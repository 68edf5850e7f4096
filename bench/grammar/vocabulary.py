"""Measures how long an engine takes to index a vocabulary, and the memory that it keeps, beside other engines.

    python -P bench/grammar/vocabulary.py [--tokenizer FILE] [--engines native,llguidance] [--repeat 5]

Each run is in a process of its own, which has read the tokenizer and has made the same of 256 single bytes before, so
that imports are not counted. Memory is the process's resident memory: "held" is what it has more once it has given
back what it can, "as left" before that, "at most" the most that it had meanwhile. The token bytes are the caller's. Of
"wall" and "cpu" the least is shown, of memory the median. Prints Markdown.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import statistics
import threading
import time
from typing import Annotated, Any

import psutil
import typer

from ramiform.bench.grammar.engines import KINDS
from ramiform.bench.grammar.tokens import Tokens, find_tokenizer, load_tokens
from ramiform.bench.harness import TEKKEN, Out, Repeat, TokenizerFile, interleaved, report, table

Engines = Annotated[str, typer.Option(help="engines, separated by commas")]
BYTES = Tokens("bytes", [*(bytes([byte]) for byte in range(256)), None], 256, lambda text: list(text.encode()))
INTERVAL = 0.002  # seconds between two looks at the memory


def _give_back() -> None:
    gc.collect()
    if hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)


def measure(name: str, tokenizer: str) -> dict[str, float]:
    """Return the seconds and the MB of one construction in this process."""
    tokens, process = load_tokens(find_tokenizer(tokenizer)), psutil.Process()
    small = KINDS[name].make(BYTES)
    _give_back()
    before, seen, done = process.memory_info().rss, [0], threading.Event()

    def watch() -> None:
        while not done.wait(INTERVAL):
            seen.append(process.memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    began, processor = time.perf_counter(), time.thread_time()
    made = KINDS[name].make(tokens)
    wall, cpu = time.perf_counter() - began, time.thread_time() - processor
    done.set()
    watcher.join()
    left = process.memory_info().rss
    _give_back()
    held = process.memory_info().rss
    del small, made
    sizes = {"held": held, "left": left, "most": max(*seen, left)}
    return {"wall": wall, "cpu": cpu} | {name: (size - before) / 1e6 for name, size in sizes.items()}


def _in_a_process(name: str, tokenizer: str) -> dict[str, float]:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(measure, (name, tokenizer))


def main(
    tokenizer: TokenizerFile = TEKKEN, engines: Engines = "native,llguidance", repeat: Repeat = 5, out: Out = None
) -> None:
    tokens = load_tokens(find_tokenizer(tokenizer))
    names = engines.split(",")
    runs = interleaved(repeat, {name: lambda _, name=name: _in_a_process(name, tokenizer) for name in names})
    rows: list[dict[str, Any]] = []
    for name in names:
        row: dict[str, Any] = {"engine": f"{name} ({KINDS[name].version})"}
        row |= {f"{clock} ms": 1e3 * min(run[clock] for run in runs[name]) for clock in ("wall", "cpu")}
        for part, title in (("held", "held MB"), ("left", "as left MB"), ("most", "at most MB")):
            row[title] = statistics.median(run[part] for run in runs[name])
        rows.append(row)
    size = sum(len(data or b"") for data in tokens.data)
    heading = f"{tokens.name}, {len(tokens.data):,} tokens of {size / 1e6:.2f} MB"
    report("Indexing a vocabulary", heading, table(rows), out=out)


if __name__ == "__main__":
    typer.run(main)
